//! What becomes of answers that come together.

use super::*;

/// The pull behind a damaged record may have been answered in the same turn: what it brought comes again, since progress
/// over it would be progress over the record that is still to be healed.
#[test]
fn d8_an_answer_behind_a_damaged_record_is_dropped_and_pulled_again() {
    let mut stage = Stage::new(|_| None);
    let first = stage.asked(request::PULL_MESSAGE).remove(0);
    let mut damaged = record(0, "a");
    let last = damaged.len() - 1;
    damaged[last - 20] ^= 1;
    let broken = pulled(1, 2, &[damaged]);
    stage.script.lock().unwrap().play = Box::new(|asked| match asked.code {
        request::PULL_MESSAGE if asked.field("queueOffset") == "1" => Some(pulled(2, 2, &[record(1, "a")])),
        _ => usual(asked),
    });
    stage.answer(&first, broken);
    assert_eq!(stage.pulls(), [0, 1, 0], "the second was answered before the first was taken in");
    stage.work();
    stage.pass(5000);
    assert_eq!((stage.seen(), stage.commits().iter().all(|commit| commit.1 == 0)), (vec![], true));
    let again = stage.asked(request::PULL_MESSAGE).remove(2);
    stage.answer(&again, pulled(1, 2, &[record(0, "a")]));
    stage.work();
    stage.pass(1000);
    assert_eq!((stage.seen(), stage.commits().last().map(|commit| commit.1)), (vec![0, 1], Some(2)));
}

/// An answer of several frames whose first one brings nothing for us: progress ends where that frame ends.
#[test]
fn c052_a_filtered_frame_is_no_progress_over_the_frames_behind_it() {
    let tags = |spec: &mut ConsumerSpec| {
        spec.settings.subscriptions = vec![(TOPIC.into(), crate::model::tags::TagExpression::parse("Aa").unwrap())];
    };
    // The broker compares hashes, and these two are the same.
    let mut stage = Stage::with(tags, |asked| match asked.code {
        request::PULL_MESSAGE if asked.field("queueOffset") == "0" => {
            Some(Some(pulled(2, 2, &[record(0, "BB"), record(1, "Aa")])))
        }
        _ => None,
    });
    stage.pass(5000);
    assert_eq!(stage.commits().last().map(|commit| commit.1), Some(1), "the second has not been handled");
    stage.work();
    stage.pass(1000);
    assert_eq!((stage.seen(), stage.commits().last().map(|commit| commit.1)), (vec![1], Some(2)));
}

/// A port that answers at once: more answers than are taken in at one go need another turn, though nothing else is due.
#[test]
fn answers_that_come_at_once_are_taken_in_over_several_turns() {
    let mut stage = Stage::new(|asked| {
        let at: i64 = asked.field("queueOffset").parse().ok()?;
        // Each time as if it were the last.
        (asked.is(request::PULL_MESSAGE) && at < 100).then(|| Some(pulled(at + 1, at + 1, &[record(at, "a")])))
    });
    assert_eq!(stage.pulls().len(), 101);
    stage.work();
    assert_eq!((stage.seen().len(), stage.now_ms()), (100, 0));
}
