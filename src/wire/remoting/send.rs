//! Sending: codes 10, 310 and 320 (and the headers of replies, 324 and 325), and sending a failed message back, 36.

use std::borrow::Cow;

use super::fields::{FieldWriter, Fields, Value};
use super::header::{Field, WriteHeader, header};
use crate::error::WireError;

/// How the fields of a send are called.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Names {
    /// By words: codes 10 and 324.
    Long,
    /// By one letter each: codes 310, 320 and 325.
    Short,
}

/// Long and short name of each field, in the order of the letters.
const NAMES: [(&str, &str); 14] = [
    ("producerGroup", "a"),
    ("topic", "b"),
    ("defaultTopic", "c"),
    ("defaultTopicQueueNums", "d"),
    ("queueId", "e"),
    ("sysFlag", "f"),
    ("bornTimestamp", "g"),
    ("flag", "h"),
    ("properties", "i"),
    ("reconsumeTimes", "j"),
    ("unitMode", "k"),
    ("maxReconsumeTimes", "l"),
    ("batch", "m"),
    ("bname", "n"),
];

impl Names {
    /// Which of them a send with this code uses; `None` if the code is no send.
    pub fn of_code(code: i32) -> Option<Self> {
        match code {
            10 | 324 => Some(Self::Long),
            310 | 320 | 325 => Some(Self::Short),
            _ => None,
        }
    }

    fn name(self, at: usize) -> &'static str {
        NAMES.get(at).map_or("", |(long, short)| match self {
            Self::Long => long,
            Self::Short => short,
        })
    }

    fn position(self, name: &Value<'_>) -> Option<usize> {
        (0..NAMES.len()).find(|at| name.is(self.name(*at)))
    }
}

/// A message to be stored; its body is the command's.
///
/// Source: apache/rocketmq@rocketmq-all-5.3.3
/// remoting/src/main/java/org/apache/rocketmq/remoting/protocol/header/{SendMessageRequestHeader,SendMessageRequestHeaderV2}.java
#[derive(Clone, Debug, Default, PartialEq)]
pub struct SendRequest<'a> {
    /// Group of the producer.
    pub producer_group: Cow<'a, str>,
    /// Topic to send to.
    pub topic: Cow<'a, str>,
    /// Template for a topic that does not exist yet, `TBW102`.
    pub default_topic: Cow<'a, str>,
    /// Queues of a topic made from the template.
    pub default_topic_queue_nums: i32,
    /// Queue to send to; below 0: the broker chooses.
    pub queue_id: i32,
    /// See [`super::codes::sys_flag`].
    pub sys_flag: i32,
    /// When the message was made, in ms since 1970.
    pub born_ms: i64,
    /// The application's own 32 bits.
    pub flag: i32,
    /// Properties text, see [`super::properties`].
    pub properties: Option<Cow<'a, str>>,
    /// How often the message has been given back, in sends to a retry topic.
    pub reconsume_times: Option<i32>,
    /// Legacy.
    pub unit_mode: Option<bool>,
    /// How often the message may be given back, in sends to a retry topic.
    pub max_reconsume_times: Option<i32>,
    /// The body is a batch.
    pub batch: Option<bool>,
    /// Name of the broker that is meant; proxies need it.
    pub broker_name: Option<Cow<'a, str>>,
}

impl<'a> SendRequest<'a> {
    /// Reads it.
    ///
    /// # Errors
    /// `MissingField`, `BadNumber`, `BadText`, each naming the field.
    pub fn read(names: Names, fields: &Fields<'a>) -> Result<Self, WireError> {
        let mut read = Self::default();
        let mut seen = 0u32;
        for (name, value) in fields.iter() {
            let Some(at) = names.position(&name) else { continue };
            let name = names.name(at);
            seen |= 1 << at;
            match at {
                0 => read.producer_group = value.text(name)?,
                1 => read.topic = value.text(name)?,
                2 => read.default_topic = value.text(name)?,
                3 => read.default_topic_queue_nums = value.i32(name)?,
                4 => read.queue_id = value.i32(name)?,
                5 => read.sys_flag = value.i32(name)?,
                6 => read.born_ms = value.i64(name)?,
                7 => read.flag = value.i32(name)?,
                8 => read.properties = Some(value.text(name)?),
                9 => read.reconsume_times = Some(value.i32(name)?),
                10 => read.unit_mode = Some(value.bool()),
                11 => read.max_reconsume_times = Some(value.i32(name)?),
                12 => read.batch = Some(value.bool()),
                _ => read.broker_name = Some(value.text(name)?),
            }
        }
        match (0..8).find(|at| seen & 1 << at == 0) {
            Some(at) => Err(WireError::MissingField { field: names.name(at) }),
            None => Ok(read),
        }
    }

    /// To be written with these names.
    pub fn named(&self, names: Names) -> Named<'_, 'a> {
        Named { request: self, names }
    }
}

/// A send with the names of its fields chosen.
#[derive(Clone, Copy, Debug)]
pub struct Named<'r, 'a> {
    request: &'r SendRequest<'a>,
    names: Names,
}

impl WriteHeader for Named<'_, '_> {
    fn write(&self, out: &mut FieldWriter<'_>) {
        let (request, name) = (self.request, |at| self.names.name(at));
        out.text(name(0), &request.producer_group);
        out.text(name(1), &request.topic);
        out.text(name(2), &request.default_topic);
        out.number(name(3), i64::from(request.default_topic_queue_nums));
        out.number(name(4), i64::from(request.queue_id));
        out.number(name(5), i64::from(request.sys_flag));
        out.number(name(6), request.born_ms);
        out.number(name(7), i64::from(request.flag));
        request.properties.write(name(8), out);
        request.reconsume_times.write(name(9), out);
        request.unit_mode.write(name(10), out);
        request.max_reconsume_times.write(name(11), out);
        request.batch.write(name(12), out);
        request.broker_name.write(name(13), out);
    }
}

header! {
    hot
    /// Where a message was stored.
    pub struct SendAnswer<'a> {
        /// Offset id, see [`super::message_id`]; of a batch, one for each message, joined by commas.
        msg_id: Cow<'a, str> = "msgId";
        /// Queue it is in.
        queue_id: i32 = "queueId";
        /// Offset in the queue, of a batch that of the first message.
        queue_offset: i64 = "queueOffset";
        /// The unique id again (5.x).
        transaction_id: Option<Cow<'a, str>> = "transactionId";
        /// Set when the batch is stored as one record (5.x).
        batch_uniq_id: Option<Cow<'a, str>> = "batchUniqId";
        /// With which a timer message can be taken back (5.x).
        recall_handle: Option<Cow<'a, str>> = "recallHandle";
        /// Region of the broker, `DefaultRegion`. Java clients follow the map of fields without looking.
        region: Option<Cow<'a, str>> = "MSG_REGION";
        /// Whether the broker wants messages traced.
        trace_on: Option<bool> = "TRACE_ON";
    }
}

header! {
    /// A failed message goes to its group's retry topic, or to the dead letters. Without a body.
    pub struct SendBackRequest<'a> {
        /// Physical offset of the message in the broker's log.
        offset: i64 = "offset";
        /// Group that failed.
        group: Cow<'a, str> = "group";
        /// 0: the broker chooses by the number of redeliveries; below 0: dead letter at once; else this level.
        delay_level: i32 = "delayLevel";
        /// Unique id of the message.
        origin_msg_id: Option<Cow<'a, str>> = "originMsgId";
        /// Topic of the message.
        origin_topic: Option<Cow<'a, str>> = "originTopic";
        /// Legacy.
        unit_mode: bool = "unitMode" else false;
        /// How often the message may be given back before it is a dead letter.
        max_reconsume_times: Option<i32> = "maxReconsumeTimes";
        /// Name of the broker that is meant; proxies need it.
        broker_name: Option<Cow<'a, str>> = "bname";
    }
}

#[cfg(test)]
mod tests {
    use super::super::command::{Codec, Command, Head, write};
    use super::*;

    #[test]
    fn a_send_reads_back_under_both_names() {
        let request = SendRequest {
            producer_group: "PG".into(),
            topic: "T".into(),
            default_topic: "TBW102".into(),
            default_topic_queue_nums: 4,
            queue_id: -1,
            sys_flag: 1,
            born_ms: 1_700_000_000_123,
            properties: Some("TAGS\u{1}a\u{2}".into()),
            unit_mode: Some(false),
            batch: Some(true),
            ..SendRequest::default()
        };
        for codec in [Codec::Json, Codec::Binary] {
            for (names, code) in [(Names::Long, 10), (Names::Short, 310)] {
                let mut out = Vec::new();
                write(&mut out, codec, &Head::request(code, 1), &request.named(names), b"x").unwrap();
                let command = Command::read(out.get(4..).unwrap()).unwrap();
                assert_eq!(Names::of_code(command.code), Some(names));
                assert_eq!(SendRequest::read(names, &command.fields), Ok(request.clone()));
            }
        }
    }

    #[test]
    fn a_missing_field_is_named() {
        let mut out = Vec::new();
        write(&mut out, Codec::Json, &Head::request(310, 1), &[("b", "T")][..], &[]).unwrap();
        let command = Command::read(out.get(4..).unwrap()).unwrap();
        let error = SendRequest::read(Names::Short, &command.fields);
        assert_eq!(error, Err(WireError::MissingField { field: "a" }));
    }
}
