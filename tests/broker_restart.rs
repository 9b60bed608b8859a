//! What a broker with a directory keeps: over an orderly stop, over a process that is killed, and what it refuses.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod peer;

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use peer::Caller;
use windlass::broker::{Broker, Flush};
use windlass::{Error, Message, StartError, Stored};

/// A directory of its own for each test, gone afterwards.
struct Dir(PathBuf);

impl Dir {
    fn new() -> Self {
        static NUMBER: AtomicU32 = AtomicU32::new(0);
        let number = NUMBER.fetch_add(1, Ordering::SeqCst);
        let dir = std::env::temp_dir().join(format!("windlass-restart-{}-{number}", std::process::id()));
        fs::create_dir_all(&dir).unwrap();
        Self(dir)
    }

    /// What another process would find if this one were killed now: everything that was written, synced or not.
    fn as_after_a_kill(&self) -> Self {
        let copy = Self::new();
        copy_all(&self.0, &copy.0);
        copy
    }
}

impl Drop for Dir {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

fn copy_all(from: &Path, to: &Path) {
    for entry in fs::read_dir(from).unwrap() {
        let entry = entry.unwrap();
        let target = to.join(entry.file_name());
        if entry.path().is_dir() {
            fs::create_dir_all(&target).unwrap();
            copy_all(&entry.path(), &target);
        } else {
            // A segment may be retired meanwhile.
            let _ = fs::copy(entry.path(), &target);
        }
    }
}

fn send(caller: &mut Caller, body: &[u8]) -> i32 {
    let fields = [
        ("a", "PG"),
        ("b", "t"),
        ("c", "TBW102"),
        ("d", "1"),
        ("e", "0"),
        ("f", "0"),
        ("g", "1"),
        ("h", "0"),
        ("i", "TAGS\u{1}a\u{2}"),
        ("j", "0"),
        ("k", "false"),
        ("m", "false"),
    ];
    caller.ask(310, &fields, body).code
}

fn held(broker: &Broker) -> (u64, String) {
    let mut caller = Caller::connect(broker.broker_addr());
    let offset = caller.ask(14, &[("consumerGroup", "G"), ("topic", "t"), ("queueId", "0")], b"");
    (broker.topic_len("t"), offset.field("offset").to_owned())
}

fn commit(caller: &mut Caller, offset: &str) {
    caller.ask(34, &[], br#"{"clientID":"c","consumerDataSet":[{"groupName":"G"}]}"#);
    let fields = [("consumerGroup", "G"), ("topic", "t"), ("queueId", "0"), ("commitOffset", offset)];
    assert_eq!(caller.ask(15, &fields, b"").code, 0);
}

/// E-147, S-1, S-2, S-9, S-10.
#[test]
fn everything_acknowledged_outlives_a_stop_and_a_kill() {
    let dir = Dir::new();
    let broker = Broker::open(&dir.0).topic("made", 3).start().unwrap();
    let mut caller = Caller::connect(broker.broker_addr());
    for n in 0..100 {
        assert_eq!(send(&mut caller, format!("body {n}").as_bytes()), 0);
    }
    commit(&mut caller, "40");
    let killed = dir.as_after_a_kill();
    let after = Broker::open(&killed.0).start().unwrap();
    // The commit was moments old: at worst it is not there, and the messages come again.
    let (messages, offset) = held(&after);
    assert!(messages == 100 && matches!(offset.as_str(), "0" | "40"), "{messages} {offset}");
    let mut again = Caller::connect(after.broker_addr());
    assert_eq!(again.ask(351, &[("topic", "made")], b"").code, 0);
    assert_eq!(send(&mut again, b"more"), 0);
    assert_eq!(after.topic_len("t"), 101);
    drop(after);
    broker.shutdown(peer::PATIENCE).unwrap();
    drop(broker);
    for _ in 0..2 {
        let after = Broker::open(&dir.0).start().unwrap();
        assert_eq!(held(&after), (100, "40".to_owned()));
    }
}

/// E-138, C-071 over the socket.
#[test]
fn with_synchronous_flushing_an_answer_means_the_disk_has_it() {
    let dir = Dir::new();
    let broker = Broker::open(&dir.0).flush(Flush::Sync).topic("t", 1).start().unwrap();
    let callers: Vec<_> = (0..4)
        .map(|_| {
            let addr = broker.broker_addr();
            std::thread::spawn(move || {
                let mut caller = Caller::connect(addr);
                (0..25).for_each(|_| assert_eq!(send(&mut caller, b"x"), 0));
            })
        })
        .collect();
    callers.into_iter().for_each(|caller| caller.join().unwrap());
    assert_eq!(broker.topic_len("t"), 100);
    let mut caller = Caller::connect(broker.broker_addr());
    let pull = [
        ("consumerGroup", "G"),
        ("topic", "t"),
        ("queueId", "0"),
        ("queueOffset", "100"),
        ("maxMsgNums", "32"),
        ("sysFlag", "6"),
        ("commitOffset", "0"),
        ("suspendTimeoutMillis", "15000"),
        ("subscription", "*"),
        ("subVersion", "0"),
    ];
    let waits = caller.post(11, 0, &pull, b"");
    let mut sender = Caller::connect(broker.broker_addr());
    assert_eq!(send(&mut sender, b"held"), 0);
    assert_eq!(caller.answer_to(waits).code, 0, "the flush answers it");
}

/// S-18: typed errors that name the directory.
#[test]
fn a_directory_that_cannot_be_used_is_refused() {
    let dir = Dir::new();
    let _held = Broker::open(&dir.0).start().unwrap();
    let error = Broker::open(&dir.0).start().unwrap_err();
    let (place, me) = (dir.0.to_string_lossy().into_owned(), std::process::id());
    assert!(
        matches!(&error, StartError::StoreInUse { dir, pid: Some(pid) } if *dir == place && *pid == me),
        "{error:?}"
    );
    assert!(
        error.is_retryable() && error.to_string() == format!("store in {place} is in use by process {me}"),
        "{error}"
    );
    let file = Dir::new();
    fs::write(file.0.join("plain"), b"").unwrap();
    let error = Broker::open(file.0.join("plain")).start().unwrap_err();
    assert!(matches!(&error, StartError::Io { doing, .. } if doing.contains("plain")), "{error}");
    assert!(!error.is_retryable() && std::error::Error::source(&error).is_some());
}

/// What `shutdown` has ended is over, also for those who still hold handles: the directory is free, and a client of the
/// first broker can neither reach it nor change it.
#[test]
fn a_directory_is_free_once_shutdown_has_returned() {
    let dir = Dir::new();
    let broker = Broker::open(&dir.0).topic("orders", 1).start().unwrap();
    let client = broker.client().unwrap();
    let producer = client.producer("p").start().unwrap();
    let writer = producer.topic("orders").unwrap();
    writer.send(b"first").unwrap();
    // A handler that does not come back keeps its client's loop busy beyond the broker's patience with it.
    let (entered, has_entered) = std::sync::mpsc::channel();
    let (let_go, may_go) = std::sync::mpsc::channel::<()>();
    let may_go = std::sync::Mutex::new(may_go);
    let consumer = client
        .push_consumer("g")
        .subscribe("orders", "*")
        .handler(move |_| {
            let _ = entered.send(());
            let _ = may_go.lock().unwrap().recv_timeout(Duration::from_secs(60));
        })
        .start()
        .unwrap();
    has_entered.recv_timeout(Duration::from_secs(60)).unwrap();
    broker.shutdown(Duration::from_secs(60)).unwrap();

    let again = Broker::open(&dir.0).start().unwrap();
    assert_eq!(again.topic_len("orders"), 1);
    let late = again.client().unwrap().producer("p").start().unwrap();
    late.send(Message::new("orders", "second")).unwrap();
    assert!(writer.send(b"lost").is_err());
    let error = producer.send(Message::new("young", "lost")).unwrap_err();
    assert_eq!(error.stored(), Stored::No, "{error}");
    assert!(matches!(error.cause(), Error::Closed), "{error}");
    drop(let_go);
    drop((consumer, producer, writer, client, broker));
    late.send(Message::new("orders", "third")).unwrap();
    drop(again);
    let last = Broker::open(&dir.0).start().unwrap();
    assert_eq!((last.topic_len("orders"), last.topic_len("young")), (3, 0));
}

/// An ephemeral broker leaves nothing behind.
/// The end of the log has nowhere to go: that is not a matter of time.
#[cfg(unix)]
#[test]
fn a_shutdown_whose_directory_has_gone_says_so_and_does_not_wait() {
    let dir = Dir::new();
    let broker = Broker::open(&dir.0).start().unwrap();
    let client = broker.client().unwrap();
    let producer = client.producer("PG").start().unwrap();
    producer.send(Message::new("t", "x")).unwrap();
    fs::remove_dir_all(&dir.0).unwrap();
    // The flush behind it is what sees that the directory has gone.
    let _ = producer.send(Message::new("t", "y"));
    let begun = std::time::Instant::now();
    let error = broker.shutdown(Duration::from_secs(60)).unwrap_err();
    assert!(matches!(&error, Error::Store { what } if what.contains("removed")), "{error}");
    assert!(begun.elapsed() < Duration::from_secs(30));
}

#[test]
fn an_ephemeral_broker_takes_its_directory_along() {
    let broker = Broker::ephemeral().topic("t", 1).start().unwrap();
    let mut caller = Caller::connect(broker.broker_addr());
    assert_eq!(send(&mut caller, b"x"), 0);
    drop(broker);
    assert!(caller.hear().is_err());
}

/// "Nothing of it runs, and nothing has to be undone": the start fails late, with the store open.
#[test]
fn a_start_that_fails_leaves_neither_threads_nor_the_lock() {
    let dir = Dir::new();
    let error = Broker::open(&dir.0).topic("rmq_sys_mine", 1).start().unwrap_err();
    assert!(matches!(&error, StartError::Config(error) if error.field == "topic"), "{error:?}");
    let broker = Broker::open(&dir.0).topic("t", 1).start().expect("the directory is free");
    assert_eq!(broker.topic_len("t"), 0);
}
