//! Names of topics and groups: which are legal, which are reserved, how retry and dead-letter topics are derived.
//!
//! Source: apache/rocketmq@rocketmq-all-5.3.3 common/src/main/java/org/apache/rocketmq/common/topic/TopicValidator.java

use crate::error::ConfigError;

/// Longest topic, in characters (all legal characters have one byte).
pub const TOPIC_MAX: usize = 127;
/// Longest group, in characters.
pub const GROUP_MAX: usize = 255;
/// Before a group's name: the topic of its redeliveries.
pub const RETRY_PREFIX: &str = "%RETRY%";
/// Before a group's name: the topic of its dead letters.
pub const DLQ_PREFIX: &str = "%DLQ%";
/// The template that automatic topic creation copies; every producer names it in its sends.
pub const AUTO_CREATE_TOPIC: &str = "TBW102";
/// Where delayed messages wait; queue id = level - 1. The four letters are part of the name, which every peer knows: no gap
/// to be filled.
pub const SCHEDULE_TOPIC: &str = "SCHEDULE_TOPIC_XXXX";
/// Half messages of transactions.
pub const HALF_TOPIC: &str = "RMQ_SYS_TRANS_HALF_TOPIC";
/// Marks of resolved half messages.
pub const OP_HALF_TOPIC: &str = "RMQ_SYS_TRANS_OP_HALF_TOPIC";
/// Half messages given up.
pub const CHECK_MAX_TIME_TOPIC: &str = "TRANS_CHECK_MAX_TIME_TOPIC";
/// Apache's self test.
pub const SELF_TEST_TOPIC: &str = "SELF_TEST_TOPIC";
/// Apache's record of corrected offsets.
pub const OFFSET_MOVED_EVENT: &str = "OFFSET_MOVED_EVENT";
/// Apache's timer wheel (5.x).
pub const TIMER_TOPIC: &str = "rmq_sys_wheel_timer";
/// The producer group every client instance has.
pub const INNER_PRODUCER: &str = "CLIENT_INNER_PRODUCER";

/// The topic to which `group`'s failed messages go and from which it gets them again.
pub fn retry_topic(group: &str) -> String {
    format!("{RETRY_PREFIX}{group}")
}

/// The topic of `group`'s messages that failed too often.
pub fn dlq_topic(group: &str) -> String {
    format!("{DLQ_PREFIX}{group}")
}

/// The group whose retry topic this is.
pub fn group_of_retry_topic(topic: &str) -> Option<&str> {
    topic.strip_prefix(RETRY_PREFIX).filter(|group| !group.is_empty())
}

/// True if every character may stand in a topic or group name: `% | a-z A-Z 0-9 _ -`.
pub fn is_legal(name: &str) -> bool {
    name.bytes().all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'%' | b'|' | b'_' | b'-'))
}

/// Checks a topic's name as every peer will.
pub fn check_topic(topic: &str) -> Result<(), ConfigError> {
    check("topic", topic, TOPIC_MAX)
}

/// Checks a group's name as every peer will. The reserved names `DEFAULT_CONSUMER` and `DEFAULT_PRODUCER` are refused.
pub fn check_group(group: &str) -> Result<(), ConfigError> {
    check("group", group, GROUP_MAX)?;
    if matches!(group, "DEFAULT_CONSUMER" | "DEFAULT_PRODUCER") {
        return Err(ConfigError {
            field: "group",
            value: group.into(),
            allowed: "any name that is not reserved".into(),
        });
    }
    Ok(())
}

fn check(field: &'static str, name: &str, max: usize) -> Result<(), ConfigError> {
    let allowed = if name.trim().is_empty() {
        "a name that is not blank".to_owned()
    } else if name.len() > max {
        format!("at most {max} characters")
    } else if !is_legal(name) {
        "only % | a-z A-Z 0-9 _ -".to_owned()
    } else {
        return Ok(());
    };
    Err(ConfigError { field, value: name.into(), allowed })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lengths_and_alphabet_end_where_peers_end_them() {
        assert!(check_topic(&"t".repeat(127)).is_ok() && check_topic(&"t".repeat(128)).is_err());
        assert!(check_group(&"g".repeat(255)).is_ok() && check_group(&"g".repeat(256)).is_err());
        for bad in ["", "  ", "a b", "a.b", "ä", "a/b"] {
            assert!(check_topic(bad).is_err(), "{bad:?}");
        }
        assert!(check_topic("%RETRY%a|b_c-9").is_ok() && check_group("DEFAULT_CONSUMER").is_err());
    }

    #[test]
    fn retry_and_dead_letter_topics_are_derived_from_the_group() {
        assert_eq!((retry_topic("g").as_str(), dlq_topic("g").as_str()), ("%RETRY%g", "%DLQ%g"));
        assert_eq!(group_of_retry_topic("%RETRY%g"), Some("g"));
        assert_eq!((group_of_retry_topic("%RETRY%"), group_of_retry_topic("t")), (None, None));
    }
}
