//! The body of a batch (code 320), and of a record that holds one: entries one after the other, without a count.

use crate::error::WireError;
use crate::wire::bytes::{Cursor, patch_u32};

/// Bytes of an entry without body and properties.
const FIXED: usize = 22;

/// One message of a batch.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Entry<'a> {
    /// The application's own 32 bits.
    pub flag: i32,
    /// Body.
    pub body: &'a [u8],
    /// Properties text, see [`super::properties`].
    pub properties: &'a [u8],
}

/// Appends an entry.
///
/// # Errors
/// `TooLong` for properties above 32 767 bytes or a body above what a frame holds; `out` is then as it was.
pub fn push(out: &mut Vec<u8>, entry: &Entry<'_>) -> Result<(), WireError> {
    let properties = super::record::properties_len(entry.properties)?;
    let max = crate::wire::frame::REMOTING_MAX as usize - FIXED;
    if entry.body.len() > max {
        return Err(WireError::TooLong { what: "body", len: entry.body.len(), max });
    }
    let at = out.len();
    out.extend_from_slice(&[0; 12]);
    out.extend_from_slice(&entry.flag.to_be_bytes());
    out.extend_from_slice(&(entry.body.len() as u32).to_be_bytes());
    out.extend_from_slice(entry.body);
    out.extend_from_slice(&properties.to_be_bytes());
    out.extend_from_slice(entry.properties);
    let len = out.len() - at;
    patch_u32(out, at, len as u32);
    Ok(())
}

/// How many bytes [`push`] appends for an entry.
pub fn entry_len(entry: &Entry<'_>) -> usize {
    FIXED + entry.body.len() + entry.properties.len()
}

/// The entries of a batch, in order. Ends after the first error.
pub fn entries(body: &[u8]) -> Entries<'_> {
    Entries { rest: Cursor::new(body) }
}

/// See [`entries`].
#[derive(Clone, Debug)]
pub struct Entries<'a> {
    rest: Cursor<'a>,
}

impl<'a> Iterator for Entries<'a> {
    type Item = Result<Entry<'a>, WireError>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.rest.left() == 0 {
            return None;
        }
        let read = read(&mut self.rest);
        if read.is_err() {
            self.rest = Cursor::new(&[]);
        }
        Some(read)
    }
}

fn read<'a>(rest: &mut Cursor<'a>) -> Result<Entry<'a>, WireError> {
    let len = rest.i32("entry size")?;
    let inside = len.checked_sub(4).ok_or(WireError::BadLength { what: "entry size", len: len.into(), left: 0 })?;
    let mut cursor = Cursor::new(rest.take_signed("entry size", inside)?);
    // Magic and checksum are 0 in a request; nobody looks at them.
    cursor.take("entry head", 8)?;
    let flag = cursor.i32("flag")?;
    let len = cursor.i32("body length")?;
    let body = cursor.take_signed("body", len)?;
    let len = cursor.i16("properties length")?;
    let properties = cursor.take_signed("properties", i32::from(len))?;
    if cursor.left() > 0 {
        return Err(WireError::BadLength { what: "entry size", len: i64::from(inside) + 4, left: cursor.left() });
    }
    Ok(Entry { flag, body, properties })
}

/// For the fuzz target `records`: what is read is written and read again as it was.
#[doc(hidden)]
#[cfg(any(test, fuzzing))]
pub fn fuzz_batch(bytes: &[u8], measure: crate::wire::Measure) {
    let mut count = 0;
    let peak = measure(&mut || count = entries(bytes).count());
    assert_eq!(peak, 0, "an iterator takes no memory");
    let good: Vec<_> = entries(bytes).filter_map(Result::ok).collect();
    assert!(count - good.len() <= 1, "it stops at the first error");
    let mut out = Vec::new();
    for entry in &good {
        let at = out.len();
        assert_eq!(push(&mut out, entry), Ok(()));
        assert_eq!(out.len() - at, entry_len(entry));
    }
    assert!(entries(&out).eq(good.into_iter().map(Ok)), "written and read");
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_batch_reads_back_and_stops_at_the_first_error() {
        let entry = Entry { flag: 7, body: b"one", properties: b"TAGS\x01A\x02" };
        let empty = Entry { flag: -1, body: b"", properties: b"" };
        let mut out = Vec::new();
        push(&mut out, &entry).unwrap();
        push(&mut out, &empty).unwrap();
        assert_eq!(out.len(), entry_len(&entry) + entry_len(&empty));
        assert_eq!(entries(&out).collect::<Vec<_>>(), [Ok(entry), Ok(empty)]);
        for (at, value) in [(0, i32::MAX), (0, 0), (0, -1), (0, 8), (16, -1), (16, i32::MAX), (16, 4)] {
            let mut bad = out.clone();
            patch_u32(&mut bad, at, value as u32);
            let read = entries(&bad).collect::<Vec<_>>();
            assert!(matches!(read[..], [Err(_)]), "{at} {value} {read:?}");
        }
    }

    #[test]
    fn properties_that_do_not_fit_are_refused() {
        let long = vec![b'p'; 32_768];
        let mut out = Vec::new();
        assert!(push(&mut out, &Entry { flag: 0, body: b"", properties: &long }).is_err());
        assert!(out.is_empty());
        assert!(push(&mut out, &Entry { flag: 0, body: b"", properties: &long[1..] }).is_ok());
    }
}
