//! What the role answers when something fails that is not the peer's fault: a bug, a lane without room.

use super::*;
use crate::broker::tests::Node;
use crate::disk::FaultyDisk;
use crate::net::Action;
use crate::wire::remoting::command::Codec;
use crate::work::serve::WAITING_JOBS;

const CONN: Conn = Conn(1);

struct Loop {
    server: Server,
    mailbox: Arc<Mailbox>,
    lane: Lane,
    node: Node,
    opaque: i32,
}

impl Loop {
    fn new() -> Self {
        let (node, mailbox, lane) = (Node::plain(&FaultyDisk::new()), Arc::new(Mailbox::default()), Lane::unmanned());
        mailbox.belongs_to_this_thread();
        let mut server = Server::new(node.dispatcher.clone(), mailbox.clone(), Some(lane.clone()), Vec::new());
        server.accepted(CONN, BROKER_LISTENER, node.session.peer, node.session.local);
        Self { server, mailbox, lane, node, opaque: 0 }
    }

    /// The code and text of the answer to a request that runs `job` on the lane, which runs `turns` jobs meanwhile.
    fn ask(&mut self, turns: usize, job: impl FnOnce(&Dispatcher) -> Reply + Send + 'static) -> Option<(i32, String)> {
        self.opaque += 1;
        let (opaque, mut out) = (self.opaque, Out::new());
        let session = self.server.peers.get(&CONN).unwrap().session.id;
        let ticket = Ticket { opaque, code: 11, codec: Codec::Json };
        self.server.on_the_lane(CONN, session, ticket, job, &mut out);
        for _ in 0..turns {
            self.lane.run_next();
        }
        self.server.command(Post::Look, Nanos(0), &mut out);
        let answers = out.actions().iter().filter_map(|action| match action {
            Action::Send(CONN, range) => Some(out.bytes(range.clone())),
            _ => None,
        });
        let answer = answers.map(|bytes| Command::read(&bytes[4..]).unwrap()).find(|answer| answer.opaque == opaque)?;
        Some((answer.code, answer.remark.as_deref().unwrap_or_default().to_owned()))
    }
}

fn done(_: &Dispatcher) -> Reply {
    Reply::refused(answer::SUCCESS, "done")
}

/// E-116.
#[test]
fn e116_a_lane_without_room_answers_overload_and_recovers() {
    let mut role = Loop::new();
    for _ in 0..WAITING_JOBS {
        role.lane.own(|| ()).unwrap();
    }
    let (code, text) = role.ask(0, done).unwrap();
    assert!(code == answer::SYSTEM_BUSY && text.starts_with("[OVERLOAD]"), "{code} {text}");
    assert_eq!(role.ask(WAITING_JOBS, done), Some((answer::SYSTEM_BUSY, text)), "it was full when it came");
    assert_eq!(role.ask(1, done), Some((answer::SUCCESS, "done".into())));
}

/// E-117: where the request runs makes no difference.
#[test]
fn e117_a_request_that_fails_by_a_bug_is_answered_and_the_next_one_served() {
    let mut role = Loop::new();
    let failed = Some((answer::SYSTEM_ERROR, "the broker failed on this request".to_owned()));
    for lane in [true, false] {
        role.server.lane = lane.then(|| role.lane.clone());
        assert_eq!(role.ask(1, |_| panic!("on purpose")), failed, "lane: {lane}");
        assert_eq!(role.ask(1, done), Some((answer::SUCCESS, "done".into())), "lane: {lane}");
    }
    let Reply::Plain { code, .. } = guarded(11, || panic!("on purpose")) else { panic!("a plain refusal") };
    assert_eq!(code, answer::SYSTEM_ERROR);
    assert!(role.mailbox.waiting.lock().is_ok_and(|waiting| waiting.is_empty()));
    drop(role.node);
}

/// Members who come and go by the thousand leave one notice for each group of a session that is busy elsewhere.
#[test]
fn a_notice_waits_once_for_each_session_and_group() {
    let role = Loop::new();
    for round in 0..100 {
        for (session, group) in [(1, "g"), (1, "h"), (2, "g")] {
            role.mailbox.deliver(SessionId(session), Delivery::MembersChanged { group: group.into() });
        }
        assert_eq!(role.mailbox.waiting.lock().map_or(0, |waiting| waiting.len()), 3, "{round}");
    }
}
