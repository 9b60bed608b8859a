//! A bounds-checked reader over bytes that a peer sent, and the writing side of the same words.
//!
//! Every decoder of this room reads through [`Cursor`], so that no length of a peer reaches past what has arrived. It
//! never allocates and never panics.

use std::borrow::Cow;

use byteorder::{BigEndian, ByteOrder};

use crate::error::WireError;

/// Reads big-endian words and runs of bytes off the front of a slice.
#[derive(Clone, Copy, Debug)]
pub struct Cursor<'a> {
    rest: &'a [u8],
}

impl<'a> Cursor<'a> {
    /// A cursor at the first byte.
    #[inline]
    pub fn new(bytes: &'a [u8]) -> Self {
        Self { rest: bytes }
    }

    /// What has not been read.
    #[inline]
    pub fn rest(&self) -> &'a [u8] {
        self.rest
    }

    /// How many bytes have not been read.
    #[inline]
    pub fn left(&self) -> usize {
        self.rest.len()
    }

    /// The next `len` bytes.
    ///
    /// # Errors
    /// `BadLength` naming `what` if fewer are left.
    #[inline(always)]
    pub fn take(&mut self, what: &'static str, len: usize) -> Result<&'a [u8], WireError> {
        match self.rest.split_at_checked(len) {
            Some((taken, rest)) => {
                self.rest = rest;
                Ok(taken)
            }
            None => Err(too_short(what, i64::try_from(len).unwrap_or(i64::MAX), self.rest.len())),
        }
    }

    /// The next bytes, as many as a signed length of the peer says.
    ///
    /// # Errors
    /// `BadLength` naming `what` if the length is negative or more than what is left.
    #[inline(always)]
    pub fn take_signed(&mut self, what: &'static str, len: i32) -> Result<&'a [u8], WireError> {
        match usize::try_from(len) {
            Ok(known) => self.take(what, known),
            Err(_) => Err(too_short(what, i64::from(len), self.rest.len())),
        }
    }

    /// As [`Cursor::take_signed`], as UTF-8 text.
    ///
    /// # Errors
    /// `BadLength`, or `BadText` if the bytes are not UTF-8.
    pub fn text(&mut self, what: &'static str, len: i32) -> Result<&'a str, WireError> {
        str::from_utf8(self.take_signed(what, len)?).map_err(|_| WireError::BadText { what })
    }

    #[inline(always)]
    fn word<const N: usize>(&mut self, what: &'static str) -> Result<&'a [u8; N], WireError> {
        match self.rest.split_first_chunk::<N>() {
            Some((word, rest)) => {
                self.rest = rest;
                Ok(word)
            }
            None => Err(too_short(what, i64::try_from(N).unwrap_or(i64::MAX), self.rest.len())),
        }
    }

    /// The next byte.
    #[inline(always)]
    pub fn u8(&mut self, what: &'static str) -> Result<u8, WireError> {
        self.word::<1>(what).map(|word| u8::from_be_bytes(*word))
    }

    /// The next two bytes, signed.
    #[inline(always)]
    pub fn i16(&mut self, what: &'static str) -> Result<i16, WireError> {
        self.word::<2>(what).map(|word| i16::from_be_bytes(*word))
    }

    /// The next four bytes, signed.
    #[inline(always)]
    pub fn i32(&mut self, what: &'static str) -> Result<i32, WireError> {
        self.word::<4>(what).map(|word| i32::from_be_bytes(*word))
    }

    /// The next four bytes, unsigned.
    #[inline(always)]
    pub fn u32(&mut self, what: &'static str) -> Result<u32, WireError> {
        self.word::<4>(what).map(|word| u32::from_be_bytes(*word))
    }

    /// The next eight bytes, signed.
    #[inline(always)]
    pub fn i64(&mut self, what: &'static str) -> Result<i64, WireError> {
        self.word::<8>(what).map(|word| i64::from_be_bytes(*word))
    }
}

#[cold]
fn too_short(what: &'static str, len: i64, left: usize) -> WireError {
    WireError::BadLength { what, len, left }
}

/// Writes `value` over the four bytes at `at`, which must have been written before; does nothing beyond the end.
pub fn patch_u32(out: &mut [u8], at: usize, value: u32) {
    if let Some(place) = out.get_mut(at..).and_then(<[u8]>::first_chunk_mut::<4>) {
        BigEndian::write_u32(place, value);
    }
}

/// Writes `value` over the eight bytes at `at`, which must have been written before; does nothing beyond the end.
pub fn patch_i64(out: &mut [u8], at: usize, value: i64) {
    if let Some(place) = out.get_mut(at..).and_then(<[u8]>::first_chunk_mut::<8>) {
        BigEndian::write_i64(place, value);
    }
}

/// `bytes` as text, with `?` for every run that is no UTF-8: never longer than they are.
pub fn readable(bytes: &[u8]) -> Cow<'_, str> {
    if let Ok(text) = str::from_utf8(bytes) {
        return Cow::Borrowed(text);
    }
    let mut out = String::with_capacity(bytes.len());
    for chunk in bytes.utf8_chunks() {
        out.push_str(chunk.valid());
        if !chunk.invalid().is_empty() {
            out.push('?');
        }
    }
    Cow::Owned(out)
}

/// `text` as a decimal number: an optional sign and digits, nothing else. `None` if it is none or does not fit.
#[inline]
pub fn decimal(text: &[u8]) -> Option<i64> {
    let found = match text {
        [b'-', below @ ..] => digits(below).map(|value| -value),
        _ => digits(text),
    };
    match found {
        Some(value) => Some(value),
        None => str::from_utf8(text).ok()?.parse().ok(),
    }
}

/// [`decimal`] for what nearly every number is: 1 to 18 digits, which cannot overflow, and nothing else. `None` says nothing
/// about other texts.
#[inline(always)]
pub fn digits(text: &[u8]) -> Option<i64> {
    if text.is_empty() || text.len() > 18 {
        return None;
    }
    let mut value = 0i64;
    for byte in text {
        let digit = byte.wrapping_sub(b'0');
        if digit > 9 {
            return None;
        }
        value = value * 10 + i64::from(digit);
    }
    Some(value)
}

/// Appends `value` in decimal.
pub fn push_decimal(out: &mut Vec<u8>, value: i64) {
    let mut digits = [0u8; 20];
    let mut left = value.unsigned_abs();
    let mut used = 0;
    for place in digits.iter_mut().rev() {
        // `left % 10` is below 10.
        *place = b'0' + (left % 10) as u8;
        left /= 10;
        used += 1;
        if left == 0 {
            break;
        }
    }
    if value < 0 {
        out.push(b'-');
    }
    out.extend_from_slice(digits.get(20 - used..).unwrap_or_default());
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_length_of_the_peer_never_reaches_past_the_end() {
        let mut cursor = Cursor::new(&[0, 0, 0, 1, 7]);
        assert_eq!(cursor.i32("n"), Ok(1));
        assert_eq!(cursor.take_signed("x", -1), Err(WireError::BadLength { what: "x", len: -1, left: 1 }));
        assert_eq!(cursor.take_signed("x", i32::MAX).unwrap_err(), too_short("x", i64::from(i32::MAX), 1));
        assert_eq!(cursor.i64("y"), Err(WireError::BadLength { what: "y", len: 8, left: 1 }));
        assert_eq!((cursor.u8("z"), cursor.left()), (Ok(7), 0));
    }

    #[test]
    fn what_is_no_text_becomes_readable() {
        assert_eq!(readable("aé".as_bytes()), "aé");
        assert_eq!(readable(b"a\xFF\xC3b\xF0\x9F\x98"), "a??b?");
    }

    #[test]
    fn decimals_read_back_as_written() {
        for value in [0, 1, -1, 9, 10, i64::MAX, i64::MIN, 1_700_000_000_123, -62_135_596_800_000] {
            let mut out = Vec::new();
            push_decimal(&mut out, value);
            let text = String::from_utf8(out).unwrap();
            assert_eq!((text.as_str(), decimal(text.as_bytes())), (value.to_string().as_str(), Some(value)));
        }
        for bad in ["", "-", "+", "1a", " 1", "1 ", "9223372036854775808", "1.0", "--1"] {
            assert_eq!(decimal(bad.as_bytes()), None, "{bad:?}");
        }
        assert_eq!(decimal(b"+5"), Some(5));
    }
}
