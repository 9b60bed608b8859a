//! zlib, through flate2.

use flate2::{Compress, Compression, Decompress, FlushCompress, FlushDecompress, Status};

use super::grow;
use crate::error::WireError;

pub(super) fn inflate(bytes: &[u8], ceiling: usize, out: &mut Vec<u8>) -> Result<(), WireError> {
    let start = out.len();
    let mut state = Decompress::new(true);
    loop {
        // Both counters stand below the lengths of slices.
        let (read, written) = (state.total_in() as usize, state.total_out() as usize);
        if start + written == out.len() {
            grow(out, written, bytes.len().max(256), ceiling)?;
        }
        let input = bytes.get(read..).unwrap_or_default();
        let place = out.get_mut(start + written..).unwrap_or_default();
        let status = state.decompress(input, place, FlushDecompress::None).map_err(|_| WireError::Inflate)?;
        let produced = state.total_out() as usize;
        if produced > ceiling {
            return Err(WireError::InflateTooLong { max: ceiling });
        }
        match status {
            Status::StreamEnd => {
                out.truncate(start + produced);
                return Ok(());
            }
            Status::Ok | Status::BufError => {
                if state.total_in() as usize == read && produced == written {
                    return Err(WireError::Inflate);
                }
            }
        }
    }
}

pub(super) fn deflate(bytes: &[u8], level: u32, out: &mut Vec<u8>) -> Result<(), WireError> {
    let mut state = Compress::new(Compression::new(level.min(9)), true);
    loop {
        out.reserve(bytes.len() / 2 + 64);
        let input = bytes.get(state.total_in() as usize..).unwrap_or_default();
        match state.compress_vec(input, out, FlushCompress::Finish) {
            Ok(Status::StreamEnd) => return Ok(()),
            Ok(Status::Ok | Status::BufError) => {}
            Err(_) => return Err(WireError::Inflate),
        }
    }
}
