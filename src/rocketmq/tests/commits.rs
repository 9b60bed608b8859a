//! When progress is committed.

use super::*;

/// The round of every half minute heals what a broker has forgotten, also where nothing moves, and again after that.
#[test]
fn b043_a_queue_in_which_nothing_moves_is_committed_each_half_minute() {
    let mut stage = Stage::new(|asked| asked.is(request::QUERY_CONSUMER_OFFSET).then(|| Some(at_offset(5))));
    stage.pass(29_999);
    assert_eq!(stage.commits(), [], "the broker is known to hold it");
    stage.pass(60_001);
    assert_eq!(stage.commits(), [(30_000, 5), (60_000, 5), (90_000, 5)]);
}

/// Movement is committed half a second after the start at most, and after the last round.
#[test]
fn b043_movement_is_committed_soon_and_its_failure_repeated() {
    let mut refused = 0;
    let mut stage = Stage::new(move |asked| match asked.code {
        request::PULL_MESSAGE if asked.field("queueOffset") == "5" => Some(Some(pulled(6, 6, &[record(5, "a")]))),
        request::QUERY_CONSUMER_OFFSET => Some(Some(at_offset(5))),
        request::UPDATE_CONSUMER_OFFSET => {
            refused += 1;
            (refused < 3).then(|| Some(answer(1, &[], b"")))
        }
        _ => None,
    });
    stage.work();
    stage.pass(10_000);
    assert_eq!(stage.commits(), [(500, 6), (1000, 6), (1500, 6)]);
}
