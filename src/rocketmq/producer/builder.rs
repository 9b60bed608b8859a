//! The builder of a producer: every setting with its default, bounds and Java name. `settings.rs` checks them.

use std::fmt;
use std::time::Duration;

use crate::error::StartError;
use crate::rocketmq::client::Client;

use super::send::{Core, Producer};
use super::settings::{Asked, Settings};

impl Client {
    /// A producer of `group` (Java's `DefaultMQProducer`). Brokers know it by the group and may ask any member of it
    /// about transactions.
    pub fn producer(&self, group: impl Into<String>) -> ProducerBuilder {
        ProducerBuilder { client: self.clone(), group: group.into(), asked: Asked::default() }
    }
}

/// Settings of a producer; [`start`](Self::start) makes it.
#[derive(Clone)]
#[must_use = "a producer exists once it is started"]
pub struct ProducerBuilder {
    client: Client,
    group: String,
    asked: Asked,
}

impl ProducerBuilder {
    /// How long one send may take, all attempts together. Default 3 s, allowed 1 ms to 1 h. (Java's `sendMsgTimeout`.)
    pub fn send_deadline(mut self, time: Duration) -> Self {
        self.asked.send_deadline = Some(time);
        self
    }

    /// How long one attempt may take. While retries are left, an attempt never gets more than half of the remaining time
    /// anyway, so that a silent broker leaves time for another one. Default: no further limit; allowed 1 ms to 1 h.
    /// (Java's `sendMsgMaxTimeoutPerRequest`.)
    pub fn attempt_limit(mut self, time: Duration) -> Self {
        self.asked.attempt_limit = Some(time);
        self
    }

    /// Attempts of a synchronous send beyond the first. A retry may store the message a second time, under the same id.
    /// Default 2, allowed 0 to 100. (Java's `retryTimesWhenSendFailed`.)
    pub fn retries(mut self, times: u32) -> Self {
        self.asked.retries = Some(times);
        self
    }

    /// Attempts of an asynchronous send beyond the first; only a lost connection or a missing answer is tried again.
    /// Default 2, allowed 0 to 100. (Java's `retryTimesWhenSendAsyncFailed`.)
    pub fn async_retries(mut self, times: u32) -> Self {
        self.asked.async_retries = Some(times);
        self
    }

    /// Also tries again after this response code. Codes 1, 2, 14, 16, 17, 204, 205 and 1500 always are. (Java's
    /// `addRetryResponseCode`.)
    pub fn retry_code(mut self, code: i32) -> Self {
        self.asked.retry_codes.insert(code);
        self
    }

    /// Tries again when a broker has stored the message but could not confirm flush or replica in time; the receipt of
    /// the earlier attempt counts if no later one is better. Default no. (Java's `retryAnotherBrokerWhenNotStoreOK`.)
    pub fn retry_unconfirmed(mut self, again: bool) -> Self {
        self.asked.retry_unconfirmed = again;
        self
    }

    /// Bodies of at least this many bytes are compressed (zlib), if that makes them shorter; never those of a batch.
    /// Default 4096, allowed from 1 up; `usize::MAX` turns compression off. (Java's `compressMsgBodyOverHowmuch`.)
    pub fn compress_over(mut self, bytes: usize) -> Self {
        self.asked.compress_over = Some(bytes);
        self
    }

    /// How hard compression tries: 1 is fast, 9 is small. Default 5, allowed 1 to 9. (Java's system property
    /// `rocketmq.message.compressLevel`.)
    pub fn compress_level(mut self, level: u32) -> Self {
        self.asked.compress_level = Some(level);
        self
    }

    /// Longest body in bytes, before compression; for a batch, all of it. Brokers have a limit of their own, 4 MiB by
    /// default. Default 4 MiB, allowed 1 byte to 15 MiB. (Java's `maxMessageSize`.)
    pub fn max_message_size(mut self, bytes: usize) -> Self {
        self.asked.max_message_size = Some(bytes);
        self
    }

    /// Most asynchronous sends on their way at once: messages and bytes of bodies. Who sends more waits, at most
    /// `send_deadline`. Default 10 000 messages and 100 MiB, allowed 1 to 1 000 000 and 1 MiB or more. (Java's
    /// `backPressureForAsyncSendNum` and `backPressureForAsyncSendSize`.)
    pub fn in_flight(mut self, messages: usize, bytes: usize) -> Self {
        (self.asked.in_flight_messages, self.asked.in_flight_bytes) = (Some(messages), Some(bytes));
        self
    }

    /// The topic whose settings a broker copies when it makes a topic by itself. Default `TBW102`. (Java's
    /// `createTopicKey`.)
    pub fn template_topic(mut self, topic: impl Into<String>) -> Self {
        self.asked.template_topic = Some(topic.into());
        self
    }

    /// Queues per broker of a topic that a send creates. Default 4, allowed 1 to 1024; the template topic may allow fewer. (Java's
    /// `defaultTopicQueueNums`.)
    pub fn template_queues(mut self, queues: i32) -> Self {
        self.asked.template_queues = Some(queues);
        self
    }

    /// Checks the settings and makes the producer known to the brokers' heartbeats. Asks no broker: the route of a topic
    /// is looked up by the first send to it.
    ///
    /// # Errors
    /// [`StartError::Config`] naming the setting; [`StartError::Closed`] if the client has been shut down.
    pub fn start(self) -> Result<Producer, StartError> {
        let settings = Settings::checked(self.group, self.asked)?;
        Core::start(&self.client, settings)
    }
}

impl fmt::Debug for ProducerBuilder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ProducerBuilder")
            .field("group", &self.group)
            .field("asked", &self.asked)
            .finish_non_exhaustive()
    }
}
