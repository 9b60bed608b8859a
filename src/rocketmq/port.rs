//! What stands between the client and its brokers: typed requests out, answers in.
//!
//! The core speaks to a [`Port`] on its loop, other threads to a [`Caller`]. The socket form of both (`socket.rs`,
//! `caller.rs`) encodes; the direct form (`embedded.rs`) calls the embedded broker's dispatcher. Nothing here decides
//! what to ask.

use std::fmt;
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::core::Timer;
use super::producer::OffsetId;
use crate::error::{Error, Stage, WireError};
use crate::net::{Change, Conn, FrameBuf, Out};
use crate::wire::frame::Frame;
use crate::wire::remoting::codes::{self, answer, request};
use crate::wire::remoting::command::{self, Codec, Command, Head};
use crate::wire::remoting::header::{ReadHeader, WriteHeader};
use crate::wire::remoting::pull::{PullAnswer, PullRequest};
use crate::wire::remoting::send::{self, Names, SendRequest};
use crate::work::clock::Nanos;

/// Ties an answer to what the core wanted with it. Never used twice.
#[derive(Clone, Copy, Debug, Eq, Hash, Ord, PartialEq, PartialOrd)]
pub struct Ticket(pub u64);

/// Whom to ask. A broker without an address is the caller's error, never a question to a name server (B-034).
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Target<'a> {
    /// Whichever name server is chosen.
    NameServer,
    /// A broker by its address, `host:port`.
    Broker(&'a Arc<str>),
}

/// A request. The two that carry the load are typed for the direct form, all others by their code.
#[derive(Clone, Copy)]
pub enum Ask<'a> {
    /// Code 11.
    Pull(&'a PullRequest<'a>),
    /// Code 310, or 320 for a batch.
    Send {
        /// Header.
        request: &'a SendRequest<'a>,
        /// Body as it goes out.
        body: &'a [u8],
    },
    /// Anything else.
    Other {
        /// Its code.
        code: i32,
        /// Its header.
        fields: &'a (dyn WriteHeader + Sync),
        /// Its body.
        body: &'a [u8],
    },
}

impl<'a> Ask<'a> {
    /// A request without a body.
    pub fn of(code: i32, fields: &'a (dyn WriteHeader + Sync)) -> Self {
        Self::Other { code, fields, body: &[] }
    }

    /// Its code.
    pub fn code(&self) -> i32 {
        match self {
            Self::Pull(_) => request::PULL_MESSAGE,
            Self::Send { request, .. } if request.batch == Some(true) => request::SEND_BATCH_MESSAGE,
            Self::Send { .. } => request::SEND_MESSAGE_V2,
            Self::Other { code, .. } => *code,
        }
    }

    /// Its name in the protocol, for errors and logs.
    pub fn name(&self) -> &'static str {
        codes::request::name(self.code()).unwrap_or("request")
    }

    /// Appends the whole frame.
    ///
    /// # Errors
    /// `TooLong`; `out` is then as it was.
    pub fn encode(&self, codec: Codec, opaque: i32, oneway: bool, out: &mut Vec<u8>) -> Result<(), WireError> {
        let code = self.code();
        let head = if oneway { Head::oneway(code, opaque) } else { Head::request(code, opaque) };
        match self {
            Self::Pull(request) => command::write(out, codec, &head, *request, &[]),
            Self::Send { request, body } => command::write(out, codec, &head, &request.named(Names::Short), body),
            Self::Other { fields, body, .. } => command::write(out, codec, &head, *fields, body),
        }
    }
}

impl fmt::Debug for Ask<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// An answer. Codes other than success are answers too: a [`CallError`] means that there is none.
pub enum Answer {
    /// As it came over a socket, or written as if it had.
    Frame(FrameBuf),
    /// To a pull, from the embedded broker.
    Pulled {
        /// 0, 19, 20 or 21.
        code: i32,
        /// Where the queue stands.
        header: PullAnswer,
        /// Stored messages, one after the other.
        frames: Vec<Frame>,
    },
    /// To a send, from the embedded broker.
    Sent(SendAnswer),
}

/// Where a broker has stored a message.
#[derive(Clone, Debug)]
pub struct SendAnswer {
    /// 0, or 10, 11, 12: stored, but not as safely as the broker promises.
    pub code: i32,
    /// The broker's id of it; of a batch, one for each message, joined by commas.
    pub id: OffsetId,
    /// The queue.
    pub queue_id: i32,
    /// Its offset there, of a batch that of the first message.
    pub queue_offset: i64,
}

impl Answer {
    /// How it went.
    ///
    /// # Errors
    /// Bytes that are no command.
    pub fn code(&self) -> Result<i32, WireError> {
        match self {
            Self::Frame(frame) => Command::read(frame).map(|command| command.code),
            Self::Pulled { code, .. } => Ok(*code),
            Self::Sent(sent) => Ok(sent.code),
        }
    }

    /// What a successful answer holds.
    ///
    /// # Errors
    /// `Refused` for every other code, `Wire` for what cannot be read.
    pub fn read<R>(&self, read: impl FnOnce(&Command<'_>) -> Result<R, WireError>) -> Result<R, CallError> {
        let Self::Frame(frame) = self else {
            return Err(CallError::Wire(WireError::BadValue { what: "answer", found: 0 }));
        };
        let mut command = Command::empty();
        command.fill(frame)?;
        if command.code != answer::SUCCESS {
            return Err(refused(&command));
        }
        Ok(read(&command)?)
    }

    /// The header of a successful answer.
    ///
    /// # Errors
    /// As [`Answer::read`].
    pub fn header<H: for<'a> ReadHeader<'a>>(&self) -> Result<H, CallError> {
        self.read(|command| H::read(&command.fields))
    }

    /// What a send's answer holds. Codes 10, 11 and 12 are stored as well.
    ///
    /// # Errors
    /// As [`Answer::read`].
    pub fn sent(self) -> Result<SendAnswer, CallError> {
        let frame = match self {
            Self::Sent(sent) => return Ok(sent),
            Self::Frame(frame) => frame,
            Self::Pulled { .. } => return Err(CallError::Wire(WireError::BadValue { what: "answer", found: 11 })),
        };
        let mut command = Command::empty();
        command.fill(&frame)?;
        if !matches!(command.code, 0 | 10 | 11 | 12) {
            return Err(refused(&command));
        }
        let header = send::SendAnswer::read(&command.fields)?;
        Ok(SendAnswer {
            code: command.code,
            id: OffsetId::from_text(&header.msg_id),
            queue_id: header.queue_id,
            queue_offset: header.queue_offset,
        })
    }

    /// Success, and nothing else of interest.
    ///
    /// # Errors
    /// As [`Answer::read`].
    pub fn done(&self) -> Result<(), CallError> {
        self.read(|_| Ok(()))
    }
}

impl fmt::Debug for Answer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Answer({:?})", self.code())
    }
}

/// The refusal that an answer is.
pub fn refused(command: &Command<'_>) -> CallError {
    CallError::Refused { code: command.code, remark: command.remark.as_deref().unwrap_or_default().to_owned() }
}

/// Why a request has no result.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub enum CallError {
    /// Answered with another code than success.
    Refused {
        /// The code.
        code: i32,
        /// What the peer says about it.
        remark: String,
    },
    /// No address to send it to.
    NoAddress {
        /// Of whom.
        of: String,
    },
    /// The name could not be resolved, or no connection could be made. Nothing was sent.
    Connect {
        /// To whom.
        to: String,
        /// What the system said.
        detail: String,
    },
    /// Too much waits already. Nothing was sent.
    Busy {
        /// What is full.
        what: &'static str,
    },
    /// It cannot be written, or the answer cannot be read.
    Wire(WireError),
    /// No answer in time.
    Timeout {
        /// How long was waited.
        waited: Duration,
    },
    /// The connection ended before the answer came.
    Disconnected {
        /// Why it ended.
        detail: String,
    },
    /// The client has been shut down. Nothing was sent.
    Closed,
}

impl CallError {
    /// How far the request came.
    pub fn stage(&self) -> Stage {
        match self {
            Self::Refused { .. } => Stage::Answer,
            Self::NoAddress { .. } => Stage::Route,
            Self::Connect { .. } => Stage::Connect,
            Self::Busy { .. } | Self::Closed => Stage::Queue,
            Self::Wire(_) => Stage::Write,
            Self::Timeout { .. } | Self::Disconnected { .. } => Stage::Wait,
        }
    }

    /// The answer's code, if there was one.
    pub fn code(&self) -> Option<i32> {
        match self {
            Self::Refused { code, .. } => Some(*code),
            _ => None,
        }
    }

    /// The client was shut down while the answer was awaited: the peer may have acted, other than with [`Self::Closed`].
    pub fn shut_down() -> Self {
        Self::Disconnected { detail: "the client was shut down before the answer came".to_owned() }
    }

    /// True if the peer may have acted on the request.
    pub fn maybe_done(&self) -> bool {
        matches!(self, Self::Timeout { .. } | Self::Disconnected { .. })
    }

    /// As the one error of this library; `request` is the request's name.
    pub fn into_error(self, request: &'static str) -> Error {
        match self {
            Self::Refused { code, remark } => Error::Broker { code, remark, addr: None },
            Self::NoAddress { of } => Error::UnknownTopic { topic: of },
            Self::Connect { to, detail } => Error::Connect { to, source: std::io::Error::other(detail) },
            Self::Busy { what } => Error::Overloaded { what },
            Self::Wire(error) => Error::Wire(error),
            Self::Timeout { waited } => Error::Timeout { request, addr: None, waited },
            Self::Disconnected { .. } => Error::Disconnected { request, addr: None },
            Self::Closed => Error::Closed,
        }
    }
}

impl From<WireError> for CallError {
    fn from(error: WireError) -> Self {
        Self::Wire(error)
    }
}

impl fmt::Display for CallError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Refused { code, remark } => write!(f, "code {code}: {remark}"),
            Self::NoAddress { of } => write!(f, "no address of {of}"),
            Self::Connect { to, detail } => write!(f, "cannot connect to {to}: {detail}"),
            Self::Busy { what } => write!(f, "{what} is full"),
            Self::Wire(error) => error.fmt(f),
            Self::Timeout { waited } => write!(f, "no answer within {} ms", waited.as_millis()),
            Self::Disconnected { detail } => write!(f, "connection ended: {detail}"),
            Self::Closed => f.write_str("closed"),
        }
    }
}

impl std::error::Error for CallError {}

/// Something that the port has for the core.
#[derive(Debug)]
pub enum Arrival {
    /// The answer to a request, or word that there will be none. Once for each ticket, unless it was forgotten.
    Answer {
        /// As it was asked.
        ticket: Ticket,
        /// What came.
        result: Result<Answer, CallError>,
    },
    /// A broker asks something.
    Request {
        /// Where an answer goes.
        from: Peer,
        /// What it asks.
        frame: FrameBuf,
    },
    /// A connection to a broker stands; true if there was an earlier one.
    Up {
        /// Its address.
        addr: Arc<str>,
        /// Not for the first time.
        again: bool,
    },
    /// A connection to a broker has ended, or could not be made. Its requests have been answered with errors.
    Down {
        /// Its address.
        addr: Arc<str>,
        /// Why.
        why: String,
        /// It had stood before.
        lost: bool,
        /// It is the first time since it stood last, or at all.
        first: bool,
    },
}

/// Who asked something of the client.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Peer(pub u64);

/// What other threads have for the port; it travels through the loop's inbox.
pub enum News {
    /// The serve lane has resolved a name.
    Resolved {
        /// As it was asked.
        addr: Arc<str>,
        /// What came of it.
        result: Result<std::net::SocketAddr, String>,
    },
    /// The answer to a request of a direct client that was held, or ran elsewhere.
    Answered {
        /// As it was asked.
        ticket: Ticket,
        /// What came.
        result: Result<Answer, CallError>,
    },
    /// The embedded broker asks something of a direct client.
    Request {
        /// What it asks.
        frame: FrameBuf,
    },
}

/// The core's half of a port. Thread: the loop; nothing here may block.
pub trait Port: Send {
    /// Asks. The answer, or an error, comes as an [`Arrival`] with this ticket, never before this returns.
    fn ask(&mut self, ticket: Ticket, to: Target<'_>, ask: &Ask<'_>, now: Nanos, out: &mut Out<Timer>);

    /// Sends without wanting an answer.
    fn tell(&mut self, to: Target<'_>, ask: &Ask<'_>, now: Nanos, out: &mut Out<Timer>);

    /// Sends a request that another thread has written as a whole frame; its opaque is still to be set. Without a
    /// ticket it is one-way.
    fn ask_written(&mut self, ticket: Option<Ticket>, to: Target<'_>, frame: Vec<u8>, out: &mut Out<Timer>);

    /// The core has given up on a ticket, `late` or because it does not want it any more: what still comes is dropped.
    fn forget(&mut self, ticket: Ticket, late: bool, out: &mut Out<Timer>);

    /// Answers a broker's request with the frame that `write` appends, given the form that it came in.
    fn reply(&mut self, to: Peer, write: &mut dyn FnMut(&mut Vec<u8>), out: &mut Out<Timer>);

    /// The next thing that has come; `None`: nothing more for now.
    fn poll(&mut self) -> Option<Arrival>;

    /// How many name servers a question can go to, one after the other.
    fn name_servers(&self) -> usize {
        1
    }

    /// Replaces the name servers.
    fn set_name_servers(&mut self, list: Vec<String>, now: Nanos, out: &mut Out<Timer>);

    /// What the peer at this address said of its version, in an answer to a heartbeat.
    fn version(&mut self, addr: &Arc<str>, version: i32);

    /// A connection changed.
    fn connection(&mut self, conn: Conn, change: Change, now: Nanos, out: &mut Out<Timer>);

    /// A frame came.
    fn frame(&mut self, conn: Conn, frame: FrameBuf, now: Nanos, out: &mut Out<Timer>);

    /// Another thread has something.
    fn news(&mut self, news: News, now: Nanos, out: &mut Out<Timer>);

    /// Brokers that are in no route any more.
    fn retain(&mut self, keep: &dyn Fn(&str) -> bool, out: &mut Out<Timer>);

    /// Called now and then: gives back what is not used.
    fn tidy(&mut self) {}

    /// Closes everything once what has been sent is written.
    fn close(&mut self, out: &mut Out<Timer>);
}

/// What a call over the loop ends in. Called once, on the loop: it must be short and must not block.
pub type Done = Box<dyn FnOnce(Result<Answer, CallError>) + Send>;

/// The other threads' half of a port. Blocking calls have real-time deadlines.
pub trait Caller: Send + Sync {
    /// Asks and waits for the answer, whatever its code.
    ///
    /// # Errors
    /// [`CallError`]: there is no answer.
    fn call(&self, to: Target<'_>, ask: &Ask<'_>, deadline: Instant) -> Result<Answer, CallError>;

    /// Asks; `done` gets the answer. An error here means that `done` will not be called.
    ///
    /// # Errors
    /// `Wire`, `Busy`, `Closed`.
    fn start(&self, to: Target<'_>, ask: &Ask<'_>, timeout: Duration, done: Done) -> Result<(), CallError>;

    /// Sends without wanting an answer.
    ///
    /// # Errors
    /// `Wire`, `Busy`, `Closed`.
    fn tell(&self, to: Target<'_>, ask: &Ask<'_>) -> Result<(), CallError>;

    /// A short way to a topic, if this port has one.
    fn express(&self, topic: &str) -> Option<Box<dyn Express>> {
        let _ = topic;
        None
    }

    /// Ends every call that waits; later ones fail with `Closed`.
    fn close(&self) {}
}

/// A message of which nothing is asked but to be stored and found by its id.
#[derive(Clone, Copy, Debug)]
pub struct Letter<'a> {
    /// Body, not compressed.
    pub body: &'a [u8],
    /// Properties text; has the unique id, and a tag or none.
    pub properties: &'a str,
    /// The unique id.
    pub id: &'a str,
    /// Java's hash of the tag; 0 without one.
    pub tag: i32,
    /// Now, in Unix milliseconds.
    pub now_ms: i64,
}

/// A short way to one topic, which only the direct port has: queues, checks and texts are worked out once.
pub trait Express: Send + Sync {
    /// The name of the broker it leads to.
    fn broker(&self) -> &Arc<str>;

    /// Stores a message in the next queue. `None`: not this way; nothing was stored, an ordinary call says why.
    fn send(&self, letter: &Letter<'_>) -> Option<SendAnswer>;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_silence_leaves_the_outcome_unknown() {
        let known = [
            CallError::Refused { code: 1, remark: String::new() },
            CallError::NoAddress { of: "b".into() },
            CallError::Connect { to: "b".into(), detail: String::new() },
            CallError::Busy { what: "inbox" },
            CallError::Wire(WireError::Inflate),
            CallError::Closed,
        ];
        assert!(known.iter().all(|error| !error.maybe_done()));
        assert!(CallError::Timeout { waited: Duration::ZERO }.maybe_done());
        assert!(CallError::Disconnected { detail: String::new() }.maybe_done());
    }

    #[test]
    fn a_request_is_written_with_its_code_and_name() {
        let ask = Ask::of(request::HEART_BEAT, &crate::wire::remoting::header::NoFields);
        let mut out = Vec::new();
        ask.encode(Codec::Json, 7, true, &mut out).unwrap();
        let command = Command::read(&out[4..]).unwrap();
        assert_eq!((command.code, command.opaque, command.is_oneway()), (34, 7, true));
        assert_eq!(ask.name(), "HEART_BEAT");
    }
}
