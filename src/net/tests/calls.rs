//! Calls over a loop: a caller's role with correlation, deadlines and answers, as a client core has them.

use super::*;
use crate::net::answer::{Giver, NoAnswer, Taker, pair};
use crate::net::correlation::Correlation;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Instant;

/// Why a call had no answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Failure {
    Late,
    Ended,
}

type Outcome = Result<Vec<u8>, Failure>;

/// Where a call's outcome goes, exactly once.
enum Done {
    Blocking(Giver<Outcome>),
    Callback(Box<dyn FnOnce(Outcome) + Send>),
}

impl Done {
    fn with(self, outcome: Outcome) {
        match self {
            Self::Blocking(giver) => drop(giver.give(outcome)),
            Self::Callback(callback) => callback(outcome),
        }
    }
}

struct Call {
    content: Vec<u8>,
    limit: Duration,
    done: Done,
}

enum Order {
    Connect(Giver<Conn>, SocketAddr),
    Call(Conn, Call),
    Close(Conn),
    Pending(Giver<(usize, u64)>),
}

/// Sends calls and gives out their answers; a frame's content is an opaque and a text.
#[derive(Default)]
struct Caller {
    waiting: Correlation<Done>,
    ended: std::collections::HashSet<Conn>,
}

impl Role for Caller {
    type Command = Order;
    type Timer = (Conn, i32);

    fn connection(&mut self, conn: Conn, change: Change, _: Nanos, _: &mut Out<Self::Timer>) {
        match change {
            Change::Connected { .. } | Change::Accepted { .. } => {}
            Change::Failed { .. } | Change::Closed { .. } => {
                self.ended.insert(conn);
                self.waiting.drain(conn).into_iter().for_each(|(_, done)| done.with(Err(Failure::Ended)));
            }
        }
    }

    fn frame(&mut self, conn: Conn, frame: FrameBuf, _: Nanos, _: &mut Out<Self::Timer>) {
        let opaque = i32::from_be_bytes(*frame.first_chunk().unwrap());
        if let Some(done) = self.waiting.take(conn, opaque) {
            done.with(Ok(frame[4..].to_vec()));
        }
    }

    fn command(&mut self, order: Order, now: Nanos, out: &mut Out<Self::Timer>) {
        match order {
            Order::Connect(giver, addr) => drop(giver.give(out.connect(addr))),
            Order::Call(conn, call) if self.ended.contains(&conn) => call.done.with(Err(Failure::Ended)),
            Order::Call(conn, call) => {
                let Ok(opaque) = self.waiting.insert(conn, call.done) else { return };
                let content = [&opaque.to_be_bytes(), call.content.as_slice()].concat();
                out.send(conn, |bytes| bytes.extend_from_slice(&framed(&content)));
                out.arm(now + call.limit, (conn, opaque));
            }
            Order::Close(conn) => out.close(conn),
            Order::Pending(giver) => drop(giver.give((self.waiting.len(), self.waiting.unknown()))),
        }
    }

    fn due(&mut self, (conn, opaque): (Conn, i32), _: Nanos, _: &mut Out<Self::Timer>) {
        if self.waiting.peek(conn, opaque).is_some() {
            self.waiting.take(conn, opaque).into_iter().for_each(|done| done.with(Err(Failure::Late)));
        }
    }

    fn settle(&mut self, _: Nanos, _: &mut Out<Self::Timer>) {}
}

struct Client {
    handle: Handle<Order>,
    thread: Thread,
}

impl Client {
    fn start() -> Self {
        let mut given = None;
        let reactor = Reactor::new(Settings::default(), Clock::system(), |handle| {
            given = Some(handle.clone());
            Caller::default()
        });
        let mut reactor = reactor.unwrap();
        let thread = spawn("wl-test-caller", move || drop(reactor.run())).unwrap();
        Self { handle: given.unwrap(), thread }
    }

    fn post(&self, order: Order) {
        assert!(self.handle.post_within(order, LONG).is_ok());
    }

    fn ask<V>(&self, order: impl FnOnce(Giver<V>) -> Order) -> V {
        let (giver, taker) = pair();
        self.post(order(giver));
        taker.wait_until(Instant::now() + LONG).ok().unwrap()
    }

    fn connect(&self, addr: SocketAddr) -> Conn {
        self.ask(|giver| Order::Connect(giver, addr))
    }

    fn begin(&self, conn: Conn, content: &[u8], limit: Duration) -> Taker<Outcome> {
        let (giver, taker) = pair();
        let done = Done::Blocking(giver);
        self.post(Order::Call(conn, Call { content: content.to_vec(), limit, done }));
        taker
    }

    fn call(&self, conn: Conn, content: &[u8], limit: Duration) -> Result<Outcome, NoAnswer> {
        self.begin(conn, content, limit).wait_until(Instant::now() + LONG)
    }

    fn pending(&self) -> (usize, u64) {
        self.ask(Order::Pending)
    }
}

impl Drop for Client {
    fn drop(&mut self) {
        self.handle.stop();
        assert!(self.thread.join_within(LONG) || std::thread::panicking());
    }
}

/// C-022: every send gets an opaque of its own; nothing stays in the table.
#[test]
fn two_threads_call_a_thousand_times_each() {
    let server = Loop::start(Clock::system(), true, |_| {});
    let client = Client::start();
    let conn = client.connect(server.addr);
    std::thread::scope(|scope| {
        for thread in 0..2u8 {
            let client = &client;
            scope.spawn(move || {
                for round in 0..1000u16 {
                    let content = [[thread].as_slice(), &round.to_be_bytes()].concat();
                    assert_eq!(client.call(conn, &content, LONG), Ok(Ok(content)));
                }
            });
        }
    });
    assert_eq!(client.pending(), (0, 0));
}

/// C-024, B-029: whatever the peer does, every call ends exactly once and the table empties.
#[test]
fn every_outcome_empties_the_table_and_calls_back_once() {
    let echo = Loop::start(Clock::system(), true, |_| {});
    let silent = TcpListener::bind("127.0.0.1:0").unwrap();
    let closing = Loop::start(Clock::system(), false, |_| {});
    let nobody = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let client = Client::start();
    let addrs = [
        (echo.addr, None),
        (silent.local_addr().unwrap(), Some(Failure::Late)),
        (closing.addr, Some(Failure::Ended)),
        (nobody, Some(Failure::Ended)),
    ];
    for (addr, want) in addrs {
        const CALLS: usize = 10_000;
        let limit = if want == Some(Failure::Late) { Duration::from_millis(200) } else { LONG };
        let calls: Arc<Vec<AtomicUsize>> = Arc::new((0..CALLS).map(|_| AtomicUsize::new(0)).collect());
        let (tell, told) = channel();
        let conn = client.connect(addr);
        for number in 0..CALLS {
            let (calls, tell) = (calls.clone(), tell.clone());
            let callback = Box::new(move |outcome: Outcome| {
                calls[number].fetch_add(1, Ordering::SeqCst);
                tell.send(outcome.err()).unwrap();
            });
            client.post(Order::Call(conn, Call { content: vec![1; 20], limit, done: Done::Callback(callback) }));
        }
        if addr == closing.addr {
            // It closes once it has read something.
            let (theirs, _) = closing.until_frame();
            closing.on_loop(move |_, out| out.close(theirs));
        }
        for _ in 0..CALLS {
            assert_eq!(told.recv_timeout(LONG).unwrap(), want, "{addr}");
        }
        assert_eq!(client.pending().0, 0);
        assert!(calls.iter().all(|count| count.load(Ordering::SeqCst) == 1));
    }
}

/// C-026, B-027: a call that is never answered fails alone.
#[test]
fn one_slow_call_fails_alone() {
    let server = Loop::start(Clock::system(), false, |_| {});
    let client = Client::start();
    let conn = client.connect(server.addr);
    let slow = client.begin(conn, b"slow", Duration::from_millis(100));
    let (theirs, unanswered) = server.until_frame();
    for _ in 0..9 {
        let call = client.begin(conn, b"quick", LONG);
        let (_, frame) = server.until_frame();
        server.send(theirs, &frame);
        assert_eq!(call.wait_until(Instant::now() + LONG), Ok(Ok(b"quick".to_vec())));
    }
    assert_eq!(slow.wait_until(Instant::now() + LONG), Ok(Err(Failure::Late)));
    // B-030: the late answer is dropped and counted.
    server.send(theirs, &unanswered);
    let call = client.begin(conn, b"after", LONG);
    let (conn_of_last, frame) = server.until_frame();
    assert_eq!(conn_of_last, theirs, "still the same connection");
    server.send(theirs, &frame);
    assert_eq!(call.wait_until(Instant::now() + LONG), Ok(Ok(b"after".to_vec())));
    assert_eq!(client.pending(), (0, 1));
}

/// C-029, B-028: the end of a connection fails its calls at once, not after their limit.
#[test]
fn the_end_of_a_connection_fails_all_its_calls_at_once() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let client = Client::start();
    let conn = client.connect(listener.local_addr().unwrap());
    let (mut peer, _) = listener.accept().unwrap();
    let calls: Vec<Taker<Outcome>> = (0..50).map(|_| client.begin(conn, b"x", LONG)).collect();
    (0..50).for_each(|_| drop(read_frame(&mut peer).unwrap()));
    let begun = Instant::now();
    drop(peer);
    for call in calls {
        assert_eq!(call.wait_until(Instant::now() + LONG), Ok(Err(Failure::Ended)));
    }
    println!("50 calls failed after {:?}", begun.elapsed());
    assert!(begun.elapsed() < Duration::from_secs(2));
    assert_eq!(client.pending().0, 0);
}

/// C-044: what is held by the peer does not stand in the way of what is not.
#[test]
fn held_calls_do_not_delay_others() {
    let server = Loop::start(Clock::system(), false, |_| {});
    let client = Client::start();
    let conn = client.connect(server.addr);
    let held: Vec<Taker<Outcome>> = (0..200).map(|_| client.begin(conn, b"hold", LONG)).collect();
    let theirs = (0..200).map(|_| server.until_frame().0).last().unwrap();
    // From now on everything is answered at once.
    server.on_loop(|script, _| script.echo = true);
    let mut longest = Duration::ZERO;
    for _ in 0..1000 {
        let begun = Instant::now();
        assert_eq!(client.call(conn, b"send", LONG), Ok(Ok(b"send".to_vec())));
        longest = longest.max(begun.elapsed());
    }
    println!("longest {longest:?}");
    assert!(longest < Duration::from_secs(2));
    assert_eq!(client.pending().0, 200);
    server.on_loop(move |_, out| out.close(theirs));
    held.into_iter().for_each(|call| assert_eq!(call.wait_until(Instant::now() + LONG), Ok(Err(Failure::Ended))));
}

/// Calls that wait when the loop ends are told so.
#[test]
fn a_loop_that_ends_loses_no_caller() {
    let silent = TcpListener::bind("127.0.0.1:0").unwrap();
    let client = Client::start();
    let conn = client.connect(silent.local_addr().unwrap());
    let calls: Vec<Taker<Outcome>> = (0..100).map(|_| client.begin(conn, b"x", LONG)).collect();
    client.post(Order::Close(conn));
    client.handle.stop();
    for call in calls {
        assert!(matches!(call.wait_until(Instant::now() + LONG), Ok(Err(Failure::Ended)) | Err(NoAnswer::Lost)));
    }
}
