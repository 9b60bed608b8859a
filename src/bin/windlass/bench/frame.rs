//! Just enough of the remoting protocol for the ceiling: requests in either header form, and what it asks of answers.
//!
//! Not the library's codec: the ceiling must not move when that one does.

use std::io;

const VERSION: u16 = 399;
const BINARY: u8 = 1;

/// An error about what a peer has sent.
pub fn invalid(text: impl Into<String>) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, text.into())
}

/// A whole request. Its opaque can be [`set_opaque`] later if the header is binary.
pub fn request(json: bool, code: u16, opaque: i32, fields: &[(&str, &str)], body: &[u8]) -> Vec<u8> {
    let header = if json { json_header(code, opaque, fields) } else { binary_header(code, opaque, fields) };
    let mut frame = Vec::with_capacity(8 + header.len() + body.len());
    put_u32(&mut frame, 4 + header.len() + body.len());
    put_u32(&mut frame, header.len() | if json { 0 } else { usize::from(BINARY) << 24 });
    frame.extend_from_slice(&header);
    frame.extend_from_slice(body);
    frame
}

fn json_header(code: u16, opaque: i32, fields: &[(&str, &str)]) -> Vec<u8> {
    let fields: serde_json::Map<_, _> = fields.iter().map(|(name, value)| ((*name).into(), (*value).into())).collect();
    serde_json::json!({
        "code": code, "language": "JAVA", "version": VERSION, "opaque": opaque, "flag": 0,
        "serializeTypeCurrentRPC": "JSON", "extFields": fields,
    })
    .to_string()
    .into_bytes()
}

fn binary_header(code: u16, opaque: i32, fields: &[(&str, &str)]) -> Vec<u8> {
    let mut header = Vec::new();
    header.extend_from_slice(&code.to_be_bytes());
    header.push(0);
    header.extend_from_slice(&VERSION.to_be_bytes());
    header.extend_from_slice(&opaque.to_be_bytes());
    header.extend_from_slice(&[0; 8]); // flag, remark
    put_u32(&mut header, fields.iter().map(|(name, value)| 6 + name.len() + value.len()).sum());
    for (name, value) in fields {
        header.extend_from_slice(&(name.len() as u16).to_be_bytes());
        header.extend_from_slice(name.as_bytes());
        put_u32(&mut header, value.len());
        header.extend_from_slice(value.as_bytes());
    }
    header
}

/// Changes the opaque of a request with a binary header.
pub fn set_opaque(frame: &mut [u8], opaque: i32) {
    if let Some(at) = frame.get_mut(13..17) {
        at.copy_from_slice(&opaque.to_be_bytes());
    }
}

fn put_u32(to: &mut Vec<u8>, value: usize) {
    to.extend_from_slice(&(value as u32).to_be_bytes());
}

/// The number at `at`.
pub fn i32_at(bytes: &[u8], at: usize) -> io::Result<i32> {
    let found = bytes.get(at..).and_then(<[u8]>::first_chunk);
    found.map(|found| i32::from_be_bytes(*found)).ok_or_else(|| invalid("cut short"))
}

/// The length of the content behind the length word at the front of `bytes`, once it is all there.
pub fn whole(bytes: &[u8]) -> io::Result<Option<usize>> {
    match bytes.first_chunk() {
        Some(word) => {
            let len = u32::from_be_bytes(*word) as usize;
            if len > 16 << 20 { Err(invalid("not RocketMQ")) } else { Ok((bytes.len() >= 4 + len).then_some(len)) }
        }
        None => Ok(None),
    }
}

/// An answer, by its content behind the length word.
pub struct Answer<'a> {
    pub code: i32,
    pub opaque: i32,
    json: bool,
    fields: &'a [u8],
    pub body: &'a [u8],
}

impl<'a> Answer<'a> {
    pub fn read(content: &'a [u8]) -> io::Result<Self> {
        let word = i32_at(content, 0)?;
        let (header, body) = content
            .get(4..)
            .and_then(|rest| rest.split_at_checked((word & 0xff_ffff) as usize))
            .ok_or_else(|| invalid("cut short"))?;
        if word >> 24 == 0 {
            let number = |name| json_number(header, name).and_then(|found| i32::try_from(found).ok());
            let missing = || invalid("an answer without code");
            let code = number("code").ok_or_else(missing)?;
            let opaque = number("opaque").ok_or_else(missing)?;
            return Ok(Self { code, opaque, json: true, fields: header, body });
        }
        let remark = i32_at(header, 13)? as usize;
        Ok(Self {
            code: i32_at(header, 0)? >> 16,
            opaque: i32_at(header, 5)?,
            json: false,
            fields: header.get(17 + remark + 4..).unwrap_or_default(),
            body,
        })
    }

    /// An extended field that is a number.
    pub fn number(&self, wanted: &str) -> Option<i64> {
        if self.json {
            return json_number(self.fields, wanted);
        }
        let mut rest = self.fields;
        while let Some((len, behind)) = rest.split_first_chunk() {
            let (name, behind) = behind.split_at_checked(usize::from(u16::from_be_bytes(*len)))?;
            let (len, behind) = behind.split_first_chunk()?;
            let (value, behind) = behind.split_at_checked(u32::from_be_bytes(*len) as usize)?;
            if name == wanted.as_bytes() {
                return std::str::from_utf8(value).ok()?.parse().ok();
            }
            rest = behind;
        }
        None
    }
}

/// The number, bare or quoted, behind the first `"name":`. No remark can come before the members asked for here.
fn json_number(header: &[u8], name: &str) -> Option<i64> {
    let header = std::str::from_utf8(header).ok()?;
    let behind = header.match_indices(name).find_map(|(at, _)| {
        let opens = header.get(..at)?.ends_with('"');
        header.get(at + name.len()..)?.strip_prefix("\":").filter(|_| opens)
    })?;
    let digits = behind.trim_start_matches('"');
    let end = digits.find(|c: char| c != '-' && !c.is_ascii_digit()).unwrap_or(digits.len());
    digits.get(..end)?.parse().ok()
}

/// JSON as fastjson writes it (numbers as member names) made readable.
pub fn quoted_names(text: &[u8]) -> Vec<u8> {
    let (mut out, mut at, mut in_text) = (Vec::with_capacity(text.len() + 16), 0, false);
    while let Some(&byte) = text.get(at) {
        out.push(byte);
        at += 1;
        match byte {
            b'\\' if in_text => {
                out.extend(text.get(at));
                at += 1;
            }
            b'"' => in_text = !in_text,
            b'{' | b',' if !in_text => {
                let rest = text.get(at..).unwrap_or_default();
                let digits = rest.iter().take_while(|byte| byte.is_ascii_digit() || **byte == b'-').count();
                if digits > 0 && rest.get(digits) == Some(&b':') {
                    out.push(b'"');
                    out.extend_from_slice(rest.get(..digits).unwrap_or_default());
                    out.push(b'"');
                    at += digits;
                }
            }
            _ => {}
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_forms_of_a_header_say_the_same() {
        for json in [false, true] {
            let mut frame = request(json, 11, 7, &[("topic", "T"), ("nextBeginOffset", "32")], b"body");
            assert_eq!(whole(&frame).unwrap(), Some(frame.len() - 4));
            assert_eq!(whole(&frame[..frame.len() - 1]).unwrap(), None);
            if !json {
                set_opaque(&mut frame, 9);
            }
            let answer = Answer::read(&frame[4..]).unwrap();
            assert_eq!((answer.code, answer.opaque), (11, if json { 7 } else { 9 }));
            assert_eq!((answer.number("nextBeginOffset"), answer.number("beginOffset")), (Some(32), None));
            assert_eq!(answer.body, b"body");
        }
    }

    #[test]
    fn names_that_are_numbers_are_quoted_and_texts_stay() {
        let read = quoted_names(br#"{"a":{0:"x,1:",-1:[2,3]},"b\",4:":5}"#);
        assert_eq!(String::from_utf8(read).unwrap(), r#"{"a":{"0":"x,1:","-1":[2,3]},"b\",4:":5}"#);
    }
}
