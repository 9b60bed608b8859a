//! User code: process queues, ready tokens, the pool. No protocol.
