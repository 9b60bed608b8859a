//! A push consumer over sockets, from the first byte of an answer to the commit, against a scripted broker that always
//! has another 32 messages of 1 KiB for each of four queues (performance rows 2 and 5).
//!
//! Gated because they are counted: allocations, system calls of the loop, wake-ups of workers and of the loop, each per
//! pulled frame, with handler batches of 1 and 32. Reported: rate, and processor time per message by kind of thread, of
//! the consumer and of the smallest program that pulls the same from the same broker.

// A bench that cannot go on ends.
#![allow(clippy::unwrap_used)]

#[path = "ratio/mod.rs"]
mod ratio;
#[path = "stored/mod.rs"]
mod stored;

use std::hint::black_box;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use ratio::{Gate, allocations_everywhere, leave_out_this_thread};
use stored::{BATCH, TOPIC, messages};
use windlass::internals::rocketmq::client::Counted;
use windlass::internals::wire::json;
use windlass::internals::wire::remoting::codes::{answer, perm, request};
use windlass::internals::wire::remoting::command::{Codec, Command, Head, VERSION_V4, write};
use windlass::internals::wire::remoting::group::ConsumerListBody;
use windlass::internals::wire::remoting::header::{NoFields, ReadHeader};
use windlass::internals::wire::remoting::pull::{PullAnswer, PullRequest};
use windlass::internals::wire::remoting::record::{Check, index, patch};
use windlass::internals::wire::remoting::route::{BrokerBody, QueuesBody, RouteBody, RouteRequest};
use windlass::{Client, StartFrom};

#[global_allocator]
static COUNTING: ratio::Counting = ratio::Counting;

const QUEUES: i32 = 4;
const WARM_UP: u64 = 3_000;
const FRAMES: u64 = 20_000;
/// Of two allocations per frame, and what heartbeats, commits and tables that grow add to them.
const ALLOCATIONS: f64 = 2.05;

fn main() {
    let mut gate = Gate::from_args();
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let addr = listener.local_addr().unwrap();
    std::thread::Builder::new().name("script-accept".into()).spawn(move || serve(listener)).unwrap();
    raw(addr);
    for batch in [1, 32] {
        push(&mut gate, addr, batch);
    }
    raw(addr);
    gate.finish();
}

/// The consumer.
fn push(gate: &mut Gate, addr: SocketAddr, batch: u32) {
    let client = Client::builder().name_servers([addr.to_string()]).build().unwrap();
    let handled = Arc::new(AtomicU64::new(0));
    let count = handled.clone();
    let consumer = client
        .push_consumer("readers")
        .subscribe(TOPIC, "*")
        .start_from(StartFrom::First)
        .batch(batch, Duration::ZERO)
        .handler(move |batch: &windlass::Batch<'_>| {
            for message in batch {
                black_box((message.offset(), message.tag(), message.body().len()));
            }
            count.fetch_add(batch.len() as u64, Ordering::Relaxed);
        })
        .start()
        .unwrap();
    let reach = |messages: u64| {
        while handled.load(Ordering::Relaxed) < messages {
            std::thread::sleep(Duration::from_millis(1));
        }
    };
    reach(WARM_UP * BATCH as u64);
    // What reading the processor times allocates is this bench's own.
    let (used, before, made, begun) =
        ([cpu("wl-io"), cpu("wl-work")], Counted::of(&client), allocations_everywhere(), Instant::now());
    let first = handled.load(Ordering::Relaxed);
    reach(first + FRAMES * BATCH as u64);
    let messages = (handled.load(Ordering::Relaxed) - first) as f64;
    let (made, after, used_after, took) =
        (allocations_everywhere() - made, Counted::of(&client), [cpu("wl-io"), cpu("wl-work")], begun.elapsed());
    let frames = (after.frames - before.frames) as f64;
    let per_frame = |after: u64, before: u64| (after - before) as f64 / frames;
    let [polls, reads, writes] = [0, 1, 2].map(|call| per_frame(after.calls[call], before.calls[call]));
    let what = |what: &str| format!("{what} per frame, handler batch {batch}");
    gate.at_most(&what("allocations"), made as f64 / frames, ALLOCATIONS, "");
    let note = format!("polls {polls:.2}, reads {reads:.2}, writes {writes:.2}");
    gate.at_most(&what("system calls of the loop"), polls + reads + writes, 5.0, &note);
    gate.at_most(&what("workers woken"), per_frame(after.wakes, before.wakes), 1.05, "");
    gate.at_most(&what("wake-ups of the loop"), per_frame(after.rings, before.rings), 0.05, "");
    println!(
        "push consumer, handler batch {batch}: {:.0} msg/s, CPU per message {:.3} us loop, {:.3} us workers",
        messages / took.as_secs_f64(),
        (used_after[0] - used[0]) / messages,
        (used_after[1] - used[1]) / messages
    );
    consumer.shutdown(Duration::from_secs(5));
    client.shutdown(Duration::from_secs(5));
}

/// Microseconds that the living threads of this name have run.
fn cpu(name: &str) -> f64 {
    let tasks = std::fs::read_dir("/proc/self/task").into_iter().flatten().flatten();
    let of_task = |task: std::fs::DirEntry| {
        let comm = std::fs::read_to_string(task.path().join("comm")).ok()?;
        let used = std::fs::read_to_string(task.path().join("schedstat")).ok()?;
        comm.starts_with(name).then_some(())?;
        used.split(' ').next()?.parse::<f64>().ok()
    };
    tasks.filter_map(of_task).sum::<f64>() / 1e3
}

/// The smallest program: one blocking socket, four pulls in flight, every body's sum checked.
fn raw(addr: SocketAddr) {
    let worker = std::thread::Builder::new().name("raw".into()).spawn(move || {
        let mut line = TcpStream::connect(addr).unwrap();
        line.set_nodelay(true).unwrap();
        let pull = |queue: i32, offset: i64, out: &mut Vec<u8>| {
            let wanted = PullRequest {
                consumer_group: "raw".into(),
                topic: TOPIC.into(),
                queue_id: queue,
                queue_offset: offset,
                max_messages: BATCH as i32,
                sys_flag: 0,
                commit_offset: 0,
                suspend_ms: 0,
                subscription: None,
                sub_version: 0,
                expression_type: None,
                max_bytes: None,
                request_source: None,
                proxy_forward_client_id: None,
                broker_name: None,
            };
            write(out, Codec::Binary, &Head::request(request::PULL_MESSAGE, queue), &wanted, &[]).unwrap();
        };
        let mut out = Vec::new();
        (0..QUEUES).for_each(|queue| pull(queue, 0, &mut out));
        line.write_all(&out).unwrap();
        let (mut frames, mut begun, mut used) = (0, Instant::now(), 0.0);
        let (mut records, mut damage) = (Vec::new(), Vec::new());
        read_frames(&mut line, |frame, out| {
            frames += 1;
            if frames == WARM_UP {
                (begun, used) = (Instant::now(), cpu("raw"));
            }
            let command = Command::read(frame).unwrap();
            let header = PullAnswer::read(&command.fields).unwrap();
            if frames < WARM_UP + FRAMES {
                pull(command.opaque, header.next_begin_offset, out);
            }
            records.clear();
            index(command.body, Check::Crc, &mut records, &mut damage);
            assert!(records.len() as i64 == BATCH && damage.is_empty());
            frames < WARM_UP + FRAMES
        });
        let messages = (FRAMES * BATCH as u64) as f64;
        let (rate, each) = (messages / begun.elapsed().as_secs_f64(), (cpu("raw") - used) / messages);
        println!("raw: {rate:.0} msg/s, CPU per message {each:.3} us");
    });
    worker.unwrap().join().unwrap();
}

/// Reads frames until `each` says no more or the peer closes; what `each` writes goes out once a read is worked off.
fn read_frames(line: &mut TcpStream, mut each: impl FnMut(&[u8], &mut Vec<u8>) -> bool) {
    let (mut buffer, mut from, mut to, mut out) = (vec![0; 512 << 10], 0, 0, Vec::new());
    loop {
        buffer.copy_within(from..to, 0);
        (from, to) = (0, to - from);
        match line.read(&mut buffer[to..]) {
            Ok(0) | Err(_) => return,
            Ok(n) => to += n,
        }
        while to - from >= 4 {
            let len = u32::from_be_bytes(buffer[from..from + 4].try_into().unwrap()) as usize;
            if to - from < 4 + len {
                break;
            }
            if !each(&buffer[from + 4..from + 4 + len], &mut out) {
                return;
            }
            from += 4 + len;
        }
        if line.write_all(&out).is_err() {
            return;
        }
        out.clear();
    }
}

/// Name server and broker on one port, a thread for each connection.
fn serve(listener: TcpListener) {
    leave_out_this_thread();
    let addr = listener.local_addr().unwrap();
    for line in listener.incoming().flatten() {
        std::thread::Builder::new()
            .name("script".into())
            .spawn(move || {
                leave_out_this_thread();
                let mut line = line;
                line.set_nodelay(true).unwrap();
                let mut script = Script { addr, client: String::new(), messages: messages() };
                read_frames(&mut line, |frame, out| {
                    script.answer(&Command::read(frame).unwrap(), out);
                    true
                });
            })
            .unwrap();
    }
}

struct Script {
    addr: SocketAddr,
    client: String,
    messages: (Vec<u8>, Vec<usize>),
}

impl Script {
    fn answer(&mut self, asked: &Command<'_>, out: &mut Vec<u8>) {
        let head = |code| Head { version: VERSION_V4, ..Head::answer(code, asked.opaque) };
        let mut plain = |code, body: &[u8]| write(out, asked.codec, &head(code), &NoFields, body).unwrap();
        match asked.code {
            _ if asked.is_oneway() => {}
            request::PULL_MESSAGE => {
                let wanted = PullRequest::read(&asked.fields).unwrap();
                let (bytes, starts) = &mut self.messages;
                for (start, offset) in starts.iter().zip(wanted.queue_offset..) {
                    patch(&mut bytes[*start..], offset, offset * 1200, 2);
                }
                let header = PullAnswer::at(wanted.queue_offset + BATCH, 0, i64::MAX);
                write(out, asked.codec, &head(answer::SUCCESS), &header, bytes).unwrap();
            }
            request::GET_ROUTEINFO_BY_TOPIC => {
                let topic = RouteRequest::read(&asked.fields).unwrap().topic;
                if topic == TOPIC { plain(answer::SUCCESS, &self.route()) } else { plain(answer::TOPIC_NOT_EXIST, &[]) }
            }
            request::HEART_BEAT => {
                let body: serde_json::Value = serde_json::from_slice(asked.body).unwrap();
                self.client = body["clientID"].as_str().unwrap().to_owned();
                plain(answer::SUCCESS, &[]);
            }
            request::GET_CONSUMER_LIST_BY_GROUP => {
                let members = ConsumerListBody { client_ids: vec![self.client.clone()] };
                plain(answer::SUCCESS, &json::to_vec(&members));
            }
            request::QUERY_CONSUMER_OFFSET => plain(answer::QUERY_NOT_FOUND, &[]),
            _ => plain(answer::SUCCESS, &[]),
        }
    }

    fn route(&self) -> Vec<u8> {
        let route = RouteBody {
            brokers: vec![BrokerBody {
                broker_addrs: [(0, self.addr.to_string())].into(),
                broker_name: "broker-a".into(),
                cluster: Some("DefaultCluster".into()),
                ..BrokerBody::default()
            }],
            queues: vec![QueuesBody {
                broker_name: "broker-a".into(),
                perm: perm::READ | perm::WRITE,
                read_queue_nums: QUEUES,
                topic_sys_flag: 0,
                write_queue_nums: QUEUES,
            }],
            ..RouteBody::default()
        };
        json::to_vec(&route)
    }
}
