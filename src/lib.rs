//! A message-queue client for programs without an async runtime.
//!
//! This crate speaks Apache RocketMQ's remoting protocol with threads only, and carries a RocketMQ-compatible embedded
//! broker, so that a new program and every test need no server.
//!
//! - [`Client`] is made once and shared; [`Client::builder`] has its settings, [`Client::from_env`] reads
//!   `NAMESRV_ADDR`.
//! - [`Client::push_consumer`] builds a [`PushConsumer`]. Its handler gets a [`Batch`] of [`Delivery`]s and answers
//!   with an [`Outcome`]; what happens meanwhile is told to an [`Observer`] as [`Event`]s.
//! - [`Client::producer`] builds a [`Producer`]: `send` waits for a [`Receipt`], `send_async` gives a [`Ticket`],
//!   [`Producer::topic`] a [`TopicWriter`] for many small messages of one topic.
//! - `broker::Broker` (feature `broker`) is a broker and name server in this process: durable by `open`, for a test by
//!   `ephemeral`, with [`TestClock`] in the test's own time.
//! - Operations have errors of their own: [`StartError`], [`SendError`], [`BatchError`], [`WaitError`], and
//!   [`CommitError`] in events and reports; all of them become [`Error`] by `?`.
//! - [`coming_from`] says what the settings of Java's and Go's clients are called here.
//!
//! ```
//! # #[cfg(feature = "broker")]
//! # fn main() -> Result<(), windlass::Error> {
//! use std::time::Duration;
//! use windlass::{Message, broker::Broker};
//!
//! let broker = Broker::ephemeral().topic("orders", 4).start()?;
//! let client = broker.client()?; // against a cluster: Client::builder().name_servers(["host:9876"]).build()?
//! let consumer = client
//!     .push_consumer("billing")
//!     .subscribe("orders", "*")
//!     .handler(|batch| batch.iter().for_each(|message| println!("{:?}", message.body())))
//!     .start()?;
//! client.producer("orders-writer").start()?.send(Message::new("orders", "seven").tag("paid"))?;
//! broker.wait_drained("billing", Duration::from_secs(10))?;
//! assert!(consumer.shutdown(Duration::from_secs(5)).is_clean());
//! # Ok(())
//! # }
//! # #[cfg(not(feature = "broker"))]
//! # fn main() {}
//! ```
//!
//! Nothing here needs an async runtime: every call that waits has a deadline, every thread a name that begins with
//! `wl-`. Logs go through the `log` crate, under targets `windlass::...`; no logger is installed.

// What only tests, benches and fuzz targets use is seen to be used with the feature that shows it to them.
#![cfg_attr(not(feature = "internals"), allow(dead_code, unused_imports))]

mod consume;
mod disk;
mod error;
mod model;
mod net;
mod rocketmq;
mod wire;
mod work;

#[cfg(feature = "broker")]
pub mod broker;
#[cfg(feature = "broker")]
mod embedded;

pub use consume::listener::{IntoOutcome, Outcome};
pub use consume::progress::{OffsetStore, OffsetStoreError};
pub use error::{Attempt, ConfigError, Error, Stage, StartError, Stored, WireError};
pub use model::{DelayLevel, Message, Queue, QueueOffset, StartFrom};
pub use rocketmq::consumer::assign::{Assign, Averaging};
pub use rocketmq::consumer::delivery::{Batch, Deliveries, Delivery, DetachedDelivery};
pub use rocketmq::consumer::handler::Listener;
pub use rocketmq::consumer::outcome::CommitError;
pub use rocketmq::consumer::push::{PushConsumer, PushConsumerBuilder};
pub use rocketmq::consumer::received::{OwnedMessage, PropertyIter};
pub use rocketmq::producer::{
    BatchError, BatchReceipt, MessageId, OffsetId, Producer, ProducerBuilder, Receipt, SendError, SendStatus, Ticket,
    TopicWriter, WaitError,
};
pub use rocketmq::{Assigned, Client, ClientBuilder, ConsumerReport, Event, Observer, PauseReason, ShutdownReport};
pub use work::clock::{Clock, TestClock};

#[doc = include_str!("coming_from.md")]
pub mod coming_from {}

/// The programs of README compile, and the first one runs.
#[cfg(all(doctest, feature = "broker"))]
#[doc = include_str!("../README.md")]
struct Readme;

/// What this crate's own simulation, benches and fuzz targets may see. Nothing else may use it; it may change at any
/// time.
#[doc(hidden)]
#[cfg(feature = "internals")]
pub mod internals {
    /// See `src/wire`.
    pub mod wire {
        pub use crate::wire::*;
    }
    /// See `src/model`.
    pub mod model {
        pub use crate::model::*;
    }
    /// See `src/work`.
    pub mod work {
        pub use crate::work::*;
    }
    /// See `src/disk`.
    pub mod disk {
        pub use crate::disk::*;
    }
    /// See `src/net`.
    pub mod net {
        pub use crate::net::*;
    }
    /// See `src/consume`.
    pub mod consume {
        pub use crate::consume::*;
    }
    /// See `src/rocketmq`.
    pub mod rocketmq {
        pub use crate::rocketmq::*;
    }
    /// See `src/broker`: the role of its loop and the dispatcher.
    #[cfg(feature = "broker")]
    pub mod broker {
        pub use crate::broker::inside::*;
    }
    /// See `src/broker/store`.
    #[cfg(feature = "broker")]
    pub mod store {
        pub use crate::broker::store::*;
    }
}
