//! The one file above the rooms: joins client and broker in one process.
