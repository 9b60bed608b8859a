//! Several messages of one topic in one request, stored together or not at all.
//!
//! Source: apache/rocketmq@rocketmq-all-5.3.3 client/src/main/java/org/apache/rocketmq/client/producer/DefaultMQProducer.java
//! (batch), common/src/main/java/org/apache/rocketmq/common/message/MessageBatch.java

use std::time::Instant;

use crate::error::Error;
use crate::model::{Message, names};
use crate::wire::remoting::batch;

use super::check;
use super::outcome::{BatchError, BatchReceipt};
use super::parcel::Parcel;
use super::send::{Producer, deliver};
use super::settings::Settings;
use super::unique::{self, MessageId};

impl Producer {
    /// Sends messages of one topic in one request; all are stored in one queue, one after the other, or none is.
    ///
    /// They are encoded together: at most `max_message_size`, never compressed, without delays, not to a retry topic.
    ///
    /// # Errors
    /// [`BatchError`] gives all messages back.
    pub fn send_batch(&self, messages: Vec<Message>) -> Result<BatchReceipt, Box<BatchError>> {
        let core = self.core();
        let result = core.is_open().and_then(|()| {
            let (parcel, ids) = packed(&messages, &core.settings, core.shared.clock().wall_ms())?;
            let name = messages.first().map_or("", Message::topic);
            let topic = core.topics.find(name, &core.shared);
            let first = deliver(core, &topic, &parcel, &[], None, Instant::now())?;
            Ok(BatchReceipt { queue: first.queue, first: first.offset, status: first.status, message_ids: ids })
        });
        result.map_err(|cause| Box::new(BatchError::new(messages, cause)))
    }
}

/// Checks and encodes a batch.
fn packed(messages: &[Message], settings: &Settings, wall_ms: i64) -> Result<(Parcel, Vec<MessageId>), Error> {
    let refused = |reason| Error::Message { reason };
    let Some(first) = messages.first() else { return Err(refused("the batch is empty")) };
    if names::group_of_retry_topic(first.topic()).is_some() {
        return Err(refused("a batch may not go to a retry topic"));
    }
    let (mut body, mut ids) = (Vec::new(), Vec::with_capacity(messages.len()));
    for message in messages {
        if message.topic() != first.topic() {
            return Err(refused("the messages of a batch have different topics"));
        }
        if message.delay_level().is_some() {
            return Err(refused("a message of a batch may not be delayed"));
        }
        check::message(message, settings.max_message_size).map_err(refused)?;
        let id = unique::ids().next(wall_ms);
        let properties = check::properties(message, &id).map_err(refused)?;
        let entry = batch::Entry { flag: message.flag_bits(), body: message.body(), properties: properties.as_bytes() };
        // Looked at before it is encoded: a batch never takes much more memory than it may have bytes.
        if body.len() + batch::entry_len(&entry) > settings.max_message_size {
            return Err(refused("the batch is longer than max_message_size"));
        }
        batch::push(&mut body, &entry)?;
        ids.push(id);
    }
    // No id here: a broker appends this text to every entry, and the later of two ids would win.
    let parcel = Parcel::batch(first_of(&ids), body, "WAIT\u{1}true\u{2}".to_owned(), wall_ms);
    Ok((parcel, ids))
}

fn first_of(ids: &[MessageId]) -> MessageId {
    ids.first().copied().unwrap_or_else(|| unique::ids().next(0))
}

#[cfg(test)]
mod tests {
    use super::super::settings::Asked;
    use super::*;
    use crate::model::DelayLevel;
    use crate::wire::remoting::properties::Properties;

    fn settings() -> Settings {
        Settings::checked("g".into(), Asked { max_message_size: Some(1000), ..Asked::default() }).unwrap()
    }

    fn refused(messages: &[Message]) -> &'static str {
        match packed(messages, &settings(), 1) {
            Err(Error::Message { reason }) => reason,
            other => panic!("{:?}", other.map(|_| ())),
        }
    }

    #[test]
    fn b195_a_batch_is_one_topic_without_delay_retry_or_excess() {
        let plain = || Message::new("t", "b");
        assert!(refused(&[]).contains("empty"));
        assert!(refused(&[plain(), Message::new("u", "b")]).contains("different topics"));
        assert!(refused(&[plain(), plain().delay(DelayLevel::MAX)]).contains("delayed"));
        assert!(refused(&[Message::new("%RETRY%g", "b")]).contains("retry"));
        assert!(refused(&[plain(), Message::new("t", "")]).contains("empty"));
        let long = Message::new("t", vec![1; 400]);
        assert!(packed(&[long.clone(), long.clone()], &settings(), 1).is_ok());
        assert!(refused(&[long.clone(), long.clone(), long]).contains("max_message_size"));
    }

    #[test]
    fn each_message_of_a_batch_has_an_id_of_its_own_and_the_batch_has_none() {
        let messages = [Message::new("t", "a").tag("x"), Message::new("t", "b").flag(7)];
        let (parcel, ids) = packed(&messages, &settings(), 1).unwrap();
        let entries: Vec<_> = batch::entries(parcel.body(&[])).collect::<Result<_, _>>().unwrap();
        let found: Vec<_> = entries
            .iter()
            .map(|entry| Properties::new(entry.properties).find("UNIQ_KEY").unwrap_or_default().to_owned())
            .collect();
        assert_eq!(found, ids.iter().map(|id| id.as_str().to_owned()).collect::<Vec<_>>());
        assert_eq!(
            entries.iter().map(|entry| (entry.body, entry.flag)).collect::<Vec<_>>(),
            [(&b"a"[..], 0), (b"b", 7)]
        );
        assert_ne!(ids[0], ids[1]);
    }
}
