//! Maps whose keys are queues, as Java writes every `Map<MessageQueue, ...>`, and maps whose keys are texts or numbers.

use std::fmt;
use std::marker::PhantomData;

use serde::de::{DeserializeOwned, Error, MapAccess, SeqAccess, Visitor};
use serde::ser::SerializeMap;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use super::write::ObjectKey;
use crate::model::SortedMap;

/// A map by queue, in the order of the wire. Written with unquoted objects as keys; read from those, from objects quoted
/// as text, and from a list of pairs.
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

impl<K: Serialize, V: Serialize> Serialize for QueueTable<K, V> {
    fn serialize<S: Serializer>(&self, out: S) -> Result<S::Ok, S::Error> {
        let mut map = out.serialize_map(Some(self.entries.len()))?;
        for (key, value) in &self.entries {
            let text = serde_json::to_string(key).map_err(serde::ser::Error::custom)?;
            map.serialize_entry(&ObjectKey(text), value)?;
        }
        map.end()
    }
}

impl<'de, K: DeserializeOwned, V: Deserialize<'de>> Deserialize<'de> for QueueTable<K, V> {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        from.deserialize_any(Entries(PhantomData))
    }
}

struct Entries<K, V>(PhantomData<(K, V)>);

impl<'de, K: DeserializeOwned, V: Deserialize<'de>> Visitor<'de> for Entries<K, V> {
    type Value = QueueTable<K, V>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a map by queue")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
        let mut table = QueueTable::default();
        while let Some(key) = map.next_key::<String>()? {
            if key.starts_with('$') || key.starts_with('@') {
                // A reference or a class name: never acted on.
                map.next_value::<serde::de::IgnoredAny>()?;
                continue;
            }
            // A quoted key may itself be written in Java's way.
            let key = super::read("key", key.as_bytes()).map_err(A::Error::custom)?;
            table.entries.push((key, map.next_value()?));
        }
        Ok(table)
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut pairs: A) -> Result<Self::Value, A::Error> {
        let mut table = QueueTable::default();
        while let Some(pair) = pairs.next_element()? {
            table.entries.push(pair);
        }
        Ok(table)
    }

    fn visit_unit<E: Error>(self) -> Result<Self::Value, E> {
        Ok(QueueTable::default())
    }
}

impl<K: Serialize, V: Serialize> Serialize for SortedMap<K, V> {
    fn serialize<S: Serializer>(&self, out: S) -> Result<S::Ok, S::Error> {
        let mut map = out.serialize_map(Some(self.len()))?;
        for (key, value) in self {
            map.serialize_entry(key, value)?;
        }
        map.end()
    }
}

impl<'de, K: Deserialize<'de> + Ord, V: Deserialize<'de>> Deserialize<'de> for SortedMap<K, V> {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        from.deserialize_map(Sorted(PhantomData))
    }
}

struct Sorted<K, V>(PhantomData<(K, V)>);

impl<'de, K: Deserialize<'de> + Ord, V: Deserialize<'de>> Visitor<'de> for Sorted<K, V> {
    type Value = SortedMap<K, V>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a map")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
        let mut sorted = SortedMap::new();
        while let Some((key, value)) = map.next_entry()? {
            sorted.insert(key, value);
        }
        Ok(sorted)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::json::{read, to_vec};

    #[derive(Clone, Debug, Deserialize, PartialEq, Serialize)]
    struct Key {
        a: String,
        b: i32,
    }

    #[test]
    fn every_form_of_the_table_reads_the_same() {
        let want: QueueTable<Key, i64> =
            [(Key { a: "x\"".into(), b: 0 }, i64::MAX), (Key { a: "y".into(), b: 1 }, -1)].into_iter().collect();
        let text = to_vec(&want);
        assert_eq!(text, br#"{{"a":"x\"","b":0}:9223372036854775807,{"a":"y","b":1}:-1}"#);
        let quoted = br#"{"{\"a\":\"x\\\"\",\"b\":0}":9223372036854775807,"{a:'y',b:1,}":-1}"#;
        let pairs = br#"[[{"a":"x\"","b":0},9223372036854775807],[{"a":"y","b":1},-1]]"#;
        for form in [text.as_slice(), quoted, pairs] {
            let mut found = read::<QueueTable<Key, i64>>("test", form).unwrap();
            found.entries.sort_by_key(|(key, _)| key.b);
            assert_eq!(found, want, "{}", String::from_utf8_lossy(form));
        }
        assert_eq!(read::<QueueTable<Key, i64>>("test", b"{\"$ref\":\"$\"}"), Ok(QueueTable::default()));
    }
}
