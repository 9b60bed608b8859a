//! What becomes of messages that handlers have failed.

use super::*;

/// A stage whose queue holds so many messages, which have all been failed.
fn failed(messages: i64, mut back: impl FnMut(&Asked) -> Option<Option<Said>> + Send + 'static) -> Stage {
    let mut stage = Stage::new(move |asked| match asked.code {
        request::PULL_MESSAGE if asked.field("queueOffset") == "0" => {
            let all: Vec<u8> = (0..messages).flat_map(|at| record(at, "a")).collect();
            Some(Some(pulled(messages, messages, &[all])))
        }
        _ => back(asked),
    });
    stage.say((0..messages).map(|_| Outcome::Retry));
    stage.work();
    assert_eq!(stage.seen().len() as i64, messages);
    stage
}

/// B-136: an answer alone makes room for the next one, without news from a handler.
#[test]
fn b136_each_answer_sends_the_next_of_those_that_wait_back() {
    let mut stage = failed(100, |asked| (asked.code == request::CONSUMER_SEND_MSG_BACK).then_some(None));
    let all = |stage: &Stage| {
        let script = stage.script.lock().unwrap();
        let backs = script.asked.iter().filter(|asked| asked.code == request::CONSUMER_SEND_MSG_BACK);
        backs.cloned().collect::<Vec<Asked>>()
    };
    let out = all(&stage);
    assert_eq!(out.len(), 64);
    stage.answer(&out[5], done());
    stage.answer(&out[9], answer(1, &[], b""));
    assert_eq!(all(&stage).len(), 66, "a refusal makes room as well: its copy has no address");
    stage.answer_all(out.iter().enumerate().filter(|(at, _)| ![5, 9].contains(at)).map(|(_, asked)| (asked, done())));
    assert_eq!(all(&stage).len(), 100);
}

/// B-128: a message that could not be handed on is in a handler's hand again after its pause, at its own time.
#[test]
fn b128_a_message_that_cannot_be_handed_on_comes_again_when_its_pause_is_over() {
    let mut stage =
        failed(1, |asked| (asked.code == request::CONSUMER_SEND_MSG_BACK).then(|| Some(answer(1, &[], b""))));
    stage.pass(4999);
    stage.work();
    assert_eq!(stage.seen(), [0]);
    stage.pass(1);
    stage.work();
    assert_eq!(stage.seen(), [0, 0]);
    stage.pass(1000);
    assert_eq!(stage.commits().last().map(|commit| commit.1), Some(1));
}

/// ... and the next one after it, at its own time.
#[test]
fn b128_messages_that_cannot_be_handed_on_come_again_each_after_its_own_pause() {
    let mut stage = Stage::new(|asked| match (asked.code, asked.field("queueOffset")) {
        (request::PULL_MESSAGE, "0") => Some(Some(pulled(1, 2, &[record(0, "a")]))),
        (request::CONSUMER_SEND_MSG_BACK, _) => Some(Some(answer(1, &[], b""))),
        _ => None,
    });
    stage.say([Outcome::Retry, Outcome::Retry]);
    stage.work();
    stage.pass(1000);
    let second = stage.asked(request::PULL_MESSAGE).remove(1);
    stage.answer(&second, pulled(2, 2, &[record(1, "a")]));
    stage.work();
    for (ms, seen) in [(3999, vec![0, 1]), (1, vec![0, 1, 0]), (999, vec![0, 1, 0]), (1, vec![0, 1, 0, 1])] {
        stage.pass(ms);
        stage.work();
        assert_eq!(stage.seen(), seen, "{}", stage.now_ms());
    }
}
