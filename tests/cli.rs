//! The command line's promises to scripts: forms, exit codes, and what is flushed before what. Drives the binary
//! against its own broker.

// What cannot be set up here fails the run, in helpers as in tests.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]
#![cfg(feature = "cli")]

use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet};
use std::io::{BufRead, BufReader, Read, Write};
use std::process::{Child, ChildStdout, Command, Output, Stdio};
use std::time::{Duration, Instant};

/// Longest that any command here may run.
const LONGEST: Duration = Duration::from_secs(60);

/// A process that does not outlive its test.
struct Running {
    child: Child,
    out: Option<BufReader<ChildStdout>>,
}

impl Drop for Running {
    fn drop(&mut self) {
        self.child.kill().ok();
        self.child.wait().ok();
    }
}

impl Running {
    fn start(words: &[&str]) -> Self {
        Self::by(Command::new(env!("CARGO_BIN_EXE_windlass")), words)
    }

    /// Started by a shell that does `first` before it.
    #[cfg(unix)]
    fn after(first: &str, words: &[&str]) -> Self {
        let mut shell = Command::new("sh");
        shell.args(["-c", &format!("{first}; exec \"$0\" \"$@\""), env!("CARGO_BIN_EXE_windlass")]);
        Self::by(shell, words)
    }

    fn by(mut command: Command, words: &[&str]) -> Self {
        command.args(words).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.env_remove("NAMESRV_ADDR").spawn().unwrap();
        let out = child.stdout.take().map(BufReader::new);
        Self { child, out }
    }

    fn line(&mut self) -> String {
        let mut line = String::new();
        self.out.as_mut().unwrap().read_line(&mut line).unwrap();
        line.trim_end_matches('\n').to_owned()
    }

    fn signal(&self, name: &str) {
        let sent = Command::new("kill").args([name, &self.child.id().to_string()]).status().unwrap();
        assert!(sent.success(), "kill {name}");
    }

    /// Writes to its standard input, closes it, and waits for its end.
    fn end(mut self, input: &str) -> Output {
        let stdin = self.child.stdin.take();
        let mut out = self.out.take().unwrap();
        let mut stderr = self.child.stderr.take().unwrap();
        let input = input.to_owned();
        let write = std::thread::spawn(move || stdin.map(|mut stdin| stdin.write_all(input.as_bytes())));
        let read_err = std::thread::spawn(move || {
            let mut text = Vec::new();
            stderr.read_to_end(&mut text).map(|_| text)
        });
        let read_out = std::thread::spawn(move || {
            let mut text = Vec::new();
            out.read_to_end(&mut text).map(|_| text)
        });
        let begun = Instant::now();
        let status = loop {
            if let Some(status) = self.child.try_wait().unwrap() {
                break status;
            }
            assert!(begun.elapsed() < LONGEST, "the command does not end");
            std::thread::sleep(Duration::from_millis(5));
        };
        let _closed_early = write.join().unwrap();
        let (stdout, stderr) = (read_out.join().unwrap().unwrap(), read_err.join().unwrap().unwrap());
        Output { status, stdout, stderr }
    }
}

/// A broker with a name server of its own.
struct Broker {
    running: Running,
    names: String,
}

impl Broker {
    fn start() -> Self {
        Self::with(&["--name-server-listen", "127.0.0.1:0"])
    }

    fn with(words: &[&str]) -> Self {
        Self::of(Running::start(&[&["broker", "--listen", "127.0.0.1:0"], words].concat()))
    }

    fn of(mut running: Running) -> Self {
        let line = running.line();
        let (names, broker) = line.strip_prefix("ready name-server=").unwrap().split_once(" broker=").unwrap();
        for addr in [names, broker] {
            let addr: std::net::SocketAddr = addr.parse().unwrap();
            assert_ne!(addr.port(), 0, "{line}");
        }
        Self { names: names.to_owned(), running }
    }

    fn run(&self, words: &[&str], input: &str) -> Output {
        let (command, rest) = words.split_first().unwrap();
        Running::start(&[&[*command, "-n", &self.names], rest].concat()).end(input)
    }

    /// Runs a command whose standard output is JSON lines.
    fn json(&self, words: &[&str], input: &str) -> (i32, Vec<Value>, Vec<Value>) {
        let output = self.run(&[words, &["--json"]].concat(), input);
        (output.status.code().unwrap_or(-1), objects(&output.stdout), objects(&output.stderr))
    }
}

fn objects(text: &[u8]) -> Vec<Value> {
    let text = std::str::from_utf8(text).unwrap();
    text.lines().map(|line| serde_json::from_str(line).unwrap_or_else(|_| panic!("not an object: {line}"))).collect()
}

fn members(object: &Value) -> BTreeSet<&str> {
    object.as_object().unwrap().keys().map(String::as_str).collect()
}

fn consume<'a>(topic: &'a str, group: &'a str, more: &[&'a str]) -> Vec<&'a str> {
    [&["consume", "-t", topic, "-g", group, "--from", "first", "--timeout", "20"], more].concat()
}

#[test]
fn a_line_comes_back_as_one_object_with_all_its_facts() {
    let broker = Broker::start();
    let send = ["produce", "-t", "T", "--tag", "a", "--key", "k", "--property", "x=1", "--property", "y=2=3"];
    let (code, receipts, _) = broker.json(&send, "größe\n");
    assert_eq!((code, receipts.len()), (0, 1));
    let receipt = &receipts[0];
    let want = ["status", "message_id", "offset_message_id", "broker", "queue", "offset"];
    assert_eq!(members(receipt), BTreeSet::from(want));
    assert_eq!(
        (&receipt["status"], &receipt["broker"], &receipt["offset"]),
        (&"SEND_OK".into(), &"broker-a".into(), &0.into())
    );

    let (code, messages, told) = broker.json(&consume("T", "G", &["--count", "1"]), "");
    assert_eq!((code, messages.len()), (0, 1));
    let message = &messages[0];
    let want = [
        "topic",
        "broker",
        "queue",
        "offset",
        "message_id",
        "unique_key",
        "tag",
        "keys",
        "reconsume_times",
        "born_ms",
        "store_ms",
        "properties",
        "body",
    ];
    assert_eq!(members(message), BTreeSet::from(want));
    for same in ["message_id", "broker", "queue", "offset"] {
        assert_eq!(message[same], receipt[same], "{same}");
    }
    assert_eq!((&message["topic"], &message["tag"], &message["body"]), (&"T".into(), &"a".into(), &"größe".into()));
    assert_eq!((&message["keys"], &message["reconsume_times"]), (&serde_json::json!(["k"]), &0.into()));
    assert_eq!((&message["properties"]["x"], &message["properties"]["y"]), (&"1".into(), &"2=3".into()));
    assert!(
        message["born_ms"].as_i64() > Some(1_700_000_000_000)
            && message["store_ms"].as_i64() >= message["born_ms"].as_i64()
    );

    assert!(told.iter().any(|event| event["event"] == "assigned" && event["topic"] == "T"));
    let summary = &told.last().unwrap()["summary"];
    let want = ["received", "finished", "retried", "dead_lettered", "dropped", "committed"];
    assert_eq!(members(summary), BTreeSet::from(want));
    assert_eq!((&summary["received"], &summary["finished"], &summary["dropped"]), (&1.into(), &1.into(), &0.into()));
    assert_eq!(summary["committed"][format!("broker-a/{}", receipt["queue"])], 1);
}

#[test]
fn every_line_is_a_message_and_bodies_that_are_no_text_are_base64() {
    let broker = Broker::start();
    let lines: String = (0..200).map(|n| format!("line {n} \n")).collect();
    let (code, receipts, _) = broker.json(&["produce", "-t", "T"], &(lines + "no end"));
    assert_eq!((code, receipts.len()), (0, 201));
    let (code, messages, _) = broker.json(&consume("T", "G", &["--count", "201", "--batch", "16"]), "");
    let bodies: BTreeSet<&str> = messages.iter().filter_map(|message| message["body"].as_str()).collect();
    assert_eq!((code, messages.len(), bodies.len()), (0, 201, 201));
    assert!(bodies.contains("line 7 ") && bodies.contains("no end"));
    // receipts are in the order of the lines
    let by_place: BTreeMap<(i64, i64), &str> = messages
        .iter()
        .map(|message| {
            (
                (message["queue"].as_i64().unwrap(), message["offset"].as_i64().unwrap()),
                message["body"].as_str().unwrap(),
            )
        })
        .collect();
    for (n, receipt) in receipts.iter().take(200).enumerate() {
        let place = (receipt["queue"].as_i64().unwrap(), receipt["offset"].as_i64().unwrap());
        assert_eq!(by_place[&place], format!("line {n} "));
    }
}

#[test]
fn counted_messages_go_to_the_queue_that_was_named() {
    let broker = Broker::start();
    let send = ["produce", "-t", "T", "--count", "10", "--size", "9", "--queue", "broker-a/2"];
    assert_eq!(broker.run(&["produce", "-t", "T", "--count", "1"], "").status.code(), Some(0), "makes the topic");
    let (code, receipts, _) = broker.json(&send, "");
    let places: BTreeSet<(i64, i64)> = receipts
        .iter()
        .map(|receipt| (receipt["queue"].as_i64().unwrap(), receipt["offset"].as_i64().unwrap()))
        .collect();
    assert_eq!((code, places.len()), (0, 10));
    assert!(places.iter().all(|(queue, _)| *queue == 2), "{places:?}");
    let none = ["produce", "-t", "T", "--count", "1", "--queue", "broker-a/99"];
    let (code, told, _) = broker.json(&none, "");
    let error = &told[0]["error"];
    assert_eq!((code, &error["kind"], &error["stored"]), (1, &"no_queue".into(), &"no".into()));
    assert!(error["text"].as_str().unwrap().contains("broker-a/99"), "{error}");
    let (_, messages, _) = broker.json(&consume("T", "G", &["--count", "11"]), "");
    assert!(messages.iter().any(|message| message["body"] == "7 7 7 7 7"));
}

#[test]
fn what_is_not_stored_says_how_far_it_came_and_exits_with_1() {
    let nobody = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().to_string();
    let words = ["produce", "-n", &nobody, "-t", "T", "--timeout", "2", "--json"];
    let output = Running::start(&words).end("a\nb\n");
    let told = objects(&output.stdout);
    assert_eq!((output.status.code(), told.len()), (Some(1), 2));
    for object in told {
        let error = &object["error"];
        assert!(["kind", "stage", "attempts", "code"].iter().all(|member| error.get(member).is_some()), "{object}");
    }
}

/// What is wrong with standard error or the disk ends no command: the first is nobody's business, the second an answer.
#[cfg(unix)]
#[test]
fn a_full_standard_error_and_a_limit_on_files_end_nothing() {
    let dir = std::env::temp_dir().join(format!("windlass-limit-{}", std::process::id()));
    std::fs::remove_dir_all(&dir).ok();
    let store = dir.to_str().unwrap();
    let words = ["broker", "--listen", "127.0.0.1:0", "--name-server-listen", "127.0.0.1:0", "--store", store];
    // Blocks of 512 or 1024 bytes: room for the segments below that of 8 or 16 MiB.
    let broker = Broker::of(Running::after("ulimit -f 10000", &words));
    let send = ["produce", "-t", "T", "--count", "6000", "--size", "4000"];
    let (code, receipts, _) = broker.json(&send, "");
    assert_eq!((code, receipts.len()), (1, 6000));
    let refused: Vec<&Value> = receipts.iter().filter(|line| line["status"].is_null()).collect();
    assert!(!refused.is_empty() && refused.len() < 6000, "{} refused", refused.len());
    assert_eq!((&refused[0]["error"]["code"], &refused[0]["error"]["stored"]), (&Value::from(14), &Value::from("no")));
    // Only where there is a device that is always full.
    if std::path::Path::new("/dev/full").exists() {
        let words = ["consume", "-n", &broker.names, "-t", "T", "-g", "G", "--from", "first", "--count", "5"];
        let output = Running::after("exec 2>/dev/full", &words).end("");
        assert_eq!(output.status.code(), Some(0));
    }
    broker.running.signal("-TERM");
    assert_eq!(broker.running.end("").status.code(), Some(0));
    std::fs::remove_dir_all(&dir).ok();
}

#[test]
fn wrong_use_and_a_start_that_fails_exit_with_2() {
    for words in [
        &["consume", "-t", "T", "-g", "G"][..],
        &["produce", "-t", "T"],
        &["consume", "-n", "127.0.0.1:1", "-t", "bad topic", "-g", "G"],
        &["consume", "-n", "127.0.0.1:1", "-t", "T", "-g", "DEFAULT_CONSUMER"],
        &["broker", "--listen", "127.0.0.1:0"],
        &["broker", "--listen", "not an address", "--name-server-listen", "127.0.0.1:0"],
        &["consume", "-n", "127.0.0.1:1", "-t", "T", "-g", "G", "--from", "never"],
    ] {
        let output = Running::start(words).end("");
        assert_eq!(output.status.code(), Some(2), "{words:?}");
        assert!(output.stdout.is_empty() && !output.stderr.is_empty(), "{words:?}");
    }
}

#[test]
fn a_timeout_and_a_signal_before_the_count_exit_with_1_and_a_signal_without_a_count_with_0() {
    let broker = Broker::start();
    assert_eq!(broker.run(&["produce", "-t", "T", "--count", "3"], "").status.code(), Some(0));
    let words = ["consume", "-t", "T", "-g", "late", "--from", "first", "--count", "4", "--timeout", "2"];
    assert_eq!(broker.run(&words, "").status.code(), Some(1));
    for (signal, more, code) in [("-INT", &["--count", "4"][..], 1), ("-TERM", &[], 0), ("-INT", &[], 0)] {
        let group = format!("G{signal}{code}");
        let mut running =
            Running::start(&[&["consume", "-n", &broker.names], &consume("T", &group, more)[1..]].concat());
        for _ in 0..3 {
            assert!(running.line().starts_with("T/broker-a/"));
        }
        running.signal(signal);
        assert_eq!(running.end("").status.code(), Some(code), "{signal}");
    }
}

#[test]
fn a_timeout_is_the_time_of_the_whole_command_whatever_its_handlers_do() {
    let broker = Broker::start();
    broker.run(&["produce", "-t", "T"], "one\ntwo\nthree\n");
    let begun = Instant::now();
    let words = ["consume", "-t", "T", "-g", "slow", "--from", "first", "--timeout", "2", "--handler-ms", "40000"];
    let output = broker.run(&words, "");
    assert!(begun.elapsed() < Duration::from_secs(8), "{:?}", begun.elapsed());
    assert_eq!(
        (output.status.code(), output.stdout.len()),
        (Some(1), 0),
        "{}",
        String::from_utf8_lossy(&output.stderr)
    );
    let (code, messages, _) = broker.json(&consume("T", "slow", &["--count", "3"]), "");
    let repeats: Vec<&Value> = messages.iter().map(|message| &message["reconsume_times"]).collect();
    assert_eq!((code, repeats), (0, vec![&Value::from(0); 3]), "nothing was consumed, nothing was sent back");
}

/// What a killed consumer has left does not swallow the first line of the next.
#[cfg(unix)]
#[test]
fn lines_appended_behind_half_a_line_begin_anew() {
    let broker = Broker::start();
    broker.run(&["produce", "-t", "T"], "one\ntwo\n");
    let path = std::env::temp_dir().join(format!("windlass-lines-{}", std::process::id()));
    for (before, after) in [("", ""), ("{}\n", "{}\n"), ("{}\n{\"to", "{}\n{\"to\n")] {
        std::fs::write(&path, before).unwrap();
        let file = std::fs::OpenOptions::new().append(true).open(&path).unwrap();
        let group = format!("G{}", before.len());
        let mut command = Command::new(env!("CARGO_BIN_EXE_windlass"));
        command.args(["consume", "-n", &broker.names]).args(&consume("T", &group, &["--json", "--count", "2"])[1..]);
        let status = command.stdin(Stdio::null()).stdout(file).stderr(Stdio::null()).status().unwrap();
        let text = std::fs::read_to_string(&path).unwrap();
        let lines = text.strip_prefix(after).unwrap_or_else(|| panic!("{text}"));
        assert_eq!((status.code(), objects(lines.as_bytes()).len()), (Some(0), 2), "{text}");
    }
    std::fs::remove_file(&path).unwrap();
}

/// A pipe that somebody has made non-blocking, as shells and event loops do with what they share.
#[cfg(unix)]
#[test]
fn lines_are_whole_on_a_standard_output_that_does_not_block() {
    let broker = Broker::start();
    broker.run(&["produce", "-t", "T", "--count", "300", "--size", "3000"], "");
    let (ours, theirs) = std::os::unix::net::UnixStream::pair().unwrap();
    theirs.set_nonblocking(true).unwrap();
    let mut command = Command::new(env!("CARGO_BIN_EXE_windlass"));
    command.args(["consume", "-n", &broker.names]).args(&consume("T", "G", &["--json", "--count", "300"])[1..]);
    let (stdin, stderr) = (Stdio::null(), Stdio::piped());
    let child = command.stdin(stdin).stdout(std::os::fd::OwnedFd::from(theirs)).stderr(stderr).spawn().unwrap();
    drop(command);
    let mut ours = ours;
    let mut text = Vec::new();
    let mut piece = vec![0; 10_000];
    // Slower than twenty workers.
    while let Ok(read @ 1..) = ours.read(&mut piece) {
        text.extend_from_slice(&piece[..read]);
        std::thread::sleep(Duration::from_millis(3));
    }
    let output = child.wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(0), "{}", String::from_utf8_lossy(&output.stderr));
    assert!(objects(&text).len() >= 300);
}

#[test]
fn dead_letters_and_tags_and_starting_points() {
    let broker = Broker::start();
    broker.run(&["produce", "-t", "T", "--tag", "a"], "one\n");
    broker.run(&["produce", "-t", "T", "--tag", "b"], "two\n");
    let (code, messages, told) =
        broker.json(&consume("T", "G", &["--tag", "b||c", "--count", "1", "--outcome", "dead-letter"]), "");
    assert_eq!((code, &messages[0]["body"]), (0, &"two".into()));
    assert_eq!(told.last().unwrap()["summary"]["dead_lettered"], 1);
    let (code, messages, _) = broker.json(&consume("%DLQ%G", "looks", &["--count", "1"]), "");
    assert_eq!((code, &messages[0]["body"]), (0, &"two".into()));
    let words = ["consume", "-t", "T", "-g", "past", "--from", "1000", "--count", "2", "--timeout", "10"];
    assert_eq!(broker.run(&words, "").status.code(), Some(0));
}

#[test]
fn a_count_is_exceeded_by_no_more_than_what_runs() {
    let broker = Broker::start();
    assert_eq!(broker.run(&["produce", "-t", "T", "--count", "5000", "--size", "10"], "").status.code(), Some(0));
    for (workers, batch) in [(1, 1), (3, 4)] {
        let (workers_text, batch_text) = (workers.to_string(), batch.to_string());
        let group = format!("G{workers}");
        let words = consume("T", &group, &["--count", "3", "--workers", &workers_text, "--batch", &batch_text]);
        let (code, messages, told) = broker.json(&words, "");
        assert_eq!(code, 0);
        assert!((3..=3 + 2 * workers * batch).contains(&messages.len()), "{} messages", messages.len());
        let summary = &told.last().unwrap()["summary"];
        assert_eq!((&summary["received"], &summary["finished"]), (&messages.len().into(), &messages.len().into()));
        let committed: i64 = summary["committed"].as_object().unwrap().values().filter_map(Value::as_i64).sum();
        assert!(committed <= messages.len() as i64, "{summary}");
    }
}

#[test]
fn a_consumer_that_is_stopped_and_started_goes_on_without_gap_or_repeat() {
    let broker = Broker::start();
    assert_eq!(broker.run(&["produce", "-t", "T", "--count", "2000", "--size", "100"], "").status.code(), Some(0));
    let mut bodies = Vec::new();
    while bodies.len() < 2000 {
        let words = consume("T", "G", &["--count", "300", "--workers", "2"]);
        let (_, messages, told) = broker.json(&words, "");
        assert!(!messages.is_empty(), "{told:?}");
        bodies.extend(messages.into_iter().map(|message| message["body"].as_str().unwrap().to_owned()));
        if bodies.len() > 1700 {
            let (_, rest, _) = broker.json(&["consume", "-t", "T", "-g", "G", "--timeout", "3"], "");
            bodies.extend(rest.into_iter().map(|message| message["body"].as_str().unwrap().to_owned()));
            break;
        }
    }
    let different: BTreeSet<&String> = bodies.iter().collect();
    assert_eq!((bodies.len(), different.len()), (2000, 2000));
}

#[test]
fn a_killed_consumer_has_printed_all_that_is_committed() {
    let broker = Broker::start();
    assert_eq!(broker.run(&["produce", "-t", "T", "--count", "3000", "--size", "64"], "").status.code(), Some(0));
    let mut printed = BTreeSet::new();
    for round in 0..4 {
        let words = [
            &["consume", "-n", &broker.names, "--json"],
            &consume("T", "G", &["--handler-ms", "1", "--workers", "4"])[1..],
        ]
        .concat();
        let mut running = Running::start(&words);
        for _ in 0..200 + 100 * round {
            printed.insert(running.line());
        }
        running.child.kill().unwrap();
        running.child.wait().unwrap();
        // what was printed before the kill is in the pipe
        let mut rest = String::new();
        running.out.as_mut().unwrap().read_to_string(&mut rest).unwrap();
        printed.extend(rest.lines().map(str::to_owned));
    }
    let deadline = Instant::now() + LONGEST;
    let numbers = |printed: &BTreeSet<String>| -> BTreeSet<u64> {
        let bodies = printed.iter().filter_map(|line| serde_json::from_str::<Value>(line).ok());
        bodies.map(|message| message["body"].as_str().unwrap().split(' ').next().unwrap().parse().unwrap()).collect()
    };
    while numbers(&printed).len() < 3000 && Instant::now() < deadline {
        let output = broker.run(&["consume", "-t", "T", "-g", "G", "--timeout", "4", "--json"], "");
        printed.extend(std::str::from_utf8(&output.stdout).unwrap().lines().map(str::to_owned));
    }
    let printed = numbers(&printed);
    let missing: Vec<u64> = (0..3000).filter(|n| !printed.contains(n)).collect();
    assert!(missing.is_empty(), "committed without having been printed: {missing:?}");
}

#[test]
fn a_broker_ends_cleanly_joins_another_and_keeps_its_store() {
    let dir = std::env::temp_dir().join(format!("windlass-cli-{}", std::process::id()));
    std::fs::remove_dir_all(&dir).ok();
    let first = Broker::start();
    let dir_text = dir.to_str().unwrap();
    let second = Broker::with(&["--join", &first.names, "--name", "broker-b", "--store", dir_text]);
    assert_eq!(second.names, first.names);
    let (code, receipts, _) = first.json(&["produce", "-t", "T", "--queue", "broker-b/0"], "kept\n");
    // the first send to a topic that exists nowhere goes where the default topic is; then the queue has an address
    let (topic, receipts) = if code == 0 {
        ("T", receipts)
    } else {
        ("TBW102", first.json(&["produce", "-t", "TBW102", "--queue", "broker-b/0"], "kept\n").1)
    };
    assert_eq!(receipts[0]["broker"], "broker-b", "{receipts:?}");
    second.running.signal("-TERM");
    let output = second.running.end("");
    assert_eq!((output.status.code(), output.stdout.len()), (Some(0), 0));
    let again = Broker::with(&["--name-server-listen", "127.0.0.1:0", "--name", "broker-b", "--store", dir_text]);
    let (code, messages, _) = again.json(&consume(topic, "G", &["--count", "1"]), "");
    assert_eq!((code, &messages[0]["body"]), (0, &"kept".into()), "{topic}");
    again.running.signal("-INT");
    assert_eq!(again.running.end("").status.code(), Some(0));
    std::fs::remove_dir_all(&dir).ok();
}

#[test]
fn the_bench_prints_the_line_of_the_other_bench() {
    let broker = Broker::start();
    for (mode, words) in [("send", &["bench", "send"][..]), ("drain", &["bench", "drain"])] {
        let words = [words, &["-n", &broker.names, "-t", "T", "-q", "500", "-w", "2"]].concat();
        let output = Running::start(&words).end("");
        let told = objects(&output.stdout);
        assert_eq!((output.status.code(), told.len(), &told[0]["mode"]), (Some(0), 1, &mode.into()));
        for member in ["msgs", "seconds", "rate", "p50_us", "cpu_us_per_msg"] {
            assert!(told[0][member].is_number(), "{member}: {}", told[0]);
        }
    }
}

/// Lines about messages stand in the order of the messages, also of those that were refused before they were sent.
#[test]
fn what_is_refused_at_once_is_told_in_its_place() {
    let broker = Broker::start();
    let (code, told, _) = broker.json(&["produce", "-t", "T"], &format!("one\n{}\nthree\n", "x".repeat(5 << 20)));
    assert_eq!((code, told.len()), (1, 3));
    let stored: Vec<bool> = told.iter().map(|line| line["error"].is_null()).collect();
    assert_eq!(stored, [true, false, true]);
}

/// What was typed is told although nothing more is typed.
#[test]
fn a_line_is_told_while_the_next_one_is_awaited() {
    let broker = Broker::start();
    let mut running = Running::start(&["produce", "-n", &broker.names, "-t", "T", "--timeout", "50"]);
    let begun = Instant::now();
    running.child.stdin.as_mut().unwrap().write_all(b"one\n").unwrap();
    assert!(running.line().starts_with("SEND_OK "));
    assert!(begun.elapsed() < Duration::from_secs(40), "told at its end only");
    assert_eq!(running.end("").status.code(), Some(0));
}

#[test]
fn a_counted_run_ends_with_its_time() {
    let broker = Broker::start();
    let words = ["produce", "-n", &broker.names, "-t", "T", "--count", "1000000000", "--size", "1", "--timeout", "1"];
    assert_eq!(Running::start(&words).end("").status.code(), Some(1));
}

/// A reader that goes away ends the command, which has consumed nothing that was not printed.
#[cfg(unix)]
#[test]
fn a_standard_output_that_is_closed_ends_the_command() {
    let broker = Broker::start();
    broker.run(&["produce", "-t", "T"], "one\n");
    let words = ["consume", "-n", &broker.names, "-t", "T", "-g", "G", "--from", "first"];
    let mut running = Running::start(&words);
    drop(running.out.take());
    let begun = Instant::now();
    let status = loop {
        if let Some(status) = running.child.try_wait().unwrap() {
            break status;
        }
        assert!(begun.elapsed() < LONGEST, "the command does not end");
        std::thread::sleep(Duration::from_millis(5));
    };
    assert_eq!(status.code(), Some(1));
}

/// A second signal ends at once what a handler holds up: this one prints to somebody who does not read.
#[cfg(unix)]
#[test]
fn a_second_signal_does_not_wait_for_a_handler() {
    let broker = Broker::start();
    broker.run(&["produce", "-t", "T", "--count", "1", "--size", "2000000"], "");
    let words = ["consume", "-n", &broker.names, "-t", "T", "-g", "G", "--from", "first"];
    let mut running = Running::start(&words);
    running.out.as_mut().unwrap().read_exact(&mut [0]).unwrap();
    running.signal("-TERM");
    let begun = Instant::now();
    let status = loop {
        if let Some(status) = running.child.try_wait().unwrap() {
            break status;
        }
        // The first one may not have been handled when the second comes: they are two only then.
        running.signal("-TERM");
        assert!(begun.elapsed() < LONGEST, "the command does not end");
        std::thread::sleep(Duration::from_millis(20));
    };
    assert!(status.code() == Some(1) && begun.elapsed() < Duration::from_secs(8), "{status} {:?}", begun.elapsed());
}
