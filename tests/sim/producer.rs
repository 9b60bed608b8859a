//! A scripted producer on the wire: sends numbered messages and remembers which of them were acknowledged. What is not
//! acknowledged is sent again, so that there may be several copies.

use std::collections::{BTreeMap, VecDeque};
use std::net::SocketAddr;
use std::time::Duration;

use windlass::internals::net::{Change, Conn, FrameBuf, Out, Role};
use windlass::internals::rocketmq::port::Ask;
use windlass::internals::wire::remoting::command::{Codec, Command};
use windlass::internals::wire::remoting::send::SendRequest;
use windlass::internals::work::clock::{Clock, Nanos};

use crate::rng::Rng;

const TIMEOUT: Duration = Duration::from_secs(3);
/// A connection is given up after so many time-outs.
const SILENT: usize = 3;
const AGAIN: Duration = Duration::from_millis(500);

pub struct Producer {
    rng: Rng,
    clock: Clock,
    topic: String,
    queues: u64,
    broker: SocketAddr,
    conn: Option<Conn>,
    connected: bool,
    opaque: i32,
    waiting: BTreeMap<i32, (u32, Nanos)>,
    again: VecDeque<u32>,
    next: u32,
    last: u32,
    gap_ms: u64,
    /// When the next step is due; earlier deadlines are left over.
    due: Nanos,
    /// Time-outs without an answer in between.
    silent: usize,
    /// Acknowledged since the world has looked.
    pub acknowledged: Vec<u32>,
}

impl Producer {
    pub fn new(
        rng: Rng,
        clock: Clock,
        topic: &str,
        queues: u64,
        broker: SocketAddr,
        messages: u32,
        gap_ms: u64,
    ) -> Self {
        Self {
            rng,
            clock,
            topic: topic.to_owned(),
            queues,
            broker,
            conn: None,
            connected: false,
            opaque: 0,
            waiting: BTreeMap::new(),
            again: VecDeque::new(),
            next: 1,
            last: messages,
            gap_ms,
            due: Nanos::ZERO,
            silent: 0,
            acknowledged: Vec::new(),
        }
    }

    /// Everything was sent and acknowledged.
    pub fn is_done(&self) -> bool {
        self.next > self.last && self.again.is_empty() && self.waiting.is_empty()
    }

    fn step(&mut self, now: Nanos, out: &mut Out<()>) {
        let late: Vec<i32> =
            self.waiting.iter().filter(|(_, (_, until))| *until <= now).map(|(opaque, _)| *opaque).collect();
        self.silent += late.len();
        for opaque in late {
            self.again.extend(self.waiting.remove(&opaque).map(|(id, _)| id));
        }
        if self.is_done() {
            return;
        }
        if let Some(conn) = self.conn.filter(|_| self.silent >= SILENT) {
            out.close(conn);
            self.silent = 0;
            return;
        }
        let conn = *self.conn.get_or_insert_with(|| out.connect(self.broker));
        if self.connected {
            for _ in 0..self.rng.between(1, 3) {
                self.send_one(conn, now, out);
            }
        }
        self.due = now + self.rng.millis(1, self.gap_ms);
        out.arm(self.due, ());
    }

    fn send_one(&mut self, conn: Conn, now: Nanos, out: &mut Out<()>) {
        let id = match self.again.pop_front() {
            Some(id) => id,
            None if self.next <= self.last => {
                self.next += 1;
                self.next - 1
            }
            None => return,
        };
        self.opaque += 1;
        let mut properties = format!("UNIQ_KEY\u{1}U{id}\u{2}");
        if self.rng.chance(60) {
            properties.push_str("DELAY\u{1}1\u{2}");
        }
        let request = SendRequest {
            producer_group: "producers".into(),
            topic: self.topic.as_str().into(),
            default_topic: "TBW102".into(),
            default_topic_queue_nums: 4,
            queue_id: self.rng.below(self.queues) as i32,
            born_ms: self.clock.wall_ms(),
            properties: Some(properties.into()),
            ..SendRequest::default()
        };
        let body = format!("{id} {}", "x".repeat(self.rng.below(120) as usize));
        let ask = Ask::Send { request: &request, body: body.as_bytes() };
        let (opaque, codec) = (self.opaque, self.rng.pick(&[Codec::Json, Codec::Binary]));
        out.send(conn, |bytes| ask.encode(codec, opaque, false, bytes).unwrap());
        self.waiting.insert(opaque, (id, now + TIMEOUT));
    }
}

/// The number of a message by its body.
pub fn id_of(body: &[u8]) -> u32 {
    let text = std::str::from_utf8(body).unwrap_or_default();
    text.split(' ').next().unwrap_or_default().parse().unwrap_or(0)
}

impl Role for Producer {
    type Command = ();
    type Timer = ();

    fn connection(&mut self, conn: Conn, change: Change, now: Nanos, out: &mut Out<()>) {
        if self.conn != Some(conn) {
            return;
        }
        match change {
            Change::Connected { .. } => {
                self.connected = true;
                self.step(now, out);
            }
            Change::Failed { .. } | Change::Closed { .. } => {
                (self.conn, self.connected) = (None, false);
                self.again.extend(std::mem::take(&mut self.waiting).into_values().map(|(id, _)| id));
                self.due = now + AGAIN;
                out.arm(self.due, ());
            }
            Change::Accepted { .. } => {}
        }
    }

    fn frame(&mut self, conn: Conn, frame: FrameBuf, _now: Nanos, _out: &mut Out<()>) {
        let Ok(command) = Command::read(&frame) else { return };
        if self.conn != Some(conn) || !command.is_answer() {
            return;
        }
        self.silent = 0;
        let Some((id, _)) = self.waiting.remove(&command.opaque) else { return };
        match command.code {
            0 => self.acknowledged.push(id),
            _ => self.again.push_back(id),
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
