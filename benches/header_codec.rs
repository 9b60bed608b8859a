//! The headers of the hot path against programs that scan the same bytes by hand: no leniency, no bounds but Rust's own.
//! Targets: JSON at most 1.4x, binary at most 1.6x, and no allocation. `cargo bench --bench header_codec -- --gate`.

// What cannot be set up here fails the run, in helpers as in tests.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::hint::black_box;

use windlass::internals::wire::remoting::command::{Codec, Command, Head, write};
use windlass::internals::wire::remoting::header::{ReadHeader, WriteHeader};
use windlass::internals::wire::remoting::pull::{PullAnswer, PullRequest};
use windlass::internals::wire::remoting::send::{Names, SendAnswer, SendRequest};

#[path = "ratio/mod.rs"]
mod ratio;

#[global_allocator]
static ALLOCATOR: ratio::Counting = ratio::Counting;

fn main() {
    let mut gate = ratio::Gate::from_args();
    pull_answer(&mut gate);
    others(&mut gate);
    gate.finish();
}

/// As a broker of 5.3.3 writes it, field for field.
fn java_json() -> Vec<u8> {
    let header = br#"{"code":0,"extFields":{"minOffset":"0","suggestWhichBrokerId":"0","nextBeginOffset":"123456","maxOffset":"123500","groupSysFlag":"0","topicSysFlag":"0"},"flag":1,"language":"JAVA","opaque":4711,"remark":"FOUND","serializeTypeCurrentRPC":"JSON","version":479}"#;
    [&(header.len() as u32).to_be_bytes(), header.as_slice()].concat()
}

fn binary() -> Vec<u8> {
    let json = java_json();
    let command = Command::read(&json).expect("a header");
    let mut out = Vec::new();
    write(&mut out, Codec::Binary, &command.head(), &command.fields, &[]).expect("a frame");
    out.split_off(4)
}

/// What both programs make of a pull answer: code, opaque, flag, version; the four offsets; the flags of topic and group;
/// the remark.
#[derive(Debug, Default, PartialEq)]
struct Answer<'a> {
    fixed: [i32; 4],
    offsets: [i64; 4],
    flags: [Option<i32>; 2],
    remark: &'a [u8],
}

fn ours<T>(content: &[u8], used: impl Fn(&Answer<'_>) -> T) -> T {
    let mut command = Command::empty();
    command.fill(content).expect("a command");
    let answer = PullAnswer::read(&command.fields).expect("a header");
    used(&Answer {
        fixed: [command.code, command.opaque, command.flag, command.version],
        offsets: [answer.next_begin_offset, answer.min_offset, answer.max_offset, answer.suggest_broker_id],
        flags: [answer.topic_sys_flag, answer.group_sys_flag],
        remark: command.remark.as_deref().unwrap_or_default().as_bytes(),
    })
}

fn decimal(text: &[u8]) -> i64 {
    match text.split_first() {
        Some((b'-', digits)) => -decimal(digits),
        _ => text.iter().fold(0, |value, digit| value * 10 + i64::from(digit - b'0')),
    }
}

/// Walks a JSON header without looking at what it skips, then does the same with the fields.
fn json_floor(content: &[u8]) -> Answer<'_> {
    let length = u32::from_be_bytes(*content.first_chunk().expect("a word")) as usize;
    let bytes = &content[4..4 + length];
    let mut found = Answer::default();
    let mut at = 1;
    while at < bytes.len() && bytes[at] != b'}' {
        let from = at + 1;
        let mut end = from;
        while bytes[end] != b'"' {
            end += 1;
        }
        let name = &bytes[from..end];
        at = end + 2;
        if bytes[at] == b'{' {
            at += 1;
            continue;
        }
        let (from, end) = if bytes[at] == b'"' {
            let from = at + 1;
            let mut end = from;
            while bytes[end] != b'"' {
                end += 1;
            }
            at = end + 1;
            (from, end)
        } else {
            let from = at;
            while bytes[at] != b',' && bytes[at] != b'}' {
                at += 1;
            }
            (from, at)
        };
        let value = &bytes[from..end];
        match name {
            b"code" => found.fixed[0] = decimal(value) as i32,
            b"opaque" => found.fixed[1] = decimal(value) as i32,
            b"flag" => found.fixed[2] = decimal(value) as i32,
            b"version" => found.fixed[3] = decimal(value) as i32,
            b"remark" => found.remark = value,
            b"nextBeginOffset" => found.offsets[0] = decimal(value),
            b"minOffset" => found.offsets[1] = decimal(value),
            b"maxOffset" => found.offsets[2] = decimal(value),
            b"suggestWhichBrokerId" => found.offsets[3] = decimal(value),
            b"topicSysFlag" => found.flags[0] = Some(decimal(value) as i32),
            b"groupSysFlag" => found.flags[1] = Some(decimal(value) as i32),
            _ => {}
        }
        // The end of the fields, and a comma.
        while at < bytes.len() && (bytes[at] == b'}' && at + 1 < bytes.len() || bytes[at] == b',') {
            at += 1;
        }
    }
    found
}

fn word(bytes: &[u8]) -> u32 {
    u32::from_be_bytes(*bytes.first_chunk().expect("a word"))
}

fn binary_floor(content: &[u8]) -> Answer<'_> {
    let bytes = &content[4..4 + (word(content) & 0xFF_FFFF) as usize];
    let short = |at: usize| i32::from(i16::from_be_bytes([bytes[at], bytes[at + 1]]));
    let (opaque, flag) = (word(&bytes[5..]) as i32, word(&bytes[9..]) as i32);
    let remark = word(&bytes[13..]) as usize;
    let mut at = 21 + remark;
    let end = at + word(&bytes[17 + remark..]) as usize;
    let mut found = Answer { fixed: [short(0), opaque, flag, short(3)], ..Answer::default() };
    found.remark = &bytes[17..17 + remark];
    while at < end {
        let len = usize::from(u16::from_be_bytes([bytes[at], bytes[at + 1]]));
        let name = &bytes[at + 2..at + 2 + len];
        at += 2 + len;
        let len = word(&bytes[at..]) as usize;
        let value = &bytes[at + 4..at + 4 + len];
        at += 4 + len;
        match name {
            b"nextBeginOffset" => found.offsets[0] = decimal(value),
            b"minOffset" => found.offsets[1] = decimal(value),
            b"maxOffset" => found.offsets[2] = decimal(value),
            b"suggestWhichBrokerId" => found.offsets[3] = decimal(value),
            b"topicSysFlag" => found.flags[0] = Some(decimal(value) as i32),
            b"groupSysFlag" => found.flags[1] = Some(decimal(value) as i32),
            _ => {}
        }
    }
    found
}

fn pull_answer(gate: &mut ratio::Gate) {
    for (name, content, floor, limit) in [
        ("pull answer, JSON", java_json(), json_floor as fn(&[u8]) -> Answer<'_>, 1.4),
        // A map is read to its end before anybody acts on it, so that a malformed one is refused.
        ("pull answer, binary", binary(), binary_floor as fn(&[u8]) -> Answer<'_>, 1.6),
    ] {
        ours(&content, |answer| assert_eq!(*answer, floor(&content), "{name}: the floor does the same work"));
        let allocations = ratio::allocations(|| ours(black_box(&content), |answer| answer.offsets[0]));
        let measured = ratio::interleaved(&mut [
            &mut |n| {
                (0..n).for_each(|_| {
                    black_box(&floor(black_box(&content)));
                })
            },
            &mut |n| {
                (0..n).for_each(|_| {
                    ours(black_box(&content), |answer| {
                        black_box(answer);
                    })
                })
            },
        ]);
        let note = format!(
            "{:.0} ns against {:.0} ns, spread {:.2}",
            measured.nanos[1], measured.nanos[0], measured.spread[0]
        );
        gate.at_most(&format!("{name}: ratio to the scan floor"), measured.ratio[0], limit, &note);
        gate.at_most(&format!("{name}: allocations"), allocations as f64, 0.0, "");
    }
}

/// Reported, not gated: the other headers of the hot path, read and written, in both forms.
fn others(gate: &mut ratio::Gate) {
    let pull = PullRequest {
        consumer_group: "orders-billing".into(),
        topic: "orders".into(),
        queue_id: 3,
        queue_offset: 123_456,
        max_messages: 32,
        sys_flag: 2,
        commit_offset: 0,
        suspend_ms: 15_000,
        subscription: None,
        sub_version: 1_700_000_000_000,
        expression_type: Some("TAG".into()),
        max_bytes: Some(262_144),
        request_source: None,
        proxy_forward_client_id: None,
        broker_name: Some("broker-a".into()),
    };
    let send = SendRequest {
        producer_group: "orders-api".into(),
        topic: "orders".into(),
        default_topic: "TBW102".into(),
        default_topic_queue_nums: 4,
        queue_id: 1,
        born_ms: 1_700_000_000_000,
        properties: Some("UNIQ_KEY\u{1}0A0000051267251A8A1D0000002A0001\u{2}WAIT\u{1}true\u{2}".into()),
        reconsume_times: Some(0),
        unit_mode: Some(false),
        batch: Some(false),
        broker_name: Some("broker-a".into()),
        ..SendRequest::default()
    };
    let sent = SendAnswer {
        msg_id: "7F0000010000A3B70000000000006D1F".into(),
        queue_id: 1,
        queue_offset: 4711,
        transaction_id: None,
        batch_uniq_id: None,
        recall_handle: None,
        region: Some("DefaultRegion".into()),
        trace_on: Some(true),
    };
    for codec in [Codec::Json, Codec::Binary] {
        one(gate, "pull request", codec, &pull, |command| PullRequest::read(&command.fields).is_ok());
        one(gate, "send request", codec, &send.named(Names::Short), |command| {
            SendRequest::read(Names::Short, &command.fields).is_ok()
        });
        one(gate, "send answer", codec, &sent, |command| SendAnswer::read(&command.fields).is_ok());
    }
}

fn one(gate: &mut ratio::Gate, name: &str, codec: Codec, header: &dyn WriteHeader, read: fn(&Command<'_>) -> bool) {
    let head = Head::request(310, 4711);
    let mut frame = Vec::with_capacity(4096);
    write(&mut frame, codec, &head, header, &[]).expect("a frame");
    let content = frame.split_off(4);
    let mut out = Vec::with_capacity(4096);
    let allocations = ratio::allocations(|| write(&mut out, codec, &head, header, &[]).is_ok());
    let measured = ratio::interleaved(&mut [
        &mut |n| {
            (0..n).for_each(|_| {
                out.clear();
                black_box(write(&mut out, codec, black_box(&head), header, &[]).is_ok());
            })
        },
        &mut |n| {
            (0..n).for_each(|_| {
                let command = Command::read(black_box(&content)).expect("a command");
                assert!(read(&command));
            })
        },
    ]);
    println!("{name}, {codec:?}: written in {:.0} ns, read in {:.0} ns", measured.nanos[0], measured.nanos[1]);
    gate.at_most(&format!("{name}, {codec:?}: allocations when written"), allocations as f64, 0.0, "");
}
