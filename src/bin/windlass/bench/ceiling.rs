//! The ceiling: one thread and one blocking socket that do the least a client can do with a broker.
//!
//! A drain keeps one pull in flight for each queue of the first broker, walks every record and checks every body's sum,
//! and begins again where a queue ends. Sends keep `-f` requests in flight. No heartbeat, no group, no commit, no
//! handler, no retry: what a client costs beyond this is its own.

use super::figures::{Begun, unique};
use super::frame::{Answer, i32_at, invalid, quoted_names, request, set_opaque, whole};
use super::{Arguments, Of};
use crate::Ended;
use serde_json::Value;
use std::collections::VecDeque;
use std::io::{self, Read, Write};
use std::net::{TcpStream, ToSocketAddrs};
use std::time::{Duration, Instant};

const SILENCE: Duration = Duration::from_secs(20);
const READ_BYTES: usize = 512 << 10;
/// Sends ahead of the clock.
const WARM_UP: u64 = 1000;

const PULL: u16 = 11;
const ROUTE: u16 = 105;
const SEND: u16 = 310;
const SEND_BATCH: u16 = 320;
const NOT_FOUND: i32 = 19;
const OFFSET_MOVED: i32 = 21;
/// The pull brings its own subscription.
const WITH_SUBSCRIPTION: &str = "4";

pub fn run(arguments: &Arguments) -> Result<bool, Ended> {
    let place = route(arguments)?;
    let mut line = Line::connect(&place.addr)?;
    match arguments.of {
        Of::Drain => drain(arguments, &place, &mut line)?,
        Of::Send => send(arguments, &place, &mut line, 1)?,
        Of::Batch => send(arguments, &place, &mut line, u64::from(arguments.batch.unwrap_or(32)))?,
    }
    Ok(true)
}

/// The first master that has the topic.
struct Place {
    addr: String,
    queues: u32,
}

fn route(arguments: &Arguments) -> Result<Place, Ended> {
    let mut last = None;
    for server in arguments.cluster.name_servers()? {
        match ask_route(&server, &arguments.topic) {
            Ok(place) => return Ok(place),
            Err(error) => last = Some(Ended::Failed(format!("no route from {server}: {error}"))),
        }
    }
    Err(last.unwrap_or_else(|| Ended::Misuse("no name server".into())))
}

fn ask_route(server: &str, topic: &str) -> io::Result<Place> {
    let mut line = Line::connect(server)?;
    line.write(&request(true, ROUTE, 1, &[("topic", topic)], &[]))?;
    let mut found = None;
    while found.is_none() {
        line.read(|answer, _| {
            if answer.code != 0 {
                return Err(invalid(format!("code {}: send to the topic first", answer.code)));
            }
            found = Some(serde_json::from_slice::<Value>(&quoted_names(answer.body))?);
            Ok(())
        })?;
    }
    let route = found.unwrap_or_default();
    let places = |name: &str| route.get(name).and_then(Value::as_array).cloned().unwrap_or_default();
    for broker in places("brokerDatas") {
        let Some(addr) = broker.pointer("/brokerAddrs/0").and_then(Value::as_str) else { continue };
        let queues = places("queueDatas").into_iter().find(|data| data.get("brokerName") == broker.get("brokerName"));
        let queues = queues.and_then(|data| data.get("readQueueNums")?.as_u64()).unwrap_or(0);
        if queues > 0 {
            return Ok(Place { addr: addr.into(), queues: queues as u32 });
        }
    }
    Err(invalid("no master has the topic"))
}

/// A blocking socket with a buffer of whole and begun frames.
struct Line {
    socket: TcpStream,
    buffer: Vec<u8>,
    /// Bytes from here on are not taken yet, up to `end`.
    at: usize,
    end: usize,
}

impl Line {
    fn connect(addr: &str) -> io::Result<Self> {
        let addr = addr.to_socket_addrs()?.next().ok_or_else(|| invalid("no address"))?;
        let socket = TcpStream::connect_timeout(&addr, SILENCE)?;
        socket.set_nodelay(true)?;
        socket.set_read_timeout(Some(SILENCE))?;
        Ok(Self { socket, buffer: vec![0; READ_BYTES], at: 0, end: 0 })
    }

    fn write(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.socket.write_all(bytes)
    }

    /// One read; each whole answer goes to `each`, with what is to be written once all are taken.
    fn read(&mut self, mut each: impl FnMut(&Answer<'_>, &mut Vec<u8>) -> io::Result<()>) -> io::Result<()> {
        if self.at > 0 {
            self.buffer.copy_within(self.at..self.end, 0);
            (self.at, self.end) = (0, self.end - self.at);
        }
        if self.end == self.buffer.len() {
            self.buffer.resize(2 * self.end, 0);
        }
        let n = self.socket.read(self.buffer.get_mut(self.end..).unwrap_or_default())?;
        if n == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        self.end += n;
        let mut out = Vec::new();
        while let Some(len) = whole(self.buffer.get(self.at..self.end).unwrap_or_default())? {
            let content = self.buffer.get(self.at + 4..self.at + 4 + len).unwrap_or_default();
            each(&Answer::read(content)?, &mut out)?;
            self.at += 4 + len;
        }
        if out.is_empty() { Ok(()) } else { self.write(&out) }
    }
}

fn drain(arguments: &Arguments, place: &Place, line: &mut Line) -> io::Result<()> {
    let group = arguments.group();
    let pull = |queue: u32, offset: i64| {
        let (queue_text, offset) = (queue.to_string(), offset.to_string());
        let fields = [
            ("consumerGroup", &*group),
            ("topic", &*arguments.topic),
            ("queueId", &*queue_text),
            ("queueOffset", &*offset),
            ("maxMsgNums", "32"),
            ("sysFlag", WITH_SUBSCRIPTION),
            ("commitOffset", "0"),
            ("suspendTimeoutMillis", "0"),
            ("subscription", &*arguments.tags),
            ("subVersion", "0"),
            ("expressionType", "TAG"),
        ];
        request(arguments.json, PULL, queue as i32, &fields, &[])
    };
    let first: Vec<u8> = (0..place.queues).flat_map(|queue| pull(queue, 0)).collect();
    let from = Instant::now();
    line.write(&first)?;
    let (mut begun, mut seen, mut empty) = (None, 0, 0);
    while seen < arguments.messages {
        line.read(|answer, out| {
            let next = match answer.code {
                0 | OFFSET_MOVED => answer.number("nextBeginOffset").unwrap_or(0),
                NOT_FOUND => answer.number("minOffset").unwrap_or(0),
                code => return Err(invalid(format!("a pull was answered with code {code}"))),
            };
            if seen < arguments.messages {
                out.extend_from_slice(&pull(answer.opaque as u32, next));
            }
            let messages = walk(answer.body)?;
            begun.get_or_insert_with(Begun::now);
            seen += messages;
            empty = if messages == 0 { empty + 1 } else { 0 };
            if empty > 16 * place.queues { Err(invalid("the topic is empty")) } else { Ok(()) }
        })?;
    }
    let begun = begun.unwrap_or_else(Begun::now);
    begun.ended().report("ceiling-drain", seen, vec![begun.at() - from])
}

/// Counts the records of a frame and checks the sums of their bodies.
fn walk(mut rest: &[u8]) -> io::Result<u64> {
    let mut messages = 0;
    while !rest.is_empty() {
        let size = i32_at(rest, 0)? as usize;
        let (record, behind) = rest.split_at_checked(size).filter(|_| size > 0).ok_or_else(|| invalid("cut short"))?;
        let flags = i32_at(record, 36)?;
        let longer = |bit: i32| if flags & bit == 0 { 0 } else { 12 };
        let body_at = 84 + longer(1 << 4) + longer(1 << 5);
        let len = i32_at(record, body_at)? as usize;
        let body = record.get(body_at + 4..body_at + 4 + len).ok_or_else(|| invalid("cut short"))?;
        let sum = crc32fast::hash(body) & 0x7fff_ffff;
        if sum != i32_at(record, 8)? as u32 & 0x7fff_ffff {
            return Err(invalid("a body's sum is wrong"));
        }
        messages += 1;
        rest = behind;
    }
    Ok(messages)
}

/// `batch` messages in each of the requests.
fn send(arguments: &Arguments, place: &Place, line: &mut Line, batch: u64) -> io::Result<()> {
    let in_flight = u64::from(arguments.in_flight.unwrap_or(1));
    let mut templates: Vec<Vec<u8>> = (0..place.queues).map(|queue| send_request(arguments, queue, batch)).collect();
    let calls = (arguments.messages / batch).max(1);
    let warm_up = WARM_UP.min(calls);
    let mut waiting = VecDeque::new();
    let mut took = Vec::with_capacity(usize::try_from(calls).unwrap_or(0));
    let (mut number, mut answered, mut begun) = (0u64, 0u64, None);
    let mut next = |out: &mut Vec<u8>, waiting: &mut VecDeque<(i32, Instant)>| {
        let queue = (number % u64::from(place.queues)) as usize;
        if let Some(template) = templates.get_mut(queue).filter(|_| number < warm_up + calls) {
            set_opaque(template, number as i32);
            waiting.push_back((number as i32, Instant::now()));
            out.extend_from_slice(template);
            number += 1;
        }
    };
    let mut first = Vec::new();
    (0..in_flight).for_each(|_| next(&mut first, &mut waiting));
    line.write(&first)?;
    while answered < warm_up + calls {
        line.read(|answer, out| {
            if answer.code != 0 && !(10..=12).contains(&answer.code) {
                return Err(invalid(format!("a send was answered with code {}", answer.code)));
            }
            answered += 1;
            if answered == warm_up {
                begun = Some(Begun::now());
            }
            // Nearly always the first: a broker answers almost in order.
            if let Some(at) = waiting.iter().position(|(opaque, _)| *opaque == answer.opaque)
                && let Some((_, since)) = waiting.remove(at)
                && answered > warm_up
            {
                took.push(since.elapsed());
            }
            next(out, &mut waiting);
            Ok(())
        })?;
    }
    let mode = if batch > 1 { "ceiling-batch" } else { "ceiling-send" };
    begun.unwrap_or_else(Begun::now).ended().report(mode, calls * batch, took)
}

fn send_request(arguments: &Arguments, queue: u32, batch: u64) -> Vec<u8> {
    let group = format!("bench-{}", unique());
    let (queue, body) = (queue.to_string(), arguments.body());
    let many = if batch > 1 { "true" } else { "false" };
    let fields = [
        ("a", &*group),
        ("b", &*arguments.topic),
        ("c", "TBW102"),
        ("d", "4"),
        ("e", &*queue),
        ("f", "0"),
        ("g", "1700000000000"),
        ("h", "0"),
        ("i", "UNIQ_KEY\u{1}7F0000010001ABCDEF0100000000AAAA\u{2}WAIT\u{1}true"),
        ("j", "0"),
        ("k", "false"),
        ("m", many),
    ];
    if batch == 1 {
        return request(false, SEND, 0, &fields, &body);
    }
    let mut entry = Vec::new();
    // length; magic, sum and flag, which a broker does not read; the body; properties
    entry.extend_from_slice(&(22 + body.len() as u32).to_be_bytes());
    entry.extend_from_slice(&[0; 12]);
    entry.extend_from_slice(&(body.len() as u32).to_be_bytes());
    entry.extend_from_slice(&body);
    entry.extend_from_slice(&[0; 2]);
    request(false, SEND_BATCH, 0, &fields, &entry.repeat(batch as usize))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_record_is_walked_and_a_wrong_sum_is_seen() {
        let mut record = vec![0; 84];
        record.extend_from_slice(&4u32.to_be_bytes());
        record.extend_from_slice(b"body");
        record.extend_from_slice(&[1, b'T', 0, 0]);
        let len = record.len() as u32;
        record[..4].copy_from_slice(&len.to_be_bytes());
        record[8..12].copy_from_slice(&(crc32fast::hash(b"body") & 0x7fff_ffff).to_be_bytes());
        assert_eq!(walk(&record.repeat(3)).unwrap(), 3);
        record[90] ^= 1;
        assert!(walk(&record).is_err() && walk(&record[..50]).is_err());
    }
}
