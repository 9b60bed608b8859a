//! A synchronous call on a lane against the bare round trip on a blocking socket: a send of 1 KiB and its answer.
//! Gated: allocations. Latencies are reported as a ratio, since they hang on this machine's wake-ups.

#[path = "accept/mod.rs"]
mod accept;
#[path = "ratio/mod.rs"]
mod ratio;

use std::hint::black_box;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::{Duration, Instant};

use windlass::internals::net::FramePool;
use windlass::internals::net::lane::{LaneSettings, Lanes};

#[global_allocator]
static COUNTING: ratio::Counting = ratio::Counting;

/// Bytes behind the opaque.
const REQUEST: usize = 1300;
const ANSWER: usize = 200;

/// Answers every request under its opaque.
fn serve(mut stream: TcpStream) -> std::io::Result<()> {
    stream.set_nodelay(true)?;
    let mut asked = vec![0; 8 + REQUEST];
    let mut answer = vec![1; 8 + ANSWER];
    answer[..4].copy_from_slice(&(4 + ANSWER as u32).to_be_bytes());
    loop {
        stream.read_exact(&mut asked)?;
        answer[4..8].copy_from_slice(&asked[4..8]);
        stream.write_all(&answer)?;
    }
}

fn write_request(opaque: i32, bytes: &mut Vec<u8>) {
    bytes.extend_from_slice(&(4 + REQUEST as u32).to_be_bytes());
    bytes.extend_from_slice(&opaque.to_be_bytes());
    bytes.resize(8 + REQUEST, 2);
}

fn main() -> std::io::Result<()> {
    let mut gate = ratio::Gate::from_args();
    let addr = accept::peer(serve)?;
    let mut stream = TcpStream::connect(addr)?;
    stream.set_nodelay(true)?;
    let (mut request, mut answer) = (Vec::new(), vec![0; 8 + ANSWER]);
    write_request(7, &mut request);
    let mut failed = 0u64;
    let mut raw = |calls: u64| {
        for _ in 0..calls {
            failed += u64::from(stream.write_all(&request).and_then(|()| stream.read_exact(&mut answer)).is_err());
        }
    };
    let opaque_of = |content: &[u8]| content.first_chunk().map(|word| i32::from_be_bytes(*word));
    let lanes = Lanes::new(LaneSettings::new(opaque_of), FramePool::new(None));
    let mut lost = 0u64;
    let mut lane = |calls: u64| {
        for _ in 0..calls {
            let deadline = Instant::now() + Duration::from_secs(3);
            lost += u64::from(black_box(lanes.call(addr, deadline, write_request)).is_err());
        }
    };
    let measured = ratio::interleaved(&mut [&mut raw, &mut lane]);
    let allocations = ratio::allocations(|| lane(1000));
    println!("raw {:.1} us, lane {:.1} us", measured.nanos[0] / 1e3, measured.nanos[1] / 1e3);
    println!("lane/latency to raw: {:.2} (spread {:.2}; aim 1.15)", measured.ratio[0], measured.spread[0]);
    gate.at_most("lane/allocations in 1000 calls", allocations as f64, 0.0, "");
    gate.at_most("lane/failed calls", (failed + lost) as f64, 0.0, "");
    gate.finish();
    Ok(())
}
