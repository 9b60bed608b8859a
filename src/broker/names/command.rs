//! The wire's form around the name server's conversations. Called by `broker/command.rs` for connections that came
//! through the name server's listener.

use std::borrow::Cow;
use std::time::Duration;

use super::routes::{Identity, Registration};
use crate::broker::command::Call;
use crate::broker::dispatch::{Dispatcher, Refusal};
use crate::broker::reply::Reply;
use crate::broker::session::Session;
use crate::broker::topics::Topic;
use crate::wire::checksum::body_crc;
use crate::wire::json;
use crate::wire::remoting::codes::request;
use crate::wire::remoting::command::{Codec, Head, Language, write};
use crate::wire::remoting::register::{
    BrokerRequest, DataVersionAnswer, RegisterAnswer, RegisterBody, RegisterRequest,
};
use crate::wire::remoting::route::{RouteRequest, TopicListBody};
use crate::wire::remoting::topics::{DataVersion, TableBody, TopicRequest};

/// Carries out a request to the name server.
pub fn names(call: &mut Call<'_, '_>) -> Result<Reply, Refusal> {
    let dispatcher = call.dispatcher;
    match call.command.code {
        request::GET_ROUTEINFO_BY_TOPIC => {
            let request = call.header::<RouteRequest<'_>>()?;
            let route = dispatcher.route(call.session, &request.topic)?;
            Ok(Reply::Body(json::to_vec(&route)))
        }
        request::GET_BROKER_CLUSTER_INFO => Ok(Reply::Body(json::to_vec(&dispatcher.clusters(call.session)))),
        request::GET_ALL_TOPIC_LIST_FROM_NAMESERVER => {
            let body = TopicListBody { broker_addr: None, topic_list: dispatcher.all_topics() };
            Ok(Reply::Body(json::to_vec(&body)))
        }
        request::REGISTER_BROKER => register(call),
        request::UNREGISTER_BROKER => {
            dispatcher.unregister_broker(&identity(&call.header::<BrokerRequest<'_>>()?));
            Ok(Reply::done())
        }
        request::QUERY_DATA_VERSION => {
            let who = identity(&call.header::<BrokerRequest<'_>>()?);
            let theirs: DataVersion = json::read("data version", call.command.body)?;
            let (changed, known) = dispatcher.broker_version(&who, theirs.into());
            let body = known.map(|version| json::to_vec(&DataVersion::from(version))).unwrap_or_default();
            Ok(Reply::typed(DataVersionAnswer { changed }, body))
        }
        request::DELETE_TOPIC_IN_NAMESRV => {
            let request = call.header::<TopicRequest<'_>>()?;
            dispatcher.delete_route(&request.topic, request.cluster_name.as_deref());
            Ok(Reply::done())
        }
        request::WIPE_WRITE_PERM_OF_BROKER => write_perm(call, false, "wipeTopicCount"),
        request::ADD_WRITE_PERM_OF_BROKER => write_perm(call, true, "addTopicCount"),
        request::PUT_KV_CONFIG => {
            dispatcher.put_value(&call.field("namespace")?, &call.field("key")?, &call.field("value")?);
            Ok(Reply::done())
        }
        request::GET_KV_CONFIG => {
            let value = dispatcher.value(&call.field("namespace")?, &call.field("key")?)?;
            Ok(Reply::fields(vec![("value", value)]))
        }
        request::DELETE_KV_CONFIG => {
            dispatcher.delete_value(&call.field("namespace")?, &call.field("key")?);
            Ok(Reply::done())
        }
        request::GET_KVLIST_BY_NAMESPACE => {
            let table = dispatcher.values(&call.field("namespace")?)?;
            Ok(Reply::Body(json::to_vec(&TableBody { table })))
        }
        code => Err(Refusal::unsupported(code)),
    }
}

fn write_perm(call: &Call<'_, '_>, write: bool, field: &'static str) -> Result<Reply, Refusal> {
    let count = call.dispatcher.write_perm_of_broker(&call.field("brokerName")?, write);
    Ok(Reply::fields(vec![(field, count.to_string())]))
}

fn register(call: &Call<'_, '_>) -> Result<Reply, Refusal> {
    let request = call.header::<RegisterRequest<'_>>()?;
    let body = if call.command.body.is_empty() {
        RegisterBody::default()
    } else {
        RegisterBody::read(call.command.body, &request)?
    };
    let who = Identity {
        cluster: request.cluster_name.into_owned(),
        broker: request.broker_name.into_owned(),
        id: request.broker_id,
        addr: request.broker_addr.into_owned(),
    };
    let timeout = request.heartbeat_timeout_ms.and_then(|ms| u64::try_from(ms).ok()).map(Duration::from_millis);
    let registration = Registration {
        who,
        timeout,
        acting_master: request.enable_acting_master.unwrap_or(false),
        version: body.topics.data_version.into(),
        topics: body.topics.topics.into_iter().map(|(name, topic)| Topic::from_body(&name, topic)).collect(),
    };
    let table = call.dispatcher.register_broker(call.session, registration);
    let told = RegisterAnswer { ha_server_addr: Some(Cow::Borrowed("")), master_addr: Some(Cow::Borrowed("")) };
    let body = if table.is_empty() { Vec::new() } else { json::to_vec(&TableBody { table }) };
    Ok(Reply::typed(told, body))
}

fn identity(request: &BrokerRequest<'_>) -> Identity {
    Identity {
        cluster: request.cluster_name.to_string(),
        broker: request.broker_name.to_string(),
        id: request.broker_id,
        addr: request.broker_addr.to_string(),
    }
}

/// Writes this broker's registration, to be sent to a name server elsewhere through the connection that `session`
/// stands for.
pub fn write_register(dispatcher: &Dispatcher, session: &Session, opaque: i32, bytes: &mut Vec<u8>) {
    let (settings, addr) = (dispatcher.settings(), dispatcher.reached_at(session).to_string());
    let body = json::to_vec(&RegisterBody { filter_server_list: Vec::new(), topics: dispatcher.topic_bodies() });
    let header = RegisterRequest {
        broker_name: Cow::Borrowed(&settings.broker),
        broker_addr: Cow::Borrowed(&addr),
        cluster_name: Cow::Borrowed(&settings.cluster),
        ha_server_addr: Cow::Borrowed(&addr),
        broker_id: 0,
        heartbeat_timeout_ms: None,
        enable_acting_master: None,
        compressed: false,
        // The checksum's 31 bits are compared as a signed number.
        body_crc32: body_crc(&body) as i32,
    };
    let head = head(request::REGISTER_BROKER, opaque, settings.compat.version());
    if let Err(error) = write(bytes, Codec::Json, &head, &header, &body) {
        log::error!(target: "windlass::names", "registration cannot be written: error={error}");
    }
}

/// Writes the end of this broker's registration.
pub fn write_unregister(dispatcher: &Dispatcher, session: &Session, opaque: i32, bytes: &mut Vec<u8>) {
    let (settings, addr) = (dispatcher.settings(), dispatcher.reached_at(session).to_string());
    let header = BrokerRequest {
        broker_name: Cow::Borrowed(&settings.broker),
        broker_addr: Cow::Borrowed(&addr),
        cluster_name: Cow::Borrowed(&settings.cluster),
        broker_id: 0,
    };
    let head = head(request::UNREGISTER_BROKER, opaque, settings.compat.version());
    if let Err(error) = write(bytes, Codec::Json, &head, &header, &[]) {
        log::error!(target: "windlass::names", "end of registration cannot be written: error={error}");
    }
}

fn head(code: i32, opaque: i32, version: i32) -> Head<'static> {
    Head { version, language: Language::JAVA, ..Head::request(code, opaque) }
}
