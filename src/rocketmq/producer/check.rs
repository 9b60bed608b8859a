//! What may be sent: the rules for a message that hold before any network, and the text of its properties.
//!
//! Pure; `send.rs` and `batch.rs` call it on the sending thread. It reads the caller's message and never changes it.
//!
//! Source: apache/rocketmq@rocketmq-all-5.3.3 client/src/main/java/org/apache/rocketmq/client/Validators.java,
//! common/src/main/java/org/apache/rocketmq/common/message/MessageConst.java

use crate::model::{Message, names};
use crate::wire::remoting::properties::{NAME_END, VALUE_END, names as key, push};

use super::unique::MessageId;

/// Most bytes of a properties text: its length is an `i16` in a stored message.
const PROPERTIES_MAX: usize = 32_767;

/// Names that brokers and clients give a meaning of their own, sorted. Java refuses the same ones.
const RESERVED: [&str; 49] = [
    "1ST_POP_TIME",
    "ARRIVE_TIME",
    "BORN_TIMESTAMP",
    "BUYER_ID",
    "CLUSTER",
    "CONSUME_START_TIME",
    "CORRECTION_FLAG",
    "CORRELATION_ID",
    "DELAY",
    "DLQ_ORIGIN_MESSAGE_ID",
    "DLQ_ORIGIN_TOPIC",
    "DUP_INFO",
    "EXTEND_UNIQ_INFO",
    "INSTANCE_ID",
    "KEYS",
    "MAX_OFFSET",
    "MAX_RECONSUME_TIMES",
    "MIN_OFFSET",
    "MQ2_FLAG",
    "MSG_REGION",
    "MSG_TYPE",
    "ORIGIN_MESSAGE_ID",
    "PGROUP",
    "POP_CK",
    "POP_CK_OFFSET",
    "PUSH_REPLY_TIME",
    "REAL_QID",
    "REAL_TOPIC",
    "RECONSUME_TIME",
    "REPLY_TO_CLIENT",
    "RETRY_TOPIC",
    "TAGS",
    "TIMER_DELAY_LEVEL",
    "TIMER_DELAY_MS",
    "TIMER_DELAY_SEC",
    "TIMER_DELIVER_MS",
    "TIMER_DEL_UNIQKEY",
    "TIMER_DEQUEUE_MS",
    "TIMER_ENQUEUE_MS",
    "TIMER_OUT_MS",
    "TIMER_ROLL_TIMES",
    "TRACE_ON",
    "TRANSFER_FLAG",
    "TRAN_MSG",
    "TRAN_PREPARED_QUEUE_OFFSET",
    "TTL",
    "UNIQ_KEY",
    "WAIT",
    "__CRC32#",
];

/// Checks what does not depend on a broker. The error says which rule is broken.
pub(super) fn message(message: &Message, max_body: usize) -> Result<(), &'static str> {
    topic(message.topic())?;
    body(message.body(), max_body)?;
    message.tag_text().map_or(Ok(()), tag)?;
    for key in message.keys() {
        if key.contains(char::is_whitespace) || key.is_empty() {
            return Err("a key is empty or contains a blank");
        }
        marks(key)?;
    }
    for (name, value) in message.properties() {
        if RESERVED.binary_search(&name.as_str()).is_ok() {
            return Err("a property has a reserved name");
        }
        if name.trim().is_empty() || value.trim().is_empty() {
            return Err("a property's name or value is blank");
        }
        marks(name)?;
        marks(value)?;
    }
    Ok(())
}

/// Checks a topic that is to be written to.
pub(super) fn topic(topic: &str) -> Result<(), &'static str> {
    if topic.trim().is_empty() {
        return Err("the topic is blank");
    }
    if topic.len() > names::TOPIC_MAX {
        return Err("the topic is longer than 127 characters");
    }
    if !names::is_legal(topic) {
        return Err("the topic has a character other than % | a-z A-Z 0-9 _ -");
    }
    let system = [
        names::SCHEDULE_TOPIC,
        names::HALF_TOPIC,
        names::OP_HALF_TOPIC,
        names::CHECK_MAX_TIME_TOPIC,
        names::SELF_TEST_TOPIC,
        names::OFFSET_MOVED_EVENT,
        names::TIMER_TOPIC,
    ];
    if system.contains(&topic) { Err("the topic belongs to the brokers") } else { Ok(()) }
}

/// Checks a body as it is before compression.
pub(super) fn body(body: &[u8], max: usize) -> Result<(), &'static str> {
    if body.is_empty() {
        return Err("the body is empty");
    }
    if body.len() > max { Err("the body is longer than max_message_size") } else { Ok(()) }
}

/// Checks a tag.
pub(super) fn tag(tag: &str) -> Result<(), &'static str> {
    if tag.trim().is_empty() {
        return Err("the tag is blank");
    }
    if tag.contains("||") {
        return Err("the tag contains ||, so that no subscription could name it");
    }
    marks(tag)
}

fn marks(text: &str) -> Result<(), &'static str> {
    if text.bytes().any(|byte| matches!(byte, NAME_END | VALUE_END)) {
        return Err("text contains 0x01 or 0x02, which separate properties");
    }
    Ok(())
}

/// Writes the properties of a checked message: its unique id first, the user's own last.
pub(super) fn properties(message: &Message, id: &MessageId) -> Result<String, &'static str> {
    let mut text = Vec::with_capacity(96);
    push(&mut text, key::UNIQ_KEY, id.as_str());
    push(&mut text, key::WAIT, "true");
    if let Some(tag) = message.tag_text() {
        push(&mut text, key::TAGS, tag);
    }
    push(&mut text, key::KEYS, &message.keys().join(" "));
    if let Some(level) = message.delay_level() {
        push(&mut text, key::DELAY, &level.number().to_string());
    }
    for (name, value) in message.properties() {
        push(&mut text, name, value);
    }
    if text.len() > PROPERTIES_MAX {
        return Err("the properties are longer than 32767 bytes");
    }
    // Only texts went in; the error is never taken.
    String::from_utf8(text).map_err(|_| "the properties are not UTF-8")
}

#[cfg(test)]
mod tests {
    use super::super::unique::ids;
    use super::*;
    use crate::model::DelayLevel;

    const MAX: usize = 4 << 20;

    fn refused(given: Message) -> &'static str {
        message(&given, MAX).expect_err("should be refused")
    }

    #[test]
    fn b188_a_body_of_4_mib_passes_and_one_byte_more_does_not() {
        assert_eq!(message(&Message::new("t", vec![1; MAX]), MAX), Ok(()));
        assert!(refused(Message::new("t", vec![1; MAX + 1])).contains("max_message_size"));
        assert!(refused(Message::new("t", "")).contains("empty"));
    }

    #[test]
    fn b189_a_topic_of_127_characters_passes_and_128_do_not() {
        assert_eq!(topic(&"t".repeat(127)), Ok(()));
        for bad in [&*"t".repeat(128), "", " ", "a b", "a.b", "a/b", "ä"] {
            assert!(topic(bad).is_err(), "{bad:?}");
        }
        assert_eq!(topic("%RETRY%a|b_c-9"), Ok(()));
    }

    #[test]
    fn topics_of_the_brokers_are_refused_at_home() {
        for own in [
            crate::model::names::SCHEDULE_TOPIC,
            "RMQ_SYS_TRANS_HALF_TOPIC",
            "rmq_sys_wheel_timer",
            "OFFSET_MOVED_EVENT",
        ] {
            assert!(topic(own).is_err(), "{own}");
        }
    }

    #[test]
    fn separators_and_blanks_are_refused_wherever_text_is_given() {
        for mark in ["a\u{1}b", "a\u{2}b"] {
            for bad in [
                Message::new("t", "b").tag(mark),
                Message::new("t", "b").key(mark),
                Message::new("t", "b").property(mark, "v"),
                Message::new("t", "b").property("n", mark),
            ] {
                assert!(refused(bad).contains("0x01"), "{mark:?}");
            }
        }
        for bad in [
            Message::new("t", "b").tag(""),
            Message::new("t", "b").tag("a || b"),
            Message::new("t", "b").key("a b"),
            Message::new("t", "b").key(""),
            Message::new("t", "b").property(" ", "v"),
            Message::new("t", "b").property("n", ""),
        ] {
            refused(bad);
        }
    }

    #[test]
    fn reserved_names_are_refused_and_the_user_s_own_are_not() {
        assert!(RESERVED.is_sorted(), "looked up by halving");
        for name in RESERVED {
            assert!(refused(Message::new("t", "b").property(name, "v")).contains("reserved"), "{name}");
        }
        for name in ["region", "tags", "__SHARDINGKEY", "INNER_NUM", "TRACE_CONTEXT", "KEYS2"] {
            assert_eq!(message(&Message::new("t", "b").property(name, "v"), MAX), Ok(()), "{name}");
        }
    }

    #[test]
    fn properties_are_name_and_value_with_their_marks() {
        let id = ids().next(1);
        let given =
            Message::new("t", "b").tag("paid").key("7").key("8").delay(DelayLevel::MAX).property("region", "eu");
        assert_eq!(
            properties(&given, &id).unwrap(),
            format!(
                "UNIQ_KEY\u{1}{id}\u{2}WAIT\u{1}true\u{2}TAGS\u{1}paid\u{2}KEYS\u{1}7 8\u{2}DELAY\u{1}18\u{2}region\u{1}eu\u{2}"
            )
        );
        assert_eq!(
            properties(&Message::new("t", "b"), &id).unwrap(),
            format!("UNIQ_KEY\u{1}{id}\u{2}WAIT\u{1}true\u{2}")
        );
    }

    #[test]
    fn properties_end_where_their_length_field_does() {
        let id = ids().next(1);
        let rest = properties(&Message::new("t", "b").property("n", "v"), &id).unwrap().len() - 1;
        let with = |len: usize| properties(&Message::new("t", "b").property("n", "v".repeat(len)), &id);
        assert_eq!(with(PROPERTIES_MAX - rest).unwrap().len(), PROPERTIES_MAX);
        assert!(with(PROPERTIES_MAX - rest + 1).is_err());
    }
}
