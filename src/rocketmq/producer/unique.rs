//! Where the ids of this process's messages come from: one source, whatever the number of producers and clients.

use std::hash::{BuildHasher, RandomState};
use std::net::{IpAddr, Ipv4Addr, UdpSocket};
use std::sync::OnceLock;

pub use crate::wire::remoting::message_id::UniqueId as MessageId;
use crate::wire::remoting::message_id::UniqueIds;

/// The source of this process: two could make the same id.
pub(super) fn ids() -> &'static UniqueIds {
    static IDS: OnceLock<UniqueIds> = OnceLock::new();
    IDS.get_or_init(|| {
        let own = own_ip().unwrap_or_else(|| Ipv4Addr::from(random()).into());
        UniqueIds::new(own, std::process::id(), random())
    })
}

/// The address this host would use to reach others; connecting a datagram socket sends nothing.
fn own_ip() -> Option<IpAddr> {
    let socket = UdpSocket::bind((Ipv4Addr::UNSPECIFIED, 0)).ok()?;
    socket.connect((Ipv4Addr::new(192, 0, 2, 1), 9)).ok()?;
    let own = socket.local_addr().ok()?.ip();
    (!own.is_loopback() && !own.is_unspecified()).then_some(own)
}

/// A number nobody can foresee: the standard library seeds its hashers with such numbers.
pub(super) fn random() -> u32 {
    // The upper half; both are as good.
    (RandomState::new().hash_one(0_u8) >> 32) as u32
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_source_of_the_process_is_one() {
        let (one, other) = (ids().next(5), ids().next(5));
        assert_eq!(one.as_str()[..20], other.as_str()[..20]);
        assert_ne!(one, other);
    }
}
