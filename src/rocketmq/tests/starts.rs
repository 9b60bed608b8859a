//! What is tried again after a start or an assignment that could not be made, and how soon.

use super::*;

/// A broker that cannot be reached may have moved: where it is now is asked for soon, not with the next round of routes.
#[test]
fn b041_a_start_that_reaches_no_broker_has_the_route_asked_for() {
    let mut stage = Stage::new(|asked| {
        let error = CallError::Connect { to: BROKER.into(), detail: "refused".into() };
        asked.is(request::QUERY_CONSUMER_OFFSET).then(|| Some(Err(error)))
    });
    assert_eq!(stage.asked(request::GET_ROUTEINFO_BY_TOPIC).len(), 1);
    stage.pass(999);
    assert_eq!(stage.asked(request::GET_ROUTEINFO_BY_TOPIC).len(), 1);
    stage.pass(1);
    let routes = stage.asked(request::GET_ROUTEINFO_BY_TOPIC);
    let starts = stage.asked(request::QUERY_CONSUMER_OFFSET);
    assert_eq!((routes.last().unwrap().at_ms, starts.last().unwrap().at_ms), (1000, 1000));
}

/// B-143 to B-145: members that could not be asked for are asked for again after a second, not after the interval.
#[test]
fn b143_members_that_were_refused_are_asked_for_again_soon() {
    let mut stage =
        Stage::new(|asked| (asked.code == request::GET_CONSUMER_LIST_BY_GROUP).then(|| Some(answer(1, &[], b""))));
    let times = |stage: &Stage| stage.count(request::GET_CONSUMER_LIST_BY_GROUP);
    let before = times(&stage);
    stage.pass(3500);
    assert_eq!(times(&stage), before + 3);
}

/// A queue that comes back while it is still being given up is claimed a second later, not after the interval.
#[test]
fn a_queue_that_comes_back_while_its_handlers_run_is_looked_at_again_soon() {
    let away = Arc::new(Mutex::new(false));
    let is_away = Arc::clone(&away);
    let mut stage = Stage::with(
        |spec| spec.settings.revoke_wait = Duration::from_secs(20),
        move |asked| match asked.code {
            request::GET_CONSUMER_LIST_BY_GROUP if *is_away.lock().unwrap() => Some(Some(members(&["0", CLIENT]))),
            request::PULL_MESSAGE if asked.field("queueOffset") == "0" => Some(Some(pulled(1, 1, &[record(0, "a")]))),
            _ => None,
        },
    );
    stage.work_and_keep();
    *away.lock().unwrap() = true;
    stage.members_changed();
    *away.lock().unwrap() = false;
    stage.members_changed();
    let times = |stage: &Stage| stage.count(request::GET_CONSUMER_LIST_BY_GROUP);
    let before = times(&stage);
    stage.pass(999);
    assert_eq!(times(&stage), before);
    stage.pass(1);
    assert_eq!(times(&stage), before + 1);
    stage.let_go();
    stage.pass(1000);
    assert_eq!(stage.asked(request::QUERY_CONSUMER_OFFSET).len(), 2, "claimed once more");
}
