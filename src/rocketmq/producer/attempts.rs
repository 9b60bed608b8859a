//! The attempts of one call: choose a queue, try it, decide from what came of it. A loop over a [`World`], so that a test
//! can be the brokers and the clock.

use std::time::Duration;

use crate::error::{Attempt, Error, Stage};

use super::choice::OnBroker;
use super::outcome::SendStatus;
use super::retry::{Budget, may_retry, stored};
use super::settings::Settings;

/// What a call sees of the outside. Times are counted from the start of the call.
pub(super) trait World {
    /// A queue that can be sent to.
    type Queue: OnBroker + Clone;
    /// What a broker that has stored the message says.
    type Stored;

    /// How long the call has run.
    fn spent(&self) -> Duration;
    /// Lets time pass, at most this much.
    fn pause(&mut self, time: Duration);
    /// The queue for the next attempt, away from the broker `avoid` if that can be. Blocks at most until `until`.
    fn choose(&mut self, avoid: Option<&str>, until: Duration) -> Result<Self::Queue, Error>;
    /// Sends once and waits for the answer until `until`. How long it took is for the caller to note.
    fn attempt(&mut self, queue: &Self::Queue, until: Duration) -> Result<(Self::Stored, SendStatus), Attempt>;
}

/// Tries until a broker has stored the message, the attempts or the time are used up, or an answer forbids more.
///
/// Source: apache/rocketmq@rocketmq-all-5.3.3
/// client/src/main/java/org/apache/rocketmq/client/impl/producer/DefaultMQProducerImpl.java (sendDefaultImpl)
pub(super) fn run<W: World>(
    world: &mut W,
    settings: &Settings,
    retries: u32,
    topic: &str,
) -> Result<(W::Stored, SendStatus), Error> {
    let mut budget = Budget::new(settings.send_deadline, retries);
    let mut attempts: Vec<Attempt> = Vec::new();
    let mut unconfirmed = None;
    let failed = |attempts: Vec<Attempt>| {
        let stored = stored(&attempts);
        Error::Send { topic: topic.to_owned(), attempts, stored }
    };
    loop {
        let avoid = attempts.last().map(|attempt| attempt.broker.as_str());
        let queue = match world.choose(avoid, budget.total) {
            Ok(queue) => queue,
            Err(error) if attempts.is_empty() => return Err(error),
            // The route is gone since the first attempt; what was tried says more.
            Err(_) => break,
        };
        if let Some(last) = attempts.last() {
            let pause = budget.pause(last, queue.broker(), world.spent());
            if !pause.is_zero() {
                world.pause(pause);
            }
        }
        let begun = world.spent();
        let Some(until) = budget.attempt(begun) else { break };
        match world.attempt(&queue, until.min(begun + settings.attempt_limit)) {
            Ok((stored, status)) => {
                if status == SendStatus::Stored || !settings.retry_unconfirmed || budget.attempts == 0 {
                    return Ok((stored, status));
                }
                attempts.push(Attempt {
                    broker: queue.broker().to_owned(),
                    stage: Stage::Answer,
                    took: world.spent().saturating_sub(begun),
                    code: None,
                    detail: status.as_str().to_owned(),
                });
                unconfirmed = Some((stored, status));
            }
            Err(attempt) => {
                let attempt = Attempt { took: world.spent().saturating_sub(begun), ..attempt };
                let again =
                    may_retry(&attempt) || attempt.code.is_some_and(|code| settings.retry_codes.contains(&code));
                attempts.push(attempt);
                if !again || budget.attempts == 0 {
                    break;
                }
            }
        }
    }
    match unconfirmed {
        // Stored, though not as safely as was asked for: better than no receipt.
        Some(found) => Ok(found),
        None if attempts.is_empty() => Err(failed(vec![out_of_time(world.spent())])),
        None => Err(failed(attempts)),
    }
}

fn out_of_time(took: Duration) -> Attempt {
    let detail = "no time was left for an attempt".to_owned();
    Attempt { broker: String::new(), stage: Stage::Route, took, code: None, detail }
}

#[cfg(test)]
mod tests {
    use super::super::choice::Cursor;
    use super::super::settings::Asked;
    use super::*;
    use crate::error::Stored;
    use crate::model::Queue;

    const MS: fn(u64) -> Duration = Duration::from_millis;

    /// Answers by broker: how long it takes and what it says.
    struct Script<F> {
        now: Duration,
        paused: Duration,
        queues: Vec<Queue>,
        cursor: Cursor,
        tried: Vec<String>,
        answer: F,
    }

    impl<F: FnMut(&str, Duration) -> (Duration, Result<SendStatus, (Stage, Option<i32>)>)> World for Script<F> {
        type Queue = Queue;
        type Stored = ();

        fn spent(&self) -> Duration {
            self.now
        }

        fn pause(&mut self, time: Duration) {
            self.now += time;
            self.paused += time;
        }

        fn choose(&mut self, avoid: Option<&str>, _until: Duration) -> Result<Queue, Error> {
            let none = || Error::NoQueue { topic: "t".into(), queue: None, wanted: "write" };
            self.cursor.next(&self.queues, avoid).cloned().ok_or_else(none)
        }

        fn attempt(&mut self, queue: &Queue, until: Duration) -> Result<((), SendStatus), Attempt> {
            self.tried.push(queue.broker.to_string());
            let (takes, said) = (self.answer)(&queue.broker, until - self.now);
            let (takes, said) =
                if self.now + takes > until { (until - self.now, Err((Stage::Wait, None))) } else { (takes, said) };
            self.now += takes;
            said.map(|status| ((), status)).map_err(|(stage, code)| Attempt {
                broker: queue.broker.to_string(),
                stage,
                took: takes,
                code,
                detail: String::new(),
            })
        }
    }

    type Said = (Duration, Result<SendStatus, (Stage, Option<i32>)>);

    fn script<F: FnMut(&str, Duration) -> Said>(brokers: &[(&str, i32)], answer: F) -> Script<F> {
        let queues = brokers.iter().flat_map(|(broker, n)| (0..*n).map(|id| Queue::new("t", *broker, id))).collect();
        Script { now: MS(0), paused: MS(0), queues, cursor: Cursor::starting_at(0), tried: Vec::new(), answer }
    }

    fn settings(change: impl FnOnce(&mut Asked)) -> Settings {
        let mut asked = Asked::default();
        change(&mut asked);
        Settings::checked("g".into(), asked).unwrap()
    }

    fn refused(code: i32) -> Said {
        (MS(1), Err((Stage::Answer, Some(code))))
    }

    #[test]
    fn c066_at_most_one_attempt_meets_the_broker_that_refuses() {
        let settings = settings(|_| ());
        let mut world =
            script(
                &[("a", 4), ("b", 4)],
                |broker, _| {
                    if broker == "a" { refused(14) } else { (MS(1), Ok(SendStatus::Stored)) }
                },
            );
        for send in 0..1_000 {
            (world.now, world.tried) = (MS(0), Vec::new());
            assert!(run(&mut world, &settings, 2, "t").is_ok(), "send {send}");
            assert!(world.tried.iter().filter(|broker| *broker == "a").count() <= 1, "send {send}: {:?}", world.tried);
        }
    }

    #[test]
    fn b182_a_silent_broker_leaves_time_for_the_other() {
        let mut world = script(&[("a", 1), ("b", 1)], |broker, _| {
            if broker == "a" { (MS(60_000), Ok(SendStatus::Stored)) } else { (MS(1), Ok(SendStatus::Stored)) }
        });
        for _ in 0..4 {
            world.now = MS(0);
            assert!(run(&mut world, &settings(|_| ()), 2, "t").is_ok());
            assert!(world.now <= MS(1501));
        }
    }

    #[test]
    fn b181_an_error_lists_three_attempts_within_the_deadline() {
        let mut world = script(&[("a", 1)], |_, _| (MS(60_000), Ok(SendStatus::Stored)));
        let Err(Error::Send { topic, attempts, stored }) = run(&mut world, &settings(|_| ()), 2, "t") else {
            panic!("should fail");
        };
        assert_eq!((topic.as_str(), attempts.len(), stored), ("t", 3, Stored::Unknown));
        assert_eq!(world.now, MS(3000));
        assert_eq!(attempts.iter().map(|attempt| attempt.took).collect::<Vec<_>>(), [MS(1500), MS(750), MS(750)]);
    }

    #[test]
    fn b183_other_codes_end_the_call_at_once() {
        let mut world = script(&[("a", 1), ("b", 1)], |_, _| refused(13));
        let error = run(&mut world, &settings(|_| ()), 2, "t").unwrap_err();
        assert_eq!((error.broker_code(), error.attempts().len(), error.is_retryable()), (Some(13), 1, false));
        let also = settings(|asked| {
            asked.retry_codes.insert(13);
        });
        assert_eq!(run(&mut world, &also, 2, "t").unwrap_err().attempts().len(), 3, "unless the user says so");
    }

    #[test]
    fn b184_a_busy_broker_alone_is_waited_for() {
        let mut answers = [refused(2), refused(2), (MS(1), Ok(SendStatus::Stored))].into_iter();
        let mut world = script(&[("a", 2)], |_, _| answers.next().unwrap());
        assert!(run(&mut world, &settings(|_| ()), 2, "t").is_ok());
        assert_eq!((world.paused, world.tried.len()), (MS(60), 3));
    }

    #[test]
    fn b185_unconfirmed_is_a_receipt_unless_another_attempt_was_asked_for() {
        let late = (MS(1), Ok(SendStatus::FlushTimeout));
        let mut world = script(&[("a", 1), ("b", 1)], |_, _| late);
        assert!(matches!(run(&mut world, &settings(|_| ()), 2, "t"), Ok(((), SendStatus::FlushTimeout))));
        assert_eq!(world.tried.len(), 1);
        let mut answers = [late, (MS(1), Ok(SendStatus::Stored))].into_iter();
        let mut world = script(&[("a", 1), ("b", 1)], |_, _| answers.next().unwrap());
        let asked = settings(|asked| asked.retry_unconfirmed = true);
        assert!(matches!(run(&mut world, &asked, 2, "t"), Ok(((), SendStatus::Stored))));
        let mut answers = [late, refused(14), refused(14)].into_iter();
        let mut world = script(&[("a", 1), ("b", 1)], |_, _| answers.next().unwrap());
        assert!(matches!(run(&mut world, &asked, 2, "t"), Ok(((), SendStatus::FlushTimeout))), "the earlier receipt");
    }

    #[test]
    fn a_limit_of_one_attempt_holds_for_each() {
        let limited = settings(|asked| asked.attempt_limit = Some(MS(100)));
        let mut world = script(&[("a", 1)], |_, allowed| (allowed + MS(1), Ok(SendStatus::Stored)));
        assert_eq!(run(&mut world, &limited, 2, "t").unwrap_err().attempts().len(), 3);
        assert_eq!(world.now, MS(300));
    }

    #[test]
    fn without_a_queue_nothing_is_tried() {
        let mut world = script(&[], |_, _| refused(1));
        assert!(matches!(run(&mut world, &settings(|_| ()), 2, "t"), Err(Error::NoQueue { .. })));
        let mut world = script(&[("a", 1)], |_, _| refused(1));
        world.now = MS(3000);
        let error = run(&mut world, &settings(|_| ()), 2, "t").unwrap_err();
        assert_eq!((error.attempts().len(), error.attempts()[0].stage, world.tried.len()), (1, Stage::Route, 0));
    }
}
