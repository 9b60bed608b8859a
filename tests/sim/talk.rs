//! What members and brokers say to each other, and the rules it keeps: who is told first, what is outstanding once only,
//! what must have been asked before.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use windlass::internals::net::Conn;
use windlass::internals::wire::remoting::codes::{answer, request};
use windlass::internals::wire::remoting::command::Command;
use windlass::internals::wire::remoting::header::ReadHeader;
use windlass::internals::wire::remoting::offset::{QueryOffsetRequest, UpdateOffsetRequest};
use windlass::internals::wire::remoting::pull::PullRequest;
use windlass::internals::wire::remoting::route::RouteRequest;
use windlass::internals::work::clock::Nanos;

use crate::ledger::Place;
use crate::network::{Kind, Who};
use crate::process::{BROKER_PORT, LEAVE, NAMES_PORT, addr};
use crate::world::World;

/// A broker that does not know a member is told within this time of the member's knowing it: one heartbeat may have to
/// run out of time first.
const BEATS: Duration = Duration::from_millis(4500);
/// How long an answer is waited for: one that comes later is as good as none.
fn patience(code: i32) -> Duration {
    Duration::from_secs(match code {
        request::PULL_MESSAGE => 30,
        request::QUERY_CONSUMER_OFFSET | request::UPDATE_CONSUMER_OFFSET => 5,
        _ => 3,
    })
}

/// A turn is over by then.
const LATE: Duration = Duration::from_millis(10);

/// A request that waits for its answer.
#[derive(Debug)]
struct Asked {
    code: i32,
    site: Option<usize>,
    place: Option<Place>,
    offset: i64,
    at: Nanos,
    /// Of a question where the group stands: asked in a queue that is pulled already, whose broker had forgotten us.
    again: bool,
}

/// A member's connection to a broker.
#[derive(Debug)]
struct Line {
    site: usize,
    is_up: bool,
    /// A heartbeat has to go out until then.
    due: Option<Nanos>,
    /// The last heartbeat, and when one was acknowledged.
    beat: Option<Nanos>,
    known: Option<Nanos>,
    /// The broker was told that the group is left.
    left: bool,
    /// Nothing new is sent on it: its broker has gone out of the member's routes, or another has taken its place.
    retired: bool,
}

/// What a member knows of a topic's brokers.
#[derive(Debug)]
struct Route {
    /// Its last question: the answer to an earlier one is not waited for.
    asked: (Conn, i32),
    sites: BTreeSet<usize>,
}

/// What is known of a member and a queue.
#[derive(Debug, Default)]
struct Way {
    /// The last pull, and the last answer to one that says how the queue stands.
    pulled: Option<Nanos>,
    good: Option<Nanos>,
    /// The broker has said where the group stands, or that it does not know.
    located: bool,
    /// The commit that waits for its answer.
    commit: Option<(Conn, i32)>,
    committed: i64,
}

#[derive(Debug, Default)]
pub struct Talk {
    open: BTreeMap<(Who, Conn, i32), Asked>,
    lines: BTreeMap<(Who, Conn), Line>,
    routes: BTreeMap<(Who, Arc<str>), Route>,
    ways: BTreeMap<(Who, Place), Way>,
    /// When a member last got a list of members.
    members: BTreeMap<Who, Nanos>,
    /// When a broker last acknowledged a member's heartbeat.
    known: BTreeMap<(Who, usize), Nanos>,
    /// An answer to each sort of request.
    samples: BTreeMap<i32, Vec<u8>>,
    /// Members that were told of a change and have to ask for the list until then.
    noticed: BTreeMap<Who, Nanos>,
    /// Whose connections a broker has not seen the end of, and at which looks it listed others.
    held: BTreeMap<(Who, Conn), String>,
    strange: BTreeMap<(Who, String), Nanos>,
}

impl Talk {
    pub fn line_asked(&mut self, who: Who, conn: Conn, site: usize) {
        if matches!(who.kind, Kind::Client(_)) {
            self.retire(who, |line| line.site == site);
            let line = Line { site, is_up: false, due: None, beat: None, known: None, left: false, retired: false };
            self.lines.insert((who, conn), line);
        }
    }

    pub fn line_is_up(&mut self, who: Who, conn: Conn, now: Nanos) {
        if let Some(line) = self.lines.get_mut(&(who, conn)) {
            line.is_up = true;
            // A broker keeps its members by connection.
            line.due = (line.beat.is_none() && !line.retired).then_some(now + BEATS);
        }
    }

    fn retire(&mut self, who: Who, goes: impl Fn(&Line) -> bool) {
        for (_, line) in self.lines.iter_mut().filter(|((of, _), line)| *of == who && goes(line)) {
            (line.retired, line.due) = (true, None);
        }
    }

    /// A name server has told a member which brokers a topic has. Those that no topic has are not talked to any more.
    fn routed(&mut self, who: Who, conn: Conn, opaque: i32, body: &[u8]) {
        let body = String::from_utf8_lossy(body);
        let has = |site: &usize| body.contains(&format!("\"{}\"", addr(*site, BROKER_PORT)));
        let asked = |((of, _), route): &(&(Who, Arc<str>), &mut Route)| *of == who && route.asked == (conn, opaque);
        let Some((_, route)) = self.routes.iter_mut().find(asked) else { return };
        route.sites = (0..2).filter(has).collect();
        let sites: BTreeSet<usize> =
            self.routes.iter().filter(|((of, _), _)| *of == who).flat_map(|(_, route)| route.sites.clone()).collect();
        self.retire(who, |line| !sites.contains(&line.site));
    }

    pub fn line_ended(&mut self, who: Who, conn: Conn) {
        self.lines.remove(&(who, conn));
        self.held.remove(&(who, conn));
        self.open.retain(|(asker, at, _), _| (*asker, *at) != (who, conn));
    }

    /// A process is gone.
    pub fn gone(&mut self, who: Who) {
        self.lines.retain(|(of, _), _| *of != who);
        self.open.retain(|(of, _, _), _| *of != who);
        self.ways.retain(|(of, _), _| *of != who);
        self.routes.retain(|(of, _), _| *of != who);
        self.held.retain(|(of, _), _| *of != who);
        self.strange.retain(|(of, _), _| *of != who);
        self.noticed.remove(&who);
    }

    /// A broker has a connection of this client, until it sees its end.
    pub fn holds(&mut self, broker: Who, conn: Conn, client: String) {
        self.held.insert((broker, conn), client);
    }

    /// The queue of the pull that this is the answer to.
    pub fn pulled_by(&self, who: Who, conn: Conn, opaque: i32) -> Option<Place> {
        let asked = self.open.get(&(who, conn, opaque)).filter(|asked| asked.code == request::PULL_MESSAGE)?;
        asked.place.clone()
    }

    /// An answer as the request that is open there might have got one before.
    pub fn ghost(&self, who: Who, conn: Conn, opaque: i32) -> Option<(i32, Vec<u8>)> {
        let asked = self.open.get(&(who, conn, opaque))?;
        self.samples.get(&asked.code).map(|sample| (asked.code, sample.clone()))
    }

    /// When the last pull of a queue went out, and when one was last answered well.
    pub fn pulls(&self, who: Who, place: &Place) -> (Option<Nanos>, Option<Nanos>) {
        self.ways.get(&(who, place.clone())).map_or((None, None), |way| (way.pulled, way.good))
    }

    pub fn members_seen(&self, who: Who) -> Option<Nanos> {
        self.members.get(&who).copied()
    }

    pub fn known_since(&self, who: Who, site: usize) -> Option<Nanos> {
        self.known.get(&(who, site)).copied()
    }

    /// The member's connection to a site's broker that carries its requests.
    pub fn line_to(&self, who: Who, site: usize) -> Option<Conn> {
        let ours = |((of, _), line): &(&(Who, Conn), &Line)| *of == who && line.site == site && line.is_up;
        self.lines.iter().filter(ours).map(|((_, conn), _)| *conn).next_back()
    }

    /// Where a queue's offsets come from is open again: a broker has corrected it.
    pub fn corrected(&mut self, who: Who, place: &Place) {
        if let Some(way) = self.ways.get_mut(&(who, place.clone())) {
            (way.commit, way.committed) = (None, 0);
        }
    }

    fn way(&mut self, who: Who, place: &Place) -> &mut Way {
        self.ways.entry((who, place.clone())).or_default()
    }

    fn site(&self, who: Who, conn: Conn) -> Option<usize> {
        self.lines.get(&(who, conn)).map(|line| line.site)
    }
}

impl World {
    /// A member asks something.
    pub fn asks(&mut self, who: Who, conn: Conn, command: &Command<'_>) -> Result<(), String> {
        let (now, code) = (self.now, command.code);
        let site = self.talk.site(who, conn);
        let mut asked = Asked { code, site, place: None, offset: 0, at: now, again: false };
        let at = |topic: &str, queue: i32| site.map(|site| (site, Arc::from(topic), queue));
        match code {
            request::HEART_BEAT => {
                if let Some(line) = self.talk.lines.get_mut(&(who, conn)) {
                    (line.beat, line.due) = (Some(now), None);
                }
            }
            request::GET_CONSUMER_LIST_BY_GROUP => drop(self.talk.noticed.remove(&who)),
            request::GET_ROUTEINFO_BY_TOPIC => {
                self.check_name_server(who, conn)?;
                let route = RouteRequest::read(&command.fields).map_err(|error| error.to_string())?;
                let new = || Route { asked: (conn, command.opaque), sites: BTreeSet::new() };
                let known = self.talk.routes.entry((who, Arc::from(&*route.topic))).or_insert_with(new);
                known.asked = (conn, command.opaque);
            }
            request::UNREGISTER_CLIENT => {
                if let Some(line) = self.talk.lines.get_mut(&(who, conn)) {
                    line.left = true;
                }
            }
            request::PULL_MESSAGE => {
                let pull = PullRequest::read(&command.fields).map_err(|error| error.to_string())?;
                asked.place = at(&pull.topic, pull.queue_id);
                if let Some(place) = &asked.place {
                    let way = self.talk.way(who, place);
                    way.pulled = Some(now);
                    if !way.located {
                        return Err(format!("{who:?} pulls {place:?}, but was not told where the group stands"));
                    }
                }
            }
            request::QUERY_CONSUMER_OFFSET => {
                let query = QueryOffsetRequest::read(&command.fields).map_err(|error| error.to_string())?;
                asked.place = at(&query.topic, query.queue_id);
                asked.again = query.set_zero_if_not_found == Some(false);
                if let Some(place) = &asked.place {
                    let way = self.talk.way(who, place);
                    if !asked.again {
                        (way.located, way.commit, way.committed) = (false, None, 0);
                    }
                }
            }
            request::UPDATE_CONSUMER_OFFSET => {
                let update = UpdateOffsetRequest::read(&command.fields).map_err(|error| error.to_string())?;
                asked.place = at(&update.topic, update.queue_id);
                asked.offset = update.commit_offset;
                if let Some(place) = asked.place.clone() {
                    self.commits(who, conn, command.opaque, &place, update.commit_offset)?;
                }
            }
            _ => {}
        }
        if !command.is_oneway() {
            self.talk.open.insert((who, conn, command.opaque), asked);
        }
        Ok(())
    }

    /// One commit of a queue at a time, and never back (D11).
    fn commits(&mut self, who: Who, conn: Conn, opaque: i32, place: &Place, offset: i64) -> Result<(), String> {
        let (now, way) = (self.now, self.talk.way(who, place));
        let committed = way.committed;
        let before = way.commit.replace((conn, opaque));
        if offset < committed {
            return Err(format!("{who:?} commits {offset} in {place:?}, but has committed {committed}"));
        }
        let waits = before.and_then(|(conn, opaque)| self.talk.open.get(&(who, conn, opaque)));
        if let Some(waits) = waits.filter(|waits| now.since(waits.at) < patience(waits.code)) {
            return Err(format!("{who:?} commits {offset} in {place:?} while {waits:?} waits for its answer"));
        }
        Ok(())
    }

    /// An answer, or a request of the broker's, reaches a member.
    pub fn hears(&mut self, who: Who, conn: Conn, content: &[u8]) {
        let (Kind::Client(member), Ok(command)) = (who.kind, Command::read(content)) else { return };
        if !command.is_answer() {
            // What comes over a connection that has ended is not read, and one that is not used any more may end.
            let is_read = self.talk.lines.get(&(who, conn)).is_some_and(|line| !line.retired);
            if command.code == request::NOTIFY_CONSUMER_IDS_CHANGED && is_read {
                self.talk.noticed.entry(who).or_insert(self.now + BEATS);
            }
            return;
        }
        let (now, code) = (self.now, command.code);
        let Some(asked) = self.talk.open.remove(&(who, conn, command.opaque)) else { return };
        if self.plan.ghosts > 0 {
            self.talk.samples.insert(asked.code, content.to_vec());
        }
        if now.since(asked.at) >= patience(asked.code) {
            return;
        }
        let mut forgotten = false;
        match (asked.code, &asked.place) {
            (request::HEART_BEAT, _) if code == answer::SUCCESS => {
                if let Some(line) = self.talk.lines.get_mut(&(who, conn)) {
                    line.known = Some(now);
                }
                if let Some(site) = asked.site {
                    self.talk.known.insert((who, site), now);
                }
            }
            (request::PULL_MESSAGE, Some(place)) => {
                // A heartbeat that went out behind the pull has told it already; whoever has given the queue up meanwhile
                // does not hear the refusal.
                let beat = self.talk.lines.get(&(who, conn)).and_then(|line| line.beat);
                forgotten = beat.is_none_or(|beat| beat <= asked.at)
                    && matches!(
                        code,
                        answer::SUBSCRIPTION_NOT_EXIST
                            | answer::SUBSCRIPTION_NOT_LATEST
                            | answer::SUBSCRIPTION_GROUP_NOT_EXIST
                    );
                let stands = [answer::SUCCESS, answer::PULL_NOT_FOUND, answer::PULL_RETRY_IMMEDIATELY];
                if stands.contains(&code) {
                    self.talk.way(who, place).good = Some(now);
                } else if code == answer::PULL_OFFSET_MOVED {
                    self.talk.corrected(who, place);
                }
            }
            (request::QUERY_CONSUMER_OFFSET, Some(place)) if !asked.again => {
                self.talk.way(who, place).located = matches!(code, answer::SUCCESS | answer::QUERY_NOT_FOUND);
            }
            (request::UPDATE_CONSUMER_OFFSET, Some(place)) if code == answer::SUCCESS => {
                let way = self.talk.way(who, place);
                if way.commit.take_if(|open| *open == (conn, command.opaque)).is_some() {
                    way.committed = asked.offset;
                }
            }
            (request::GET_ROUTEINFO_BY_TOPIC, _) if code == answer::SUCCESS => {
                self.talk.routed(who, conn, command.opaque, command.body);
            }
            (request::GET_CONSUMER_LIST_BY_GROUP, _) if code == answer::SUCCESS => {
                self.talk.members.insert(who, now);
                let id = self.clients[member].process.as_ref().map(|it| format!("\"{}\"", it.client_id));
                let listed = id.is_some_and(|id| String::from_utf8_lossy(command.body).contains(&id));
                forgotten = !listed;
            }
            _ => {}
        }
        if let Some(line) = self.talk.lines.get_mut(&(who, conn)).filter(|line| forgotten && !line.retired) {
            line.due.get_or_insert(now + BEATS);
        }
    }

    /// Only name servers of the present list are asked.
    fn check_name_server(&self, who: Who, conn: Conn) -> Result<(), String> {
        let Kind::Client(member) = who.kind else { return Ok(()) };
        let Some((servers, since)) = &self.clients[member].names else { return Ok(()) };
        let far = self.net.far((who, conn)).map(|(far, _)| far.kind);
        let Some(Kind::Broker(site)) = far else { return Ok(()) };
        if self.now.since(*since) > LATE && !servers.contains(&addr(site, NAMES_PORT).to_string()) {
            return Err(format!("{who:?} asks the name server of site {site}, but its list is {servers:?}"));
        }
        Ok(())
    }

    /// A member that was told of a change asks for the list, unless no broker of its routes knows it.
    fn look_at_notices(&mut self) {
        let now = self.now;
        let late: Vec<Who> = self.talk.noticed.iter().filter(|(_, until)| **until < now).map(|(who, _)| *who).collect();
        for who in late {
            let knows = |((of, conn), line): (&(Who, Conn), &Line)| {
                let known =
                    line.known.is_some_and(|known| known + LATE < now && line.beat.is_some_and(|beat| beat <= known));
                *of == who && known && !line.retired && self.net.is_healthy((*of, *conn), now)
            };
            let known = self.talk.lines.iter().any(knows);
            if known && self.client(who).is_some_and(|client| !client.is_leaving()) {
                self.fail(format!("{who:?} was told that members have changed and does not ask for them"));
            }
        }
    }

    /// A broker lists nobody whose connections it has seen the end of.
    fn look_at_lists(&mut self) {
        for site in 0..self.sites.len() {
            let who = Who { kind: Kind::Broker(site), life: self.sites[site].life };
            let Some(broker) = &self.sites[site].process else { continue };
            let mut listed: Vec<String> = Vec::new();
            for group in &self.plan.groups {
                let list = broker.dispatcher.consumer_list(group.name).unwrap_or_default();
                listed.extend(list.iter().map(|id| id.to_string()));
            }
            let held: Vec<String> =
                self.talk.held.iter().filter(|((of, _), _)| *of == who).map(|(_, id)| id.clone()).collect();
            listed.retain(|id| !held.contains(id));
            self.talk.strange.retain(|(of, id), _| *of != who || listed.contains(id));
            for id in listed {
                let since = *self.talk.strange.entry((who, id.clone())).or_insert(self.now);
                if self.now.since(since) > Duration::from_secs(1) {
                    self.fail(format!("broker {site} lists {id}, whose connections have ended"));
                }
            }
        }
    }

    /// Whether every broker was told what it had to be told.
    pub fn look_at_talk(&mut self) {
        self.look_at_notices();
        self.look_at_lists();
        let late: Vec<(Who, usize)> = self
            .talk
            .lines
            .iter()
            .filter(|(_, line)| line.due.is_some_and(|due| due < self.now))
            .map(|((who, _), line)| (*who, line.site))
            .collect();
        for (who, site) in late {
            let leaves = self.client(who).is_none_or(|client| client.is_leaving());
            if !leaves {
                self.fail(format!("{who:?} does not tell broker {site} that it lives, which it knows to be needed"));
            }
        }
    }

    /// A member that ends in order has told the brokers that know it before it closes their connections.
    pub fn check_left(&mut self, who: Who) {
        let now = self.now;
        let Some(leaves) = self.client(who).and_then(|client| client.leaves) else { return };
        if now.since(leaves) + Duration::from_millis(100) >= LEAVE {
            return;
        }
        let untold: Vec<usize> = self
            .talk
            .lines
            .iter()
            .filter(|((of, conn), line)| {
                let known =
                    line.known.is_some_and(|known| known <= leaves && line.beat.is_some_and(|beat| beat <= known));
                *of == who
                    && known
                    && !line.retired
                    && !line.left
                    && line.due.is_none()
                    && self.net.is_healthy((*of, *conn), now)
            })
            .map(|(_, line)| line.site)
            .collect();
        if !untold.is_empty() {
            self.fail(format!("{who:?} has ended and not told the brokers {untold:?}, which know it"));
        }
    }
}
