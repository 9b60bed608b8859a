//! Maps: by text or number, and by queue as Java writes every `Map<MessageQueue, ...>`: with whole objects as keys,
//! unquoted, which all peers read and some need.

use serde_json::Value;

use super::item::{Item, comma, each_member, write_text, write_whole};
use crate::error::WireError;
use crate::model::SortedMap;

/// A key that is a text in JSON.
pub trait Key: Ord + Sized {
    /// From the text; `None` if it is none.
    fn read(text: String) -> Option<Self>;

    /// Appends it with its quotes.
    fn write(&self, out: &mut Vec<u8>);
}

impl Key for String {
    fn read(text: String) -> Option<Self> {
        Some(text)
    }

    fn write(&self, out: &mut Vec<u8>) {
        write_text(out, self);
    }
}

impl Key for i64 {
    fn read(text: String) -> Option<Self> {
        text.trim().parse().ok()
    }

    fn write(&self, out: &mut Vec<u8>) {
        out.push(b'"');
        write_whole(out, *self);
        out.push(b'"');
    }
}

impl Key for i32 {
    fn read(text: String) -> Option<Self> {
        text.trim().parse().ok()
    }

    fn write(&self, out: &mut Vec<u8>) {
        Key::write(&i64::from(*self), out);
    }
}

impl<K: Key, V: Item> Item for SortedMap<K, V> {
    fn read(field: &'static str, value: Value) -> Result<Self, WireError> {
        let mut map = Self::new();
        each_member(field, value, &mut |name, value| {
            let key = K::read(name).ok_or(WireError::BadNumber { field })?;
            map.insert(key, V::read(field, value)?);
            Ok(())
        })?;
        Ok(map)
    }

    fn write(&self, out: &mut Vec<u8>) {
        out.push(b'{');
        for (key, value) in self {
            comma(out, b'{');
            key.write(out);
            out.push(b':');
            value.write(out);
        }
        out.push(b'}');
    }
}

/// A map by queue. Written with unquoted objects as keys; read from those, from objects quoted as text, and from a list
/// of pairs, in the order of the keys as they are written; of equal ones the last wins.
#[derive(Clone, Debug, PartialEq)]
pub struct QueueTable<K, V> {
    /// The entries.
    pub entries: Vec<(K, V)>,
}

impl<K, V> Default for QueueTable<K, V> {
    fn default() -> Self {
        Self { entries: Vec::new() }
    }
}

impl<K, V> FromIterator<(K, V)> for QueueTable<K, V> {
    fn from_iter<I: IntoIterator<Item = (K, V)>>(entries: I) -> Self {
        Self { entries: entries.into_iter().collect() }
    }
}

impl<K: Item, V: Item> Item for QueueTable<K, V> {
    fn read(field: &'static str, value: Value) -> Result<Self, WireError> {
        // By the key as it is written: forms that differ may name one queue.
        let mut found = SortedMap::new();
        let mut put = |key: K, value: V| {
            let mut text = Vec::new();
            key.write(&mut text);
            found.insert(text, (key, value));
        };
        if let Value::Array(pairs) = value {
            for pair in pairs {
                let Value::Array(pair) = pair else { return Err(WireError::WrongKind { field }) };
                let Ok([key, value]) = <[Value; 2]>::try_from(pair) else { return Err(WireError::WrongKind { field }) };
                put(K::read(field, key)?, V::read(field, value)?);
            }
        } else {
            each_member(field, value, &mut |name, value| {
                // A reference or a class name is never acted on.
                if !name.starts_with(['$', '@']) {
                    // A quoted key may itself be written in Java's way.
                    put(super::read(field, name.as_bytes())?, V::read(field, value)?);
                }
                Ok(())
            })?;
        }
        Ok(found.into_values().collect())
    }

    fn write(&self, out: &mut Vec<u8>) {
        out.push(b'{');
        for (at, (key, value)) in self.entries.iter().enumerate() {
            // What was opened last may be a key.
            if at > 0 {
                out.push(b',');
            }
            key.write(out);
            out.push(b':');
            value.write(out);
        }
        out.push(b'}');
    }
}

#[cfg(test)]
mod tests {
    use super::super::item::body;
    use super::*;
    use crate::wire::json::{read, to_vec};

    body! {
        #[derive(Clone, Debug, Default, PartialEq)]
        struct Name {
            a: String = "a";
            b: i32 = "b";
        }
    }

    #[test]
    fn every_form_of_the_table_reads_the_same() {
        let want: QueueTable<Name, i64> =
            [(Name { a: "x\"".into(), b: 0 }, i64::MAX), (Name { a: "y".into(), b: 1 }, -1)].into_iter().collect();
        let text = to_vec(&want);
        assert_eq!(text, br#"{{"a":"x\"","b":0}:9223372036854775807,{"a":"y","b":1}:-1}"#);
        let quoted = br#"{"{\"a\":\"x\\\"\",\"b\":0}":9223372036854775807,"{a:'y',b:1,}":-1}"#;
        let pairs = br#"[[{"a":"x\"","b":0},9223372036854775807],[{"a":"y","b":1},-1]]"#;
        for form in [text.as_slice(), quoted, pairs] {
            let mut found = read::<QueueTable<Name, i64>>("test", form).unwrap();
            found.entries.sort_by_key(|(key, _)| key.b);
            assert_eq!(found, want, "{}", String::from_utf8_lossy(form));
        }
        assert_eq!(read::<QueueTable<Name, i64>>("test", b"{\"$ref\":\"$\"}"), Ok(QueueTable::default()));
        let twice = br#"{{"a":"x","b":0}:1,{"b":7,"a":"w"}:3,{"a":"x"}:2}"#;
        let once: QueueTable<Name, i64> =
            [(Name { a: "w".into(), b: 7 }, 3), (Name { a: "x".into(), b: 0 }, 2)].into_iter().collect();
        assert_eq!(read::<QueueTable<Name, i64>>("test", twice), Ok(once), "whatever form says the same queue");
        for bad in ["[[{}]]", "[1]", r#"{"x":1}"#] {
            assert!(read::<QueueTable<Name, i64>>("test", bad.as_bytes()).is_err(), "{bad}");
        }
    }

    #[test]
    fn numbers_as_keys_are_quoted() {
        let map = SortedMap::from([(7i64, 2i64), (-1, 1)]);
        assert_eq!(to_vec(&map), br#"{"-1":1,"7":2}"#);
        assert_eq!(read("test", br#"{7:2,"-1":1}"#), Ok(map));
        assert_eq!(read::<SortedMap<i32, i64>>("test", b"{x:1}"), Err(WireError::BadNumber { field: "test" }));
    }

    #[test]
    fn only_queues_as_keys_stand_unquoted() {
        let map = SortedMap::from([("\0{plain\"".to_owned(), "w\0".to_owned()), (String::new(), String::new())]);
        assert_eq!(to_vec(&map), br#"{"":"","\u0000{plain\"":"w\u0000"}"#);
    }
}
