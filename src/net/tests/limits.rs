//! What one peer may take from the others: memory, turns, descriptors.

use super::*;
use crate::work::budget::Budget;

/// The newest unfinished frame goes first when unfinished frames take more than they may.
#[test]
fn the_newest_unfinished_frame_is_given_up_first() {
    let server = Loop::start(Clock::system(), false, |settings| settings.inbound_limit = (5 << 20) + 1000);
    let mut streams = Vec::new();
    let mut conns = Vec::new();
    for _ in 0..3 {
        let mut stream = client(server.addr);
        conns.push(server.until_accepted());
        stream.write_all(&(4u32 << 20).to_be_bytes()).unwrap();
        stream.write_all(&vec![1; 700 << 10]).unwrap();
        streams.push(stream);
    }
    // All three hold 1 MiB. The first doubles twice to hold what follows, and the third has to make room.
    streams[0].write_all(&vec![1; 2 << 20]).unwrap();
    let (last, why) = server.until(|event| match event {
        Event::Change(conn, Change::Closed { why }) => Some((conn, why)),
        _ => None,
    });
    assert!(matches!(why, Why::InboundFull), "{why:?}");
    assert_eq!(last, conns[2]);
    // The first one's frame still arrives whole.
    let rest = (4 << 20) - (700 << 10) - (2 << 20);
    streams[0].write_all(&vec![1; rest]).unwrap();
    let (conn, frame) = server.until_frame();
    assert_eq!((conn, frame.len()), (conns[0], 4 << 20));
}

/// Connections stop reading while the budget is used up twice over, and go on when it has room.
#[test]
fn reading_stops_at_twice_the_budget_and_goes_on() {
    let budget = Budget::new(1 << 20);
    let given = budget.clone();
    let server = Loop::start(Clock::system(), false, move |settings| settings.budget = Some(given));
    server.on_loop(|script, _| script.keep = true);
    let mut stream = client(server.addr);
    let writer = std::thread::spawn(move || {
        (0..400).for_each(|_| stream.write_all(&framed(&[1; 100_000])).unwrap());
        stream
    });
    server.until(|event| matches!(event, Event::Notice(Notice::ReadingPaused)).then_some(()));
    server.on_loop(|_, _| {});
    let used = budget.used();
    assert!((2 << 20..3 << 20).contains(&used), "{used}");
    server.on_loop(|script, _| script.kept.clear());
    server.until(|event| matches!(event, Event::Notice(Notice::ReadingResumed)).then_some(()));
    for _ in 0..400 {
        server.on_loop(|script, _| script.kept.clear());
        if writer.is_finished() {
            break;
        }
        server.heard.try_iter().for_each(drop);
        std::thread::yield_now();
    }
    // Whoever wrote it all has been read to the last frame in time.
    while !writer.is_finished() {
        server.on_loop(|script, _| script.kept.clear());
        std::thread::yield_now();
    }
    server.on_loop(|script, _| script.keep = false);
    let stream = writer.join().unwrap();
    server.on_loop(|script, _| script.kept.clear());
    drop(stream);
    server.until(|event| matches!(event, Event::Change(_, Change::Closed { .. })).then_some(()));
    server.on_loop(|script, _| script.kept.clear());
    assert_eq!(budget.used(), 0);
}

/// A connection has its share of a turn; the others are not kept waiting.
#[test]
fn a_flood_on_one_connection_leaves_room_for_the_others_in_every_turn() {
    let (mut reactor, _handle, heard, addr) = reactor(Clock::system(), false, |_| {});
    let (mut flood, mut other) = (client(addr), client(addr));
    let frame = framed(&[1; 1000]);
    let written = std::thread::spawn(move || {
        (0..4000).for_each(|_| flood.write_all(&frame).unwrap());
        flood
    });
    let mut total = 0;
    let mut most = 0;
    let mut pings = 0;
    while total < 4000 {
        if pings == 0 && total > 500 {
            other.write_all(&framed(b"ping")).unwrap();
            pings = 1;
        }
        assert_eq!(reactor.turn(), Turn::Again);
        let mut bytes = 0;
        for event in heard.try_iter() {
            if let Event::Frame(_, frame) = event {
                if frame.len() == 1000 {
                    bytes += 1004;
                    total += 1;
                } else {
                    pings = 2 + total;
                }
            }
        }
        most = most.max(bytes);
    }
    assert!(most <= (256 << 10) + 1004 + (16 << 10), "{most} bytes of one connection in one turn");
    assert!(pings > 1 && pings < 2 + 4000, "the other was heard in between");
    drop(written.join().unwrap());
}

/// Who asks and does not read is read no further once its answers pile up.
#[test]
fn who_does_not_read_its_answers_is_read_no_further() {
    let server = Loop::start(Clock::system(), true, |settings| settings.output_pause = 256 << 10);
    let mut stream = client(server.addr);
    stream.set_write_timeout(Some(Duration::from_millis(300))).unwrap();
    let frame = framed(&[7; 60_000]);
    // Socket buffers of both directions and the pause fill up; then writing stalls.
    let mut written = 0usize;
    let stalled = loop {
        match stream.write(&frame[written % frame.len()..]) {
            Ok(n) => written += n,
            Err(error) => break error,
        }
        assert!(written < 256 << 20, "nothing stops it");
    };
    assert!(matches!(stalled.kind(), std::io::ErrorKind::WouldBlock | std::io::ErrorKind::TimedOut));
    // Once it reads, everything comes.
    let whole = written / frame.len();
    for _ in 0..whole {
        assert_eq!(read_frame(&mut stream).unwrap().len(), 60_000);
    }
}

#[test]
fn a_connection_with_too_much_to_write_is_closed() {
    let client_loop = Loop::start(Clock::system(), false, |settings| settings.output_limit = 8 << 20);
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let conn = client_loop.connect(listener.local_addr().unwrap());
    let (_peer, _) = listener.accept().unwrap();
    client_loop.until_connected(conn);
    let chunk = framed(&vec![0; 3 << 20]);
    client_loop.on_loop(move |_, out| (0..8).for_each(|_| out.send(conn, |bytes| bytes.extend_from_slice(&chunk))));
    assert!(matches!(client_loop.until_closed(conn), Why::OutputFull));
}

/// Frames come from buffers that are used again.
#[test]
fn buffers_are_used_again() {
    let (mut reactor, _handle, heard, addr) = reactor(Clock::system(), false, |_| {});
    let mut stream = client(addr);
    for round in 0..50 {
        stream.write_all(&framed(&[1; 40_000])).unwrap();
        let mut got = 0;
        while got == 0 {
            assert_eq!(reactor.turn(), Turn::Again);
            got += heard.try_iter().filter(|event| matches!(event, Event::Frame(..))).count();
        }
        assert!(reactor.pool().made() <= 2, "round {round}: {}", reactor.pool().made());
    }
}

#[test]
fn a_role_that_panics_ends_its_loop_which_says_why() {
    let (mut reactor, handle, _heard, addr) = reactor(Clock::system(), false, |_| {});
    let mut stream = client(addr);
    assert!(handle.post(Box::new(|_, _| panic!("on purpose"))).is_ok());
    assert_eq!(reactor.run(), Err("panic: on purpose".to_owned()));
    drop(reactor);
    // The peer is told, and so is who posts.
    assert_eq!(stream.read(&mut [0; 1]).unwrap_or(0), 0);
    assert!(matches!(handle.post(Box::new(|_, _| {})), Err(super::super::handle::PostError::Closed(_))));
}

/// When descriptors run out, accepting pauses with a notice and goes on later. In a process of its own, which has few.
#[cfg(target_os = "linux")]
#[test]
fn accepting_pauses_when_descriptors_run_out() {
    const CHILD: &str = "WINDLASS_TEST_FEW_DESCRIPTORS";
    if std::env::var_os(CHILD).is_none() {
        let test = "net::tests::limits::accepting_pauses_when_descriptors_run_out";
        let exe = std::env::current_exe().unwrap();
        let status = std::process::Command::new("sh")
            .args(["-c", "ulimit -n 64 && exec \"$0\" --exact \"$1\" --test-threads 1 -q", exe.to_str().unwrap(), test])
            .env(CHILD, "1")
            .stdout(std::process::Stdio::null())
            .status()
            .unwrap();
        assert!(status.success());
        return;
    }
    let server = Loop::start(Clock::system(), true, |settings| settings.accept_pause = Duration::from_secs(2));
    let mut last = client(server.addr);
    ping(&mut last, b"there is room");
    let mut hoard = Vec::new();
    while let Ok(file) = std::fs::File::open("/dev/null") {
        hoard.push(file);
    }
    // One descriptor for our end, none for theirs.
    drop(hoard.pop());
    let mut waiting = client(server.addr);
    server.until(|event| matches!(event, Event::Notice(Notice::AcceptPaused { listener: 0, .. })).then_some(()));
    ping(&mut last, b"others go on");
    let polls = server.handle.counters().polls.value();
    ping(&mut last, b"without spinning");
    assert!(server.handle.counters().polls.value() < polls + 10);
    hoard.clear();
    ping(&mut waiting, b"accepted in the end");
}

/// A share of small requests with large answers: reading pauses within it, nothing of it is lost.
#[test]
fn answers_larger_than_their_requests_pause_the_reading_within_a_share() {
    const ASKED: u32 = 300;
    let server = Loop::start(Clock::system(), true, |_| {});
    server.on_loop(|script, _| script.swell = 1 << 20);
    let mut stream = client(server.addr);
    let requests: Vec<u8> = (0..ASKED).flat_map(|n| framed(&n.to_be_bytes())).collect();
    stream.write_all(&requests).unwrap();
    server.until_frame();
    let mut answered = 1;
    for _ in 0..100 {
        server.on_loop(|_, _| {});
        answered += server.heard.try_iter().filter(|event| matches!(event, Event::Frame(..))).count();
    }
    // What may wait, what the sockets hold, and what one turn may bring.
    assert!(answered < 100, "{answered} MiB of answers for a peer that takes none");
    for n in 0..ASKED {
        let answer = read_frame(&mut stream).unwrap();
        assert_eq!((answer.len(), &answer[..4]), ((1 << 20) + 4, n.to_be_bytes().as_slice()));
    }
}

/// What waits to be written is bounded for all connections together: the one that takes least goes.
#[test]
fn the_peer_for_which_most_waits_is_given_up_first() {
    let server = Loop::start(Clock::system(), true, |settings| settings.output_total = 12 << 20);
    server.on_loop(|script, _| script.swell = 1 << 20);
    let (mut modest, mut greedy) = (client(server.addr), client(server.addr));
    let (_, second) = (server.until_accepted(), server.until_accepted());
    modest.write_all(&framed(b"once")).unwrap();
    server.until_frame();
    let asks: Vec<u8> = (0..60).flat_map(|_| framed(b"more")).collect();
    greedy.write_all(&asks).unwrap();
    assert!(matches!(server.until_closed(second), Why::OutputFull));
    assert_eq!(read_frame(&mut modest).unwrap().len(), (1 << 20) + 4);
}
