//! Consumes a topic until the program is ended: `cargo run --example push_consumer -- HOST:PORT` of a name server.

use std::time::Duration;
use windlass::{Client, DelayLevel, Outcome, StartFrom};

fn main() -> Result<(), windlass::Error> {
    let name_server = std::env::args().nth(1).unwrap_or_else(|| "127.0.0.1:9876".into());
    let client = Client::builder().name_servers([name_server]).workers(8).build()?;
    let _billing = client
        .push_consumer("billing")
        .subscribe("orders", "paid || refunded")
        .start_from(StartFrom::First)
        .batch(16, Duration::from_millis(20))
        .max_redeliveries(16) // 17 deliveries in all, then the dead-letter topic
        .observer(|event: &windlass::Event| eprintln!("{event}"))
        .handler(|batch| {
            for message in batch {
                match std::str::from_utf8(message.body()) {
                    Ok("later") => message.retry(DelayLevel::at_least(Duration::from_secs(30))),
                    Ok(text) => {
                        println!("{} {}: {text}", message.queue(), message.offset());
                        message.done();
                    }
                    Err(error) => message.dead_letter(error),
                }
            }
            Outcome::Retry // whatever an early exit left unmarked
        })
        .start()?;
    loop {
        std::thread::park(); // the consumer works on threads of its own; dropping it stops them
    }
}
