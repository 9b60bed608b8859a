//! Settings of a push consumer: what may be set, in which bounds. Checked once, before anything is started.

use std::time::Duration;

use crate::consume::flow::Limits;
use crate::consume::queue;
use crate::error::{ConfigError, in_range, time_in_range};
use crate::model::{StartFrom, names, tags::TagExpression};

/// How queues are pulled.
#[derive(Clone, Debug)]
pub struct PullSettings {
    /// Most messages asked for in one pull.
    pub batch: u32,
    /// Most bytes asked for in one pull; brokers before 5.0 do not know it.
    pub batch_bytes: u32,
    /// Pause between an answer with messages and the next pull.
    pub interval: Duration,
    /// Pause after a pull that failed.
    pub retry_delay: Duration,
    /// Whether every pull carries the tag expression, which then wins over the registered one.
    pub post_subscription: bool,
    /// When one queue stops pulling.
    pub limits: Limits,
    /// When all queues of one topic together stop pulling: messages.
    pub topic_messages: Option<u64>,
    /// The same in MiB.
    pub topic_mebibytes: Option<u64>,
}

/// Everything about a push consumer but its handler, checked.
#[derive(Clone, Debug)]
pub struct PushSettings {
    /// Its group.
    pub group: String,
    /// Topics and tags, in the order they were subscribed.
    pub subscriptions: Vec<(String, TagExpression)>,
    /// Where a queue without a committed offset starts.
    pub start_from: StartFrom,
    /// How queues are pulled.
    pub pull: PullSettings,
    /// How claims are consumed.
    pub claim: queue::Settings,
    /// Failures after which a message becomes a dead letter.
    pub max_redeliveries: u32,
    /// How long a queue that is taken away waits for its running handlers.
    pub revoke_wait: Duration,
    /// Whether a stop delivers what is cached.
    pub drain: bool,
    /// Most bytes that a compressed body may inflate to.
    pub max_body: usize,
}

/// What was set so far; `None` is the default.
#[derive(Clone, Debug, Default)]
pub(super) struct Wanted {
    pub(super) group: String,
    pub(super) subscriptions: Vec<(String, String)>,
    pub(super) start_from: StartFrom,
    pub(super) batch: Option<u32>,
    pub(super) wait: Option<Duration>,
    pub(super) max_redeliveries: Option<u32>,
    pub(super) pull_batch_size: Option<u32>,
    pub(super) pull_batch_bytes: Option<u32>,
    pub(super) pull_interval: Option<Duration>,
    pub(super) pull_retry_delay: Option<Duration>,
    pub(super) post_subscription: bool,
    pub(super) queue_messages: Option<u64>,
    pub(super) queue_mebibytes: Option<u64>,
    pub(super) topic_messages: Option<u64>,
    pub(super) topic_mebibytes: Option<u64>,
    pub(super) max_span: Option<u64>,
    pub(super) consume_timeout: Option<Duration>,
    pub(super) revoke_wait: Option<Duration>,
    pub(super) drain: bool,
    pub(super) max_body: Option<usize>,
}

impl Wanted {
    /// Checks everything. The first rule that is broken is told, in the order of the setters' documentation.
    pub(super) fn check(&self) -> Result<PushSettings, ConfigError> {
        names::check_group(&self.group)?;
        let limits = Limits {
            messages: in_range("queue_messages", self.queue_messages, 1000, 1..=65_535)?,
            mebibytes: in_range("queue_mebibytes", self.queue_mebibytes, 100, 1..=1024)?,
            span: Some(in_range("max_span", self.max_span, 2000, 1..=65_535)?),
        };
        let pull = PullSettings {
            batch: in_range("pull_batch_size", self.pull_batch_size, 32, 1..=1024)?,
            batch_bytes: in_range("pull_batch_bytes", self.pull_batch_bytes, 256 << 10, 1 << 10..=15 << 20)?,
            interval: within("pull_interval", self.pull_interval, 0, 0, 65_535)?,
            retry_delay: within("pull_retry_delay", self.pull_retry_delay, 1000, 10, 60_000)?,
            post_subscription: self.post_subscription,
            limits,
            topic_messages: if_set("topic_messages", self.topic_messages, 6_553_500)?,
            topic_mebibytes: if_set("topic_mebibytes", self.topic_mebibytes, 102_400)?,
        };
        let claim = queue::Settings {
            batch: in_range("batch", self.batch, 1, 1..=1024)?,
            wait: within("batch wait", self.wait, 0, 0, 60_000)?,
            running: u32::MAX,
            limits,
            timeout: within("consume_timeout", self.consume_timeout, 15 * 60_000, 100, 24 * 3_600_000)?,
        };
        Ok(PushSettings {
            group: self.group.clone(),
            subscriptions: self.check_subscriptions()?,
            start_from: self.start_from,
            pull,
            claim,
            max_redeliveries: in_range("max_redeliveries", self.max_redeliveries, 16, 0..=i32::MAX as u32)?,
            revoke_wait: within("revoke_wait", self.revoke_wait, 1000, 0, 20_000)?,
            drain: self.drain,
            max_body: in_range("max_body", self.max_body, 16 << 20, 1 << 10..=1 << 30)?,
        })
    }

    /// Every topic once; the last expression of a topic counts, as Java's `subscribe` replaces.
    fn check_subscriptions(&self) -> Result<Vec<(String, TagExpression)>, ConfigError> {
        let mut checked: Vec<(String, TagExpression)> = Vec::new();
        for (topic, tags) in &self.subscriptions {
            names::check_topic(topic)?;
            let tags = TagExpression::parse(tags)?;
            match checked.iter_mut().find(|(known, _)| known == topic) {
                Some((_, known)) => *known = tags,
                None => checked.push((topic.clone(), tags)),
            }
        }
        Ok(checked)
    }
}

/// A time that was set, or `default`, all in milliseconds.
fn within(
    field: &'static str,
    value: Option<Duration>,
    default: u64,
    least: u64,
    most: u64,
) -> Result<Duration, ConfigError> {
    let ms = Duration::from_millis;
    time_in_range(field, value, ms(default), ms(least)..=ms(most))
}

/// A limit that is off unless it was set, from 1 to `most`.
fn if_set(field: &'static str, value: Option<u64>, most: u64) -> Result<Option<u64>, ConfigError> {
    value.map(|value| in_range(field, Some(value), value, 1..=most)).transpose()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn wanted() -> Wanted {
        Wanted { group: "g".into(), subscriptions: vec![("t".into(), "*".into())], ..Wanted::default() }
    }

    /// One setting, at a value.
    type Set = fn(&mut Wanted, u64);

    #[test]
    fn b050_every_bound_is_accepted_at_both_ends_and_refused_one_beyond() {
        let cases: [(&str, u64, u64, Set); 13] = [
            ("max_span", 1, 65_535, |w, n| w.max_span = Some(n)),
            ("queue_messages", 1, 65_535, |w, n| w.queue_messages = Some(n)),
            ("topic_messages", 1, 6_553_500, |w, n| w.topic_messages = Some(n)),
            ("queue_mebibytes", 1, 1024, |w, n| w.queue_mebibytes = Some(n)),
            ("topic_mebibytes", 1, 102_400, |w, n| w.topic_mebibytes = Some(n)),
            ("pull_interval", 0, 65_535, |w, n| w.pull_interval = Some(Duration::from_millis(n))),
            ("batch", 1, 1024, |w, n| w.batch = u32::try_from(n).ok()),
            ("batch wait", 0, 60_000, |w, n| w.wait = Some(Duration::from_millis(n))),
            ("pull_batch_size", 1, 1024, |w, n| w.pull_batch_size = u32::try_from(n).ok()),
            ("pull_batch_bytes", 1 << 10, 15 << 20, |w, n| w.pull_batch_bytes = u32::try_from(n).ok()),
            ("consume_timeout", 100, 86_400_000, |w, n| w.consume_timeout = Some(Duration::from_millis(n))),
            ("revoke_wait", 0, 20_000, |w, n| w.revoke_wait = Some(Duration::from_millis(n))),
            ("max_body", 1 << 10, 1 << 30, |w, n| w.max_body = usize::try_from(n).ok()),
        ];
        for (field, least, most, set) in cases {
            let with = |n| {
                let mut wanted = wanted();
                set(&mut wanted, n);
                wanted.check().map(drop).map_err(|error| error.field)
            };
            assert_eq!((with(least), with(most)), (Ok(()), Ok(())), "{field}");
            assert_eq!(with(most + 1), Err(field));
            if least > 0 {
                assert_eq!(with(least - 1), Err(field));
            }
        }
    }

    #[test]
    fn defaults_are_javas() {
        let settings = wanted().check().unwrap();
        assert_eq!((settings.claim.batch, settings.pull.batch, settings.pull.batch_bytes), (1, 32, 262_144));
        assert_eq!(settings.pull.limits, Limits { messages: 1000, mebibytes: 100, span: Some(2000) });
        assert_eq!((settings.pull.topic_messages, settings.pull.topic_mebibytes), (None, None));
        assert_eq!((settings.claim.timeout, settings.max_redeliveries), (Duration::from_secs(900), 16));
        assert_eq!((settings.pull.interval, settings.pull.retry_delay), (Duration::ZERO, Duration::from_secs(1)));
    }

    #[test]
    fn b051_b056_b055_names_and_expressions_are_checked_and_can_be_corrected() {
        let mut wanted = wanted();
        wanted.group = "DEFAULT_CONSUMER".into();
        assert_eq!(wanted.check().unwrap_err().field, "group");
        wanted.group = "g".into();
        wanted.subscriptions.push(("t".into(), "||".into()));
        assert_eq!(wanted.check().unwrap_err().field, "tags");
        wanted.subscriptions.pop();
        wanted.subscriptions.push(("a topic".into(), "*".into()));
        assert_eq!(wanted.check().unwrap_err().field, "topic");
        wanted.subscriptions.pop();
        wanted.subscriptions.push(("t".into(), "a || b".into()));
        assert_eq!(wanted.check().unwrap().subscriptions, [("t".to_owned(), TagExpression::parse("a||b").unwrap())]);
    }
}
