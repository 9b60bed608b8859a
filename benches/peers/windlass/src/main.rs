//! The least that consumes a topic with windlass: `consumer HOST:PORT` of a name server.

use windlass::{Client, Outcome};

fn main() -> Result<(), windlass::Error> {
    let name_server = std::env::args().nth(1).unwrap_or_else(|| "127.0.0.1:9876".into());
    let client = Client::builder().name_servers([name_server]).build()?;
    let _consumer = client
        .push_consumer("build-ratio")
        .subscribe("build-ratio", "*")
        .handler(|batch| {
            for message in batch {
                println!("{} bytes", message.body().len());
            }
            Outcome::Done
        })
        .start()?;
    loop {
        std::thread::park();
    }
}
