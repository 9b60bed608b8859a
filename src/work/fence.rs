//! The fence around code that is not ours: a panic in it is an error of that call, whatever it panics with.
//!
//! Handlers, observers, callbacks and whatever else users hand over are called through it, on any thread. A panic's
//! payload is theirs as well: it is dropped behind the fence, since its drop may panic too.

use std::panic::{AssertUnwindSafe, catch_unwind};

/// Calls `call`.
///
/// # Errors
/// The text of its panic, or "no text".
pub fn fenced<T>(call: impl FnOnce() -> T) -> Result<T, String> {
    catch_unwind(AssertUnwindSafe(call)).map_err(|panic| {
        let text = panic.downcast_ref::<&str>().map(|text| (*text).to_owned());
        let text = text.or_else(|| panic.downcast_ref::<String>().cloned()).unwrap_or_else(|| "no text".to_owned());
        if let Err(again) = catch_unwind(AssertUnwindSafe(|| drop(panic))) {
            // There is no end to it.
            std::mem::forget(again);
        }
        text
    })
}

#[cfg(test)]
#[cfg(not(loom))]
mod tests {
    use super::*;

    /// Panics when it is dropped, with another of its kind.
    struct Bomb(u32);

    impl Drop for Bomb {
        fn drop(&mut self) {
            std::panic::panic_any(Bomb(self.0 + 1));
        }
    }

    #[test]
    fn a_panic_is_an_error_with_its_text() {
        assert_eq!(fenced(|| 7), Ok(7));
        assert_eq!(fenced(|| panic!("plain")), Err::<(), _>("plain".to_owned()));
        assert_eq!(fenced(|| panic!("made of {}", 2)), Err::<(), _>("made of 2".to_owned()));
        assert_eq!(fenced(|| std::panic::panic_any(5)), Err::<(), _>("no text".to_owned()));
    }

    #[test]
    fn what_a_panic_carries_may_panic_when_it_is_dropped() {
        assert_eq!(fenced(|| std::panic::panic_any(Bomb(0))), Err::<(), _>("no text".to_owned()));
    }
}
