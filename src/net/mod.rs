//! Sockets: one mio loop that calls a role, connections, correlation, call lanes.
