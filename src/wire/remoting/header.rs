//! Typed headers: how a request's or answer's struct is read from and written into extension fields.
//!
//! The conversations' files declare their structs with `header!`, one line a field with its name on the wire, so that
//! the reader and the writer cannot drift apart. Unknown fields are ignored, of duplicates the last wins. A name that is
//! escaped though it need not be, as nobody writes it, counts as unknown.

use std::borrow::Cow;

use super::fields::{FieldWriter, Fields, Value};
use crate::error::WireError;

/// A struct that is read from extension fields. Texts are borrowed from the frame.
pub trait ReadHeader<'a>: Sized {
    /// Reads it.
    ///
    /// # Errors
    /// `MissingField`, `BadNumber`, `BadText`, each naming the field.
    fn read(fields: &Fields<'a>) -> Result<Self, WireError>;
}

/// Something that writes extension fields.
pub trait WriteHeader {
    /// Writes them.
    fn write(&self, out: &mut FieldWriter<'_>);
}

/// No map of fields at all, as Java writes requests and answers without a header class.
#[derive(Clone, Copy, Debug)]
pub struct NoFields;

impl WriteHeader for NoFields {
    fn write(&self, _out: &mut FieldWriter<'_>) {}
}

impl ReadHeader<'_> for NoFields {
    fn read(_fields: &Fields<'_>) -> Result<Self, WireError> {
        Ok(Self)
    }
}

/// An empty map of fields: for peers that follow the map without looking.
#[derive(Clone, Copy, Debug)]
pub struct EmptyFields;

impl WriteHeader for EmptyFields {
    fn write(&self, out: &mut FieldWriter<'_>) {
        out.open();
    }
}

/// One header, then more fields: signatures, region, and others that stand beside a request's own.
impl<A: WriteHeader, B: WriteHeader> WriteHeader for (A, B) {
    fn write(&self, out: &mut FieldWriter<'_>) {
        self.0.write(out);
        self.1.write(out);
    }
}

impl<T: WriteHeader + ?Sized> WriteHeader for &T {
    fn write(&self, out: &mut FieldWriter<'_>) {
        (**self).write(out);
    }
}

/// Fields by name, for what has no struct.
impl WriteHeader for [(&str, &str)] {
    fn write(&self, out: &mut FieldWriter<'_>) {
        out.open();
        for (name, value) in self {
            out.text(name, value);
        }
    }
}

/// A type that one extension field can have.
pub trait Field<'a>: Sized {
    /// The value of a field that is there.
    ///
    /// # Errors
    /// `BadNumber`, `BadText`.
    fn read(name: &'static str, value: Value<'a>) -> Result<Self, WireError>;

    /// The value of a field that is not.
    ///
    /// # Errors
    /// `MissingField` unless the type has a word for it.
    fn absent(name: &'static str) -> Result<Self, WireError> {
        Err(WireError::MissingField { field: name })
    }

    /// The value of a field that is there or not, for headers that are not hot: compiled once for each type.
    ///
    /// # Errors
    /// As [`read`](Self::read) and [`absent`](Self::absent).
    #[inline(never)]
    fn pick(name: &'static str, value: Option<Value<'a>>) -> Result<Self, WireError> {
        match value {
            Some(value) => Self::read(name, value),
            None => Self::absent(name),
        }
    }

    /// Writes the field, or leaves it out.
    fn write(&self, name: &'static str, out: &mut FieldWriter<'_>);
}

/// The letters of a name as an array, so that comparing them is one step of known length.
pub(super) const fn letters<const LEN: usize>(name: &str) -> [u8; LEN] {
    match name.as_bytes().first_chunk() {
        Some(letters) => *letters,
        None => [0; LEN],
    }
}

/// Finds the last field of each name.
pub(super) fn find_all<'a>(fields: &Fields<'a>, names: &[&str], found: &mut [Option<Value<'a>>]) {
    for (name, value) in fields.iter() {
        if let Some(at) = names.iter().position(|known| known.as_bytes() == name.raw())
            && let Some(place) = found.get_mut(at)
        {
            *place = Some(value);
        }
    }
}

impl<'a> Field<'a> for Cow<'a, str> {
    #[inline(always)]
    fn read(name: &'static str, value: Value<'a>) -> Result<Self, WireError> {
        value.text(name)
    }

    fn write(&self, name: &'static str, out: &mut FieldWriter<'_>) {
        out.text(name, self);
    }
}

impl<'a> Field<'a> for i64 {
    #[inline(always)]
    fn read(name: &'static str, value: Value<'a>) -> Result<Self, WireError> {
        value.i64(name)
    }

    fn write(&self, name: &'static str, out: &mut FieldWriter<'_>) {
        out.number(name, *self);
    }
}

impl<'a> Field<'a> for i32 {
    #[inline(always)]
    fn read(name: &'static str, value: Value<'a>) -> Result<Self, WireError> {
        value.i32(name)
    }

    fn write(&self, name: &'static str, out: &mut FieldWriter<'_>) {
        out.number(name, i64::from(*self));
    }
}

impl<'a> Field<'a> for bool {
    #[inline(always)]
    fn read(_name: &'static str, value: Value<'a>) -> Result<Self, WireError> {
        Ok(value.bool())
    }

    fn write(&self, name: &'static str, out: &mut FieldWriter<'_>) {
        out.bool(name, *self);
    }
}

impl<'a, T: Field<'a>> Field<'a> for Option<T> {
    #[inline(always)]
    fn read(name: &'static str, value: Value<'a>) -> Result<Self, WireError> {
        T::read(name, value).map(Some)
    }

    fn absent(_name: &'static str) -> Result<Self, WireError> {
        Ok(None)
    }

    fn write(&self, name: &'static str, out: &mut FieldWriter<'_>) {
        if let Some(value) = self {
            value.write(name, out);
        }
    }
}

/// Declares a header: `field: Type = "nameOnTheWire";`, with `else value` for what an absent one means. A `hot` one is
/// read by code of its own, a field at a time as it comes; that is ten times the code for the compiler.
macro_rules! header {
    (hot $($rest:tt)*) => { header!(@declare hot_reader, $($rest)*); };
    (@declare $reader:ident,
        $(#[$meta:meta])*
        pub struct $name:ident<$lt:lifetime> {
            $($(#[$doc:meta])* $field:ident: $ty:ty = $wire:literal $(else $default:expr)?;)*
        }
    ) => {
        $(#[$meta])*
        #[derive(Clone, Debug, PartialEq)]
        pub struct $name<$lt> { $($(#[$doc])* pub $field: $ty,)* }
        header!(@$reader $lt, $name<$lt>, $($field: $ty = $wire $(else $default)?;)*);
        header!(@writer $lt, $name<$lt>, $($field = $wire;)*);
    };
    (@declare $reader:ident,
        $(#[$meta:meta])*
        pub struct $name:ident {
            $($(#[$doc:meta])* $field:ident: $ty:ty = $wire:literal $(else $default:expr)?;)*
        }
    ) => {
        $(#[$meta])*
        #[derive(Clone, Debug, PartialEq)]
        pub struct $name { $($(#[$doc])* pub $field: $ty,)* }
        header!(@$reader 'a, $name, $($field: $ty = $wire $(else $default)?;)*);
        header!(@writer 'a, $name, $($field = $wire;)*);
    };
    (@hot_reader $lt:lifetime, $name:ty, $($field:ident: $ty:ty = $wire:literal $(else $default:expr)?;)*) => {
        impl<$lt> $crate::wire::remoting::header::ReadHeader<$lt> for $name {
            fn read(
                fields: &$crate::wire::remoting::fields::Fields<$lt>,
            ) -> Result<Self, $crate::error::WireError> {
                use $crate::wire::remoting::header::Field;
                let Some(places) = fields.places() else {
                    return header!(@by_names fields, $lt, $($field: $ty = $wire $(else $default)?;)*);
                };
                $(let mut $field: Option<$ty> = None;)*
                for (name, value) in places {
                    $(if *name == const { $crate::wire::remoting::header::letters::<{ $wire.len() }>($wire) } {
                        $field = Some(<$ty as Field<$lt>>::read($wire, value)?);
                        continue;
                    })*
                }
                Ok(Self { $($field: match $field {
                    Some(value) => value,
                    None => header!(@absent $lt, $ty, $wire $(, $default)?),
                },)* })
            }
        }
    };
    (@reader $lt:lifetime, $name:ty, $($field:ident: $ty:ty = $wire:literal $(else $default:expr)?;)*) => {
        impl<$lt> $crate::wire::remoting::header::ReadHeader<$lt> for $name {
            fn read(
                fields: &$crate::wire::remoting::fields::Fields<$lt>,
            ) -> Result<Self, $crate::error::WireError> {
                header!(@by_names fields, $lt, $($field: $ty = $wire $(else $default)?;)*)
            }
        }
    };
    (@by_names $fields:ident, $lt:lifetime, $($field:ident: $ty:ty = $wire:literal $(else $default:expr)?;)*) => {{
        const NAMES: &[&str] = &[$($wire,)*];
        let mut found = [None; NAMES.len()];
        $crate::wire::remoting::header::find_all($fields, NAMES, &mut found);
        let [$($field,)*] = found;
        Ok(Self { $($field: header!(@pick $lt, $ty, $wire, $field $(, $default)?),)* })
    }};
    (@writer $lt:lifetime, $name:ty, $($field:ident = $wire:literal;)*) => {
        impl<$lt> $crate::wire::remoting::header::WriteHeader for $name {
            fn write(&self, out: &mut $crate::wire::remoting::fields::FieldWriter<'_>) {
                out.open();
                $($crate::wire::remoting::header::Field::write(&self.$field, $wire, out);)*
            }
        }
    };
    (@pick $lt:lifetime, $ty:ty, $wire:literal, $found:ident) => {
        <$ty as $crate::wire::remoting::header::Field<$lt>>::pick($wire, $found)?
    };
    (@pick $lt:lifetime, $ty:ty, $wire:literal, $found:ident, $default:expr) => {
        match $found {
            Some(_) => <$ty as $crate::wire::remoting::header::Field<$lt>>::pick($wire, $found)?,
            None => $default,
        }
    };
    (@absent $lt:lifetime, $ty:ty, $wire:literal) => { <$ty as Field<$lt>>::absent($wire)? };
    (@absent $lt:lifetime, $ty:ty, $wire:literal, $default:expr) => { $default };
    ($($rest:tt)*) => { header!(@declare reader, $($rest)*); };
}
pub(super) use header;

/// For the fuzz target `command`: typed headers take no more memory than the command has.
#[doc(hidden)]
#[cfg(any(test, fuzzing))]
pub(super) fn fuzz_headers(command: &super::command::Command<'_>, measure: crate::wire::Measure) {
    use super::send::{Names, SendRequest};
    let (fields, limit) = (&command.fields, command.fields.len() * 64 + 4096);
    let most = fields.iter().map(|(_, value)| value.len()).sum::<usize>() + limit;
    let tried: [(&str, &mut dyn FnMut() -> bool); 5] = [
        ("pull", &mut || super::pull::PullRequest::read(fields).is_ok()),
        ("pull answer", &mut || super::pull::PullAnswer::read(fields).is_ok()),
        ("send", &mut || SendRequest::read(Names::Long, fields).is_ok()),
        ("send, short", &mut || SendRequest::read(Names::Short, fields).is_ok()),
        ("register", &mut || super::register::RegisterRequest::read(fields).is_ok()),
    ];
    for (name, read) in tried {
        let peak = measure(&mut || {
            read();
        });
        assert!(peak <= most, "{name}: {peak} bytes, {most} expected");
    }
}
