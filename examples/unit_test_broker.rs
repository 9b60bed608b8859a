//! A broker inside a unit test: no server, no port, no waiting. `cargo run --example unit_test_broker`.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;
use windlass::{Message, Outcome, StartFrom, broker::Broker};

fn main() -> Result<(), windlass::Error> {
    let broker = Broker::ephemeral().topic("orders", 4).delay_scale(0.001).start()?; // a retry after 10 s comes after 10 ms
    let client = broker.client()?;
    let calls = Arc::new(AtomicU32::new(0));
    let seen = Arc::clone(&calls);
    let _consumer = client
        .push_consumer("g")
        .subscribe("orders", "*")
        .start_from(StartFrom::First)
        .handler(move |_batch| if seen.fetch_add(1, Ordering::SeqCst) == 0 { Outcome::Retry } else { Outcome::Done })
        .start()?;
    client.producer("p").start()?.send(Message::new("orders", "x"))?;
    broker.wait_drained("g", Duration::from_secs(10))?;
    assert_eq!(calls.load(Ordering::SeqCst), 2, "the first failed, its retry did not");
    println!("delivered twice, as a failed message must be");
    Ok(())
}
