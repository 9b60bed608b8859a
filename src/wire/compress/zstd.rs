//! Zstandard, through ruzstd: inflating only.

use std::io::Read;

use ruzstd::decoding::{BlockDecodingStrategy, FrameDecoder};

use super::grow;
use crate::error::WireError;

/// Shortest frame: magic, descriptor, window, one block's head.
const SHORTEST: usize = 9;

pub(super) fn inflate(bytes: &[u8], ceiling: usize, out: &mut Vec<u8>) -> Result<(), WireError> {
    if bytes.len() < SHORTEST {
        return Err(WireError::Inflate);
    }
    let start = out.len();
    let mut input = bytes;
    // A fresh decoder takes memory as it produces, not by the window that the frame announces. It is turned block by
    // block here: the library's streaming reader would link the texts of all its errors into every program.
    let mut decoder = FrameDecoder::new();
    decoder.init(&mut input).map_err(|_| WireError::Inflate)?;
    let mut written = 0;
    loop {
        while decoder.can_collect() == 0 && !decoder.is_finished() {
            decoder.decode_blocks(&mut input, BlockDecodingStrategy::UptoBlocks(1)).map_err(|_| WireError::Inflate)?;
        }
        if decoder.can_collect() == 0 {
            break;
        }
        if start + written == out.len() {
            grow(out, written, bytes.len().max(256), ceiling)?;
        }
        let place = out.get_mut(start + written..).unwrap_or_default();
        written += decoder.read(place).map_err(|_| WireError::Inflate)?;
        if written > ceiling {
            return Err(WireError::InflateTooLong { max: ceiling });
        }
    }
    out.truncate(start + written);
    Ok(())
}
