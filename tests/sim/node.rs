//! A role with what a loop gives it: an inbox, deadlines, what has arrived. One turn is what `net::Reactor` does in one,
//! without a socket: the world carries the acts out.

use std::collections::{BTreeSet, VecDeque};
use std::net::SocketAddr;

use windlass::internals::net::handle::Inbox;
use windlass::internals::net::role::Why;
use windlass::internals::net::{Action, Change, Conn, FrameBuf, Out, Role};
use windlass::internals::work::budget::Budget;
use windlass::internals::work::clock::Nanos;
use windlass::internals::work::deadlines::Deadlines;

/// What the network has brought.
#[derive(Debug)]
pub enum Arrival {
    Change(Conn, Change),
    /// Content behind the length word.
    Frame(Conn, Vec<u8>),
}

/// What the role wants of the network.
#[derive(Debug)]
pub enum Act {
    Connect(Conn, SocketAddr),
    /// One whole frame.
    Send(Conn, Vec<u8>),
    Close(Conn),
    Stop,
}

pub struct Node<R: Role> {
    pub role: R,
    inbox: Inbox<R::Command>,
    out: Out<R::Timer>,
    deadlines: Deadlines<R::Timer>,
    arrived: VecDeque<Arrival>,
    /// Connections that have not ended. What comes for others is late.
    open: BTreeSet<Conn>,
    /// What arrives is charged to it.
    pub budget: Option<Budget>,
    /// When the next turn has been asked for.
    pub wakes: Option<Nanos>,
}

impl<R: Role> Node<R> {
    pub fn new(role: R, inbox: Inbox<R::Command>) -> Self {
        let (out, deadlines) = (Out::new(), Deadlines::new());
        Self { role, inbox, out, deadlines, arrived: VecDeque::new(), open: BTreeSet::new(), budget: None, wakes: None }
    }

    /// A number for a connection that comes in.
    pub fn next_conn(&mut self) -> Conn {
        let conn = self.out.next_conn();
        self.open.insert(conn);
        conn
    }

    pub fn arrive(&mut self, arrival: Arrival) {
        self.arrived.push_back(arrival);
    }

    /// When it wants a turn; `Some(now)`-like values below the present mean at once.
    pub fn wants(&self) -> Option<Nanos> {
        let busy = !self.arrived.is_empty() || !self.inbox.is_empty() || !self.out.actions().is_empty();
        if busy { Some(Nanos::ZERO) } else { self.deadlines.next() }
    }

    /// Gives the role a command outside of a turn; what it answers with waits for the next one.
    pub fn ask(&mut self, command: R::Command, now: Nanos) {
        self.role.command(command, now, &mut self.out);
    }

    pub fn turn(&mut self, now: Nanos) -> Vec<Act> {
        let mut acts = Vec::new();
        for arrival in std::mem::take(&mut self.arrived) {
            match arrival {
                Arrival::Frame(conn, bytes) => {
                    if self.open.contains(&conn) && !self.is_closing(conn) {
                        let frame = match &self.budget {
                            Some(budget) => FrameBuf::charged(bytes, budget),
                            None => FrameBuf::from(bytes),
                        };
                        self.role.frame(conn, frame, now, &mut self.out);
                    }
                }
                Arrival::Change(conn, change) => {
                    let ends = matches!(change, Change::Closed { .. } | Change::Failed { .. });
                    let known = if ends { self.open.remove(&conn) } else { self.open.contains(&conn) };
                    if known {
                        self.role.connection(conn, change, now, &mut self.out);
                    }
                }
            }
        }
        while let Some(command) = self.inbox.take() {
            self.role.command(command, now, &mut self.out);
        }
        while let Some(timer) = self.deadlines.due(now) {
            self.role.due(timer, now, &mut self.out);
        }
        self.perform(now, &mut acts);
        self.role.settle(now, &mut self.out);
        self.perform(now, &mut acts);
        acts
    }

    fn is_closing(&self, conn: Conn) -> bool {
        self.out.actions().iter().any(|action| matches!(action, Action::Close(closing) if *closing == conn))
    }

    /// Takes the role's actions over; a close is told to the role in the same turn, as the loop does.
    fn perform(&mut self, now: Nanos, acts: &mut Vec<Act>) {
        while !self.out.actions().is_empty() {
            let mut closed = Vec::new();
            for action in self.out.actions() {
                match action {
                    Action::Connect(conn, addr) => {
                        self.open.insert(*conn);
                        acts.push(Act::Connect(*conn, *addr));
                    }
                    Action::Send(conn, bytes) if self.open.contains(conn) => {
                        acts.push(Act::Send(*conn, self.out.bytes(bytes.clone()).to_vec()));
                    }
                    Action::SendFrames(conn, bytes, frames) if self.open.contains(conn) => {
                        let mut all = self.out.bytes(bytes.clone()).to_vec();
                        self.out.frames(frames.clone()).iter().for_each(|frame| all.extend_from_slice(frame.bytes()));
                        acts.push(Act::Send(*conn, all));
                    }
                    Action::Send(..) | Action::SendFrames(..) => {}
                    Action::Close(conn) => {
                        if self.open.remove(conn) {
                            acts.push(Act::Close(*conn));
                            closed.push(*conn);
                        }
                    }
                    Action::Arm(at, timer) => self.deadlines.arm(*at, *timer),
                    Action::Stop => acts.push(Act::Stop),
                }
            }
            self.out.clear();
            for conn in closed {
                self.role.connection(conn, Change::Closed { why: Why::Asked }, now, &mut self.out);
            }
        }
    }
}
