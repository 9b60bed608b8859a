//! The scanner of JSON command headers: one pass, no allocation, as lenient as the Java side.
//!
//! `command.rs` walks the header's members with it and `fields.rs` those of the extension fields. It accepts what
//! fastjson accepts (unquoted and single-quoted names, repeated commas, numbers as text) and skips what it does not
//! know, nested values included, down to a bounded depth. Bodies are not its business: `wire::json` reads them.

use super::fields::Value;
use crate::error::WireError;

/// Deepest nesting of a value that is skipped.
const DEPTH_MAX: u32 = 64;

/// What a member's value is.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum Kind {
    /// A quoted text.
    Text,
    /// A number, `true`, `false` or `null`.
    Bare,
    /// An object or array, as its bytes.
    Nested,
}

/// A scanned value and where it stands.
#[derive(Clone, Copy, Debug)]
pub(super) struct Scanned<'a> {
    pub kind: Kind,
    pub at: usize,
    pub text: Value<'a>,
}

impl Scanned<'_> {
    pub fn is_null(&self) -> bool {
        self.kind == Kind::Bare && self.text.is("null")
    }
}

/// One member of an object.
#[derive(Clone, Copy, Debug)]
pub(super) struct Member<'a> {
    pub name: Value<'a>,
    pub value: Scanned<'a>,
}

/// Walks the members of one object.
pub(super) struct Members<'a> {
    bytes: &'a [u8],
    at: usize,
}

impl<'a> Members<'a> {
    /// The members of the object whose `{` stands just before `at`.
    pub fn new(bytes: &'a [u8], at: usize) -> Self {
        Self { bytes, at }
    }

    /// The members of the object that starts at the first byte that is not blank.
    pub fn open(bytes: &'a [u8]) -> Result<Self, WireError> {
        let mut members = Self { bytes, at: 0 };
        members.blank()?;
        if members.peek() != Some(b'{') {
            return Err(members.bad());
        }
        members.at += 1;
        Ok(members)
    }

    /// Where the next byte stands that has not been read; after the last member, behind the object's `}`.
    pub fn at(&self) -> usize {
        self.at
    }

    #[inline]
    fn peek(&self) -> Option<u8> {
        self.bytes.get(self.at).copied()
    }

    #[cold]
    fn bad(&self) -> WireError {
        WireError::Json { what: "header", at: self.at }
    }

    /// Skips blanks and comments.
    #[inline]
    fn blank(&mut self) -> Result<(), WireError> {
        loop {
            match self.peek() {
                Some(b' ' | b'\t' | b'\n' | b'\r') => self.at += 1,
                Some(b'/') => self.comment()?,
                _ => return Ok(()),
            }
        }
    }

    #[cold]
    fn comment(&mut self) -> Result<(), WireError> {
        let rest = self.bytes.get(self.at + 1..).unwrap_or_default();
        let skip = match rest.first() {
            Some(b'/') => rest.iter().position(|byte| *byte == b'\n').unwrap_or(rest.len()),
            Some(b'*') => {
                let inside = rest.get(1..).unwrap_or_default();
                let end = inside.windows(2).position(|pair| pair == b"*/").ok_or_else(|| self.bad())?;
                end + 3
            }
            _ => return Err(self.bad()),
        };
        self.at += 1 + skip;
        Ok(())
    }

    /// A name up to and with its colon, after a comma or not, if it stands there as Java writes it: quoted, unescaped, no
    /// blanks. Else `None`, and nothing has moved.
    #[inline(always)]
    pub fn java_name(&mut self) -> Option<(usize, &'a [u8])> {
        let mut at = self.at;
        if self.bytes.get(at) == Some(&b',') {
            at += 1;
        }
        let (from, name) = java_text(self.bytes, at)?;
        let end = from + name.len();
        if self.bytes.get(end + 1) != Some(&b':') {
            return None;
        }
        self.at = end + 2;
        Some((from, name))
    }

    /// A value as Java writes it, an unescaped text or a whole number. Else `None`, and nothing has moved.
    #[inline(always)]
    pub fn java_value(&mut self) -> Option<Scanned<'a>> {
        if let Some((at, text)) = java_text(self.bytes, self.at) {
            self.at = at + text.len() + 1;
            return Some(Scanned { kind: Kind::Text, at, text: Value::of(text) });
        }
        let rest = self.bytes.get(self.at..)?;
        let len = rest.iter().position(|byte| !byte.is_ascii_digit() && *byte != b'-')?;
        if len == 0 || !matches!(rest.get(len), Some(b',' | b'}')) {
            return None;
        }
        let scanned = Scanned { kind: Kind::Bare, at: self.at, text: Value::of(rest.get(..len)?) };
        self.at += len;
        Some(scanned)
    }

    /// Consumes a `}` that comes next.
    #[inline(always)]
    pub fn java_end(&mut self) -> bool {
        let end = self.bytes.get(self.at) == Some(&b'}');
        self.at += usize::from(end);
        end
    }

    /// Consumes a `{` that comes next.
    #[inline(always)]
    pub fn java_enter(&mut self) -> bool {
        let object = self.bytes.get(self.at) == Some(&b'{');
        self.at += usize::from(object);
        object
    }

    /// The next member; `None` at the object's end, which is consumed.
    #[inline(never)]
    pub fn next(&mut self) -> Result<Option<Member<'a>>, WireError> {
        let Some((_, name)) = self.name()? else { return Ok(None) };
        let value = self.value()?;
        Ok(Some(Member { name, value }))
    }

    /// The next member's name, up to and with its colon; `None` at the object's end, which is consumed.
    #[inline(never)]
    pub fn name(&mut self) -> Result<Option<(usize, Value<'a>)>, WireError> {
        loop {
            match self.peek() {
                Some(b',') => self.at += 1,
                Some(b'"') => break,
                Some(b'}') => {
                    self.at += 1;
                    return Ok(None);
                }
                Some(b' ' | b'\t' | b'\n' | b'\r' | b'/') => self.blank()?,
                _ => break,
            }
        }
        let name = match self.peek() {
            Some(quote @ (b'"' | b'\'')) => self.quoted(quote)?,
            Some(_) => self.bare()?,
            None => return Err(self.bad()),
        };
        if self.peek() != Some(b':') {
            self.blank()?;
            if self.peek() != Some(b':') {
                return Err(self.bad());
            }
        }
        self.at += 1;
        Ok(Some(name))
    }

    /// True if an object comes next, whose `{` is then consumed.
    pub fn enter(&mut self) -> Result<bool, WireError> {
        self.blank()?;
        let object = self.peek() == Some(b'{');
        if object {
            self.at += 1;
        }
        Ok(object)
    }

    /// The value behind a colon.
    #[inline(never)]
    pub fn value(&mut self) -> Result<Scanned<'a>, WireError> {
        if !matches!(self.peek(), Some(b'"' | b'0'..=b'9')) {
            self.blank()?;
        }
        match self.peek() {
            Some(quote @ (b'"' | b'\'')) => {
                let (at, text) = self.quoted(quote)?;
                Ok(Scanned { kind: Kind::Text, at, text })
            }
            Some(b'{' | b'[') => {
                let at = self.at;
                self.skip_nested()?;
                let raw = self.bytes.get(at..self.at).unwrap_or_default();
                Ok(Scanned { kind: Kind::Nested, at, text: Value::of(raw) })
            }
            Some(_) => {
                let (at, text) = self.bare()?;
                Ok(Scanned { kind: Kind::Bare, at, text })
            }
            None => Err(self.bad()),
        }
    }

    /// A quoted text, its quotes consumed.
    #[inline]
    fn quoted(&mut self, quote: u8) -> Result<(usize, Value<'a>), WireError> {
        let from = self.at + 1;
        let mut at = from;
        let mut escaped = false;
        loop {
            at = quote_or_backslash(self.bytes, at, quote);
            match self.bytes.get(at) {
                Some(b'\\') => {
                    escaped = true;
                    at += 2;
                }
                Some(_) => break,
                None => return Err(self.bad()),
            }
        }
        self.at = at + 1;
        Ok((from, Value::new(self.bytes.get(from..at).unwrap_or_default(), escaped)))
    }

    /// An unquoted word: a number, a literal, a name.
    #[inline]
    fn bare(&mut self) -> Result<(usize, Value<'a>), WireError> {
        let from = self.at;
        let rest = self.bytes.get(from..).unwrap_or_default();
        let len = rest
            .iter()
            .position(|byte| matches!(byte, b',' | b'}' | b']' | b':' | b'{' | b'[' | b'"' | b'\'' | 0..=b' '))
            .unwrap_or(rest.len());
        if len == 0 {
            return Err(self.bad());
        }
        self.at = from + len;
        Ok((from, Value::of(rest.get(..len).unwrap_or_default())))
    }

    /// Skips an object or array: quotes are respected, brackets must balance, nothing else is checked.
    #[cold]
    fn skip_nested(&mut self) -> Result<(), WireError> {
        let mut depth = 0u32;
        loop {
            match self.peek() {
                Some(b'{' | b'[') => {
                    depth += 1;
                    if depth > DEPTH_MAX {
                        return Err(self.bad());
                    }
                    self.at += 1;
                }
                Some(b'}' | b']') => {
                    self.at += 1;
                    depth -= 1;
                    if depth == 0 {
                        return Ok(());
                    }
                }
                Some(quote @ (b'"' | b'\'')) => {
                    self.quoted(quote)?;
                }
                Some(_) => self.at += 1,
                None => return Err(self.bad()),
            }
        }
    }

    /// Checks that nothing but blanks follows the object.
    pub fn end(&mut self) -> Result<(), WireError> {
        self.blank()?;
        if self.at == self.bytes.len() { Ok(()) } else { Err(self.bad()) }
    }
}

/// The unescaped text whose opening quote stands at `at`, and where it starts.
#[inline(always)]
fn java_text(bytes: &[u8], at: usize) -> Option<(usize, &[u8])> {
    if bytes.get(at) != Some(&b'"') {
        return None;
    }
    let from = at + 1;
    let end = quote_or_backslash(bytes, from, b'"');
    if bytes.get(end) != Some(&b'"') {
        return None;
    }
    Some((from, bytes.get(from..end)?))
}

const ONES: u64 = 0x0101_0101_0101_0101;
const TOPS: u64 = 0x8080_8080_8080_8080;

/// The top bit of every byte of `word` that is zero. Bits above the lowest one set may be wrong, that one never is.
#[inline(always)]
fn zero_bytes(word: u64) -> u64 {
    word.wrapping_sub(ONES) & !word & TOPS
}

/// Position of the first `quote` or backslash at or after `at`; the end if there is none. Eight bytes at a time.
#[inline(always)]
fn quote_or_backslash(bytes: &[u8], mut at: usize, quote: u8) -> usize {
    let quotes = ONES * u64::from(quote);
    while let Some(chunk) = bytes.get(at..).and_then(<[u8]>::first_chunk::<8>) {
        let word = u64::from_le_bytes(*chunk);
        let found = zero_bytes(word ^ quotes) | zero_bytes(word ^ (ONES * u64::from(b'\\')));
        if found != 0 {
            return at + (found.trailing_zeros() / 8) as usize;
        }
        at += 8;
    }
    let tail = bytes.get(at..).unwrap_or_default();
    at + tail.iter().position(|byte| *byte == quote || *byte == b'\\').unwrap_or(tail.len())
}

/// How many bytes from the front may stand in a JSON string as they are.
#[inline]
pub(super) fn plain_len(bytes: &[u8]) -> usize {
    let mut at = 0;
    while let Some(chunk) = bytes.get(at..).and_then(<[u8]>::first_chunk::<8>) {
        let word = u64::from_le_bytes(*chunk);
        let low = word.wrapping_sub(ONES * 0x20) & !word & TOPS;
        let found = zero_bytes(word ^ (ONES * u64::from(b'"'))) | zero_bytes(word ^ (ONES * u64::from(b'\\'))) | low;
        if found != 0 {
            return at + (found.trailing_zeros() / 8) as usize;
        }
        at += 8;
    }
    let tail = bytes.get(at..).unwrap_or_default();
    at + tail.iter().position(|byte| matches!(byte, b'"' | b'\\' | 0..=0x1F)).unwrap_or(tail.len())
}

/// The bytes inside a JSON string, never more than there were. Escapes nobody knows stand for the character after the
/// backslash, half a surrogate pair for U+FFFD.
#[cold]
pub(super) fn unescape(raw: &[u8]) -> Vec<u8> {
    let mut out = Vec::with_capacity(raw.len());
    let mut rest = raw;
    let mut utf8 = [0; 4];
    loop {
        let plain = rest.iter().position(|byte| *byte == b'\\').unwrap_or(rest.len());
        out.extend_from_slice(rest.get(..plain).unwrap_or_default());
        let Some((&byte, after)) = rest.get(plain + 1..).and_then(<[u8]>::split_first) else { return out };
        let (found, used) = match (byte, hex(after, 2), hex(after, 4)) {
            (b'n', ..) => ('\n', 0),
            (b'r', ..) => ('\r', 0),
            (b't', ..) => ('\t', 0),
            (b'b', ..) => ('\u{8}', 0),
            (b'f', ..) => ('\u{c}', 0),
            (b'v', ..) => ('\u{b}', 0),
            (b'0'..=b'7', ..) => (char::from(byte - b'0'), 0),
            (b'x', Some(code), _) => (char::from_u32(code).unwrap_or(char::REPLACEMENT_CHARACTER), 2),
            (b'u', _, Some(code)) => utf16(code, after),
            _ => {
                // The rest of a character of several bytes follows by itself.
                out.push(byte);
                rest = after;
                continue;
            }
        };
        rest = after.get(used..).unwrap_or_default();
        out.extend_from_slice(found.encode_utf8(&mut utf8).as_bytes());
    }
}

/// The character of a `\u` escape whose four digits, `code`, stand at the front of `rest`, and how many bytes it takes.
fn utf16(code: u32, rest: &[u8]) -> (char, usize) {
    if let (0xD800..0xDC00, Some(b"\\u")) = (code, rest.get(4..6))
        && let Some(low @ 0xDC00..0xE000) = hex(rest.get(6..).unwrap_or_default(), 4)
    {
        let both = 0x1_0000 + ((code - 0xD800) << 10) + (low - 0xDC00);
        return (char::from_u32(both).unwrap_or(char::REPLACEMENT_CHARACTER), 10);
    }
    (char::from_u32(code).unwrap_or(char::REPLACEMENT_CHARACTER), 4)
}

fn hex(bytes: &[u8], digits: usize) -> Option<u32> {
    bytes.get(..digits)?.iter().try_fold(0, |value, byte| Some(value * 16 + char::from(*byte).to_digit(16)?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn escapes_are_undone() {
        for (raw, text) in [
            (r#"a\u0001b\u0002"#, "a\u{1}b\u{2}"),
            (r#"\"\\\/\n\t"#, "\"\\/\n\t"),
            (r"\ud83d\ude00", "\u{1F600}"),
            (r"\ud83dx", "\u{FFFD}x"),
            (r"\ud83d\u0041", "\u{FFFD}A"),
            (r"\u12", "u12"),
            (r"\x41\7\'", "A\u{7}'"),
            ("\\é", "é"),
            ("x\\", "x"),
        ] {
            assert_eq!(unescape(raw.as_bytes()), text.as_bytes(), "{raw}");
        }
    }

    #[test]
    fn plain_runs_end_at_what_must_be_escaped() {
        for (text, len) in [("", 0), ("abcdefgh\u{1}", 8), ("abc\"", 3), ("äöüäöü\\", 12), ("abcdefghijk\n", 11)]
        {
            assert_eq!(plain_len(text.as_bytes()), len, "{text:?}");
        }
        for at in 0..24 {
            let mut text = vec![b'x'; 24];
            text[at] = b'\\';
            assert_eq!(quote_or_backslash(&text, 0, b'"'), at);
            text[at] = 0x80;
            assert_eq!(plain_len(&text), 24);
        }
    }

    #[test]
    fn members_are_found_in_what_fastjson_accepts() {
        let text = br#" {, 'a' :1,,b:"x\"y", "c":[{"d":"}"}] ,/* } */"e":null,}"#;
        let mut members = Members::open(text).unwrap();
        let mut found = Vec::new();
        while let Some(member) = members.next().unwrap() {
            found.push(format!("{}={}", member.name.lossy(), member.value.text.lossy()));
        }
        assert_eq!(found, ["a=1", "b=x\"y", "c=[{\"d\":\"}\"}]", "e=null"]);
        members.end().unwrap();
    }

    #[test]
    fn nesting_is_bounded() {
        let text = format!("{{\"a\":{}{}}}", "[".repeat(65), "]".repeat(65));
        assert!(Members::open(text.as_bytes()).unwrap().next().is_err());
        let text = format!("{{\"a\":{}{}}}", "[".repeat(64), "]".repeat(64));
        assert!(Members::open(text.as_bytes()).unwrap().next().is_ok());
    }
}
