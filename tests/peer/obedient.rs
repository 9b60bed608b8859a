//! A push consumer whose handler tells each offset and does what it is told.

use std::time::Duration;

use crossbeam_channel::{Receiver, Sender, unbounded};
use windlass::{Client, Event, Outcome, PushConsumer, PushConsumerBuilder, StartFrom};

use super::PATIENCE;
use super::queue::TOPIC;

/// It runs. Nothing said for long is done.
pub struct Running {
    pub consumer: PushConsumer,
    pub seen: Receiver<i64>,
    pub go: Sender<Outcome>,
    pub events: Receiver<Event>,
}

impl Running {
    /// The offset of the next message that a handler has.
    pub fn next(&self) -> i64 {
        self.seen.recv_timeout(PATIENCE).unwrap()
    }

    /// The next event of this name; others are passed over.
    pub fn event(&self, name: &str) -> Event {
        loop {
            let event = self.events.recv_timeout(PATIENCE).unwrap_or_else(|_| panic!("no event {name}"));
            if event.name() == name {
                return event;
            }
        }
    }
}

/// Starts it.
pub fn run(client: &Client, change: impl FnOnce(PushConsumerBuilder) -> PushConsumerBuilder) -> Running {
    let ((tell, events), (told, seen), (go, may_go)) = (unbounded(), unbounded(), unbounded());
    let consumer = client
        .push_consumer("G")
        .subscribe(TOPIC, "*")
        .start_from(StartFrom::First)
        .pull_retry_delay(Duration::from_millis(30))
        .observer(move |event: &Event| drop(tell.send(event.clone())))
        .handler(move |batch| {
            for message in batch {
                let _ = told.send(message.offset().0);
            }
            may_go.recv_timeout(PATIENCE).unwrap_or(Outcome::Done)
        });
    Running { consumer: change(consumer).start().unwrap(), seen, go, events }
}
