//! What the commands print: errors and attempts as JSON, base64, and standard output that says when it is broken.

use serde_json::{Value, json};
use std::io::{self, Write};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};
use windlass::{Attempt, Error, Stage, Stored};

/// How long standard error may take none of a line before the line is left out.
const NOTE: Duration = Duration::from_secs(1);
/// A pipe that is full and does not block is tried again after this.
const FULL: Duration = Duration::from_millis(2);

/// Standard output, once for all threads; none before its first line.
static OUT: Mutex<Option<Lines<Raw>>> = Mutex::new(None);

/// One line on standard output, written out: what follows may rely on its being seen. A reader that is behind is waited
/// for, also where the pipe was made non-blocking by whoever shares it.
///
/// # Errors
/// The first error, and the same kind again ever after: behind half a line no other is written.
pub fn line(text: &str) -> io::Result<()> {
    let mut out = OUT.lock().unwrap_or_else(PoisonError::into_inner);
    let lines = match &mut *out {
        Some(lines) => lines,
        none => none.insert(Lines { torn: ends_torn(), ..Lines::new(raw_stdout()?) }),
    };
    lines.line(text, None)
}

/// One line on standard error. Nobody may be there to read it, and no work stops for that.
pub fn note(text: &str) {
    static ERR: Mutex<Lines<io::Stderr>> = Mutex::new(Lines { to: None, torn: false, broken: None });
    let mut err = ERR.lock().unwrap_or_else(PoisonError::into_inner);
    err.to.get_or_insert_with(io::stderr);
    let _nobody_listens = err.line(text, Some(NOTE));
    // It has no buffer, and somebody may listen again.
    err.broken = None;
}

/// Standard output without the buffer of `std`, which cannot say how much of a line has been written before an error.
#[cfg(unix)]
type Raw = std::fs::File;
#[cfg(not(unix))]
type Raw = io::Stdout;

#[cfg(unix)]
fn raw_stdout() -> io::Result<Raw> {
    use std::os::fd::AsFd;
    Ok(io::stdout().as_fd().try_clone_to_owned()?.into())
}

#[cfg(not(unix))]
fn raw_stdout() -> io::Result<Raw> {
    Ok(io::stdout())
}

/// Whether standard output is a file that ends in mid-line: what wrote there before was killed, and its rest must not
/// swallow the first line.
fn ends_torn() -> bool {
    use io::{Read, Seek};
    let last = || {
        let mut file =
            std::fs::File::open("/dev/fd/1").ok().filter(|file| file.metadata().is_ok_and(|it| it.is_file()))?;
        file.seek(io::SeekFrom::End(-1)).ok()?;
        let mut last = [0];
        file.read_exact(&mut last).ok()?;
        Some(last)
    };
    cfg!(unix) && last().is_some_and(|last| last != *b"\n")
}

/// Whole lines, each by one write where the system takes it whole: a process that is killed leaves no line without its
/// end that could have had one.
struct Lines<W> {
    /// `None` before the first line.
    to: Option<W>,
    /// The last line was not written to its end.
    torn: bool,
    broken: Option<io::ErrorKind>,
}

impl<W: Write> Lines<W> {
    fn new(to: W) -> Self {
        Self { to: Some(to), torn: false, broken: None }
    }

    /// `patience`: how long to wait for who takes nothing.
    fn line(&mut self, text: &str, patience: Option<Duration>) -> io::Result<()> {
        if let Some(kind) = self.broken {
            return Err(kind.into());
        }
        let Some(to) = &mut self.to else { return Ok(()) };
        let start = if self.torn { "\n" } else { "" };
        let whole = [start, text, "\n"].concat();
        let mut rest = whole.as_bytes();
        let mut since = Instant::now();
        while !rest.is_empty() {
            let error = match to.write(rest) {
                Ok(0) => io::ErrorKind::WriteZero.into(),
                Ok(written) => {
                    rest = rest.get(written..).unwrap_or_default();
                    since = Instant::now();
                    continue;
                }
                Err(error) => error,
            };
            match error.kind() {
                io::ErrorKind::Interrupted => continue,
                io::ErrorKind::WouldBlock if patience.is_none_or(|most| since.elapsed() < most) => {
                    std::thread::sleep(FULL);
                    continue;
                }
                kind => self.broken = Some(kind),
            }
            self.torn |= rest.len() < whole.len();
            return Err(error);
        }
        self.torn = false;
        to.flush()
    }
}

/// An error as the member `error` of a JSON line: its kind, the stage and code of the last attempt, and every attempt.
pub fn error(error: &Error) -> Value {
    let attempts = error.attempts();
    let last = attempts.last();
    let stored = match error {
        Error::Send { stored: Stored::Unknown, .. } | Error::Timeout { .. } | Error::Disconnected { .. } => "unknown",
        _ => "no",
    };
    json!({
        "kind": kind(error),
        "stage": last.map(|attempt| stage(attempt.stage)),
        "code": error.broker_code(),
        "stored": stored,
        "attempts": attempts.iter().map(attempt).collect::<Vec<_>>(),
        "text": error.to_string(),
    })
}

fn attempt(attempt: &Attempt) -> Value {
    json!({
        "broker": attempt.broker,
        "stage": stage(attempt.stage),
        "ms": ms(attempt.took),
        "code": attempt.code,
        "detail": attempt.detail,
    })
}

/// Stable names of [`Error`]'s variants.
fn kind(error: &Error) -> &'static str {
    match error {
        Error::Config(_) => "config",
        Error::Wire(_) => "wire",
        Error::Connect { .. } => "connect",
        Error::Timeout { .. } => "timeout",
        Error::Disconnected { .. } => "disconnected",
        Error::Broker { .. } => "broker",
        Error::UnknownTopic { .. } => "unknown_topic",
        Error::NoNameServer { .. } => "no_name_server",
        Error::NoQueue { .. } => "no_queue",
        Error::Send { .. } => "send",
        Error::Message { .. } => "message",
        Error::Revoked { .. } => "revoked",
        Error::NotDrained { .. } => "not_drained",
        Error::Commit { .. } => "commit",
        Error::InUse { .. } => "in_use",
        Error::Io { .. } => "io",
        Error::Store { .. } => "store",
        Error::Overloaded { .. } => "overloaded",
        Error::Closed => "closed",
        _ => "other",
    }
}

fn stage(stage: Stage) -> &'static str {
    match stage {
        Stage::Route => "route",
        Stage::Connect => "connect",
        Stage::Queue => "queue",
        Stage::Write => "write",
        Stage::Wait => "wait",
        Stage::Answer => "answer",
        _ => "other",
    }
}

/// Whole milliseconds.
pub fn ms(span: Duration) -> u64 {
    u64::try_from(span.as_millis()).unwrap_or(u64::MAX)
}

/// RFC 4648 with padding.
pub fn base64(bytes: &[u8]) -> String {
    const LETTERS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let mut text = String::with_capacity(bytes.len().div_ceil(3) * 4);
    for chunk in bytes.chunks(3) {
        let word = chunk.iter().fold(0u32, |word, byte| word << 8 | u32::from(*byte)) << (8 * (3 - chunk.len()));
        for at in 0..4 {
            let letter = LETTERS.get((word >> (18 - 6 * at) & 63) as usize).copied().unwrap_or(b'=');
            text.push(if at <= chunk.len() { char::from(letter) } else { '=' });
        }
    }
    text
}

/// A progress bar on standard error if that is a terminal and standard output is none, so that lines are not torn.
pub fn progress(total: Option<u64>) -> indicatif::ProgressBar {
    use std::io::IsTerminal;
    if !io::stderr().is_terminal() || io::stdout().is_terminal() {
        return indicatif::ProgressBar::hidden();
    }
    match total {
        Some(total) => indicatif::ProgressBar::new(total),
        None => indicatif::ProgressBar::new_spinner(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Takes what its script says of each write.
    #[derive(Default)]
    struct Pipe {
        took: Vec<u8>,
        writes: usize,
        script: Vec<Result<usize, io::ErrorKind>>,
    }

    impl Write for Pipe {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.writes += 1;
            let most = if self.script.is_empty() { bytes.len() } else { self.script.remove(0)? };
            let taken = most.min(bytes.len());
            self.took.extend_from_slice(&bytes[..taken]);
            Ok(taken)
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    fn lines(script: &[Result<usize, io::ErrorKind>]) -> Lines<Pipe> {
        Lines::new(Pipe { script: script.to_vec(), ..Pipe::default() })
    }

    fn took(lines: &Lines<Pipe>) -> &str {
        std::str::from_utf8(&lines.to.as_ref().unwrap().took).unwrap()
    }

    #[test]
    fn a_line_is_one_write_with_its_end() {
        let mut lines = lines(&[]);
        lines.line(&"x".repeat(5000), None).unwrap();
        assert_eq!((lines.to.as_ref().unwrap().writes, took(&lines).len()), (1, 5001));
    }

    #[test]
    fn a_full_pipe_that_does_not_block_is_waited_for() {
        let full = Err(io::ErrorKind::WouldBlock);
        let mut lines = lines(&[full, Ok(3), full, Err(io::ErrorKind::Interrupted), full, Ok(1)]);
        lines.line("one line", None).unwrap();
        lines.line("another", None).unwrap();
        assert_eq!(took(&lines), "one line\nanother\n");
    }

    #[test]
    fn behind_half_a_line_nothing_follows_on_standard_output() {
        let mut lines = lines(&[Ok(3), Err(io::ErrorKind::BrokenPipe)]);
        assert!(lines.line("{\"one\":1}", None).is_err());
        assert_eq!(lines.line("{\"two\":2}", None).unwrap_err().kind(), io::ErrorKind::BrokenPipe);
        assert_eq!(took(&lines), "{\"o");
    }

    #[test]
    fn a_note_that_nobody_takes_is_left_out_and_the_next_begins_a_line_of_its_own() {
        let full = Err(io::ErrorKind::WouldBlock);
        let mut lines = lines(&[Ok(3), full, full]);
        assert!(lines.line("{\"one\":1}", Some(Duration::ZERO)).is_err());
        lines.broken = None;
        assert!(lines.line("lost whole", Some(Duration::ZERO)).is_err());
        lines.broken = None;
        lines.line("{\"two\":2}", Some(Duration::ZERO)).unwrap();
        assert_eq!(took(&lines), "{\"o\n{\"two\":2}\n");
    }

    #[test]
    fn base64_is_that_of_the_rfc() {
        for (text, coded) in
            [("", ""), ("f", "Zg=="), ("fo", "Zm8="), ("foo", "Zm9v"), ("foob", "Zm9vYg=="), ("foobar", "Zm9vYmFy")]
        {
            assert_eq!(base64(text.as_bytes()), coded);
        }
        assert_eq!(base64(&[0xff, 0xfe]), "//4=");
    }

    #[test]
    fn a_failed_send_is_told_whole() {
        let attempt = Attempt {
            broker: "b".into(),
            stage: Stage::Answer,
            took: Duration::from_millis(7),
            code: Some(14),
            detail: "full".into(),
        };
        let told = error(&Error::Send { topic: "t".into(), attempts: vec![attempt], stored: Stored::No });
        assert_eq!((&told["kind"], &told["stage"], &told["code"]), (&json!("send"), &json!("answer"), &json!(14)));
        let attempts = json!([{"broker": "b", "stage": "answer", "ms": 7, "code": 14, "detail": "full"}]);
        assert_eq!((&told["attempts"], &told["stored"]), (&attempts, &json!("no")));
        assert_eq!(error(&Error::Closed)["stage"], Value::Null);
    }
}
