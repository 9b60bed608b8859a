//! The embedded broker and name server.

mod names;
pub(crate) mod store;
