//! Sends in each of the ways there are: `cargo run --example producer -- HOST:PORT` of a name server.

use std::time::Duration;
use windlass::{Client, DelayLevel, Message};

fn main() -> Result<(), windlass::Error> {
    let name_server = std::env::args().nth(1).unwrap_or_else(|| "127.0.0.1:9876".into());
    let client = Client::builder().name_servers([name_server]).build()?;
    let producer = client.producer("orders-writer").send_deadline(Duration::from_secs(3)).start()?;

    let receipt = producer.send(Message::new("orders", "first").tag("paid").key("7"))?;
    println!("stored at {} {}", receipt.queue, receipt.offset);

    let ticket = producer.send_async(Message::new("orders", "second"))?; // goes on while the broker works
    println!("stored at {}", ticket.wait(Duration::from_secs(3))?.queue);

    let level = DelayLevel::at_least(Duration::from_secs(5));
    producer.send(Message::new("orders", "third, delivered in 5 s").delay(level))?;

    let orders = producer.topic("orders")?; // route and names resolved once
    orders.send(b"fourth")?;

    client.shutdown(Duration::from_secs(5)).into_result()
}
