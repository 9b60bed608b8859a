//! The wire's form around what tools ask of a broker (`admin.rs`). Called by `command.rs`.

use std::sync::Arc;

use super::command::Call;
use super::dispatch::Refusal;
use super::groups::GroupSettings;
use super::members::Member;
use super::reply::Reply;
use super::topics::Topic;
use crate::model::SortedMap;
use crate::wire::json;
use crate::wire::remoting::codes::request;
use crate::wire::remoting::group::{
    ConnectionBody, ConsumerConnectionBody, ConsumerGroupRequest, ConsumerListBody, DeleteGroupRequest,
    GroupConfigBody, GroupListBody, ProducerConnectionBody, ProducerGroupRequest, SubscriptionBody,
};
use crate::wire::remoting::queue::QueueBody;
use crate::wire::remoting::topics::{
    ConsumeStatsBody, ConsumeStatsRequest, CreateTopicRequest, ProgressBody, QueueStatsBody, TableBody,
    TopicConfigBody, TopicRequest, TopicStatsBody,
};

/// Carries out a tool's request to the broker.
pub fn tools(call: &mut Call<'_, '_>) -> Result<Reply, Refusal> {
    let dispatcher = call.dispatcher;
    match call.command.code {
        request::UPDATE_AND_CREATE_TOPIC => {
            dispatcher.put_topic(topic_of(&call.header::<CreateTopicRequest<'_>>()?))?;
            Ok(Reply::done())
        }
        request::DELETE_TOPIC_IN_BROKER => {
            let end = dispatcher.delete_topic(&call.header::<TopicRequest<'_>>()?.topic, call.outbox)?;
            Ok(call.once_durable(end))
        }
        request::GET_TOPIC_CONFIG => {
            let topic = dispatcher.topic(&call.header::<TopicRequest<'_>>()?.topic)?;
            Ok(Reply::Body(json::to_vec(&TopicConfigBody::from(&*topic))))
        }
        request::GET_ALL_TOPIC_CONFIG => Ok(Reply::Body(json::to_vec(&dispatcher.topic_bodies()))),
        request::GET_TOPIC_STATS_INFO => topic_stats(call),
        request::GET_CONSUME_STATS => consume_stats(call),
        request::GET_BROKER_RUNTIME_INFO => Ok(Reply::Body(json::to_vec(&TableBody { table: dispatcher.figures() }))),
        request::GET_CONSUMER_CONNECTION_LIST => consumer_connections(call),
        request::GET_PRODUCER_CONNECTION_LIST => {
            let request = call.header::<ProducerGroupRequest<'_>>()?;
            let members = dispatcher.producer_connections(&request.producer_group)?;
            let connections = members.iter().map(connection).collect();
            Ok(Reply::Body(json::to_vec(&ProducerConnectionBody { connections })))
        }
        request::UPDATE_AND_CREATE_SUBSCRIPTIONGROUP => {
            let body: GroupConfigBody = json::read("group", call.command.body)?;
            dispatcher.put_group(GroupSettings::from(body))?;
            Ok(Reply::done())
        }
        request::GET_ALL_SUBSCRIPTIONGROUP_CONFIG => Ok(Reply::Body(json::to_vec(&dispatcher.group_bodies()))),
        request::DELETE_SUBSCRIPTIONGROUP => {
            let request = call.header::<DeleteGroupRequest<'_>>()?;
            let with_offsets = request.clean_offset == Some(true) || request.remove_offset == Some(true);
            dispatcher.delete_group(&request.group, with_offsets);
            Ok(Reply::done())
        }
        request::QUERY_TOPIC_CONSUME_BY_WHO => {
            let request = call.header::<TopicRequest<'_>>()?;
            let group_list = dispatcher.groups_of_topic(&request.topic);
            Ok(Reply::Body(json::to_vec(&GroupListBody { group_list })))
        }
        code => Err(Refusal::unsupported(code)),
    }
}

fn topic_of(request: &CreateTopicRequest<'_>) -> Topic {
    let mut attributes = SortedMap::new();
    for change in request.attributes.as_deref().unwrap_or_default().split(',') {
        if let Some((name, value)) = change.trim().strip_prefix('+').and_then(|set| set.split_once('=')) {
            attributes.insert(name.to_owned(), value.to_owned());
        }
    }
    Topic {
        name: (*request.topic).into(),
        read_queues: request.read_queues,
        write_queues: request.write_queues,
        perm: request.perm,
        multi_tag: request.filter_type == "MULTI_TAG",
        sys_flag: request.sys_flag.unwrap_or(0),
        order: request.order,
        attributes,
    }
}

fn topic_stats(call: &Call<'_, '_>) -> Result<Reply, Refusal> {
    let request = call.header::<TopicRequest<'_>>()?;
    let stats = call.dispatcher.topic_stats(&request.topic)?;
    let broker = &call.dispatcher.settings().broker;
    let queues = stats
        .iter()
        .map(|stats| {
            let queue = queue_body(&request.topic, broker, stats.queue);
            let body =
                QueueStatsBody { last_update_timestamp: stats.last_ms, max_offset: stats.max, min_offset: stats.min };
            (queue, body)
        })
        .collect();
    Ok(Reply::Body(json::to_vec(&TopicStatsBody { queues, topic_put_tps: Some(0.0) })))
}

fn consume_stats(call: &Call<'_, '_>) -> Result<Reply, Refusal> {
    let request = call.header::<ConsumeStatsRequest<'_>>()?;
    let one = request.topic.as_deref().filter(|topic| !topic.is_empty());
    let list = request.topic_list.as_deref().unwrap_or_default();
    let topics: Vec<&str> = one.into_iter().chain(list.split(';').filter(|topic| !topic.is_empty())).collect();
    let lags = call.dispatcher.consume_stats(&request.consumer_group, &topics);
    let broker = &call.dispatcher.settings().broker;
    let queues = lags
        .iter()
        .map(|lag| {
            let body = ProgressBody {
                broker_offset: lag.end,
                consumer_offset: lag.committed,
                last_timestamp: lag.last_ms,
                pull_offset: Some(lag.committed),
            };
            (queue_body(&lag.topic, broker, lag.queue), body)
        })
        .collect();
    Ok(Reply::Body(json::to_vec(&ConsumeStatsBody { consume_tps: 0.0, queues })))
}

fn consumer_connections(call: &Call<'_, '_>) -> Result<Reply, Refusal> {
    let request = call.header::<ConsumerGroupRequest<'_>>()?;
    let found = call.dispatcher.connections(&request.consumer_group)?;
    let subscriptions = found.subscriptions.iter();
    let body = ConsumerConnectionBody {
        connections: found.members.iter().map(connection).collect(),
        consume_from_where: found.manner.from_where,
        consume_type: found.manner.consume_type,
        message_model: found.manner.model,
        subscriptions: subscriptions.map(|s| (s.topic.to_string(), SubscriptionBody::from(s))).collect(),
    };
    Ok(Reply::Body(json::to_vec(&body)))
}

fn connection(member: &Member) -> ConnectionBody {
    ConnectionBody {
        client_addr: member.session.peer.to_string(),
        client_id: member.client.to_string(),
        language: Some(member.language.name().to_owned()),
        version: member.version,
    }
}

fn queue_body(topic: &str, broker: &str, queue: i32) -> QueueBody {
    QueueBody { broker_name: broker.to_owned(), queue_id: queue, topic: topic.to_owned() }
}

/// The body of 38.
pub fn consumer_list(clients: &[Arc<str>]) -> Vec<u8> {
    json::to_vec(&ConsumerListBody { client_ids: clients.iter().map(|client| client.to_string()).collect() })
}
