//! Zstandard, through ruzstd: inflating only.

use std::io::Read;

use ruzstd::decoding::{FrameDecoder, StreamingDecoder};

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
    // A fresh decoder takes memory as it produces, not by the window that the frame announces.
    let mut decoder =
        StreamingDecoder::new_with_decoder(&mut input, FrameDecoder::new()).map_err(|_| WireError::Inflate)?;
    let mut written = 0;
    loop {
        if start + written == out.len() {
            grow(out, written, bytes.len().max(256), ceiling)?;
        }
        let place = out.get_mut(start + written..).unwrap_or_default();
        let len = decoder.read(place).map_err(|_| WireError::Inflate)?;
        if len == 0 {
            break;
        }
        written += len;
        if written > ceiling {
            return Err(WireError::InflateTooLong { max: ceiling });
        }
    }
    out.truncate(start + written);
    Ok(())
}
