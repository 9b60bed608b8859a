//! Consumers of the RocketMQ client: the builder and handle (`push`), what a handler gets (`delivery`, `received`), and the
//! parts of the core that belong to a group: which queues are its own (`balance`, `assign`, `rebalance`), pulling
//! (`pull`, `intake`), committing (`commit`, `offset`), handing on what failed (`sendback`) and giving up (`revoke`).

pub mod assign;
pub mod balance;
pub mod claim;
pub mod commit;
pub mod delivery;
pub mod group;
pub mod handler;
pub mod intake;
pub mod offset;
pub mod outcome;
pub mod pull;
pub mod pull_answer;
pub mod pulled;
pub mod push;
pub mod rebalance;
pub mod received;
pub mod revoke;
pub mod sendback;
pub mod settings;
pub mod watch;
