//! `windlass consume`: a member of a group that prints one line per message, flushed before the message counts as
//! consumed.

use crate::output::{self, line};
use crate::record;
use crate::stop::{Stop, Tell, Why};
use crate::{Cluster, Ended, moment};
use serde_json::{Map, Value, json};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;
use windlass::{Batch, Client, ConsumerReport, Delivery, Event, Outcome, StartFrom};

/// What comes when the count is reached already waits so long before it is handled: the stop arrives meanwhile, so that
/// no more than one handler call of each worker goes beyond the count.
const LATE: Duration = Duration::from_millis(100);
/// Longest orderly end. A handler of --handler-ms gets that time beside it; --timeout leaves both what it leaves.
const STOP: Duration = Duration::from_secs(10);
/// What --timeout keeps for the end, and at most a tenth of it: it is the time of the whole command.
const LAST: Duration = Duration::from_secs(1);
/// What the end gets if it has begun too late.
const LEAST: Duration = Duration::from_millis(50);

#[derive(clap::Args)]
pub struct Arguments {
    #[command(flatten)]
    cluster: Cluster,
    /// The topic.
    #[arg(short = 't', long)]
    topic: String,
    /// The group.
    #[arg(short = 'g', long)]
    group: String,
    /// Tags joined by `||`, or `*`.
    #[arg(long, value_name = "EXPR", default_value = "*")]
    tag: String,
    /// Where a new group starts: first, last, Unix milliseconds, or RFC 3339.
    #[arg(long, value_name = "first|last|TIME", default_value = "last", value_parser = moment::start_from)]
    from: StartFrom,
    /// End after this many deliveries; what runs then is finished and printed too.
    #[arg(long, value_parser = clap::value_parser!(u64).range(1..))]
    count: Option<u64>,
    /// End within this time, with exit code 1. A handler that still runs then has consumed nothing.
    #[arg(long, value_name = "SECONDS", value_parser = moment::seconds)]
    timeout: Option<Duration>,
    /// Handlers that run at once.
    #[arg(long, default_value_t = 20, value_parser = clap::value_parser!(u16).range(1..=1024))]
    workers: u16,
    /// Most messages of one handler call.
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u16).range(1..=1024))]
    batch: u16,
    /// A handler call takes this long.
    #[arg(long, value_name = "MS", default_value_t = 0)]
    handler_ms: u64,
    /// What becomes of every message.
    #[arg(long, value_enum, default_value_t = Fate::Done)]
    outcome: Fate,
    /// One JSON object per message, event, and for the summary.
    #[arg(long)]
    json: bool,
}

#[derive(Clone, Copy, clap::ValueEnum)]
enum Fate {
    Done,
    Retry,
    DeadLetter,
}

/// True if `--count` was reached, or a signal came where there is none.
pub fn run(arguments: Arguments) -> Result<bool, Ended> {
    let stop = Stop::new(arguments.timeout)?;
    let last = arguments.timeout.map_or(Duration::ZERO, |timeout| LAST.min(timeout / 10));
    let client = Client::builder()
        .name_servers(arguments.cluster.name_servers()?)
        .workers(usize::from(arguments.workers))
        .build()?;
    let printer = Arc::new(Printer {
        json: arguments.json,
        fate: arguments.outcome,
        takes: Duration::from_millis(arguments.handler_ms),
        count: arguments.count,
        tell: stop.tell(),
        bar: output::progress(arguments.count),
        received: AtomicU64::new(0),
        handled: AtomicU64::new(0),
        broken: AtomicBool::new(false),
        ended: AtomicBool::new(false),
    });
    let (handling, events) = (Arc::clone(&printer), Arc::clone(&printer));
    let consumer = client
        .push_consumer(arguments.group.as_str())
        .subscribe(arguments.topic.as_str(), arguments.tag.as_str())
        .start_from(arguments.from)
        .batch(u32::from(arguments.batch), Duration::ZERO)
        .observer(move |event: &Event| events.event(event))
        .handler(move |batch: &Batch<'_>| handling.handle(batch))
        .start()?;
    let why = stop.wait_but(last);
    let within = |most: Duration| stop.left().map_or(most, |left| most.min(left.max(LEAST)));
    let report = consumer.shutdown(within(STOP + printer.takes));
    client.shutdown(within(Duration::from_secs(2)));
    printer.bar.finish_and_clear();
    printer.summary(&arguments.topic, &report);
    if printer.broken.load(Ordering::Relaxed) {
        return Err(Ended::Failed("standard output is closed".into()));
    }
    if printer.ended.load(Ordering::Relaxed) {
        return Err(Ended::Failed("the client has ended by itself".into()));
    }
    Ok(match why {
        _ if printer.reached() => true,
        Why::Signal => arguments.count.is_none(),
        Why::Done | Why::Timeout => false,
    })
}

/// What the handlers share.
struct Printer {
    json: bool,
    fate: Fate,
    takes: Duration,
    count: Option<u64>,
    tell: Tell,
    bar: indicatif::ProgressBar,
    received: AtomicU64,
    handled: AtomicU64,
    /// Standard output took no more: nothing is consumed after that.
    broken: AtomicBool,
    /// The client's loop has ended by itself: nothing comes any more.
    ended: AtomicBool,
}

impl Printer {
    fn handle(&self, batch: &Batch<'_>) -> Outcome {
        let messages = batch.len() as u64;
        let before = self.received.fetch_add(messages, Ordering::Relaxed);
        if self.count.is_some_and(|count| before >= count) {
            std::thread::sleep(LATE);
        }
        if !self.takes.is_zero() {
            std::thread::sleep(self.takes);
        }
        let text: Vec<String> = batch.iter().map(|message| self.message(&message)).collect();
        if self.broken.load(Ordering::Relaxed) || line(&text.join("\n")).is_err() {
            self.broken.store(true, Ordering::Relaxed);
            self.tell.done();
            return Outcome::Retry;
        }
        self.bar.inc(messages);
        self.handled.fetch_add(messages, Ordering::Relaxed);
        if self.reached() {
            self.tell.done();
        }
        match self.fate {
            Fate::Done => Outcome::Done,
            Fate::Retry => Outcome::Retry,
            Fate::DeadLetter => Outcome::DeadLetter,
        }
    }

    fn reached(&self) -> bool {
        self.count.is_some_and(|count| self.handled.load(Ordering::Relaxed) >= count)
    }

    fn message(&self, message: &Delivery<'_>) -> String {
        let queue = message.queue();
        if self.json {
            return record::message(message).to_string();
        }
        let body = String::from_utf8_lossy(message.body());
        // one message is one line, whatever its body holds
        let mut line = String::with_capacity(body.len());
        for c in body.chars() {
            if c.is_control() { line.extend(c.escape_default()) } else { line.push(c) }
        }
        format!("{queue} {} {} {} {line}", message.offset(), message.message_id(), message.tag().unwrap_or("-"))
    }

    fn event(&self, event: &Event) {
        if let Event::ClientEnded { .. } = event {
            self.ended.store(true, Ordering::Relaxed);
            self.tell.done();
        }
        let text = if self.json { record::event(event).to_string() } else { event.to_string() };
        self.bar.suspend(|| output::note(&text));
    }

    fn summary(&self, topic: &str, report: &ConsumerReport) {
        let received = self.received.load(Ordering::Relaxed);
        let ConsumerReport { finished, retried, dead_lettered, dropped, .. } = report;
        // the group's retry topic has queues of the same names
        let of_topic = report.committed.iter().filter(|(queue, _)| *queue.topic == *topic);
        let committed: Map<String, Value> =
            of_topic.map(|(queue, offset)| (format!("{}/{}", queue.broker, queue.id), offset.0.into())).collect();
        if self.json {
            let summary = json!({
                "received": received, "finished": finished, "retried": retried, "dead_lettered": dead_lettered,
                "dropped": dropped, "committed": committed,
            });
            output::note(&json!({ "summary": summary }).to_string());
            return;
        }
        output::note(&format!(
            "received {received}, finished {finished}, retried {retried}, dead-lettered {dead_lettered}, dropped \
             {dropped}, committed {}",
            Value::Object(committed)
        ));
    }
}
