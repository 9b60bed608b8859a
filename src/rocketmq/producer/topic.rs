//! A topic as one producer sees it: its route, the turn of its queues, and the template's queues while it has no route.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Instant;

use crate::error::Error;
use crate::model::Queue;
use crate::rocketmq::client::Shared;
use crate::rocketmq::route::{PublishQueue, Route, RouteCell};
use crate::work::ranks::{Rank, Ranked};

use super::choice::{Cursor, OnBroker};
use super::settings::Settings;

impl OnBroker for PublishQueue {
    fn broker(&self) -> &str {
        &self.queue.broker
    }
}

/// One topic that a producer sends to.
#[derive(Debug)]
pub(super) struct Topic {
    pub(super) name: Arc<str>,
    cell: Arc<RouteCell>,
    cursor: Cursor,
    /// Queues by the template, while the topic itself has no route.
    template: Ranked<Option<Arc<[PublishQueue]>>>,
}

impl Topic {
    /// The queue for the next attempt, on another broker than `avoid` if there is one. Waits for the route until
    /// `deadline` if none is known.
    pub(super) fn choose(
        &self,
        shared: &Shared,
        settings: &Settings,
        avoid: Option<&str>,
        deadline: Instant,
    ) -> Result<PublishQueue, Error> {
        if let Some(route) = self.cell.load() {
            return self.cursor.next(&route.publish, avoid).cloned().ok_or_else(|| self.no_queue());
        }
        let queues = self.queues(shared, settings, deadline)?;
        self.cursor.next(&queues, avoid).cloned().ok_or_else(|| self.no_queue())
    }

    /// The template is asked for again: what was known of it has led nowhere.
    pub(super) fn forget_template(&self) {
        *self.template.lock() = None;
    }

    /// A queue by what is known already, for threads that may not wait.
    pub(super) fn choose_known(&self, avoid: &str) -> Option<PublishQueue> {
        if let Some(route) = self.cell.load() {
            return self.cursor.next(&route.publish, Some(avoid)).cloned();
        }
        let template = self.template.lock().clone()?;
        self.cursor.next(&template, Some(avoid)).cloned()
    }

    /// Every queue that can be sent to, by broker name, then id. Waits as [`choose`](Self::choose).
    pub(super) fn queues(
        &self,
        shared: &Shared,
        settings: &Settings,
        deadline: Instant,
    ) -> Result<Arc<[PublishQueue]>, Error> {
        if let Some(route) = self.cell.load() {
            return Ok(route.publish.as_slice().into());
        }
        if let Some(queues) = self.template.lock().clone() {
            return Ok(queues);
        }
        let route = match shared.route(&self.name, deadline) {
            Ok(route) => return Ok(route.publish.as_slice().into()),
            // The broker makes the topic from its template when the first message comes. Until its route is known, the
            // queues are those that the template will give it.
            Err(unknown @ Error::UnknownTopic { .. }) => {
                shared.route(&settings.template_topic, deadline).map_err(|_| unknown)?
            }
            Err(error) => return Err(error),
        };
        let queues = from_template(&self.name, &route, settings.template_queues);
        if queues.is_empty() {
            return Err(Error::UnknownTopic { topic: self.name.to_string() });
        }
        *self.template.lock() = Some(Arc::clone(&queues));
        Ok(queues)
    }

    /// The address of a queue's broker.
    pub(super) fn find(
        &self,
        shared: &Shared,
        settings: &Settings,
        queue: &Queue,
        deadline: Instant,
    ) -> Result<PublishQueue, Error> {
        let queues = self.queues(shared, settings, deadline)?;
        queues.iter().find(|known| known.queue == *queue).cloned().ok_or_else(|| {
            let named = Some(format!("{}/{}", queue.broker, queue.id));
            Error::NoQueue { topic: self.name.to_string(), queue: named, wanted: "write" }
        })
    }

    fn no_queue(&self) -> Error {
        Error::NoQueue { topic: self.name.to_string(), queue: None, wanted: "write" }
    }
}

/// The queues `topic` will have on each broker of the template's route: at most `most`.
fn from_template(topic: &Arc<str>, template: &Route, most: i32) -> Arc<[PublishQueue]> {
    let named = |known: &PublishQueue| PublishQueue {
        queue: Queue { topic: Arc::clone(topic), ..known.queue.clone() },
        addr: Arc::clone(&known.addr),
    };
    template.publish.iter().filter(|known| known.queue.id < most).map(named).collect()
}

/// The topics of one producer. Lock: rank 1, for a look-up.
#[derive(Debug)]
pub(super) struct Topics {
    by_name: Ranked<HashMap<Arc<str>, Arc<Topic>>>,
}

impl Topics {
    pub(super) fn new() -> Self {
        Self { by_name: Ranked::new(Rank::Tables, HashMap::new()) }
    }

    /// The topic of this name, which must have been checked.
    pub(super) fn find(&self, name: &str, shared: &Shared) -> Arc<Topic> {
        if let Some(topic) = self.by_name.lock().get(name) {
            return Arc::clone(topic);
        }
        // Outside the lock: the client's table has one of the same rank.
        let cell = shared.route_cell(name);
        let name: Arc<str> = name.into();
        let new = || {
            let cursor = Cursor::starting_at(super::unique::random());
            let template = Ranked::new(Rank::Tables, None);
            Arc::new(Topic { name: Arc::clone(&name), cell, cursor, template })
        };
        Arc::clone(self.by_name.lock().entry(Arc::clone(&name)).or_insert_with(new))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::remoting::route::{BrokerBody, QueuesBody, RouteBody};

    #[test]
    fn b190_an_unknown_topic_has_the_template_s_queues_at_most_four_of_each_broker() {
        let broker = |name: &str| BrokerBody {
            broker_name: name.into(),
            broker_addrs: [(0, format!("{name}:1"))].into(),
            ..BrokerBody::default()
        };
        let queues = |name: &str, n| QueuesBody {
            broker_name: name.into(),
            read_queue_nums: n,
            write_queue_nums: n,
            perm: 7,
            ..QueuesBody::default()
        };
        let data = RouteBody {
            brokers: vec![broker("a"), broker("b")],
            queues: vec![queues("a", 8), queues("b", 2)],
            ..RouteBody::default()
        };
        let template = Route::build("TBW102", &data, str::to_owned);
        let made = from_template(&"orders".into(), &template, 4);
        let text: Vec<String> = made.iter().map(|known| format!("{} {}", known.queue, known.addr)).collect();
        assert_eq!(
            text,
            [
                "orders/a/0 a:1",
                "orders/a/1 a:1",
                "orders/a/2 a:1",
                "orders/a/3 a:1",
                "orders/b/0 b:1",
                "orders/b/1 b:1"
            ]
        );
    }
}
