//! A message-queue client for programs without an async runtime.
//!
//! This crate speaks Apache RocketMQ's remoting protocol with threads only, and carries a RocketMQ-compatible embedded
//! broker, so that a new program and every test need no server.

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
pub use error::{Attempt, ConfigError, Error, Stage, Stored, WireError};
pub use model::{DelayLevel, Message, Queue, QueueOffset, StartFrom};
pub use rocketmq::consumer::assign::{Assign, Averaging};
pub use rocketmq::consumer::delivery::{Batch, Deliveries, Delivery, DetachedDelivery};
pub use rocketmq::consumer::handler::Listener;
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
