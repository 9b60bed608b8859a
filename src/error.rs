//! What went wrong: to whom it happened, and whether the outcome is known.
//!
//! One enum per operation stands beside that operation in the rooms above; each of them converts into [`Error`].
//! This file holds what every room shares: [`Error`] itself, [`WireError`] (what the bytes did wrong) and
//! [`ConfigError`] (which setting, which value, which range). It knows no type of the model.

mod start;

use std::fmt;
use std::net::SocketAddr;
use std::time::Duration;

pub use start::StartError;

/// Any failure of this library, as one type.
///
/// Operations return enums of their own; all of them convert into this one, so that a caller who does not care which
/// operation failed can use `?` throughout.
#[derive(Debug)]
#[non_exhaustive]
pub enum Error {
    /// A setting is out of its range, or two settings contradict each other. Nothing was started.
    Config(ConfigError),
    /// A peer's bytes are not what the protocol says.
    Wire(WireError),
    /// No connection could be made.
    Connect {
        /// Whom we tried to reach, as it was configured or routed (`host:port`).
        to: String,
        /// What the system said.
        source: std::io::Error,
    },
    /// No answer in time; the peer may or may not have acted on the request. Also what a call of this library returns
    /// that did not finish in time, such as a shutdown.
    Timeout {
        /// The request's name in the protocol, or `shutdown`.
        request: &'static str,
        /// Whom we asked, if that is known.
        addr: Option<SocketAddr>,
        /// How long we waited.
        waited: Duration,
    },
    /// The connection ended before the answer came; the peer may or may not have acted on the request.
    Disconnected {
        /// The request's name in the protocol.
        request: &'static str,
        /// Whom we asked.
        addr: Option<SocketAddr>,
    },
    /// The peer answered with a code other than SUCCESS.
    Broker {
        /// The response code.
        code: i32,
        /// The remark that came with it.
        remark: String,
        /// Who answered.
        addr: Option<SocketAddr>,
    },
    /// The name server knows no route for the topic.
    UnknownTopic {
        /// The topic as it was asked on the wire.
        topic: String,
    },
    /// No configured name server answered.
    NoNameServer {
        /// The configured list.
        tried: Vec<String>,
        /// What came of asking the last of them.
        detail: String,
    },
    /// A route exists but no queue of it can be used for this.
    NoQueue {
        /// The topic.
        topic: String,
        /// The only queue that was asked for, as `broker/id`; `None`: any queue of the topic would have done.
        queue: Option<String>,
        /// What was wanted: `"write"` or `"read"`.
        wanted: &'static str,
    },
    /// A message was not acknowledged. See [`Attempt`] for what was tried.
    Send {
        /// The topic as it was sent on the wire.
        topic: String,
        /// Every attempt, in order.
        attempts: Vec<Attempt>,
        /// Whether a broker may have stored the message all the same.
        stored: Stored,
    },
    /// The message may not be sent as it is.
    Message {
        /// Which rule it breaks.
        reason: &'static str,
    },
    /// The queue has been given to another member since; the result was not recorded.
    Revoked {
        /// Topic of the queue.
        topic: String,
        /// Broker name of the queue.
        broker: String,
        /// Queue id.
        queue: i32,
    },
    /// A group has not consumed everything in time (`Broker::wait_drained`).
    NotDrained {
        /// The group.
        group: String,
        /// What is left, in words.
        left: Vec<String>,
        /// How long we waited.
        waited: Duration,
    },
    /// The progress of a queue was not committed, or it is not known whether it was.
    Commit {
        /// The code of the answer, if the broker refused.
        code: Option<i32>,
        /// True if the same commit may succeed later.
        retryable: bool,
        /// Why: a `CommitError`.
        source: Box<dyn std::error::Error + Send + Sync>,
    },
    /// Something that only one can have is in use: a group of this client, or a store's directory.
    InUse {
        /// What, and whose it is if that is known.
        what: String,
    },
    /// The system refused.
    Io {
        /// What we were doing, with the path.
        doing: String,
        /// What the system said.
        source: std::io::Error,
    },
    /// A store directory holds something that may not be used.
    Store {
        /// What is wrong, where.
        what: String,
    },
    /// The budget of something bounded is used up; nothing was sent.
    Overloaded {
        /// What is full.
        what: &'static str,
    },
    /// The client, consumer, producer or broker has been shut down.
    Closed,
}

/// One attempt to send a message.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Attempt {
    /// Broker name, empty if none could be chosen.
    pub broker: String,
    /// Where it ended.
    pub stage: Stage,
    /// How long it took.
    pub took: Duration,
    /// The response code, if the broker answered.
    pub code: Option<i32>,
    /// The broker's remark or the system's error text.
    pub detail: String,
}

impl fmt::Display for Attempt {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { broker, stage, took, code: _, detail } = self;
        let ms = took.as_millis();
        match broker.is_empty() {
            true => write!(f, "{stage} ended after {ms} ms: {detail}"),
            false => write!(f, "broker {broker}, {stage} ended after {ms} ms: {detail}"),
        }
    }
}

/// How far an attempt came.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Stage {
    /// Asking the name server.
    Route,
    /// Resolving or connecting.
    Connect,
    /// Waiting for a place in a bounded queue.
    Queue,
    /// Writing the request.
    Write,
    /// Waiting for the answer.
    Wait,
    /// The broker refused.
    Answer,
}

impl fmt::Display for Stage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Route => "looking for a route",
            Self::Connect => "connecting",
            Self::Queue => "waiting for room",
            Self::Write => "writing the request",
            Self::Wait => "waiting for the answer",
            Self::Answer => "reading the answer",
        })
    }
}

/// Whether a message that was not acknowledged may have been stored.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Stored {
    /// No broker can have stored it.
    No,
    /// At least one attempt ended without an answer after the request may have been written.
    Unknown,
}

impl fmt::Display for Stored {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::No => "is not stored",
            Self::Unknown => "may be stored",
        })
    }
}

/// True if a peer that has answered with this code may answer otherwise later.
pub(crate) fn may_pass(code: i32) -> bool {
    matches!(code, 1 | 2 | 14 | 16 | 17 | 204 | 205 | 1500)
}

/// True if what the system refused for this reason it may grant later: room, memory, descriptors, an address that is
/// taken.
fn io_may_pass(error: &std::io::Error) -> bool {
    use std::io::ErrorKind::{AddrInUse, Interrupted, OutOfMemory, QuotaExceeded, StorageFull, WouldBlock};
    // The standard library has no kind for a process, or a system, without descriptors: ENFILE and EMFILE have these
    // numbers on every Unix, WSAEMFILE has its own.
    let no_descriptors: &[i32] = if cfg!(windows) { &[10_024] } else { &[23, 24] };
    if error.raw_os_error().is_some_and(|number| no_descriptors.contains(&number)) {
        return true;
    }
    matches!(error.kind(), AddrInUse | Interrupted | OutOfMemory | QuotaExceeded | StorageFull | WouldBlock)
}

impl Error {
    /// True if the same call may succeed later, perhaps on another broker.
    pub fn is_retryable(&self) -> bool {
        match self {
            Self::Timeout { .. }
            | Self::Disconnected { .. }
            | Self::Connect { .. }
            | Self::NoNameServer { .. }
            | Self::NotDrained { .. }
            | Self::InUse { .. }
            | Self::Overloaded { .. } => true,
            Self::Commit { retryable, .. } => *retryable,
            Self::Broker { code, .. } => may_pass(*code),
            Self::Io { source, .. } => io_may_pass(source),
            Self::Send { attempts, .. } => attempts.last().is_some_and(|last| last.code.is_none_or(may_pass)),
            Self::Config(_)
            | Self::Wire(_)
            | Self::UnknownTopic { .. }
            | Self::NoQueue { .. }
            | Self::Message { .. }
            | Self::Revoked { .. }
            | Self::Store { .. }
            | Self::Closed => false,
        }
    }

    /// The response code, if a broker or name server answered with one.
    pub fn broker_code(&self) -> Option<i32> {
        match self {
            Self::Broker { code, .. } => Some(*code),
            Self::Commit { code, .. } => *code,
            Self::Send { attempts, .. } => attempts.iter().rev().find_map(|attempt| attempt.code),
            _ => None,
        }
    }

    /// Every attempt of a failed send, in order; empty for other errors.
    pub fn attempts(&self) -> &[Attempt] {
        match self {
            Self::Send { attempts, .. } => attempts,
            _ => &[],
        }
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Config(error) => error.fmt(f),
            Self::Wire(error) => error.fmt(f),
            Self::Connect { to, source } => write!(f, "cannot connect to {to}: {source}"),
            // Requests of the protocol are written in capitals.
            Self::Timeout { request, waited, .. } if request.starts_with(char::is_lowercase) => {
                write!(f, "{request} has not ended within {} ms", waited.as_millis())
            }
            Self::Timeout { request, addr: None, waited } => {
                write!(f, "no answer to {request} within {} ms", waited.as_millis())
            }
            Self::Timeout { request, addr: Some(addr), waited } => {
                write!(f, "no answer to {request} from {addr} within {} ms", waited.as_millis())
            }
            Self::Disconnected { request, addr } => {
                write!(f, "connection to {} ended before the answer to {request}", Peer(*addr))
            }
            Self::Broker { code, remark, addr } => write!(f, "{} answered code {code}: {remark}", Peer(*addr)),
            Self::UnknownTopic { topic } => write!(f, "the name server has no route for topic {topic}"),
            Self::NoNameServer { tried, detail } => {
                write!(f, "no name server answered, tried {}: {detail}", tried.join(", "))
            }
            Self::NoQueue { topic, queue: None, wanted } => {
                write!(f, "topic {topic} has no queue with {wanted} permission")
            }
            Self::NoQueue { topic, queue: Some(queue), wanted } => {
                write!(f, "topic {topic} has no queue {queue} with {wanted} permission")
            }
            Self::Send { topic, attempts, stored } => {
                write!(f, "message to {topic} was not acknowledged and {stored}")?;
                attempts.iter().try_for_each(|attempt| write!(f, "; {attempt}"))
            }
            Self::Message { reason } => write!(f, "message refused: {reason}"),
            Self::Revoked { topic, broker, queue } => {
                write!(f, "queue {topic}/{broker}/{queue} belongs to another member now")
            }
            Self::NotDrained { group, left, waited } => {
                let (waited, left) = (waited.as_millis(), left.join(", "));
                write!(f, "group {group} has not consumed everything within {waited} ms: {left}")
            }
            Self::Commit { source, .. } => source.fmt(f),
            Self::InUse { what } => f.write_str(what),
            Self::Io { doing, source } => write!(f, "{doing}: {source}"),
            Self::Store { what } => f.write_str(what),
            Self::Overloaded { what } => write!(f, "{what} is full"),
            Self::Closed => f.write_str("already shut down"),
        }
    }
}

impl std::error::Error for Error {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Self::Config(error) => Some(error),
            Self::Wire(error) => Some(error),
            Self::Connect { source, .. } | Self::Io { source, .. } => Some(source),
            Self::Commit { source, .. } => Some(&**source),
            _ => None,
        }
    }
}

impl From<ConfigError> for Error {
    fn from(error: ConfigError) -> Self {
        Self::Config(error)
    }
}

impl From<WireError> for Error {
    fn from(error: WireError) -> Self {
        Self::Wire(error)
    }
}

struct Peer(Option<SocketAddr>);

impl fmt::Display for Peer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            Some(addr) => addr.fmt(f),
            None => f.write_str("the peer"),
        }
    }
}

/// A setting that cannot be used. Nothing was started.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ConfigError {
    /// The setter's name.
    pub field: &'static str,
    /// What was given; empty: nothing.
    pub value: String,
    /// What is allowed.
    pub allowed: String,
}

impl fmt::Display for ConfigError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { field, value, allowed } = self;
        if value.is_empty() {
            return write!(f, "{field} is missing; allowed: {allowed}");
        }
        write!(f, "{field} = {value} is not allowed; allowed: {allowed}")
    }
}

impl std::error::Error for ConfigError {}

/// `value`, or `default` if none was given, if it lies in `range`.
pub(crate) fn in_range<T>(
    field: &'static str,
    value: Option<T>,
    default: T,
    range: std::ops::RangeInclusive<T>,
) -> Result<T, ConfigError>
where
    T: PartialOrd + fmt::Display,
{
    let value = value.unwrap_or(default);
    if range.contains(&value) {
        return Ok(value);
    }
    Err(ConfigError { field, value: value.to_string(), allowed: format!("{} to {}", range.start(), range.end()) })
}

/// What a peer's bytes did wrong. Lengths are as they were announced, never trusted.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum WireError {
    /// A frame announces more bytes than the limit. The connection must be closed.
    FrameTooLong {
        /// Announced bytes.
        len: u32,
        /// The limit.
        max: u32,
    },
    /// A frame announces fewer bytes than its fixed part needs.
    FrameTooShort {
        /// Announced bytes.
        len: u32,
    },
    /// A length points beyond the bytes that are there, or is negative.
    BadLength {
        /// Of what.
        what: &'static str,
        /// As announced.
        len: i64,
        /// Bytes that were left.
        left: usize,
    },
    /// A fixed word has a value that the protocol does not know.
    BadValue {
        /// Of what.
        what: &'static str,
        /// As found.
        found: i64,
    },
    /// Text is not UTF-8.
    BadText {
        /// Of what.
        what: &'static str,
    },
    /// A field that should be a number is none, or does not fit.
    BadNumber {
        /// The field's name on the wire.
        field: &'static str,
    },
    /// A required field is absent.
    MissingField {
        /// The field's name on the wire.
        field: &'static str,
    },
    /// A member of a JSON body is of another kind than it should be: a list for a text, and the like.
    WrongKind {
        /// The member's name on the wire.
        field: &'static str,
    },
    /// JSON that cannot be read, with the position of the first bad byte.
    Json {
        /// Of what.
        what: &'static str,
        /// Byte position.
        at: usize,
    },
    /// A checksum does not match.
    BadChecksum {
        /// As stored.
        stored: u32,
        /// As computed.
        computed: u32,
    },
    /// A compression type that is unknown, or whose feature is not built in.
    Compression {
        /// Bits 8 to 10 of sysFlag.
        kind: u8,
    },
    /// A compressed body that does not inflate.
    Inflate,
    /// A compressed body inflates to more than the ceiling.
    InflateTooLong {
        /// The ceiling in bytes.
        max: usize,
    },
    /// Something to be written is longer than its length field or a limit allows. Nothing was written.
    TooLong {
        /// Of what.
        what: &'static str,
        /// Its length.
        len: usize,
        /// The limit.
        max: usize,
    },
}

impl fmt::Display for WireError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::FrameTooLong { len, max } => write!(f, "frame of {len} bytes, limit {max}"),
            Self::FrameTooShort { len } => write!(f, "frame of {len} bytes is too short"),
            Self::BadLength { what, len, left } => write!(f, "{what}: length {len} with {left} bytes left"),
            Self::BadValue { what, found } => write!(f, "{what}: unknown value {found}"),
            Self::BadText { what } => write!(f, "{what}: not UTF-8"),
            Self::BadNumber { field } => write!(f, "field {field} is not a number in range"),
            Self::MissingField { field } => write!(f, "field {field} is missing"),
            Self::WrongKind { field } => write!(f, "{field}: another kind of value than expected"),
            Self::Json { what, at } => write!(f, "{what}: bad JSON at byte {at}"),
            Self::BadChecksum { stored, computed } => {
                write!(f, "checksum {computed:#010x}, stored {stored:#010x}")
            }
            // The three that exist are unknown only to a build that lacks them.
            Self::Compression { kind: kind @ 1..=3 } => {
                let codec = ["lz4", "zstd", "zlib"].get(usize::from(*kind) - 1).copied().unwrap_or_default();
                write!(f, "{codec} is not built in: feature `{codec}` of windlass")
            }
            Self::Compression { kind } => write!(f, "unknown compression {kind}"),
            Self::Inflate => f.write_str("body does not inflate"),
            Self::InflateTooLong { max } => write!(f, "body inflates to more than {max} bytes"),
            Self::TooLong { what, len, max } => write!(f, "{what} of {len} bytes, at most {max} allowed"),
        }
    }
}

impl std::error::Error for WireError {}

/// As [`in_range`], for a time.
pub(crate) fn time_in_range(
    field: &'static str,
    value: Option<Duration>,
    default: Duration,
    range: std::ops::RangeInclusive<Duration>,
) -> Result<Duration, ConfigError> {
    let value = value.unwrap_or(default);
    if range.contains(&value) {
        return Ok(value);
    }
    let allowed = format!("{:?} to {:?}", range.start(), range.end());
    Err(ConfigError { field, value: format!("{value:?}"), allowed })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_value_outside_its_range_names_field_value_and_range() {
        let error = in_range("workers", Some(0), 20, 1..=1000).unwrap_err();
        assert_eq!(error.to_string(), "workers = 0 is not allowed; allowed: 1 to 1000");
        assert_eq!(in_range("workers", None, 20, 1..=1000), Ok(20));
        let second = Duration::from_secs(1);
        let error =
            time_in_range("wait", Some(Duration::ZERO), second, Duration::from_millis(10)..=second).unwrap_err();
        assert_eq!(error.to_string(), "wait = 0ns is not allowed; allowed: 10ms to 1s");
        let error = ConfigError { field: "group", value: String::new(), allowed: "a name".into() };
        assert_eq!(error.to_string(), "group is missing; allowed: a name");
    }

    #[test]
    fn a_time_out_says_who_was_asked_or_which_call_has_not_ended() {
        let text = |request, addr| Error::Timeout { request, addr, waited: Duration::from_secs(3) }.to_string();
        assert_eq!(text("SEND_MESSAGE", None), "no answer to SEND_MESSAGE within 3000 ms");
        let addr = SocketAddr::from(([10, 0, 0, 1], 10911));
        assert_eq!(text("SEND_MESSAGE", Some(addr)), "no answer to SEND_MESSAGE from 10.0.0.1:10911 within 3000 ms");
        assert_eq!(text("shutdown", Some(addr)), "shutdown has not ended within 3000 ms");
    }

    #[test]
    fn a_failed_send_is_retryable_by_its_last_attempt() {
        let attempt = |code| Attempt {
            broker: "b".into(),
            stage: Stage::Answer,
            took: Duration::ZERO,
            code,
            detail: String::new(),
        };
        let send = |attempts| Error::Send { topic: "t".into(), attempts, stored: Stored::No };
        assert!(send(vec![attempt(Some(13)), attempt(Some(14))]).is_retryable());
        assert!(!send(vec![attempt(Some(14)), attempt(Some(13))]).is_retryable());
        assert!(send(vec![attempt(None)]).is_retryable());
    }
}
