//! Zstandard, through ruzstd: inflating only.

use std::io::Read;

use ruzstd::decoding::{BlockDecodingStrategy, FrameDecoder};

use super::grow;
use crate::error::WireError;

/// Shortest frame: magic, descriptor, window, one block's head.
const SHORTEST: usize = 9;
/// So many bytes, and at most one block more, are produced between two looks at how many there are.
const STEP: usize = 256 * 1024;

pub(super) fn inflate(bytes: &[u8], ceiling: usize, out: &mut Vec<u8>) -> Result<(), WireError> {
    if bytes.len() < SHORTEST {
        return Err(WireError::Inflate);
    }
    let start = out.len();
    let mut input = bytes;
    // A fresh decoder takes memory as it produces, not by the window that the frame announces. It is turned step by
    // step here: the library's streaming reader would link the texts of all its errors into every program.
    let mut decoder = FrameDecoder::new();
    decoder.init(&mut input).map_err(|_| WireError::Inflate)?;
    // What has been taken out of it, and what it holds at least. It gives nothing out before it holds more than the
    // window, which may be announced far above the ceiling.
    let (mut written, mut held) = (0usize, 0usize);
    loop {
        while decoder.can_collect() == 0 && !decoder.is_finished() {
            let more = ceiling.saturating_add(1).saturating_sub(written + held).min(STEP);
            decoder
                .decode_blocks(&mut input, BlockDecodingStrategy::UptoBytes(more))
                .map_err(|_| WireError::Inflate)?;
            held += more;
            if written + held > ceiling && !decoder.is_finished() {
                return Err(WireError::InflateTooLong { max: ceiling });
            }
        }
        if decoder.can_collect() == 0 {
            break;
        }
        if start + written == out.len() {
            grow(out, written, bytes.len().max(256), ceiling)?;
        }
        let place = out.get_mut(start + written..).unwrap_or_default();
        let read = decoder.read(place).map_err(|_| WireError::Inflate)?;
        written += read;
        held = held.saturating_sub(read);
        if written > ceiling {
            return Err(WireError::InflateTooLong { max: ceiling });
        }
    }
    out.truncate(start + written);
    Ok(())
}
