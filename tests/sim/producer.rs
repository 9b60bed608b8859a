//! A scripted producer on the wire: sends numbered messages to all brokers and remembers which were acknowledged by
//! whom. What is not acknowledged is sent again, so that there may be several copies.

use std::collections::{BTreeMap, VecDeque};
use std::net::SocketAddr;
use std::time::Duration;

use windlass::internals::net::{Change, Conn, FrameBuf, Out, Role};
use windlass::internals::rocketmq::port::Ask;
use windlass::internals::wire::compress;
use windlass::internals::wire::remoting::batch;
use windlass::internals::wire::remoting::command::{Codec, Command};
use windlass::internals::wire::remoting::record::Record;
use windlass::internals::wire::remoting::send::SendRequest;
use windlass::internals::work::clock::{Clock, Nanos};

use crate::plan::{Plan, Sending, tag_of};
use crate::process::TOPIC;
use crate::rng::Rng;

const TIMEOUT: Duration = Duration::from_secs(3);
/// A connection is given up after so many time-outs.
const SILENT: usize = 3;
const AGAIN: Duration = Duration::from_millis(500);
/// No body is longer.
const BODY: usize = 1 << 16;

/// The way to one broker.
struct Way {
    addr: SocketAddr,
    conn: Option<Conn>,
    connected: bool,
    /// No new connection before.
    rests: Nanos,
    /// Messages of requests that wait for their answer, and until when.
    waiting: BTreeMap<i32, (Vec<u32>, Nanos)>,
    /// Time-outs without an answer in between.
    silent: usize,
}

pub struct Producer {
    rng: Rng,
    clock: Clock,
    queues: u64,
    ways: Vec<Way>,
    sending: Sending,
    opaque: i32,
    again: VecDeque<u32>,
    next: u32,
    last: u32,
    gap_ms: u64,
    /// When the next step is due; earlier deadlines are left over.
    due: Nanos,
    /// Acknowledged since the world has looked, and at which site.
    pub acknowledged: Vec<(usize, u32)>,
}

impl Producer {
    pub fn new(rng: Rng, clock: Clock, brokers: impl Iterator<Item = SocketAddr>, plan: &Plan) -> Self {
        let way =
            |addr| Way { addr, conn: None, connected: false, rests: Nanos::ZERO, waiting: BTreeMap::new(), silent: 0 };
        Self {
            rng,
            clock,
            queues: plan.queues,
            ways: brokers.map(way).collect(),
            sending: plan.sending,
            opaque: 0,
            again: VecDeque::new(),
            next: 1,
            last: plan.messages,
            gap_ms: plan.gap_ms,
            due: Nanos::ZERO,
            acknowledged: Vec::new(),
        }
    }

    /// Everything was sent and acknowledged.
    pub fn is_done(&self) -> bool {
        self.next > self.last && self.again.is_empty() && self.ways.iter().all(|way| way.waiting.is_empty())
    }

    fn step(&mut self, now: Nanos, out: &mut Out<()>) {
        for way in &mut self.ways {
            let late: Vec<i32> =
                way.waiting.iter().filter(|(_, (_, until))| *until <= now).map(|(opaque, _)| *opaque).collect();
            way.silent += late.len();
            for opaque in late {
                self.again.extend(way.waiting.remove(&opaque).map(|(ids, _)| ids).unwrap_or_default());
            }
        }
        if self.is_done() {
            return;
        }
        for way in &mut self.ways {
            match way.conn {
                Some(conn) if way.silent >= SILENT => {
                    out.close(conn);
                    way.silent = 0;
                }
                None if way.rests <= now => way.conn = Some(out.connect(way.addr)),
                Some(_) | None => {}
            }
        }
        for _ in 0..self.rng.between(1, 3) {
            let open: Vec<usize> = (0..self.ways.len()).filter(|at| self.ways[*at].connected).collect();
            if !open.is_empty() {
                let way = self.rng.pick(&open);
                self.send_one(way, now, out);
            }
        }
        self.due = now + self.rng.millis(1, self.gap_ms);
        out.arm(self.due, ());
    }

    fn next_id(&mut self) -> Option<u32> {
        if let Some(id) = self.again.pop_front() {
            return Some(id);
        }
        let id = self.next;
        self.next += u32::from(id <= self.last);
        (id <= self.last).then_some(id)
    }

    fn send_one(&mut self, way: usize, now: Nanos, out: &mut Out<()>) {
        let count = if self.rng.chance(self.sending.batches) { self.rng.between(2, 4) } else { 1 };
        let ids: Vec<u32> = (0..count).filter_map(|_| self.next_id()).collect();
        let Some(first) = ids.first().copied() else { return };
        self.opaque += 1;
        let mut request = SendRequest {
            producer_group: "producers".into(),
            topic: TOPIC.into(),
            default_topic: "TBW102".into(),
            default_topic_queue_nums: 4,
            queue_id: self.rng.below(self.queues) as i32,
            born_ms: self.clock.wall_ms(),
            properties: Some("".into()),
            ..SendRequest::default()
        };
        let body = if ids.len() > 1 {
            request.batch = Some(true);
            self.batch(&ids)
        } else {
            let mut properties = properties_of(first);
            if self.rng.chance(self.sending.delayed) {
                properties.push_str("DELAY\u{1}1\u{2}");
            }
            request.properties = Some(properties.into());
            let (body, sys_flag) = self.body(first);
            request.sys_flag = sys_flag;
            body
        };
        let ask = Ask::Send { request: &request, body: &body };
        let (opaque, codec) = (self.opaque, self.rng.pick(&[Codec::Json, Codec::Binary]));
        let Some(way) = self.ways.get_mut(way) else { return };
        let Some(conn) = way.conn else { return };
        out.send(conn, |bytes| ask.encode(codec, opaque, false, bytes).unwrap());
        way.waiting.insert(opaque, (ids, now + TIMEOUT));
    }

    fn batch(&mut self, ids: &[u32]) -> Vec<u8> {
        let mut all = Vec::new();
        for id in ids {
            let (properties, body) = (properties_of(*id), self.plain(*id));
            let entry = batch::Entry { flag: 0, body: &body, properties: properties.as_bytes() };
            batch::push(&mut all, &entry).unwrap();
        }
        all
    }

    fn plain(&mut self, id: u32) -> Vec<u8> {
        format!("{id} {}", "x".repeat(self.rng.below(120) as usize)).into_bytes()
    }

    /// A body, compressed now and then, and the flag that says so.
    fn body(&mut self, id: u32) -> (Vec<u8>, i32) {
        let plain = self.plain(id);
        let mut packed = Vec::new();
        let kind = compress::Kind::Zlib;
        if self.rng.chance(self.sending.compressed) && compress::deflate(kind, 5, &plain, &mut packed).is_ok() {
            return (packed, kind.flag());
        }
        (plain, 0)
    }
}

fn properties_of(id: u32) -> String {
    let mut properties = format!("UNIQ_KEY\u{1}U{id}\u{2}");
    if !tag_of(id).is_empty() {
        properties.push_str(&format!("TAGS\u{1}{}\u{2}", tag_of(id)));
    }
    properties
}

/// The number of a message by its body; 0 for one that says none.
pub fn id_of(record: &Record, bytes: &[u8]) -> u32 {
    let (body, mut plain) = (record.body(bytes), Vec::new());
    let body = match compress::Kind::of_flag(record.sys_flag) {
        Ok(Some(kind)) if compress::inflate(kind, body, BODY, &mut plain).is_ok() => &plain,
        _ => body,
    };
    let text = std::str::from_utf8(body).unwrap_or_default();
    text.split(' ').next().unwrap_or_default().parse().unwrap_or(0)
}

impl Role for Producer {
    type Command = ();
    type Timer = ();

    fn connection(&mut self, conn: Conn, change: Change, now: Nanos, out: &mut Out<()>) {
        let Some(way) = self.ways.iter_mut().find(|way| way.conn == Some(conn)) else { return };
        match change {
            Change::Connected { .. } => {
                way.connected = true;
                self.step(now, out);
            }
            Change::Failed { .. } | Change::Closed { .. } => {
                (way.conn, way.connected, way.rests) = (None, false, now + AGAIN);
                self.again.extend(std::mem::take(&mut way.waiting).into_values().flat_map(|(ids, _)| ids));
                self.due = now + AGAIN;
                out.arm(self.due, ());
            }
            Change::Accepted { .. } => {}
        }
    }

    fn frame(&mut self, conn: Conn, frame: FrameBuf, _now: Nanos, _out: &mut Out<()>) {
        let Ok(command) = Command::read(&frame) else { return };
        let Some(site) = self.ways.iter().position(|way| way.conn == Some(conn)) else { return };
        if !command.is_answer() {
            return;
        }
        let way = &mut self.ways[site];
        way.silent = 0;
        let Some((ids, _)) = way.waiting.remove(&command.opaque) else { return };
        match command.code {
            0 => self.acknowledged.extend(ids.into_iter().map(|id| (site, id))),
            _ => self.again.extend(ids),
        }
    }

    fn command(&mut self, (): (), now: Nanos, out: &mut Out<()>) {
        self.step(now, out);
    }

    fn due(&mut self, (): (), now: Nanos, out: &mut Out<()>) {
        if now >= self.due {
            self.step(now, out);
        }
    }

    fn settle(&mut self, _now: Nanos, _out: &mut Out<()>) {}
}
