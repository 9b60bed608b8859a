//! Call lanes: plain blocking sockets, each lent to one caller at a time, for synchronous calls (design D24).
//!
//! A caller writes his request and reads his answer on his own thread, so that no other thread has to be woken. At most
//! eight calls to an address are in flight this way; above that every new call is told [`LaneError::Busy`] and goes over
//! the loop, where many callers share a connection, until the number falls. Lanes carry no pulls, heartbeats or requests
//! of the server. Deadlines are real time: nothing here reads a [`Clock`](crate::work::Clock).

use std::collections::HashMap;
use std::io;
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::sync::Arc;
use std::time::{Duration, Instant};

use log::debug;

use super::blocking::Socket;
use super::buffer::{FrameBuf, FramePool};
use crate::error::WireError;
use crate::wire::frame::Cutter;
use crate::work::ranks::{Rank, Ranked};

/// What lanes may do.
#[derive(Clone, Copy, Debug)]
pub struct LaneSettings {
    /// How frames are cut. Default: RocketMQ's.
    pub cutter: Cutter,
    /// Tells an answer's opaque; `None` for what is no answer.
    pub opaque_of: fn(&[u8]) -> Option<i32>,
    /// Longest time to connect, within the call's deadline. Default 3 s.
    pub connect_timeout: Duration,
    /// A lane idle for longer is probed before it is used. Default 1 s.
    pub probe_after: Duration,
    /// A lane idle for longer is closed. Default 60 s.
    pub close_after: Duration,
    /// Calls in flight to one address that have a lane each. Default 8.
    pub calls: usize,
}

impl LaneSettings {
    /// The defaults, for a protocol whose answers `opaque_of` can tell apart.
    pub fn new(opaque_of: fn(&[u8]) -> Option<i32>) -> Self {
        Self {
            cutter: Cutter::REMOTING,
            opaque_of,
            connect_timeout: Duration::from_secs(3),
            probe_after: Duration::from_secs(1),
            close_after: Duration::from_secs(60),
            calls: 8,
        }
    }
}

/// The lanes of a client. Cheap to clone.
#[derive(Clone)]
pub struct Lanes {
    shared: Arc<Shared>,
}

struct Shared {
    settings: LaneSettings,
    pool: Arc<FramePool>,
    table: Ranked<Table>,
}

#[derive(Default)]
struct Table {
    closed: bool,
    lent: u64,
    addrs: HashMap<SocketAddr, Addr>,
}

/// The lanes to one address.
#[derive(Default)]
struct Addr {
    /// Calls in flight, those over the loop included.
    calls: usize,
    /// Lanes of an earlier life are closed when they come back.
    life: u64,
    /// The one used last is the last.
    idle: Vec<Socket>,
    /// Those in use, so that they can be shut from outside.
    lent: HashMap<u64, Arc<TcpStream>>,
}

/// Why a call brought no answer.
#[derive(Debug)]
#[non_exhaustive]
pub enum LaneError {
    /// As many calls as have lanes are in flight to this address: go over the loop and keep the pass until that is done.
    /// Nothing was sent.
    Busy(Pass),
    /// The lanes have been closed. If it was in flight, the peer may have acted on it.
    Closed {
        /// Whether the peer may have got the request.
        written: bool,
    },
    /// No connection, or not in time (`TimedOut`). Nothing was sent.
    Connect(io::Error),
    /// No answer before the deadline.
    Late {
        /// Whether the peer may have got the request whole.
        written: bool,
    },
    /// The connection ended before the answer.
    Lost {
        /// What the system said; `UnexpectedEof` if the peer closed.
        error: io::Error,
        /// Whether the peer may have got the request whole.
        written: bool,
    },
    /// The peer's bytes are not this protocol's. The peer may have acted on the request.
    Wire(WireError),
}

impl Lanes {
    /// Lanes that take their frames from `pool`.
    pub fn new(settings: LaneSettings, pool: Arc<FramePool>) -> Self {
        Self { shared: Arc::new(Shared { settings, pool, table: Ranked::new(Rank::Tables, Table::default()) }) }
    }

    /// Sends the request that `write` appends, with the opaque it is given, and waits for its answer until `deadline`;
    /// connecting is included. If `write` appends nothing, there is no call.
    ///
    /// # Errors
    /// [`LaneError`], which says whether the peer may have got the request; `Lost` with `InvalidInput` if there was none.
    pub fn call(
        &self,
        addr: SocketAddr,
        deadline: Instant,
        write: impl FnOnce(i32, &mut Vec<u8>),
    ) -> Result<FrameBuf, LaneError> {
        let (_pass, life, kept) = self.enter(addr)?;
        let settings = &self.shared.settings;
        let (mut lane, mut fresh) = match kept.filter(|lane| lane.is_sound(settings)) {
            Some(lane) => (lane, false),
            None => (self.connect(addr, deadline)?, true),
        };
        let opaque = lane.prepare(write);
        if lane.has_no_request() {
            let ticket = self.lend(addr, &lane)?;
            self.give_back(addr, life, ticket, lane);
            return Err(LaneError::Lost { error: io::ErrorKind::InvalidInput.into(), written: false });
        }
        loop {
            let ticket = self.lend(addr, &lane)?;
            let result = lane.exchange(opaque, deadline, settings, &self.shared.pool);
            // The peer had closed a lane at rest and took no byte: a new one may be tried.
            let again = matches!(result, Err(LaneError::Lost { written: false, .. })) && !fresh;
            let request = again.then(|| lane.take_request());
            self.give_back(addr, life, ticket, lane);
            let Some(request) = request else { return result.map_err(|error| self.explained(error)) };
            lane = self.connect(addr, deadline)?;
            lane.adopt(request, opaque);
            fresh = true;
        }
    }

    /// Closes the lanes to `addr` that are at rest; those in use finish their call. The next call connects anew: for a
    /// server that says it goes away.
    pub fn retire(&self, addr: SocketAddr) {
        let retired = {
            let mut table = self.shared.table.lock();
            let Some(entry) = table.addrs.get_mut(&addr) else { return };
            entry.life += 1;
            std::mem::take(&mut entry.idle)
        };
        drop(retired);
    }

    /// Closes lanes that have been at rest for too long. For a timer; calls do it as well.
    pub fn sweep(&self) {
        let close_after = self.shared.settings.close_after;
        let mut old = Vec::new();
        {
            let mut table = self.shared.table.lock();
            table.addrs.retain(|_, entry| {
                let (stay, go) = entry.idle.drain(..).partition(|lane| lane.rested() <= close_after);
                entry.idle = stay;
                old.push(go);
                entry.calls > 0 || !entry.idle.is_empty()
            });
        }
        let _: Vec<Vec<Socket>> = old;
    }

    /// Closes all lanes; calls in flight end with [`LaneError::Closed`], as do later ones.
    pub fn close(&self) {
        let addrs = {
            let mut table = self.shared.table.lock();
            table.closed = true;
            let lent: Vec<Arc<TcpStream>> =
                table.addrs.values_mut().flat_map(|entry| entry.lent.drain().map(|(_, stream)| stream)).collect();
            let idle: Vec<Vec<Socket>> =
                table.addrs.values_mut().map(|entry| std::mem::take(&mut entry.idle)).collect();
            (lent, idle)
        };
        for stream in addrs.0 {
            if let Err(error) = stream.shutdown(Shutdown::Both) {
                debug!(target: "windlass::net", "shutting a lane failed: error={error}");
            }
        }
    }

    /// Lanes at rest and in use, for tests and events.
    pub fn len(&self, addr: SocketAddr) -> usize {
        self.shared.table.lock().addrs.get(&addr).map_or(0, |entry| entry.idle.len() + entry.lent.len())
    }

    /// A connection that ended because the lanes were closed did not end by itself.
    fn explained(&self, error: LaneError) -> LaneError {
        match error {
            LaneError::Lost { written, .. } if self.shared.table.lock().closed => LaneError::Closed { written },
            other => other,
        }
    }

    /// Counts a call, and takes the lane to it that was used last.
    fn enter(&self, addr: SocketAddr) -> Result<(Pass, u64, Option<Socket>), LaneError> {
        let mut table = self.shared.table.lock();
        if table.closed {
            return Err(LaneError::Closed { written: false });
        }
        let entry = table.addrs.entry(addr).or_default();
        entry.calls += 1;
        let pass = Pass { shared: self.shared.clone(), addr };
        if entry.calls > self.shared.settings.calls {
            drop(table);
            return Err(LaneError::Busy(pass));
        }
        let (life, kept) = (entry.life, entry.idle.pop());
        drop(table);
        Ok((pass, life, kept))
    }

    fn connect(&self, addr: SocketAddr, deadline: Instant) -> Result<Socket, LaneError> {
        let left = deadline.saturating_duration_since(Instant::now()).min(self.shared.settings.connect_timeout);
        if left.is_zero() {
            return Err(LaneError::Connect(io::ErrorKind::TimedOut.into()));
        }
        let stream = TcpStream::connect_timeout(&addr, left).map_err(LaneError::Connect)?;
        // A free port of this machine can be connected to itself when nobody listens there.
        if stream.local_addr().is_ok_and(|local| local == addr) {
            return Err(LaneError::Connect(io::ErrorKind::ConnectionRefused.into()));
        }
        stream.set_nodelay(true).map_err(LaneError::Connect)?;
        Ok(Socket::new(stream))
    }

    fn lend(&self, addr: SocketAddr, lane: &Socket) -> Result<u64, LaneError> {
        let mut table = self.shared.table.lock();
        if table.closed {
            return Err(LaneError::Closed { written: false });
        }
        table.lent += 1;
        let ticket = table.lent;
        table.addrs.entry(addr).or_default().lent.insert(ticket, lane.stream());
        Ok(ticket)
    }

    fn give_back(&self, addr: SocketAddr, life: u64, ticket: u64, lane: Socket) {
        // A socket that is not kept is closed when `lane` goes out of scope, after the lock.
        let mut table = self.shared.table.lock();
        let closed = table.closed;
        let Some(entry) = table.addrs.get_mut(&addr) else { return };
        entry.lent.remove(&ticket);
        if lane.is_usable() && !closed && entry.life == life {
            entry.idle.push(lane);
        }
    }
}

/// Counts a call to an address as in flight until it is dropped.
pub struct Pass {
    shared: Arc<Shared>,
    addr: SocketAddr,
}

impl std::fmt::Debug for Pass {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Pass({})", self.addr)
    }
}

impl Drop for Pass {
    fn drop(&mut self) {
        let mut table = self.shared.table.lock();
        if let Some(entry) = table.addrs.get_mut(&self.addr) {
            entry.calls = entry.calls.saturating_sub(1);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{Read, Write};
    use std::net::TcpListener;
    use std::sync::mpsc;

    /// Content of a frame of these tests: an opaque, then text.
    fn opaque_of(content: &[u8]) -> Option<i32> {
        content.first_chunk::<4>().map(|word| i32::from_be_bytes(*word))
    }

    fn framed(opaque: i32, text: &[u8]) -> Vec<u8> {
        [&(text.len() as u32 + 4).to_be_bytes(), opaque.to_be_bytes().as_slice(), text].concat()
    }

    fn request(text: &'static [u8]) -> impl Fn(i32, &mut Vec<u8>) {
        move |opaque, bytes| bytes.extend_from_slice(&framed(opaque, text))
    }

    fn lanes(change: impl FnOnce(&mut LaneSettings)) -> Lanes {
        let mut settings = LaneSettings::new(opaque_of);
        change(&mut settings);
        Lanes::new(settings, FramePool::new(None))
    }

    fn within(ms: u64) -> Instant {
        Instant::now() + Duration::from_millis(ms)
    }

    fn read_frame(stream: &mut TcpStream) -> io::Result<(i32, Vec<u8>)> {
        let mut word = [0; 4];
        stream.read_exact(&mut word)?;
        let mut content = vec![0; u32::from_be_bytes(word) as usize];
        stream.read_exact(&mut content)?;
        Ok((opaque_of(&content).unwrap(), content[4..].to_vec()))
    }

    /// Serves every connection on a thread of its own with `serve`, until the test ends.
    fn peer(serve: impl Fn(usize, TcpStream) + Send + Sync + Clone + 'static) -> SocketAddr {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let addr = listener.local_addr().unwrap();
        std::thread::spawn(move || {
            for (number, stream) in listener.incoming().enumerate() {
                let serve = serve.clone();
                std::thread::spawn(move || serve(number, stream.unwrap()));
            }
        });
        addr
    }

    fn echo(mut stream: TcpStream) {
        while let Ok((opaque, text)) = read_frame(&mut stream) {
            if stream.write_all(&framed(opaque, &text)).is_err() {
                return;
            }
        }
    }

    #[test]
    fn calls_in_a_row_share_one_connection_and_each_has_its_answer() {
        let (tell, told) = mpsc::channel();
        let addr = peer(move |number, stream| {
            tell.send(number).unwrap();
            echo(stream);
        });
        let lanes = lanes(|_| {});
        for size in [0, 10, 5000, 100_000, 3_000_000, 20] {
            let text: Vec<u8> = (0..size).map(|at| (at % 251) as u8).collect();
            let answer =
                lanes.call(addr, within(10_000), |opaque, bytes| bytes.extend_from_slice(&framed(opaque, &text)));
            assert!(answer.unwrap()[4..] == text, "{size}");
        }
        assert_eq!((told.iter().next(), told.try_recv().is_err(), lanes.len(addr)), (Some(0), true, 1));
    }

    /// B-027, C-026: a late answer is dropped by its opaque, the lane lives on.
    #[test]
    fn a_late_answer_is_dropped_and_the_lane_is_used_again() {
        let (go, wait) = crossbeam_channel::bounded::<()>(0);
        let addr = peer(move |number, mut stream| {
            assert_eq!(number, 0, "one connection serves all");
            let (late, text) = read_frame(&mut stream).unwrap();
            assert!(wait.recv().is_err());
            stream.write_all(&framed(late, &text)).unwrap();
            echo(stream);
        });
        let lanes = lanes(|_| {});
        let late = lanes.call(addr, within(50), request(b"slow"));
        assert!(matches!(late, Err(LaneError::Late { written: true })), "{late:?}");
        drop(go);
        for _ in 0..3 {
            assert_eq!(lanes.call(addr, within(10_000), request(b"next")).unwrap()[4..], *b"next");
        }
    }

    /// C-019, D24: a time-out in mid-frame closes the lane only.
    #[test]
    fn a_time_out_in_mid_frame_closes_the_lane() {
        let addr = peer(|number, mut stream| {
            if number > 0 {
                return echo(stream);
            }
            let (opaque, _) = read_frame(&mut stream).unwrap();
            stream.write_all(&framed(opaque, b"half")[..9]).unwrap();
            // Until the caller has closed it.
            assert!(!matches!(stream.read(&mut [0; 1]), Ok(1..)));
        });
        let lanes = lanes(|_| {});
        let late = lanes.call(addr, within(50), request(b"x"));
        assert!(matches!(late, Err(LaneError::Late { written: true })), "{late:?}");
        assert_eq!(lanes.len(addr), 0);
        assert_eq!(lanes.call(addr, within(10_000), request(b"y")).unwrap()[4..], *b"y");
    }

    /// C-019: a peer that stops reading: the call fails in time, and what was half written is never continued.
    #[test]
    fn a_peer_that_stops_reading_costs_the_lane() {
        let (go, wait) = crossbeam_channel::bounded::<()>(0);
        let addr = peer(move |number, mut stream| {
            if number > 0 {
                return echo(stream);
            }
            stream.read_exact(&mut [0; 1024]).unwrap();
            let _ = wait.recv();
        });
        let lanes = lanes(|_| {});
        let big = vec![7; 12 << 20];
        let begun = Instant::now();
        let late = lanes.call(addr, within(200), |opaque, bytes| bytes.extend_from_slice(&framed(opaque, &big)));
        assert!(matches!(late, Err(LaneError::Late { written: false })), "{late:?}");
        assert!(begun.elapsed() < Duration::from_secs(5));
        assert_eq!(lanes.len(addr), 0);
        assert_eq!(lanes.call(addr, within(10_000), request(b"y")).unwrap()[4..], *b"y");
        drop(go);
    }

    #[test]
    fn above_eight_calls_everyone_is_sent_to_the_loop_until_the_number_falls() {
        let (go, wait) = crossbeam_channel::bounded::<()>(0);
        let (tell, told) = mpsc::channel();
        let addr = peer(move |_, mut stream| {
            while let Ok((opaque, text)) = read_frame(&mut stream) {
                tell.send(()).unwrap();
                let _ = wait.recv();
                stream.write_all(&framed(opaque, &text)).unwrap();
            }
        });
        let lanes = lanes(|_| {});
        std::thread::scope(|scope| {
            for _ in 0..8 {
                scope.spawn(|| lanes.call(addr, within(10_000), request(b"x")).unwrap());
            }
            (0..8).for_each(|_| told.recv().unwrap());
            let passes: Vec<Pass> = (0..2)
                .map(|_| match lanes.call(addr, within(10_000), request(b"x")) {
                    Err(LaneError::Busy(pass)) => pass,
                    other => panic!("{other:?}"),
                })
                .collect();
            drop(go);
            while lanes.shared.table.lock().addrs[&addr].calls > passes.len() {
                std::thread::yield_now();
            }
        });
        assert_eq!((lanes.len(addr), lanes.shared.table.lock().addrs[&addr].calls), (8, 0));
        lanes.call(addr, within(10_000), request(b"x")).unwrap();
    }

    /// B-028 for lanes: the end of the connection ends the call at once; what is known is said.
    #[test]
    fn the_end_of_a_connection_ends_its_call_at_once() {
        let addr = peer(|_, mut stream| {
            read_frame(&mut stream).unwrap();
        });
        let lanes = lanes(|_| {});
        let begun = Instant::now();
        let lost = lanes.call(addr, within(30_000), request(b"x"));
        assert!(matches!(lost, Err(LaneError::Lost { written: true, .. })), "{lost:?}");
        assert!(begun.elapsed() < Duration::from_secs(10));
        let nobody = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
        assert!(matches!(lanes.call(nobody, within(10_000), request(b"x")), Err(LaneError::Connect(_))));
    }

    #[test]
    fn a_lane_that_the_peer_closed_at_rest_is_replaced_unseen() {
        let addr = peer(|number, mut stream| {
            if number == 0 {
                let (opaque, text) = read_frame(&mut stream).unwrap();
                stream.write_all(&framed(opaque, &text)).unwrap();
            } else {
                echo(stream);
            }
        });
        let lanes = lanes(|settings| settings.probe_after = Duration::ZERO);
        lanes.call(addr, within(10_000), request(b"x")).unwrap();
        // Until the end of the first connection has reached us.
        let stream = lanes.shared.table.lock().addrs[&addr].idle[0].stream();
        stream.set_read_timeout(None).unwrap();
        assert_eq!(stream.peek(&mut [0; 1]).unwrap(), 0);
        assert_eq!(lanes.call(addr, within(10_000), request(b"y")).unwrap()[4..], *b"y");
    }

    #[test]
    fn retired_and_old_lanes_are_closed_and_the_next_call_connects_anew() {
        let (tell, told) = mpsc::channel();
        let addr = peer(move |number, stream| {
            tell.send(number).unwrap();
            echo(stream);
        });
        let lanes = lanes(|settings| settings.close_after = Duration::ZERO);
        lanes.call(addr, within(10_000), request(b"x")).unwrap();
        lanes.sweep();
        assert_eq!(lanes.len(addr), 0);
        lanes.call(addr, within(10_000), request(b"x")).unwrap();
        lanes.retire(addr);
        assert_eq!(lanes.len(addr), 0);
        lanes.call(addr, within(10_000), request(b"x")).unwrap();
        assert_eq!(told.iter().take(3).collect::<Vec<_>>(), [0, 1, 2]);
    }

    #[test]
    fn closing_ends_calls_in_flight() {
        let (tell, told) = mpsc::channel();
        let addr = peer(move |_, mut stream| {
            read_frame(&mut stream).unwrap();
            tell.send(()).unwrap();
            assert!(!matches!(stream.read(&mut [0; 1]), Ok(1..)));
        });
        let lanes = lanes(|_| {});
        std::thread::scope(|scope| {
            let call = scope.spawn(|| lanes.call(addr, within(30_000), request(b"x")));
            told.recv().unwrap();
            lanes.close();
            let ended = call.join().unwrap();
            assert!(matches!(ended, Err(LaneError::Closed { written: true })), "{ended:?}");
        });
        assert!(matches!(lanes.call(addr, within(1), request(b"x")), Err(LaneError::Closed { written: false })));
    }

    #[test]
    fn a_request_that_could_not_be_written_is_no_call() {
        let addr = peer(|_, stream| echo(stream));
        let lanes = lanes(|_| {});
        for _ in 0..5 {
            let none = lanes.call(addr, within(30_000), |_, _| {});
            assert!(matches!(none, Err(LaneError::Lost { written: false, .. })), "{none:?}");
        }
        assert_eq!(lanes.len(addr), 1);
        lanes.call(addr, within(10_000), request(b"x")).unwrap();
    }

    #[test]
    fn bytes_of_another_protocol_end_the_call() {
        let addr = peer(|_, mut stream| {
            read_frame(&mut stream).unwrap();
            stream.write_all(b"HTTP/1.1 400 Bad Request").unwrap();
        });
        let lanes = lanes(|_| {});
        assert!(matches!(lanes.call(addr, within(10_000), request(b"x")), Err(LaneError::Wire(_))));
        assert_eq!(lanes.len(addr), 0);
    }
}
