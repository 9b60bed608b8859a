//! When a send is tried again, and how long one attempt may take. Pure; `send.rs` asks it between attempts.

use std::time::Duration;

use crate::error::{Attempt, Stage, Stored};

/// No attempt is begun with less time than this left: it could only end as "unknown".
const LEAST_ATTEMPT: Duration = Duration::from_millis(1);
/// First pause before the same broker is asked again after it said that it is busy; doubles each time.
const FIRST_PAUSE: Duration = Duration::from_millis(20);
/// Longest such pause.
const LONGEST_PAUSE: Duration = Duration::from_millis(500);

/// Answers of a broker that is overloaded: asking it again at once makes it worse.
const SYSTEM_BUSY: i32 = 2;
/// Answers of a broker that is going down; another connection or another broker will do.
const GO_AWAY: i32 = 1500;

/// What is left of one call's attempts and time. Times are counted from the start of the call.
#[derive(Clone, Copy, Debug)]
pub(super) struct Budget {
    /// For the whole call.
    pub(super) total: Duration,
    /// Attempts that may still be made, the next one included.
    pub(super) attempts: u32,
    /// How often a busy broker has been waited for.
    pauses: u32,
}

impl Budget {
    /// For a call of at most `total` with `retries` attempts beyond the first.
    pub(super) fn new(total: Duration, retries: u32) -> Self {
        Self { total, attempts: retries.saturating_add(1), pauses: 0 }
    }

    /// Takes one attempt out, `spent` after the call began: until when (counted from the start of the call) it may
    /// run; `None` when the call is over.
    ///
    /// While others are left, an attempt gets half of the remaining time. With Java's rule (all of it) the retries
    /// never happen when a broker is silent. Half, not an equal share, because every time-out may leave a second copy.
    pub(super) fn attempt(&mut self, spent: Duration) -> Option<Duration> {
        let left = self.total.checked_sub(spent).filter(|left| *left >= LEAST_ATTEMPT)?;
        let others = self.attempts.checked_sub(1)?;
        self.attempts = others;
        Some(if others == 0 { self.total } else { spent + left / 2 })
    }

    /// How long to wait before the next attempt, which goes to `broker`, after `last` failed.
    ///
    /// Only a broker that called itself busy and is asked again is given time; another broker owes none.
    pub(super) fn pause(&mut self, last: &Attempt, broker: &str, spent: Duration) -> Duration {
        if !matches!(last.code, Some(SYSTEM_BUSY | GO_AWAY)) || last.broker != broker {
            return Duration::ZERO;
        }
        let pause = FIRST_PAUSE.saturating_mul(1 << self.pauses.min(10)).min(LONGEST_PAUSE);
        self.pauses += 1;
        // At least half of what is left belongs to the attempt.
        pause.min(self.total.saturating_sub(spent) / 2)
    }
}

/// True if the attempt's failure may be answered by another attempt: every failure without an answer, and the codes
/// with which Java tries another broker.
///
/// Source: apache/rocketmq@rocketmq-all-5.3.3
/// client/src/main/java/org/apache/rocketmq/client/producer/DefaultMQProducer.java (retryResponseCodes)
pub(super) fn may_retry(attempt: &Attempt) -> bool {
    match (attempt.stage, attempt.code) {
        (_, Some(code)) => matches!(code, 1 | SYSTEM_BUSY | 14 | 16 | 17 | 204 | 205 | GO_AWAY),
        (Stage::Route, None) => false,
        (Stage::Connect | Stage::Queue | Stage::Write | Stage::Wait | Stage::Answer, None) => true,
    }
}

/// Whether a message with these attempts, none acknowledged, may have been stored.
pub(super) fn stored(attempts: &[Attempt]) -> Stored {
    let may_be = |attempt: &Attempt| {
        attempt.code.is_none() && matches!(attempt.stage, Stage::Write | Stage::Wait | Stage::Answer)
    };
    if attempts.iter().any(may_be) { Stored::Unknown } else { Stored::No }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: fn(u64) -> Duration = Duration::from_millis;

    fn failed(broker: &str, stage: Stage, code: Option<i32>) -> Attempt {
        Attempt { broker: broker.into(), stage, took: MS(1), code, detail: String::new() }
    }

    #[test]
    fn b181_three_attempts_share_one_budget() {
        let mut budget = Budget::new(MS(3000), 2);
        assert_eq!(budget.attempt(MS(0)), Some(MS(1500)));
        assert_eq!(budget.attempt(MS(1500)), Some(MS(2250)));
        assert_eq!(budget.attempt(MS(2250)), Some(MS(3000)));
        assert_eq!(budget.attempt(MS(2300)), None, "no fourth");
    }

    #[test]
    fn b181_no_attempt_begins_once_the_time_is_spent() {
        let mut budget = Budget::new(MS(3000), 2);
        assert_eq!(budget.attempt(MS(3000)), None);
        assert_eq!(budget.attempt(MS(4000)), None);
    }

    #[test]
    fn b182_only_the_last_attempt_may_use_everything() {
        for retries in 0..20 {
            let (mut budget, mut spent) = (Budget::new(MS(3000), retries), MS(0));
            for attempt in 0..=retries {
                let Some(until) = budget.attempt(spent) else {
                    assert!(MS(3000) - spent < MS(2), "attempt {attempt} of {retries} had time left");
                    break;
                };
                assert_eq!(until == MS(3000), attempt == retries, "attempt {attempt} of {retries}");
                spent = until;
            }
        }
        assert_eq!(Budget::new(MS(3000), 0).attempt(MS(0)), Some(MS(3000)));
        assert_eq!(Budget::new(MS(5), u32::MAX).attempt(MS(0)), Some(MS(5) / 2), "no overflow");
    }

    #[test]
    fn b183_codes_that_another_broker_may_not_have_are_tried_again() {
        for code in [1, 14, 16, 17, 204, 205] {
            assert!(may_retry(&failed("b", Stage::Answer, Some(code))), "{code}");
        }
        for code in [3, 13, 15, 26, 29, 501, -7] {
            assert!(!may_retry(&failed("b", Stage::Answer, Some(code))), "{code}");
        }
        for stage in [Stage::Connect, Stage::Write, Stage::Wait, Stage::Queue] {
            assert!(may_retry(&failed("b", stage, None)), "{stage:?}");
        }
    }

    #[test]
    fn b184_a_busy_broker_is_given_time_before_it_is_asked_again() {
        let mut budget = Budget::new(MS(3000), 5);
        let busy = failed("a", Stage::Answer, Some(2));
        assert!(may_retry(&busy) && may_retry(&failed("a", Stage::Answer, Some(1500))));
        assert_eq!(budget.pause(&busy, "b", MS(0)), MS(0), "another broker at once");
        assert_eq!(budget.pause(&busy, "a", MS(0)), MS(20));
        assert_eq!(budget.pause(&busy, "a", MS(30)), MS(40));
        assert_eq!(budget.pause(&failed("a", Stage::Answer, Some(14)), "a", MS(0)), MS(0));
        assert_eq!(budget.pause(&busy, "a", MS(2990)), MS(5), "half of what is left stays for the attempt");
        for _ in 0..40 {
            assert!(budget.pause(&busy, "a", MS(0)) <= MS(500));
        }
    }

    #[test]
    fn d35_a_message_is_unknown_only_if_a_request_went_out_without_an_answer() {
        let refused = failed("a", Stage::Answer, Some(14));
        let unreached = failed("a", Stage::Connect, None);
        assert_eq!(stored(&[refused.clone(), unreached.clone()]), Stored::No);
        assert_eq!(stored(&[failed("a", Stage::Wait, None), refused]), Stored::Unknown);
        assert_eq!(stored(&[unreached, failed("a", Stage::Write, None)]), Stored::Unknown);
        assert_eq!(stored(&[]), Stored::No);
    }
}
