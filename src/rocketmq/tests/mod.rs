//! The core alone on a stage: a port that is played by the test, a clock that it moves, workers that it runs.
//!
//! Nothing here waits or races: every deadline of the core comes due at its own moment of the stage's clock, in order.
//! What one part of the core does for another, and when, is shown here; what one part does alone stands in its file, and
//! what needs a socket in `tests/`.

mod commits;
mod intake;
mod leaving;
mod retries;
mod starts;

use std::any::Any;
use std::collections::{BTreeMap, VecDeque};
use std::net::{IpAddr, Ipv4Addr};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use super::client::Context;
use super::consumer::claim::Claim;
use super::consumer::group::{ConsumerId, ConsumerSpec, Order, for_tests};
use super::consumer::pulled::Pulled;
use super::core::{Command, Core, Timer};
use super::events::{Event, Observer};
use super::port::{Answer, Arrival, Ask, CallError, News, Peer, Port, Target, Ticket};
use super::settings::{Settings, Timing};
use crate::consume::claim::{Detached, Hand, Listen};
use crate::consume::listener::Outcome;
use crate::consume::pool::{Pool, Worker};
use crate::net::answer::{Taker, pair};
use crate::net::handle::{Inbox, without_loop};
use crate::net::{Action, Change, Conn, FrameBuf, Out, Role};
use crate::wire::frame::Frame;
use crate::wire::remoting::codes::request;
use crate::wire::remoting::command::{Codec, Command as Parsed, Head, write};
use crate::wire::remoting::properties;
use crate::wire::remoting::pull::PullAnswer;
use crate::wire::remoting::record::{NewRecord, patch};
use crate::work::budget::Budget;
use crate::work::clock::{Nanos, TestClock};
use crate::work::deadlines::Deadlines;
use crate::work::serve::Lane;

const TOPIC: &str = "orders";
const BROKER: &str = "10.0.0.9:10911";
const CLIENT: &str = "10.0.0.1@stage";

/// A request of the core, as the stage heard it.
#[derive(Clone, Debug)]
struct Asked {
    ticket: Ticket,
    code: i32,
    fields: BTreeMap<String, String>,
    at_ms: u64,
}

impl Asked {
    fn field(&self, name: &str) -> &str {
        self.fields.get(name).map_or("", String::as_str)
    }

    fn number(&self, name: &str) -> i64 {
        self.field(name).parse().unwrap()
    }

    /// It is a request of this code about the topic.
    fn is(&self, code: i32) -> bool {
        self.code == code && self.field("topic") == TOPIC
    }
}

/// What the stage answers.
type Said = Result<Answer, CallError>;

/// An answer that is a code, fields and a body.
fn answer(code: i32, fields: &[(&str, &str)], body: &[u8]) -> Said {
    let mut bytes = Vec::new();
    write(&mut bytes, Codec::Json, &Head::answer(code, 1), fields, body).unwrap();
    Ok(Answer::Frame(FrameBuf::from(bytes.split_off(4))))
}

fn done() -> Said {
    answer(0, &[], b"")
}

fn at_offset(offset: i64) -> Said {
    answer(0, &[("offset", &offset.to_string())], b"")
}

fn members(ids: &[&str]) -> Said {
    answer(0, &[], format!(r#"{{"consumerIdList":{ids:?}}}"#).as_bytes())
}

/// An answer to a pull: what the embedded broker gives, in one frame each.
fn pulled(next: i64, max: i64, frames: &[Vec<u8>]) -> Said {
    let frames = frames.iter().map(|bytes| Frame::from(bytes.clone())).collect();
    Ok(Answer::Pulled { code: 0, header: PullAnswer::at(next, 0, max), frames })
}

/// A message as it is stored.
fn record(offset: i64, tag: &str) -> Vec<u8> {
    let (mut text, mut bytes) = (Vec::new(), Vec::new());
    properties::push(&mut text, properties::names::TAGS, tag);
    let record = NewRecord {
        topic: TOPIC.as_bytes(),
        body: b"body",
        properties: &text,
        queue_id: 0,
        flag: 0,
        sys_flag: 0,
        born_ms: 1000,
        born_host: "10.0.0.1:1".parse().unwrap(),
        store_host: BROKER.parse().unwrap(),
        reconsume_times: 0,
        prepared_offset: 0,
        body_crc: None,
    };
    record.encode_into(&mut bytes).unwrap();
    patch(&mut bytes, offset, 4096 + offset, 2000);
    bytes
}

/// What a broker answers that is not the matter of a test: one queue, ours, that holds its pulls.
fn usual(asked: &Asked) -> Option<Said> {
    let route = || {
        format!(
            r#"{{"brokerDatas":[{{"brokerAddrs":{{"0":"{BROKER}"}},"brokerName":"broker-a","cluster":"C"}}],
            "queueDatas":[{{"brokerName":"broker-a","perm":6,"readQueueNums":1,"topicSysFlag":0,"writeQueueNums":1}}]}}"#
        )
    };
    match asked.code {
        request::GET_ROUTEINFO_BY_TOPIC if asked.field("topic") == TOPIC => Some(answer(0, &[], route().as_bytes())),
        request::GET_ROUTEINFO_BY_TOPIC => Some(answer(17, &[], b"")),
        request::GET_CONSUMER_LIST_BY_GROUP => Some(members(&[CLIENT])),
        request::QUERY_CONSUMER_OFFSET => Some(at_offset(0)),
        request::PULL_MESSAGE => None,
        _ => Some(done()),
    }
}

/// Answers a request, or leaves it without an answer for now.
type Play = Box<dyn FnMut(&Asked) -> Option<Said> + Send>;

struct Script {
    asked: Vec<Asked>,
    /// Codes of what wanted no answer.
    told: Vec<i32>,
    arrivals: VecDeque<Arrival>,
    play: Play,
    clock: TestClock,
}

/// The port's end of the script.
struct Played(Arc<Mutex<Script>>);

impl Port for Played {
    fn ask(&mut self, ticket: Ticket, _to: Target<'_>, ask: &Ask<'_>, _now: Nanos, _out: &mut Out<Timer>) {
        let mut frame = Vec::new();
        ask.encode(Codec::Json, 1, false, &mut frame).unwrap();
        let command = Parsed::read(&frame[4..]).unwrap();
        let fields = command.fields.iter().map(|(name, value)| (name.lossy().into_owned(), value.lossy().into_owned()));
        let mut script = self.0.lock().unwrap();
        let at_ms = script.clock.elapsed().as_millis() as u64;
        let asked = Asked { ticket, code: ask.code(), fields: fields.collect(), at_ms };
        if let Some(result) = (script.play)(&asked) {
            script.arrivals.push_back(Arrival::Answer { ticket, result });
        }
        script.asked.push(asked);
    }

    fn tell(&mut self, _to: Target<'_>, ask: &Ask<'_>, _now: Nanos, _out: &mut Out<Timer>) {
        self.0.lock().unwrap().told.push(ask.code());
    }

    fn ask_written(&mut self, _ticket: Option<Ticket>, _to: Target<'_>, _frame: Vec<u8>, _out: &mut Out<Timer>) {}

    fn forget(&mut self, ticket: Ticket, _late: bool, _out: &mut Out<Timer>) {
        let is_it = |arrival: &Arrival| matches!(arrival, Arrival::Answer { ticket: of, .. } if *of == ticket);
        self.0.lock().unwrap().arrivals.retain(|arrival| !is_it(arrival));
    }

    fn reply(&mut self, _to: Peer, _write: &mut dyn FnMut(&mut Vec<u8>), _out: &mut Out<Timer>) {}

    fn poll(&mut self) -> Option<Arrival> {
        self.0.lock().unwrap().arrivals.pop_front()
    }

    fn set_name_servers(&mut self, _list: Vec<String>, _now: Nanos, _out: &mut Out<Timer>) {}

    fn version(&mut self, _addr: &Arc<str>, _version: i32) {}

    fn connection(&mut self, _conn: Conn, _change: Change, _now: Nanos, _out: &mut Out<Timer>) {}

    fn frame(&mut self, _conn: Conn, _frame: FrameBuf, _now: Nanos, _out: &mut Out<Timer>) {}

    fn news(&mut self, _news: News, _now: Nanos, _out: &mut Out<Timer>) {}

    fn retain(&mut self, _keep: &dyn Fn(&str) -> bool, _out: &mut Out<Timer>) {}

    fn close(&mut self, _out: &mut Out<Timer>) {}
}

/// What handlers have seen and say next; nothing said is done.
#[derive(Default)]
struct Handled {
    seen: Mutex<Vec<i64>>,
    says: Mutex<VecDeque<Outcome>>,
    /// Messages that a handler still has in hand, if they are kept.
    kept: Mutex<Option<Vec<Detached<Pulled>>>>,
}

struct Told(Arc<Handled>);

impl Listen<Pulled> for Told {
    fn local(&self, _worker: usize) -> Box<dyn Any> {
        Box::new(())
    }

    fn handle(&self, hand: Hand<'_, Pulled>, _local: &mut dyn Any) -> Outcome {
        for place in hand.places() {
            let (part, at) = hand.chunk.at(place).unwrap();
            self.0.seen.lock().unwrap().push(part.batch.records[at].queue_offset);
            if let Some(kept) = &mut *self.0.kept.lock().unwrap() {
                kept.extend(hand.detach(place));
            }
        }
        self.0.says.lock().unwrap().pop_front().unwrap_or(Outcome::Done)
    }

    fn panicked(&self, _hand: Hand<'_, Pulled>, message: &str) {
        panic!("a handler of the stage: {message}");
    }
}

/// So many rounds in one moment are one that never ends.
const ROUNDS: usize = 10_000;

/// A core with one consumer of the topic.
struct Stage {
    core: Core,
    inbox: Inbox<Command>,
    out: Out<Timer>,
    deadlines: Deadlines<Timer>,
    clock: TestClock,
    script: Arc<Mutex<Script>>,
    pool: Arc<Pool>,
    worker: Worker,
    lane: Lane,
    handled: Arc<Handled>,
    events: Arc<Mutex<Vec<(u64, Event)>>>,
    id: ConsumerId,
}

impl Stage {
    /// As the broker that `play` is where it answers, and else as usual.
    fn new(play: impl FnMut(&Asked) -> Option<Option<Said>> + Send + 'static) -> Self {
        Self::with(|_| {}, play)
    }

    /// ... of a consumer that is started as `change` says.
    fn with(
        change: impl FnOnce(&mut ConsumerSpec),
        mut play: impl FnMut(&Asked) -> Option<Option<Said>> + Send + 'static,
    ) -> Self {
        let clock = TestClock::new();
        let play: Play = Box::new(move |asked| play(asked).unwrap_or_else(|| usual(asked)));
        let script =
            Script { asked: Vec::new(), told: Vec::new(), arrivals: VecDeque::new(), play, clock: clock.clone() };
        let script = Arc::new(Mutex::new(script));
        let (lane, pool, (inbox, handle)) = (Lane::unmanned(), Pool::unmanned(), without_loop());
        let settings = Settings {
            name_servers: vec!["10.0.0.8:9876".into()],
            workers: 1,
            memory_budget: 1 << 30,
            instance: "stage".into(),
            ip: IpAddr::V4(Ipv4Addr::new(10, 0, 0, 1)),
            map_address: None,
            timing: Timing::default(),
            clock: clock.clock(),
        };
        let context = Context::new(settings, lane.clone(), Budget::new(1 << 30), handle);
        let core = Core::new(context, Box::new(Played(Arc::clone(&script))));
        let mut stage = Self {
            core,
            inbox,
            out: Out::new(),
            deadlines: Deadlines::new(),
            clock,
            script,
            pool,
            worker: Worker::new(0),
            lane,
            handled: Arc::default(),
            events: Arc::default(),
            id: ConsumerId(0),
        };
        stage.id = stage.start("G", change);
        stage
    }

    /// Starts a consumer.
    fn start(&mut self, group: &str, change: impl FnOnce(&mut ConsumerSpec)) -> ConsumerId {
        let (told, events, clock) = (Told(Arc::clone(&self.handled)), Arc::clone(&self.events), self.clock.clone());
        let observer: Arc<dyn Observer> = Arc::new(move |event: &Event| {
            events.lock().unwrap().push((clock.elapsed().as_millis() as u64, event.clone()));
        });
        let pool = Arc::clone(&self.pool);
        let mut spec = for_tests::spec(group, &[(TOPIC, "*")], Box::new(told), pool, self.clock.clock());
        spec.observer = Some(observer);
        change(&mut spec);
        let (answer, started) = pair();
        self.command(Command::Start { spec: Box::new(spec), answer });
        started.poll().unwrap().unwrap()
    }

    fn command(&mut self, command: Command) {
        self.core.command(command, self.now(), &mut self.out);
        self.turn();
    }

    /// Begins to stop a consumer.
    fn stop(&mut self, id: ConsumerId, most: Duration) -> Taker<super::ConsumerReport> {
        let (answer, report) = pair();
        self.command(Command::Consumer(id, Order::Stop { most, answer }));
        report
    }

    fn now(&self) -> Nanos {
        self.clock.clock().now()
    }

    fn now_ms(&self) -> u64 {
        self.clock.elapsed().as_millis() as u64
    }

    /// Turns of the loop until nothing is left to do at this moment.
    fn turn(&mut self) {
        let now = self.now();
        for _ in 0..ROUNDS {
            self.perform();
            while let Some(command) = self.inbox.take() {
                self.core.command(command, now, &mut self.out);
            }
            while let Some(timer) = self.deadlines.due(now) {
                self.core.due(timer, now, &mut self.out);
            }
            self.core.settle(now, &mut self.out);
            self.perform();
            while self.lane.run_next() {}
            let arrived = !self.script.lock().unwrap().arrivals.is_empty();
            if self.inbox.is_empty() && !arrived && self.deadlines.next().is_none_or(|at| at > now) {
                return;
            }
            if arrived {
                // A frame that came would have the core look at what its port has.
                self.core.frame(Conn(1), FrameBuf::from(Vec::new()), now, &mut self.out);
            }
        }
        panic!("turns without end");
    }

    fn perform(&mut self) {
        for action in self.out.actions() {
            if let Action::Arm(at, timer) = action {
                self.deadlines.arm(*at, *timer);
            }
        }
        self.out.clear();
    }

    /// Lets time pass, deadline by deadline.
    fn pass(&mut self, ms: u64) {
        let end = self.now() + Duration::from_millis(ms);
        self.turn();
        while let Some(next) = self.deadlines.next().filter(|next| *next <= end) {
            self.clock.advance(next.since(self.now()));
            self.turn();
        }
        self.clock.advance(end.since(self.now()));
        self.turn();
    }

    /// Runs what is ready on a worker.
    fn work(&mut self) {
        while let Some(token) = self.pool.try_next() {
            token.run(&mut self.worker);
        }
        self.turn();
    }

    /// What handlers say from now on, one after the other.
    fn say(&self, outcomes: impl IntoIterator<Item = Outcome>) {
        self.handled.says.lock().unwrap().extend(outcomes);
    }

    /// Runs what is ready; its handlers do not return before [`let_go`](Self::let_go).
    fn work_and_keep(&mut self) {
        *self.handled.kept.lock().unwrap() = Some(Vec::new());
        self.work();
    }

    /// They return, with what they say.
    fn let_go(&mut self) {
        let kept = self.handled.kept.lock().unwrap().take().unwrap_or_default();
        for detached in kept {
            let outcome = self.handled.says.lock().unwrap().pop_front().unwrap_or(Outcome::Done);
            detached.finish(outcome, None);
        }
        self.turn();
    }

    /// Offsets that handlers have had in hand.
    fn seen(&self) -> Vec<i64> {
        self.handled.seen.lock().unwrap().clone()
    }

    /// The answer to a request that was left without one.
    fn answer(&mut self, asked: &Asked, said: Said) {
        self.answer_all([(asked, said)]);
    }

    /// The answers to several requests, at once.
    fn answer_all<'a>(&mut self, answers: impl IntoIterator<Item = (&'a Asked, Said)>) {
        for (asked, result) in answers {
            let arrival = Arrival::Answer { ticket: asked.ticket, result };
            self.script.lock().unwrap().arrivals.push_back(arrival);
        }
        self.core.frame(Conn(1), FrameBuf::from(Vec::new()), self.now(), &mut self.out);
        self.turn();
    }

    /// Something that no answer is.
    fn arrive(&mut self, arrival: Arrival) {
        self.script.lock().unwrap().arrivals.push_back(arrival);
        self.turn();
    }

    /// A broker says that the members of a group have changed.
    fn members_changed(&mut self) {
        let mut bytes = Vec::new();
        let head = Head::oneway(request::NOTIFY_CONSUMER_IDS_CHANGED, 1);
        write(&mut bytes, Codec::Json, &head, [("consumerGroup", "G")].as_slice(), b"").unwrap();
        self.arrive(Arrival::Request { from: Peer(1), frame: FrameBuf::from(bytes.split_off(4)) });
    }

    /// All requests of this code about the topic.
    fn asked(&self, code: i32) -> Vec<Asked> {
        self.script.lock().unwrap().asked.iter().filter(|asked| asked.is(code)).cloned().collect()
    }

    /// How many requests of this code there were, whatever about.
    fn count(&self, code: i32) -> usize {
        self.script.lock().unwrap().asked.iter().filter(|asked| asked.code == code).count()
    }

    /// Where the pulls began.
    fn pulls(&self) -> Vec<i64> {
        self.asked(request::PULL_MESSAGE).iter().map(|asked| asked.number("queueOffset")).collect()
    }

    /// Commits: when, and what.
    fn commits(&self) -> Vec<(u64, i64)> {
        let commits = self.asked(request::UPDATE_CONSUMER_OFFSET);
        commits.iter().map(|asked| (asked.at_ms, asked.number("commitOffset"))).collect()
    }

    /// Events of this name: when, and what.
    fn events(&self, name: &str) -> Vec<(u64, Event)> {
        self.events.lock().unwrap().iter().filter(|(_, event)| event.name() == name).cloned().collect()
    }

    /// The claim on the topic's queue, if there is one.
    fn claim(&mut self) -> Option<&mut Claim> {
        self.core.claims.values_mut().find(|claim| &*claim.queue.topic == TOPIC)
    }
}

#[test]
fn the_stage_plays_a_consumer_from_its_start_to_its_end() {
    let mut stage = Stage::new(|asked| match asked.code {
        request::PULL_MESSAGE if asked.field("queueOffset") == "0" => {
            Some(Some(pulled(2, 2, &[record(0, "a"), record(1, "a")])))
        }
        _ => None,
    });
    assert_eq!((stage.pulls(), stage.seen().len(), stage.claim().is_some()), (vec![0, 2], 0, true));
    stage.work();
    assert_eq!(stage.seen(), [0, 1]);
    stage.pass(1000);
    assert_eq!(stage.commits().last().map(|commit| commit.1), Some(2));
    let report = stage.stop(stage.id, Duration::from_secs(10)).poll().unwrap();
    assert!(report.is_clean() && report.finished == 2 && stage.claim().is_none(), "{report:?}");
    assert_eq!((stage.events("revoked").len(), stage.now_ms()), (1, 1000));
}
