//! JSON bodies as the Java side writes and reads them.
//!
//! [`normalise`] turns fastjson's habits (bare and single-quoted keys, whole objects as keys, repeated commas, comments,
//! odd numbers and escapes) into strict JSON in one pass; strict JSON comes out as it went in. [`read`] then has it parsed
//! and picks the members of a body, [`to_vec`] writes one the way every peer reads it. Command headers have a scanner of
//! their own.
//!
//! Source: alibaba/fastjson@1.2.83 src/main/java/com/alibaba/fastjson/parser/{JSONLexerBase,DefaultJSONParser}.java

use std::borrow::Cow;

pub use serde_json::Value;

use super::bytes::readable;
use super::remoting::push_escaped;
use crate::error::WireError;

mod item;
mod table;

pub use item::Item;
pub(crate) use item::{body, each_member, member, put};
pub(in crate::wire) use item::{ordinal, text_enum};
pub use table::{Key, QueueTable};

/// Deepest nesting of objects and arrays.
pub const DEPTH_MAX: u32 = 64;
/// So many objects and arrays a body may have whatever its length, and one more for each so many bytes of it: a struct
/// takes many times the two bytes of an empty object. Bodies of real peers have one in 19 bytes at most.
const NODES_MAX: usize = 4096;
const NODE_BYTES: usize = 12;

/// Reads a body. Of duplicate keys the last wins; unknown ones are ignored.
///
/// # Errors
/// `Json` naming `what`, with the byte at which it stops making sense; `BadNumber` or `WrongKind` naming a member.
pub fn read<T: Item>(what: &'static str, bytes: &[u8]) -> Result<T, WireError> {
    T::read(what, parse(what, bytes)?)
}

/// The value of a whole body. It has one: null is refused.
fn parse(what: &'static str, bytes: &[u8]) -> Result<Value, WireError> {
    let strict = normalise(what, bytes)?;
    let text = str::from_utf8(&strict).map_err(|error| WireError::Json { what, at: error.valid_up_to() })?;
    // `parse` and not `from_slice`: this one the library has compiled.
    let value: Value = text
        .parse()
        .map_err(|error: serde_json::Error| WireError::Json { what, at: error.column().saturating_sub(1) })?;
    if value.is_null() { Err(WireError::WrongKind { field: what }) } else { Ok(value) }
}

/// A body as bytes.
pub fn to_vec<T: Item>(body: &T) -> Vec<u8> {
    let mut out = Vec::new();
    body.write(&mut out);
    out
}

/// `bytes` as strict JSON; borrowed if they are.
///
/// A key that is an object comes out as a text that holds it, as fastjson would also accept it.
///
/// # Errors
/// `Json` naming `what` if it is not even that, or nested deeper than [`DEPTH_MAX`].
pub fn normalise<'a>(what: &'static str, bytes: &'a [u8]) -> Result<Cow<'a, [u8]>, WireError> {
    if str::from_utf8(bytes).is_ok() {
        return Normaliser::run(what, bytes);
    }
    let text = readable(bytes);
    Normaliser::run(what, text.as_bytes()).map(|strict| Cow::Owned(strict.into_owned()))
}

struct Normaliser<'a> {
    what: &'static str,
    bytes: &'a [u8],
    at: usize,
    /// What stands before this is in `out` or was dropped.
    copied: usize,
    out: Vec<u8>,
    changed: bool,
    in_key: bool,
    nodes: usize,
}

impl<'a> Normaliser<'a> {
    fn run(what: &'static str, bytes: &'a [u8]) -> Result<Cow<'a, [u8]>, WireError> {
        let mut pass = Self { what, bytes, at: 0, copied: 0, out: Vec::new(), changed: false, in_key: false, nodes: 0 };
        pass.value(0)?;
        pass.blank()?;
        if pass.at < bytes.len() {
            return Err(pass.bad());
        }
        if !pass.changed {
            return Ok(Cow::Borrowed(bytes));
        }
        pass.replace(pass.at, b"");
        Ok(Cow::Owned(pass.out))
    }

    #[cold]
    fn bad(&self) -> WireError {
        WireError::Json { what: self.what, at: self.at }
    }

    fn peek(&self) -> Option<u8> {
        self.bytes.get(self.at).copied()
    }

    /// What stands from `from` to here comes out as `with`.
    fn replace(&mut self, from: usize, with: &[u8]) {
        self.give(self.bytes.get(self.copied..from).unwrap_or_default());
        self.give(with);
        self.copied = self.at;
        self.changed = true;
    }

    /// What stands from `from` to here comes out as the inside of a text.
    fn replace_by_text(&mut self, from: usize, text: &[u8]) {
        let mut escaped = Vec::new();
        push_escaped(&mut escaped, text);
        self.replace(from, &escaped);
    }

    /// Puts strict JSON out, as a text if it belongs to an object that is a key: escaped on its way, so that such a key
    /// is never held a second time.
    fn give(&mut self, strict: &[u8]) {
        if self.in_key { push_escaped(&mut self.out, strict) } else { self.out.extend_from_slice(strict) }
    }

    /// Passes over blanks, dropping comments and blanks that JSON does not know.
    fn blank(&mut self) -> Result<(), WireError> {
        loop {
            let from = self.at;
            match self.peek() {
                Some(b' ' | b'\t' | b'\n' | b'\r') => {
                    self.at += 1;
                    continue;
                }
                Some(0x08 | 0x0C) => self.at += 1,
                Some(b'/') => self.comment()?,
                _ => return Ok(()),
            }
            self.replace(from, b"");
        }
    }

    fn comment(&mut self) -> Result<(), WireError> {
        let rest = self.bytes.get(self.at + 1..).unwrap_or_default();
        let inside = rest.get(1..).unwrap_or_default();
        let len = match rest.first() {
            Some(b'/') => inside.iter().position(|byte| *byte == b'\n').unwrap_or(inside.len()),
            Some(b'*') => inside.windows(2).position(|pair| pair == b"*/").ok_or_else(|| self.bad())? + 2,
            _ => return Err(self.bad()),
        };
        self.at += 2 + len;
        Ok(())
    }

    fn value(&mut self, depth: u32) -> Result<(), WireError> {
        self.blank()?;
        match self.peek() {
            Some(b'{') => self.object(depth + 1),
            Some(b'[') => self.array(depth + 1),
            Some(quote @ (b'"' | b'\'')) => self.text(quote),
            Some(_) => self.bare(),
            None => Err(self.bad()),
        }
    }

    /// Passes over commas before an item. `first`: none is due. Says whether an item follows; if not, `end` has been
    /// consumed.
    fn commas(&mut self, first: bool, end: u8) -> Result<bool, WireError> {
        self.blank()?;
        let mut due = !first;
        let mut last = None;
        while self.peek() == Some(b',') {
            let from = self.at;
            self.at += 1;
            if due {
                due = false;
                last = Some((from, self.at));
            } else {
                self.replace(from, b"");
            }
            self.blank()?;
        }
        if self.peek() == Some(end) {
            // The one comma that was kept leads to nothing.
            if let Some((from, to)) = last {
                self.drop_kept(from, to);
            }
            self.at += 1;
            return Ok(false);
        }
        if due { Err(self.bad()) } else { Ok(true) }
    }

    /// Takes a comma back that was passed over as it was.
    fn drop_kept(&mut self, from: usize, to: usize) {
        if from >= self.copied {
            let here = std::mem::replace(&mut self.at, to);
            self.replace(from, b"");
            self.at = here;
            return;
        }
        // Blanks behind it have been rewritten already: it is the last comma that was put out.
        if let Some(at) = self.out.iter().rposition(|byte| *byte == b',') {
            self.out.remove(at);
        }
    }

    /// Enters an object or array.
    fn enter(&mut self, depth: u32) -> Result<(), WireError> {
        self.nodes += 1;
        if depth > DEPTH_MAX || self.nodes > NODES_MAX + self.bytes.len() / NODE_BYTES {
            return Err(self.bad());
        }
        self.at += 1;
        Ok(())
    }

    fn array(&mut self, depth: u32) -> Result<(), WireError> {
        self.enter(depth)?;
        let mut first = true;
        while self.commas(first, b']')? {
            self.value(depth)?;
            first = false;
        }
        Ok(())
    }

    fn object(&mut self, depth: u32) -> Result<(), WireError> {
        self.enter(depth)?;
        let mut first = true;
        while self.commas(first, b'}')? {
            self.key(depth)?;
            self.blank()?;
            if self.peek() != Some(b':') {
                return Err(self.bad());
            }
            self.at += 1;
            self.value(depth)?;
            first = false;
        }
        Ok(())
    }

    fn key(&mut self, depth: u32) -> Result<(), WireError> {
        match self.peek() {
            Some(quote @ (b'"' | b'\'')) => self.text(quote),
            Some(b'{' | b'[') => self.object_key(depth),
            Some(_) => {
                let from = self.at;
                let word = self.word()?;
                self.replace(from, b"\"");
                self.replace_by_text(self.at, word);
                self.give(b"\"");
                Ok(())
            }
            None => Err(self.bad()),
        }
    }

    /// A whole object in the place of a key. One inside another's key is refused: nobody writes it, and each level of
    /// quoting would double its escapes.
    fn object_key(&mut self, depth: u32) -> Result<(), WireError> {
        if self.in_key {
            return Err(self.bad());
        }
        self.replace(self.at, b"\"");
        self.in_key = true;
        self.value(depth)?;
        self.replace(self.at, b"");
        self.in_key = false;
        self.give(b"\"");
        Ok(())
    }

    /// A quoted text. What JSON would not allow inside is rewritten.
    fn text(&mut self, quote: u8) -> Result<(), WireError> {
        if quote == b'\'' {
            let from = self.at;
            self.at += 1;
            self.replace(from, b"\"");
        } else {
            self.at += 1;
        }
        loop {
            let from = self.at;
            let Some(byte) = self.peek() else { return Err(self.bad()) };
            self.at += 1;
            match byte {
                b'\\' => self.escape(from)?,
                b'"' if quote == b'\'' => self.replace(from, b"\\\""),
                _ if byte == quote => {
                    if quote == b'\'' {
                        self.replace(from, b"\"");
                    }
                    return Ok(());
                }
                0..=0x1F => self.replace_by_text(from, &[byte]),
                _ => {}
            }
        }
    }

    /// What follows a backslash at `from`.
    fn escape(&mut self, from: usize) -> Result<(), WireError> {
        let Some(byte) = self.peek() else { return Err(self.bad()) };
        self.at += 1;
        let found = match byte {
            b'"' | b'\\' | b'/' | b'b' | b'f' | b'n' | b'r' | b't' => return Ok(()),
            b'u' => return self.unicode(from),
            b'x' => {
                let code = self.hex(2)?;
                char::from_u32(code).unwrap_or(char::REPLACEMENT_CHARACTER)
            }
            b'v' => '\u{b}',
            b'0'..=b'7' => char::from(byte - b'0'),
            _ => {
                // The character itself stays; it may go on beyond this byte, or need an escape of its own.
                self.at = from + 1;
                self.replace(from, b"");
                if byte > 0x1F {
                    self.at += 1;
                }
                return Ok(());
            }
        };
        self.replace_by_text(from, found.encode_utf8(&mut [0; 4]).as_bytes());
        Ok(())
    }

    /// A `\u` escape, whose digits come next; half a surrogate pair becomes U+FFFD.
    fn unicode(&mut self, from: usize) -> Result<(), WireError> {
        match self.hex(4)? {
            0xD800..0xDC00 => {
                let low = self.bytes.get(self.at..self.at + 2) == Some(b"\\u") && {
                    let here = self.at;
                    self.at += 2;
                    let low = matches!(self.hex(4), Ok(0xDC00..0xE000));
                    if !low {
                        self.at = here;
                    }
                    low
                };
                if !low {
                    self.replace(from, b"\\ufffd");
                }
            }
            0xDC00..0xE000 => self.replace(from, b"\\ufffd"),
            _ => {}
        }
        Ok(())
    }

    fn hex(&mut self, digits: usize) -> Result<u32, WireError> {
        let found = self.bytes.get(self.at..self.at + digits).ok_or_else(|| self.bad())?;
        let value = found.iter().try_fold(0, |value, byte| Some(value * 16 + char::from(*byte).to_digit(16)?));
        let value = value.ok_or_else(|| self.bad())?;
        self.at += digits;
        Ok(value)
    }

    /// An unquoted run of bytes: a number, a literal, a bare key.
    fn word(&mut self) -> Result<&'a [u8], WireError> {
        let rest = self.bytes.get(self.at..).unwrap_or_default();
        let ends = |byte: &u8| matches!(byte, 0..=b' ' | b'"' | b'\'' | b',' | b':' | b'{' | b'}' | b'[' | b']' | b'/');
        let len = rest.iter().position(ends).unwrap_or(rest.len());
        if len == 0 {
            return Err(self.bad());
        }
        self.at += len;
        Ok(rest.get(..len).unwrap_or_default())
    }

    fn bare(&mut self) -> Result<(), WireError> {
        let from = self.at;
        let word = self.word()?;
        if matches!(word, b"true" | b"false" | b"null") || is_number(word) {
            return Ok(());
        }
        let text = str::from_utf8(word).unwrap_or_default();
        match text {
            "NaN" | "undefined" => self.replace(from, b"null"),
            _ => {
                // Java's suffixes of numbers, signs and zeros in front.
                let text = text.strip_suffix(['L', 'S', 'B', 'F', 'D']).unwrap_or(text);
                if let Ok(number) = text.parse::<i64>() {
                    self.replace(from, number.to_string().as_bytes());
                } else if let Some(number) = odd_fraction(text) {
                    self.replace(from, number.as_bytes());
                } else {
                    self.at = from;
                    return Err(self.bad());
                }
            }
        }
        Ok(())
    }
}

/// A fraction that Java reads and JSON does not know, as in `.5`, `1.` and `+1.5`.
fn odd_fraction(text: &str) -> Option<String> {
    let legal = text.bytes().all(|byte| byte.is_ascii_digit() || matches!(byte, b'.' | b'e' | b'E' | b'+' | b'-'));
    let number: f64 = legal.then(|| text.parse().ok())??;
    serde_json::Number::from_f64(number).map(|number| number.to_string())
}

/// Whether `word` is a number by JSON's grammar.
fn is_number(word: &[u8]) -> bool {
    fn digits(bytes: &[u8]) -> Option<&[u8]> {
        let len = bytes.iter().position(|byte| !byte.is_ascii_digit()).unwrap_or(bytes.len());
        if len == 0 { None } else { bytes.get(len..) }
    }
    let whole = word.strip_prefix(b"-").unwrap_or(word);
    let rest = match whole {
        [b'0', rest @ ..] => Some(rest),
        _ => digits(whole),
    };
    let rest = match rest {
        Some([b'.', rest @ ..]) => digits(rest),
        rest => rest,
    };
    let rest = match rest {
        Some([b'e' | b'E', rest @ ..]) => {
            digits(rest.strip_prefix(b"+").or_else(|| rest.strip_prefix(b"-")).unwrap_or(rest))
        }
        rest => rest,
    };
    rest == Some(&[])
}

/// For the fuzz target `json`: strict JSON stays as it is, everything else becomes strict once and for all.
#[doc(hidden)]
#[cfg(any(test, fuzzing))]
pub fn fuzz_json(bytes: &[u8], measure: super::Measure) {
    let mut found = None;
    let peak = measure(&mut || found = Some(normalise("fuzz", bytes)));
    // One byte for the copy that is UTF-8. Seven for a control character in a text in a key, in a vector that grows by
    // doubling: while it moves, the old one is there beside one of twice its size.
    assert!(peak <= (1 + 3 * 7) * bytes.len() + 4096, "{peak} bytes for {}", bytes.len());
    let Some(Ok(strict)) = found else { return };
    let again = normalise("fuzz", &strict);
    assert!(matches!(&again, Ok(Cow::Borrowed(same)) if *same == &*strict), "once and for all: {again:?}");
    let parsed = |bytes: &[u8]| str::from_utf8(bytes).map(str::parse::<Value>);
    let out_of_range = |error: serde_json::Error| error.to_string().contains("number out of range");
    assert!(
        parsed(&strict).is_ok_and(|parsed| parsed.map_or_else(out_of_range, |_| true)),
        "the library reads it: {}",
        String::from_utf8_lossy(&strict)
    );
    // What the library gives up at a number may be lax behind it.
    if matches!(parsed(bytes), Ok(Ok(_))) {
        assert!(matches!(strict, Cow::Borrowed(_)), "strict JSON stays as it is");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn strict(text: &str) -> String {
        String::from_utf8(normalise("test", text.as_bytes()).unwrap().into_owned()).unwrap()
    }

    #[test]
    fn strict_json_stays_as_it_is() {
        for text in [
            r#"{"a":[1,-2.5e+10,0,"x\u0041\n\/",true,false,null,{}],"b":{"":""}} "#,
            " [ 1 , 2 ]\n",
            "\"\\ud83d\\ude00 é\"",
            "9223372036854775807",
            r#"{"a":1,"a":2}"#,
        ] {
            assert!(matches!(normalise("test", text.as_bytes()), Ok(Cow::Borrowed(_))), "{text}");
        }
    }

    #[test]
    fn fastjsons_habits_become_strict() {
        for (habit, json) in [
            ("{0:\"a\",1:\"b\"}", r#"{"0":"a","1":"b"}"#),
            ("{a:1,'b':'it\\'s \"q\"'}", r#"{"a":1,"b":"it's \"q\""}"#),
            ("{,,\"a\":1,,\"b\":2,}", r#"{"a":1,"b":2}"#),
            ("[1,,2,]", "[1,2]"),
            ("[1, /* x */ ]", "[1  ]"),
            ("[1 /*,*/ , // y\n ]", "[1   \n ]"),
            ("{\"a\":1,/**/}", r#"{"a":1}"#),
            ("[NaN,+1,.5,1.,007,3L,1.5D]", "[null,1,0.5,1.0,7,3,1.5]"),
            (r#"["\x41\0\v\'\ud800","\udc00"]"#, r#"["A\u0000\u000B'\ufffd","\ufffd"]"#),
            ("[\"a\tb\"]", r#"["a\tb"]"#),
            (
                r#"{"t":{{"brokerName":"b","queueId":0,"topic":"T"}:12,{queueId:1}:{"x":1}}}"#,
                r#"{"t":{"{\"brokerName\":\"b\",\"queueId\":0,\"topic\":\"T\"}":12,"{\"queueId\":1}":{"x":1}}}"#,
            ),
            ("{{'a':\"q\\\"\"}:1}", r#"{"{\"a\":\"q\\\"\"}":1}"#),
        ] {
            assert_eq!(strict(habit), json, "{habit}");
            serde_json::from_str::<serde_json::Value>(json).unwrap();
        }
    }

    #[test]
    fn what_is_no_json_at_all_is_refused_with_its_place() {
        for (text, at) in [
            ("", 0),
            ("{", 1),
            ("{\"a\" 1}", 5),
            ("{\"a\":1 \"b\":2}", 7),
            ("[1 2]", 3),
            ("[1]x", 3),
            ("[abc]", 1),
            ("\"a", 2),
            ("/", 0),
            ("{{{1:2}:3}:4}", 2),
            ("\"\\u00g0\"", 3),
        ] {
            let error = normalise("test", text.as_bytes()).unwrap_err();
            assert_eq!(error, WireError::Json { what: "test", at }, "{text}");
        }
        assert_eq!(normalise("test", b"[\"\xFF\"]").unwrap().as_ref(), b"[\"?\"]");
    }

    #[test]
    fn nesting_is_bounded() {
        let nested = |depth: usize| "[".repeat(depth) + &"]".repeat(depth);
        assert!(normalise("test", nested(64).as_bytes()).is_ok());
        assert!(normalise("test", nested(65).as_bytes()).is_err());
        assert!(normalise("test", "{1:".repeat(1_000_000).as_bytes()).is_err());
        assert!(normalise("test", "{".repeat(1_000_000).as_bytes()).is_err());
    }

    #[test]
    fn the_number_of_nodes_is_bounded_by_the_length() {
        let empty = |count: usize| format!("[{}{{}}]", "{},".repeat(count - 2));
        assert!(normalise("test", empty(4096).as_bytes()).is_ok());
        assert!(normalise("test", empty(10_000).as_bytes()).is_err());
        let small = format!("[{}{{}}]", "{\"groupName\":\"P\"},".repeat(100_000));
        assert!(normalise("test", small.as_bytes()).is_ok());
    }

    #[test]
    fn of_duplicate_keys_the_last_wins() {
        body! {
            #[derive(Debug, Default, PartialEq)]
            struct Body {
                a: i32 = "a";
            }
        }
        assert_eq!(read::<Body>("test", b"{\"a\":1,a:2,}").map(|body| body.a), Ok(2));
        assert!(read::<Body>("test", b"{\"a\":\"x\"}").is_err());
    }
}
