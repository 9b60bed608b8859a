//! Time, deadlines, budget, threads: what every role needs to do its work.
