//! The main job: two threads produce 10 000 messages, a pool consumes them, some handlers fail once and get their message
//! again. It runs on an embedded broker; with `-- -n HOST:PORT` on an Apache RocketMQ cluster.

use std::sync::atomic::{AtomicU32, Ordering::Relaxed};
use std::sync::{Arc, mpsc};
use std::time::{Duration, Instant};
use windlass::{Client, DelayLevel, Error, Message, Outcome, StartFrom, broker::Broker};

const SENT: u32 = 10_000;
const FAIL_EVERY: u32 = 500;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let topic = format!("quickstart-{}", std::process::id());
    let (_broker, client) = match (std::env::args().nth(1).as_deref(), std::env::args().nth(2)) {
        (Some("-n"), Some(cluster)) => (None, Client::builder().name_servers([cluster]).build()?),
        _ => {
            let broker = Broker::ephemeral().topic(topic.as_str(), 4).delay_scale(0.1).start()?; // a retry after 1 s comes after 0.1 s
            let client = broker.client()?;
            (Some(broker), client)
        }
    };
    let (received, (finished, results)) = (Arc::new(AtomicU32::new(0)), mpsc::channel());
    let count = Arc::clone(&received);
    let begun = Instant::now();
    let consumer = client
        .push_consumer(format!("{topic}-group"))
        .subscribe(topic.as_str(), "*")
        .start_from(StartFrom::First)
        .handler(move |batch| {
            for message in batch {
                count.fetch_add(1, Relaxed);
                let number: u32 =
                    std::str::from_utf8(message.body()).ok().and_then(|text| text.parse().ok()).unwrap_or(SENT);
                if number.is_multiple_of(FAIL_EVERY) && message.redeliveries() == 0 {
                    message.retry(DelayLevel::new(1));
                } else {
                    message.done();
                    finished.send(number).ok();
                }
            }
            Outcome::Retry // what is not marked
        })
        .start()?;
    let producer = client.producer("quickstart").start()?;
    let send = |mut numbers: std::ops::Range<u32>| {
        numbers
            .try_for_each(|n| producer.send(Message::new(topic.as_str(), n.to_string())).map(drop).map_err(Error::from))
    };
    let mut numbers = std::thread::scope(|scope| {
        let halves = [scope.spawn(|| send(0..SENT / 2)), scope.spawn(|| send(SENT / 2..SENT))];
        let mut numbers = Vec::new();
        while numbers.len() < SENT as usize {
            numbers.push(results.recv_timeout(Duration::from_secs(60)).map_err(|_| "no message for 60 s")?);
            if numbers.len() % 1000 == 0 {
                println!("{:>6} of {SENT} finished after {:.2?}", numbers.len(), begun.elapsed());
            }
        }
        halves.into_iter().try_for_each(|half| half.join().unwrap_or(Err(Error::Closed)))?;
        Ok::<_, Box<dyn std::error::Error>>(numbers)
    })?;
    let took = begun.elapsed();
    let report = consumer.shutdown(Duration::from_secs(10));
    let (received, retried) = (received.load(Relaxed), SENT / FAIL_EVERY);
    println!(
        "\nsent      {SENT}\nreceived  {received}\nretried   {}\nrate      {:.0} messages/s",
        received - SENT,
        f64::from(SENT) / took.as_secs_f64()
    );
    let mut committed = 0;
    for (queue, offset) in &report.committed {
        println!("committed {offset:>6}  {queue}");
        committed += offset.0;
    }
    numbers.sort_unstable();
    let right = numbers.into_iter().eq(0..SENT) && received == SENT + retried && committed == i64::from(SENT + retried);
    right.then_some(()).ok_or_else(|| "the numbers do not add up".into())
}
