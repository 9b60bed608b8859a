//! Compressed bodies: which codec a flag means, inflating under a ceiling, deflating.
//!
//! Workers inflate what they are about to hand over; senders deflate. However small the input, no more memory is taken
//! than twice what has been produced, and nothing is produced far beyond the ceiling. Zstandard's library keeps a window
//! beside that, which grows with what is produced and doubles as it grows: four times in all, and its tables of at most
//! 2 MiB; the others' fixed state is a few hundred KiB. Each codec is a feature; without it its bodies are an error of
//! their own, as are unknown codecs.
//!
//! Source: apache/rocketmq@rocketmq-all-5.3.3
//! common/src/main/java/org/apache/rocketmq/common/compression/{CompressionType,Compressor}.java

use super::remoting::codes::sys_flag;
use crate::error::WireError;

#[cfg(feature = "lz4")]
mod lz4;
#[cfg(feature = "zlib")]
mod zlib;
#[cfg(feature = "zstd")]
mod zstd;

/// Most bytes a body inflates to unless the user says otherwise (D9).
pub const CEILING: usize = 16 * 1024 * 1024;

/// A codec.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Kind {
    /// zlib, RFC 1950: the only one that 4.9.3 reads.
    Zlib,
    /// LZ4 in its frame format.
    Lz4,
    /// Zstandard.
    Zstd,
}

impl Kind {
    /// The codec of a message with this `sysFlag`; `None` if its body is plain, whatever the type bits say.
    ///
    /// # Errors
    /// `Compression` for types that nobody knows.
    pub fn of_flag(flag: i32) -> Result<Option<Self>, WireError> {
        if flag & sys_flag::COMPRESSED == 0 {
            return Ok(None);
        }
        match (flag & sys_flag::COMPRESSION) >> sys_flag::COMPRESSION_SHIFT {
            // Senders before 4.9.4 know only one and do not say which.
            0 | 3 => Ok(Some(Self::Zlib)),
            1 => Ok(Some(Self::Lz4)),
            2 => Ok(Some(Self::Zstd)),
            // Three bits.
            other => Err(WireError::Compression { kind: other as u8 }),
        }
    }

    /// The bits of `sysFlag` that say that a body is compressed by it.
    pub fn flag(self) -> i32 {
        i32::from(self.number()) << sys_flag::COMPRESSION_SHIFT | sys_flag::COMPRESSED
    }

    fn number(self) -> u8 {
        match self {
            Self::Lz4 => 1,
            Self::Zstd => 2,
            Self::Zlib => 3,
        }
    }
}

/// Appends what `bytes` inflate to, at most `ceiling` bytes.
///
/// # Errors
/// `Inflate` for bytes that do not, `InflateTooLong` above the ceiling, `Compression` for a codec that is not built in;
/// `out` is then as long as it was.
pub fn inflate(kind: Kind, bytes: &[u8], ceiling: usize, out: &mut Vec<u8>) -> Result<(), WireError> {
    let start = out.len();
    let inflated = match kind {
        #[cfg(feature = "zlib")]
        Kind::Zlib => zlib::inflate(bytes, ceiling, out),
        #[cfg(feature = "lz4")]
        Kind::Lz4 => lz4::inflate(bytes, ceiling, out),
        #[cfg(feature = "zstd")]
        Kind::Zstd => zstd::inflate(bytes, ceiling, out),
        #[allow(unreachable_patterns)]
        other => Err(WireError::Compression { kind: other.number() }),
    };
    // Unused if no codec is built in.
    let _ = (bytes, ceiling);
    if inflated.is_err() {
        out.truncate(start);
    }
    inflated
}

/// Appends `bytes` deflated. `level` is zlib's, 0 to 9; Java's default is 5. LZ4 has none.
///
/// # Errors
/// `Compression` for a codec that is not built in, or not for writing.
pub fn deflate(kind: Kind, level: u32, bytes: &[u8], out: &mut Vec<u8>) -> Result<(), WireError> {
    let start = out.len();
    let deflated = match kind {
        #[cfg(feature = "zlib")]
        Kind::Zlib => zlib::deflate(bytes, level, out),
        #[cfg(feature = "lz4")]
        Kind::Lz4 => lz4::deflate(bytes, out),
        #[allow(unreachable_patterns)]
        other => Err(WireError::Compression { kind: other.number() }),
    };
    // Unused if no codec is built in.
    let _ = (bytes, level);
    if deflated.is_err() {
        out.truncate(start);
    }
    deflated
}

/// Makes place behind the `produced` bytes at the end of `out` for as many again, at least `least`, but for no more than
/// the ceiling and one byte, by which it is seen to be exceeded.
#[cfg(any(feature = "zlib", feature = "zstd"))]
fn grow(out: &mut Vec<u8>, produced: usize, least: usize, ceiling: usize) -> Result<(), WireError> {
    if produced > ceiling {
        return Err(WireError::InflateTooLong { max: ceiling });
    }
    let more = produced.max(least).min(ceiling - produced + 1);
    out.reserve_exact(more);
    out.resize(out.len() + more, 0);
    Ok(())
}

/// For the fuzz target `bodies`: what inflates stays below the ceiling, whatever the bytes.
#[doc(hidden)]
#[cfg(any(test, fuzzing))]
pub fn fuzz_inflate(bytes: &[u8], measure: super::Measure) {
    const MAX: usize = 1 << 20;
    // zlib's window; ruzstd's step beyond the ceiling, and its sequences: 12 bytes for each of 98 047 in a block.
    const STATE: usize = 5 << 19;
    for kind in [Kind::Zlib, Kind::Lz4, Kind::Zstd] {
        let (mut out, mut inflated) = (vec![7], Ok(()));
        let peak = measure(&mut || inflated = inflate(kind, bytes, MAX, &mut out));
        assert!(peak <= 4 * MAX + STATE, "{kind:?}: {peak} bytes");
        match inflated {
            Ok(()) => assert!(out.len() <= MAX + 1, "above the ceiling"),
            Err(_) => assert_eq!(out, [7], "something was left behind"),
        }
        let mut again = Vec::new();
        if deflate(kind, 5, bytes, &mut again).is_ok() {
            let mut out = Vec::new();
            assert_eq!(inflate(kind, &again, bytes.len(), &mut out), Ok(()));
            assert_eq!(out, bytes, "deflated and inflated");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Its event is all that tells a user why messages become dead letters.
    #[test]
    fn a_codec_that_is_not_built_in_is_named_with_its_feature() {
        for (kind, name) in [(Kind::Zlib, "zlib"), (Kind::Lz4, "lz4"), (Kind::Zstd, "zstd")] {
            let text = WireError::Compression { kind: kind.number() }.to_string();
            assert_eq!(text, format!("{name} is not built in: feature `{name}` of windlass"));
        }
    }

    #[cfg(any(feature = "zlib", feature = "lz4", feature = "zstd"))]
    fn inflated(flag: i32, bytes: &[u8], ceiling: usize) -> Result<Vec<u8>, WireError> {
        let mut out = Vec::new();
        match Kind::of_flag(flag)? {
            Some(kind) => inflate(kind, bytes, ceiling, &mut out)?,
            None => out.extend_from_slice(bytes),
        }
        Ok(out)
    }

    #[test]
    #[cfg(feature = "zlib")]
    fn c_009_which_compression_a_flag_means() {
        let zlib = [0x78, 0x9C, 0x4B, 0x4C, 0x4A, 0x06, 0x00, 0x02, 0x4D, 0x01, 0x27];
        assert_eq!(inflated(0x001, &zlib, 100).unwrap(), b"abc");
        assert_eq!(inflated(0x301, &zlib, 100).unwrap(), b"abc");
        let gzip = [0x1F, 0x8B, 0x08, 0, 0, 0, 0, 0, 0, 0x03, 0x4B, 0x4C, 0x4A, 0x06, 0];
        assert_eq!(inflated(0x001, &gzip, 100), Err(WireError::Inflate));
        let unknown = WireError::Compression { kind: 4 };
        assert_eq!(
            (inflated(0x401, &zlib, 100), unknown.to_string()),
            (Err(unknown), "unknown compression 4".to_owned())
        );
        assert_eq!(inflated(0x400, &zlib, 100).unwrap(), zlib);
    }

    #[test]
    #[cfg(feature = "zlib")]
    fn c_010_a_damaged_compressed_body() {
        let mut bytes = vec![0x78, 0x9C];
        bytes.extend((0..20u8).map(|i| i.wrapping_mul(73) ^ 0xA5));
        assert_eq!(inflated(0x001, &bytes, 100), Err(WireError::Inflate));
    }

    #[test]
    #[cfg(feature = "zlib")]
    fn c_011_the_ceiling_is_a_ceiling() {
        let body = vec![7; 5 << 20];
        let mut bytes = Vec::new();
        deflate(Kind::Zlib, 5, &body, &mut bytes).unwrap();
        assert_eq!(inflated(0x001, &bytes, 4 << 20), Err(WireError::InflateTooLong { max: 4 << 20 }));
        assert_eq!(inflated(0x001, &bytes, 5 << 20).unwrap().len(), 5 << 20);
    }

    #[test]
    #[cfg(feature = "zlib")]
    fn c_012_flag_and_body_move_together() {
        let kind = Kind::Zlib;
        let mut bytes = Vec::new();
        deflate(kind, 5, b"abcabcabc", &mut bytes).unwrap();
        assert_eq!(inflated(kind.flag(), &bytes, 100).unwrap(), b"abcabcabc");
        // The type bits stay when the body is plain again, and mean nothing then.
        let flag = kind.flag() & !sys_flag::COMPRESSED;
        assert_eq!(inflated(flag, b"abcabcabc", 100).unwrap(), b"abcabcabc");
    }

    #[test]
    fn cut_streams_do_not_inflate() {
        for kind in [Kind::Zlib, Kind::Lz4] {
            let body: Vec<u8> = (0..20_000u32).flat_map(|i| (i / 7).to_le_bytes()).collect();
            let mut bytes = Vec::new();
            if deflate(kind, 5, &body, &mut bytes).is_err() {
                continue;
            }
            let mut out = Vec::new();
            inflate(kind, &bytes, body.len(), &mut out).unwrap();
            assert_eq!(out, body);
            assert!(inflate(kind, &bytes, body.len() - 1, &mut Vec::new()).is_err());
            for end in (0..bytes.len()).step_by(97) {
                assert!(
                    inflate(kind, bytes.get(..end).unwrap(), body.len(), &mut Vec::new()).is_err(),
                    "{kind:?} {end}"
                );
            }
        }
    }

    #[test]
    #[cfg(feature = "zstd")]
    fn zstd_inflates() {
        // `zstd -5` of 300 times "abcabcabc\n".
        let hex = ZSTD_SAMPLE;
        let bytes: Vec<u8> =
            (0..hex.len() / 2).map(|i| u8::from_str_radix(&hex[2 * i..2 * i + 2], 16).unwrap()).collect();
        let want = "abcabcabc\n".repeat(300).into_bytes();
        assert_eq!(inflated(0x201, &bytes, want.len()).unwrap(), want);
        assert!(matches!(inflated(0x201, &bytes, want.len() - 1), Err(WireError::InflateTooLong { .. })));
        for end in 0..bytes.len() {
            assert_eq!(inflated(0x201, &bytes[..end], want.len()), Err(WireError::Inflate), "{end}");
        }
    }

    /// A window of 128 MiB, of which nothing comes out before it is full or the frame ends.
    #[test]
    #[cfg(feature = "zstd")]
    fn a_frame_with_a_large_window_ends_at_the_ceiling() {
        // Blocks of 128 KiB in four bytes each; the type of the last is one that does not exist.
        let frame = |blocks: usize, end: &[u8]| {
            [&[0x28, 0xB5, 0x2F, 0xFD, 0, 17 << 3], [2, 0, 0x10, b'a'].repeat(blocks).as_slice(), end].concat()
        };
        for ceiling in [100usize, 128 << 10, 1 << 20, 2_000_000] {
            let bad = frame(ceiling.div_ceil(128 << 10) + 3, &[6, 0, 0]);
            assert_eq!(inflated(0x201, &bad, ceiling), Err(WireError::InflateTooLong { max: ceiling }), "{ceiling}");
        }
        let whole = frame(15, &[3 | 0x80, 0x02, 0, b'b']);
        let mut want = vec![b'a'; 15 << 17];
        want.extend_from_slice(&[b'b'; 80]);
        assert_eq!(inflated(0x201, &whole, want.len()).unwrap(), want);
        assert_eq!(inflated(0x201, &whole, want.len() - 1), Err(WireError::InflateTooLong { max: want.len() - 1 }));
    }

    #[cfg(feature = "zstd")]
    const ZSTD_SAMPLE: &str = "28b52ffd0458750000206162630a0200ab6bf142cc0d01abbd553d";
}
