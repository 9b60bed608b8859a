//! Why something could not be started: what stood in the way, and whether it may be gone later.
//!
//! Client, producer, consumer and broker start with this one error: what can go wrong is the same, and rooms of one row
//! cannot share what lies above them.

use std::fmt;
use std::io;
use std::net::SocketAddr;

use super::{ConfigError, Error, io_may_pass};

/// A client, producer, consumer or broker was not started. Nothing of it runs, and nothing has to be undone.
///
/// No start asks a name server or a broker: one that cannot be reached, or a topic that nobody knows, is an error of the
/// first send and an event of a consumer, which waits for it.
#[derive(Debug)]
#[non_exhaustive]
pub enum StartError {
    /// A setting is missing, out of its range, or contradicts another one.
    Config(ConfigError),
    /// This client already has a consumer of the group, or one that has not stopped yet: a client can be only one member of
    /// a group.
    GroupInUse {
        /// The group.
        group: String,
    },
    /// A broker cannot listen on its address: another program does already, or the address is not one of this machine.
    Listen {
        /// The setter's name.
        setting: &'static str,
        /// The address.
        addr: SocketAddr,
        /// What the system said.
        source: io::Error,
    },
    /// Another broker has the store's directory open. It was not touched.
    StoreInUse {
        /// The directory.
        dir: String,
        /// The process that has it, if it said so; it may be this one.
        pid: Option<u32>,
    },
    /// The store's directory holds something that may not be used: another format, or damage below what was durable.
    Store {
        /// What is wrong, where, and what can be done.
        what: String,
    },
    /// The system refused: a thread, a file, memory.
    Io {
        /// What we were doing, with the path if there is one.
        doing: String,
        /// What it said.
        source: io::Error,
    },
    /// The client that was to start it has too many commands waiting.
    Overloaded {
        /// What is full.
        what: &'static str,
    },
    /// The client that was to start it has been shut down.
    Closed,
}

impl StartError {
    /// True if the same start may succeed later without a change of settings: once whoever has the group, the address or
    /// the directory has ended, or the system has room again.
    pub fn is_retryable(&self) -> bool {
        match self {
            Self::GroupInUse { .. } | Self::StoreInUse { .. } | Self::Overloaded { .. } => true,
            Self::Listen { source, .. } | Self::Io { source, .. } => io_may_pass(source),
            Self::Config(_) | Self::Store { .. } | Self::Closed => false,
        }
    }
}

impl fmt::Display for StartError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Config(error) => error.fmt(f),
            Self::GroupInUse { group } => write!(f, "group {group} has a consumer in this client already"),
            Self::Listen { setting, addr, source } => write!(f, "{setting}: cannot listen on {addr}: {source}"),
            Self::StoreInUse { dir, pid: Some(pid) } => write!(f, "store in {dir} is in use by process {pid}"),
            Self::StoreInUse { dir, pid: None } => write!(f, "store in {dir} is in use by another process"),
            Self::Store { what } => f.write_str(what),
            Self::Io { doing, source } => write!(f, "{doing}: {source}"),
            Self::Overloaded { what } => write!(f, "{what} is full"),
            Self::Closed => f.write_str("the client has been shut down"),
        }
    }
}

impl std::error::Error for StartError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Self::Config(error) => Some(error),
            Self::Listen { source, .. } | Self::Io { source, .. } => Some(source),
            Self::GroupInUse { .. }
            | Self::StoreInUse { .. }
            | Self::Store { .. }
            | Self::Overloaded { .. }
            | Self::Closed => None,
        }
    }
}

impl From<ConfigError> for StartError {
    fn from(error: ConfigError) -> Self {
        Self::Config(error)
    }
}

impl From<StartError> for Error {
    fn from(error: StartError) -> Self {
        match error {
            StartError::GroupInUse { .. } | StartError::StoreInUse { .. } => Self::InUse { what: error.to_string() },
            StartError::Config(error) => Self::Config(error),
            StartError::Listen { setting, addr, source } => {
                Self::Io { doing: format!("{setting}: cannot listen on {addr}"), source }
            }
            StartError::Store { what } => Self::Store { what },
            StartError::Io { doing, source } => Self::Io { doing, source },
            StartError::Overloaded { what } => Self::Overloaded { what },
            StartError::Closed => Self::Closed,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn whether_a_start_may_be_tried_again_is_not_lost_on_the_way_to_the_one_error() {
        let config = ConfigError { field: "group", value: String::new(), allowed: String::new() };
        let addr = SocketAddr::from(([127, 0, 0, 1], 1));
        let listen = |kind: io::ErrorKind| StartError::Listen { setting: "listen", addr, source: kind.into() };
        let io = |kind: io::ErrorKind| StartError::Io { doing: String::new(), source: kind.into() };
        for (error, retryable) in [
            (StartError::Config(config), false),
            (StartError::GroupInUse { group: String::new() }, true),
            (StartError::StoreInUse { dir: String::new(), pid: None }, true),
            (listen(io::ErrorKind::AddrInUse), true),
            (listen(io::ErrorKind::AddrNotAvailable), false),
            (io(io::ErrorKind::StorageFull), true),
            (io(io::ErrorKind::PermissionDenied), false),
            (StartError::Store { what: String::new() }, false),
            (StartError::Overloaded { what: "" }, true),
            (StartError::Closed, false),
        ] {
            assert_eq!(error.is_retryable(), retryable, "{error:?}");
            let text = format!("{error:?}");
            assert_eq!(Error::from(error).is_retryable(), retryable, "{text}");
        }
    }
}
