//! Loops on real sockets of this machine: what one file of the room cannot show alone.
//!
//! The role of these tests does what it is told by closures and reports everything it hears.

mod calls;
mod limits;
mod sockets;

use std::collections::HashMap;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::time::Duration;

use crossbeam_channel::{Receiver, Sender, unbounded as channel};

use super::*;
use crate::work::threads::{Thread, spawn};
use crate::work::{Clock, Nanos};

/// Longer than anything here takes; a test that waits so long has failed.
const LONG: Duration = Duration::from_secs(20);

/// What the role has heard.
#[derive(Debug)]
enum Event {
    Change(Conn, Change),
    Frame(Conn, Vec<u8>),
    Due(u64),
    Notice(Notice),
}

type Command = Box<dyn FnOnce(&mut Script, &mut Out<u64>) + Send>;

/// Reports what it hears; answers each frame with itself if it is told to.
struct Script {
    heard: Sender<Event>,
    echo: bool,
    /// Frames kept alive, for who wants them to be.
    kept: Vec<FrameBuf>,
    keep: bool,
    /// An echo is so many bytes longer than its frame.
    swell: usize,
}

impl Role for Script {
    type Command = Command;
    type Timer = u64;

    fn connection(&mut self, conn: Conn, change: Change, _: Nanos, _: &mut Out<u64>) {
        let _ = self.heard.send(Event::Change(conn, change));
    }

    fn frame(&mut self, conn: Conn, frame: FrameBuf, _: Nanos, out: &mut Out<u64>) {
        if self.echo {
            let swollen = [&*frame, &vec![0; self.swell]].concat();
            out.send(conn, |bytes| bytes.extend_from_slice(&framed(&swollen)));
        }
        if !self.echo || self.swell > 0 {
            let _ = self.heard.send(Event::Frame(conn, frame.to_vec()));
        }
        if self.keep {
            self.kept.push(frame);
        }
    }

    fn command(&mut self, command: Command, _: Nanos, out: &mut Out<u64>) {
        command(self, out);
    }

    fn due(&mut self, timer: u64, _: Nanos, _: &mut Out<u64>) {
        let _ = self.heard.send(Event::Due(timer));
    }

    fn settle(&mut self, _: Nanos, _: &mut Out<u64>) {}

    fn notice(&mut self, notice: Notice, _: Nanos, _: &mut Out<u64>) {
        let _ = self.heard.send(Event::Notice(notice));
    }
}

/// A loop on a thread of its own with a script on it.
struct Loop {
    handle: Handle<Command>,
    heard: Receiver<Event>,
    /// Where it listens.
    addr: SocketAddr,
    thread: Thread,
}

impl Loop {
    fn start(clock: Clock, echo: bool, change: impl FnOnce(&mut Settings)) -> Self {
        let (mut reactor, handle, heard, addr) = reactor(clock, echo, change);
        let thread = spawn("wl-test-loop", move || drop(reactor.run())).unwrap();
        Self { handle, heard, addr, thread }
    }

    /// Runs `command` on the loop and gives back what it returns.
    fn on_loop<V: Send + 'static>(&self, command: impl FnOnce(&mut Script, &mut Out<u64>) -> V + Send + 'static) -> V {
        let (give, take) = channel();
        let command: Command = Box::new(move |script, out| give.send(command(script, out)).unwrap());
        assert!(self.handle.post(command).is_ok());
        take.recv_timeout(LONG).unwrap()
    }

    fn connect(&self, addr: SocketAddr) -> Conn {
        self.on_loop(move |_, out| out.connect(addr))
    }

    fn send(&self, conn: Conn, content: &[u8]) {
        let bytes = framed(content);
        self.on_loop(move |_, out| out.send(conn, |to| to.extend_from_slice(&bytes)));
    }

    /// The next event that `pick` wants; others are passed over.
    fn until<V>(&self, mut pick: impl FnMut(Event) -> Option<V>) -> V {
        loop {
            let event = self.heard.recv_timeout(LONG).expect("nothing heard for a long time");
            if let Some(value) = pick(event) {
                return value;
            }
        }
    }

    fn until_frame(&self) -> (Conn, Vec<u8>) {
        self.until(|event| if let Event::Frame(conn, frame) = event { Some((conn, frame)) } else { None })
    }

    fn until_closed(&self, which: Conn) -> Why {
        self.until(|event| match event {
            Event::Change(conn, Change::Closed { why }) if conn == which => Some(why),
            _ => None,
        })
    }

    fn until_accepted(&self) -> Conn {
        self.until(|event| match event {
            Event::Change(conn, Change::Accepted { .. }) => Some(conn),
            _ => None,
        })
    }

    fn until_connected(&self, which: Conn) {
        self.until(|event| match event {
            Event::Change(conn, Change::Connected { .. }) if conn == which => Some(()),
            Event::Change(conn, Change::Failed { error }) if conn == which => panic!("{error}"),
            _ => None,
        });
    }
}

impl Drop for Loop {
    fn drop(&mut self) {
        self.handle.stop();
        assert!(self.thread.join_within(LONG) || std::thread::panicking(), "the loop does not end");
    }
}

/// A loop that nobody runs yet.
fn reactor(
    clock: Clock,
    echo: bool,
    change: impl FnOnce(&mut Settings),
) -> (Reactor<Script>, Handle<Command>, Receiver<Event>, SocketAddr) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let addr = listener.local_addr().unwrap();
    let mut settings = Settings { listeners: vec![listener], ..Settings::default() };
    change(&mut settings);
    let (tell, heard) = channel();
    let mut given = None;
    let reactor = Reactor::new(settings, clock, |handle| {
        given = Some(handle.clone());
        Script { heard: tell, echo, kept: Vec::new(), keep: false, swell: 0 }
    })
    .unwrap();
    (reactor, given.unwrap(), heard, addr)
}

fn framed(content: &[u8]) -> Vec<u8> {
    [(content.len() as u32).to_be_bytes().as_slice(), content].concat()
}

fn read_frame(stream: &mut TcpStream) -> std::io::Result<Vec<u8>> {
    let mut word = [0; 4];
    stream.read_exact(&mut word)?;
    let mut content = vec![0; u32::from_be_bytes(word) as usize];
    stream.read_exact(&mut content)?;
    Ok(content)
}

/// A blocking client of `addr` that gives up after a long time.
fn client(addr: SocketAddr) -> TcpStream {
    let stream = TcpStream::connect(addr).unwrap();
    stream.set_read_timeout(Some(LONG)).unwrap();
    stream.set_write_timeout(Some(LONG)).unwrap();
    stream.set_nodelay(true).unwrap();
    stream
}

fn ping(stream: &mut TcpStream, content: &[u8]) {
    stream.write_all(&framed(content)).unwrap();
    assert_eq!(read_frame(stream).unwrap(), content);
}

/// Small numbers that look random, from a seed.
struct XorShift(u64);

impl XorShift {
    fn below(&mut self, most: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 % most as u64) as usize
    }
}
