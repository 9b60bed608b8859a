//! `windlass produce`: lines of standard input, or made bodies, as messages; one line of output for each, in their order.

use crate::output::{self, line};
use crate::stop::Stop;
use crate::{Cluster, Ended, moment};
use crossbeam_channel::{Receiver, bounded, never, select};
use serde_json::json;
use std::collections::VecDeque;
use std::io::BufRead;
use std::time::Duration;
use windlass::{Client, Error, Message, Producer, Queue, Receipt, Ticket};

/// Messages on their way at once. To a queue that was named it is one: brokers answer from many threads, so that only
/// an answered message is surely before the next.
const IN_FLIGHT: usize = 64;
/// Lines read ahead.
const READ_AHEAD: usize = 64;
/// Time for one message, all attempts together.
const SEND: Duration = Duration::from_secs(3);

/// The longest body that --size makes. No broker takes it: the refusal is the client's to explain.
const MOST_BYTES: i64 = 64 << 20;

#[derive(clap::Args)]
pub struct Arguments {
    #[command(flatten)]
    cluster: Cluster,
    /// The topic.
    #[arg(short = 't', long)]
    topic: String,
    /// Make this many messages instead of reading lines: message n, from 0, is "n n n ..." cut at --size.
    #[arg(long)]
    count: Option<u64>,
    /// Bytes of a made body.
    #[arg(long, default_value_t = 1024, requires = "count", value_parser = clap::value_parser!(u32).range(..=MOST_BYTES))]
    size: u32,
    /// A tag for all messages.
    #[arg(long)]
    tag: Option<String>,
    /// A key for all messages.
    #[arg(long)]
    key: Option<String>,
    /// A property for all messages; may be repeated.
    #[arg(long, value_name = "NAME=VALUE", value_parser = property)]
    property: Vec<(String, String)>,
    /// Send to this queue only.
    #[arg(long, value_name = "BROKER/ID", value_parser = broker_and_id)]
    queue: Option<(String, i32)>,
    /// End after this time; what is not acknowledged by then has failed.
    #[arg(long, value_name = "SECONDS", value_parser = moment::seconds)]
    timeout: Option<Duration>,
    /// One JSON object per message.
    #[arg(long)]
    json: bool,
}

fn property(text: &str) -> Result<(String, String), String> {
    let (name, value) = text.split_once('=').ok_or("NAME=VALUE")?;
    Ok((name.to_owned(), value.to_owned()))
}

fn broker_and_id(text: &str) -> Result<(String, i32), String> {
    let parts = text.rsplit_once('/').and_then(|(broker, id)| Some((broker, id.parse::<i32>().ok()?)));
    let (broker, id) = parts.filter(|(broker, id)| !broker.is_empty() && *id >= 0).ok_or("BROKER/ID")?;
    Ok((broker.to_owned(), id))
}

/// True if every message was stored.
pub fn run(arguments: Arguments) -> Result<bool, Ended> {
    let stop = Stop::new(arguments.timeout)?;
    let client = Client::builder().name_servers(arguments.cluster.name_servers()?).build()?;
    let deadline = arguments.timeout.map_or(SEND, |timeout| timeout.min(SEND));
    let producer = client.producer("windlass-produce").send_deadline(deadline).start()?;
    let mut sending = Sending {
        producer: &producer,
        queue: arguments.queue.as_ref().map(|(broker, id)| Queue::new(&*arguments.topic, &**broker, *id)),
        stop: &stop,
        json: arguments.json,
        bar: output::progress(arguments.count),
        waiting: VecDeque::new(),
        failed: false,
    };
    let complete = match arguments.count {
        Some(count) => made(&arguments, count, &mut sending)?,
        None => typed(&arguments, &mut sending)?,
    };
    sending.settle(0)?;
    let stored_all = complete && !sending.failed;
    sending.bar.finish_and_clear();
    client.shutdown(Duration::from_secs(2));
    Ok(stored_all)
}

/// False if a signal or the deadline came before the last.
fn made(arguments: &Arguments, count: u64, sending: &mut Sending<'_>) -> Result<bool, Ended> {
    for n in 0..count {
        if sending.stop.now().is_some() {
            return Ok(false);
        }
        sending.send(arguments.message(body(n, arguments.size as usize)))?;
    }
    Ok(true)
}

/// Until the end of standard input, or a signal. False if the deadline came first, or the input broke.
fn typed(arguments: &Arguments, sending: &mut Sending<'_>) -> Result<bool, Ended> {
    let lines = lines();
    loop {
        let timeout = sending.stop.left().map_or_else(never, crossbeam_channel::after);
        select! {
            recv(sending.stop.told()) -> _ => return Ok(true),
            recv(timeout) -> _ => return Ok(false),
            recv(lines) -> read => match read {
                Ok(Ok(body)) => sending.send(arguments.message(body))?,
                Ok(Err(error)) => return Err(error.into()),
                Err(_end) => return Ok(true),
            },
            // nothing typed for a while: what is on its way is told as it arrives
            default(Duration::from_millis(20)) => sending.settle(0)?,
        }
    }
}

/// Standard input by lines, without their ends. The thread may outlive the command, blocked in a read.
fn lines() -> Receiver<std::io::Result<Vec<u8>>> {
    let (send, receive) = bounded(READ_AHEAD);
    let read = move || {
        let mut input = std::io::stdin().lock();
        loop {
            let mut text = Vec::new();
            let read = input.read_until(b'\n', &mut text);
            if matches!(read, Ok(0)) {
                return;
            }
            if text.last() == Some(&b'\n') {
                text.pop();
            }
            // Whoever hears of an error wants no more.
            if send.send(read.map(|_bytes| text)).is_err() {
                return;
            }
        }
    };
    if let Err(error) = std::thread::Builder::new().name("wl-stdin".into()).spawn(read) {
        log::error!("cannot read standard input: {error}");
    }
    receive
}

/// Message `n` of a counted run: its number and a blank, over and over.
fn body(n: u64, size: usize) -> Vec<u8> {
    format!("{n} ").into_bytes().into_iter().cycle().take(size).collect()
}

impl Arguments {
    fn message(&self, body: Vec<u8>) -> Message {
        let mut message = Message::new(self.topic.as_str(), body);
        if let Some(tag) = &self.tag {
            message = message.tag(tag.as_str());
        }
        if let Some(key) = &self.key {
            message = message.key(key.as_str());
        }
        self.property.iter().fold(message, |message, (name, value)| message.property(name.as_str(), value.as_str()))
    }
}

/// Messages on their way, and the lines about them in the order they were given.
struct Sending<'a> {
    producer: &'a Producer,
    queue: Option<Queue>,
    stop: &'a Stop,
    json: bool,
    bar: indicatif::ProgressBar,
    waiting: VecDeque<Ticket>,
    failed: bool,
}

impl Sending<'_> {
    fn send(&mut self, message: Message) -> Result<(), Ended> {
        if let Some(queue) = &self.queue {
            let outcome = self.producer.send_to_queue(queue, message);
            return self.tell(outcome.map_err(Error::from));
        }
        match self.producer.send_async(message) {
            Ok(ticket) => self.waiting.push_back(ticket),
            Err(error) => {
                self.settle(0)?;
                self.tell(Err(error.into()))?;
            }
        }
        self.settle(IN_FLIGHT)
    }

    /// Waits until at most `most` are on their way.
    fn settle(&mut self, most: usize) -> Result<(), Ended> {
        while self.waiting.len() > most {
            let Some(ticket) = self.waiting.pop_front() else { return Ok(()) };
            // the producer's own deadline ends the wait; --timeout may end it earlier
            let wait = self.stop.left().unwrap_or(SEND * 2).min(SEND * 2);
            let outcome = ticket.wait(wait).map_err(Error::from);
            self.tell(outcome)?;
        }
        Ok(())
    }

    fn tell(&mut self, outcome: Result<Receipt, Error>) -> Result<(), Ended> {
        self.bar.inc(1);
        self.failed |= outcome.is_err();
        match (outcome, self.json) {
            (Ok(receipt), true) => line(
                &json!({
                    "status": receipt.status.as_str(),
                    "message_id": receipt.message_id.to_string(),
                    "offset_message_id": receipt.offset_message_id.to_string(),
                    "broker": &*receipt.queue.broker,
                    "queue": receipt.queue.id,
                    "offset": receipt.offset.0,
                })
                .to_string(),
            )?,
            (Ok(receipt), false) => {
                line(&format!(
                    "{} {} offset={} id={}",
                    receipt.status, receipt.queue, receipt.offset, receipt.message_id
                ))?;
            }
            (Err(error), true) => line(&json!({ "error": output::error(&error) }).to_string())?,
            (Err(error), false) => output::note(&format!("windlass: {error}")),
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn made_bodies_repeat_their_number() {
        assert_eq!(body(12, 8), b"12 12 12");
        assert_eq!(body(7, 3), b"7 7");
        assert_eq!(body(7, 0), b"");
    }

    #[test]
    fn queues_and_properties_are_read_whole() {
        assert_eq!(broker_and_id("broker-a/3"), Ok(("broker-a".to_owned(), 3)));
        for bad in ["3", "/3", "b/", "b/-1", "b/x"] {
            assert!(broker_and_id(bad).is_err(), "{bad}");
        }
        assert_eq!(property("a=b=c"), Ok(("a".to_owned(), "b=c".to_owned())));
    }
}
