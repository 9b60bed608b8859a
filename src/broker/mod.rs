//! The embedded broker and name server.

mod names;
mod store;
