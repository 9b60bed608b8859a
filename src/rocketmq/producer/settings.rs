//! What a producer can be told before it starts, with Java's names beside ours. Checked once, by `start`.

use std::ops::RangeInclusive;
use std::time::Duration;

use crate::error::{ConfigError, in_range, time_in_range};
use crate::model::SortedSet;
use crate::model::names;

const DEADLINE: Duration = Duration::from_secs(3);
const DEADLINES: RangeInclusive<Duration> = Duration::from_millis(1)..=Duration::from_secs(3600);
const RETRIES_MAX: u32 = 100;
const COMPRESS_OVER: usize = 4096;
const COMPRESS_LEVEL: u32 = 5;
const MESSAGE_MAX: usize = 4 << 20;
/// A frame carries at most 16 MiB; the rest of it is header and properties.
const LARGEST_MESSAGE: usize = 15 << 20;
const IN_FLIGHT: usize = 10_000;
const IN_FLIGHT_BYTES: usize = 100 << 20;
const TEMPLATE_QUEUES: i32 = 4;

/// Settings as the setters leave them.
#[derive(Clone, Debug, Default)]
pub(super) struct Asked {
    pub(super) send_deadline: Option<Duration>,
    pub(super) attempt_limit: Option<Duration>,
    pub(super) retries: Option<u32>,
    pub(super) async_retries: Option<u32>,
    pub(super) in_flight_messages: Option<usize>,
    pub(super) in_flight_bytes: Option<usize>,
    pub(super) retry_codes: SortedSet<i32>,
    pub(super) retry_unconfirmed: bool,
    pub(super) compress_over: Option<usize>,
    pub(super) compress_level: Option<u32>,
    pub(super) max_message_size: Option<usize>,
    pub(super) template_topic: Option<String>,
    pub(super) template_queues: Option<i32>,
}

/// Checked settings.
#[derive(Clone, Debug)]
pub(super) struct Settings {
    pub(super) group: String,
    pub(super) send_deadline: Duration,
    pub(super) attempt_limit: Duration,
    pub(super) retries: u32,
    pub(super) async_retries: u32,
    pub(super) in_flight_messages: usize,
    pub(super) in_flight_bytes: usize,
    pub(super) retry_codes: SortedSet<i32>,
    pub(super) retry_unconfirmed: bool,
    pub(super) compress_over: usize,
    pub(super) compress_level: u32,
    pub(super) max_message_size: usize,
    pub(super) template_topic: String,
    pub(super) template_queues: i32,
}

impl Settings {
    /// Checks each setting, and those that must agree with each other.
    pub(super) fn checked(group: String, asked: Asked) -> Result<Self, ConfigError> {
        names::check_group(&group)?;
        let template_topic = asked.template_topic.unwrap_or_else(|| names::AUTO_CREATE_TOPIC.to_owned());
        names::check_topic(&template_topic).map_err(|error| ConfigError {
            field: "template_topic",
            value: error.value,
            allowed: error.allowed,
        })?;
        Ok(Self {
            group,
            send_deadline: time_in_range("send_deadline", asked.send_deadline, DEADLINE, DEADLINES)?,
            attempt_limit: time_in_range("attempt_limit", asked.attempt_limit, *DEADLINES.end(), DEADLINES)?,
            retries: in_range("retries", asked.retries, 2, 0..=RETRIES_MAX)?,
            async_retries: in_range("async_retries", asked.async_retries, 2, 0..=RETRIES_MAX)?,
            in_flight_messages: in_range("in_flight", asked.in_flight_messages, IN_FLIGHT, 1..=1_000_000)?,
            in_flight_bytes: in_range("in_flight", asked.in_flight_bytes, IN_FLIGHT_BYTES, 1 << 20..=usize::MAX)?,
            retry_codes: asked.retry_codes,
            retry_unconfirmed: asked.retry_unconfirmed,
            compress_over: in_range("compress_over", asked.compress_over, COMPRESS_OVER, 1..=usize::MAX)?,
            compress_level: in_range("compress_level", asked.compress_level, COMPRESS_LEVEL, 1..=9)?,
            max_message_size: in_range("max_message_size", asked.max_message_size, MESSAGE_MAX, 1..=LARGEST_MESSAGE)?,
            template_topic,
            template_queues: in_range("template_queues", asked.template_queues, TEMPLATE_QUEUES, 1..=1024)?,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn checked(change: impl FnOnce(&mut Asked)) -> Result<Settings, ConfigError> {
        let mut asked = Asked::default();
        change(&mut asked);
        Settings::checked("g".into(), asked)
    }

    #[test]
    fn defaults_are_java_s() {
        let settings = checked(|_| ()).unwrap();
        assert_eq!((settings.send_deadline, settings.retries), (Duration::from_secs(3), 2));
        assert_eq!((settings.compress_over, settings.compress_level), (4096, 5));
        assert_eq!(settings.max_message_size, 4_194_304);
        assert_eq!((settings.template_topic.as_str(), settings.template_queues), ("TBW102", 4));
        assert!(!settings.retry_unconfirmed && settings.retry_codes.is_empty());
    }

    #[test]
    fn each_setting_names_itself_when_it_is_out_of_range() {
        let field = |change: fn(&mut Asked)| checked(change).map(|_| ()).unwrap_err().field;
        assert_eq!(field(|asked| asked.send_deadline = Some(Duration::ZERO)), "send_deadline");
        assert_eq!(field(|asked| asked.attempt_limit = Some(Duration::from_secs(4000))), "attempt_limit");
        assert_eq!(field(|asked| asked.retries = Some(101)), "retries");
        assert_eq!(field(|asked| asked.compress_over = Some(0)), "compress_over");
        assert_eq!(field(|asked| asked.compress_level = Some(10)), "compress_level");
        assert_eq!(field(|asked| asked.max_message_size = Some(16 << 20)), "max_message_size");
        assert_eq!(field(|asked| asked.template_topic = Some("a b".into())), "template_topic");
        assert_eq!(field(|asked| asked.template_queues = Some(0)), "template_queues");
    }

    #[test]
    fn the_group_is_checked() {
        for bad in ["", "a b", "DEFAULT_PRODUCER"] {
            assert_eq!(Settings::checked(bad.into(), Asked::default()).map(|_| ()).unwrap_err().field, "group");
        }
    }
}
