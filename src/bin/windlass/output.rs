//! What the commands print: errors and attempts as JSON, base64, and standard output that says when it is broken.

use serde_json::{Value, json};
use std::io::{self, Write};
use std::time::Duration;
use windlass::{Attempt, Error, Stage, Stored};

/// One line on standard output, flushed: what follows may rely on its being seen.
pub fn line(text: &str) -> io::Result<()> {
    let mut out = io::stdout().lock();
    out.write_all(text.as_bytes())?;
    out.write_all(b"\n")?;
    out.flush()
}

/// One line on standard error. Nobody may be there to read it, and no work stops for that.
pub fn note(text: &str) {
    let _nobody_listens = writeln!(io::stderr().lock(), "{text}");
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
