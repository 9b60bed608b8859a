//! Time, deadlines, budget, threads: what every role needs to do its work.

pub mod backoff;
pub mod budget;
pub mod clock;
pub mod deadlines;
pub mod fence;
pub mod lifecycle;
pub mod pace;
pub mod ranks;
pub mod serve;
pub mod sync;
pub mod threads;

pub use clock::{Clock, Nanos, TestClock};
