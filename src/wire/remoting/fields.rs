//! The extension fields of a command: named texts that carry every request's and answer's header.
//!
//! Read as a view into the header, so that nothing is copied unless a JSON value is escaped; written one by one into the
//! frame. Typed headers (`header.rs`) use both; nothing else needs to know their names.

use std::borrow::Cow;

use super::scan;
use crate::error::WireError;
use crate::wire::bytes::{Cursor, decimal, push_decimal, readable};

/// Longest name of a field in the binary form, in bytes.
pub const NAME_MAX: usize = i16::MAX as usize;

/// Fields found by the first pass are remembered up to this many; a header with more is walked again when asked. The
/// widest header of a Java peer, an access-controlled pull of 5.3.3, has 16.
const REMEMBERED: usize = 18;

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
    pub fn plain(raw: &'a [u8]) -> Self {
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

    /// Whether it says exactly `text`.
    #[inline]
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
    #[inline]
    pub fn i64(&self, field: &'static str) -> Result<i64, WireError> {
        if !self.escaped
            && let Some(value) = decimal(self.raw)
        {
            return Ok(value);
        }
        self.odd_number().ok_or(WireError::BadNumber { field })
    }

    /// As [`Value::i64`], for 32 bits.
    #[inline]
    pub fn i32(&self, field: &'static str) -> Result<i32, WireError> {
        i32::try_from(self.i64(field)?).map_err(|_| WireError::BadNumber { field })
    }

    /// Numbers that fastjson reads and Java never writes: escaped digits, blanks around them, a fraction.
    #[cold]
    fn odd_number(&self) -> Option<i64> {
        let text = self.lossy();
        let text = text.trim();
        if let Some(value) = decimal(text.as_bytes()) {
            return Some(value);
        }
        let value: f64 = text.bytes().any(|byte| matches!(byte, b'.' | b'e' | b'E')).then(|| text.parse().ok())??;
        // Below 2^63 the cast only drops the fraction.
        (value.abs() < 9.2e18).then_some(value as i64)
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

/// Where one field stands in the header; the top bit of a position says that the text is escaped.
#[derive(Clone, Copy, Debug, Default)]
struct Place {
    name_at: u32,
    name_len: u32,
    value_at: u32,
    value_len: u32,
}

const ESCAPED: u32 = 1 << 31;

/// The extension fields of one command.
#[derive(Clone)]
pub struct Fields<'a> {
    header: &'a [u8],
    codec: Codec,
    /// Where the map's content starts in `header`; walked from here when there are more than are remembered.
    from: usize,
    count: usize,
    present: bool,
    places: [Place; REMEMBERED],
}

impl<'a> Fields<'a> {
    /// No map at all.
    pub(super) fn absent(header: &'a [u8], codec: Codec) -> Self {
        Self { header, codec, from: 0, count: 0, present: false, places: [Place::default(); REMEMBERED] }
    }

    /// Starts a map at `from`, forgetting one that came before: of two, the later wins.
    pub(super) fn begin(&mut self, from: usize) {
        self.from = from;
        self.count = 0;
        self.present = true;
    }

    /// Remembers a field whose name and value are slices of the header, given by their positions in it.
    #[inline]
    pub(super) fn push(&mut self, name_at: usize, name: Value<'a>, value_at: usize, value: Value<'a>) {
        if let Some(place) = self.places.get_mut(self.count) {
            // A header is shorter than 2^24 bytes: its length word has 24 bits.
            *place = Place {
                name_at: name_at as u32 | if name.escaped { ESCAPED } else { 0 },
                name_len: name.raw.len() as u32,
                value_at: value_at as u32 | if value.escaped { ESCAPED } else { 0 },
                value_len: value.raw.len() as u32,
            };
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
        self.present
    }

    /// Every field in the order of the wire. Of two with one name, the later wins.
    pub fn iter(&self) -> FieldIter<'_, 'a> {
        FieldIter { fields: self, at: 0, walk: None }
    }

    /// The value of the field with this name.
    pub fn find(&self, name: &str) -> Option<Value<'a>> {
        self.iter().filter(|(found, _)| found.is(name)).last().map(|(_, value)| value)
    }

    #[inline]
    fn remembered(&self, at: usize) -> Option<(Value<'a>, Value<'a>)> {
        let place = self.places.get(at)?;
        let value = |at: u32, len: u32| {
            let from = (at & !ESCAPED) as usize;
            Some(Value { raw: self.header.get(from..from + len as usize)?, escaped: at & ESCAPED != 0 })
        };
        Some((value(place.name_at, place.name_len)?, value(place.value_at, place.value_len)?))
    }
}

impl std::fmt::Debug for Fields<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_map().entries(self.iter().map(|(name, value)| (name.lossy(), value.lossy()))).finish()
    }
}

/// See [`Fields::iter`].
pub struct FieldIter<'f, 'a> {
    fields: &'f Fields<'a>,
    at: usize,
    walk: Option<Walk<'a>>,
}

enum Walk<'a> {
    Json(scan::Members<'a>),
    Binary(Cursor<'a>),
}

impl<'a> Iterator for FieldIter<'_, 'a> {
    type Item = (Value<'a>, Value<'a>);

    #[inline]
    fn next(&mut self) -> Option<Self::Item> {
        if self.at >= self.fields.count {
            return None;
        }
        let at = self.at;
        self.at += 1;
        if self.fields.count <= REMEMBERED { self.fields.remembered(at) } else { self.walk() }
    }
}

impl<'a> FieldIter<'_, 'a> {
    /// The next field of a header with more than are remembered. The first pass has been over these bytes, so that an
    /// error cannot come; it would only end the walk.
    #[cold]
    fn walk(&mut self) -> Option<(Value<'a>, Value<'a>)> {
        let fields = self.fields;
        let walk = self.walk.get_or_insert_with(|| match fields.codec {
            Codec::Json => Walk::Json(scan::Members::new(fields.header, fields.from)),
            Codec::Binary => Walk::Binary(Cursor::new(fields.header.get(fields.from..).unwrap_or_default())),
        });
        match walk {
            Walk::Json(members) => loop {
                let member = members.next().ok()??;
                if !member.value.is_null() {
                    return Some((member.name, member.value.text));
                }
            },
            Walk::Binary(cursor) => {
                let (name, value) = entry(cursor).ok()?;
                Some((Value::plain(name), Value::plain(value)))
            }
        }
    }
}

/// One entry of the binary map.
#[inline]
pub(super) fn entry<'a>(cursor: &mut Cursor<'a>) -> Result<(&'a [u8], &'a [u8]), WireError> {
    let len = cursor.i16("field name length")?;
    let name = cursor.take_signed("field name", i32::from(len))?;
    let len = cursor.i32("field value length")?;
    Ok((name, cursor.take_signed("field value", len)?))
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
                push_escaped(self.out, name);
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
                push_escaped(self.out, value);
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

/// Appends `text` as the inside of a JSON string, escaped as fastjson escapes it.
pub(in crate::wire) fn push_escaped(out: &mut Vec<u8>, text: &str) {
    const HEX: [u8; 16] = *b"0123456789ABCDEF";
    let mut rest = text.as_bytes();
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
