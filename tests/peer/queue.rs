//! A name server and broker of one queue, for consumers: what is stored there, what was pulled and committed.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

use serde_json::{Value, json};

use super::{Peer, Reply, Request, route};

/// The topic.
pub const TOPIC: &str = "orders";

/// A name server and broker of one queue. `special` answers what the test is about: it gets the request and how many of
/// its code came before.
pub fn cluster(special: impl Fn(&Request, usize) -> Option<Reply> + Send + Sync + 'static) -> Peer {
    let own: Arc<Mutex<Option<std::net::SocketAddr>>> = Arc::default();
    let known = Arc::clone(&own);
    let (counts, id) = (Mutex::new(BTreeMap::<i32, usize>::new()), Mutex::new(String::new()));
    let peer = Peer::start(move |request| {
        if request.code == 34 {
            let body: Value = serde_json::from_slice(&request.body).unwrap();
            *id.lock().unwrap() = body["clientID"].as_str().unwrap().to_owned();
        }
        // What the client answers is not to be answered.
        if request.flag & 1 != 0 {
            return Reply::Silence;
        }
        let nth = {
            let mut counts = counts.lock().unwrap();
            let count = counts.entry(request.code).or_default();
            *count += 1;
            *count - 1
        };
        if let Some(reply) = special(request, nth) {
            return reply;
        }
        match request.code {
            105 if request.field("topic").starts_with('%') => Reply::code(17),
            105 => Reply::with_body(route(&[("broker-a", known.lock().unwrap().unwrap(), 1)])),
            38 => Reply::with_body(json!({"consumerIdList": [*id.lock().unwrap()]}).to_string()),
            14 => Reply::with_fields(0, [("offset", "0")]),
            11 => Reply::Silence,
            36 => Reply::code(0),
            _ => super::housekeeping(request),
        }
    });
    *own.lock().unwrap() = Some(peer.addr());
    peer
}

/// A stored message as a broker keeps it.
pub fn record(offset: i64, body: &[u8]) -> Vec<u8> {
    let properties = format!("UNIQ_KEY\u{1}unique-{offset}\u{2}TAGS\u{1}a\u{2}");
    let mut bytes = vec![0; 4];
    bytes.extend(0xDAA3_20A7_u32.to_be_bytes());
    bytes.extend((crc32fast::hash(body) & 0x7FFF_FFFF).to_be_bytes());
    bytes.extend([0; 8]);
    bytes.extend(offset.to_be_bytes());
    bytes.extend((1000 + offset).to_be_bytes());
    bytes.extend([0; 4]);
    bytes.extend(1_700_000_000_000_i64.to_be_bytes());
    bytes.extend([127, 0, 0, 1, 0, 0, 0, 9]);
    bytes.extend(1_700_000_000_001_i64.to_be_bytes());
    bytes.extend([127, 0, 0, 1, 0, 0, 0, 9]);
    bytes.extend([0; 12]);
    bytes.extend((body.len() as u32).to_be_bytes());
    bytes.extend(body);
    bytes.push(TOPIC.len() as u8);
    bytes.extend(TOPIC.as_bytes());
    bytes.extend((properties.len() as u16).to_be_bytes());
    bytes.extend(properties.as_bytes());
    let len = bytes.len() as u32;
    bytes[..4].copy_from_slice(&len.to_be_bytes());
    bytes
}

/// An answer to a pull.
pub fn pulled(code: i32, next: i64, max: i64, body: Vec<u8>) -> Reply {
    let fields = [("suggestWhichBrokerId", 0), ("nextBeginOffset", next), ("minOffset", 0), ("maxOffset", max)];
    let fields = fields.into_iter().map(|(name, value)| (name.to_owned(), value.to_string())).collect();
    Reply::Answer { code, remark: None, fields, body }
}

/// A queue of messages `0..count`, one in an answer; behind them pulls are held.
pub fn stored(request: &Request, count: i64) -> Option<Reply> {
    let at: i64 = request.field("queueOffset").parse().ok()?;
    (request.code == 11 && request.field("topic") == TOPIC && at < count)
        .then(|| pulled(0, at + 1, count, record(at, format!("m{at}").as_bytes())))
}

/// Where pulls of the topic began, and how many messages they asked for.
pub fn pulls(seen: &[Request]) -> Vec<(i64, i64)> {
    let number = |request: &Request, name: &str| request.field(name).parse().unwrap();
    let of_topic = |request: &&Request| request.code == 11 && request.field("topic") == TOPIC;
    seen.iter().filter(of_topic).map(|at| (number(at, "queueOffset"), number(at, "maxMsgNums"))).collect()
}

/// What was committed for the topic, in order.
pub fn commits(seen: &[Request]) -> Vec<i64> {
    let of_topic = |request: &&Request| request.code == 15 && request.field("topic") == TOPIC;
    seen.iter().filter(of_topic).map(|at| at.field("commitOffset").parse().unwrap()).collect()
}
