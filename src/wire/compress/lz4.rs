//! LZ4 frames, walked here; their blocks go through lz4_flex.
//!
//! Its own frame reader would take memory by the block size that the frame announces, up to 8 MiB for a handful of
//! bytes. Written frames come from its writer: independent blocks, as lz4-java writes and reads them.
//!
//! Source: lz4/lz4@dev doc/lz4_Frame_format.md

use std::io::Write;

use lz4_flex::block::{DecompressError, decompress_into_with_dict};
use lz4_flex::frame::{BlockMode, BlockSize, FrameEncoder, FrameInfo};
use twox_hash::XxHash32;

use crate::error::WireError;
use crate::wire::bytes::Cursor;

const MAGIC: u32 = 0x184D_2204;
/// Magic of frames to be passed over, but for the last four bits.
const SKIPPABLE: u32 = 0x184D_2A50;
/// How far back a block may refer.
const WINDOW: usize = 64 * 1024;
/// Set in a block's length if it is stored as it is.
const STORED: u32 = 0x8000_0000;

fn bad<T>(_: T) -> WireError {
    WireError::Inflate
}

/// The descriptor of a frame.
struct Frame {
    independent: bool,
    block_sums: bool,
    content_sum: bool,
    content_len: Option<u64>,
    block_max: usize,
}

pub(super) fn inflate(bytes: &[u8], ceiling: usize, out: &mut Vec<u8>) -> Result<(), WireError> {
    let start = out.len();
    let mut cursor = Cursor::new(bytes);
    let mut frames = 0;
    while cursor.left() > 0 {
        let magic = word(&mut cursor)?;
        if magic & !0xF == SKIPPABLE {
            let len = word(&mut cursor)?;
            cursor.take("", len as usize).map_err(bad)?;
            continue;
        }
        if magic != MAGIC {
            return Err(WireError::Inflate);
        }
        frame(&mut cursor, start, ceiling, out)?;
        frames += 1;
    }
    if frames == 0 { Err(WireError::Inflate) } else { Ok(()) }
}

/// A word of the format, which is little-endian.
fn word(cursor: &mut Cursor<'_>) -> Result<u32, WireError> {
    cursor.u32("").map(u32::swap_bytes).map_err(bad)
}

fn descriptor(cursor: &mut Cursor<'_>) -> Result<Frame, WireError> {
    let all = cursor.rest();
    let flags = cursor.u8("").map_err(bad)?;
    let sizes = cursor.u8("").map_err(bad)?;
    // Version 1, no reserved bit, no dictionary: nobody has one to give.
    if flags >> 6 != 1 || flags & 0b11 != 0 || sizes & 0x8F != 0 {
        return Err(WireError::Inflate);
    }
    let block_max = match sizes >> 4 {
        4 => 64 << 10,
        5 => 256 << 10,
        6 => 1 << 20,
        7 => 4 << 20,
        _ => return Err(WireError::Inflate),
    };
    let content_len = match flags & 8 {
        0 => None,
        _ => Some((cursor.i64("").map_err(bad)? as u64).swap_bytes()),
    };
    let read = all.get(..all.len() - cursor.left()).unwrap_or_default();
    let sum = (XxHash32::oneshot(0, read) >> 8) as u8;
    if cursor.u8("").map_err(bad)? != sum {
        return Err(WireError::Inflate);
    }
    let (independent, block_sums, content_sum) = (flags & 0x20 != 0, flags & 0x10 != 0, flags & 4 != 0);
    Ok(Frame { independent, block_sums, content_sum, content_len, block_max })
}

/// One frame behind its magic. `start`: where what is inflated starts in `out`, on which the ceiling bears.
fn frame(cursor: &mut Cursor<'_>, start: usize, ceiling: usize, out: &mut Vec<u8>) -> Result<(), WireError> {
    let frame = descriptor(cursor)?;
    let from = out.len();
    loop {
        let len = word(cursor)?;
        if len == 0 {
            break;
        }
        let stored = len & STORED != 0;
        let len = (len & !STORED) as usize;
        if len > frame.block_max {
            return Err(WireError::Inflate);
        }
        let block = cursor.take("", len).map_err(bad)?;
        if frame.block_sums && word(cursor)? != XxHash32::oneshot(0, block) {
            return Err(WireError::Inflate);
        }
        let left = ceiling - (out.len() - start);
        if stored {
            if len > left {
                return Err(WireError::InflateTooLong { max: ceiling });
            }
            out.extend_from_slice(block);
        } else {
            let window = if frame.independent { out.len() } else { from.max(out.len().saturating_sub(WINDOW)) };
            inflate_block(block, window, frame.block_max, left, out).map_err(|error| match error {
                WireError::InflateTooLong { .. } => WireError::InflateTooLong { max: ceiling },
                other => other,
            })?;
        }
    }
    let content = out.get(from..).unwrap_or_default();
    if frame.content_sum && word(cursor)? != XxHash32::oneshot(0, content) {
        return Err(WireError::Inflate);
    }
    if frame.content_len.is_some_and(|len| len != content.len() as u64) {
        return Err(WireError::Inflate);
    }
    Ok(())
}

/// Appends one block, which may refer to `out` from `window` on. Its length is unknown: room is doubled until it fits.
fn inflate_block(
    block: &[u8],
    window: usize,
    block_max: usize,
    left: usize,
    out: &mut Vec<u8>,
) -> Result<(), WireError> {
    let from = out.len();
    let most = block_max.min(left);
    let mut room = block.len().saturating_mul(2).max(256).min(most);
    loop {
        out.resize(from + room, 0);
        let (before, place) = out.split_at_mut_checked(from).unwrap_or_default();
        let known = before.get(window..).unwrap_or_default();
        match decompress_into_with_dict(block, place, known) {
            Ok(len) => {
                out.truncate(from + len);
                return Ok(());
            }
            Err(DecompressError::OutputTooSmall { .. }) if room < most => room = room.saturating_mul(2).min(most),
            Err(DecompressError::OutputTooSmall { .. }) if most == left => {
                return Err(WireError::InflateTooLong { max: left });
            }
            Err(_) => return Err(WireError::Inflate),
        }
    }
}

pub(super) fn deflate(bytes: &[u8], out: &mut Vec<u8>) -> Result<(), WireError> {
    let info = FrameInfo::new().block_mode(BlockMode::Independent).block_size(BlockSize::Auto);
    let mut encoder = FrameEncoder::with_frame_info(info, out);
    encoder.write_all(bytes).map_err(bad)?;
    encoder.finish().map(drop).map_err(bad)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn linked_blocks_and_sums_are_read() {
        let body: Vec<u8> = (0..300_000u32).flat_map(|i| (i / 50).to_le_bytes()).collect();
        for mode in [BlockMode::Linked, BlockMode::Independent] {
            let info = FrameInfo::new()
                .block_mode(mode)
                .block_size(BlockSize::Max64KB)
                .block_checksums(true)
                .content_checksum(true)
                .content_size(Some(body.len() as u64));
            let mut encoder = FrameEncoder::with_frame_info(info, Vec::new());
            encoder.write_all(&body).unwrap();
            let mut bytes = encoder.finish().unwrap();
            let mut out = vec![1, 2, 3];
            inflate(&bytes, body.len(), &mut out).unwrap();
            assert_eq!(out[3..], body);
            let middle = bytes.len() / 2;
            bytes[middle] ^= 1;
            assert!(inflate(&bytes, body.len(), &mut Vec::new()).is_err());
        }
    }

    #[test]
    fn an_announced_block_size_takes_no_memory() {
        // 4 MiB blocks announced, none there.
        let mut bytes = vec![0x04, 0x22, 0x4D, 0x18, 0x60, 0x70];
        bytes.push((XxHash32::oneshot(0, &bytes[4..]) >> 8) as u8);
        bytes.extend([1, 0, 0, 0, 0x00, 0, 0, 0, 0]);
        let mut out = Vec::new();
        inflate(&bytes, 16 << 20, &mut out).unwrap();
        assert!(out.is_empty() && out.capacity() <= 4096);
    }
}
