//! Calls of other threads over sockets: a call lane while few are in flight to an address, else the loop (D24).
//!
//! Producers and administration use it through [`Caller`]. It asks again only what a peer says it has not done.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::client::{Start, frame_pool};
use super::core::Command as CoreCommand;
use super::port::{Answer, Ask, CallError, Caller, Done, Target};
use super::socket::Known;
use crate::model::SortedMap;
use crate::net::answer::{NoAnswer, pair};
use crate::net::lane::{LaneError, LaneSettings, Lanes};
use crate::net::resolve::Resolver;
use crate::net::{Handle, PostError};
use crate::wire::remoting::codes::answer;
use crate::wire::remoting::command::{Codec, Command};
use crate::work::ranks::{Rank, Ranked};

/// How late the loop may end a call.
const LATE: Duration = Duration::from_millis(100);

/// See the head of this file.
pub struct SocketCaller {
    handle: Handle<CoreCommand>,
    known: Arc<Known>,
    lanes: Lanes,
    resolver: Resolver,
    /// Addresses of names, until a call to one fails. Lock: rank 1, for a look-up only.
    resolved: Ranked<SortedMap<Arc<str>, SocketAddr>>,
}

impl SocketCaller {
    /// A caller that shares what is known of peers with the loop.
    pub fn new(start: &Start<'_>, known: Arc<Known>, lanes: Lanes) -> Self {
        Self {
            handle: start.handle.clone(),
            known,
            lanes,
            resolver: Resolver::new(start.lane.clone()),
            resolved: Ranked::new(Rank::Tables, SortedMap::new()),
        }
    }

    /// Lanes for calls whose answers `Command`s are.
    pub fn lanes(start: &Start<'_>) -> Lanes {
        let connect_timeout = start.settings.timing.connect;
        Lanes::new(LaneSettings { connect_timeout, ..LaneSettings::new(opaque_of) }, frame_pool(start.budget))
    }

    fn resolve(&self, addr: &Arc<str>, deadline: Instant) -> Result<SocketAddr, CallError> {
        if let Ok(socket) = addr.parse() {
            return Ok(socket);
        }
        if let Some(socket) = self.resolved.lock().get(addr) {
            return Ok(*socket);
        }
        let found = self.resolver.wait(addr, deadline);
        let socket = found.map_err(|error| CallError::Connect { to: addr.to_string(), detail: error.to_string() })?;
        self.resolved.lock().insert(Arc::clone(addr), socket);
        Ok(socket)
    }

    fn once(&self, to: Target<'_>, ask: &Ask<'_>, deadline: Instant) -> Result<Answer, CallError> {
        match to {
            Target::NameServer => self.over_loop(to, ask, deadline),
            Target::Broker(addr) => self.over_lane(addr, ask, deadline),
        }
    }

    fn over_lane(&self, addr: &Arc<str>, ask: &Ask<'_>, deadline: Instant) -> Result<Answer, CallError> {
        let begun = Instant::now();
        let socket = self.resolve(addr, deadline)?;
        let codec = self.known.codec(addr);
        let mut written = Ok(());
        let called =
            self.lanes.call(socket, deadline, |opaque, bytes| written = ask.encode(codec, opaque, false, bytes));
        // Nothing was written, so nothing was sent: the lane could only wait in vain.
        written?;
        if matches!(called, Err(LaneError::Connect(_) | LaneError::Lost { .. })) {
            self.resolved.lock().remove(addr);
        }
        match called {
            Ok(frame) => {
                let answer = Answer::Frame(frame);
                if answer.code()? == answer::GO_AWAY {
                    self.lanes.retire(socket);
                }
                Ok(answer)
            }
            // The pass counts this call until it is over.
            Err(LaneError::Busy(_pass)) => self.over_loop(Target::Broker(addr), ask, deadline),
            Err(LaneError::Closed { written: false }) => Err(CallError::Closed),
            Err(LaneError::Connect(error)) => {
                Err(CallError::Connect { to: addr.to_string(), detail: error.to_string() })
            }
            Err(LaneError::Late { .. }) => Err(CallError::Timeout { waited: begun.elapsed() }),
            Err(LaneError::Lost { written: false, error }) => {
                Err(CallError::Connect { to: addr.to_string(), detail: error.to_string() })
            }
            Err(LaneError::Lost { error, .. }) => Err(CallError::Disconnected { detail: error.to_string() }),
            Err(LaneError::Closed { .. }) => Err(CallError::Disconnected { detail: "closed".to_owned() }),
            // The peer may have acted on the request all the same.
            Err(LaneError::Wire(error)) => Err(CallError::Disconnected { detail: error.to_string() }),
        }
    }

    fn over_loop(&self, to: Target<'_>, ask: &Ask<'_>, deadline: Instant) -> Result<Answer, CallError> {
        let begun = Instant::now();
        let timeout = deadline.saturating_duration_since(begun);
        let (giver, taker) = pair();
        self.start(to, ask, timeout, Box::new(move |result| drop(giver.give(result))))?;
        // The loop ends the wait; the grace is for a loop that is late, or whose clock is a test's.
        match taker.wait_until(deadline + LATE) {
            Ok(result) => result,
            Err(NoAnswer::Late) => Err(CallError::Timeout { waited: begun.elapsed() }),
            Err(NoAnswer::Lost) => Err(CallError::shut_down()),
        }
    }
}

impl Caller for SocketCaller {
    fn call(&self, to: Target<'_>, ask: &Ask<'_>, deadline: Instant) -> Result<Answer, CallError> {
        let answer = self.once(to, ask, deadline)?;
        // Not done: the peer goes away. What answers on a new connection is asked once more (B-033).
        if answer.code()? == answer::GO_AWAY {
            return self.once(to, ask, deadline);
        }
        Ok(answer)
    }

    fn start(&self, to: Target<'_>, ask: &Ask<'_>, timeout: Duration, done: Done) -> Result<(), CallError> {
        let (to, codec) = owned(to, &self.known);
        let mut frame = Vec::new();
        ask.encode(codec, 0, false, &mut frame)?;
        post(&self.handle, CoreCommand::Call { to, frame, timeout, done: Some(done) })
    }

    fn tell(&self, to: Target<'_>, ask: &Ask<'_>) -> Result<(), CallError> {
        let (to, codec) = owned(to, &self.known);
        let mut frame = Vec::new();
        ask.encode(codec, 0, true, &mut frame)?;
        post(&self.handle, CoreCommand::Call { to, frame, timeout: Duration::ZERO, done: None })
    }

    fn close(&self) {
        self.lanes.close();
    }
}

fn opaque_of(content: &[u8]) -> Option<i32> {
    Command::read(content).ok().filter(Command::is_answer).map(|command| command.opaque)
}

fn owned(to: Target<'_>, known: &Known) -> (Option<Arc<str>>, Codec) {
    match to {
        Target::NameServer => (None, Codec::Json),
        Target::Broker(addr) => (Some(Arc::clone(addr)), known.codec(addr)),
    }
}

fn post(handle: &Handle<CoreCommand>, command: CoreCommand) -> Result<(), CallError> {
    handle.post(command).map_err(|error| match error {
        PostError::Full(_) => CallError::Busy { what: "the client's inbox" },
        PostError::Closed(_) => CallError::Closed,
    })
}
