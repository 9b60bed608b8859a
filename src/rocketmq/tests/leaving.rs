//! How long a queue that is given up, and a consumer that stops, wait for their last commit.

use std::sync::atomic::{AtomicBool, Ordering};

use super::*;

/// A consumer whose queue another member gets when `away` is set.
fn shared(wait: Duration, mut commit: impl FnMut(&Asked) -> Option<Option<Said>> + Send + 'static) -> (Stage, Away) {
    let away = Away::default();
    let is_away = Arc::clone(&away);
    let stage = Stage::with(
        move |spec| spec.settings.revoke_wait = wait,
        move |asked| match (asked.code, is_away.load(Ordering::SeqCst)) {
            (request::GET_CONSUMER_LIST_BY_GROUP, true) => Some(Some(members(&["0", CLIENT]))),
            (request::UPDATE_CONSUMER_OFFSET, true) => commit(asked),
            _ => None,
        },
    );
    (stage, away)
}

type Away = Arc<AtomicBool>;

/// When all that follows begins.
const BEGIN: u64 = 10_000;

/// Passes the time until then, and has a message come.
fn one_message(stage: &mut Stage) {
    stage.pass(BEGIN);
    let pull = stage.asked(request::PULL_MESSAGE).remove(0);
    stage.answer(&pull, pulled(1, 1, &[record(0, "a")]));
}

/// A queue that is lost as soon as its only message is finished; its commits are answered as `commit` says.
fn lost(wait: Duration, mut commit: impl FnMut(usize) -> Option<Said> + Send + 'static) -> Stage {
    let mut nth = 0;
    let (mut stage, away) = shared(wait, move |_| {
        nth += 1;
        Some(commit(nth))
    });
    one_message(&mut stage);
    away.store(true, Ordering::SeqCst);
    stage.work();
    stage.members_changed();
    stage
}

/// When the queue was given up, after it was lost.
fn gone_after(stage: &mut Stage) -> Option<u64> {
    stage.pass(30_000);
    stage.events("revoked").first().map(|(at, _)| at - BEGIN)
}

/// B-148: the handlers' time and three seconds more, whatever the commit's own time-out is.
#[test]
fn b148_a_lost_queue_whose_last_commit_is_not_answered_is_left_when_its_time_is_over() {
    assert_eq!(gone_after(&mut lost(Duration::from_secs(1), |_| None)), Some(4000));
}

/// A commit that was refused is tried again each fifth of a second; then the queue is gone at once.
#[test]
fn b148_a_last_commit_that_was_refused_is_tried_again_until_it_is_taken() {
    for wait in [0, 1000] {
        let refused = |nth| Some(if nth < 4 { answer(1, &[], b"") } else { done() });
        let mut stage = lost(Duration::from_millis(wait), refused);
        assert_eq!(gone_after(&mut stage), Some(600), "{wait}");
        let commits: Vec<u64> = stage.commits().iter().map(|commit| commit.0).filter(|at| *at >= BEGIN).collect();
        assert_eq!(commits, [10_000, 10_200, 10_400, 10_600], "{wait}");
    }
}

/// ... and one that is silent after that gets no more time than the queue has.
#[test]
fn b148_a_last_commit_that_is_refused_and_then_not_answered_ends_in_time() {
    for wait in [0, 1000] {
        let mut stage = lost(Duration::from_millis(wait), |nth| (nth == 1).then(|| answer(1, &[], b"")));
        assert_eq!(gone_after(&mut stage), Some(wait + 3000));
    }
}

/// One that is refused for ever, too.
#[test]
fn b148_a_last_commit_that_is_always_refused_ends_in_time() {
    for wait in [0, 1000] {
        let mut stage = lost(Duration::from_millis(wait), |_| Some(answer(1, &[], b"")));
        assert_eq!(gone_after(&mut stage), Some(wait + 3000));
    }
}

/// D12: each of two consumers that stop has its own deadline.
#[test]
fn d12_consumers_whose_last_commits_are_not_answered_stop_each_at_its_own_deadline() {
    let mut stage = Stage::new(|asked| (asked.code == request::UPDATE_CONSUMER_OFFSET).then_some(None));
    let other = stage.start("H", |_| {});
    stage.pass(3000);
    let late = stage.stop(stage.id, Duration::from_secs(9));
    let early = stage.stop(other, Duration::from_secs(4));
    stage.pass(3999);
    assert!(early.poll().is_none() && late.poll().is_none());
    stage.pass(1);
    assert_eq!(early.poll().unwrap().failed_commits.len(), 1);
    stage.pass(4999);
    assert!(late.poll().is_none());
    stage.pass(1);
    assert_eq!(late.poll().unwrap().failed_commits.len(), 1);
}

/// B-147: handlers of a lost queue have the time that they were given, to the moment.
#[test]
fn b147_a_lost_queue_waits_for_its_handlers_as_long_as_it_was_told() {
    for wait in [0, 100, 5000] {
        let (mut stage, away) = shared(Duration::from_millis(wait), |_| None);
        one_message(&mut stage);
        stage.work_and_keep();
        // Until looks after the handler have become rare.
        stage.pass(10_000);
        away.store(true, Ordering::SeqCst);
        stage.members_changed();
        assert_eq!(gone_after(&mut stage), Some(10_000 + wait), "{wait}");
        assert!(matches!(stage.events("revoked")[0].1, Event::Revoked { unfinished: 1, .. }));
    }
}

/// A stop has no more time for a queue that is being given up already.
#[test]
fn d12_a_stop_cuts_short_the_time_of_a_queue_that_is_given_up() {
    let (mut stage, away) = shared(Duration::from_secs(20), |_| None);
    one_message(&mut stage);
    stage.work_and_keep();
    away.store(true, Ordering::SeqCst);
    stage.members_changed();
    stage.pass(1000);
    let report = stage.stop(stage.id, Duration::from_secs(5));
    stage.pass(3999);
    assert!(report.poll().is_none(), "handlers have four fifths of it");
    stage.pass(1);
    assert_eq!(report.poll().unwrap().unfinished, 1);
}

/// D12: a client that stops has one deadline for all, also for consumers that were stopped before with more time.
#[test]
fn d12_the_nearer_of_two_deadlines_holds_for_a_consumer_that_stops() {
    // Neither a commit nor that the group is left is answered.
    for silent in [request::UPDATE_CONSUMER_OFFSET, request::UNREGISTER_CLIENT] {
        let mut stage = Stage::new(move |asked| (asked.code == silent).then_some(None));
        let (early, later) = (stage.start("H", |_| {}), stage.start("L", |_| {}));
        stage.pass(3000);
        let reports =
            [(stage.id, 60), (early, 2), (later, 60)].map(|(id, most)| stage.stop(id, Duration::from_secs(most)));
        let (answer, all) = pair();
        stage.command(Command::Shutdown { most: Duration::from_secs(5), answer });
        stage.pass(1999);
        assert!(reports.iter().all(|report| report.poll().is_none()), "{silent}");
        stage.pass(1);
        assert_eq!(reports.each_ref().map(|report| report.poll().is_some()), [false, true, false], "{silent}");
        stage.pass(2999);
        assert!(all.poll().is_none(), "{silent}");
        stage.pass(1);
        assert_eq!(all.poll().unwrap().len(), 3, "{silent}");
    }
}

/// B-007: a heartbeat that is on its way makes the group known after it is left, unless the broker is told behind it.
#[test]
fn b007_a_group_is_left_also_where_its_first_heartbeat_is_on_its_way() {
    let mut stage = Stage::new(|asked| (asked.code == request::HEART_BEAT).then_some(None));
    assert_eq!(stage.count(request::HEART_BEAT), 1);
    let report = stage.stop(stage.id, Duration::from_secs(5));
    assert!(report.poll().unwrap().is_clean(), "at once: whether it is answered is not known");
    assert_eq!(stage.script.lock().unwrap().told, [request::UNREGISTER_CLIENT]);
}
