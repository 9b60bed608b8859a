//! Messages and events as JSON objects, the forms that scripts rely on.

use crate::output::base64;
use serde_json::{Map, Value, json};
use windlass::{Delivery, Event, Queue, QueueOffset};

/// One message. `body` if it is text, else `body_base64`.
pub fn message(message: &Delivery<'_>) -> Value {
    let queue = message.queue();
    let properties: Map<String, Value> =
        message.properties().map(|(name, value)| (name.to_owned(), value.into())).collect();
    let mut object = json!({
        "topic": message.topic(),
        "broker": &*queue.broker,
        "queue": queue.id,
        "offset": message.offset().0,
        "message_id": message.message_id(),
        "unique_key": message.unique_key(),
        "tag": message.tag(),
        "keys": message.keys().collect::<Vec<_>>(),
        "reconsume_times": message.redeliveries(),
        "born_ms": message.born_ms(),
        "store_ms": message.stored_ms(),
        "properties": properties,
    });
    match std::str::from_utf8(message.body()) {
        Ok(text) => object["body"] = text.into(),
        Err(_binary) => object["body_base64"] = base64(message.body()).into(),
    }
    object
}

/// One event: `event` is its name, the rest are its facts.
pub fn event(event: &Event) -> Value {
    let mut object = Map::new();
    object.insert("event".into(), event.name().into());
    let mut put = |name: &str, value: Value| {
        object.insert(name.into(), value);
    };
    match event {
        Event::Assigned { group, queue, from } => place(&mut put, group, queue, &[("from", offset(*from))]),
        Event::Revoked { group, queue, committed, unfinished } => {
            let facts = [("committed", committed.map_or(Value::Null, offset)), ("unfinished", json!(unfinished))];
            place(&mut put, group, queue, &facts);
        }
        Event::Paused { group, queue, why } => place(&mut put, group, queue, &[("why", why.to_string().into())]),
        Event::Resumed { group, queue } => place(&mut put, group, queue, &[]),
        Event::Stuck { group, queue, messages } => place(&mut put, group, queue, &[("messages", json!(messages))]),
        Event::PullFailed { group, queue, detail, times } => {
            place(&mut put, group, queue, &[("detail", json!(detail)), ("times", json!(times))]);
        }
        Event::NoAnswer { group, queue, lasted, waits } => {
            place(&mut put, group, queue, &[("lasted_ms", json!(lasted.as_millis() as u64)), ("waits", json!(waits))]);
        }
        Event::DamagedRecord { group, queue, offset: at, physical, size, head, dead_lettered } => {
            let facts = [
                ("offset", offset(*at)),
                ("physical", json!(physical)),
                ("size", json!(size)),
                ("head_base64", base64(head).into()),
                ("dead_lettered", json!(dead_lettered)),
            ];
            place(&mut put, group, queue, &facts);
        }
        Event::DeadLetter { group, queue, offset: at, reason } => {
            place(&mut put, group, queue, &[("offset", offset(*at)), ("reason", json!(reason))]);
        }
        Event::SendBackFailed { group, queue, offset: at, detail } => {
            place(&mut put, group, queue, &[("offset", offset(*at)), ("detail", json!(detail))]);
        }
        Event::CommitFailed { group, queue, offset: at, error, times } => {
            let facts = [("offset", offset(*at)), ("detail", json!(error.to_string())), ("times", json!(times))];
            place(&mut put, group, queue, &facts);
        }
        Event::OffsetCorrected { group, queue, from, to } => {
            place(&mut put, group, queue, &[("from", offset(*from)), ("to", offset(*to))]);
        }
        Event::StartFailed { group, queue, detail } | Event::HandlerFailed { group, queue, detail } => {
            place(&mut put, group, queue, &[("detail", json!(detail))]);
        }
        Event::RouteFailed { topic, detail } => {
            put("topic", text(topic));
            put("detail", json!(detail));
        }
        Event::NotBalanced { group, topic, detail } | Event::SubscriptionDiffers { group, topic, detail } => {
            put("group", text(group));
            put("topic", text(topic));
            put("detail", json!(detail));
        }
        Event::ConnectionLost { addr, why } => {
            put("addr", text(addr));
            put("why", json!(why));
        }
        Event::HeartbeatFailed { addr, detail } => {
            put("addr", text(addr));
            put("detail", json!(detail));
        }
        Event::ClientEnded { detail } => put("detail", json!(detail)),
        Event::Missed { events } => put("events", json!(events)),
        // a kind that is younger than this command
        other => put("text", other.to_string().into()),
    }
    Value::Object(object)
}

fn place(put: &mut impl FnMut(&str, Value), group: &str, queue: &Queue, facts: &[(&str, Value)]) {
    put("group", text(group));
    put("topic", text(&queue.topic));
    put("broker", text(&queue.broker));
    put("queue", queue.id.into());
    for (name, value) in facts {
        put(name, value.clone());
    }
}

fn text(text: &str) -> Value {
    text.into()
}

fn offset(offset: QueueOffset) -> Value {
    offset.0.into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_event_is_its_name_and_its_facts() {
        let queue = Queue::new("t", "b", 3);
        let told = event(&Event::Revoked { group: "g".into(), queue, committed: Some(QueueOffset(7)), unfinished: 1 });
        let want = json!({"event": "revoked", "group": "g", "topic": "t", "broker": "b", "queue": 3, "committed": 7, "unfinished": 1});
        assert_eq!(told, want);
        assert_eq!(event(&Event::Missed { events: 2 }), json!({"event": "missed", "events": 2}));
        let told = event(&Event::HeartbeatFailed { addr: "h:1".into(), detail: "code 1".into() });
        assert_eq!(told, json!({"event": "heartbeat failed", "addr": "h:1", "detail": "code 1"}));
    }
}
