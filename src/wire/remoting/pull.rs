//! Pulling: codes 11 and 361. The answer's body is stored messages one after the other, see [`super::record`].

use std::borrow::Cow;

use super::header::header;

header! {
    hot
    /// Asks for messages of one queue from an offset.
    pub struct PullRequest<'a> {
        /// Group of the consumer.
        consumer_group: Cow<'a, str> = "consumerGroup";
        /// Topic of the queue.
        topic: Cow<'a, str> = "topic";
        /// The queue.
        queue_id: i32 = "queueId";
        /// From which offset.
        queue_offset: i64 = "queueOffset";
        /// At most so many messages.
        max_messages: i32 = "maxMsgNums";
        /// See [`super::codes::pull_flag`].
        sys_flag: i32 = "sysFlag";
        /// Offset to commit on the way, if the flag says so.
        commit_offset: i64 = "commitOffset" else 0;
        /// How long the broker may hold the request when there is nothing, in ms.
        suspend_ms: i64 = "suspendTimeoutMillis" else 0;
        /// The subscription, if the flag says that it is here.
        subscription: Option<Cow<'a, str>> = "subscription";
        /// Version of the subscription; the broker compares it with the heartbeat's.
        sub_version: i64 = "subVersion" else 0;
        /// `TAG` or `SQL92`; absent: `TAG`.
        expression_type: Option<Cow<'a, str>> = "expressionType";
        /// At most so many bytes (5.x).
        max_bytes: Option<i32> = "maxMsgBytes";
        /// Who asks: -1 a client, 0 to 2 a proxy (5.x).
        request_source: Option<i32> = "requestSource";
        /// Client behind a proxy (5.x). Spelled so.
        proxy_forward_client_id: Option<Cow<'a, str>> = "proxyFrowardClientId";
        /// Name of the broker that is meant; proxies need it.
        broker_name: Option<Cow<'a, str>> = "bname";
    }
}

header! {
    hot
    /// Where the queue stands; with codes 0, 19, 20 and 21 always there.
    pub struct PullAnswer {
        /// Id of the broker to pull from next, 0 is the master.
        suggest_broker_id: i64 = "suggestWhichBrokerId" else 0;
        /// Offset to pull from next.
        next_begin_offset: i64 = "nextBeginOffset";
        /// First offset of the queue.
        min_offset: i64 = "minOffset";
        /// One past the last offset of the queue.
        max_offset: i64 = "maxOffset";
        /// To be added to every offset (static topics, 5.x).
        offset_delta: Option<i64> = "offsetDelta";
        /// The topic's flags (5.x).
        topic_sys_flag: Option<i32> = "topicSysFlag";
        /// The group's flags (5.x).
        group_sys_flag: Option<i32> = "groupSysFlag";
        /// Why nothing may be pulled: 1 broker, 2 group, 3 topic, 4 broadcasting, 5 subscription (5.x).
        forbidden_type: Option<i32> = "forbiddenType";
    }
}

impl PullAnswer {
    /// An answer with the offsets alone, as 4.9.x writes it.
    pub fn at(next_begin_offset: i64, min_offset: i64, max_offset: i64) -> Self {
        Self {
            suggest_broker_id: 0,
            next_begin_offset,
            min_offset,
            max_offset,
            offset_delta: None,
            topic_sys_flag: None,
            group_sys_flag: None,
            forbidden_type: None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::command::{Codec, Command, Head, write};
    use super::super::header::ReadHeader;
    use super::*;
    use crate::error::WireError;

    #[test]
    fn a_pull_answer_reads_back() {
        for codec in [Codec::Json, Codec::Binary] {
            // Few fields are read where they are remembered, many by a walk.
            for others in [0, 11, 12, 40] {
                let others: Vec<(String, &str)> = (0..others).map(|at| (format!("x{at}"), "-1")).collect();
                let others: Vec<(&str, &str)> = others.iter().map(|(name, value)| (&**name, *value)).collect();
                let answer = PullAnswer { forbidden_type: Some(2), ..PullAnswer::at(42, -1, i64::MAX) };
                let mut out = Vec::new();
                let fields = (others.as_slice(), &answer);
                write(&mut out, codec, &Head::answer(0, 7).remark("FOUND"), &fields, b"records").unwrap();
                let command = Command::read(out.get(4..).unwrap()).unwrap();
                assert_eq!(PullAnswer::read(&command.fields), Ok(answer));
                let mut out = Vec::new();
                write(&mut out, codec, &Head::answer(0, 7), others.as_slice(), &[]).unwrap();
                let command = Command::read(out.get(4..).unwrap()).unwrap();
                let missing = WireError::MissingField { field: "nextBeginOffset" };
                assert_eq!(PullAnswer::read(&command.fields), Err(missing));
            }
        }
    }
}
