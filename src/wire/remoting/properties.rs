//! Properties of a message: `name 0x01 value 0x02 name 0x01 value [0x02]`, looked up when asked for.
//!
//! Source: apache/rocketmq@rocketmq-all-5.3.3
//! common/src/main/java/org/apache/rocketmq/common/message/{MessageDecoder,MessageConst}.java

use crate::error::WireError;
use crate::wire::bytes::decimal;

/// Ends a name.
pub const NAME_END: u8 = 1;
/// Ends a value, unless it is the last one.
pub const VALUE_END: u8 = 2;

/// Names with a meaning for clients and brokers.
pub mod names {
    /// The one tag.
    pub const TAGS: &str = "TAGS";
    /// Keys for the index, joined by one blank.
    pub const KEYS: &str = "KEYS";
    /// `false`: do not wait for flush and replica. Java always writes it.
    pub const WAIT: &str = "WAIT";
    /// The client's unique id.
    pub const UNIQ_KEY: &str = "UNIQ_KEY";
    /// Delay level.
    pub const DELAY: &str = "DELAY";
    /// Timer message: when, in ms since 1970 (5.x).
    pub const TIMER_DELIVER_MS: &str = "TIMER_DELIVER_MS";
    /// Timer message: after so many ms (5.x).
    pub const TIMER_DELAY_MS: &str = "TIMER_DELAY_MS";
    /// Timer message: after so many seconds (5.x).
    pub const TIMER_DELAY_SEC: &str = "TIMER_DELAY_SEC";
    /// Topic of a delayed or half message.
    pub const REAL_TOPIC: &str = "REAL_TOPIC";
    /// Queue of a delayed or half message.
    pub const REAL_QUEUE: &str = "REAL_QID";
    /// `true`: a half message.
    pub const TRANSACTION: &str = "TRAN_MSG";
    /// Group of a half message's producer.
    pub const PRODUCER_GROUP: &str = "PGROUP";
    /// Id of the transaction.
    pub const TRANSACTION_ID: &str = "__transactionId__";
    /// How often the producer was asked.
    pub const TRANSACTION_CHECK_TIMES: &str = "TRANSACTION_CHECK_TIMES";
    /// Topic of a message that came back.
    pub const RETRY_TOPIC: &str = "RETRY_TOPIC";
    /// Offset id of the first copy.
    pub const ORIGIN_MESSAGE_ID: &str = "ORIGIN_MESSAGE_ID";
    /// Redeliveries, while a client sends a message back by an ordinary send.
    pub const RECONSUME_TIME: &str = "RECONSUME_TIME";
    /// Most redeliveries, likewise.
    pub const MAX_RECONSUME_TIMES: &str = "MAX_RECONSUME_TIMES";
    /// First offset of the queue at the time of the pull.
    pub const MIN_OFFSET: &str = "MIN_OFFSET";
    /// One past the last offset of the queue at the time of the pull.
    pub const MAX_OFFSET: &str = "MAX_OFFSET";
    /// Topic of a dead letter (5.x).
    pub const DLQ_ORIGIN_TOPIC: &str = "DLQ_ORIGIN_TOPIC";
    /// Offset id of a dead letter (5.x).
    pub const DLQ_ORIGIN_MESSAGE_ID: &str = "DLQ_ORIGIN_MESSAGE_ID";
    /// Region of the broker.
    pub const MSG_REGION: &str = "MSG_REGION";
    /// Whether the message is to be traced.
    pub const TRACE_ON: &str = "TRACE_ON";
    /// Name of the cluster.
    pub const CLUSTER: &str = "CLUSTER";
    /// Messages in a record that holds a batch (5.x).
    pub const INNER_NUM: &str = "INNER_NUM";
    /// Sum over the whole record, last of the properties (5.x, off by default).
    pub const RECORD_CRC: &str = "__CRC32#";
}

/// A properties text as it is stored.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct Properties<'a> {
    text: &'a [u8],
}

impl<'a> Properties<'a> {
    /// Of a stored or sent text.
    pub fn new(text: &'a [u8]) -> Self {
        Self { text }
    }

    /// The text.
    pub fn text(&self) -> &'a [u8] {
        self.text
    }

    /// Every pair in order, as Java reads them: without a name or a value it is none. Of two with one name the later
    /// counts.
    pub fn iter(&self) -> Iter<'a> {
        Iter { rest: self.text }
    }

    /// The bytes of a value.
    #[inline]
    pub fn bytes(&self, name: &str) -> Option<&'a [u8]> {
        let mut found = None;
        let mut rest = self.text;
        while !rest.is_empty() {
            let (piece, after) = split(rest);
            rest = after;
            // Compared in place: the end of the name is looked for only where the name is right.
            if let Some([NAME_END, value @ ..]) = piece.strip_prefix(name.as_bytes())
                && !value.is_empty()
            {
                found = Some(value);
            }
        }
        found.filter(|_| !name.is_empty() && !name.as_bytes().contains(&NAME_END))
    }

    /// A value; `None` if there is none or it is not UTF-8.
    #[inline]
    pub fn find(&self, name: &str) -> Option<&'a str> {
        self.bytes(name).and_then(|value| str::from_utf8(value).ok())
    }

    /// A value that should be a number; `None` if there is none.
    ///
    /// # Errors
    /// `BadNumber` naming the property if it is none.
    pub fn number(&self, name: &'static str) -> Result<Option<i64>, WireError> {
        match self.bytes(name) {
            Some(value) => decimal(value).map(Some).ok_or(WireError::BadNumber { field: name }),
            None => Ok(None),
        }
    }

    /// A truth value: true only for `true`, in any case.
    pub fn is_true(&self, name: &str) -> bool {
        self.bytes(name).is_some_and(|value| value.eq_ignore_ascii_case(b"true"))
    }
}

/// The bytes up to the next end of a value, and what follows it.
#[inline]
fn split(text: &[u8]) -> (&[u8], &[u8]) {
    match text.iter().position(|byte| *byte == VALUE_END) {
        Some(at) => (text.get(..at).unwrap_or_default(), text.get(at + 1..).unwrap_or_default()),
        None => (text, &[]),
    }
}

/// See [`Properties::iter`].
#[derive(Clone, Debug)]
pub struct Iter<'a> {
    rest: &'a [u8],
}

impl<'a> Iterator for Iter<'a> {
    type Item = (&'a [u8], &'a [u8]);

    fn next(&mut self) -> Option<Self::Item> {
        while !self.rest.is_empty() {
            let (piece, after) = split(self.rest);
            self.rest = after;
            let Some(at) = piece.iter().position(|byte| *byte == NAME_END) else { continue };
            let (name, value) = (piece.get(..at).unwrap_or_default(), piece.get(at + 1..).unwrap_or_default());
            if !name.is_empty() && !value.is_empty() {
                return Some((name, value));
            }
        }
        None
    }
}

/// Appends one pair to a text that may or may not end with a separator. An empty name or value is left out, as readers
/// would drop it.
pub fn push(text: &mut Vec<u8>, name: &str, value: &str) {
    if name.is_empty() || value.is_empty() {
        return;
    }
    if text.last().is_some_and(|last| *last != VALUE_END) {
        text.push(VALUE_END);
    }
    text.extend_from_slice(name.as_bytes());
    text.push(NAME_END);
    text.extend_from_slice(value.as_bytes());
    text.push(VALUE_END);
}

/// Appends `text` without the pairs of these names, in order.
pub fn push_without(out: &mut Vec<u8>, text: Properties<'_>, names: &[&str]) {
    for (name, value) in text.iter() {
        if !names.iter().any(|dropped| dropped.as_bytes() == name) {
            if out.last().is_some_and(|last| *last != VALUE_END) {
                out.push(VALUE_END);
            }
            out.extend_from_slice(name);
            out.push(NAME_END);
            out.extend_from_slice(value);
            out.push(VALUE_END);
        }
    }
}

/// Checks a user's name or value: the two separators cannot be carried.
///
/// # Errors
/// `BadText` naming `what` if one occurs, or if the text is empty.
pub fn check(what: &'static str, text: &str) -> Result<(), WireError> {
    if text.is_empty() || text.bytes().any(|byte| matches!(byte, NAME_END | VALUE_END)) {
        return Err(WireError::BadText { what });
    }
    Ok(())
}

/// For the fuzz target `properties`: lookups agree with the walk, what is written is read as it was.
#[doc(hidden)]
#[cfg(any(test, fuzzing))]
pub fn fuzz_properties(bytes: &[u8], measure: crate::wire::Measure) {
    let text = Properties::new(bytes);
    let mut count = 0;
    let peak = measure(&mut || count = text.iter().count());
    assert_eq!(peak, 0, "a walk takes no memory");
    let pairs: Vec<_> = text.iter().collect();
    for (name, _) in pairs.iter().take(64) {
        let last = pairs.iter().rev().find(|(other, _)| other == name).map(|(_, value)| *value);
        if let Ok(name) = str::from_utf8(name) {
            assert_eq!(text.bytes(name), last, "the later counts");
        }
    }
    let mut out = Vec::new();
    push_without(&mut out, text, &[]);
    assert!(Properties::new(&out).iter().eq(pairs), "written and read");
    out.truncate(out.len().saturating_sub(1));
    push(&mut out, "\u{3}new", "v");
    assert_eq!(Properties::new(&out).find("\u{3}new"), Some("v"), "the last separator may be missing");
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pairs(text: &[u8]) -> Vec<String> {
        let pair = |(name, value): (&[u8], &[u8])| {
            format!("{}={}", String::from_utf8_lossy(name), String::from_utf8_lossy(value))
        };
        Properties::new(text).iter().map(pair).collect()
    }

    #[test]
    fn c_005_a_last_separator_may_be_missing() {
        for text in ["TAGS\u{1}A", "TAGS\u{1}A\u{2}"] {
            assert_eq!(pairs(text.as_bytes()), ["TAGS=A"]);
            let mut longer = text.as_bytes().to_vec();
            push(&mut longer, "WAIT", "true");
            assert_eq!(pairs(&longer), ["TAGS=A", "WAIT=true"]);
        }
    }

    #[test]
    fn pieces_that_are_no_pair_are_dropped() {
        assert_eq!(pairs(b"A\x01\x02\x01x\x02noSep\x02B\x011\x02\x02C\x01a\x01b"), ["B=1", "C=a\u{1}b"]);
        let twice = Properties::new(b"A\x011\x02AB\x013\x02A\x012\x02A\x01\x02");
        assert_eq!((twice.find("A"), twice.find("AB"), twice.find("B")), (Some("2"), Some("3"), None));
        assert_eq!((Properties::new(b"\x01x").find(""), twice.find("A\u{1}1")), (None, None));
    }

    #[test]
    fn c_006_text_that_should_be_a_number_is_an_error_of_its_reader_alone() {
        let found = Properties::new(b"DELAY\x014abc\x02RECONSUME_TIME\x01-\x02MAX_OFFSET\x01\x02OK\x017");
        assert_eq!(found.number(names::DELAY), Err(WireError::BadNumber { field: "DELAY" }));
        assert!(found.number(names::RECONSUME_TIME).is_err());
        assert_eq!((found.number(names::MAX_OFFSET), found.number("OK")), (Ok(None), Ok(Some(7))));
    }

    #[test]
    fn pairs_are_left_out_by_name() {
        let mut out = b"X\x011".to_vec();
        push_without(&mut out, Properties::new(b"A\x011\x02B\x012\x02C\x013"), &["B"]);
        assert_eq!(pairs(&out), ["X=1", "A=1", "C=3"]);
        assert!(check("name", "a\u{1}").is_err() && check("name", "").is_err() && check("name", "a").is_ok());
    }
}
