//! Writing JSON bodies: plain JSON, apart from keys that are whole objects, which every Java version and the Go client
//! read unquoted (`{{"brokerName":"b","queueId":0,"topic":"T"}:12}`).

use std::cell::Cell;
use std::io;

use serde::Serialize;
use serde_json::ser::{CharEscape, CompactFormatter, Formatter, Serializer};

thread_local! {
    /// The key that is being written is the text of an object and is to stand unquoted. No mark in the text itself could
    /// say so: a peer's key might carry it.
    static OBJECT: Cell<bool> = const { Cell::new(false) };
}

/// A key that is the text of an object; written by [`append`] as it is, by others as a text.
pub(super) struct ObjectKey(pub String);

impl Serialize for ObjectKey {
    fn serialize<S: serde::Serializer>(&self, out: S) -> Result<S::Ok, S::Error> {
        OBJECT.set(true);
        let written = out.serialize_str(&self.0);
        OBJECT.set(false);
        written
    }
}

/// Appends a body.
pub fn append<T: Serialize>(out: &mut Vec<u8>, body: &T) {
    let start = out.len();
    let mut writer = Serializer::with_formatter(&mut *out, Java { key: Key::No });
    // Bodies are structs of texts, numbers, lists and maps by text or number: none of them fails.
    if body.serialize(&mut writer).is_err() {
        out.truncate(start);
        out.extend_from_slice(b"{}");
    }
}

enum Key {
    /// Not in a key.
    No,
    /// In a key of which nothing has been written, not even its quote.
    Start,
    /// In a key that is text.
    Text,
    /// In a key that is an object.
    Object,
}

struct Java {
    key: Key,
}

impl Java {
    /// Writes the quote that was held back.
    fn quote<W: ?Sized + io::Write>(&mut self, out: &mut W) -> io::Result<()> {
        if let Key::Start = self.key {
            self.key = Key::Text;
            return out.write_all(b"\"");
        }
        Ok(())
    }
}

/// A number may be a key, of which the quote has been held back.
macro_rules! numbers {
    ($($write:ident: $number:ty,)*) => {
        $(fn $write<W: ?Sized + io::Write>(&mut self, out: &mut W, value: $number) -> io::Result<()> {
            self.quote(out)?;
            CompactFormatter.$write(out, value)
        })*
    };
}

impl Formatter for Java {
    numbers! {
        write_i32: i32,
        write_i64: i64,
        write_u32: u32,
        write_u64: u64,
    }

    fn begin_object_key<W: ?Sized + io::Write>(&mut self, out: &mut W, first: bool) -> io::Result<()> {
        self.key = Key::Start;
        CompactFormatter.begin_object_key(out, first)
    }

    fn end_object_key<W: ?Sized + io::Write>(&mut self, _out: &mut W) -> io::Result<()> {
        self.key = Key::No;
        Ok(())
    }

    fn begin_string<W: ?Sized + io::Write>(&mut self, out: &mut W) -> io::Result<()> {
        match self.key {
            Key::Start if OBJECT.get() => {
                self.key = Key::Object;
                Ok(())
            }
            Key::Start => Ok(()),
            Key::No | Key::Text | Key::Object => out.write_all(b"\""),
        }
    }

    fn end_string<W: ?Sized + io::Write>(&mut self, out: &mut W) -> io::Result<()> {
        self.quote(out)?;
        match self.key {
            Key::Object => Ok(()),
            Key::No | Key::Start | Key::Text => out.write_all(b"\""),
        }
    }

    fn write_string_fragment<W: ?Sized + io::Write>(&mut self, out: &mut W, fragment: &str) -> io::Result<()> {
        self.quote(out)?;
        out.write_all(fragment.as_bytes())
    }

    fn write_char_escape<W: ?Sized + io::Write>(&mut self, out: &mut W, escape: CharEscape) -> io::Result<()> {
        match (&self.key, escape) {
            // The text of the object is JSON already.
            (Key::Object, CharEscape::Quote) => out.write_all(b"\""),
            (Key::Object, CharEscape::ReverseSolidus) => out.write_all(b"\\"),
            (_, escape) => {
                self.quote(out)?;
                CompactFormatter.write_char_escape(out, escape)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;

    #[test]
    fn numbers_as_keys_are_quoted() {
        let mut out = Vec::new();
        append(&mut out, &BTreeMap::from([(-1i64, 1i64), (7, 2)]));
        assert_eq!(out, br#"{"-1":1,"7":2}"#);
    }

    #[test]
    fn only_marked_keys_stand_unquoted() {
        let mut map = BTreeMap::new();
        map.insert("\0{plain\"", "w\0");
        map.insert("", "");
        let mut out = Vec::new();
        append(&mut out, &map);
        assert_eq!(out, br#"{"":"","\u0000{plain\"":"w\u0000"}"#);
    }
}
