//! Framing, writing, closing, connecting and time-outs on real sockets.

use super::*;
use crate::wire::frame::Frame;
use crate::work::TestClock;
use std::io;
use std::time::Instant;

/// C-017: whatever speaks another protocol is closed at once, and nobody else notices.
#[test]
fn foreign_protocols_are_closed_at_once() {
    let server = Loop::start(Clock::system(), true, |_| {});
    let mut other = client(server.addr);
    server.until_accepted();
    let foreign: [&[u8]; 5] = [
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
        b"GET / HTTP/1.1\r\n\r\n",
        &[0x03, 0x00, 0x00, 0x2F, 0x2A, 0xE0],
        &[0x16, 0x03, 0x01, 0x02, 0x00],
        &[0xFF; 4],
    ];
    for bytes in foreign {
        ping(&mut other, b"before");
        let mut stream = client(server.addr);
        stream.write_all(bytes).unwrap();
        let begun = Instant::now();
        // Closed, or reset since it had sent more than was read.
        assert!(!matches!(stream.read(&mut [0; 16]), Ok(1..)));
        assert!(begun.elapsed() < Duration::from_secs(5));
        ping(&mut other, b"after");
        let conn = server.until_accepted();
        assert!(matches!(server.until_closed(conn), Why::Wire(_)));
    }
}

/// C-019: many threads on few connections with small socket buffers and slow readers; every body is whole.
#[test]
fn frames_of_many_senders_are_never_mixed() {
    let seed = u64::from(std::process::id());
    println!("seed {seed}");
    let server = Loop::start(Clock::system(), true, |settings| settings.output_pause = 64 << 10);
    std::thread::scope(|scope| {
        for connection in 0..4u64 {
            let mut reader = client(server.addr);
            let writer = std::sync::Arc::new(std::sync::Mutex::new(reader.try_clone().unwrap()));
            for sender in 0..2u64 {
                let writer = writer.clone();
                scope.spawn(move || {
                    let number = connection * 2 + sender + 1;
                    let mut rng = XorShift(seed + number);
                    for _ in 0..30 {
                        let body = vec![number as u8; 1 + rng.below(300 << 10)];
                        writer.lock().unwrap().write_all(&framed(&body)).unwrap();
                    }
                });
            }
            scope.spawn(move || {
                for _ in 0..60 {
                    let body = read_frame(&mut reader).unwrap();
                    let first = body[0];
                    assert!((connection * 2 + 1..=connection * 2 + 2).contains(&u64::from(first)), "seed {seed}");
                    assert!(body.iter().all(|byte| *byte == first), "a mixed body, seed {seed}");
                    std::thread::yield_now();
                }
            });
        }
    });
}

/// C-019: a peer that stops reading is closed when the write time-out has passed, and nothing more is written to it.
#[test]
fn a_peer_that_stops_reading_is_closed_after_the_write_timeout() {
    let client_loop = Loop::start(Clock::system(), false, |settings| {
        settings.write_timeout = Duration::from_millis(200);
    });
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let conn = client_loop.connect(listener.local_addr().unwrap());
    let (mut peer, _) = listener.accept().unwrap();
    client_loop.until_connected(conn);
    let begun = Instant::now();
    client_loop.send(conn, &vec![1; 8 << 20]);
    peer.read_exact(&mut [0; 1024]).unwrap();
    assert!(matches!(client_loop.until_closed(conn), Why::WriteStalled));
    assert!(begun.elapsed() >= Duration::from_millis(200));
    // What is sent to it now goes nowhere; half a frame is followed by the end.
    client_loop.send(conn, b"new");
    let mut rest = Vec::new();
    let end = peer.read_to_end(&mut rest);
    assert!(end.is_err() || rest.iter().all(|byte| *byte == 1));
}

/// A peer that reads slowly, but reads, is not given up.
#[test]
fn a_slow_reader_is_not_stalled() {
    let client_loop = Loop::start(Clock::system(), false, |settings| {
        // A machine that is held up for so long would be a reader that does not read.
        settings.write_timeout = Duration::from_secs(2);
    });
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let conn = client_loop.connect(listener.local_addr().unwrap());
    let (mut peer, _) = listener.accept().unwrap();
    let body = vec![3; 16 << 20];
    client_loop.send(conn, &body);
    let begun = Instant::now();
    let mut got = 0;
    let mut chunk = vec![0; 64 << 10];
    while got < body.len() + 4 {
        let read = peer.read(&mut chunk).unwrap();
        assert!(read > 0, "given up after {got} bytes");
        got += read;
        // As slow as it takes to last for longer than the time-out.
        let due = Duration::from_secs(3).mul_f64(got as f64 / body.len() as f64);
        while begun.elapsed() < due {
            std::thread::yield_now();
        }
    }
    client_loop.on_loop(|_, _| {});
    assert!(client_loop.heard.try_iter().all(|event| !matches!(event, Event::Change(_, Change::Closed { .. }))));
}

#[test]
fn frames_are_sent_from_where_they_lie() {
    let client_loop = Loop::start(Clock::system(), false, |_| {});
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let conn = client_loop.connect(listener.local_addr().unwrap());
    let (mut peer, _) = listener.accept().unwrap();
    let frames: Vec<Frame> = (0..200u8).map(|n| Frame::from(vec![n; 3000 + usize::from(n)])).collect();
    let body: Vec<u8> = frames.iter().flat_map(|frame| frame.bytes().to_vec()).collect();
    let total = body.len() as u32 + 4;
    client_loop.on_loop(move |_, out| {
        out.send(conn, |bytes| bytes.extend_from_slice(&framed(b"first")));
        let head = |bytes: &mut Vec<u8>| {
            bytes.extend_from_slice(&total.to_be_bytes());
            bytes.extend_from_slice(b"head");
        };
        out.send_frames(conn, head, &frames);
        out.send(conn, |bytes| bytes.extend_from_slice(&framed(b"last")));
    });
    assert_eq!(read_frame(&mut peer).unwrap(), b"first");
    assert!(read_frame(&mut peer).unwrap() == [b"head".as_slice(), &body].concat());
    assert_eq!(read_frame(&mut peer).unwrap(), b"last");
}

#[test]
fn what_one_turn_sends_leaves_in_one_write() {
    let client_loop = Loop::start(Clock::system(), false, |_| {});
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let conn = client_loop.connect(listener.local_addr().unwrap());
    let (mut peer, _) = listener.accept().unwrap();
    client_loop.until_connected(conn);
    let before = client_loop.handle.counters().writes.value();
    client_loop.on_loop(move |_, out| {
        (0..100).for_each(|_| out.send(conn, |bytes| bytes.extend_from_slice(&framed(b"request"))));
    });
    (0..100).for_each(|_| assert_eq!(read_frame(&mut peer).unwrap(), b"request"));
    client_loop.on_loop(|_, _| {});
    assert_eq!(client_loop.handle.counters().writes.value() - before, 1);
}

/// C-029, B-028: a peer's close is heard at once, whether it ends or resets.
#[test]
fn the_end_of_a_peer_is_heard_at_once() {
    let client_loop = Loop::start(Clock::system(), false, |_| {});
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    for round in 0..300 {
        let conn = client_loop.connect(listener.local_addr().unwrap());
        let (mut peer, _) = listener.accept().unwrap();
        client_loop.until_connected(conn);
        if round % 3 == 1 {
            // Bytes and the end arrive together: the frame is still heard.
            peer.write_all(&framed(b"last words")).unwrap();
        } else if round % 3 == 2 {
            // Unread bytes make the close a reset.
            client_loop.send(conn, b"unread");
            peer.set_nonblocking(false).unwrap();
            peer.peek(&mut [0; 1]).unwrap();
        }
        let begun = Instant::now();
        drop(peer);
        if round % 3 == 1 {
            assert_eq!(client_loop.until_frame(), (conn, b"last words".to_vec()));
        }
        let why = client_loop.until_closed(conn);
        assert!(matches!(why, Why::Peer | Why::Io(_)), "{why:?}");
        assert!(begun.elapsed() < Duration::from_secs(2));
    }
}

#[test]
fn a_close_that_was_asked_for_writes_what_was_sent_first() {
    let client_loop = Loop::start(Clock::system(), false, |_| {});
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let conn = client_loop.connect(listener.local_addr().unwrap());
    let (mut peer, _) = listener.accept().unwrap();
    client_loop.until_connected(conn);
    let body = vec![5; 6 << 20];
    let sent = framed(&body);
    client_loop.on_loop(move |_, out| {
        out.send(conn, |bytes| bytes.extend_from_slice(&sent));
        out.close(conn);
        out.send(conn, |bytes| bytes.extend_from_slice(b"never"));
    });
    assert!(matches!(client_loop.until_closed(conn), Why::Asked));
    assert!(read_frame(&mut peer).unwrap() == body);
    assert_eq!(peer.read(&mut [0; 1]).unwrap(), 0);
}

/// C-030: connections have numbers of their own; closing an old one never hits a new one, and a stop ends all.
#[test]
fn closing_an_old_connection_leaves_the_new_one_alone() {
    let server = Loop::start(Clock::system(), true, |_| {});
    let client_loop = Loop::start(Clock::system(), false, |_| {});
    let addr = server.addr;
    let old = client_loop.connect(addr);
    let new = client_loop.connect(addr);
    client_loop.on_loop(move |_, out| out.close(old));
    client_loop.on_loop(move |_, out| out.close(old));
    client_loop.send(new, b"still here");
    assert_eq!(client_loop.until_frame(), (new, b"still here".to_vec()));
    std::thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                for _ in 0..300 {
                    let conn = client_loop.connect(addr);
                    client_loop.on_loop(move |_, out| out.close(conn));
                }
            });
        }
    });
    client_loop.send(new, b"still here");
    assert_eq!(client_loop.until_frame(), (new, b"still here".to_vec()));
    let begun = Instant::now();
    drop((client_loop, server));
    assert!(begun.elapsed() < Duration::from_secs(5));
}

/// B-024: connecting ends after its time-out (3 s), silence after the idle time (120 s), whatever a test's clock says.
#[test]
fn connecting_and_silence_have_their_time() {
    let defaults = Settings::default();
    assert_eq!(defaults.connect_timeout, Duration::from_secs(3));
    assert_eq!(defaults.idle_timeout, Some(Duration::from_secs(120)));
    let test = TestClock::new();
    let client_loop = Loop::start(test.clock(), false, |settings| {
        settings.connect_timeout = Duration::from_millis(400);
        settings.idle_timeout = Some(Duration::from_millis(800));
    });
    // A listener that accepts nobody: beyond its backlog the system answers no more.
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let addr = listener.local_addr().unwrap();
    let conns: Vec<Conn> = client_loop.on_loop(move |_, out| (0..400).map(|_| out.connect(addr)).collect());
    let mut connected: HashMap<Conn, bool> = HashMap::new();
    let mut closed = 0;
    while connected.len() < conns.len() || closed < connected.values().filter(|it| **it).count() {
        client_loop.until(|event| match event {
            Event::Change(conn, Change::Connected { .. }) => {
                assert!(connected.insert(conn, true).is_none());
                Some(())
            }
            Event::Change(conn, Change::Failed { error }) => {
                assert_eq!(error.kind(), io::ErrorKind::TimedOut);
                assert!(connected.insert(conn, false).is_none());
                Some(())
            }
            Event::Change(conn, Change::Closed { why }) => {
                assert!(matches!(why, Why::Idle) && connected[&conn], "{why:?}");
                closed += 1;
                Some(())
            }
            _ => None,
        });
    }
    assert!(closed > 0 && closed < conns.len());
}

/// Hours on a test's clock are no silence on a socket.
#[test]
fn connections_outlive_the_jumps_of_a_test_clock() {
    let test = TestClock::new();
    let server = Loop::start(test.clock(), true, |_| {});
    let client_loop = Loop::start(test.clock(), false, |_| {});
    let conn = client_loop.connect(server.addr);
    for _ in 0..3 {
        test.advance(Duration::from_secs(7200));
        client_loop.send(conn, b"still here");
        assert_eq!(client_loop.until_frame(), (conn, b"still here".to_vec()));
    }
}

#[test]
fn a_refused_connection_fails_and_nothing_else() {
    let client_loop = Loop::start(Clock::system(), false, |_| {});
    let nobody = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let conn = client_loop.connect(nobody);
    client_loop.send(conn, b"into the void");
    client_loop.until(|event| match event {
        Event::Change(of, Change::Failed { error }) if of == conn => {
            assert_eq!(error.kind(), io::ErrorKind::ConnectionRefused);
            Some(())
        }
        Event::Change(of, change) if of == conn => panic!("{change:?}"),
        _ => None,
    });
}

/// B-026: a deadline is met within 100 ms on the system's clock, and to the moment on a test clock.
#[test]
fn deadlines_come_due_in_order_and_in_time() {
    let real = Loop::start(Clock::system(), false, |_| {});
    let begun = Instant::now();
    real.on_loop(|_, out| out.arm(Nanos::ZERO, 1));
    assert_eq!(real.until(|event| if let Event::Due(timer) = event { Some(timer) } else { None }), 1);
    let clock = Clock::system();
    let at = clock.now() + Duration::from_millis(50);
    let timed = Loop::start(clock.clone(), false, |_| {});
    timed.on_loop(move |_, out| out.arm(at, 2));
    assert_eq!(timed.until(|event| if let Event::Due(timer) = event { Some(timer) } else { None }), 2);
    assert!(clock.now() >= at && clock.now().since(at) < Duration::from_secs(1));
    assert!(begun.elapsed() < Duration::from_secs(5));

    let test = TestClock::new();
    let still = Loop::start(test.clock(), false, |_| {});
    still.on_loop(|_, out| (1..=3).for_each(|timer| out.arm(Nanos::from_ms(timer * 1000), timer)));
    test.advance(Duration::from_millis(2000));
    let due = || still.until(|event| if let Event::Due(timer) = event { Some(timer) } else { None });
    assert_eq!((due(), due()), (1, 2));
    still.on_loop(|_, _| {});
    assert!(still.heard.try_recv().is_err());
    test.advance(Duration::from_millis(1000));
    assert_eq!(still.until(|event| if let Event::Due(timer) = event { Some(timer) } else { None }), 3);
}

#[test]
fn commands_of_many_threads_are_all_taken() {
    let served = Loop::start(Clock::system(), false, |_| {});
    let (tell, told) = channel();
    std::thread::scope(|scope| {
        for _ in 0..4 {
            let (handle, tell) = (served.handle.clone(), tell.clone());
            scope.spawn(move || {
                for number in 0..5000u32 {
                    let tell = tell.clone();
                    let command: Command = Box::new(move |_, _| tell.send(number).unwrap());
                    assert!(handle.post_within(command, LONG).is_ok());
                    if number % 500 == 0 {
                        std::thread::yield_now();
                    }
                }
            });
        }
        for _ in 0..20_000 {
            told.recv_timeout(LONG).unwrap();
        }
    });
    let counters = served.handle.counters();
    assert!(counters.rings.value() <= counters.polls.value() + 1, "{counters:?}");
}

#[test]
fn a_loop_that_stops_writes_its_last_words() {
    let client_loop = Loop::start(Clock::system(), false, |_| {});
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let conn = client_loop.connect(listener.local_addr().unwrap());
    let (mut peer, _) = listener.accept().unwrap();
    client_loop.until_connected(conn);
    client_loop.on_loop(move |_, out| {
        out.send(conn, |bytes| bytes.extend_from_slice(&framed(b"unregister")));
        out.stop();
    });
    assert_eq!(read_frame(&mut peer).unwrap(), b"unregister");
    assert_eq!(peer.read(&mut [0; 1]).unwrap(), 0);
    assert!(client_loop.thread.join_within(LONG));
    let command: Command = Box::new(|_, _| {});
    assert!(matches!(client_loop.handle.post(command), Err(PostError::Closed(_))));
}

/// What nobody reads ends by its own time-out, whoever connected and whether it was let go of: nothing else ends it here.
#[test]
fn what_an_accepted_peer_does_not_read_has_its_time_also_after_a_close() {
    let server = Loop::start(Clock::system(), false, |settings| {
        settings.write_timeout = Duration::from_millis(200);
        settings.idle_timeout = None;
    });
    let (_peer, conn) = (client(server.addr), server.until_accepted());
    server.send(conn, &vec![1; 64 << 20]);
    assert!(matches!(server.until_closed(conn), Why::WriteStalled));

    let (mut reactor, handle, heard, addr) = reactor(Clock::system(), false, |settings| {
        settings.write_timeout = Duration::from_millis(200);
        settings.idle_timeout = None;
    });
    let _peer = client(addr);
    let mut conn = None;
    let end = Instant::now() + LONG;
    while conn.is_none() || reactor.connections() > 0 {
        assert!(Instant::now() < end, "it is never given up");
        let _again = reactor.turn();
        for event in heard.try_iter() {
            if let Event::Change(accepted, Change::Accepted { .. }) = event {
                conn = Some(accepted);
                let command: Command = Box::new(move |_, out| {
                    out.send(accepted, |bytes| bytes.resize(64 << 20, 1));
                    out.close(accepted);
                    // Ends a poll that nothing else would end.
                    out.arm(Nanos::from_ms(20_000), 1);
                });
                assert!(handle.post(command).is_ok());
            }
        }
    }
}

/// Whether connecting may take longer than silence makes no difference to a connection that stands.
#[test]
fn silence_has_its_time_where_connecting_would_have_more() {
    let client_loop = Loop::start(Clock::system(), false, |settings| {
        settings.connect_timeout = Duration::from_secs(3600);
        settings.idle_timeout = Some(Duration::from_millis(100));
    });
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let conn = client_loop.connect(listener.local_addr().unwrap());
    client_loop.until_connected(conn);
    assert!(matches!(client_loop.until_closed(conn), Why::Idle));
}

/// A connection that was let go of while it had not had all of its share brings nothing more.
#[test]
fn no_frame_comes_of_a_connection_that_was_let_go_of() {
    let (mut reactor, handle, heard, addr) = reactor(Clock::system(), false, |settings| settings.turn_bytes = 1024);
    let mut peer = client(addr);
    (0..256).for_each(|_| peer.write_all(&framed(&[1; 1000])).unwrap());
    let end = Instant::now() + LONG;
    let mut turn = |command: Command| -> Vec<Event> {
        assert!(Instant::now() < end);
        assert!(handle.post(command).is_ok());
        let _again = reactor.turn();
        heard.try_iter().collect()
    };
    let conn = loop {
        let events = turn(Box::new(|_, _| {}));
        if let Some(conn) =
            events.iter().find_map(|event| if let Event::Frame(conn, _) = event { Some(*conn) } else { None })
        {
            break conn;
        }
    };
    let let_go: Command = Box::new(move |_, out| {
        out.send(conn, |bytes| bytes.resize(64 << 20, 1));
        out.close(conn);
    });
    let events = turn(let_go);
    assert!(events.iter().any(|event| matches!(event, Event::Change(_, Change::Closed { why: Why::Asked }))));
    for _ in 0..20 {
        let events = turn(Box::new(|_, _| {}));
        assert!(events.is_empty(), "{} events", events.len());
    }
}

/// A loop that has nothing to do sleeps, also after it has accepted somebody.
#[test]
fn a_loop_that_has_accepted_somebody_sleeps() {
    let server = Loop::start(Clock::system(), true, |_| {});
    let mut peer = client(server.addr);
    ping(&mut peer, b"here");
    let polls = server.handle.counters().polls.value();
    server.on_loop(|_, out| out.arm(Clock::system().now() + Duration::from_millis(200), 7));
    server.until(|event| matches!(event, Event::Due(7)).then_some(()));
    let polls = server.handle.counters().polls.value() - polls;
    assert!(polls < 50, "{polls} polls");
}
