//! Host names to addresses, on the serve lane, since the system's resolver blocks for as long as it likes.
//!
//! Used by client cores (which are told by a command they post themselves) and by blocking callers (who wait with their
//! deadline). Addresses that are written as numbers are read at once. It keeps no cache: whoever asks keeps the answer
//! until a connection fails.

use std::io;
use std::net::{SocketAddr, ToSocketAddrs};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

use super::answer::{self, NoAnswer};
use crate::work::serve::{Lane, Refused};

/// Resolves `host:port` names.
#[derive(Clone)]
pub struct Resolver {
    lane: Lane,
}

impl Resolver {
    /// A resolver that works on `lane`.
    pub fn new(lane: Lane) -> Self {
        Self { lane }
    }

    /// Calls `done` with the addresses of `name` (`host:port`), never none: at once if it is written in numbers, else on
    /// the lane. If the lane is closed meanwhile, `done` is dropped.
    pub fn resolve(&self, name: &str, done: impl FnOnce(io::Result<Vec<SocketAddr>>) + Send + 'static) {
        if let Ok(addr) = name.parse() {
            return done(Ok(vec![addr]));
        }
        // Shared, so that it is still there to be told when the lane refuses.
        let done = Arc::new(Mutex::new(Some(done)));
        let (owned, later) = (name.to_owned(), done.clone());
        if let Err(refused) = self.lane.own(move || tell(&later, look_up(&owned))) {
            tell(&done, Err(refused_error(refused)));
        }
    }

    /// The first address of `name`, waiting for it until `deadline` at most.
    ///
    /// # Errors
    /// What the system says; `TimedOut` at the deadline; `NotConnected` if the lane is closed.
    pub fn wait(&self, name: &str, deadline: Instant) -> io::Result<SocketAddr> {
        let (giver, taker) = answer::pair();
        self.resolve(name, move |result| drop(giver.give(result)));
        match taker.wait_until(deadline) {
            Ok(result) => result?.into_iter().next().ok_or_else(|| io::ErrorKind::NotFound.into()),
            Err(NoAnswer::Late) => Err(io::ErrorKind::TimedOut.into()),
            Err(NoAnswer::Lost) => Err(io::ErrorKind::NotConnected.into()),
        }
    }
}

fn tell<F: FnOnce(io::Result<Vec<SocketAddr>>)>(done: &Mutex<Option<F>>, result: io::Result<Vec<SocketAddr>>) {
    let done = done.lock().unwrap_or_else(PoisonError::into_inner).take();
    if let Some(done) = done {
        done(result);
    }
}

fn look_up(name: &str) -> io::Result<Vec<SocketAddr>> {
    let addrs: Vec<SocketAddr> = name.to_socket_addrs()?.collect();
    if addrs.is_empty() { Err(io::ErrorKind::NotFound.into()) } else { Ok(addrs) }
}

fn refused_error(refused: Refused) -> io::Error {
    match refused {
        Refused::Full => io::ErrorKind::ResourceBusy.into(),
        Refused::Closed => io::ErrorKind::NotConnected.into(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    #[test]
    fn numbers_are_read_at_once_and_names_on_the_lane() {
        let lane = Lane::start().unwrap();
        let resolver = Resolver::new(lane.clone());
        let soon = || Instant::now() + Duration::from_secs(10);
        assert_eq!(resolver.wait("127.0.0.1:9876", Instant::now()).unwrap(), "127.0.0.1:9876".parse().unwrap());
        assert_eq!(resolver.wait("[::1]:9876", Instant::now()).unwrap(), "[::1]:9876".parse().unwrap());
        assert_eq!(resolver.wait("localhost:9876", soon()).unwrap().port(), 9876);
        assert!(resolver.wait("no port here", soon()).is_err());
        assert!(lane.close(soon()));
        assert_eq!(resolver.wait("localhost:9876", soon()).unwrap_err().kind(), io::ErrorKind::NotConnected);
    }
}
