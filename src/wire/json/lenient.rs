//! Fields as fastjson reads them: numbers as text, truth as text or number, enumerations by name or number, null for
//! nothing. For serde's `deserialize_with`.

use std::fmt;
use std::marker::PhantomData;

use serde::de::{Error, Visitor};
use serde::{Deserialize, Deserializer};

/// A number, also as text or with a fraction; null is 0.
pub fn number<'de, T, D>(from: D) -> Result<T, D::Error>
where
    T: TryFrom<i64> + Default,
    D: Deserializer<'de>,
{
    from.deserialize_any(Number(PhantomData))
}

struct Number<T>(PhantomData<T>);

impl<T: TryFrom<i64> + Default> Visitor<'_> for Number<T> {
    type Value = T;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a number")
    }

    fn visit_i64<E: Error>(self, value: i64) -> Result<T, E> {
        T::try_from(value).map_err(|_| E::custom("number out of range"))
    }

    fn visit_u64<E: Error>(self, value: u64) -> Result<T, E> {
        self.visit_i64(i64::try_from(value).map_err(E::custom)?)
    }

    fn visit_f64<E: Error>(self, value: f64) -> Result<T, E> {
        if value.abs() < 9.2e18 { self.visit_i64(value as i64) } else { Err(E::custom("number out of range")) }
    }

    fn visit_str<E: Error>(self, value: &str) -> Result<T, E> {
        match value.trim() {
            "" | "null" => Ok(T::default()),
            text => match text.parse::<i64>() {
                Ok(value) => self.visit_i64(value),
                Err(_) => self.visit_f64(text.parse().map_err(E::custom)?),
            },
        }
    }

    fn visit_unit<E: Error>(self) -> Result<T, E> {
        Ok(T::default())
    }
}

/// One number, read by [`number`].
struct One<T>(T);

impl<'de, T: TryFrom<i64> + Default> Deserialize<'de> for One<T> {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        number(from).map(Self)
    }
}

/// A list of numbers, each as [`number`] reads it (Go's `codeSet` has texts); null is empty.
pub fn numbers<'de, T, D>(from: D) -> Result<Vec<T>, D::Error>
where
    T: TryFrom<i64> + Default,
    D: Deserializer<'de>,
{
    let list = Option::<Vec<One<T>>>::deserialize(from)?.unwrap_or_default();
    Ok(list.into_iter().map(|one| one.0).collect())
}

/// A number that may be absent, as [`number`] reads it; null is absent.
pub fn maybe_number<'de, T, D>(from: D) -> Result<Option<T>, D::Error>
where
    T: TryFrom<i64> + Default,
    D: Deserializer<'de>,
{
    Ok(Option::<One<T>>::deserialize(from)?.map(|one| one.0))
}

/// A truth value that may be absent, as [`truth`] reads it; null is absent.
pub fn maybe_truth<'de, D: Deserializer<'de>>(from: D) -> Result<Option<bool>, D::Error> {
    struct One(bool);
    impl<'de> Deserialize<'de> for One {
        fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
            truth(from).map(Self)
        }
    }
    Ok(Option::<One>::deserialize(from)?.map(|one| one.0))
}

/// A truth value, also as text or number; null is false.
pub fn truth<'de, D: Deserializer<'de>>(from: D) -> Result<bool, D::Error> {
    from.deserialize_any(Truth)
}

struct Truth;

impl Visitor<'_> for Truth {
    type Value = bool;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("true or false")
    }

    fn visit_bool<E: Error>(self, value: bool) -> Result<bool, E> {
        Ok(value)
    }

    fn visit_i64<E: Error>(self, value: i64) -> Result<bool, E> {
        Ok(value != 0)
    }

    fn visit_u64<E: Error>(self, value: u64) -> Result<bool, E> {
        Ok(value != 0)
    }

    fn visit_f64<E: Error>(self, value: f64) -> Result<bool, E> {
        Ok(value != 0.0)
    }

    fn visit_str<E: Error>(self, value: &str) -> Result<bool, E> {
        Ok(value.eq_ignore_ascii_case("true") || value == "1")
    }

    fn visit_unit<E: Error>(self) -> Result<bool, E> {
        Ok(false)
    }
}

/// Anything with a default, for which null stands.
pub fn nullable<'de, T, D>(from: D) -> Result<T, D::Error>
where
    T: Deserialize<'de> + Default,
    D: Deserializer<'de>,
{
    Ok(Option::<T>::deserialize(from)?.unwrap_or_default())
}

/// The place of a name, in any case, or of a number in an enumeration's list; `None` for what is not in it.
pub(in crate::wire) struct Ordinal(pub &'static [&'static str]);

impl Visitor<'_> for Ordinal {
    type Value = Option<usize>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a name or a number")
    }

    fn visit_i64<E: Error>(self, value: i64) -> Result<Self::Value, E> {
        Ok(usize::try_from(value).ok().filter(|at| *at < self.0.len()))
    }

    fn visit_u64<E: Error>(self, value: u64) -> Result<Self::Value, E> {
        Ok(usize::try_from(value).ok().filter(|at| *at < self.0.len()))
    }

    fn visit_str<E: Error>(self, value: &str) -> Result<Self::Value, E> {
        Ok(self.0.iter().position(|name| name.eq_ignore_ascii_case(value)))
    }

    fn visit_unit<E: Error>(self) -> Result<Self::Value, E> {
        Ok(None)
    }
}

/// Declares an enumeration that stands in JSON by its name.
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

            /// By name in any case, or by number; `None` for one that nobody knows, and for null.
            pub(in crate::wire) fn lenient<'de, D>(from: D) -> Result<Option<Self>, D::Error>
            where
                D: serde::Deserializer<'de>,
            {
                let at = from.deserialize_any($crate::wire::json::Ordinal(Self::NAMES))?;
                Ok(at.and_then(|at| Self::ALL.get(at).copied()))
            }
        }

        impl serde::Serialize for $name {
            fn serialize<S: serde::Serializer>(&self, out: S) -> Result<S::Ok, S::Error> {
                out.serialize_str(self.name())
            }
        }
    };
}
pub(in crate::wire) use text_enum;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::json::read;

    text_enum! {
        /// Test.
        pub enum Model {
            /// First.
            One = "ONE",
            /// Second.
            Two = "TWO",
        }
    }

    #[derive(Debug, Default, Deserialize, PartialEq)]
    #[serde(default)]
    struct Body {
        #[serde(deserialize_with = "number")]
        n: i32,
        #[serde(deserialize_with = "truth")]
        t: bool,
        #[serde(deserialize_with = "Model::lenient")]
        m: Option<Model>,
        #[serde(deserialize_with = "numbers")]
        v: Vec<i32>,
        #[serde(deserialize_with = "maybe_number")]
        o: Option<i64>,
        #[serde(deserialize_with = "maybe_truth")]
        b: Option<bool>,
    }

    #[test]
    fn fields_read_as_fastjson_reads_them() {
        let want = |n, t, m| Body { n, t, m, ..Body::default() };
        for (text, body) in [
            ("{}", want(0, false, None)),
            (r#"{"n":"3","t":"TRUE","m":"two","v":null}"#, want(3, true, Some(Model::Two))),
            (r#"{"n":3.0,"t":1,"m":0}"#, want(3, true, Some(Model::One))),
            (r#"{"n":null,"t":null,"m":null}"#, want(0, false, None)),
            (r#"{"n":"","t":"no","m":"THREE"}"#, want(0, false, None)),
            (r#"{"n":"4.0","t":"1","m":9}"#, want(4, true, None)),
        ] {
            assert_eq!(read::<Body>("test", text.as_bytes()), Ok(body), "{text}");
        }
        let body = read::<Body>("test", br#"{"v":["65",66.0],"o":"7","b":"true"}"#).unwrap();
        assert_eq!((body.v, body.o, body.b), (vec![65, 66], Some(7), Some(true)));
        let body = read::<Body>("test", br#"{"v":null,"o":null,"b":null}"#).unwrap();
        assert_eq!((body.v, body.o, body.b), (vec![], None, None));
        for bad in [r#"{"n":4294967296}"#, r#"{"n":"x"}"#, r#"{"n":1e300}"#, r#"{"m":{}}"#] {
            assert!(read::<Body>("test", bad.as_bytes()).is_err(), "{bad}");
        }
    }
}
