//! The modes that go through this client.

use super::figures::{Begun, unique};
use super::{Arguments, Mode};
use crate::{Ended, output};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};
use windlass::{Batch, Client, Message, Producer, StartFrom};

/// Sends ahead of the clock, as the Java program does for its compiler.
const WARM_UP: u64 = 3000;
/// No call and no start may take longer; a broker that is overrun answers late.
const LONG: Duration = Duration::from_secs(20);
/// The whole of a drain.
const DRAIN: Duration = Duration::from_secs(600);
/// A drain to which nothing has come for so long has all that there is.
const QUIET: Duration = Duration::from_secs(30);

/// Sends that are on their way or failed.
#[derive(Default)]
struct Tally {
    failed: AtomicU64,
}

impl Tally {
    fn note<T, E: std::fmt::Display>(&self, result: Result<T, E>) {
        if let Err(error) = result
            && self.failed.fetch_add(1, Ordering::Relaxed) == 0
        {
            output::note(&format!("windlass: first failed send: {error}"));
        }
    }

    /// True if none has failed.
    fn told(&self) -> bool {
        let failed = self.failed.load(Ordering::Relaxed);
        if failed > 0 {
            output::note(&format!("windlass: failed sends: {failed}"));
        }
        failed == 0
    }
}

fn client(arguments: &Arguments, workers: u16) -> Result<Client, Ended> {
    Ok(Client::builder().name_servers(arguments.cluster.name_servers()?).workers(usize::from(workers)).build()?)
}

/// A producer whose route and connection are there.
fn producer(arguments: &Arguments, client: &Client) -> Result<Producer, Ended> {
    let producer =
        client.producer(format!("bench-{}", unique())).send_deadline(LONG).compress_over(usize::MAX).start()?;
    producer.send(Message::new(arguments.topic.as_str(), arguments.body())).map_err(|error| failed(&error))?;
    Ok(producer)
}

fn failed(error: &impl std::fmt::Display) -> Ended {
    Ended::Failed(error.to_string())
}

/// `send` and `batch`.
pub fn send(arguments: &Arguments) -> Result<bool, Ended> {
    let client = client(arguments, 1)?;
    let producer = producer(arguments, &client)?;
    let threads = u64::from(arguments.workers.unwrap_or(1));
    let batch = if arguments.mode == Mode::Batch { u64::from(arguments.batch.unwrap_or(32)) } else { 1 };
    let calls = (arguments.messages / batch / threads).max(1);
    let (body, tally) = (arguments.body(), Tally::default());
    let message = || Message::new(arguments.topic.as_str(), body.as_slice());
    for _ in 0..WARM_UP.min(calls) {
        tally.note(producer.send(message()));
    }
    let call = || {
        if arguments.mode == Mode::Batch {
            tally.note(producer.send_batch((0..batch).map(|_| message()).collect()));
        } else {
            tally.note(producer.send(message()));
        }
    };
    let begun = Begun::now();
    let took = std::thread::scope(|scope| {
        let run = || {
            let mut took = Vec::with_capacity(usize::try_from(calls).unwrap_or(0));
            for _ in 0..calls {
                let from = Instant::now();
                call();
                took.push(from.elapsed());
            }
            took
        };
        let senders: Vec<_> = (0..threads).map(|_| scope.spawn(run)).collect();
        senders.into_iter().flat_map(|sender| sender.join().unwrap_or_default()).collect::<Vec<_>>()
    });
    begun.ended().report(if batch > 1 { "batch" } else { "send" }, calls * threads * batch, took)?;
    Ok(tally.told())
}

/// `async`.
pub fn send_async(arguments: &Arguments) -> Result<bool, Ended> {
    let client = client(arguments, 1)?;
    let producer = producer(arguments, &client)?;
    let in_flight = usize::from(arguments.in_flight.unwrap_or(16));
    let (give, slots) = crossbeam_channel::bounded(in_flight);
    while give.try_send(()).is_ok() {}
    let (body, tally) = (arguments.body(), Arc::new(Tally::default()));
    let begun = Begun::now();
    for _ in 0..arguments.messages {
        let _never_closed = slots.recv();
        let (give, counted) = (give.clone(), Arc::clone(&tally));
        let launched = producer.send_then(Message::new(arguments.topic.as_str(), body.as_slice()), move |result| {
            counted.note(result);
            let _ = give.send(());
        });
        launched.map_err(|error| failed(&error))?;
    }
    for _ in 0..in_flight {
        let _never_closed = slots.recv();
    }
    begun.ended().report("async", arguments.messages, Vec::new())?;
    Ok(tally.told())
}

/// `drain`: from the first message to the last. The one timed call is from the start to the first message.
pub fn drain(arguments: &Arguments) -> Result<bool, Ended> {
    let client = client(arguments, arguments.workers.unwrap_or(20))?;
    let total = arguments.messages;
    let seen = Arc::new(AtomicU64::new(0));
    let (tell, told) = crossbeam_channel::bounded(2);
    let counted = Arc::clone(&seen);
    let handler = move |batch: &Batch<'_>| {
        let messages = batch.len() as u64;
        let before = counted.fetch_add(messages, Ordering::Relaxed);
        if before == 0 || (before < total && before + messages >= total) {
            let _ = tell.try_send(());
        }
        if before == 0 && messages >= total {
            let _ = tell.try_send(());
        }
    };
    let from = Instant::now();
    let consumer = client
        .push_consumer(arguments.group())
        .subscribe(arguments.topic.as_str(), arguments.tags.as_str())
        .start_from(StartFrom::First)
        .batch(u32::from(arguments.batch.unwrap_or(1)), Duration::ZERO)
        .handler(handler)
        .start()
        .map_err(|error| Ended::Misuse(error.to_string()))?;
    let wait = || {
        let (mut had, until) = (seen.load(Ordering::Relaxed), Instant::now() + DRAIN);
        while told.recv_timeout(QUIET).is_err() {
            let has = seen.load(Ordering::Relaxed);
            if std::mem::replace(&mut had, has) == has || Instant::now() > until {
                return Err(Ended::Failed(format!("only {has} of {total} messages came")));
            }
        }
        Ok(())
    };
    wait()?;
    let begun = Begun::now();
    wait()?;
    begun.ended().report("drain", seen.load(Ordering::Relaxed), vec![begun.at() - from])?;
    consumer.shutdown(Duration::from_secs(5));
    Ok(true)
}

/// `latency`: from the time a message was meant to be sent to its handler.
pub fn latency(arguments: &Arguments) -> Result<bool, Ended> {
    let client = client(arguments, arguments.workers.unwrap_or(20))?;
    let zero = Instant::now();
    let (tell, arrived) = crossbeam_channel::unbounded();
    let consumer = client
        .push_consumer(arguments.group())
        .subscribe(arguments.topic.as_str(), "*")
        .start_from(StartFrom::Last)
        .batch(u32::from(arguments.batch.unwrap_or(1)), Duration::ZERO)
        .handler(move |batch: &Batch<'_>| {
            let now = zero.elapsed();
            for message in batch {
                let due = message.body().first_chunk().map(|bytes| Duration::from_nanos(u64::from_be_bytes(*bytes)));
                if let Some(due) = due.filter(|due| *due <= now) {
                    let _ = tell.send((due, now - due));
                }
            }
        })
        .start()
        .map_err(|error| Ended::Misuse(error.to_string()))?;
    let producer = producer(arguments, &client)?;
    let stamped = |due: Duration| {
        let mut body = vec![0; (arguments.size as usize).max(16)];
        let nanos = u64::try_from(due.as_nanos()).unwrap_or(u64::MAX).to_be_bytes();
        body.iter_mut().zip(nanos).for_each(|(to, from)| *to = from);
        Message::new(arguments.topic.as_str(), body)
    };
    // Queues assigned and the backlog behind us: twenty probes in a row arrive at once.
    let mut caught_up = 0;
    while caught_up < 20 {
        let due = zero.elapsed();
        producer.send(stamped(due)).map_err(|error| failed(&error))?;
        let until = Instant::now() + Duration::from_millis(50);
        let found = std::iter::from_fn(|| arrived.recv_deadline(until).ok()).any(|(of, _)| of == due);
        caught_up = if found { caught_up + 1 } else { 0 };
        if zero.elapsed() > DRAIN {
            return Err(Ended::Failed("probes do not arrive".into()));
        }
    }
    let tally = Arc::new(Tally::default());
    let begun = Begun::now();
    let start = zero.elapsed();
    for number in 0..arguments.messages {
        let due = start + Duration::from_nanos(1_000_000_000 * number / arguments.rate);
        if let Some(early) = due.checked_sub(zero.elapsed()) {
            std::thread::sleep(early);
        }
        let counted = Arc::clone(&tally);
        producer.send_then(stamped(due), move |result| counted.note(result)).map_err(|error| failed(&error))?;
    }
    let until = Instant::now() + Duration::from_secs(60);
    let mut took = Vec::new();
    while (took.len() as u64) < arguments.messages
        && let Ok((due, late)) = arrived.recv_deadline(until)
    {
        took.extend((due >= start).then_some(late));
    }
    let whole = took.len() as u64 == arguments.messages;
    begun.ended().report("latency", took.len() as u64, took)?;
    consumer.shutdown(Duration::from_secs(5));
    Ok(tally.told() && whole)
}
