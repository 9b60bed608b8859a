//! The limits of this machine, for other benches and for readers: copies, checksums, system calls, wake-ups, loopback.
//! Writes `target/windlass-bench/limits.json`. Nothing is gated here.

#[path = "ratio/mod.rs"]
mod ratio;

use std::hint::black_box;
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::time::Instant;

type Figures = serde_json::Map<String, serde_json::Value>;

/// Nanoseconds per run of one program.
fn alone(mut run: impl FnMut(u64)) -> f64 {
    ratio::interleaved(&mut [&mut run]).nanos[0]
}

/// What a measured line returns is neither looked at nor left out.
fn keep<T>(value: T) {
    let _ = black_box(value);
}

fn note(figures: &mut Figures, name: &str, nanos: f64) {
    println!("{name}: {nanos:.1} ns");
    figures.insert(name.to_owned(), serde_json::json!((nanos * 10.0).round() / 10.0));
}

fn memory(figures: &mut Figures) {
    for size in [256, 1 << 10, 10 << 10, 64 << 10, 1 << 20, 16 << 20] {
        let (from, mut to) = (vec![1u8; size], vec![0u8; size]);
        let copy = alone(|runs| {
            for _ in 0..runs {
                black_box(&mut to).copy_from_slice(black_box(&from));
            }
        });
        note(figures, &format!("memcpy {size} B"), copy);
    }
    for size in [100, 1 << 10, 10 << 10, 1 << 20] {
        let bytes = vec![1u8; size];
        let crc = alone(|runs| (0..runs).for_each(|_| keep(crc32fast::hash(black_box(&bytes)))));
        note(figures, &format!("crc32 {size} B"), crc);
    }
    for size in [64, 1 << 10, 40 << 10] {
        let malloc = alone(|runs| (0..runs).for_each(|_| keep(Vec::<u8>::with_capacity(black_box(size)))));
        note(figures, &format!("malloc and free {size} B"), malloc);
    }
}

fn system(figures: &mut Figures) -> std::io::Result<()> {
    note(figures, "Instant::now", alone(|runs| (0..runs).for_each(|_| keep(Instant::now()))));
    let mut null = std::fs::OpenOptions::new().write(true).open("/dev/null")?;
    let bytes = [1u8; 1024];
    note(figures, "write 1 KiB to /dev/null", alone(|runs| (0..runs).for_each(|_| keep(null.write(&bytes)))));
    let mut poll = mio::Poll::new()?;
    let waker = mio::Waker::new(poll.registry(), mio::Token(0))?;
    let mut events = mio::Events::with_capacity(8);
    let now = Some(std::time::Duration::ZERO);
    note(figures, "poll, nothing ready", alone(|runs| (0..runs).for_each(|_| keep(poll.poll(&mut events, now)))));
    let wake = alone(|runs| {
        (0..runs).for_each(|_| keep((waker.wake(), poll.poll(&mut events, now))));
    });
    note(figures, "wake and poll on one thread", wake);
    Ok(())
}

/// Two threads hand a number to and fro; nanoseconds one way.
fn wake_ups(figures: &mut Figures) {
    let spin = Arc::new(AtomicU64::new(0));
    let other = spin.clone();
    let thread = std::thread::spawn(move || {
        let mut turn = 1;
        loop {
            match other.load(Ordering::Acquire) {
                u64::MAX => return,
                now if now == turn => {
                    other.store(turn + 1, Ordering::Release);
                    turn += 2;
                }
                _ => std::hint::spin_loop(),
            }
        }
    });
    let mut turn = 1;
    let round = alone(|runs| {
        for _ in 0..runs {
            spin.store(turn, Ordering::Release);
            while spin.load(Ordering::Acquire) == turn {
                std::hint::spin_loop();
            }
            turn += 2;
        }
    });
    spin.store(u64::MAX, Ordering::Release);
    drop(thread.join());
    note(figures, "cache line, one way", round / 2.0);

    let parked = Arc::new(AtomicU32::new(0));
    let (other, caller) = (parked.clone(), std::thread::current());
    let thread = std::thread::spawn(move || {
        loop {
            match other.load(Ordering::Acquire) {
                0 => std::thread::park(),
                1 => {
                    other.store(0, Ordering::Release);
                    caller.unpark();
                }
                _ => return,
            }
        }
    });
    let round = alone(|runs| {
        for _ in 0..runs {
            parked.store(1, Ordering::Release);
            thread.thread().unpark();
            while parked.load(Ordering::Acquire) != 0 {
                std::thread::park();
            }
        }
    });
    parked.store(2, Ordering::Release);
    thread.thread().unpark();
    drop(thread.join());
    note(figures, "park and unpark, one way", round / 2.0);

    let ((to, inbox), (back, answers)) = (crossbeam_channel::bounded::<u64>(64), crossbeam_channel::bounded::<u64>(64));
    let thread = std::thread::spawn(move || inbox.iter().for_each(|number| keep(back.send(number))));
    let round = alone(|runs| (0..runs).for_each(|number| keep((to.send(number), answers.recv()))));
    drop(to);
    drop(thread.join());
    note(figures, "crossbeam channel, round trip", round);
}

/// A blocking round trip over loopback, request and answer of the given sizes.
fn loopback(figures: &mut Figures) -> std::io::Result<()> {
    for (request, answer) in [(100, 100), (1300, 200), (200, 36_000), (200, 330_000)] {
        let listener = TcpListener::bind("127.0.0.1:0")?;
        let mut stream = TcpStream::connect(listener.local_addr()?)?;
        let (mut theirs, _) = listener.accept()?;
        stream.set_nodelay(true)?;
        theirs.set_nodelay(true)?;
        let thread = std::thread::spawn(move || -> std::io::Result<()> {
            let (mut asked, answered) = (vec![0; request], vec![1; answer]);
            loop {
                theirs.read_exact(&mut asked)?;
                theirs.write_all(&answered)?;
            }
        });
        let (asks, mut answers) = (vec![1; request], vec![0; answer]);
        let mut ended = Ok(());
        let round = alone(|runs| {
            for _ in 0..runs {
                ended = stream.write_all(&asks).and_then(|()| stream.read_exact(&mut answers));
            }
        });
        ended?;
        drop(stream);
        drop(thread.join());
        note(figures, &format!("loopback round trip {request}/{answer} B"), round);
    }
    Ok(())
}

fn main() -> std::io::Result<()> {
    let mut figures = Figures::new();
    memory(&mut figures);
    system(&mut figures)?;
    wake_ups(&mut figures);
    loopback(&mut figures)?;
    let dir = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("target/windlass-bench");
    std::fs::create_dir_all(&dir)?;
    std::fs::write(dir.join("limits.json"), serde_json::to_vec_pretty(&figures)?)
}
