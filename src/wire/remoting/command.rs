//! Commands: what every frame of the remoting protocol carries, a request or an answer, in JSON or in binary form.
//!
//! [`Command::read`] gives a view into the frame: it copies nothing and allocates nothing unless a text is escaped. The
//! writers append one whole frame to a buffer. What the extension fields mean is the business of the conversations'
//! files. Nothing here knows sockets or correlates answers.
//!
//! Source: apache/rocketmq@rocketmq-all-5.3.3
//! remoting/src/main/java/org/apache/rocketmq/remoting/protocol/{RemotingCommand,RocketMQSerializable}.java

use std::borrow::Cow;

use super::codes::flag;
use super::fields::push_escaped;
pub use super::fields::{Codec, FieldWriter, Fields, NAME_MAX, Value};
use super::header::WriteHeader;
use super::scan::{Kind, Members, Scanned};
use crate::error::WireError;
use crate::wire::bytes::{Cursor, patch_u32, push_decimal, readable};
use crate::wire::frame::REMOTING_MAX;

/// The version we announce: that of 5.3.3 (D7).
pub const VERSION: i32 = 479;
/// The version of 4.9.3, for the embedded broker's V4 profile.
pub const VERSION_V4: i32 = 399;
/// The first version whose peers read the binary form everywhere: 4.9.0 (D7).
pub const VERSION_BINARY: i32 = 393;

/// The language of a peer, by its number on the wire. Unknown numbers are kept.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Language(pub u8);

const LANGUAGES: [&str; 14] = [
    "JAVA", "CPP", "DOTNET", "PYTHON", "DELPHI", "ERLANG", "RUBY", "OTHER", "HTTP", "GO", "PHP", "OMS", "RUST",
    "NODE_JS",
];

impl Language {
    /// Java.
    pub const JAVA: Self = Self(0);
    /// C++: its batch and reset bodies differ.
    pub const CPP: Self = Self(1);
    /// Anything else.
    pub const OTHER: Self = Self(7);
    /// Ours. 4.9.3 reads it as none, which does no harm.
    pub const RUST: Self = Self(12);

    /// The name in JSON; `OTHER` for an unknown number.
    pub fn name(self) -> &'static str {
        LANGUAGES.get(usize::from(self.0)).copied().unwrap_or("OTHER")
    }

    /// By a name or a number in JSON; [`Language::OTHER`] for what nobody knows.
    #[inline]
    fn of(value: &Scanned<'_>) -> Self {
        if value.text.is("JAVA") { Self::JAVA } else { Self::of_other(value) }
    }

    #[inline(never)]
    fn of_other(value: &Scanned<'_>) -> Self {
        let known = LANGUAGES.iter().position(|name| value.text.is(name)).or_else(|| {
            let number = value.text.i64("language").ok()?;
            usize::try_from(number).ok().filter(|number| *number < LANGUAGES.len())
        });
        known.and_then(|number| u8::try_from(number).ok()).map_or(Self::OTHER, Self)
    }
}

/// A request or an answer, as a view into its frame.
#[derive(Clone, Debug)]
pub struct Command<'a> {
    /// The form its header came in.
    pub codec: Codec,
    /// What is asked, or how it went: see [`super::codes`].
    pub code: i32,
    /// The sender's language.
    pub language: Language,
    /// The sender's version, 0 if it did not say.
    pub version: i32,
    /// Ties an answer to its request, on one connection and in one direction.
    pub opaque: i32,
    /// See [`super::codes::flag`].
    pub flag: i32,
    /// The text that explains an answer; also carries the error text of a transaction's end.
    pub remark: Option<Cow<'a, str>>,
    /// The typed headers' fields.
    pub fields: Fields<'a>,
    /// What follows the header.
    pub body: &'a [u8],
}

impl<'a> Command<'a> {
    /// Of nothing yet, to be [filled](Command::fill).
    #[inline]
    pub fn empty() -> Self {
        Self {
            codec: Codec::Json,
            code: 0,
            language: Language::JAVA,
            version: 0,
            opaque: 0,
            flag: 0,
            remark: None,
            fields: Fields::absent(&[]),
            body: &[],
        }
    }

    /// Reads a frame's content, which starts behind the length word, into an empty command: as [`read`](Command::read), but
    /// in place. A command is 232 bytes that have just been written in small pieces, so that moving it is a fifth of
    /// what reading it costs.
    ///
    /// # Errors
    /// As [`read`](Command::read); what has been filled then means nothing.
    pub fn fill(&mut self, content: &'a [u8]) -> Result<(), WireError> {
        let mut cursor = Cursor::new(content);
        let word = cursor.u32("codec and header length")?;
        let header = cursor.take("header", (word & 0x00FF_FFFF) as usize)?;
        self.fields = Fields::absent(header);
        self.body = cursor.rest();
        match word >> 24 {
            0 => read_json(header, self),
            1 => read_binary(header, self),
            other => Err(WireError::BadValue { what: "codec", found: i64::from(other) }),
        }
    }

    /// Reads a frame's content, which starts behind the length word.
    ///
    /// # Errors
    /// Lengths that do not fit, an unknown codec, a header that cannot be parsed: the connection must be closed.
    pub fn read(content: &'a [u8]) -> Result<Self, WireError> {
        let mut command = Self::empty();
        command.fill(content)?;
        Ok(command)
    }

    /// True for an answer, false for a request.
    pub fn is_answer(&self) -> bool {
        self.flag & flag::ANSWER != 0
    }

    /// True if the sender wants no answer, not even an error.
    pub fn is_oneway(&self) -> bool {
        self.flag & flag::ONEWAY != 0
    }

    /// The part before the fields, as a writer takes it.
    pub fn head(&self) -> Head<'_> {
        Head {
            code: self.code,
            language: self.language,
            version: self.version,
            opaque: self.opaque,
            flag: self.flag,
            remark: self.remark.as_deref(),
        }
    }

    /// Writes it as a frame again, in the form it came in.
    ///
    /// # Errors
    /// As [`write()`].
    pub fn write(&self, out: &mut Vec<u8>) -> Result<(), WireError> {
        write(out, self.codec, &self.head(), &self.fields, self.body)
    }
}

impl WriteHeader for Fields<'_> {
    fn write(&self, out: &mut FieldWriter<'_>) {
        if self.is_present() {
            out.open();
        }
        for (name, value) in self.iter() {
            out.text(&name.lossy(), &value.lossy());
        }
    }
}

#[inline(never)]
fn read_json<'a>(header: &'a [u8], command: &mut Command<'a>) -> Result<(), WireError> {
    let mut members = Members::open(header)?;
    // Java's way of writing is tried first at every step; whatever else fastjson accepts takes the general way.
    loop {
        let name = match members.java_name() {
            Some((_, name)) => Value::of(name),
            None if members.java_end() => break,
            None => match members.name()? {
                Some((_, name)) => name,
                None => break,
            },
        };
        if name.is("extFields") && (members.java_enter() || members.enter()?) {
            read_fields(&mut members, &mut command.fields)?;
            continue;
        }
        let value = match members.java_value() {
            Some(value) => value,
            None => members.value()?,
        };
        if value.is_null() {
            continue;
        }
        if name.is("code") {
            command.code = value.text.i32("code")?;
        } else if name.is("flag") {
            command.flag = value.text.i32("flag")?;
        } else if name.is("language") {
            command.language = Language::of(&value);
        } else if name.is("opaque") {
            command.opaque = value.text.i32("opaque")?;
        } else if name.is("version") {
            command.version = value.text.i32("version")?;
        } else if name.is("remark") {
            command.remark = (value.kind != Kind::Nested)
                .then(|| value.text.plain().map_or_else(|| value.text.lossy(), readable_remark));
        }
    }
    members.end()
}

/// Reads the map whose `{` has been consumed, and its `}`.
#[inline(always)]
fn read_fields<'a>(members: &mut Members<'a>, fields: &mut Fields<'a>) -> Result<(), WireError> {
    fields.begin(members.at());
    loop {
        if members.java_end() {
            return Ok(());
        }
        let name = match members.java_name() {
            Some((at, name)) => Some((at, Value::of(name))),
            None => members.name()?,
        };
        let Some((name_at, name)) = name else { return Ok(()) };
        let value = match members.java_value() {
            Some(value) => value,
            None => members.value()?,
        };
        if !value.is_null() {
            fields.push(name_at, name, value.at, value.text);
        }
    }
}

#[inline(always)]
fn read_binary<'a>(header: &'a [u8], command: &mut Command<'a>) -> Result<(), WireError> {
    let Some((fixed, rest)) = header.split_first_chunk::<17>() else { return Err(short_binary(header)) };
    let [code_0, code_1, language, version_0, version_1, words @ ..] = *fixed;
    let [opaque_0, opaque_1, opaque_2, opaque_3, flag_0, flag_1, flag_2, flag_3, len_0, len_1, len_2, len_3] = words;
    command.codec = Codec::Binary;
    command.code = i32::from(i16::from_be_bytes([code_0, code_1]));
    command.language = Language(language);
    command.version = i32::from(i16::from_be_bytes([version_0, version_1]));
    command.opaque = i32::from_be_bytes([opaque_0, opaque_1, opaque_2, opaque_3]);
    command.flag = i32::from_be_bytes([flag_0, flag_1, flag_2, flag_3]);
    let mut cursor = Cursor::new(rest);
    let remark = cursor.take_signed("remark", i32::from_be_bytes([len_0, len_1, len_2, len_3]))?;
    if !remark.is_empty() {
        command.remark = Some(readable_remark(remark));
    }
    let len = cursor.i32("fields length")?;
    // Bytes behind the map are nobody's; 4.9.3 ignores them too.
    let map = cursor.take_signed("fields", len)?;
    if !map.is_empty() {
        command.fields.read_binary(map)?;
    }
    Ok(())
}

/// Which part of a binary header's beginning is missing.
#[cold]
fn short_binary(header: &[u8]) -> WireError {
    let read = |cursor: &mut Cursor<'_>| {
        cursor.i16("code")?;
        cursor.u8("language")?;
        cursor.i16("version")?;
        cursor.i32("opaque")?;
        cursor.i32("flag")?;
        cursor.i32("remark length")
    };
    let mut cursor = Cursor::new(header);
    let found = read(&mut cursor);
    found.err().unwrap_or(WireError::BadLength { what: "header", len: 17, left: header.len() })
}

/// A remark; that of every pull answer with messages is not checked anew each time.
#[inline]
fn readable_remark(remark: &[u8]) -> Cow<'_, str> {
    if remark == b"FOUND" { Cow::Borrowed("FOUND") } else { readable(remark) }
}

/// The part of a header before its fields, for writing.
#[derive(Clone, Copy, Debug)]
pub struct Head<'a> {
    /// What is asked, or how it went.
    pub code: i32,
    /// Our language.
    pub language: Language,
    /// The version we announce.
    pub version: i32,
    /// Ties the answer to the request.
    pub opaque: i32,
    /// See [`super::codes::flag`].
    pub flag: i32,
    /// The text that explains an answer.
    pub remark: Option<&'a str>,
}

impl<'a> Head<'a> {
    /// Of a request that wants an answer.
    pub fn request(code: i32, opaque: i32) -> Self {
        Self { code, language: Language::RUST, version: VERSION, opaque, flag: 0, remark: None }
    }

    /// Of a request that wants no answer.
    pub fn oneway(code: i32, opaque: i32) -> Self {
        Self { flag: flag::ONEWAY, ..Self::request(code, opaque) }
    }

    /// Of the answer to the request with this opaque.
    pub fn answer(code: i32, opaque: i32) -> Self {
        Self { flag: flag::ANSWER, ..Self::request(code, opaque) }
    }

    /// With a text that explains it.
    pub fn remark(self, remark: &'a str) -> Self {
        Self { remark: Some(remark), ..self }
    }
}

/// Appends one whole frame.
///
/// # Errors
/// `TooLong` if a field's name or the frame is longer than the protocol allows; `out` is then as it was.
pub fn write(
    out: &mut Vec<u8>,
    codec: Codec,
    head: &Head<'_>,
    fields: &(impl WriteHeader + ?Sized),
    body: &[u8],
) -> Result<(), WireError> {
    let start = out.len();
    write_head(out, codec, head, fields, body.len())?;
    debug_assert!(out.len() > start);
    out.extend_from_slice(body);
    Ok(())
}

/// As [`write()`], with a body that `body` appends.
///
/// # Errors
/// As [`write()`], and what `body` says.
pub fn write_with(
    out: &mut Vec<u8>,
    codec: Codec,
    head: &Head<'_>,
    fields: &(impl WriteHeader + ?Sized),
    body: impl FnOnce(&mut Vec<u8>) -> Result<(), WireError>,
) -> Result<(), WireError> {
    let start = out.len();
    write_head(out, codec, head, fields, 0)?;
    let written = body(out).and_then(|()| content_len(out.len() - start - 4));
    match written {
        Ok(len) => patch_u32(out, start, len),
        Err(_) => out.truncate(start),
    }
    written.map(drop)
}

/// Appends a frame up to its body, of which `body_len` bytes must follow: for bodies that are written from elsewhere.
///
/// A code that the binary form cannot hold (pop) is written in JSON: every peer reads both.
///
/// # Errors
/// As [`write()`].
pub fn write_head(
    out: &mut Vec<u8>,
    codec: Codec,
    head: &Head<'_>,
    fields: &(impl WriteHeader + ?Sized),
    body_len: usize,
) -> Result<(), WireError> {
    let opened = Opened::new(out, codec, head);
    let mut writer = FieldWriter::new(out, opened.codec);
    fields.write(&mut writer);
    let written = writer.finish();
    opened.close(out, head, written, body_len)
}

/// A frame whose fields come next. Not generic: of what is written around the fields there is one copy.
struct Opened {
    start: usize,
    codec: Codec,
    /// Where the fields begin; in the binary form their length stands before them.
    fields: usize,
}

impl Opened {
    fn new(out: &mut Vec<u8>, codec: Codec, head: &Head<'_>) -> Self {
        let start = out.len();
        out.extend_from_slice(&[0; 8]);
        let codec = match (codec, i16::try_from(head.code), i16::try_from(head.version)) {
            (Codec::Binary, Ok(code), Ok(version)) => {
                open_binary(out, head, code, version);
                Codec::Binary
            }
            _ => {
                open_json(out, head);
                Codec::Json
            }
        };
        Self { start, codec, fields: out.len() }
    }

    fn close(
        self,
        out: &mut Vec<u8>,
        head: &Head<'_>,
        written: Result<(), WireError>,
        body_len: usize,
    ) -> Result<(), WireError> {
        let Self { start, codec, fields } = self;
        match codec {
            Codec::Binary => {
                let len = out.len() - fields;
                patch_u32(out, fields - 4, len as u32);
            }
            Codec::Json => close_json(out, head),
        }
        let header_len = out.len() - start - 8;
        let written = written.and_then(|()| content_len(header_len + 4 + body_len));
        match written {
            Ok(len) => {
                let codec = u32::from(codec == Codec::Binary) << 24;
                patch_u32(out, start, len);
                // Below 2^24, as the whole frame is.
                patch_u32(out, start + 4, codec | header_len as u32);
            }
            Err(_) => out.truncate(start),
        }
        written.map(drop)
    }
}

fn content_len(len: usize) -> Result<u32, WireError> {
    let max = REMOTING_MAX as usize;
    u32::try_from(len).ok().filter(|len| *len <= REMOTING_MAX).ok_or(WireError::TooLong { what: "frame", len, max })
}

fn open_json(out: &mut Vec<u8>, head: &Head<'_>) {
    out.extend_from_slice(b"{\"code\":");
    push_decimal(out, i64::from(head.code));
    out.push(b',');
}

fn close_json(out: &mut Vec<u8>, head: &Head<'_>) {
    out.extend_from_slice(b"\"flag\":");
    push_decimal(out, i64::from(head.flag));
    out.extend_from_slice(b",\"language\":\"");
    out.extend_from_slice(head.language.name().as_bytes());
    out.extend_from_slice(b"\",\"opaque\":");
    push_decimal(out, i64::from(head.opaque));
    if let Some(remark) = head.remark {
        out.extend_from_slice(b",\"remark\":\"");
        push_escaped(out, remark.as_bytes());
        out.push(b'"');
    }
    out.extend_from_slice(b",\"serializeTypeCurrentRPC\":\"JSON\",\"version\":");
    push_decimal(out, i64::from(head.version));
    out.push(b'}');
}

fn open_binary(out: &mut Vec<u8>, head: &Head<'_>, code: i16, version: i16) {
    let ([code_0, code_1], [version_0, version_1]) = (code.to_be_bytes(), version.to_be_bytes());
    out.extend_from_slice(&[code_0, code_1, head.language.0, version_0, version_1]);
    out.extend_from_slice(&head.opaque.to_be_bytes());
    out.extend_from_slice(&head.flag.to_be_bytes());
    out.extend_from_slice(&(head.remark.map_or(0, str::len) as u32).to_be_bytes());
    out.extend_from_slice(head.remark.unwrap_or_default().as_bytes());
    // The length of the fields.
    out.extend_from_slice(&[0; 4]);
}

/// For the fuzz target `command`: what is read is written and read again as it was, in its own form and in the other.
#[doc(hidden)]
#[cfg(any(test, fuzzing))]
pub fn fuzz_command(content: &[u8], measure: crate::wire::Measure) {
    let mut read = None;
    let peak = measure(&mut || read = Some(Command::read(content)));
    assert!(peak <= content.len() + 4096, "{peak} bytes for {}", content.len());
    let Some(Ok(command)) = read else { return };
    let pairs = |command: &Command<'_>| {
        let pair = |(name, value): (Value<'_>, Value<'_>)| (name.lossy().into_owned(), value.lossy().into_owned());
        command.fields.iter().map(pair).collect::<Vec<_>>()
    };
    let wanted = pairs(&command);
    assert_eq!(wanted.len(), command.fields.len());
    super::header::fuzz_headers(&command, measure);
    for codec in [Codec::Json, Codec::Binary] {
        let mut out = Vec::new();
        if write(&mut out, codec, &command.head(), &command.fields, command.body).is_err() {
            assert!(out.is_empty(), "something was left behind");
            continue;
        }
        let again = Command::read(out.get(4..).unwrap_or_default());
        assert!(again.is_ok(), "what was written is read: {again:?}");
        let Ok(again) = again else { return };
        assert_eq!(pairs(&again), wanted);
        assert_eq!(again.remark.as_deref().unwrap_or(""), command.remark.as_deref().unwrap_or(""));
        assert_eq!((again.code, again.opaque, again.flag), (command.code, command.opaque, command.flag));
        assert_eq!((again.version, again.body), (command.version, command.body));
        let known = usize::from(command.language.0) < LANGUAGES.len();
        assert!(!known || again.language == command.language);
    }
}

#[cfg(test)]
mod tests {
    use super::super::header::{EmptyFields, NoFields};
    use super::*;

    fn frame(codec: Codec, head: &Head<'_>, fields: &[(&str, &str)], body: &[u8]) -> Vec<u8> {
        let mut out = Vec::new();
        write(&mut out, codec, head, fields, body).unwrap();
        out
    }

    fn json(header: &str) -> Vec<u8> {
        let mut out = (header.len() as u32).to_be_bytes().to_vec();
        out.extend_from_slice(header.as_bytes());
        out
    }

    #[test]
    fn both_forms_read_back_as_written() {
        let long = (0..40).map(|i| (format!("k{i}"), format!("v\u{1}\u{2}\"\\\n{i}é"))).collect::<Vec<_>>();
        let many = long.iter().map(|(name, value)| (name.as_str(), value.as_str())).collect::<Vec<_>>();
        for codec in [Codec::Json, Codec::Binary] {
            for fields in [&[][..], &[("topic", "T"), ("empty", "")], &many] {
                let head = Head::answer(17, -5).remark("no \"route\"\u{1}");
                let bytes = frame(codec, &head, fields, b"body");
                let content = bytes.get(4..).unwrap();
                assert_eq!(u32::from_be_bytes(*bytes.first_chunk().unwrap()) as usize, content.len());
                let command = Command::read(content).unwrap();
                assert_eq!((command.code, command.opaque, command.body), (17, -5, b"body".as_slice()));
                assert_eq!(command.remark.as_deref(), Some("no \"route\"\u{1}"));
                assert!(command.is_answer() && !command.is_oneway());
                let found = command.fields.iter().map(|(name, value)| (name.lossy(), value.lossy()));
                assert!(found.eq(fields.iter().map(|(name, value)| ((*name).into(), (*value).into()))), "{codec:?}");
                let mut again = Vec::new();
                command.write(&mut again).unwrap();
                assert_eq!(again, bytes);
            }
        }
    }

    #[test]
    fn headers_read_as_fastjson_reads_them() {
        let content = json(
            r#"{'opaque':"3",code:105.0,"language":"9","version":479,,"remark":null,"body":{"a":[1]},
               "extFields":{"n":3,"t":true,"z":null,"\u0061":"x\u0001"},"flag":0}"#,
        );
        let command = Command::read(&content).unwrap();
        assert_eq!((command.code, command.opaque, command.language, command.version), (105, 3, Language(9), 479));
        let fields = command.fields.iter().map(|(name, value)| format!("{}={}", name.lossy(), value.lossy()));
        assert_eq!(fields.collect::<Vec<_>>(), ["n=3", "t=true", "a=x\u{1}"]);
        assert_eq!((command.fields.find("z").is_none(), command.remark), (true, None));
    }

    #[test]
    fn the_last_of_two_maps_wins() {
        let content = json(r#"{"extFields":{"a":"1"},"extFields":{"b":"2"}}"#);
        let command = Command::read(&content).unwrap();
        assert_eq!(command.fields.len(), 1);
        let content = json(r#"{"extFields":null,"opaque":1}"#);
        assert!(!Command::read(&content).unwrap().fields.is_present());
    }

    #[test]
    fn headers_that_are_none_are_refused() {
        for bad in ["", "{", "[]", "{}x", r#"{"code":"a"}"#, r#"{"code":}"#, r#"{"a" 1}"#, r#"{"code":4294967296}"#] {
            assert!(Command::read(&json(bad)).is_err(), "{bad}");
        }
        assert_eq!(Command::read(&[2, 0, 0, 0]).unwrap_err(), WireError::BadValue { what: "codec", found: 2 });
    }

    #[test]
    fn absent_and_empty_maps_differ_in_json() {
        let mut out = Vec::new();
        write(&mut out, Codec::Json, &Head::request(34, 1), &NoFields, &[]).unwrap();
        assert!(!String::from_utf8_lossy(&out).contains("extFields"));
        write(&mut out, Codec::Json, &Head::request(34, 1), &EmptyFields, &[]).unwrap();
        assert!(String::from_utf8_lossy(&out).contains("\"extFields\":{},"));
    }

    #[test]
    fn what_cannot_be_written_leaves_the_buffer_as_it_was() {
        let mut out = vec![1, 2, 3];
        let name = "n".repeat(NAME_MAX + 1);
        let fields = [(name.as_str(), "v")];
        assert!(write(&mut out, Codec::Binary, &Head::request(1, 1), &fields[..], &[]).is_err());
        let body = vec![0; REMOTING_MAX as usize];
        assert!(write(&mut out, Codec::Binary, &Head::request(1, 1), &NoFields, &body).is_err());
        let failing = |out: &mut Vec<u8>| {
            out.push(9);
            Err(WireError::Inflate)
        };
        assert!(write_with(&mut out, Codec::Json, &Head::request(1, 1), &NoFields, failing).is_err());
        assert_eq!(out, [1, 2, 3]);
    }

    #[test]
    fn a_code_too_wide_for_the_binary_form_goes_out_in_json() {
        let bytes = frame(Codec::Binary, &Head::request(200_050, 1), &[], &[]);
        assert_eq!(Command::read(bytes.get(4..).unwrap()).unwrap().code, 200_050);
    }

    /// A binary header of 21 bytes up to and with the remark's length, and what follows it.
    fn binary(remark_len: u32, rest: &[u8]) -> Vec<u8> {
        let mut header = vec![0, 0, 0x0C, 0x01, 0x8F, 0, 0, 0, 7, 0, 0, 0, 1];
        header.extend(remark_len.to_be_bytes());
        header.extend(rest);
        let mut content = (1 << 24 | header.len() as u32).to_be_bytes().to_vec();
        content.extend(header);
        content
    }

    #[test]
    fn c_013_remark_and_field_lengths_that_lie() {
        for len in [0x7FFF_FFFF, 0xFFFF_FFFF, 0x10] {
            assert!(Command::read(&binary(len, &[])).is_err(), "remark {len:x}");
            assert!(Command::read(&binary(0, &u32::to_be_bytes(len))).is_err(), "fields {len:x}");
        }
        assert!(Command::read(&binary(0, &[0; 4])).is_ok());
    }

    #[test]
    fn c_014_a_header_never_reaches_into_the_body() {
        let mut content = binary(38, &[b'r'; 23]);
        content.extend([b'x'; 100]);
        let error = WireError::BadLength { what: "remark", len: 38, left: 23 };
        assert_eq!(Command::read(&content).unwrap_err(), error);
    }

    #[test]
    fn c_015_a_header_ends_inside_its_frame() {
        assert!(Command::read(&[0x00, 0xFF, 0xFF, 0xFF, 0x41, 0x42, 0x43, 0x44]).is_err());
        let content = [0x00, 0x00, 0x00, 0x04, b'{', b'}', b' ', b' '];
        let command = Command::read(&content).unwrap();
        assert_eq!((command.code, command.body), (0, [].as_slice()));
    }

    #[test]
    fn c_016_field_lengths_in_a_binary_header() {
        let longest = "n".repeat(NAME_MAX);
        let bytes = frame(Codec::Binary, &Head::request(1, 1), &[(&longest, "v")], &[]);
        assert!(Command::read(bytes.get(4..).unwrap()).unwrap().fields.find(&longest).is_some());
        let map = |map: &[u8]| binary(0, &[&(map.len() as u32).to_be_bytes(), map].concat());
        for bad in [&[0x80, 0, 0, 0][..], &[0, 1, b'k', 0xFF, 0xFF, 0xFF, 0xFF], &[0, 2, b'k'], &[0], &[0, 0, 0]] {
            assert!(Command::read(&map(bad)).is_err(), "{bad:?}");
        }
        let content = map(&[0, 0, 0, 0, 0, 0, 0, 1, b'k', 0, 0, 0, 0]);
        let command = Command::read(&content).unwrap();
        assert_eq!(command.fields.len(), 2);
        assert_eq!(command.fields.find("k").map(|value| value.lossy()).as_deref(), Some(""));
    }

    /// Up to 16 fields in at most 32 767 bytes, with names of at most 255, are remembered; others are walked again. It makes
    /// no difference to what is found in them, nor to what is wrong with them.
    #[test]
    fn every_size_of_a_binary_map_reads_the_same() {
        let many = |count: usize| (0..count).map(|at| (format!("n{at}"), format!("{at}"))).collect::<Vec<_>>();
        let with = |name: usize, value: usize| [many(3), vec![("n".repeat(name), "v".repeat(value))], many(2)].concat();
        let in_all = |len: usize| with(1, len - (3 + 2) * (2 + 2 + 4 + 1) - (2 + 1 + 4));
        for fields in [
            many(0),
            many(15),
            many(16),
            many(17),
            many(40),
            with(255, 0),
            with(256, 9),
            with(NAME_MAX, 1),
            in_all(32_767),
            in_all(32_768),
            in_all(65_535),
            in_all(65_536),
        ] {
            let named: Vec<(&str, &str)> = fields.iter().map(|(name, value)| (&**name, &**value)).collect();
            let bytes = frame(Codec::Binary, &Head::request(1, 1), &named, &[]);
            let content = bytes.get(4..).unwrap();
            let command = Command::read(content).unwrap();
            let found: Vec<_> = command.fields.iter().map(|(name, value)| (name.lossy(), value.lossy())).collect();
            let want: Vec<_> = named.iter().map(|(name, value)| ((*name).into(), (*value).into())).collect();
            assert_eq!((command.fields.len(), found), (named.len(), want));
            // Cut anywhere, it is the entry that is cut which is wrong.
            let map = content.get(25..).unwrap();
            let ends = named.iter().scan(0, |end, (name, value)| {
                *end += 2 + name.len() + 4 + value.len();
                Some(*end)
            });
            let ends: Vec<usize> = std::iter::once(0).chain(ends).collect();
            for cut in (0..map.len()).filter(|cut| *cut < 200 || map.len() - cut < 200 || cut % 1009 == 0) {
                let cut_map = map.get(..cut).unwrap();
                let bytes = binary(0, &[&(cut as u32).to_be_bytes(), cut_map].concat());
                let read = Command::read(&bytes).map(|command| command.fields.len());
                match ends.iter().position(|end| *end == cut) {
                    Some(whole) => assert_eq!(read, Ok(whole)),
                    None => {
                        assert!(matches!(read, Err(WireError::BadLength { .. })), "{cut} of {}: {read:?}", map.len())
                    }
                }
            }
        }
    }

    #[test]
    fn c_018_a_stream_cut_at_any_place() {
        let cutter = crate::wire::frame::Cutter::REMOTING;
        let mut stream = frame(Codec::Json, &Head::request(34, 1), &[("a", "b")], &[]);
        stream.extend(frame(Codec::Binary, &Head::answer(0, 2), &[], b"abc"));
        let opaques = |parts: &[&[u8]]| {
            let (mut kept, mut found) = (Vec::new(), Vec::new());
            for part in parts {
                kept.extend_from_slice(part);
                while let Some((content, used)) = cutter.cut(&kept).unwrap() {
                    let command = Command::read(content).unwrap();
                    found.push((command.opaque, command.body.to_vec()));
                    kept.drain(..used);
                }
            }
            assert!(kept.is_empty());
            found
        };
        let whole = opaques(&[&stream]);
        assert_eq!(whole, [(1, vec![]), (2, b"abc".to_vec())]);
        for at in 0..=stream.len() {
            let (left, right) = stream.split_at(at);
            assert_eq!(opaques(&[left, right]), whole, "cut at {at}");
        }
        assert_eq!(opaques(&stream.chunks(1).collect::<Vec<_>>()), whole);
    }

    #[test]
    fn c_020_unknown_languages_and_members() {
        for (header, language) in [
            (r#"{"language":"NODE_JS","opaque":7}"#, Language(13)),
            (r#"{"language":"XYZ","opaque":7}"#, Language::OTHER),
            (r#"{"language":99,"opaque":7}"#, Language::OTHER),
            (r#"{"foo":[1],"opaque":7,"code":-77777}"#, Language::JAVA),
        ] {
            let content = json(header);
            let command = Command::read(&content).unwrap();
            assert_eq!((command.opaque, command.language), (7, language), "{header}");
        }
        let mut content = binary(0, &[0; 4]);
        content[6] = 0x7F;
        let command = Command::read(&content).unwrap();
        assert_eq!((command.opaque, command.language, command.language.name()), (7, Language(0x7F), "OTHER"));
    }
}
