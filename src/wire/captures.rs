//! Tests: every frame recorded from real programs (`tests/vectors/rocketmq-*.json`) is read by value and written again.
//!
//! Headers: code, flag, opaque, version, language, remark and every field; Java's JSON headers come out byte for byte, and
//! so do binary ones. Typed headers and JSON bodies of the requests that we speak: same value. Records and batches: same
//! value, same bytes. All other bodies: as normalised JSON, or as they are.

use std::collections::BTreeMap;

use serde_json::Value as Json;

use super::compress::{CEILING, Kind, inflate};
use super::frame::Cutter;
use super::json;
use super::remoting::codes::{request, sys_flag};
use super::remoting::command::{Codec, Command, write};
use super::remoting::header::{ReadHeader, WriteHeader};
use super::remoting::properties::Properties;
use super::remoting::record::{Check, Record, index, patch};
use super::remoting::*;
use crate::error::WireError;

struct Captured {
    name: String,
    /// The request, or what an answer answers.
    request: i32,
    frame: Vec<u8>,
    decoded: Json,
}

impl Captured {
    fn content(&self) -> &[u8] {
        let (content, used) = Cutter::REMOTING.cut(&self.frame).unwrap().unwrap();
        assert_eq!(used, self.frame.len(), "{}", self.name);
        content
    }

    fn is_java(&self) -> bool {
        self.decoded.get("header").is_some()
    }

    /// The independent decoder's header, in the one form.
    fn header(&self) -> Json {
        let mut header = self.decoded.get("header").unwrap_or(&self.decoded).clone();
        if let Some(fields) = header.get("ext").cloned() {
            header["extFields"] = fields;
        }
        header
    }
}

pub(super) fn unhex(text: &str) -> Vec<u8> {
    (0..text.len() / 2).map(|at| u8::from_str_radix(&text[2 * at..2 * at + 2], 16).unwrap()).collect()
}

pub(super) fn vectors(file: &str) -> Json {
    let path = format!("{}/tests/vectors/{file}", env!("CARGO_MANIFEST_DIR"));
    serde_json::from_slice(&std::fs::read(path).unwrap()).unwrap()
}

fn captured() -> Vec<Captured> {
    let files = ["rocketmq-4.9.3.json", "rocketmq-4.9.7.json", "rocketmq-5.3.3.json", "rocketmq-clients-go-cpp.json"];
    let mut all = Vec::new();
    for file in files {
        let whole = vectors(file);
        let frames = whole.as_array().or_else(|| whole["vectors"].as_array()).unwrap();
        for entry in frames.iter().filter(|entry| entry.get("frame_hex").is_some()) {
            let request = entry.get("answers").or(entry.get("request_code")).unwrap_or(&entry["code"]);
            all.push(Captured {
                name: format!("{file} {}", entry["name"].as_str().unwrap()),
                request: request.as_i64().unwrap() as i32,
                frame: unhex(entry["frame_hex"].as_str().unwrap()),
                decoded: entry["decoded"].clone(),
            });
        }
    }
    assert_eq!(all.len(), 765);
    all
}

/// A field's value as text, as Java turns it.
fn text(value: &Json) -> String {
    value.as_str().map_or_else(|| value.to_string(), str::to_owned)
}

fn fields(command: &Command<'_>) -> BTreeMap<String, String> {
    command.fields.iter().map(|(name, value)| (name.lossy().into_owned(), value.lossy().into_owned())).collect()
}

#[test]
fn every_header_is_read_by_value() {
    for case in captured() {
        let command = Command::read(case.content()).unwrap_or_else(|error| panic!("{}: {error}", case.name));
        let (want, name) = (case.header(), &case.name);
        assert_eq!(i64::from(command.code), want["code"].as_i64().unwrap(), "{name}");
        assert_eq!(i64::from(command.opaque), want["opaque"].as_i64().unwrap(), "{name}");
        assert_eq!(i64::from(command.flag), want["flag"].as_i64().unwrap(), "{name}");
        assert_eq!(i64::from(command.version), want["version"].as_i64().unwrap_or(0), "{name}");
        let language = &want["language"];
        assert!(
            language.as_str() == Some(command.language.name()) || language.as_u64() == Some(command.language.0.into()),
            "{name}: {language} {:?}",
            command.language
        );
        assert_eq!(command.is_answer(), want["response"].as_bool().unwrap(), "{name}");
        assert_eq!(command.is_oneway(), want["oneway"].as_bool().unwrap(), "{name}");
        assert_eq!(command.remark.as_deref().unwrap_or(""), want["remark"].as_str().unwrap_or(""), "{name}");
        let ext = want["extFields"].as_object().cloned().unwrap_or_default();
        let ext: BTreeMap<_, _> = ext.iter().map(|(name, value)| (name.clone(), text(value))).collect();
        assert_eq!(fields(&command), ext, "{name}");
    }
}

#[test]
fn every_header_is_written_again() {
    for case in captured() {
        let command = Command::read(case.content()).unwrap();
        let mut out = Vec::new();
        command.write(&mut out).unwrap();
        if case.is_java() || command.codec == Codec::Binary {
            assert_eq!(out, case.frame, "{}", case.name);
            continue;
        }
        // Other clients order and quote otherwise: the same value.
        let again = Command::read(out.get(4..).unwrap()).unwrap();
        assert_eq!(fields(&again), fields(&command), "{}", case.name);
        assert_eq!(format!("{:?}", again.head()), format!("{:?}", command.head()), "{}", case.name);
        assert_eq!(again.body, command.body, "{}", case.name);
    }
}

/// Fields that stand beside a request's own, or that are nobody's but the sender's.
const BESIDE: [&str; 14] = [
    "ns",
    "nsd",
    "bname",
    "oway",
    "lo",
    "Signature",
    "AccessKey",
    "SecurityToken",
    "ReqT",
    "OnsChannel",
    "language",
    "version",
    "signature",
    "force",
];

/// Reads the typed header and writes it: what comes out must have been there, and what is left out must stand beside.
fn typed<'a, H: ReadHeader<'a> + WriteHeader>(case: &Captured, command: &Command<'a>) {
    let header = H::read(&command.fields).unwrap_or_else(|error| panic!("{}: {error}", case.name));
    compare(case, command, &header);
}

fn compare(case: &Captured, command: &Command<'_>, header: &dyn WriteHeader) {
    for codec in [Codec::Json, Codec::Binary] {
        let mut out = Vec::new();
        write(&mut out, codec, &command.head(), header, command.body).unwrap();
        let again = fields(&Command::read(out.get(4..).unwrap()).unwrap());
        let was = fields(command);
        let truth = |text: &str| matches!(text, "true" | "1").to_string();
        for (name, value) in &again {
            match was.get(name) {
                Some(found) => assert!(
                    found == value || (truth(found) == *value && matches!(found.as_str(), "0" | "1")),
                    "{}: {name} {found} {value}",
                    case.name
                ),
                // What an absent one means.
                None => assert!(matches!(value.as_str(), "0" | "false" | "" | "SINGLE_TAG"), "{}: {name}", case.name),
            }
        }
        for name in was.keys().filter(|name| !again.contains_key(*name)) {
            assert!(BESIDE.contains(&name.as_str()), "{}: {name} is not read", case.name);
        }
    }
}

/// Requests whose typed headers are read.
fn typed_request(case: &Captured, command: &Command<'_>) -> bool {
    match command.code {
        10 | 310 | 320 | 324 | 325 => {
            let names = send::Names::of_code(command.code).unwrap();
            let header = send::SendRequest::read(names, &command.fields).unwrap();
            compare(case, command, &header.named(names));
        }
        11 | 361 => typed::<pull::PullRequest<'_>>(case, command),
        12 => typed::<query::QueryMessageRequest<'_>>(case, command),
        14 => typed::<offset::QueryOffsetRequest<'_>>(case, command),
        15 => typed::<offset::UpdateOffsetRequest<'_>>(case, command),
        17 => typed::<topics::CreateTopicRequest<'_>>(case, command),
        29 => typed::<offset::SearchOffsetRequest<'_>>(case, command),
        30..=32 => typed::<offset::QueueRequest<'_>>(case, command),
        33 => typed::<query::ViewMessageRequest<'_>>(case, command),
        35 => typed::<group::UnregisterRequest<'_>>(case, command),
        36 => typed::<send::SendBackRequest<'_>>(case, command),
        37 => typed::<transaction::EndTransactionRequest<'_>>(case, command),
        38 | 40 | 203 => typed::<group::ConsumerGroupRequest<'_>>(case, command),
        39 => typed::<transaction::CheckTransactionRequest<'_>>(case, command),
        103 => typed::<register::RegisterRequest<'_>>(case, command),
        104 | 322 => typed::<register::BrokerRequest<'_>>(case, command),
        105 => typed::<route::RouteRequest<'_>>(case, command),
        202 | 215 | 216 | 351 => typed::<topics::TopicRequest<'_>>(case, command),
        204 => typed::<group::ProducerGroupRequest<'_>>(case, command),
        207 => typed::<group::DeleteGroupRequest<'_>>(case, command),
        208 => typed::<topics::ConsumeStatsRequest<'_>>(case, command),
        _ => return false,
    }
    true
}

fn typed_answer(case: &Captured, command: &Command<'_>) -> bool {
    match (case.request, command.code) {
        (10 | 310 | 320 | 324 | 325, 0 | 10 | 11 | 12) => typed::<send::SendAnswer<'_>>(case, command),
        (11 | 361, 0 | 19 | 20 | 21) => typed::<pull::PullAnswer>(case, command),
        (12, 0) => typed::<query::QueryMessageAnswer>(case, command),
        (14 | 29 | 30 | 31, 0) => typed::<offset::OffsetAnswer>(case, command),
        (32, 0) => typed::<offset::TimeAnswer>(case, command),
        (34, 0) => typed::<group::HeartbeatAnswer>(case, command),
        (103, 0) => typed::<register::RegisterAnswer<'_>>(case, command),
        _ => return false,
    }
    true
}

#[test]
fn every_typed_header_reads_back_what_was_sent() {
    let mut seen = [0, 0];
    for case in captured() {
        let command = Command::read(case.content()).unwrap();
        if command.is_answer() {
            seen[1] += i32::from(typed_answer(&case, &command));
        } else {
            seen[0] += i32::from(typed_request(&case, &command));
        }
    }
    assert!(seen[0] > 250 && seen[1] > 150, "{seen:?}");
}

/// Reads the body, writes it and compares the values; of other clients, who quote and order in ways of their own, what
/// is read again.
fn body<T: json::Item + PartialEq + std::fmt::Debug>(case: &Captured, bytes: &[u8]) {
    let read: T = json::read("body", bytes).unwrap_or_else(|error| panic!("{}: {error}", case.name));
    let again = json::to_vec(&read);
    if case.is_java() {
        let value = |bytes: &[u8]| json::read::<Json>("body", bytes).unwrap();
        assert_eq!(value(&again), value(bytes), "{}", case.name);
    }
    assert_eq!(json::read::<T>("body", &again), Ok(read), "{}", case.name);
}

fn known_body(case: &Captured, command: &Command<'_>) -> bool {
    let bytes = command.body;
    match (case.request, command.is_answer()) {
        (34, false) => body::<group::HeartbeatBody>(case, bytes),
        (41 | 42, false) => body::<lock::LockBody>(case, bytes),
        (41, true) => body::<lock::LockedBody>(case, bytes),
        (46, false) => body::<group::CheckClientBody>(case, bytes),
        (200, false) => body::<group::GroupConfigBody>(case, bytes),
        (201, true) => body::<group::GroupTableBody>(case, bytes),
        (21, true) => body::<topics::TopicTableBody>(case, bytes),
        (38, true) => body::<group::ConsumerListBody>(case, bytes),
        (103, false) => body::<register::RegisterBody>(case, bytes),
        (28 | 219, true) => body::<topics::TableBody>(case, bytes),
        (105, true) => body::<route::RouteBody>(case, bytes),
        (106, true) => body::<route::ClusterBody>(case, bytes),
        (202, true) => body::<topics::TopicStatsBody>(case, bytes),
        (203, true) => body::<group::ConsumerConnectionBody>(case, bytes),
        (204, true) => body::<group::ProducerConnectionBody>(case, bytes),
        (206 | 224 | 304 | 305, true) => body::<route::TopicListBody>(case, bytes),
        (208, true) => body::<topics::ConsumeStatsBody>(case, bytes),
        (300, true) => body::<group::GroupListBody>(case, bytes),
        (351, true) => body::<topics::TopicConfigBody>(case, bytes),
        (11 | 361 | 12 | 33, true) | (39, false) => records(case, bytes),
        (320, false) => batch(case, bytes),
        (10 | 310, false) => sent(case, command),
        _ => return false,
    }
    true
}

#[test]
fn every_body_of_a_known_code_is_read_by_value() {
    let (mut known, mut other) = (0, 0);
    for case in captured() {
        let command = Command::read(case.content()).unwrap();
        if command.body.is_empty() {
            continue;
        }
        if known_body(&case, &command) {
            known += 1;
            continue;
        }
        other += 1;
        // Admin bodies of later issues: opaque, or JSON that stays the same value when it is made strict.
        if matches!(command.body.first(), Some(b'{' | b'[')) {
            let strict = json::normalise("body", command.body).unwrap_or_else(|error| panic!("{}: {error}", case.name));
            assert_eq!(json::normalise("body", &strict).unwrap(), strict, "{}", case.name);
            serde_json::from_slice::<Json>(&strict).unwrap();
            if let Some(want) = case.decoded["body"].get("value").filter(|_| case.is_java()) {
                assert_eq!(&serde_json::from_slice::<Json>(&strict).unwrap(), want, "{}", case.name);
            }
        }
    }
    assert!(known > 230 && other > 40, "{known} {other}");
}

fn records(case: &Captured, bytes: &[u8]) {
    let (mut found, mut damage) = (Vec::new(), Vec::new());
    index(bytes, Check::Crc, &mut found, &mut damage);
    assert_eq!(damage, [], "{}", case.name);
    let mut again = Vec::new();
    for record in &found {
        let at = again.len();
        record.again(bytes).encode_into(&mut again).unwrap();
        patch(&mut again[at..], record.queue_offset, record.physical_offset, record.store_ms);
    }
    assert_eq!(again, bytes, "{}", case.name);
    let Some(want) = case.decoded["body"].get("records").and_then(Json::as_array) else {
        assert!(!case.is_java() && !found.is_empty(), "{}", case.name);
        return;
    };
    assert_eq!(found.len(), want.len(), "{}", case.name);
    for (record, want) in found.iter().zip(want) {
        record_by_value(&case.name, record, bytes, want);
    }
}

fn record_by_value(name: &str, record: &Record, bytes: &[u8], want: &Json) {
    for (found, field) in [
        (i64::from(record.len), "size"),
        (i64::from(record.body_crc), "bodyCrc"),
        (i64::from(record.queue_id), "queueId"),
        (i64::from(record.flag), "flag"),
        (record.queue_offset, "queueOffset"),
        (record.physical_offset, "physicalOffset"),
        (i64::from(record.sys_flag), "sysFlag"),
        (record.born_ms, "bornTimestamp"),
        (record.store_ms, "storeTimestamp"),
        (i64::from(record.reconsume_times), "reconsumeTimes"),
        (record.prepared_offset, "preparedTransactionOffset"),
        (i64::from(record.body_len), "bodyLength"),
    ] {
        assert_eq!(Some(found), want[field].as_i64(), "{name} {field}");
    }
    assert_eq!(record.born_host(bytes).to_string(), want["bornHost"].as_str().unwrap(), "{name}");
    assert_eq!(record.store_host(bytes).to_string(), want["storeHost"].as_str().unwrap(), "{name}");
    assert_eq!(record.topic(bytes), want["topic"].as_str().unwrap().as_bytes(), "{name}");
    assert_eq!(pairs(record.properties(bytes)), want["properties"], "{name}");
    if let Some(body) = want["body"].as_str() {
        assert_eq!(record.body(bytes), body.as_bytes(), "{name}");
    }
    inflates(name, record.sys_flag, record.body(bytes));
}

pub(super) fn pairs(properties: Properties<'_>) -> Json {
    let text = |bytes: &[u8]| String::from_utf8(bytes.to_vec()).unwrap();
    Json::Object(properties.iter().map(|(name, value)| (text(name), Json::from(text(value)))).collect())
}

/// Compressed bodies of the captures hold printable text.
fn inflates(name: &str, flag: i32, body: &[u8]) {
    let Some(kind) = Kind::of_flag(flag).unwrap() else { return };
    let mut out = Vec::new();
    match inflate(kind, body, CEILING, &mut out) {
        Ok(()) => assert!(out.len() >= 4096 && out.is_ascii(), "{name} {} bytes", out.len()),
        Err(error) => assert!(matches!(error, WireError::Compression { .. }), "{name} {error}"),
    }
}

fn batch(case: &Captured, bytes: &[u8]) {
    let entries: Vec<_> = batch::entries(bytes).map(Result::unwrap).collect();
    let body = &case.decoded["body"];
    let want = body.get("entries").or(body.get("batch")).unwrap().as_array().unwrap();
    assert_eq!(entries.len(), want.len(), "{}", case.name);
    for (entry, want) in entries.iter().zip(want) {
        assert_eq!(i64::from(entry.flag), want["flag"].as_i64().unwrap(), "{}", case.name);
        assert_eq!(entry.body, want["body"].as_str().unwrap().as_bytes(), "{}", case.name);
        assert_eq!(pairs(Properties::new(entry.properties)), want["properties"], "{}", case.name);
    }
    let mut again = Vec::new();
    entries.iter().for_each(|entry| batch::push(&mut again, entry).unwrap());
    // The sums that C++ and others put in are not ours to keep: nobody reads them.
    if want.iter().all(|want| want.get("crc").or(want.get("bodyCrc")).and_then(Json::as_i64) == Some(0)) {
        assert_eq!(again, bytes, "{}", case.name);
    }
}

fn sent(case: &Captured, command: &Command<'_>) {
    let names = send::Names::of_code(command.code).unwrap();
    let header = send::SendRequest::read(names, &command.fields).unwrap();
    if header.sys_flag & sys_flag::COMPRESSED != 0 {
        inflates(&case.name, header.sys_flag, command.body);
    }
    if let Some(text) = case.decoded["body"].get("text").and_then(Json::as_str) {
        assert_eq!(command.body, text.as_bytes(), "{}", case.name);
    }
}

#[test]
fn every_code_of_the_captures_has_a_name_or_is_left_for_later() {
    let later = |code| matches!(code, 50..=54 | 2001..=2004 | 3001..=3010 | 200_050..=200_151 | 301 | 302 | 312 | 313 | 354 | 355);
    for case in captured() {
        assert!(request::name(case.request).is_some() || later(case.request), "{} {}", case.name, case.request);
    }
}

#[test]
fn the_seeds_of_the_fuzz_targets_pass() {
    // No allocator counts here.
    let measure: super::Measure = |work| {
        work();
        0
    };
    type Target = fn(&[u8], super::Measure);
    let targets: [(&str, Target); 6] = [
        ("frame", super::frame::fuzz_frame),
        ("command", command::fuzz_command),
        ("records", record::fuzz_records),
        ("properties", properties::fuzz_properties),
        ("json", json::fuzz_json),
        ("bodies", bodies::fuzz_bodies),
    ];
    for (name, target) in targets {
        let folder = format!("{}/fuzz/corpus/{name}", env!("CARGO_MANIFEST_DIR"));
        let mut seeds = 0;
        for seed in std::fs::read_dir(&folder).unwrap() {
            target(&std::fs::read(seed.unwrap().path()).unwrap(), measure);
            seeds += 1;
        }
        assert!(seeds > 0, "{folder} is empty");
    }
}
