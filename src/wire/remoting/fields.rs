//! The extension fields of a command: named texts that carry every request's and answer's header.
//!
//! Read as a view into the header, so that nothing is copied unless a JSON value is escaped; written one by one into the
//! frame. Typed headers (`header.rs`) use both; nothing else needs to know their names.

use std::borrow::Cow;

use super::scan;
use crate::error::WireError;
use crate::wire::bytes::{Cursor, decimal, digits, push_decimal, readable};

/// Longest name of a field in the binary form, in bytes.
pub const NAME_MAX: usize = i16::MAX as usize;

/// Fields of a header are remembered up to this many; a header with more is walked again when asked. The widest of a
/// Java peer, an access-controlled pull of 5.3.3, has 16.
const REMEMBERED: usize = 16;

/// The form of a header on the wire. Both are read always; D7 says which is written.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Codec {
    /// A JSON object.
    Json,
    /// Java's own binary form, called ROCKETMQ there.
    Binary,
}

/// One name or value as it stands in the header.
#[derive(Clone, Copy, Debug)]
pub struct Value<'a> {
    raw: &'a [u8],
    escaped: bool,
}

impl<'a> Value<'a> {
    pub(super) fn new(raw: &'a [u8], escaped: bool) -> Self {
        Self { raw, escaped }
    }

    /// A value that needs no unescaping.
    pub(super) fn of(raw: &'a [u8]) -> Self {
        Self { raw, escaped: false }
    }

    /// How many bytes it takes in the header.
    pub fn len(&self) -> usize {
        self.raw.len()
    }

    /// True if it takes none.
    pub fn is_empty(&self) -> bool {
        self.raw.is_empty()
    }

    /// Its bytes as they stand in the header, be they escaped or not.
    #[inline(always)]
    pub(super) fn raw(&self) -> &'a [u8] {
        self.raw
    }

    /// Its bytes, unless they are escaped.
    #[inline(always)]
    pub(super) fn plain(&self) -> Option<&'a [u8]> {
        if self.escaped { None } else { Some(self.raw) }
    }

    /// Whether it says exactly `text`.
    #[inline(always)]
    pub fn is(&self, text: &str) -> bool {
        if self.escaped { scan::unescape(self.raw) == text.as_bytes() } else { self.raw == text.as_bytes() }
    }

    /// The text; borrowed unless it was escaped.
    ///
    /// # Errors
    /// `BadText` naming `field` if it is not UTF-8.
    pub fn text(&self, field: &'static str) -> Result<Cow<'a, str>, WireError> {
        if self.escaped {
            let text = String::from_utf8(scan::unescape(self.raw)).map_err(|_| WireError::BadText { what: field })?;
            return Ok(Cow::Owned(text));
        }
        str::from_utf8(self.raw).map(Cow::Borrowed).map_err(|_| WireError::BadText { what: field })
    }

    /// The text, with `?` for what is not UTF-8.
    pub fn lossy(&self) -> Cow<'a, str> {
        if !self.escaped {
            return readable(self.raw);
        }
        let text = String::from_utf8(scan::unescape(self.raw));
        Cow::Owned(text.unwrap_or_else(|bad| readable(bad.as_bytes()).into_owned()))
    }

    /// The number it says.
    ///
    /// # Errors
    /// `BadNumber` naming `field` if it is none or does not fit 64 bits.
    #[inline(always)]
    pub fn i64(&self, field: &'static str) -> Result<i64, WireError> {
        match digits(self.raw) {
            Some(value) => Ok(value),
            None => odd_number(self.raw, self.escaped).ok_or(WireError::BadNumber { field }),
        }
    }

    /// As [`Value::i64`], for 32 bits.
    #[inline(always)]
    pub fn i32(&self, field: &'static str) -> Result<i32, WireError> {
        i32::try_from(self.i64(field)?).map_err(|_| WireError::BadNumber { field })
    }

    /// The truth value: `true` in any case, or `1`, which C++ clients write (D28).
    pub fn bool(&self) -> bool {
        match self.raw {
            b"true" | b"1" => true,
            b"false" | b"0" => false,
            _ => {
                let text = self.lossy();
                text.eq_ignore_ascii_case("true") || text == "1"
            }
        }
    }
}

/// Numbers that are no run of digits: those below 0, and what fastjson reads and Java never writes: more than 18 digits,
/// escaped ones, blanks around them, a fraction.
///
/// Takes the parts of a value: a reference to it would keep every value of the hot path in memory.
#[cold]
#[inline(never)]
fn odd_number(raw: &[u8], escaped: bool) -> Option<i64> {
    if let Some(value) = decimal(raw) {
        return Some(value);
    }
    let text = Value { raw, escaped }.lossy();
    let text = text.trim();
    if let Some(value) = decimal(text.as_bytes()) {
        return Some(value);
    }
    let value: f64 = text.bytes().any(|byte| matches!(byte, b'.' | b'e' | b'E')).then(|| text.parse().ok())??;
    // Below 2^63 the cast only drops the fraction.
    (value.abs() < 9.2e18).then_some(value as i64)
}

/// Where one field of a header stands, in eight bytes: commands are handed up by value.
#[derive(Clone, Copy, Debug, Default)]
struct Place {
    name_at: u16,
    value_at: u16,
    value_len: u16,
    name_len: u8,
    escaped: u8,
}

impl Place {
    /// The name, as it stands in the header, and the value.
    #[inline(always)]
    fn raw<'a>(&self, header: &'a [u8]) -> Option<(&'a [u8], Value<'a>)> {
        let (name_at, value_at) = (usize::from(self.name_at), usize::from(self.value_at));
        let name = header.get(name_at..name_at + usize::from(self.name_len))?;
        let value = header.get(value_at..value_at + usize::from(self.value_len))?;
        Some((name, Value { raw: value, escaped: self.escaped & VALUE != 0 }))
    }
}

/// In [`Place::escaped`]: the name is.
const NAME: u8 = 1;
/// In [`Place::escaped`]: the value is.
const VALUE: u8 = 2;

/// What the first pass leaves for the second.
#[derive(Clone)]
enum Form {
    /// No map at all.
    Absent,
    /// A map of either form whose fields are remembered: there are not too many, and none is very long.
    Places([Place; REMEMBERED]),
    /// A JSON object that is walked again.
    JsonWalk,
    /// A binary map that is walked again.
    BinaryWalk,
}

/// The extension fields of one command.
#[derive(Clone)]
pub struct Fields<'a> {
    header: &'a [u8],
    /// Where the map's content starts in `header`.
    from: usize,
    count: usize,
    form: Form,
}

impl<'a> Fields<'a> {
    /// No map at all.
    #[inline]
    pub(super) fn absent(header: &'a [u8]) -> Self {
        Self { header, from: 0, count: 0, form: Form::Absent }
    }

    /// Becomes the binary map `map`: in place, as a whole one is too large to be handed over.
    ///
    /// # Errors
    /// What is wrong with its first entry that is cut short.
    #[inline(always)]
    pub(super) fn read_binary(&mut self, map: &'a [u8]) -> Result<(), WireError> {
        self.header = map;
        self.form = Form::Places([Place::default(); REMEMBERED]);
        let Form::Places(places) = &mut self.form else { return Ok(()) };
        let (mut rest, mut count) = (map, 0);
        // A map as short as that has no room for an entry whose length, taken as a signed number, were below 0; and every
        // place in it fits 16 bits.
        if map.len() <= i16::MAX as usize {
            for place in places {
                let Some((name_len, after)) = rest.split_first_chunk::<2>() else { break };
                let name_at = map.len() - after.len();
                let name_len = u16::from_be_bytes(*name_len);
                let Some(after) = after.get(usize::from(name_len)..) else { break };
                let Some((value_len, after)) = after.split_first_chunk::<4>() else { break };
                let value_at = map.len() - after.len();
                let value_len = u32::from_be_bytes(*value_len);
                let Some(after) = after.get(value_len as usize..) else { break };
                let Ok(name_len) = u8::try_from(name_len) else { break };
                let (name_at, value_at, value_len) = (name_at as u16, value_at as u16, value_len as u16);
                *place = Place { name_at, value_at, value_len, name_len, escaped: 0 };
                count += 1;
                rest = after;
            }
        }
        self.count = count;
        if rest.is_empty() { Ok(()) } else { self.read_wide_binary(Cursor::new(rest)) }
    }

    /// The entries of a binary map that are not remembered.
    #[cold]
    fn read_wide_binary(&mut self, mut rest: Cursor<'a>) -> Result<(), WireError> {
        self.form = Form::BinaryWalk;
        while entry(&mut rest).is_some() {
            self.count += 1;
        }
        if rest.left() == 0 { Ok(()) } else { Err(entry_error(rest)) }
    }

    /// Starts a JSON map at `from`, forgetting one that came before: of two, the later wins.
    #[inline]
    pub(super) fn begin(&mut self, from: usize) {
        self.from = from;
        self.count = 0;
        self.form = Form::Places([Place::default(); REMEMBERED]);
    }

    /// Remembers a field of the map whose name and value are slices of the header, given by their positions in it.
    #[inline(always)]
    pub(super) fn push(&mut self, name_at: usize, name: Value<'a>, value_at: usize, value: Value<'a>) {
        if let Form::Places(places) = &mut self.form {
            // All three numbers behind `value_at` are below it or below 2^16 with it.
            let short = value_at.saturating_add(value.raw.len()) <= usize::from(u16::MAX);
            match (places.get_mut(self.count), u8::try_from(name.raw.len())) {
                (Some(place), Ok(name_len)) if short => {
                    *place = Place {
                        name_at: name_at as u16,
                        value_at: value_at as u16,
                        value_len: value.raw.len() as u16,
                        name_len,
                        escaped: if name.escaped { NAME } else { 0 } | if value.escaped { VALUE } else { 0 },
                    };
                }
                _ => self.form = Form::JsonWalk,
            }
        }
        self.count += 1;
    }

    /// How many fields there are, duplicates counted.
    pub fn len(&self) -> usize {
        self.count
    }

    /// True if there is no field.
    pub fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// Whether the header has a map of fields at all, be it an empty one.
    pub fn is_present(&self) -> bool {
        !matches!(self.form, Form::Absent)
    }

    /// Where all fields are, for readers that have a faster way with them; `None` if the map has to be walked.
    #[inline(always)]
    pub(super) fn places(&self) -> Option<impl Iterator<Item = (&'a [u8], Value<'a>)>> {
        let Form::Places(places) = &self.form else { return None };
        let header = self.header;
        Some(places.get(..self.count)?.iter().map_while(move |place| place.raw(header)))
    }

    /// Every field in the order of the wire. Of two with one name, the later wins.
    #[inline]
    pub fn iter(&self) -> FieldIter<'_, 'a> {
        FieldIter(match &self.form {
            Form::Absent => Walk::Binary(Cursor::new(&[])),
            Form::Places(places) => Walk::Places(self.header, places.get(..self.count).unwrap_or_default().iter()),
            Form::JsonWalk => Walk::Json(scan::Members::new(self.header, self.from)),
            Form::BinaryWalk => Walk::Binary(Cursor::new(self.header)),
        })
    }

    /// The value of the field with this name.
    pub fn find(&self, name: &str) -> Option<Value<'a>> {
        self.iter().filter(|(found, _)| found.is(name)).last().map(|(_, value)| value)
    }
}

impl std::fmt::Debug for Fields<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_map().entries(self.iter().map(|(name, value)| (name.lossy(), value.lossy()))).finish()
    }
}

/// See [`Fields::iter`]. The first pass has been over these bytes, so that an error cannot come; it would only end the
/// walk.
pub struct FieldIter<'f, 'a>(Walk<'f, 'a>);

enum Walk<'f, 'a> {
    Places(&'a [u8], std::slice::Iter<'f, Place>),
    Json(scan::Members<'a>),
    Binary(Cursor<'a>),
}

impl<'a> Iterator for FieldIter<'_, 'a> {
    type Item = (Value<'a>, Value<'a>);

    #[inline(always)]
    fn next(&mut self) -> Option<Self::Item> {
        match &mut self.0 {
            Walk::Places(header, places) => {
                let place = places.next()?;
                let (name, value) = place.raw(header)?;
                Some((Value { raw: name, escaped: place.escaped & NAME != 0 }, value))
            }
            Walk::Binary(cursor) => {
                let (name, value) = entry(cursor)?;
                Some((Value::of(name), Value::of(value)))
            }
            Walk::Json(members) => walk(members),
        }
    }
}

#[cold]
fn walk<'a>(members: &mut scan::Members<'a>) -> Option<(Value<'a>, Value<'a>)> {
    loop {
        let member = members.next().ok()??;
        if !member.value.is_null() {
            return Some((member.name, member.value.text));
        }
    }
}

/// One entry off the front of the binary map; `None` at its end, and where a length does not fit.
#[inline(always)]
fn entry<'a>(cursor: &mut Cursor<'a>) -> Option<(&'a [u8], &'a [u8])> {
    let (len, rest) = cursor.rest().split_first_chunk::<2>()?;
    let len = i16::from_be_bytes(*len);
    let (name, rest) = rest.split_at_checked(usize::try_from(len).ok()?)?;
    let (len, rest) = rest.split_first_chunk::<4>()?;
    let (value, rest) = rest.split_at_checked(usize::try_from(i32::from_be_bytes(*len)).ok()?)?;
    *cursor = Cursor::new(rest);
    Some((name, value))
}

/// What is wrong with the entry at the front of the binary map.
#[cold]
fn entry_error(mut cursor: Cursor<'_>) -> WireError {
    let read = |cursor: &mut Cursor<'_>| {
        let len = cursor.i16("field name length")?;
        cursor.take_signed("field name", i32::from(len))?;
        let len = cursor.i32("field value length")?;
        cursor.take_signed("field value", len).map(drop)
    };
    let left = cursor.left();
    read(&mut cursor).err().unwrap_or(WireError::BadLength { what: "fields", len: 0, left })
}

/// Writes fields into a header under way. What cannot be written is reported once, by whoever began the header.
pub struct FieldWriter<'o> {
    out: &'o mut Vec<u8>,
    codec: Codec,
    opened: bool,
    error: Option<WireError>,
}

impl<'o> FieldWriter<'o> {
    pub(super) fn new(out: &'o mut Vec<u8>, codec: Codec) -> Self {
        Self { out, codec, opened: false, error: None }
    }

    /// Ends the map and says what could not be written.
    pub(super) fn finish(self) -> Result<(), WireError> {
        if self.opened && self.codec == Codec::Json {
            self.out.extend_from_slice(b"},");
        }
        self.error.map_or(Ok(()), Err)
    }

    /// Writes the map even if no field follows: several Java brokers follow it without looking.
    pub fn open(&mut self) {
        if !self.opened {
            self.opened = true;
            if self.codec == Codec::Json {
                self.out.extend_from_slice(b"\"extFields\":{");
            }
        }
    }

    fn name(&mut self, name: &str) -> bool {
        match self.codec {
            Codec::Json => {
                if self.opened {
                    self.out.extend_from_slice(if self.out.last() == Some(&b'{') { b"\"" } else { b",\"" });
                } else {
                    self.open();
                    self.out.push(b'"');
                }
                push_escaped(self.out, name.as_bytes());
                self.out.extend_from_slice(b"\":\"");
            }
            Codec::Binary => {
                let Ok(len) = i16::try_from(name.len()) else {
                    self.error = Some(WireError::TooLong { what: "field name", len: name.len(), max: NAME_MAX });
                    return false;
                };
                self.out.extend_from_slice(&len.to_be_bytes());
                self.out.extend_from_slice(name.as_bytes());
            }
        }
        true
    }

    /// A text.
    pub fn text(&mut self, name: &str, value: &str) {
        if !self.name(name) {
            return;
        }
        match self.codec {
            Codec::Json => {
                push_escaped(self.out, value.as_bytes());
                self.out.push(b'"');
            }
            Codec::Binary => {
                // Cut nowhere: a frame is refused as a whole long before a value has 2^31 bytes.
                self.out.extend_from_slice(&(value.len() as u32).to_be_bytes());
                self.out.extend_from_slice(value.as_bytes());
            }
        }
    }

    /// A number, in decimal.
    pub fn number(&mut self, name: &str, value: i64) {
        if !self.name(name) {
            return;
        }
        match self.codec {
            Codec::Json => {
                push_decimal(self.out, value);
                self.out.push(b'"');
            }
            Codec::Binary => {
                let at = self.out.len();
                self.out.extend_from_slice(&[0; 4]);
                push_decimal(self.out, value);
                let len = self.out.len() - at - 4;
                crate::wire::bytes::patch_u32(self.out, at, len as u32);
            }
        }
    }

    /// A truth value.
    pub fn bool(&mut self, name: &str, value: bool) {
        self.text(name, if value { "true" } else { "false" });
    }
}

/// Appends `text`, which is UTF-8, as the inside of a JSON string, escaped as fastjson escapes it.
pub(in crate::wire) fn push_escaped(out: &mut Vec<u8>, text: &[u8]) {
    const HEX: [u8; 16] = *b"0123456789ABCDEF";
    let mut rest = text;
    loop {
        let plain = scan::plain_len(rest);
        out.extend_from_slice(rest.get(..plain).unwrap_or_default());
        let Some((&byte, after)) = rest.get(plain..).and_then(<[u8]>::split_first) else { return };
        rest = after;
        match byte {
            b'"' => out.extend_from_slice(b"\\\""),
            b'\\' => out.extend_from_slice(b"\\\\"),
            b'\n' => out.extend_from_slice(b"\\n"),
            b'\r' => out.extend_from_slice(b"\\r"),
            b'\t' => out.extend_from_slice(b"\\t"),
            0x08 => out.extend_from_slice(b"\\b"),
            0x0C => out.extend_from_slice(b"\\f"),
            _ => {
                let digit = |nibble: u8| HEX.get(usize::from(nibble & 0xF)).copied().unwrap_or(b'0');
                out.extend_from_slice(&[b'\\', b'u', b'0', b'0', digit(byte >> 4), digit(byte)]);
            }
        }
    }
}
