//! What comes of a send: a receipt, or an error that gives the message back and says what was tried.

use std::fmt;
use std::net::{IpAddr, SocketAddr};

use crate::error::{Attempt, Error, Stored};
use crate::model::{Message, Queue, QueueOffset};

use super::unique::MessageId;

/// A broker has stored the message.
#[derive(Clone, Debug, Eq, PartialEq)]
#[non_exhaustive]
pub struct Receipt {
    /// The queue it is in.
    pub queue: Queue,
    /// Its position there.
    pub offset: QueueOffset,
    /// How safely it is stored.
    pub status: SendStatus,
    /// The id it was given before the first attempt (Java's `getMsgId`, property `UNIQ_KEY`).
    pub message_id: MessageId,
    /// The broker's own id, which says where the message lies (Java's `getOffsetMsgId`).
    pub offset_message_id: OffsetId,
}

/// A broker's own id of a stored message: upper-case hex of its address, its port and the position in its log.
///
/// Source: apache/rocketmq@rocketmq-all-4.9.3 common/src/main/java/org/apache/rocketmq/common/message/MessageDecoder.java
#[derive(Clone)]
pub struct OffsetId(Known);

#[derive(Clone)]
enum Known {
    /// As a broker wrote it.
    Text(Box<str>),
    /// By its parts: nothing is written until somebody asks. Only the direct port knows them.
    #[cfg_attr(not(feature = "broker"), allow(dead_code))]
    Place { broker: SocketAddr, position: i64 },
}

impl OffsetId {
    /// The id as a broker's answer has it, whatever its form.
    pub(crate) fn from_text(text: &str) -> Self {
        Self(Known::Text(text.into()))
    }

    /// The id of what lies at `position` in the log of `broker`.
    #[cfg_attr(not(feature = "broker"), allow(dead_code))]
    pub(crate) fn of(broker: SocketAddr, position: i64) -> Self {
        Self(Known::Place { broker, position })
    }
}

impl fmt::Display for OffsetId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.0 {
            Known::Text(text) => f.write_str(text),
            Known::Place { broker, position } => {
                match broker.ip() {
                    IpAddr::V4(ip) => write!(f, "{:08X}", u32::from(ip))?,
                    IpAddr::V6(ip) => write!(f, "{:032X}", u128::from(ip))?,
                }
                write!(f, "{:08X}{position:016X}", broker.port())
            }
        }
    }
}

/// By the text, whatever it was made from.
impl PartialEq for OffsetId {
    fn eq(&self, other: &Self) -> bool {
        self.to_string() == other.to_string()
    }
}

impl Eq for OffsetId {}

impl fmt::Debug for OffsetId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// How safely a broker has stored a message. In all cases it is stored and will be delivered.
///
/// Source: apache/rocketmq@rocketmq-all-4.9.3 client/src/main/java/org/apache/rocketmq/client/producer/SendStatus.java
#[derive(Clone, Copy, Debug, Eq, Hash, PartialEq)]
#[non_exhaustive]
pub enum SendStatus {
    /// As the broker promises (`SEND_OK`).
    Stored,
    /// Not yet confirmed to be on the disk (`FLUSH_DISK_TIMEOUT`).
    FlushTimeout,
    /// No replica was there to take it (`SLAVE_NOT_AVAILABLE`).
    NoReplica,
    /// Not yet confirmed by a replica (`FLUSH_SLAVE_TIMEOUT`).
    ReplicaTimeout,
}

impl SendStatus {
    /// The status a response code stands for; `None` if the code means that nothing was stored.
    pub(super) fn of_code(code: i32) -> Option<Self> {
        match code {
            0 => Some(Self::Stored),
            10 => Some(Self::FlushTimeout),
            11 => Some(Self::NoReplica),
            12 => Some(Self::ReplicaTimeout),
            _ => None,
        }
    }

    /// Java's name.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Stored => "SEND_OK",
            Self::FlushTimeout => "FLUSH_DISK_TIMEOUT",
            Self::NoReplica => "SLAVE_NOT_AVAILABLE",
            Self::ReplicaTimeout => "FLUSH_SLAVE_TIMEOUT",
        }
    }
}

impl fmt::Display for SendStatus {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.as_str())
    }
}

/// What the errors of sends tell, whatever they give back: they differ in that alone.
macro_rules! by_its_cause {
    ($error:ty) => {
        impl $error {
            /// Why there is no receipt. [`Error::Send`] if an attempt was made.
            pub fn cause(&self) -> &Error {
                &self.cause
            }

            /// Every attempt in order: broker, how far it came, how long it took, the code of the answer. Empty if the
            /// send was refused before the first.
            pub fn attempts(&self) -> &[Attempt] {
                self.cause.attempts()
            }

            /// Whether a broker may have stored it all the same. If so, sending it again may make a second copy.
            pub fn stored(&self) -> Stored {
                match self.cause {
                    Error::Send { stored, .. } => stored,
                    _ => Stored::No,
                }
            }

            /// True if the same send may succeed later.
            pub fn is_retryable(&self) -> bool {
                self.cause.is_retryable()
            }

            /// The last code a broker answered with, if any did.
            pub fn broker_code(&self) -> Option<i32> {
                self.cause.broker_code()
            }
        }

        impl fmt::Display for $error {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                self.cause.fmt(f)
            }
        }

        impl std::error::Error for $error {
            fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
                self.cause.source()
            }
        }

        impl From<$error> for Error {
            fn from(error: $error) -> Self {
                error.cause
            }
        }

        impl From<Box<$error>> for Error {
            fn from(error: Box<$error>) -> Self {
                error.cause
            }
        }
    };
}

/// A message was not acknowledged. Gives the message back, unchanged, and lists what was tried.
#[derive(Debug)]
pub struct SendError {
    message: Message,
    cause: Error,
}

impl SendError {
    /// `cause` says why no receipt came; for a message that was tried it is [`Error::Send`].
    pub(super) fn new(message: Message, cause: Error) -> Box<Self> {
        Box::new(Self { message, cause })
    }

    /// The message as it was given.
    pub fn message(&self) -> &Message {
        &self.message
    }

    /// The message as it was given, to be sent again or kept.
    pub fn into_message(self) -> Message {
        self.message
    }
}

by_its_cause!(SendError);

/// A broker has stored a batch.
#[derive(Clone, Debug, Eq, PartialEq)]
#[non_exhaustive]
pub struct BatchReceipt {
    /// The queue all of them are in.
    pub queue: Queue,
    /// Position of the first; the others follow it.
    pub first: QueueOffset,
    /// How safely they are stored.
    pub status: SendStatus,
    /// The id of each message, in their order.
    pub message_ids: Vec<MessageId>,
}

/// A batch was not acknowledged. Gives all its messages back.
#[derive(Debug)]
pub struct BatchError {
    messages: Vec<Message>,
    cause: Error,
}

impl BatchError {
    pub(super) fn new(messages: Vec<Message>, cause: Error) -> Self {
        Self { messages, cause }
    }

    /// The messages as they were given.
    pub fn messages(&self) -> &[Message] {
        &self.messages
    }

    /// The messages as they were given, to be sent again or kept.
    pub fn into_messages(self) -> Vec<Message> {
        self.messages
    }
}

by_its_cause!(BatchError);

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::Stage;
    use std::time::Duration;

    #[test]
    fn a_broker_s_id_reads_the_same_from_its_parts() {
        let v4 = OffsetId::of("127.0.0.1:10911".parse().unwrap(), 4096);
        assert_eq!(v4.to_string(), "7F00000100002A9F0000000000001000");
        let v6 = OffsetId::of("[::1]:10911".parse().unwrap(), 1);
        assert_eq!(v6.to_string(), "0000000000000000000000000000000100002A9F0000000000000001");
        assert_eq!(OffsetId::from_text("odd").to_string(), "odd");
        assert_eq!(v4, OffsetId::from_text("7F00000100002A9F0000000000001000"));
        assert_ne!(v4, v6);
    }

    #[test]
    fn b185_ten_to_twelve_are_stored() {
        let stored: Vec<i32> = (-1..2000).filter(|code| SendStatus::of_code(*code).is_some()).collect();
        assert_eq!(stored, [0, 10, 11, 12]);
    }

    #[test]
    fn d35_a_failed_send_gives_the_message_back_and_lists_its_attempts() {
        let attempt = Attempt {
            broker: "a".into(),
            stage: Stage::Wait,
            took: Duration::from_millis(1500),
            code: None,
            detail: "no answer".into(),
        };
        let cause = Error::Send { topic: "t".into(), attempts: vec![attempt.clone()], stored: Stored::Unknown };
        let error = SendError::new(Message::new("t", "b").tag("x"), cause);
        assert_eq!((error.attempts(), error.stored()), (&[attempt][..], Stored::Unknown));
        assert!(error.is_retryable() && error.broker_code().is_none());
        assert_eq!(
            error.to_string(),
            "message to t was not acknowledged and may be stored; \
             broker a, waiting for the answer ended after 1500 ms: no answer"
        );
        let fails = || -> Result<(), Error> {
            Err(SendError::new(Message::new("t", "b"), Error::Closed))?;
            Ok(())
        };
        assert!(matches!(fails(), Err(Error::Closed)));
        assert_eq!(error.into_message(), Message::new("t", "b").tag("x"));
    }
}
