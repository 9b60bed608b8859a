//! Tests: the computed vectors of `tests/vectors/rocketmq-wire.json`.
//!
//! Left out are the kinds `acl_signature`, `trace`, `recall_handle`, `pop_ck` and `consume_queue_unit`: what they
//! describe is not spoken yet, or never will be (the embedded broker's index is not Java's).

use std::net::{IpAddr, SocketAddr};

use serde_json::Value as Json;

use super::captures::{pairs, unhex, vectors};
use super::checksum::body_crc;
use super::compress::{CEILING, Kind, inflate};
use super::frame::Cutter;
use super::json;
use super::remoting::command::Command;
use super::remoting::message_id::{UniqueIds, offset_id, read_offset_id};
use super::remoting::properties::Properties;
use super::remoting::record::{Check, MAGIC_BLANK, Record, index, patch};
use super::remoting::{batch, route, topics};
use crate::model::tags::java_hash;

#[test]
fn every_vector_holds() {
    let all = vectors("rocketmq-wire.json");
    let mut seen = 0;
    for vector in all["vectors"].as_array().unwrap() {
        let name = vector["name"].as_str().unwrap();
        let bytes = unhex(vector["hex"].as_str().unwrap_or_default());
        let text = vector["text"].as_str().unwrap_or_default();
        let fields = &vector["fields"];
        seen += 1;
        match vector["kind"].as_str().unwrap() {
            "frame" => frame(name, &bytes, fields),
            "properties" => assert_eq!(pairs(Properties::new(&bytes)), fields["properties"], "{name}"),
            "stored_message" => stored(name, &bytes, fields),
            "pull_body" => pulled(name, &bytes, fields),
            "blank_record" => {
                assert_eq!(bytes.get(4..8), Some(MAGIC_BLANK.to_be_bytes().as_slice()), "{name}");
                let mut whole = bytes.clone();
                whole.resize(1000, 0xEE);
                let (mut records, mut damage) = (Vec::new(), Vec::new());
                index(&whole, Check::Crc, &mut records, &mut damage);
                assert_eq!((records.len(), damage.len()), (0, 0), "{name}");
            }
            "batch_body" => batched(name, &bytes, fields),
            "unique_id" => unique(name, text, fields),
            "offset_msg_id" => {
                let ip: IpAddr = fields["host"].as_str().unwrap().parse().unwrap();
                let host = SocketAddr::new(ip, fields["port"].as_u64().unwrap() as u16);
                let offset = fields["commit_log_offset"].as_i64().unwrap();
                assert_eq!(offset_id(host, offset), text, "{name}");
                assert_eq!(read_offset_id(text), Ok((host, offset)), "{name}");
            }
            "tag_hash" => assert_eq!(i64::from(java_hash(text)), fields["hash"].as_i64().unwrap(), "{name}"),
            "crc32" => assert_eq!(u64::from(body_crc(&bytes)), fields["body_crc"].as_u64().unwrap(), "{name}"),
            "json_body" => json_body(name, text, fields),
            "acl_signature" | "trace" | "recall_handle" | "pop_ck" | "consume_queue_unit" => seen -= 1,
            other => panic!("{name}: unknown kind {other}"),
        }
    }
    assert_eq!(seen, all["vectors"].as_array().unwrap().len() - 5);
}

fn frame(name: &str, bytes: &[u8], fields: &Json) {
    let (content, used) = Cutter::REMOTING.cut(bytes).unwrap().unwrap();
    assert_eq!(used, bytes.len(), "{name}");
    let command = Command::read(content).unwrap();
    for (found, field) in
        [(command.code, "code"), (command.opaque, "opaque"), (command.flag, "flag"), (command.version, "version")]
    {
        assert_eq!(Some(i64::from(found)), fields[field].as_i64(), "{name} {field}");
    }
    assert_eq!(command.language.name(), fields["language"].as_str().unwrap(), "{name}");
    assert_eq!(command.remark.as_deref(), fields["remark"].as_str(), "{name}");
    assert_eq!(command.body, unhex(fields["body_hex"].as_str().unwrap()), "{name}");
    let found =
        command.fields.iter().map(|(name, value)| (name.lossy().into_owned(), value.lossy().into_owned().into()));
    let want = fields["ext_fields"].as_object().cloned().unwrap_or_default();
    assert_eq!(found.collect::<serde_json::Map<_, _>>(), want, "{name}");
    let mut again = Vec::new();
    command.write(&mut again).unwrap();
    assert_eq!(again, bytes, "{name}");
}

fn stored(name: &str, bytes: &[u8], fields: &Json) {
    let record = Record::read(bytes, Check::Crc).unwrap();
    for (found, field) in [
        (i64::from(record.len), "total_size"),
        (i64::from(record.body_crc), "body_crc"),
        (i64::from(record.queue_id), "queue_id"),
        (i64::from(record.flag), "flag"),
        (record.queue_offset, "queue_offset"),
        (record.physical_offset, "physical_offset"),
        (i64::from(record.sys_flag), "sys_flag"),
        (record.born_ms, "born_timestamp"),
        (record.store_ms, "store_timestamp"),
        (i64::from(record.reconsume_times), "reconsume_times"),
        (record.prepared_offset, "prepared_transaction_offset"),
    ] {
        assert_eq!(Some(found), fields[field].as_i64(), "{name} {field}");
    }
    assert_eq!(record.born_host(bytes).to_string(), fields["born_host"].as_str().unwrap(), "{name}");
    assert_eq!(record.store_host(bytes).to_string(), fields["store_host"].as_str().unwrap(), "{name}");
    assert_eq!(record.topic(bytes), fields["topic"].as_str().unwrap().as_bytes(), "{name}");
    assert_eq!(pairs(record.properties(bytes)), fields["properties"], "{name}");
    if let Some(id) = fields["offset_msg_id"].as_str() {
        assert_eq!(record.offset_id(bytes), id, "{name}");
    }
    let mut body = Vec::new();
    match Kind::of_flag(record.sys_flag).unwrap() {
        None => body.extend_from_slice(record.body(bytes)),
        Some(kind) if inflate(kind, record.body(bytes), CEILING, &mut body).is_ok() => {}
        Some(_) => body.extend_from_slice(fields["body_text"].as_str().unwrap_or_default().as_bytes()),
    }
    if let Some(text) = fields["body_text"].as_str() {
        assert_eq!(body, text.as_bytes(), "{name}");
    }
    let mut again = Vec::new();
    record.again(bytes).encode_into(&mut again).unwrap();
    patch(&mut again, record.queue_offset, record.physical_offset, record.store_ms);
    // A short topic is always written in the first form.
    if bytes.get(7) == Some(&0xA7) {
        assert_eq!(again, bytes, "{name}");
    }
    if let Some(sum) = fields["record_crc"].as_u64() {
        assert_eq!(u64::from(body_crc(bytes.get(..bytes.len() - 20).unwrap())), sum, "{name}");
    }
}

fn pulled(name: &str, bytes: &[u8], fields: &Json) {
    let (mut records, mut damage) = (Vec::new(), Vec::new());
    index(bytes, Check::Crc, &mut records, &mut damage);
    let offsets: Vec<_> = records.iter().map(|record| Json::from(record.queue_offset)).collect();
    let lengths: Vec<_> = records.iter().map(|record| Json::from(record.len)).collect();
    assert_eq!(
        (Json::from(offsets), Json::from(lengths)),
        (fields["queue_offsets"].clone(), fields["lengths"].clone())
    );
    assert_eq!(damage, [], "{name}");
}

fn batched(name: &str, bytes: &[u8], fields: &Json) {
    let entries: Vec<_> = batch::entries(bytes).map(Result::unwrap).collect();
    let mut again = Vec::new();
    for (entry, want) in entries.iter().zip(fields["messages"].as_array().unwrap()) {
        assert_eq!(i64::from(entry.flag), want["flag"].as_i64().unwrap(), "{name}");
        assert_eq!(entry.body, want["body_text"].as_str().unwrap().as_bytes(), "{name}");
        assert_eq!(pairs(Properties::new(entry.properties)), want["properties"], "{name}");
        batch::push(&mut again, entry).unwrap();
    }
    assert_eq!(again, bytes, "{name}");
}

fn unique(name: &str, text: &str, fields: &Json) {
    let salt = u32::from_str_radix(fields["loader_hash_hex"].as_str().unwrap(), 16).unwrap();
    let process = fields["pid_low16"].as_u64().unwrap() as u32 | 0xABCD_0000;
    let ids = UniqueIds::new(fields["ip"].as_str().unwrap().parse().unwrap(), process, salt);
    // 2026-11-01T00:00:00Z
    let now = 1_793_491_200_000 + fields["millis_since_month_start"].as_i64().unwrap();
    let id = (0..=fields["counter"].as_u64().unwrap()).map(|_| ids.next(now)).last();
    assert_eq!(id.as_ref().map(|id| id.as_str()), Some(text), "{name}");
}

fn json_body(name: &str, text: &str, fields: &Json) {
    let value: Json = json::read("vector", text.as_bytes()).unwrap();
    if let Some(want) = fields.get("brokerDatas.0.brokerAddrs") {
        assert_eq!(&value["brokerDatas"][0]["brokerAddrs"], want, "{name}");
        let route: route::RouteBody = json::read("route", text.as_bytes()).unwrap();
        assert_eq!(route.brokers[0].broker_addrs.get(&0).map(String::as_str), Some("10.0.0.1:10911"), "{name}");
        return;
    }
    if let Some(want) = fields["offsetTable"].as_array() {
        let table: topics::OffsetTableBody = json::read("offsets", text.as_bytes()).unwrap();
        let value = |queue| json::read::<Json>("queue", &json::to_vec(queue)).unwrap();
        let pairs = table.offsets.entries.iter().map(|(queue, offset)| serde_json::json!([value(queue), offset]));
        let found: Vec<_> = pairs.collect();
        assert_eq!(&found, want, "{name}");
        return;
    }
    if name == "json_ref" {
        // Read as an object without fields, not resolved: no body of real peers has one.
        assert_eq!(value["list"][0]["topic"], "T1", "{name}");
        return;
    }
    assert_eq!(&value, fields, "{name}");
}
