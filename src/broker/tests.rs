//! The dispatcher driven in one thread over a disk that fails on purpose: durability, crashes, settings of groups.

use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender as Channel, channel};
use std::time::Duration;

use super::command;
use super::dispatch::{Alarm, Dispatcher, FLUSH_WAIT, Parts, Refusal, Watcher};
use super::groups::GroupSettings;
use super::pull::{PullReply, Pulled};
use super::reply::Reply;
use super::send::{SendReply, Sender, Sent};
use super::session::{Delivery, Outbox, Outlet, Session, SessionId, Ticket};
use super::settings::{Compat, Settings};
use super::state::Saved;
use super::store::{Flush, Options, Store};
use super::topics::Topic;
use crate::disk::{Disk, Fault, FaultyDisk};
use crate::wire::remoting::codes::{answer, pull_flag, request};
use crate::wire::remoting::command::{Codec, Command, Head, write};
use crate::wire::remoting::offset::{QueryOffsetRequest, UpdateOffsetRequest};
use crate::wire::remoting::pull::PullRequest;
use crate::wire::remoting::record::{Check, Record};
use crate::wire::remoting::send::{SendBackRequest, SendRequest};
use crate::wire::remoting::topics::TopicRequest;
use crate::work::clock::TestClock;

/// Nobody runs turns but the test itself.
struct Deaf;

impl Alarm for Deaf {
    fn ring(&self) {}
}

struct Ears(std::sync::Mutex<Channel<Delivery>>);

impl Outlet for Ears {
    fn deliver(&self, _: SessionId, delivery: Delivery) {
        let _ = self.0.lock().unwrap().send(delivery);
    }
}

pub(super) struct Node {
    pub dispatcher: Arc<Dispatcher>,
    pub clock: TestClock,
    pub session: Arc<Session>,
    pub heard: Receiver<Delivery>,
    opaque: i32,
}

impl Node {
    pub fn new(disk: &FaultyDisk, flush: Flush, settings: Settings) -> Self {
        Self::with(disk, Options::durable().segments(4096, 4096).flush(flush), flush == Flush::Sync, settings)
    }

    /// With a store of these options, which flush as they do by default.
    pub fn over(disk: &FaultyDisk, options: Options, settings: Settings) -> Self {
        Self::with(disk, options, false, settings)
    }

    fn with(disk: &FaultyDisk, options: Options, sync: bool, settings: Settings) -> Self {
        let clock = TestClock::new();
        let watcher = Watcher::new(sync);
        let disk: Arc<dyn Disk> = Arc::new(disk.clone());
        let (store, _) = Store::open(disk.clone(), options, clock.clock().wall_ms(), watcher.clone()).unwrap();
        let parts = Parts {
            settings,
            clock: clock.clock(),
            store,
            watcher,
            saved: Saved::on(disk),
            names: true,
            alarm: Arc::new(Deaf),
        };
        let dispatcher = Dispatcher::new(parts);
        let addr = std::net::SocketAddr::from(([127, 0, 0, 1], 5000));
        let (channel, heard) = channel();
        let outlet = Arc::new(Ears(std::sync::Mutex::new(channel)));
        let session = Arc::new(Session { id: dispatcher.session_id(), peer: addr, local: addr, outlet });
        Self { dispatcher, clock, session, heard, opaque: 0 }
    }

    pub fn plain(disk: &FaultyDisk) -> Self {
        Self::new(disk, Flush::Async, Settings::default())
    }

    pub fn hand_on(&self, outbox: &mut Outbox) {
        for (session, delivery) in outbox.drain(..) {
            session.outlet.deliver(session.id, delivery);
        }
    }

    pub fn from(&self) -> Sender {
        Sender { born_host: self.session.peer, store_host: self.session.local, version: 479, wants_id: true }
    }

    fn send_as(&self, request: &SendRequest<'_>, body: &[u8]) -> Result<Sent, Refusal> {
        let mut outbox = Vec::new();
        let sent = self.dispatcher.send(self.from(), request, body, &mut outbox);
        self.hand_on(&mut outbox);
        sent
    }

    pub fn send_batch(&self, topic: &str, properties: &str, body: &[u8]) -> Result<Sent, Refusal> {
        let request = SendRequest {
            topic: topic.into(),
            default_topic: "TBW102".into(),
            default_topic_queue_nums: 1,
            properties: Some(properties.into()),
            batch: Some(true),
            ..SendRequest::default()
        };
        self.send_as(&request, body)
    }

    pub fn send(&self, topic: &str, properties: &str, body: &[u8]) -> Result<Sent, Refusal> {
        let request = SendRequest {
            topic: topic.into(),
            default_topic: "TBW102".into(),
            default_topic_queue_nums: 1,
            properties: Some(properties.into()),
            ..SendRequest::default()
        };
        self.send_as(&request, body)
    }

    pub fn ticket(&mut self) -> Ticket {
        self.opaque += 1;
        Ticket { opaque: self.opaque, code: 0, codec: Codec::Binary }
    }

    pub fn pull_request<'a>(&self, topic: &'a str, offset: i64, flags: i32) -> PullRequest<'a> {
        PullRequest {
            consumer_group: "g".into(),
            topic: topic.into(),
            queue_id: 0,
            queue_offset: offset,
            max_messages: 32,
            sys_flag: flags | pull_flag::SUBSCRIPTION,
            commit_offset: 0,
            suspend_ms: 15_000,
            subscription: Some("*".into()),
            sub_version: 0,
            expression_type: None,
            max_bytes: None,
            request_source: None,
            proxy_forward_client_id: None,
            broker_name: None,
        }
    }

    pub fn pull(&mut self, topic: &str, offset: i64, flags: i32) -> Result<Option<PullReply>, Refusal> {
        let request = self.pull_request(topic, offset, flags);
        let (ticket, mut outbox) = (self.ticket(), Vec::new());
        let pulled = self.dispatcher.pull(&self.session.clone(), ticket, &request, &mut outbox);
        self.hand_on(&mut outbox);
        Ok(match pulled? {
            Pulled::Now(reply) => Some(reply),
            Pulled::Held => None,
            Pulled::Cold(pull) => Some(self.dispatcher.pull_cold(&pull)),
        })
    }

    /// Bodies of everything in queue 0 of a topic.
    pub fn bodies(&mut self, topic: &str) -> Vec<Vec<u8>> {
        let (mut found, mut offset) = (Vec::new(), 0);
        while let Ok(Some(reply)) = self.pull(topic, offset, 0) {
            if reply.code != answer::SUCCESS {
                break;
            }
            offset = reply.next;
            for frame in &reply.frames {
                let record = Record::read(frame.bytes(), Check::Crc).unwrap();
                found.push(record.body(frame.bytes()).to_vec());
            }
        }
        found
    }

    pub fn turn(&self) {
        let mut outbox = Vec::new();
        self.dispatcher.turn(&mut outbox);
        self.hand_on(&mut outbox);
    }

    /// Advances and turns until nothing is due.
    pub fn pass(&self, time: Duration) {
        self.clock.advance(time);
        for _ in 0..100 {
            self.turn();
            if self.dispatcher.wanted() > self.dispatcher.clock().now() {
                return;
            }
        }
    }
}

fn code(result: Result<Sent, Refusal>) -> i32 {
    result.map_or_else(|refusal| refusal.code, |sent| sent.reply.code)
}

/// C-071: with synchronous flushing nothing is shown or answered before the disk has it.
#[test]
fn c_071_a_message_is_shown_and_answered_once_the_disk_has_it() {
    let mut node = Node::new(&FaultyDisk::new(), Flush::Sync, Settings::default());
    let sent = node.send("t", "", b"x").unwrap();
    let ticket = node.ticket();
    assert!(node.dispatcher.wait_for_disk(&node.session, ticket, &sent));
    assert!(node.pull("t", 0, pull_flag::SUSPEND).unwrap().is_none(), "held");
    assert_eq!(node.dispatcher.queue_bounds("t", 0), (0, 0));
    node.turn();
    assert!(node.heard.try_recv().is_err());
    node.dispatcher.store().flush_step().unwrap();
    assert_eq!(node.dispatcher.queue_bounds("t", 0), (0, 1));
    node.turn();
    let heard: Vec<Delivery> = node.heard.try_iter().collect();
    assert_eq!(heard.len(), 2, "{heard:?}");
    for delivery in heard {
        match delivery {
            Delivery::Stored { ticket: which, reply } => assert_eq!((which, reply.code), (ticket, 0)),
            Delivery::Pulled { reply, .. } => assert_eq!((reply.code, reply.frames.len()), (0, 1)),
            other => panic!("{other:?}"),
        }
    }
    // The disk does not answer in time: stored, and not confirmed.
    let sent = node.send("t", "", b"y").unwrap();
    let ticket = node.ticket();
    assert!(node.dispatcher.wait_for_disk(&node.session, ticket, &sent));
    node.pass(FLUSH_WAIT);
    let late = node.heard.try_recv();
    let is_late = matches!(
        &late,
        Ok(Delivery::Stored { reply: SendReply { code: answer::FLUSH_DISK_TIMEOUT, queue_offset: 1, .. }, .. })
    );
    assert!(is_late, "{late:?}");
    node.dispatcher.store().flush_step().unwrap();
    assert_eq!(node.bodies("t"), [b"x", b"y"]);
    assert!(node.heard.try_recv().is_err(), "one answer each");
}

/// Full disk: 14, reads and commits go on, and it heals by itself.
#[test]
fn e_132_s_19_a_full_disk_refuses_sends_and_nothing_else() {
    let disk = FaultyDisk::new();
    let mut node = Node::plain(&disk);
    assert_eq!(code(node.send("t", "", b"first")), 0);
    disk.set_capacity(Some(0));
    let mut stored = 1;
    let refused = loop {
        match node.send("t", "", &[7; 500]) {
            Ok(_) => stored += 1,
            Err(refusal) => break refusal,
        }
    };
    assert_eq!(refused.code, answer::SERVICE_NOT_AVAILABLE, "{refused:?}");
    assert_eq!(node.bodies("t").len(), stored);
    node.dispatcher.note_commit("g", "t", 0, 1);
    assert_eq!(node.pull("t", 0, 0).unwrap().map(|reply| reply.code), Some(0));
    disk.set_capacity(None);
    node.dispatcher.store().segment_step(node.clock.clock().wall_ms());
    assert_eq!(code(node.send("t", "", b"again")), 0);
    assert_eq!(node.bodies("t").len(), stored + 1);
}

/// A failed sync is final: sends get 14, reads go on.
#[test]
fn e_131_after_a_failed_sync_nothing_more_is_stored() {
    let disk = FaultyDisk::new();
    let mut node = Node::new(&disk, Flush::Sync, Settings::default());
    node.send("t", "", b"x").unwrap();
    node.dispatcher.store().flush_step().unwrap();
    node.send("t", "", b"y").unwrap();
    disk.fail_at(0, Fault::Error);
    assert!(node.dispatcher.store().flush_step().is_err());
    assert_eq!(code(node.send("t", "", b"z")), answer::SERVICE_NOT_AVAILABLE);
    assert_eq!(node.bodies("t"), [b"x"]);
}

/// S-11: whatever call of the disk the process dies at around the delivery, one copy comes out.
#[test]
fn e_088_a_delayed_message_is_delivered_once_across_a_crash_at_any_call() {
    for calls in 0..12 {
        let disk = FaultyDisk::new();
        let node = Node::plain(&disk);
        assert_eq!(code(node.send("t", "DELAY\u{1}1\u{2}", b"later")), 0);
        assert_eq!(code(node.send("t", "DELAY\u{1}1\u{2}", b"later still")), 0);
        disk.fail_at(calls, Fault::Stop);
        node.pass(Duration::from_secs(1));
        let mut after = Node::plain(&disk.after_kill());
        after.clock.advance(Duration::from_secs(2));
        after.pass(Duration::from_secs(2));
        assert_eq!(after.bodies("t"), [b"later".to_vec(), b"later still".to_vec()], "stopped at call {calls}");
        after.pass(Duration::from_secs(60));
        assert_eq!(after.bodies("t").len(), 2);
    }
}

/// C-079: a delivery that fails is the first of those that follow.
#[test]
fn c_079_delivery_goes_on_at_the_message_that_failed() {
    let disk = FaultyDisk::new();
    let mut node = Node::plain(&disk);
    for body in [&b"1"[..], b"2", b"3", b"4"] {
        assert_eq!(code(node.send("t", "DELAY\u{1}1\u{2}", body)), 0);
    }
    disk.set_capacity(Some(0));
    while node.send("fill", "", &[7; 300]).is_ok() {}
    node.pass(Duration::from_secs(1));
    let before = node.bodies("t").len();
    assert!(before < 4, "there was no room for all");
    disk.set_capacity(None);
    node.dispatcher.store().segment_step(node.clock.clock().wall_ms());
    node.pass(Duration::from_millis(100));
    assert_eq!(node.bodies("t"), [b"1", b"2", b"3", b"4"]);
}

/// S-9, S-10: what was acknowledged is there after a crash.
#[test]
fn topics_groups_and_offsets_outlive_a_crash() {
    let disk = FaultyDisk::new();
    let node = Node::plain(&disk);
    node.dispatcher.put_topic(Topic::new("made", 7, 6)).unwrap();
    node.dispatcher.put_group(GroupSettings { retry_max: 3, ..GroupSettings::new("g") }).unwrap();
    assert_eq!(code(node.send("t", "", b"x")), 0);
    let commit = UpdateOffsetRequest {
        consumer_group: "g".into(),
        topic: "t".into(),
        queue_id: 0,
        commit_offset: 1,
        broker_name: None,
    };
    node.dispatcher.commit(&commit).unwrap();
    node.pass(Duration::from_secs(5));
    // More was committed than the log keeps: the offset is lowered to the end, at once and at the next start.
    node.dispatcher.note_commit("beyond", "t", 0, 99);
    node.dispatcher.note_commit("beyond", "none", 3, 5);
    assert_eq!(node.dispatcher.offsets.lock().find("beyond", "t", 0), Some(1));
    assert_eq!(node.dispatcher.offsets.lock().find("beyond", "none", 3), Some(0));
    node.dispatcher.offsets.lock().commit("ahead", "t", 0, 99);
    node.pass(Duration::from_secs(5));
    let after = Node::plain(&disk.after_kill());
    assert_eq!(after.dispatcher.topic("made").unwrap().read_queues, 7);
    assert_eq!(after.dispatcher.known_group("g").unwrap().retry_max, 3);
    let query = |group: &'static str| QueryOffsetRequest {
        consumer_group: group.into(),
        topic: "t".into(),
        queue_id: 0,
        set_zero_if_not_found: None,
        broker_name: None,
    };
    assert_eq!(after.dispatcher.committed(&query("g")), Ok(1));
    assert_eq!(after.dispatcher.committed(&query("ahead")), Ok(1));
    // The log is the truth: a topic that has messages exists without the file.
    let disk = after_without(&disk, &["config/topics.json", "config/topics.json.bak"]);
    let mut after = Node::plain(&disk);
    assert_eq!(after.bodies("t"), [b"x"]);
}

fn after_without(disk: &FaultyDisk, names: &[&str]) -> FaultyDisk {
    let disk = disk.after_kill();
    for name in names {
        // A backup is there only of what the disk has kept.
        let _ = disk.remove(name);
    }
    disk
}

/// E-077, E-078.
#[test]
fn offset_files_of_apache_load_and_damaged_ones_are_put_aside() {
    let disk = FaultyDisk::new();
    {
        let node = Node::plain(&disk);
        for _ in 0..9 {
            node.send("t", "", b"x").unwrap();
        }
    }
    let disk = disk.after_kill();
    let apache = br#"{"offsetTable":{"t@g":{0:5,1:0},"%RETRY%g@g":{0:0}}}"#;
    disk.make_dir("config").unwrap();
    disk.write("config/consumerOffset.json", apache).unwrap();
    let find = |disk: &FaultyDisk| Node::plain(disk).dispatcher.offsets.lock().find("g", "t", 0);
    assert_eq!(find(&disk.after_kill()), Some(5));
    disk.rename("config/consumerOffset.json", "config/consumerOffset.json.bak").unwrap();
    disk.write("config/consumerOffset.json", b"\0\0\0\0").unwrap();
    let bad = disk.after_kill();
    assert_eq!(find(&bad), Some(5), "from the backup");
    let aside = |disk: &FaultyDisk| disk.contents().keys().filter(|name| name.contains(".corrupt-")).count();
    assert_eq!(aside(&bad), 1);
    disk.write("config/consumerOffset.json.bak", b"{").unwrap();
    let worse = disk.after_kill();
    assert_eq!((find(&worse), aside(&worse)), (None, 2), "starts all the same");
}

/// A member that lives on through a power cut commits what it had finished; the messages that take the lost ones'
/// offsets are still delivered.
#[test]
fn a_commit_of_what_a_power_cut_took_hides_no_new_message() {
    let disk = FaultyDisk::new();
    let node = Node::plain(&disk);
    for _ in 0..3 {
        node.send("t", "", b"kept").unwrap();
    }
    node.dispatcher.store().flush_step().unwrap();
    for _ in 0..4 {
        node.send("t", "", &[b'l'; 5000]).unwrap();
    }
    node.dispatcher.note_commit("g", "t", 0, 7);
    let disk = (0..50).map(|seed| disk.after_power_cut(seed));
    let mut after =
        disk.map(|disk| Node::plain(&disk)).find(|node| node.dispatcher.queue_bounds("t", 0).1 == 3).unwrap();
    after.dispatcher.note_commit("g", "t", 0, 7);
    assert_eq!(after.dispatcher.offsets.lock().find("g", "t", 0), Some(3));
    assert_eq!(after.send("t", "", b"new").unwrap().reply.queue_offset, 3);
    let next = after.dispatcher.offsets.lock().find("g", "t", 0).unwrap();
    assert_eq!(after.pull("t", next, 0).unwrap().map(|reply| (reply.code, reply.next)), Some((0, 4)));
}

/// A topic that only delayed messages speak of, and whose file a power cut took, is there again with the first that is
/// due; one that was deleted is not.
#[test]
fn a_delayed_message_outlives_the_file_of_topics_but_not_the_deletion_of_its_topic() {
    let disk = FaultyDisk::new();
    let node = Node::plain(&disk);
    for topic in ["kept", "gone"] {
        node.send(topic, "DELAY\u{1}1\u{2}", b"later").unwrap();
    }
    node.dispatcher.delete_topic("gone", &mut Vec::new()).unwrap();
    let disk = after_without(&disk, &["config/topics.json", "config/topics.json.bak"]);
    let mut after = Node::plain(&disk);
    assert!(after.dispatcher.topic("kept").is_err(), "nothing speaks of it yet");
    after.pass(Duration::from_secs(2));
    assert_eq!(after.bodies("kept"), [b"later"]);
    assert!(after.dispatcher.topic("kept").unwrap().write_queues >= 4);
    assert!(after.dispatcher.topic("gone").is_err());
    let again = Node::plain(&disk.after_kill());
    assert!(again.dispatcher.topic("kept").is_ok(), "and it is saved");
}

/// E-126 with a crash.
#[test]
fn e_126_a_deleted_topic_stays_deleted_and_a_new_one_starts_at_zero() {
    let disk = FaultyDisk::new();
    let node = Node::plain(&disk);
    for _ in 0..3 {
        node.send("t", "", b"old").unwrap();
    }
    node.dispatcher.note_commit("g", "t", 0, 3);
    node.dispatcher.delete_topic("t", &mut Vec::new()).unwrap();
    node.pass(Duration::from_secs(5));
    {
        let mut after = Node::plain(&disk.after_kill());
        assert_eq!(after.pull("t", 0, 0).unwrap_err().code, answer::TOPIC_NOT_EXIST);
        assert_eq!(after.send("t", "", b"new").unwrap().reply.queue_offset, 0);
        assert_eq!(after.bodies("t"), [b"new"]);
        assert_eq!(after.dispatcher.offsets.lock().find("g", "t", 0), None);
    }
}

/// With synchronous flushing a deletion is answered once its mark is durable; one that the store refuses deletes nothing.
#[test]
fn a_deletion_is_answered_once_the_disk_has_it_and_a_refused_one_leaves_the_topic() {
    let disk = FaultyDisk::new();
    let node = Node::new(&disk, Flush::Sync, Settings::default());
    for topic in ["gone", "stays"] {
        node.send(topic, "", b"x").unwrap();
    }
    node.dispatcher.store().flush_step().unwrap();
    let delete = |topic: &str, opaque| {
        let (mut frame, mut outbox) = (Vec::new(), Vec::new());
        let head = Head::request(request::DELETE_TOPIC_IN_BROKER, opaque);
        write(
            &mut frame,
            Codec::Json,
            &head,
            &TopicRequest { topic: topic.into(), cluster_name: None, logical: None },
            &[],
        )
        .unwrap();
        let command = Command::read(&frame[4..]).unwrap();
        let reply = command::handle(&node.dispatcher, &node.session, command::Face::Broker, &command, &mut outbox);
        node.hand_on(&mut outbox);
        reply
    };
    assert!(matches!(delete("gone", 7), Reply::Later));
    node.turn();
    assert!(node.heard.try_recv().is_err(), "not durable");
    node.dispatcher.store().flush_step().unwrap();
    node.turn();
    let told = node.heard.try_recv();
    let done = matches!(&told, Ok(Delivery::Done { ticket: Ticket { opaque: 7, .. }, code: answer::SUCCESS }));
    assert!(done, "{told:?}");
    node.send("stays", "", b"y").unwrap();
    disk.fail_at(0, Fault::Error);
    assert!(node.dispatcher.store().flush_step().is_err(), "takes no more");
    assert!(matches!(delete("stays", 8), Reply::Plain { code: answer::SERVICE_NOT_AVAILABLE, .. }));
    assert!(node.dispatcher.topic("stays").is_ok() && node.dispatcher.topic("gone").is_err());
}

/// A deleted topic answers the pulls that wait for it.
#[test]
fn pulls_that_wait_for_a_deleted_topic_are_answered() {
    let mut node = Node::plain(&FaultyDisk::new());
    node.dispatcher.put_topic(Topic::new("t", 1, 6)).unwrap();
    assert!(node.pull("t", 0, pull_flag::SUSPEND).unwrap().is_none());
    let mut outbox = Vec::new();
    node.dispatcher.delete_topic("t", &mut outbox).unwrap();
    node.hand_on(&mut outbox);
    assert!(matches!(node.heard.try_recv(), Ok(Delivery::Pulled { .. })));
    assert_eq!(node.dispatcher.holds.lock().len(), 0);
}

/// C-070: sends and held pulls race; every pull has one answer, and no message waits for longer than its append.
#[test]
fn c_070_a_message_that_comes_while_a_pull_is_being_held_wakes_it() {
    const MESSAGES: i64 = 3_000;
    let mut node = Node::plain(&FaultyDisk::new());
    node.dispatcher.put_topic(Topic::new("t", 1, 6)).unwrap();
    let (dispatcher, from, session) = (node.dispatcher.clone(), node.from(), node.session.clone());
    let sender = std::thread::spawn(move || {
        let request = SendRequest { topic: "t".into(), ..SendRequest::default() };
        for _ in 0..MESSAGES {
            let mut outbox = Vec::new();
            dispatcher.send(from, &request, b"x", &mut outbox).unwrap();
            for (session, delivery) in outbox {
                session.outlet.deliver(session.id, delivery);
            }
        }
        drop(session);
    });
    let (mut next, mut held) = (0, 0);
    while next < MESSAGES {
        let reply = match node.pull("t", next, pull_flag::SUSPEND).unwrap() {
            Some(reply) => reply,
            None => {
                held += 1;
                match node.heard.recv_timeout(Duration::from_secs(20)) {
                    Ok(Delivery::Pulled { ticket, reply }) => {
                        assert_eq!(ticket.opaque, node.opaque);
                        reply
                    }
                    other => panic!("no answer at {next} after {held} held pulls: {other:?}"),
                }
            }
        };
        assert_eq!(reply.code, 0, "{reply:?}");
        next = reply.next;
    }
    sender.join().unwrap();
    assert!(node.heard.try_recv().is_err(), "one answer each");
    assert_eq!(node.dispatcher.holds.lock().len(), 0);
}

/// E-037, E-038.
#[test]
fn a_message_sent_to_its_retry_topic_too_often_is_a_dead_letter() {
    for (compat, times, dead) in
        [(Compat::V4, 15, false), (Compat::V4, 16, true), (Compat::V5, 16, false), (Compat::V5, 17, true)]
    {
        let node = Node::new(&FaultyDisk::new(), Flush::Async, Settings { compat, ..Settings::default() });
        let request = SendRequest {
            topic: "%RETRY%g".into(),
            reconsume_times: Some(times),
            max_reconsume_times: Some(16),
            properties: Some("DELAY\u{1}5\u{2}".into()),
            ..SendRequest::default()
        };
        node.send_as(&request, b"x").unwrap();
        assert_eq!(node.dispatcher.queue_bounds("%DLQ%g", 0).1, i64::from(dead), "{compat:?} {times}");
    }
    let node = Node::plain(&FaultyDisk::new());
    node.dispatcher.lock("g", "c", vec![crate::model::Queue::new("t", "b", 0)]);
    let request = SendRequest { topic: "%RETRY%g".into(), reconsume_times: Some(1), ..SendRequest::default() };
    node.send_as(&request, b"x").unwrap();
    assert_eq!(node.dispatcher.queue_bounds("%DLQ%g", 0).1, 1, "E-038: an ordered group");
}

/// E-123, E-036 and the limit of the group.
#[test]
fn settings_of_a_group_are_obeyed() {
    let mut node = Node::plain(&FaultyDisk::new());
    let sent = node.send("t", "", b"x").unwrap();
    let settings = GroupSettings { consume_enable: false, retry_max: 0, ..GroupSettings::new("g") };
    node.dispatcher.put_group(settings).unwrap();
    assert_eq!(node.pull("t", 0, 0).unwrap_err().code, answer::NO_PERMISSION);
    let back = SendBackRequest {
        offset: sent.reply.physical,
        group: "g".into(),
        delay_level: 0,
        origin_msg_id: None,
        origin_topic: None,
        unit_mode: false,
        max_reconsume_times: None,
        broker_name: None,
    };
    node.dispatcher.send_back(node.from(), &back, &mut Vec::new()).unwrap();
    assert_eq!(node.dispatcher.queue_bounds("%DLQ%g", 0).1, 1);
    assert!(node.dispatcher.put_group(GroupSettings::new("a b")).is_err());
}

/// E-034: a message at the limit can still be retried and delayed.
#[test]
fn e_034_a_message_at_the_size_limit_comes_back() {
    let settings = Settings { max_message_bytes: 4 << 20, ..Settings::default() };
    let mut node = Node::new(&FaultyDisk::new(), Flush::Async, settings);
    let text = format!("p\u{1}{}\u{2}UNIQ_KEY\u{1}u\u{2}", "v".repeat(32_600));
    let sent = node.send("t", &text, &vec![1; 4 << 20]).unwrap();
    let back = SendBackRequest {
        offset: sent.reply.physical,
        group: "g".into(),
        delay_level: 1,
        origin_msg_id: None,
        origin_topic: None,
        unit_mode: false,
        max_reconsume_times: None,
        broker_name: None,
    };
    node.dispatcher.send_back(node.from(), &back, &mut Vec::new()).unwrap();
    node.pass(Duration::from_secs(1));
    assert_eq!(node.bodies("%RETRY%g").len(), 1);
}
