//! Messages as a broker stores them, for the benches that are about pulling them.

use windlass::internals::wire::remoting::properties;
use windlass::internals::wire::remoting::record::NewRecord;

/// Messages of a pull.
pub const BATCH: i64 = 32;
/// Their topic.
pub const TOPIC: &str = "orders";

/// 32 messages of 1 KiB with a tag and an id, their places not yet patched in, and where each begins.
pub fn messages() -> (Vec<u8>, Vec<usize>) {
    let mut text = Vec::new();
    properties::push(&mut text, "UNIQ_KEY", "0A000001000018B4AAC2000000000001");
    properties::push(&mut text, "TAGS", "paid");
    let (mut bytes, mut starts) = (Vec::new(), Vec::new());
    for _ in 0..BATCH {
        starts.push(bytes.len());
        let record = NewRecord {
            topic: TOPIC.as_bytes(),
            body: &[7; 1024],
            properties: &text,
            queue_id: 0,
            flag: 0,
            sys_flag: 0,
            born_ms: 1,
            born_host: "127.0.0.1:1".parse().unwrap(),
            store_host: "127.0.0.1:2".parse().unwrap(),
            reconsume_times: 0,
            prepared_offset: 0,
            body_crc: None,
        };
        record.encode_into(&mut bytes).unwrap();
    }
    (bytes, starts)
}
