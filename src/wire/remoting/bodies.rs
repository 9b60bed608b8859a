//! All JSON bodies under one roof, for the fuzz target `bodies`.

use super::{group, lock, message_id, register, route, topics};
use crate::wire::{Measure, compress, json};

/// The first byte chooses what the rest is read as; what is read is written and read again as it was.
#[doc(hidden)]
pub fn fuzz_bodies(bytes: &[u8], measure: Measure) {
    let Some((kind, bytes)) = bytes.split_first() else { return };
    match kind % 20 {
        0 => again::<group::HeartbeatBody>(bytes, measure),
        1 => again::<group::ConsumerListBody>(bytes, measure),
        2 => again::<group::CheckClientBody>(bytes, measure),
        3 => again::<group::ConsumerConnectionBody>(bytes, measure),
        4 => again::<group::ProducerConnectionBody>(bytes, measure),
        5 => again::<group::GroupConfigBody>(bytes, measure),
        6 => again::<group::GroupTableBody>(bytes, measure),
        7 => again::<group::GroupListBody>(bytes, measure),
        8 => again::<route::RouteBody>(bytes, measure),
        9 => again::<route::ClusterBody>(bytes, measure),
        10 => again::<route::TopicListBody>(bytes, measure),
        11 => again::<lock::LockBody>(bytes, measure),
        12 => again::<lock::LockedBody>(bytes, measure),
        13 => again::<topics::TopicTableBody>(bytes, measure),
        14 => again::<topics::TopicStatsBody>(bytes, measure),
        15 => again::<topics::ConsumeStatsBody>(bytes, measure),
        16 => again::<topics::OffsetTableBody>(bytes, measure),
        17 => again::<register::RegisterBody>(bytes, measure),
        18 => again::<topics::TableBody>(bytes, measure),
        _ => {
            compress::fuzz_inflate(bytes, measure);
            register::fuzz_lines(bytes);
            if let Ok((host, offset)) = message_id::read_offset_id(&String::from_utf8_lossy(bytes)) {
                let id = message_id::offset_id(host, offset);
                assert!(id.as_bytes().eq_ignore_ascii_case(bytes), "{id}");
            }
        }
    }
}

fn again<T: json::Item + PartialEq + std::fmt::Debug>(bytes: &[u8], measure: Measure) {
    let mut read = None;
    let peak = measure(&mut || read = Some(json::read::<T>("fuzz", bytes)));
    // There is no length in JSON to lie with; this bounds what a byte can cost, structs and maps included.
    assert!(peak <= 160 * bytes.len() + (4 << 20), "{peak} bytes for {}", bytes.len());
    let Some(Ok(body)) = read else { return };
    let text = json::to_vec(&body);
    let again = json::read::<T>("fuzz", &text);
    assert_eq!(again, Ok(body), "{}", String::from_utf8_lossy(&text));
}
