//! Answers on their way from the dispatcher to whoever asked in this process: who waits for which, and what an answer of
//! the broker is to a client.

use std::collections::{HashMap, VecDeque};
use std::sync::atomic::{AtomicI32, Ordering};

use crate::broker::{Delivery, Outlet, PullReply, Reply, SendReply, SessionId, Ticket as Slip, write_members_changed};
use crate::net::answer::Giver;
use crate::net::{FrameBuf, Handle, PostError};
use crate::rocketmq::core::Command as CoreCommand;
use crate::rocketmq::port::{Answer, CallError, Done, News, SendAnswer, Ticket};
use crate::rocketmq::producer::OffsetId;
use crate::wire::remoting::codes::answer;
use crate::wire::remoting::command::{Codec, VERSION};
use crate::wire::remoting::pull::PullAnswer;
use crate::work::sync::{Mutex, locked};

/// Who gets an answer that does not come at once.
pub(super) enum Waits {
    /// The core, through the inbox of its loop.
    Core(Ticket),
    /// A blocked caller.
    Thread(Giver<Result<Answer, CallError>>),
    /// A callback that is short.
    Done(Done),
    /// Nobody.
    Nobody,
}

/// What is awaited from the dispatcher: the session's outlet. Bounded by the pulls of the core and the sends that wait
/// for the disk.
pub(super) struct Desk {
    /// A leaf lock.
    pub(super) waiting: Mutex<Waiting>,
    next: AtomicI32,
    handle: Handle<CoreCommand>,
    /// Answers for which the inbox had no place; the loop takes them when it has emptied it. A leaf lock.
    late: Mutex<VecDeque<News>>,
}

/// Who waits, by slip.
#[derive(Default)]
pub(super) struct Waiting {
    who: HashMap<i32, Waits>,
    /// The slip of each ticket of the core: a consumer of many queues that stops forgets as many pulls at once.
    slips: HashMap<Ticket, i32>,
}

impl Waiting {
    fn take(&mut self, opaque: i32) -> Option<Waits> {
        let waits = self.who.remove(&opaque)?;
        if let Waits::Core(ticket) = &waits {
            self.slips.remove(ticket);
        }
        Some(waits)
    }

    #[cfg(test)]
    pub(super) fn len(&self) -> usize {
        self.who.len().max(self.slips.len())
    }
}

impl Desk {
    pub(super) fn new(handle: Handle<CoreCommand>) -> Self {
        let (waiting, late) = (Mutex::new(Waiting::default()), Mutex::new(VecDeque::new()));
        Self { waiting, next: AtomicI32::new(0), handle, late }
    }

    /// Notes who waits; the slip finds him again.
    pub(super) fn put(&self, code: i32, waits: Waits) -> Slip {
        let opaque = self.next.fetch_add(1, Ordering::Relaxed);
        let mut waiting = locked(&self.waiting);
        if let Waits::Core(ticket) = waits {
            waiting.slips.insert(ticket, opaque);
        }
        waiting.who.insert(opaque, waits);
        Slip { opaque, code, codec: Codec::Binary }
    }

    pub(super) fn take(&self, slip: Slip) -> Option<Waits> {
        locked(&self.waiting).take(slip.opaque)
    }

    /// The core wants no answer to this any more.
    pub(super) fn forget(&self, ticket: Ticket) {
        let mut waiting = locked(&self.waiting);
        if let Some(opaque) = waiting.slips.remove(&ticket) {
            waiting.who.remove(&opaque);
        }
    }

    /// News for which the inbox had no place.
    pub(super) fn late(&self) -> Option<News> {
        locked(&self.late).pop_front()
    }

    #[cfg(test)]
    pub(super) fn has_late(&self) -> bool {
        !locked(&self.late).is_empty()
    }

    fn tell(&self, waits: Waits, result: Result<Answer, CallError>) {
        match waits {
            Waits::Core(ticket) => self.post(News::Answered { ticket, result }),
            // One that has given up is gone.
            Waits::Thread(giver) => drop(giver.give(result)),
            Waits::Done(done) => done(result),
            Waits::Nobody => {}
        }
    }

    pub(super) fn post(&self, news: News) {
        // A loop that has ended wants nothing any more.
        if let Err(PostError::Full(CoreCommand::News(news))) = self.handle.post_own(CoreCommand::News(news)) {
            locked(&self.late).push_back(news);
        }
    }

    /// Nothing comes any more.
    pub(super) fn fail_all(&self, error: &CallError) {
        let waiting = std::mem::take(&mut *locked(&self.waiting));
        for waits in waiting.who.into_values() {
            self.tell(waits, Err(error.clone()));
        }
    }
}

impl Outlet for Desk {
    fn deliver(&self, _session: SessionId, delivery: Delivery) {
        let (slip, result) = match delivery {
            Delivery::Pulled { ticket, reply } => (ticket, pulled(reply)),
            Delivery::Stored { ticket, reply } => (ticket, Ok(sent(&reply))),
            Delivery::Done { ticket, code } => (ticket, framed(&Reply::came_back(code), ticket, VERSION)),
            Delivery::MembersChanged { group } => {
                let mut frame = Vec::new();
                write_members_changed(0, VERSION, &group, &mut frame);
                return self.post(News::Request { frame: content(frame) });
            }
            Delivery::Close => {
                // It was silent for too long (the machine slept): its next heartbeat makes it known again.
                return self.fail_all(&CallError::Disconnected { detail: "the broker dropped a silent client".into() });
            }
        };
        if let Some(waits) = self.take(slip) {
            self.tell(waits, result);
        }
    }
}

pub(super) fn sent(reply: &SendReply) -> Answer {
    Answer::Sent(SendAnswer {
        code: reply.code,
        queue_id: reply.queue_id,
        queue_offset: reply.queue_offset,
        id: match &*reply.more {
            [] => OffsetId::of(reply.store_host, reply.physical),
            [..] => OffsetId::from_text(&reply.msg_id()),
        },
    })
}

pub(super) fn pulled(reply: PullReply) -> Result<Answer, CallError> {
    let known = [answer::SUCCESS, answer::PULL_NOT_FOUND, answer::PULL_RETRY_IMMEDIATELY, answer::PULL_OFFSET_MOVED];
    if !known.contains(&reply.code) {
        return Err(CallError::Refused { code: reply.code, remark: reply.remark.into_owned() });
    }
    let header = PullAnswer::at(reply.next, reply.min, reply.max);
    Ok(Answer::Pulled { code: reply.code, header, frames: reply.frames })
}

/// An answer as a frame.
pub(super) fn framed(reply: &Reply, slip: Slip, version: i32) -> Result<Answer, CallError> {
    let mut frame = Vec::new();
    reply.write(slip, version, &mut frame)?;
    for part in reply.frames() {
        frame.extend_from_slice(part.bytes());
    }
    Ok(Answer::Frame(content(frame)))
}

/// A frame without its length word.
pub(super) fn content(mut frame: Vec<u8>) -> FrameBuf {
    frame.drain(..frame.len().min(4));
    FrameBuf::from(frame)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::broker::SendReply;
    use crate::net::answer::pair;
    use crate::net::{Change, Conn, FrameBuf, Out, Reactor, Role, Settings};
    use crate::work::clock::{Clock, Nanos};
    use std::sync::mpsc;

    /// Keeps what is posted to its loop.
    #[derive(Default)]
    struct Kept(Vec<u64>);

    impl Role for Kept {
        type Command = CoreCommand;
        type Timer = u8;

        fn connection(&mut self, _: Conn, _: Change, _: Nanos, _: &mut Out<u8>) {}
        fn frame(&mut self, _: Conn, _: FrameBuf, _: Nanos, _: &mut Out<u8>) {}
        fn command(&mut self, command: CoreCommand, _: Nanos, _: &mut Out<u8>) {
            if let CoreCommand::News(News::Answered { ticket, .. }) = command {
                self.0.push(ticket.0);
            }
        }
        fn due(&mut self, _: u8, _: Nanos, _: &mut Out<u8>) {}
        fn settle(&mut self, _: Nanos, _: &mut Out<u8>) {}
    }

    fn desk() -> (Desk, Reactor<Kept>) {
        let mut desk = None;
        let reactor = Reactor::new(Settings::default(), Clock::system(), |handle| {
            desk = Some(Desk::new(handle.clone()));
            Kept::default()
        });
        (desk.unwrap(), reactor.unwrap())
    }

    fn stored(slip: Slip) -> Delivery {
        let reply = SendReply {
            code: 0,
            physical: 32,
            more: Vec::new(),
            store_host: "127.0.0.1:10911".parse().unwrap(),
            queue_id: 1,
            queue_offset: 7,
            transaction_id: None,
        };
        Delivery::Stored { ticket: slip, reply }
    }

    #[test]
    fn an_answer_reaches_who_waits_for_it_and_nobody_twice() {
        let (desk, _reactor) = desk();
        let (giver, thread) = pair();
        let (told, callback) = mpsc::channel();
        let slips = [
            desk.put(310, Waits::Thread(giver)),
            desk.put(310, Waits::Done(Box::new(move |result| told.send(result.is_ok()).unwrap()))),
            desk.put(310, Waits::Nobody),
        ];
        for slip in slips.iter().chain(&slips) {
            desk.deliver(SessionId(1), stored(*slip));
        }
        let sent = thread.poll().unwrap().unwrap().sent().unwrap();
        assert_eq!((sent.queue_id, sent.queue_offset), (1, 7));
        assert_eq!(sent.id.to_string(), "7F00000100002A9F0000000000000020");
        assert_eq!(callback.iter().collect::<Vec<_>>(), [true]);
        assert!(thread.poll().is_none());
    }

    #[test]
    fn whoever_waits_hears_of_the_end() {
        let (desk, _reactor) = desk();
        let (giver, thread) = pair();
        desk.put(310, Waits::Thread(giver));
        desk.put(11, Waits::Core(Ticket(5)));
        desk.forget(Ticket(5));
        desk.deliver(SessionId(1), Delivery::Close);
        assert!(matches!(thread.poll(), Some(Err(CallError::Disconnected { .. }))));
        assert_eq!(locked(&desk.waiting).len(), 0);
    }

    #[test]
    fn what_the_inbox_has_no_place_for_is_kept_for_the_loop() {
        let (desk, _reactor) = desk();
        let more = 2_000;
        for number in 0..more {
            desk.post(News::Answered { ticket: Ticket(number), result: Err(CallError::Closed) });
        }
        let mut late = Vec::new();
        while let Some(News::Answered { ticket, .. }) = desk.late() {
            late.push(ticket.0);
        }
        assert!(!late.is_empty() && late.is_sorted() && late.last() == Some(&(more - 1)));
    }
}
