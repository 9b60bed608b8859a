//! Bytes only: no socket, clock, thread or log. Everything here is pure and fuzzed.
#![deny(clippy::indexing_slicing)]

pub mod bytes;
pub mod checksum;
pub mod compress;
pub mod frame;
pub mod json;
pub mod remoting;

/// Runs its argument and says how many bytes of memory were held at most beyond those held before: given to the fuzz
/// bodies by their targets, which count allocations.
#[doc(hidden)]
pub type Measure = fn(&mut dyn FnMut()) -> usize;

#[cfg(test)]
mod captures;
#[cfg(test)]
mod vectors;
