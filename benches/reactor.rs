//! The loop against a blocking socket on the same work: 40 KB answers to small requests, four outstanding, as pulls of
//! four queues are. Gated: system calls, allocations and buffers per frame. Rates and processor time are reported.

#[path = "accept/mod.rs"]
mod accept;
#[path = "ratio/mod.rs"]
mod ratio;

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Instant;

use windlass::internals::net::{Change, Conn, FrameBuf, Out, Reactor, Role, Settings, Turn};
use windlass::internals::work::{Clock, Nanos};

#[global_allocator]
static COUNTING: ratio::Counting = ratio::Counting;

const OUTSTANDING: u32 = 4;
const REQUEST: usize = 200;
const ANSWER: usize = 40_000;
const FRAMES: u64 = 30_000;

/// Asks for the next answer as soon as one has come.
#[derive(Default)]
struct Puller {
    frames: u64,
    bytes: u64,
    conn: Option<Conn>,
}

fn request(bytes: &mut Vec<u8>) {
    bytes.extend_from_slice(&(REQUEST as u32).to_be_bytes());
    bytes.resize(bytes.len() + REQUEST, 1);
}

impl Role for Puller {
    /// Whom to pull from, instead of whom it pulls from now.
    type Command = SocketAddr;
    type Timer = ();

    fn connection(&mut self, conn: Conn, change: Change, _: Nanos, out: &mut Out<()>) {
        if let Change::Connected { .. } = change {
            (0..OUTSTANDING).for_each(|_| out.send(conn, request));
        }
    }

    fn frame(&mut self, conn: Conn, frame: FrameBuf, _: Nanos, out: &mut Out<()>) {
        self.frames += 1;
        self.bytes += frame.len() as u64;
        out.send(conn, request);
    }

    fn command(&mut self, addr: SocketAddr, _: Nanos, out: &mut Out<()>) {
        let old = self.conn.replace(out.connect(addr));
        old.into_iter().for_each(|old| out.close(old));
    }

    fn due(&mut self, (): (), _: Nanos, _: &mut Out<()>) {}
    fn settle(&mut self, _: Nanos, _: &mut Out<()>) {}
}

/// Answers every request with one frame, until its client goes.
fn serve(mut stream: TcpStream) -> std::io::Result<()> {
    stream.set_nodelay(true)?;
    let mut answer = (ANSWER as u32).to_be_bytes().to_vec();
    answer.resize(4 + ANSWER, 2);
    let (mut buffer, mut have) = (vec![0; 64 << 10], 0);
    loop {
        have += match stream.read(&mut buffer[have..])? {
            0 => return Ok(()),
            n => n,
        };
        while have >= 4 + REQUEST {
            stream.write_all(&answer)?;
            buffer.copy_within(4 + REQUEST..have, 0);
            have -= 4 + REQUEST;
        }
    }
}

/// The same by hand on a blocking socket: the floor.
fn raw(addr: SocketAddr, frames: u64) -> std::io::Result<f64> {
    let mut stream = TcpStream::connect(addr)?;
    stream.set_nodelay(true)?;
    let mut asked = Vec::new();
    (0..OUTSTANDING).for_each(|_| request(&mut asked));
    let mut one = Vec::new();
    request(&mut one);
    let begun = Instant::now();
    stream.write_all(&asked)?;
    let mut buffer = vec![0; 4 + ANSWER];
    for _ in 0..frames {
        stream.read_exact(&mut buffer)?;
        stream.write_all(&one)?;
    }
    Ok(frames as f64 / begun.elapsed().as_secs_f64())
}

fn main() -> std::io::Result<()> {
    let mut gate = ratio::Gate::from_args();
    let addr = accept::peer(serve)?;
    let mut handle = None;
    let mut reactor = Reactor::new(Settings::default(), Clock::system(), |given| {
        handle = Some(given.clone());
        Puller::default()
    })?;
    let mut rates = Vec::new();
    for _ in 0..5 {
        let floor = raw(addr, FRAMES)?;
        let mut first = true;
        // A connection of its own for each round, so that both sides start alike.
        let posted = handle.as_ref().is_some_and(|handle| handle.post(addr).is_ok());
        assert!(posted, "the inbox takes one command");
        let (from, counters) = (reactor.role().frames, reactor.counters().clone());
        let count = || [counters.polls.value(), counters.reads.value(), counters.writes.value()];
        let (mut before, mut begun, mut made) = (count(), Instant::now(), 0);
        let warm = from + FRAMES / 10;
        let allocations = ratio::allocations(|| {
            while reactor.role().frames < from + FRAMES {
                if reactor.turn() == Turn::Stopped {
                    break;
                }
                if first && reactor.role().frames >= warm {
                    (first, before, begun, made) = (false, count(), Instant::now(), reactor.pool().made());
                }
            }
        });
        let frames = (reactor.role().frames - warm) as f64;
        let rate = frames / begun.elapsed().as_secs_f64();
        let per: Vec<f64> = count().iter().zip(before).map(|(now, then)| (now - then) as f64 / frames).collect();
        rates.push(rate / floor);
        println!("raw {floor:.0} frames/s, loop {rate:.0} frames/s; per frame: polls, reads, writes {per:.2?}");
        gate.at_most("reactor/polls per frame", per[0], 1.1, "");
        gate.at_most("reactor/reads per frame", per[1], 2.5, "");
        gate.at_most("reactor/writes per frame", per[2], 1.1, "");
        gate.at_most("reactor/allocations per frame", allocations as f64 / FRAMES as f64, 0.02, "");
        gate.at_most("reactor/buffers made after warm-up", (reactor.pool().made() - made) as f64, 4.0, "");
    }
    println!("reactor/rate to raw: {:.2}, {} bytes", ratio::median(rates), reactor.role().bytes);
    gate.finish();
    Ok(())
}
