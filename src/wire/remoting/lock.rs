//! Locks of queues for ordered consumption: codes 41 and 42, which have no header of their own but two bodies.
