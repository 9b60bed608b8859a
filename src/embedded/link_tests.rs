//! The ends of the way between a client and the dispatcher: whatever ends the client closes it, and nobody waits on.

use std::time::Instant;

use super::*;

use crate::model::{Message, StartFrom};
use crate::rocketmq::Assigned;
use crate::rocketmq::consumer::delivery::Batch;
use crate::rocketmq::core::Command as CoreCommand;
use crate::work::sync::locked;

const PATIENCE: Duration = Duration::from_secs(20);

fn linked(broker: &Broker) -> (Client, Arc<Link>) {
    let (client, link) = broker.linked(Client::builder().workers(1)).unwrap();
    (client, link.unwrap())
}

fn is_closed(link: &Link) -> bool {
    link.closed.load(Ordering::SeqCst)
}

fn until(what: &str, mut done: impl FnMut() -> bool) {
    let end = Instant::now() + PATIENCE;
    while !done() {
        assert!(Instant::now() < end, "never came: {what}");
        std::thread::yield_now();
    }
}

fn waiting(link: &Link) -> usize {
    locked(&link.desk.waiting).len()
}

/// The answers to pulls that are given up are awaited no more.
#[test]
fn a_consumer_that_has_stopped_leaves_nothing_on_the_desk() {
    let broker = Broker::ephemeral().topic("orders", 4).start().unwrap();
    let (client, link) = linked(&broker);
    let consumer = client.push_consumer("G").subscribe("orders", "*").handler(|_| ()).start().unwrap();
    until("held pulls", || waiting(&link) >= 4);
    assert!(consumer.shutdown(PATIENCE).is_clean());
    assert_eq!(waiting(&link), 0);
}

/// A handler that stops its client cannot wait for its end: the loop closes the way when it gets there.
#[test]
fn a_stop_from_inside_a_handler_closes_the_way() {
    let broker = Broker::ephemeral().topic("orders", 1).start().unwrap();
    let (client, link) = linked(&broker);
    let inner = client.clone();
    let consumer = client.push_consumer("G").subscribe("orders", "*").start_from(StartFrom::First);
    let _consumer = consumer.handler(move |_| drop(inner.shutdown(PATIENCE))).start().unwrap();
    client.producer("p").start().unwrap().send(Message::new("orders", "x")).unwrap();
    until("the end", || is_closed(&link));
}

/// A loop that has ended by itself closes nothing: who stops the client does. Whoever waits hears of it.
#[test]
fn a_client_whose_loop_has_ended_closes_the_way_when_it_is_stopped() {
    let broker = Broker::ephemeral().topic("orders", 1).start().unwrap();
    let (client, link) = linked(&broker);
    let done: Done = Box::new(|_| panic!("on purpose"));
    let (to, timeout) = (Some("no address".into()), Duration::from_secs(3));
    client.shared().post(CoreCommand::Call { to, frame: Vec::new(), timeout, done: Some(done) }).unwrap();
    until("the end of the loop", || client.shared().post(CoreCommand::Room).is_err());
    assert!(!is_closed(&link));
    let (giver, answered) = pair();
    link.desk.put(request::SEND_MESSAGE_V2, Waits::Thread(giver));
    client.shutdown(Duration::from_secs(1));
    assert!(is_closed(&link));
    assert!(matches!(answered.poll(), Some(Err(CallError::Disconnected { .. }))));
}

/// A client that is being stopped for longer than the broker waits for it is a guest no more.
#[test]
fn a_broker_that_stops_lets_go_of_a_client_that_a_handler_holds_up() {
    let broker = Broker::ephemeral().topic("orders", 1).start().unwrap();
    let (client, link) = linked(&broker);
    let (began, begun) = crossbeam_channel::bounded(1);
    let (go, may_go) = crossbeam_channel::bounded::<()>(1);
    let consumer = client.push_consumer("G").subscribe("orders", "*").start_from(StartFrom::First);
    let handler = move |_: &Batch<'_>| {
        let _first = began.try_send(());
        let _go = may_go.recv_timeout(PATIENCE);
    };
    let consumer = consumer.handler(handler).start().unwrap();
    client.producer("p").start().unwrap().send(Message::new("orders", "x")).unwrap();
    begun.recv_timeout(PATIENCE).unwrap();
    std::thread::scope(|scope| {
        let stopping = client.clone();
        let stop = scope.spawn(move || stopping.shutdown(Duration::from_secs(3)));
        let given_up = |queue: &Assigned| queue.waits.as_deref() == Some("given up");
        until("the stop", || consumer.assigned().is_ok_and(|queues| queues.iter().any(given_up)));
        link.stop();
        assert!(is_closed(&link));
        go.send(()).unwrap();
        stop.join().unwrap();
    });
    drop(broker);
}

/// Answers for which the inbox had no place reach the loop once it has emptied it.
#[test]
fn answers_that_found_no_place_are_taken_when_the_inbox_is_empty() {
    let broker = Broker::ephemeral().topic("orders", 1).start().unwrap();
    let (client, link) = linked(&broker);
    let (go, may_go) = crossbeam_channel::bounded::<()>(1);
    let (began, begun) = crossbeam_channel::bounded(1);
    // The loop stands still meanwhile.
    let done: Done = Box::new(move |_| {
        let _first = began.try_send(());
        let _go = may_go.recv_timeout(PATIENCE);
    });
    let (to, timeout) = (Some("no address".into()), Duration::from_secs(3));
    client.shared().post(CoreCommand::Call { to, frame: Vec::new(), timeout, done: Some(done) }).unwrap();
    begun.recv_timeout(PATIENCE).unwrap();
    for number in 0..2_000 {
        link.desk.post(News::Answered { ticket: Ticket(number << 40), result: Err(CallError::Closed) });
    }
    assert!(link.desk.has_late());
    go.send(()).unwrap();
    until("the late answers", || !link.desk.has_late());
}
