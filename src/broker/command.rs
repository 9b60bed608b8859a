//! The wire's form around the dispatcher: which request it is, what its header says, how the answer is written.
//!
//! `server.rs` calls [`handle`] for every request frame. An answer has the form of its request (JSON or binary), its
//! opaque and the version of the profile. What a request means stands in the conversation's own file.

use std::borrow::Cow;
use std::sync::Arc;

use super::dispatch::{Dispatcher, Refusal};
use super::fault::{Fault, Op};
use super::names;
use super::pull::Pulled;
use super::reply::Reply;
use super::send::Sender;
use super::session::{Outbox, Session, Ticket};
use super::settings::Compat;
use super::tools_command;
use crate::error::WireError;
use crate::model::Queue;
use crate::wire::json;
use crate::wire::remoting::codes::{answer, request};
use crate::wire::remoting::command::{Codec, Command, Head, Language, write};
use crate::wire::remoting::group::{ConsumerGroupRequest, HeartbeatAnswer, HeartbeatBody, UnregisterRequest};
use crate::wire::remoting::header::ReadHeader;
use crate::wire::remoting::lock::{LockBody, LockedBody};
use crate::wire::remoting::offset::{QueryOffsetRequest, QueueRequest, SearchOffsetRequest, UpdateOffsetRequest};
use crate::wire::remoting::pull::PullRequest;
use crate::wire::remoting::query::{QueryMessageRequest, ViewMessageRequest};
use crate::wire::remoting::queue::QueueBody;
use crate::wire::remoting::send::{Names, SendBackRequest, SendRequest};

/// Which of the two a connection talks to.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Face {
    /// The broker's listener.
    Broker,
    /// The name server's listener.
    Names,
}

/// What one request comes with.
pub(super) struct Call<'c, 'f> {
    pub dispatcher: &'c Dispatcher,
    pub session: &'c Arc<Session>,
    pub command: &'c Command<'f>,
    pub outbox: &'c mut Outbox,
}

impl From<WireError> for Refusal {
    /// A header that lacks a field or has one that cannot be read.
    fn from(error: WireError) -> Self {
        Self::new(answer::SYSTEM_ERROR, error.to_string())
    }
}

/// Carries out a request.
pub fn handle(
    dispatcher: &Dispatcher,
    session: &Arc<Session>,
    face: Face,
    command: &Command<'_>,
    outbox: &mut Outbox,
) -> Reply {
    let fault = op_of(command.code).and_then(|op| dispatcher.fault(op));
    if fault == Some(Fault::Refuse) {
        return Reply::refused(answer::SYSTEM_ERROR, "fault injected by this broker's owner");
    }
    let mut call = Call { dispatcher, session, command, outbox };
    let done = match face {
        Face::Broker => call.broker(),
        Face::Names => names::command::names(&mut call),
    };
    let reply = done.unwrap_or_else(|refusal| Reply::of_refusal(refusal, Names::of_code(command.code).is_some()));
    if fault == Some(Fault::LoseAnswer) { Reply::Later } else { reply }
}

fn op_of(code: i32) -> Option<Op> {
    Some(match code {
        request::SEND_MESSAGE | request::SEND_MESSAGE_V2 | request::SEND_BATCH_MESSAGE => Op::Send,
        request::PULL_MESSAGE | request::LITE_PULL_MESSAGE => Op::Pull,
        request::UPDATE_CONSUMER_OFFSET => Op::Commit,
        request::QUERY_CONSUMER_OFFSET => Op::Query,
        request::HEART_BEAT => Op::Heartbeat,
        request::CONSUMER_SEND_MSG_BACK => Op::SendBack,
        request::LOCK_BATCH_MQ => Op::Lock,
        request::GET_ROUTEINFO_BY_TOPIC => Op::Route,
        _ => return None,
    })
}

impl<'f> Call<'_, 'f> {
    pub(super) fn header<H: ReadHeader<'f>>(&self) -> Result<H, Refusal> {
        Ok(H::read(&self.command.fields)?)
    }

    /// A field of a request that has no typed header.
    pub(super) fn field(&self, name: &'static str) -> Result<String, Refusal> {
        let value = self.command.fields.find(name).ok_or(WireError::MissingField { field: name })?;
        Ok(value.text(name)?.into_owned())
    }

    pub(super) fn ticket(&self) -> Ticket {
        Ticket { opaque: self.command.opaque, code: self.command.code, codec: self.command.codec }
    }

    fn sender(&self) -> Sender {
        Sender {
            born_host: self.session.peer,
            store_host: self.dispatcher.reached_at(self.session),
            version: self.command.version,
            wants_id: true,
        }
    }

    fn broker(&mut self) -> Result<Reply, Refusal> {
        let dispatcher = self.dispatcher;
        match self.command.code {
            request::SEND_MESSAGE | request::SEND_MESSAGE_V2 | request::SEND_BATCH_MESSAGE => self.send(),
            request::PULL_MESSAGE => self.pull(),
            request::QUERY_CONSUMER_OFFSET => {
                dispatcher.committed(&self.header::<QueryOffsetRequest<'_>>()?).map(Reply::Offset)
            }
            request::UPDATE_CONSUMER_OFFSET => {
                dispatcher.commit(&self.header::<UpdateOffsetRequest<'_>>()?)?;
                Ok(Reply::done())
            }
            request::SEARCH_OFFSET_BY_TIMESTAMP => {
                let request = search_of_its_own(&self.header::<SearchOffsetRequest<'_>>()?);
                Ok(Reply::job(move |dispatcher| Ok(Reply::Offset(dispatcher.offset_by_time(&request)))))
            }
            request::GET_MAX_OFFSET => Ok(Reply::Offset(dispatcher.max_offset(&self.header::<QueueRequest<'_>>()?))),
            request::GET_MIN_OFFSET => Ok(Reply::Offset(dispatcher.min_offset(&self.header::<QueueRequest<'_>>()?))),
            request::GET_EARLIEST_MSG_STORETIME => {
                Ok(Reply::Time(dispatcher.earliest_ms(&self.header::<QueueRequest<'_>>()?)))
            }
            request::VIEW_MESSAGE_BY_ID => {
                let request = self.header::<ViewMessageRequest<'_>>()?;
                let offset = request.offset;
                Ok(Reply::job(move |dispatcher| {
                    dispatcher.view_message(offset).map(|frame| Reply::Frames(vec![frame]))
                }))
            }
            request::QUERY_MESSAGE => {
                let request = query_of_its_own(&self.header::<QueryMessageRequest<'_>>()?);
                Ok(Reply::job(move |dispatcher| dispatcher.query_by_key(&request).map(Reply::Found)))
            }
            request::CONSUMER_SEND_MSG_BACK => {
                let request = self.header::<SendBackRequest<'_>>()?;
                let end = dispatcher.send_back(self.sender(), &request, self.outbox)?;
                Ok(self.once_durable(end))
            }
            request::HEART_BEAT => self.heartbeat(),
            request::UNREGISTER_CLIENT => {
                let request = self.header::<UnregisterRequest<'_>>()?;
                let (producer, consumer) = (request.producer_group.as_deref(), request.consumer_group.as_deref());
                dispatcher.unregister(self.session, producer, consumer, self.outbox);
                Ok(Reply::done())
            }
            request::GET_CONSUMER_LIST_BY_GROUP => {
                let request = self.header::<ConsumerGroupRequest<'_>>()?;
                let clients = dispatcher.consumer_list(&request.consumer_group)?;
                Ok(Reply::Body(tools_command::consumer_list(&clients)))
            }
            request::LOCK_BATCH_MQ | request::UNLOCK_BATCH_MQ => self.locks(),
            _ => tools_command::tools(self),
        }
    }

    /// Success, under `Flush::Sync` once the log is durable up to `end`.
    pub(super) fn once_durable(&self, end: u64) -> Reply {
        let waits = self.dispatcher.is_sync() && !self.command.is_oneway();
        let waits = waits && self.dispatcher.done_waits_for_disk(self.session, self.ticket(), end);
        if waits { Reply::Later } else { Reply::done() }
    }

    fn send(&mut self) -> Result<Reply, Refusal> {
        let command = self.command;
        let names = Names::of_code(command.code).unwrap_or(Names::Short);
        let mut request = SendRequest::read(names, &command.fields)?;
        if command.code == request::SEND_BATCH_MESSAGE {
            request.batch = Some(true);
        }
        let sent = self.dispatcher.send(self.sender(), &request, command.body, self.outbox)?;
        let waits = self.dispatcher.is_sync()
            && !command.is_oneway()
            && self.dispatcher.wait_for_disk(self.session, self.ticket(), &sent);
        Ok(if waits { Reply::Later } else { Reply::Send(sent.reply) })
    }

    fn pull(&mut self) -> Result<Reply, Refusal> {
        let request = self.header::<PullRequest<'_>>()?;
        Ok(match self.dispatcher.pull(self.session, self.ticket(), &request, self.outbox)? {
            Pulled::Now(reply) => Reply::Pull(reply),
            Pulled::Held => Reply::Later,
            Pulled::Cold(pull) => Reply::Cold(pull),
        })
    }

    fn heartbeat(&mut self) -> Result<Reply, Refusal> {
        let heartbeat: HeartbeatBody = json::read("heartbeat", self.command.body)?;
        let from = (self.command.language, self.command.version);
        let sub_changed = self.dispatcher.heartbeat(self.session, from, &heartbeat, self.outbox);
        let answer = HeartbeatAnswer { supports_v2: Some(true), sub_changed: Some(sub_changed) };
        Ok(Reply::Heartbeat((self.dispatcher.settings().compat == Compat::V5).then_some(answer)))
    }

    fn locks(&mut self) -> Result<Reply, Refusal> {
        let body: LockBody = json::read("lock", self.command.body)?;
        let queues: Vec<Queue> = body.mq_set.iter().map(Queue::from).collect();
        if self.command.code == request::UNLOCK_BATCH_MQ {
            self.dispatcher.unlock(&body.consumer_group, &body.client_id, &queues);
            return Ok(Reply::done());
        }
        let locked = self.dispatcher.lock(&body.consumer_group, &body.client_id, queues);
        let locked = LockedBody { locked: locked.iter().map(QueueBody::from).collect() };
        Ok(Reply::Body(json::to_vec(&locked)))
    }
}

/// A request that outlives its frame, as one does that runs on the serve lane.
fn search_of_its_own(request: &SearchOffsetRequest<'_>) -> SearchOffsetRequest<'static> {
    SearchOffsetRequest {
        topic: Cow::Owned(request.topic.to_string()),
        queue_id: request.queue_id,
        timestamp_ms: request.timestamp_ms,
        boundary_type: request.boundary_type.as_ref().map(|kind| Cow::Owned(kind.to_string())),
        broker_name: None,
    }
}

fn query_of_its_own(request: &QueryMessageRequest<'_>) -> QueryMessageRequest<'static> {
    QueryMessageRequest {
        topic: Cow::Owned(request.topic.to_string()),
        key: Cow::Owned(request.key.to_string()),
        max_messages: request.max_messages,
        begin_ms: request.begin_ms,
        end_ms: request.end_ms,
        unique_key: request.unique_key,
        broker_name: None,
    }
}

/// Writes the notice that the members of a group have changed (40).
pub fn write_members_changed(opaque: i32, version: i32, group: &str, bytes: &mut Vec<u8>) {
    let head = Head { version, language: Language::JAVA, ..Head::oneway(request::NOTIFY_CONSUMER_IDS_CHANGED, opaque) };
    let header = ConsumerGroupRequest { consumer_group: group.into(), broker_name: None };
    if let Err(error) = write(bytes, Codec::Json, &head, &header, &[]) {
        log::error!(target: "windlass::broker", "notice cannot be written: group={group} error={error}");
    }
}
