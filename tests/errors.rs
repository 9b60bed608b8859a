//! Every operation has an error of its own that says what happened, to whom, and whether trying again helps; all of them
//! become the one `Error` by `?` and lose nothing on the way (D35).

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod peer;

use std::collections::BTreeMap;
use std::error::Error as _;
use std::io::ErrorKind;
use std::sync::Arc;
use std::time::Duration;

use crossbeam_channel::unbounded;
use peer::queue::{TOPIC, cluster, stored};
use peer::{PATIENCE, Peer, Reply, Request, housekeeping, nobody, route};
use windlass::{
    BatchError, BatchReceipt, Client, CommitError, ConfigError, ConsumerReport, Error, Event, Message, OffsetStore,
    OffsetStoreError, Producer, PushConsumer, Queue, QueueOffset, Receipt, SendError, ShutdownReport, StartError,
    StartFrom, WaitError, WireError,
};

/// Compiled, never run: what each operation fails with, and that `?` takes all of it.
const _: fn() -> Result<(), Error> = || {
    const fn is_one_error<E: std::error::Error + Send + Sync + 'static>()
    where
        Error: From<E>,
    {
    }
    is_one_error::<StartError>();
    is_one_error::<SendError>();
    is_one_error::<BatchError>();
    is_one_error::<WaitError>();
    is_one_error::<CommitError>();
    is_one_error::<ConfigError>();
    is_one_error::<WireError>();
    let from_env: Result<Client, StartError> = Client::from_env();
    from_env?;
    let client: Result<Client, StartError> = Client::builder().build();
    let client = client?;
    let consumer: Result<PushConsumer, StartError> = client.push_consumer("g").handler(|_| ()).start();
    let _consumer = consumer?;
    let producer: Result<Producer, StartError> = client.producer("g").start();
    let producer = producer?;
    let sent: Result<Receipt, Box<SendError>> = producer.send(Message::new("t", "x"));
    sent?;
    let batch: Result<BatchReceipt, Box<BatchError>> = producer.send_batch(vec![]);
    batch?;
    let waited: Result<Receipt, WaitError> = producer.send_async(Message::new("t", "x"))?.wait(Duration::ZERO);
    waited?;
    let report: ShutdownReport = client.shutdown(Duration::ZERO);
    if let Some((_, report)) = report.consumers.first() {
        let report: &ConsumerReport = report;
        let failed: Option<&(Queue, CommitError)> = report.failed_commits.first();
        failed.map_or(Ok(()), |(_, error)| Err(error.clone()))?;
    }
    report.into_result()
};

fn client(peer: &Peer) -> Client {
    let builder = Client::builder().name_servers([peer.text()]).workers(2).request_timeout(Duration::from_millis(300));
    builder.timing(|timing| timing.offset = Duration::from_millis(300)).build().unwrap()
}

fn start(client: &Client) -> Result<PushConsumer, StartError> {
    client.push_consumer("G").subscribe(TOPIC, "*").handler(|_| ()).start()
}

#[test]
fn d35_a_setting_that_cannot_be_used_names_itself() {
    let client = client(&Peer::start(housekeeping));
    for (result, field) in [
        (Client::builder().workers(0).name_servers(["a:1"]).build().map(drop), "workers"),
        (client.push_consumer("G").subscribe(TOPIC, "*").start().map(drop), "handler"),
        (client.push_consumer("no blanks").subscribe(TOPIC, "*").handler(|_| ()).start().map(drop), "group"),
        (client.producer("no blanks").start().map(drop), "group"),
        (client.producer("p").retries(1000).start().map(drop), "retries"),
    ] {
        let error = result.unwrap_err();
        assert!(matches!(&error, StartError::Config(error) if error.field == field), "{error:?}");
        assert!(!error.is_retryable());
        assert!(error.source().is_some_and(|source| source.is::<ConfigError>()));
        assert!(error.to_string().starts_with(field), "{error}");
        assert!(matches!(Error::from(error), Error::Config(error) if error.field == field));
    }
}

#[test]
fn d35_a_group_of_this_client_is_in_use_until_its_consumer_has_stopped() {
    let client = client(&Peer::start(housekeeping));
    let first = start(&client).unwrap();
    let error = start(&client).unwrap_err();
    assert!(matches!(&error, StartError::GroupInUse { group } if group == "G") && error.is_retryable(), "{error:?}");
    assert_eq!(error.to_string(), "group G has a consumer in this client already");
    let error = Error::from(error);
    assert!(matches!(&error, Error::InUse { what } if what.contains("group G")) && error.is_retryable(), "{error:?}");
    first.shutdown(Duration::from_secs(5));
    let _again = start(&client).unwrap();
}

#[test]
fn d35_nothing_starts_on_a_client_that_has_been_shut_down() {
    let client = client(&Peer::start(housekeeping));
    client.shutdown(Duration::from_secs(5));
    for error in [start(&client).unwrap_err(), client.producer("p").start().unwrap_err()] {
        assert!(matches!(error, StartError::Closed) && !error.is_retryable(), "{error:?}");
        assert_eq!(error.to_string(), "the client has been shut down");
        assert!(matches!(Error::from(error), Error::Closed));
    }
}

/// Starts ask nobody; who wants to know first asks for a topic.
#[test]
fn d35_a_topic_says_whether_nobody_answered_nobody_knows_it_or_nobody_takes_it() {
    let deaf = nobody().to_string();
    let client_of = |addr: &str| Client::builder().name_servers([addr]).build().unwrap();
    let topic = |addr: &str| {
        let client = client_of(addr);
        let _consumer = start(&client).unwrap();
        client.producer("p").send_deadline(Duration::from_secs(5)).start().unwrap().topic("t").map(drop).unwrap_err()
    };
    let error = topic(&deaf);
    assert!(matches!(&error, Error::NoNameServer { tried, .. } if *tried == [deaf.clone()]), "{error:?}");
    assert!(error.is_retryable() && error.to_string().contains(&deaf), "{error}");

    let names = |answer: fn(&Request) -> Reply| {
        Peer::start(move |request| if request.code == 105 { answer(request) } else { housekeeping(request) })
    };
    let ignorant = names(|_| Reply::code(17));
    let error = topic(&ignorant.text());
    assert!(matches!(&error, Error::UnknownTopic { topic } if topic == "t") && !error.is_retryable(), "{error:?}");
    assert_eq!(error.to_string(), "the name server has no route for topic t");

    let full = names(|_| Reply::with_body(route(&[("broker-a", nobody(), 4)]).replace("\"perm\":6", "\"perm\":4")));
    let error = topic(&full.text());
    assert!(matches!(&error, Error::NoQueue { topic, wanted: "write", .. } if topic == "t"), "{error:?}");

    let refusing =
        names(|_| Reply::Answer { code: 1, remark: Some("out".into()), fields: BTreeMap::new(), body: vec![] });
    let error = topic(&refusing.text());
    assert!(error.to_string().contains("out"), "{error}");
}

/// A consumer's events, and its report as the client's shutdown tells it, once `done` is true of an event.
fn consumed(peer: &Peer, store: Option<Failing>, done: impl Fn(&CommitError) -> bool) -> (CommitError, ShutdownReport) {
    let client = client(peer);
    let (tell, told) = unbounded();
    let consumer = client.push_consumer("G").subscribe(TOPIC, "*").start_from(StartFrom::First);
    let consumer = match store {
        Some(store) => consumer.offset_store(store),
        None => consumer,
    };
    let observer = move |event: &Event| drop(tell.send(event.clone()));
    let _consumer = consumer.observer(observer).handler(|_| ()).start().unwrap();
    let error = loop {
        match told.recv_timeout(PATIENCE).unwrap() {
            Event::CommitFailed { queue, error, .. } if &*queue.topic == TOPIC && done(&error) => break error,
            _ => {}
        }
    };
    (error, client.shutdown(Duration::from_millis(700)))
}

fn last(report: &ShutdownReport) -> &CommitError {
    let failed: Vec<_> = report.consumers.iter().flat_map(|(_, report)| &report.failed_commits).collect();
    let [(queue, error)] = failed[..] else { panic!("{report:?}") };
    assert_eq!(*queue, Queue::new(TOPIC, "broker-a", 0));
    error
}

#[test]
fn d35_a_commit_that_a_broker_refuses_says_so_in_event_report_and_result() {
    let refusal = || Reply::Answer { code: 13, remark: Some("not you".into()), fields: BTreeMap::new(), body: vec![] };
    let peer = cluster(move |request, _| if request.code == 15 { Some(refusal()) } else { stored(request, 2) });
    let (error, report) = consumed(&peer, None, |_| true);
    assert_eq!(error, CommitError::Refused { broker: "broker-a".into(), code: 13, remark: "not you".into() });
    assert!(!error.maybe_committed() && !error.is_retryable());
    assert_eq!(last(&report), &error);
    let error = report.into_result().unwrap_err();
    assert!(matches!(&error, Error::Commit { code: Some(13), retryable: false, .. }), "{error:?}");
    assert!(error.source().is_some_and(|source| source.is::<CommitError>()), "{error:?}");
    assert_eq!(error.to_string(), "broker broker-a answered code 13: not you");
}

#[test]
fn d35_a_commit_without_an_answer_may_have_been_made() {
    for (reply, text) in [(Reply::Silence, "no answer within"), (Reply::Close, "connection ended")] {
        let told = reply.clone();
        let peer = cluster(move |request, _| if request.code == 15 { Some(reply.clone()) } else { stored(request, 2) });
        let (error, report) = consumed(&peer, None, |_| true);
        assert!(
            matches!(&error, CommitError::NoAnswer { broker, .. } if &**broker == "broker-a"),
            "{told:?} {error:?}"
        );
        assert!(error.maybe_committed() && error.is_retryable() && error.to_string().contains(text), "{error}");
        let last = last(&report);
        assert!(last.maybe_committed() && last.is_retryable(), "{last:?}");
        assert!(Error::from(last.clone()).is_retryable());
    }
}

#[derive(Debug)]
struct Locked;

impl std::fmt::Display for Locked {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("the table is locked")
    }
}

impl std::error::Error for Locked {}

#[derive(Clone)]
struct Failing(Arc<dyn Fn() -> Result<(), OffsetStoreError> + Send + Sync>);

impl OffsetStore for Failing {
    fn load(&self, _: &Queue) -> Result<Option<QueueOffset>, OffsetStoreError> {
        Ok(None)
    }

    fn store(&self, progress: &[(Queue, QueueOffset)]) -> Result<(), OffsetStoreError> {
        if progress.iter().any(|(queue, _)| &*queue.topic == TOPIC) { (self.0)() } else { Ok(()) }
    }
}

#[test]
fn d35_what_a_store_of_ones_own_says_is_the_source() {
    let peer = cluster(|request, _| stored(request, 2));
    let locked = Failing(Arc::new(|| Err(Box::new(Locked))));
    let (error, report) = consumed(&peer, Some(locked), |_| true);
    assert!(error.source().is_some_and(|source| source.is::<Locked>()), "{error:?}");
    assert_eq!(error.to_string(), "the offset store: the table is locked");
    assert!(!error.maybe_committed() && error.is_retryable());
    assert!(matches!(last(&report), CommitError::Store { .. }));
    let one = report.into_result().unwrap_err();
    let commit = one.source().unwrap();
    assert!(commit.source().is_some_and(|source| source.is::<Locked>()), "{one:?}");

    let panics = Failing(Arc::new(|| panic!("on purpose")));
    let (error, _) = consumed(&peer, Some(panics), |_| true);
    assert_eq!(error.to_string(), "the offset store: panicked: on purpose");

    let stubborn = cluster(|request, _| if request.code == 15 { Some(Reply::code(13)) } else { stored(request, 2) });
    let (error, report) = consumed(&stubborn, Some(Failing(Arc::new(|| Ok(())))), |_| true);
    assert!(matches!(&error, CommitError::Copy(copy) if matches!(**copy, CommitError::Refused { code: 13, .. })));
    assert!(error.maybe_committed() && error.to_string().starts_with("the broker's copy: "), "{error}");
    assert!(report.is_clean() && report.into_result().is_ok(), "what the store has is committed");
}

#[cfg(feature = "broker")]
mod broker {
    use super::*;
    use windlass::broker::Broker;

    #[test]
    fn d35_an_address_that_is_taken_or_not_ours_names_setting_and_address() {
        let taken = Broker::ephemeral().start().unwrap();
        let (broker, names) = (taken.broker_addr(), taken.name_server_addr());
        let elsewhere = std::net::SocketAddr::from(([192, 0, 2, 1], 0));
        for (builder, field, at, again) in [
            (Broker::ephemeral().listen(broker.to_string()), "listen", broker, true),
            (Broker::ephemeral().name_server_listen(names.to_string()), "name_server_listen", names, true),
            (Broker::ephemeral().listen(elsewhere.to_string()), "listen", elsewhere, false),
        ] {
            let error = builder.start().unwrap_err();
            let StartError::Listen { setting, addr, source } = &error else { panic!("{error:?}") };
            assert_eq!((*setting, *addr, source.kind() == ErrorKind::AddrInUse), (field, at, again));
            assert_eq!(error.is_retryable(), again);
            assert!(error.source().is_some() && error.to_string().contains(&at.to_string()), "{error}");
            let one = Error::from(error);
            assert!(matches!(&one, Error::Io { doing, .. } if doing.contains(&at.to_string())), "{one:?}");
            assert!(one.source().is_some());
        }
    }

    #[test]
    fn d35_a_store_of_another_format_is_refused_and_left_alone() {
        let dir = std::env::temp_dir().join(format!("windlass-errors-{}", std::process::id()));
        drop(Broker::open(&dir).start().unwrap());
        let mut meta = std::fs::read(dir.join("META")).unwrap();
        let end = meta.len() - 4;
        meta[4..6].copy_from_slice(&[0x4D, 0x4D]);
        let sum = crc32c::crc32c(&meta[..end]).to_be_bytes();
        meta[end..].copy_from_slice(&sum);
        std::fs::write(dir.join("META"), &meta).unwrap();
        let error = Broker::open(&dir).start().unwrap_err();
        let StartError::Store { what } = &error else { panic!("{error:?}") };
        assert!(what.contains(dir.to_str().unwrap()) && what.contains("version 19789"), "{what}");
        assert!(!error.is_retryable());
        assert!(matches!(Error::from(error), Error::Store { .. }));
        assert_eq!(std::fs::read(dir.join("META")).unwrap(), meta);
        std::fs::remove_dir_all(dir).unwrap();
    }

    #[test]
    fn d35_clients_of_a_broker_start_with_the_same_error() {
        let broker = Broker::ephemeral().start().unwrap();
        let client: Result<Client, StartError> = broker.client_with(Client::builder().workers(0));
        assert!(matches!(client, Err(StartError::Config(error)) if error.field == "workers"));
        let direct: Result<Client, StartError> = broker.client();
        let socket: Result<Client, StartError> = broker.socket_client();
        assert!(direct.is_ok() && socket.is_ok());
    }
}
