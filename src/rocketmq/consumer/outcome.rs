//! Why progress was not committed: what events and reports tell of it.
//!
//! `commit.rs` makes it of what a broker has answered, or not, `offset.rs` of what a user's own store says, `revoke.rs` of
//! the end of its time. Nothing here decides whether a commit is tried again.

use std::fmt;
use std::sync::Arc;

use crate::error::{Error, may_pass};
use crate::rocketmq::port::CallError;

/// The progress of a queue is not committed, or it is not known whether it is. While its consumer runs, the commit is tried
/// again in every round. A commit that a report names was given up: the messages above the last successful one are
/// delivered again.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum CommitError {
    /// The consumer's own [`OffsetStore`](crate::OffsetStore) did not keep it. The broker was not asked.
    Store {
        /// What the store said, or its panic.
        source: Arc<dyn std::error::Error + Send + Sync>,
    },
    /// The consumer's own store has it, but the broker's copy, which is only there for those who watch the lag, could not be
    /// written.
    Copy(Box<CommitError>),
    /// The broker refused.
    Refused {
        /// Its name.
        broker: Arc<str>,
        /// The response code.
        code: i32,
        /// What it said.
        remark: String,
    },
    /// The broker could not be asked: no address, no connection, or too many requests waiting. It does not have it.
    NotSent {
        /// Its name.
        broker: Arc<str>,
        /// Why.
        detail: String,
    },
    /// No answer, or none that can be read: the broker may have it or not.
    NoAnswer {
        /// Its name.
        broker: Arc<str>,
        /// Why.
        detail: String,
    },
    /// The time for a shutdown ran out before the store or the broker had answered: it may or may not be committed.
    OutOfTime,
}

impl CommitError {
    /// Why `broker` has not acknowledged a commit.
    pub(super) fn of_call(error: CallError, broker: Arc<str>) -> Self {
        match error {
            CallError::Refused { code, remark } => Self::Refused { broker, code, remark },
            CallError::NoAddress { .. } | CallError::Connect { .. } | CallError::Busy { .. } | CallError::Closed => {
                Self::NotSent { broker, detail: error.to_string() }
            }
            CallError::Wire(_) | CallError::Timeout { .. } | CallError::Disconnected { .. } => {
                Self::NoAnswer { broker, detail: error.to_string() }
            }
        }
    }

    /// True if the progress may be committed all the same. Also true if only the broker's copy is missing.
    pub fn maybe_committed(&self) -> bool {
        match self {
            Self::Copy(_) | Self::NoAnswer { .. } | Self::OutOfTime => true,
            Self::Store { .. } | Self::Refused { .. } | Self::NotSent { .. } => false,
        }
    }

    /// True if the same commit may succeed later. Always true for an error of your own store, of which nothing is known.
    pub fn is_retryable(&self) -> bool {
        match self {
            Self::Refused { code, .. } => may_pass(*code),
            Self::Copy(copy) => copy.is_retryable(),
            Self::Store { .. } | Self::NotSent { .. } | Self::NoAnswer { .. } | Self::OutOfTime => true,
        }
    }

    /// The response code, if the broker refused.
    pub fn broker_code(&self) -> Option<i32> {
        match self {
            Self::Refused { code, .. } => Some(*code),
            Self::Copy(copy) => copy.broker_code(),
            Self::Store { .. } | Self::NotSent { .. } | Self::NoAnswer { .. } | Self::OutOfTime => None,
        }
    }
}

impl fmt::Display for CommitError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Store { source } => write!(f, "the offset store: {source}"),
            Self::Copy(copy) => write!(f, "the broker's copy: {copy}"),
            Self::Refused { broker, code, remark } => write!(f, "broker {broker} answered code {code}: {remark}"),
            Self::NotSent { broker, detail } => write!(f, "broker {broker} was not asked: {detail}"),
            Self::NoAnswer { broker, detail } => write!(f, "broker {broker} has not acknowledged it: {detail}"),
            Self::OutOfTime => f.write_str("no answer before the stop was over"),
        }
    }
}

impl std::error::Error for CommitError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Self::Store { source } => Some(&**source),
            Self::Copy(copy) => Some(&**copy),
            Self::Refused { .. } | Self::NotSent { .. } | Self::NoAnswer { .. } | Self::OutOfTime => None,
        }
    }
}

/// By kind and text: what a store says can be compared in no other way.
impl PartialEq for CommitError {
    fn eq(&self, other: &Self) -> bool {
        std::mem::discriminant(self) == std::mem::discriminant(other) && self.to_string() == other.to_string()
    }
}

impl Eq for CommitError {}

impl From<CommitError> for Error {
    fn from(error: CommitError) -> Self {
        Self::Commit { code: error.broker_code(), retryable: error.is_retryable(), source: Box::new(error) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::error::Error as _;
    use std::time::Duration;

    #[test]
    fn d35_an_unacknowledged_commit_says_whose_it_is_and_whether_it_may_be_there() {
        let of = |error| CommitError::of_call(error, "broker-a".into());
        let told = |error: &CommitError| (error.to_string(), error.maybe_committed(), error.is_retryable());
        let refused = |code| of(CallError::Refused { code, remark: "no".into() });
        assert_eq!(told(&refused(1)), ("broker broker-a answered code 1: no".into(), false, true));
        assert!(told(&refused(16)).2 && !told(&refused(13)).2);
        assert_eq!(refused(13).broker_code(), Some(13));
        for error in [
            CallError::NoAddress { of: "broker-a".into() },
            CallError::Connect { to: "1.2.3.4:5".into(), detail: "refused".into() },
            CallError::Busy { what: "the inbox" },
            CallError::Closed,
        ] {
            let (text, maybe, again) = told(&of(error));
            assert!(text.starts_with("broker broker-a was not asked: ") && !maybe && again, "{text}");
        }
        for error in
            [CallError::Timeout { waited: Duration::from_secs(5) }, CallError::Disconnected { detail: "ended".into() }]
        {
            let (text, maybe, again) = told(&of(error));
            assert!(text.starts_with("broker broker-a has not acknowledged it: ") && maybe && again, "{text}");
        }
        let own = CommitError::Store { source: Arc::new(std::io::Error::other("database is locked")) };
        assert_eq!(told(&own), ("the offset store: database is locked".into(), false, true));
        assert_eq!(own.source().unwrap().to_string(), "database is locked");
        let copy = CommitError::Copy(Box::new(refused(13)));
        assert_eq!(told(&copy), ("the broker's copy: broker broker-a answered code 13: no".into(), true, false));
        assert_eq!((copy.broker_code(), copy.source().unwrap().to_string()), (Some(13), refused(13).to_string()));
        assert_ne!(copy, refused(13));
        assert_eq!(told(&CommitError::OutOfTime), ("no answer before the stop was over".into(), true, true));
    }

    #[test]
    fn d35_it_becomes_the_one_error_and_stays_its_source() {
        let fails = || -> Result<(), Error> {
            Err(CommitError::Refused { broker: "b".into(), code: 13, remark: "no".into() })?;
            Ok(())
        };
        let error = fails().unwrap_err();
        assert_eq!((error.broker_code(), error.is_retryable()), (Some(13), false));
        assert!(matches!(
            error.source().and_then(|source| source.downcast_ref()),
            Some(CommitError::Refused { code: 13, .. })
        ));
        assert_eq!(error.to_string(), "broker b answered code 13: no");
        assert!(Error::from(CommitError::OutOfTime).is_retryable());
    }
}
