//! An outgoing message and its delay. What arrives is a delivery, which lives where its codec meets the user.

use std::time::Duration;

/// A message to be sent. Owns its body; every setter takes and returns it.
///
/// ```
/// use windlass::Message;
/// let message = Message::new("orders", "{\"id\":7}").tag("paid").key("7").property("region", "eu");
/// assert_eq!(message.topic(), "orders");
/// ```
#[derive(Clone, Debug, Default, Eq, PartialEq)]
#[must_use = "a message does nothing until it is sent"]
pub struct Message {
    topic: String,
    body: Vec<u8>,
    tag: Option<String>,
    keys: Vec<String>,
    delay: Option<DelayLevel>,
    flag: i32,
    properties: Vec<(String, String)>,
}

impl Message {
    /// A message for `topic` with this body. Names and sizes are checked when it is sent.
    pub fn new(topic: impl Into<String>, body: impl Into<Vec<u8>>) -> Self {
        Self { topic: topic.into(), body: body.into(), ..Self::default() }
    }

    /// The one tag that subscriptions filter by (Java's `setTags`).
    pub fn tag(mut self, tag: impl Into<String>) -> Self {
        self.tag = Some(tag.into());
        self
    }

    /// Adds one key under which the broker indexes the message (Java's `setKeys`). A key must not contain blanks.
    pub fn key(mut self, key: impl Into<String>) -> Self {
        self.keys.push(key.into());
        self
    }

    /// Adds a property of the user's own (Java's `putUserProperty`), replacing one of that name.
    pub fn property(mut self, name: impl Into<String>, value: impl Into<String>) -> Self {
        let name = name.into();
        self.properties.retain(|(known, _)| *known != name);
        self.properties.push((name, value.into()));
        self
    }

    /// Delivers the message only after a delay (Java's `setDelayTimeLevel`).
    pub fn delay(mut self, level: DelayLevel) -> Self {
        self.delay = Some(level);
        self
    }

    /// The application's own 32 bits, carried unread (Java's `setFlag`). Default 0.
    pub fn flag(mut self, flag: i32) -> Self {
        self.flag = flag;
        self
    }

    /// The topic as given.
    pub fn topic(&self) -> &str {
        &self.topic
    }

    /// The body as given.
    pub fn body(&self) -> &[u8] {
        &self.body
    }

    /// The tag, if one was set.
    pub fn tag_text(&self) -> Option<&str> {
        self.tag.as_deref()
    }

    /// The keys, in the order they were added.
    pub fn keys(&self) -> &[String] {
        &self.keys
    }

    /// The user's own properties, in the order they were added.
    pub fn properties(&self) -> &[(String, String)] {
        &self.properties
    }

    /// The delay level, if one was set.
    pub fn delay_level(&self) -> Option<DelayLevel> {
        self.delay
    }

    /// The application's own 32 bits.
    pub fn flag_bits(&self) -> i32 {
        self.flag
    }
}

/// One of the 18 delays that every RocketMQ broker keeps: 1 s, 5 s, 10 s, 30 s, 1 to 10 min, 20 min, 30 min, 1 h, 2 h.
///
/// Source: apache/rocketmq@rocketmq-all-4.9.3 store/src/main/java/org/apache/rocketmq/store/config/MessageStoreConfig.java
#[derive(Clone, Copy, Debug, Eq, Hash, Ord, PartialEq, PartialOrd)]
pub struct DelayLevel(u8);

impl DelayLevel {
    /// Seconds of level 1, 2, ... 18.
    pub const SECONDS: [u32; 18] =
        [1, 5, 10, 30, 60, 120, 180, 240, 300, 360, 420, 480, 540, 600, 1200, 1800, 3600, 7200];
    /// The longest delay.
    pub const MAX: Self = Self(18);

    /// A level by its number. Above 18 it is 18, as brokers do; 0 and below is no delay.
    pub fn new(level: i32) -> Option<Self> {
        match level {
            i32::MIN..=0 => None,
            1..=18 => u8::try_from(level).ok().map(Self),
            19..=i32::MAX => Some(Self::MAX),
        }
    }

    /// The shortest level that waits at least `delay`; the longest, 2 h, if none does.
    pub fn at_least(delay: Duration) -> Self {
        let above =
            Self::SECONDS.iter().take_while(|seconds| Duration::from_secs(u64::from(**seconds)) < delay).count();
        Self::new(i32::try_from(above).unwrap_or(17) + 1).unwrap_or(Self::MAX)
    }

    /// The level's number, 1 to 18.
    pub fn number(self) -> i32 {
        i32::from(self.0)
    }

    /// How long the level waits.
    pub fn duration(self) -> Duration {
        let at = usize::from(self.0).saturating_sub(1);
        Duration::from_secs(u64::from(Self::SECONDS.get(at).copied().unwrap_or(7200)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn levels_end_where_brokers_end_them() {
        assert_eq!((DelayLevel::new(0), DelayLevel::new(-1)), (None, None));
        assert_eq!((DelayLevel::new(19), DelayLevel::new(i32::MAX)), (Some(DelayLevel::MAX), Some(DelayLevel::MAX)));
        assert_eq!(DelayLevel::new(5).unwrap().duration(), Duration::from_secs(60));
    }

    #[test]
    fn at_least_never_waits_less_if_it_can() {
        for (seconds, level) in [(0, 1), (1, 1), (2, 2), (30, 4), (31, 5), (7200, 18), (99_999, 18)] {
            assert_eq!(DelayLevel::at_least(Duration::from_secs(seconds)).number(), level, "{seconds} s");
        }
    }

    #[test]
    fn a_property_set_twice_has_the_later_value() {
        let message = Message::new("t", "b").property("a", "1").property("a", "2");
        assert_eq!(message.properties(), [("a".to_owned(), "2".to_owned())]);
    }
}
