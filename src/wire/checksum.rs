//! The one checksum of RocketMQ: CRC-32 (IEEE, as zlib) without its top bit.

/// The checksum of a stored body, of a registration body, of a record. 0 for no bytes.
///
/// Source: apache/rocketmq@rocketmq-all-4.9.3 common/src/main/java/org/apache/rocketmq/common/UtilAll.java
pub fn body_crc(bytes: &[u8]) -> u32 {
    crc32fast::hash(bytes) & 0x7FFF_FFFF
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sums_are_javas() {
        for (bytes, sum) in [(b"".as_slice(), 0), (b"hello", 907_060_870), (b"123456789", 1_274_296_614)] {
            assert_eq!(body_crc(bytes), sum);
        }
    }
}
