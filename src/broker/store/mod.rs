//! The store: the log is the only truth, every other file is a cache.
