//! What the index keeps of a stored message beside its place: the hash of its tag, and its keys.

use crate::model::tags::java_hash;
use crate::wire::remoting::properties::Properties;
use crate::wire::remoting::record::{Check, Record};

/// The stored message that `payload` is, if it is one and nothing else. Sums are not compared.
pub(super) fn record(payload: &[u8]) -> Option<Record> {
    Record::read(payload, Check::Lengths).ok().filter(|record| record.len as usize == payload.len())
}

/// Hands the unique key and each word of KEYS to `key`, and answers the hash of the tag; 0 without one.
pub(super) fn tag_and_keys(properties: Properties<'_>, mut key: impl FnMut(&[u8])) -> i32 {
    let mut tag = 0;
    for (property, value) in properties.iter() {
        match property {
            b"TAGS" => tag = std::str::from_utf8(value).map_or(0, java_hash),
            b"UNIQ_KEY" => key(value),
            b"KEYS" => value.split(|byte| *byte == b' ').filter(|word| !word.is_empty()).for_each(&mut key),
            _ => {}
        }
    }
    tag
}
