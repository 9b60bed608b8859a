//! User code: process queues, ready tokens, the pool. No protocol.
//!
//! A fetch becomes a [`chunk::Batch`] and is put into its [`claim::Claim`]'s [`queue::ProcessQueue`]; the claim's one
//! token goes through [`ready`] to a worker of the [`pool`], which takes a chunk, runs the handler behind a fence and
//! finishes it. What follows (fetch again, commit, hand on what failed) waits in the queue until the loop asks for it.

pub mod chunk;
pub mod claim;
pub mod flow;
pub mod listener;
pub mod pool;
pub mod progress;
pub mod queue;
pub mod ready;
pub mod ring;
pub mod runs;
mod stock;
mod stretch;
