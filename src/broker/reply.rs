//! Answers, and how they are written: in the form of their request, with its opaque.
//!
//! Made by `command.rs` and its neighbours, written by `server.rs`. A pull's messages go out from where they lie.

use std::borrow::Cow;

use super::dispatch::{Dispatcher, Refusal};
use super::pull::{HeldPull, PullReply};
use super::send::{REGION, SendReply};
use super::session::Ticket;
use crate::error::WireError;
use crate::wire::frame::{Frame, REMOTING_MAX};
use crate::wire::remoting::codes::answer;
use crate::wire::remoting::command::{FieldWriter, Head, Language, write, write_head};
use crate::wire::remoting::group::HeartbeatAnswer;
use crate::wire::remoting::header::{NoFields, WriteHeader};
use crate::wire::remoting::offset::{OffsetAnswer, TimeAnswer};
use crate::wire::remoting::pull::PullAnswer;
use crate::wire::remoting::query::QueryMessageAnswer;
use crate::wire::remoting::send::SendAnswer;

/// More than any header takes that stands before messages.
const HEADER_ROOM: usize = 4096;

/// What comes of a request.
pub enum Reply {
    /// A code and a text, nothing else.
    Plain {
        /// Response code.
        code: i32,
        /// Text for people.
        remark: Option<Cow<'static, str>>,
        /// The answer to a send names the region also when it refuses: Java clients follow the map without looking.
        region: bool,
    },
    /// A message was stored.
    Send(SendReply),
    /// A pull is answered.
    Pull(PullReply),
    /// An offset.
    Offset(i64),
    /// A time, Unix milliseconds.
    Time(i64),
    /// A heartbeat was taken; the fields belong to 5.x.
    Heartbeat(Option<HeartbeatAnswer>),
    /// Success with a body.
    Body(Vec<u8>),
    /// Success with stored messages.
    Frames(Vec<Frame>),
    /// The same, for a query by key.
    Found(Vec<Frame>),
    /// Success with fields and a body.
    Typed(Box<dyn WriteHeader + Send>, Vec<u8>),
    /// Success with fields by name.
    Fields(Vec<(&'static str, String)>),
    /// The messages have to be read from the disk first.
    Cold(Box<HeldPull>),
    /// It may have to wait for the disk, or look at much: to be run where that stops nobody else.
    Job(Box<dyn FnOnce(&Dispatcher) -> Reply + Send>),
    /// No answer now: it comes later, or never.
    Later,
}

impl Reply {
    /// Success, and nothing to say.
    pub fn done() -> Self {
        Self::Plain { code: answer::SUCCESS, remark: None, region: false }
    }

    /// A refusal.
    pub fn refused(code: i32, remark: impl Into<Cow<'static, str>>) -> Self {
        Self::Plain { code, remark: Some(remark.into()), region: false }
    }

    /// The answer to a message that came back: anything but success is a failure to a client.
    pub fn came_back(code: i32) -> Self {
        match code {
            answer::SUCCESS => Self::done(),
            _ => Self::refused(answer::SYSTEM_ERROR, "FLUSH_DISK_TIMEOUT"),
        }
    }

    /// A refusal of the dispatcher; `of_send`: of a send, most of whose refusals carry the region.
    pub fn of_refusal(refusal: Refusal, of_send: bool) -> Self {
        let region = of_send && !matches!(refusal.code, answer::NO_PERMISSION | answer::MESSAGE_ILLEGAL);
        Self::Plain { code: refusal.code, remark: Some(refusal.remark.into()), region }
    }

    /// Something to be run on the serve lane.
    pub fn job(run: impl FnOnce(&Dispatcher) -> Result<Reply, Refusal> + Send + 'static) -> Self {
        Self::Job(Box::new(move |dispatcher| {
            run(dispatcher).unwrap_or_else(|refused| Self::of_refusal(refused, false))
        }))
    }

    /// Runs a job here and now; anything else is given back as it is.
    pub fn finished(self, dispatcher: &Dispatcher) -> Self {
        match self {
            Self::Job(run) => run(dispatcher),
            other => other,
        }
    }

    /// Success with typed fields.
    pub fn typed(fields: impl WriteHeader + Send + 'static, body: Vec<u8>) -> Self {
        Self::Typed(Box::new(fields), body)
    }

    /// Success with fields by name.
    pub fn fields(fields: Vec<(&'static str, String)>) -> Self {
        Self::Fields(fields)
    }

    /// Frames that follow what [`Reply::write`] writes.
    pub fn frames(&self) -> &[Frame] {
        match self {
            Self::Pull(reply) => &reply.frames,
            Self::Frames(frames) | Self::Found(frames) => frames,
            _ => &[],
        }
    }

    /// Whether its frames have room in one of the protocol, with any header.
    pub fn fits(&self) -> bool {
        self.frames().iter().map(Frame::len).sum::<usize>() < REMOTING_MAX as usize - HEADER_ROOM
    }

    /// Appends the answer's frame, but for the frames that follow it.
    ///
    /// # Errors
    /// An answer that is too long for the protocol.
    pub fn write(&self, ticket: Ticket, version: i32, out: &mut Vec<u8>) -> Result<(), WireError> {
        let head = Head { version, language: Language::JAVA, ..Head::answer(answer::SUCCESS, ticket.opaque) };
        let codec = ticket.codec;
        match self {
            Self::Plain { code, remark, region } => {
                let head = Head { code: *code, remark: remark.as_deref(), ..head };
                if *region { write(out, codec, &head, &Region, &[]) } else { write(out, codec, &head, &NoFields, &[]) }
            }
            Self::Send(reply) => {
                let head = Head { code: reply.code, ..head };
                write(out, codec, &head, &send_answer(reply), &[])
            }
            Self::Pull(reply) => {
                let head = Head { code: reply.code, remark: Some(&reply.remark), ..head };
                let fields = PullAnswer::at(reply.next, reply.min, reply.max);
                write_head(out, codec, &head, &fields, reply.frames.iter().map(Frame::len).sum())
            }
            Self::Offset(offset) => write(out, codec, &head, &OffsetAnswer { offset: *offset }, &[]),
            Self::Time(timestamp_ms) => write(out, codec, &head, &TimeAnswer { timestamp_ms: *timestamp_ms }, &[]),
            Self::Heartbeat(Some(fields)) => write(out, codec, &head, fields, &[]),
            Self::Heartbeat(None) => write(out, codec, &head, &NoFields, &[]),
            Self::Body(body) => write(out, codec, &head, &NoFields, body),
            Self::Frames(frames) => write_head(out, codec, &head, &NoFields, frames.iter().map(Frame::len).sum()),
            Self::Found(frames) => {
                let fields = QueryMessageAnswer { index_last_update_ms: 0, index_last_update_offset: 0 };
                write_head(out, codec, &head, &fields, frames.iter().map(Frame::len).sum())
            }
            Self::Typed(fields, body) => write(out, codec, &head, &**fields, body),
            Self::Fields(fields) => {
                let fields: Vec<(&str, &str)> = fields.iter().map(|(name, value)| (*name, &**value)).collect();
                write(out, codec, &head, &fields[..], &[])
            }
            Self::Cold(_) | Self::Job(_) | Self::Later => Ok(()),
        }
    }
}

fn send_answer(reply: &SendReply) -> SendAnswer<'_> {
    SendAnswer {
        msg_id: Cow::Owned(reply.msg_id()),
        queue_id: reply.queue_id,
        queue_offset: reply.queue_offset,
        transaction_id: reply.transaction_id.as_deref().map(Cow::Borrowed),
        batch_uniq_id: None,
        recall_handle: None,
        region: Some(Cow::Borrowed(REGION)),
        trace_on: Some(true),
    }
}

/// What a send's refusal carries.
struct Region;

impl WriteHeader for Region {
    fn write(&self, out: &mut FieldWriter<'_>) {
        out.open();
        out.text("MSG_REGION", REGION);
        out.text("TRACE_ON", "true");
    }
}
