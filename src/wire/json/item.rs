//! What can stand in a body, read as fastjson reads it: numbers as text, truth as text or number, null for the default;
//! and the declaration of bodies themselves, one line a member, so that reader and writer cannot drift apart.
//!
//! The library reads JSON into a [`Value`] with code that it has compiled itself; only the picking of members is
//! compiled here. Deriving it was a third of what this crate handed to the compiler, and five more crates to build.

use serde_json::Value;

use crate::error::WireError;
use crate::wire::remoting::push_escaped;

/// Something that can stand in a body.
pub trait Item: Sized {
    /// Reads the value of the member `field`; null is the default.
    ///
    /// # Errors
    /// `BadNumber` or `WrongKind` naming the innermost member that is none.
    fn read(field: &'static str, value: Value) -> Result<Self, WireError>;

    /// Reads the value of a member that may be absent; null is absent.
    ///
    /// # Errors
    /// As [`Item::read`].
    fn read_maybe(field: &'static str, value: Value) -> Result<Option<Self>, WireError> {
        if value.is_null() { Ok(None) } else { Self::read(field, value).map(Some) }
    }

    /// Appends it.
    fn write(&self, out: &mut Vec<u8>);

    /// Its member is left out.
    fn is_absent(&self) -> bool {
        false
    }
}

fn whole(field: &'static str, value: &Value) -> Result<i64, WireError> {
    let bad = || WireError::BadNumber { field };
    let of_fraction = |value: f64| if value.abs() < 9.2e18 { Ok(value as i64) } else { Err(bad()) };
    match value {
        Value::Null => Ok(0),
        Value::Number(number) => match number.as_i64() {
            Some(whole) => Ok(whole),
            None => of_fraction(number.as_f64().ok_or_else(bad)?),
        },
        Value::String(text) => match text.trim() {
            "" | "null" => Ok(0),
            text => match text.parse() {
                Ok(whole) => Ok(whole),
                Err(_) => of_fraction(text.parse().map_err(|_| bad())?),
            },
        },
        Value::Bool(_) | Value::Array(_) | Value::Object(_) => Err(bad()),
    }
}

/// Appends a number.
pub(super) fn write_whole(out: &mut Vec<u8>, number: i64) {
    out.extend_from_slice(number.to_string().as_bytes());
}

/// Appends a text with its quotes.
pub(super) fn write_text(out: &mut Vec<u8>, text: &str) {
    out.push(b'"');
    push_escaped(out, text.as_bytes());
    out.push(b'"');
}

impl Item for i64 {
    fn read(field: &'static str, value: Value) -> Result<Self, WireError> {
        whole(field, &value)
    }

    fn write(&self, out: &mut Vec<u8>) {
        write_whole(out, *self);
    }
}

impl Item for i32 {
    fn read(field: &'static str, value: Value) -> Result<Self, WireError> {
        whole(field, &value)?.try_into().map_err(|_| WireError::BadNumber { field })
    }

    fn write(&self, out: &mut Vec<u8>) {
        write_whole(out, i64::from(*self));
    }
}

impl Item for f64 {
    fn read(field: &'static str, value: Value) -> Result<Self, WireError> {
        let number = match &value {
            Value::Null => Some(0.0),
            Value::Number(number) => number.as_f64(),
            Value::String(text) => text.trim().parse().ok(),
            Value::Bool(_) | Value::Array(_) | Value::Object(_) => None,
        };
        number.ok_or(WireError::BadNumber { field })
    }

    fn write(&self, out: &mut Vec<u8>) {
        Value::from(*self).write(out);
    }
}

impl Item for bool {
    fn read(field: &'static str, value: Value) -> Result<Self, WireError> {
        match &value {
            Value::Null => Ok(false),
            Value::Bool(truth) => Ok(*truth),
            Value::Number(number) => Ok(number.as_f64() != Some(0.0)),
            Value::String(text) => Ok(text.eq_ignore_ascii_case("true") || text == "1"),
            Value::Array(_) | Value::Object(_) => Err(WireError::WrongKind { field }),
        }
    }

    fn write(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(if *self { b"true" } else { b"false" });
    }
}

impl Item for String {
    fn read(field: &'static str, value: Value) -> Result<Self, WireError> {
        match value {
            Value::Null => Ok(Self::new()),
            Value::String(text) => Ok(text),
            Value::Bool(_) | Value::Number(_) | Value::Array(_) | Value::Object(_) => {
                Err(WireError::WrongKind { field })
            }
        }
    }

    fn write(&self, out: &mut Vec<u8>) {
        write_text(out, self);
    }
}

/// As it is, unread.
impl Item for Value {
    fn read(_field: &'static str, value: Value) -> Result<Self, WireError> {
        Ok(value)
    }

    fn write(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(self.to_string().as_bytes());
    }
}

impl<T: Item> Item for Option<T> {
    fn read(field: &'static str, value: Value) -> Result<Self, WireError> {
        T::read_maybe(field, value)
    }

    fn write(&self, out: &mut Vec<u8>) {
        match self {
            Some(item) => item.write(out),
            None => out.extend_from_slice(b"null"),
        }
    }

    fn is_absent(&self) -> bool {
        self.is_none()
    }
}

impl<T: Item> Item for Vec<T> {
    fn read(field: &'static str, value: Value) -> Result<Self, WireError> {
        let mut items = Self::with_capacity(value.as_array().map_or(0, Vec::len));
        each_element(field, value, &mut |value| {
            items.push(T::read(field, value)?);
            Ok(())
        })?;
        Ok(items)
    }

    fn write(&self, out: &mut Vec<u8>) {
        out.push(b'[');
        for item in self {
            comma(out, b'[');
            item.write(out);
        }
        out.push(b']');
    }
}

/// Hands on the elements of a list; null has none.
fn each_element(
    field: &'static str,
    value: Value,
    take: &mut dyn FnMut(Value) -> Result<(), WireError>,
) -> Result<(), WireError> {
    match value {
        Value::Null => Ok(()),
        Value::Array(values) => values.into_iter().try_for_each(take),
        Value::Bool(_) | Value::Number(_) | Value::String(_) | Value::Object(_) => Err(WireError::WrongKind { field }),
    }
}

/// Hands on the members of an object; null has none. Walked here and nowhere else, so that it is compiled once and not
/// for each kind of body.
pub(crate) fn each_member(
    field: &'static str,
    value: Value,
    take: &mut dyn FnMut(String, Value) -> Result<(), WireError>,
) -> Result<(), WireError> {
    match value {
        Value::Null => Ok(()),
        Value::Object(members) => members.into_iter().try_for_each(|(name, value)| take(name, value)),
        Value::Bool(_) | Value::Number(_) | Value::String(_) | Value::Array(_) => Err(WireError::WrongKind { field }),
    }
}

/// Reads a member into its place: compiled once for each type of member.
#[inline(never)]
pub(crate) fn put<T: Item>(place: &mut T, field: &'static str, value: Value) -> Result<(), WireError> {
    *place = T::read(field, value)?;
    Ok(())
}

/// Appends a comma unless the list or object has just been opened.
pub(super) fn comma(out: &mut Vec<u8>, open: u8) {
    if out.last() != Some(&open) {
        out.push(b',');
    }
}

/// Appends a member of an object, or leaves it out.
pub(crate) fn member(out: &mut Vec<u8>, name: &str, item: &impl Item) {
    if !item.is_absent() {
        member_name(out, name);
        item.write(out);
    }
}

fn member_name(out: &mut Vec<u8>, name: &str) {
    comma(out, b'{');
    write_text(out, name);
    out.push(b':');
}

/// The place of a name, in any case, or of a number in an enumeration's list; `None` for what is not in it, and null.
pub(in crate::wire) fn ordinal(names: &[&str], field: &'static str, value: &Value) -> Result<Option<usize>, WireError> {
    match value {
        Value::Null => Ok(None),
        Value::Number(number) => {
            Ok(number.as_u64().and_then(|at| usize::try_from(at).ok()).filter(|at| *at < names.len()))
        }
        Value::String(text) => Ok(names.iter().position(|name| name.eq_ignore_ascii_case(text))),
        Value::Bool(_) | Value::Array(_) | Value::Object(_) => Err(WireError::WrongKind { field }),
    }
}

/// Declares a body: `field: Type = "nameOnTheWire";`. Of duplicate members the last wins, absent ones keep the default,
/// unknown ones are ignored.
macro_rules! body {
    (
        $(#[$meta:meta])*
        $vis:vis struct $name:ident {
            $($(#[$doc:meta])* $field:ident: $ty:ty = $wire:literal;)*
        }
    ) => {
        $(#[$meta])*
        $vis struct $name { $($(#[$doc])* pub $field: $ty,)* }

        impl $crate::wire::json::Item for $name {
            fn read(
                field: &'static str,
                value: $crate::wire::json::Value,
            ) -> Result<Self, $crate::error::WireError> {
                let mut body = Self::default();
                $crate::wire::json::each_member(field, value, &mut |name, value| match name.as_str() {
                    $($wire => $crate::wire::json::put(&mut body.$field, $wire, value),)*
                    _ => Ok(()),
                })?;
                Ok(body)
            }

            fn write(&self, out: &mut Vec<u8>) {
                out.push(b'{');
                $($crate::wire::json::member(out, $wire, &self.$field);)*
                out.push(b'}');
            }
        }
    };
}
pub(crate) use body;

/// Declares an enumeration that stands in JSON by its name. One that nobody knows is absent where it may be.
macro_rules! text_enum {
    ($(#[$meta:meta])* pub enum $name:ident { $($(#[$doc:meta])* $variant:ident = $text:literal,)* }) => {
        $(#[$meta])*
        #[derive(Clone, Copy, Debug, Eq, PartialEq)]
        pub enum $name { $($(#[$doc])* $variant,)* }

        impl $name {
            const NAMES: &'static [&'static str] = &[$($text,)*];
            const ALL: &'static [Self] = &[$(Self::$variant,)*];

            /// Its name on the wire.
            pub fn name(self) -> &'static str {
                match self { $(Self::$variant => $text,)* }
            }
        }

        impl $crate::wire::json::Item for $name {
            fn read(
                field: &'static str,
                value: $crate::wire::json::Value,
            ) -> Result<Self, $crate::error::WireError> {
                Self::read_maybe(field, value)?.ok_or($crate::error::WireError::WrongKind { field })
            }

            fn read_maybe(
                field: &'static str,
                value: $crate::wire::json::Value,
            ) -> Result<Option<Self>, $crate::error::WireError> {
                let at = $crate::wire::json::ordinal(Self::NAMES, field, &value)?;
                Ok(at.and_then(|at| Self::ALL.get(at).copied()))
            }

            fn write(&self, out: &mut Vec<u8>) {
                out.push(b'"');
                out.extend_from_slice(self.name().as_bytes());
                out.push(b'"');
            }
        }
    };
}
pub(in crate::wire) use text_enum;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::json::{read, to_vec};

    text_enum! {
        /// Test.
        pub enum Model {
            /// First.
            One = "ONE",
            /// Second.
            Two = "TWO",
        }
    }

    body! {
        #[derive(Debug, Default, PartialEq)]
        struct Body {
            n: i32 = "n";
            t: bool = "t";
            m: Option<Model> = "m";
            v: Vec<i32> = "v";
            o: Option<i64> = "o";
            b: Option<bool> = "b";
            s: String = "s";
            f: f64 = "f";
        }
    }

    #[test]
    fn fields_read_as_fastjson_reads_them() {
        let want = |n, t, m| Body { n, t, m, ..Body::default() };
        for (text, body) in [
            ("{}", want(0, false, None)),
            (r#"{"n":"3","t":"TRUE","m":"two","v":null}"#, want(3, true, Some(Model::Two))),
            (r#"{"n":3.0,"t":1,"m":0}"#, want(3, true, Some(Model::One))),
            (r#"{"n":null,"t":null,"m":null,"s":null,"f":null}"#, want(0, false, None)),
            (r#"{"n":"","t":"no","m":"THREE"}"#, want(0, false, None)),
            (r#"{"n":"4.0","t":"1","m":9}"#, want(4, true, None)),
            (r#"{"n":1,"x":[{}],"n":2}"#, want(2, false, None)),
        ] {
            assert_eq!(read::<Body>("test", text.as_bytes()), Ok(body), "{text}");
        }
        let body = read::<Body>("test", br#"{"v":["65",66.0],"o":"7","b":"true","f":"1.5"}"#).unwrap();
        assert_eq!((body.v, body.o, body.b, body.f), (vec![65, 66], Some(7), Some(true), 1.5));
        let body = read::<Body>("test", br#"{"v":null,"o":null,"b":null}"#).unwrap();
        assert_eq!((body.v, body.o, body.b), (vec![], None, None));
    }

    #[test]
    fn what_is_of_another_kind_is_refused_by_name() {
        for (bad, error) in [
            (r#"{"n":4294967296}"#, WireError::BadNumber { field: "n" }),
            (r#"{"n":"x"}"#, WireError::BadNumber { field: "n" }),
            (r#"{"n":1e300}"#, WireError::BadNumber { field: "n" }),
            (r#"{"o":18446744073709551615}"#, WireError::BadNumber { field: "o" }),
            (r#"{"v":[1,{}]}"#, WireError::BadNumber { field: "v" }),
            (r#"{"f":{}}"#, WireError::BadNumber { field: "f" }),
            (r#"{"m":{}}"#, WireError::WrongKind { field: "m" }),
            (r#"{"t":[]}"#, WireError::WrongKind { field: "t" }),
            (r#"{"s":1}"#, WireError::WrongKind { field: "s" }),
            (r#"{"v":{}}"#, WireError::WrongKind { field: "v" }),
            (r#"[1]"#, WireError::WrongKind { field: "test" }),
            ("null", WireError::WrongKind { field: "test" }),
        ] {
            assert_eq!(read::<Body>("test", bad.as_bytes()), Err(error), "{bad}");
        }
    }

    #[test]
    fn what_is_absent_is_left_out() {
        assert_eq!(to_vec(&Body::default()), br#"{"n":0,"t":false,"v":[],"s":"","f":0.0}"#);
        let body = Body { m: Some(Model::Two), v: vec![1, -2], s: "a\"{".into(), f: 1e21, ..Body::default() };
        let text = to_vec(&body);
        assert_eq!(text, br#"{"n":0,"t":false,"m":"TWO","v":[1,-2],"s":"a\"{","f":1e+21}"#);
        assert_eq!(read("test", &text), Ok(body));
    }
}
