//! Progress beside the data it stands for: a consumer whose offsets are rows of the SQLite file that its handler writes to.
//!
//! `cargo run --manifest-path examples/sqlite_offsets/Cargo.toml` starts an embedded broker, consumes in two lives of one
//! consumer, and shows what the file holds. The broker has a copy of the offsets, for whoever looks at its lag; if it were
//! lost, or the file were restored from a backup, the file would decide.

use std::error::Error;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use rusqlite::{Connection, OptionalExtension, params};
use windlass::broker::Broker;
use windlass::{Client, Message, OffsetStore, OffsetStoreError, Outcome, Queue, QueueOffset, StartFrom};

/// One connection for data and offsets, so that they are in one file and can be backed up, restored and moved together.
#[derive(Clone)]
struct Ledger(Arc<Mutex<Connection>>);

impl Ledger {
    fn open() -> Result<Self, rusqlite::Error> {
        let db = Connection::open_in_memory()?; // a path, in earnest
        db.execute_batch(
            "CREATE TABLE entry (id TEXT PRIMARY KEY, body TEXT);
             CREATE TABLE progress (topic TEXT, broker TEXT, queue INTEGER, next INTEGER, PRIMARY KEY (topic, broker, queue));",
        )?;
        Ok(Self(Arc::new(Mutex::new(db))))
    }

    /// Applies a message. Delivery is at least once: the message's own id keeps a second one from counting.
    fn enter(&self, id: &str, body: &str) -> Result<(), Box<dyn Error + Send + Sync>> {
        let db = self.0.lock().map_err(|_| "a handler has panicked")?;
        db.execute("INSERT OR IGNORE INTO entry VALUES (?1, ?2)", params![id, body])?;
        Ok(())
    }
}

impl OffsetStore for Ledger {
    fn load(&self, queue: &Queue) -> Result<Option<QueueOffset>, OffsetStoreError> {
        let db = self.0.lock().map_err(|_| "a handler has panicked")?;
        let of = params![&*queue.topic, &*queue.broker, queue.id];
        let next = db
            .query_row("SELECT next FROM progress WHERE topic = ?1 AND broker = ?2 AND queue = ?3", of, |row| {
                row.get(0)
            })
            .optional()?;
        Ok(next.map(QueueOffset))
    }

    fn store(&self, progress: &[(Queue, QueueOffset)]) -> Result<(), OffsetStoreError> {
        let mut db = self.0.lock().map_err(|_| "a handler has panicked")?;
        let all = db.transaction()?; // all of it, or none
        for (queue, next) in progress {
            let row = params![&*queue.topic, &*queue.broker, queue.id, next.0];
            all.execute("INSERT OR REPLACE INTO progress VALUES (?1, ?2, ?3, ?4)", row)?;
        }
        Ok(all.commit()?)
    }
}

fn consume(client: &Client, ledger: &Ledger) -> Result<u64, windlass::Error> {
    let entries = ledger.clone();
    let consumer = client
        .push_consumer("bookkeeping")
        .subscribe("entries", "*")
        .start_from(StartFrom::First)
        .offset_store(ledger.clone())
        .handler(move |batch| {
            for message in batch {
                entries.enter(&message.message_id(), &String::from_utf8_lossy(message.body()))?;
            }
            Ok::<_, Box<dyn Error + Send + Sync>>(Outcome::Done)
        })
        .start()?;
    std::thread::sleep(Duration::from_secs(1)); // a program would go on with its own work
    Ok(consumer.shutdown(Duration::from_secs(5)).finished)
}

fn main() -> Result<(), Box<dyn Error>> {
    let broker = Broker::ephemeral().topic("entries", 2).start()?;
    let ledger = Ledger::open()?;
    for life in 1..=2 {
        let client = broker.client()?;
        let producer = client.producer("bookkeeper").start()?;
        for n in 0..100 {
            producer.send(Message::new("entries", format!("life {life}, entry {n}")))?;
        }
        println!("life {life}: {} messages finished", consume(&client, &ledger)?);
        client.shutdown(Duration::from_secs(5)).into_result()?;
    }
    let db = ledger.0.lock().map_err(|_| "a handler has panicked")?;
    let entries: i64 = db.query_row("SELECT count(*) FROM entry", [], |row| row.get(0))?;
    let progress: i64 = db.query_row("SELECT sum(next) FROM progress WHERE topic = 'entries'", [], |row| row.get(0))?;
    println!("the file holds {entries} entries and stands at {progress} offsets");
    if (entries, progress) != (200, 200) {
        return Err("200 of both were sent".into());
    }
    Ok(())
}
