//! What state each offset of one queue is in, and below which offset everything is settled.
//!
//! Used by the process queue under its lock. A ring of one byte per offset over the dense stretch that a queue normally
//! is, an ordered map for what lies below the ring's base or too far above it. It holds no message, knows no lock, no
//! time and no protocol, and never sizes an allocation by an offset alone: see `Ring::grow`.
//!
//! Offsets that no message occupies need no storage: a slot that is [`Slot::Absent`] below the highest offset ever put is
//! a hole (the broker skipped it: filtered, compacted, damaged), and the watermark walks over it. This is why a jump by a
//! billion offsets costs one entry in the map and nothing more.

use std::collections::BTreeMap;
use std::ops::Range;

/// State of one offset. `Absent` and `Done` are *settled*: they do not hold the watermark back.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
#[repr(u8)]
pub enum Slot {
    /// No message: never put, or settled long ago, or a hole.
    Absent = 0,
    /// Finished (or handed on to the retry or dead-letter topic) above an offset that is not; kept so that a second put
    /// of the same offset is not delivered again.
    Done = 1,
    /// Put, and taken by nobody.
    Waiting = 2,
    /// In a handler's hand.
    Taken = 3,
    /// Failed; on its way to the retry topic, or waiting for a local retry.
    SendingBack = 4,
}

/// Settled bytes have no bit above the lowest.
const UNSETTLED: u8 = !1;
/// Slots of a fresh ring.
const FIRST_SLOTS: usize = 64;
/// The ring covers this span whatever is in it: one byte each, and no less than the widest span limit (65 535).
const FREE_SLOTS: u64 = 1 << 16;
/// Beyond [`FREE_SLOTS`] the ring has at most this many slots for each message it holds.
const SLOTS_PER_MESSAGE: u64 = 8;
/// The ring's largest span; what lies further above its base waits in the map.
const MOST_SLOTS: u64 = 1 << 22;

/// States by offset. See the head of this file.
#[derive(Debug)]
pub struct Ring {
    /// A power of two of states, by offset modulo the length. Everything outside `base..end` is `Absent`.
    slots: Box<[u8]>,
    /// Lowest offset the ring covers. Unless `held` is 0 the slot here is not settled.
    base: i64,
    /// One past the highest offset in the ring that is not `Absent`; `base` if there is none.
    end: i64,
    /// Slots of the ring that are not settled.
    held: u64,
    /// Offsets below `base`, and those that were too far above it when they were put. The lowest one is never `Done`
    /// while it is below `base`.
    far: BTreeMap<i64, Slot>,
    /// One past the highest offset ever put.
    top: Option<i64>,
}

impl Default for Ring {
    fn default() -> Self {
        Self {
            slots: vec![Slot::Absent as u8; FIRST_SLOTS].into_boxed_slice(),
            base: 0,
            end: 0,
            held: 0,
            far: BTreeMap::new(),
            top: None,
        }
    }
}

impl Ring {
    /// The offset below which everything is settled: the lowest one that is not, or one past the highest ever put.
    /// `None` if nothing was ever put.
    pub fn watermark(&self) -> Option<i64> {
        let top = self.top?;
        let ring = if self.held > 0 { self.base } else { top };
        Some(self.far.first_key_value().map_or(ring, |(&far, _)| far.min(ring)))
    }

    /// From the watermark to the highest offset ever put, both included, less one: Java's span. 0 if all is settled.
    pub fn span(&self) -> u64 {
        match (self.watermark(), self.top) {
            (Some(low), Some(top)) => u64::try_from(top.saturating_sub(low).saturating_sub(1)).unwrap_or(0),
            _ => 0,
        }
    }

    /// Puts `count` messages with offsets from `first` on, as `Waiting`. Returns how many were new, if that is all of
    /// them; `None` if some are known already or lie outside the ring, and nothing was done: put them one by one.
    pub fn put_run(&mut self, first: i64, count: u32) -> Option<u32> {
        let last = first.checked_add(i64::from(count))?;
        if first < 0 || count == 0 || !self.far.is_empty() {
            return None;
        }
        if self.held == 0 {
            (self.base, self.end) = (first, first);
        }
        if first < self.end || !self.covers(last.saturating_sub(1)) {
            return None;
        }
        self.fill(first, u64::from(count), Slot::Waiting);
        self.held = self.held.saturating_add(u64::from(count));
        self.end = last;
        self.top = self.top.max(Some(last));
        Some(count)
    }

    /// Puts one message as `Waiting`. False if the offset is known already (its state stays) or out of range: negative, or the highest there is.
    pub fn put(&mut self, offset: i64) -> bool {
        if offset < 0 || offset == i64::MAX || self.far.contains_key(&offset) {
            return false;
        }
        if self.held == 0 && self.far.is_empty() {
            (self.base, self.end) = (offset, offset);
        }
        if self.covers(offset) {
            let at = self.at(offset);
            if self.slots[at] != Slot::Absent as u8 {
                return false;
            }
            self.slots[at] = Slot::Waiting as u8;
            self.held = self.held.saturating_add(1);
            self.end = self.end.max(offset.saturating_add(1));
        } else {
            self.far.insert(offset, Slot::Waiting);
        }
        self.top = self.top.max(Some(offset.saturating_add(1)));
        true
    }

    /// The state of one offset.
    pub fn state(&self, offset: i64) -> Slot {
        if !self.far.is_empty()
            && let Some(slot) = self.far.get(&offset)
        {
            return *slot;
        }
        if offset < self.base || offset >= self.end {
            return Slot::Absent;
        }
        match self.slots[self.at(offset)] {
            1 => Slot::Done,
            2 => Slot::Waiting,
            3 => Slot::Taken,
            4 => Slot::SendingBack,
            _ => Slot::Absent,
        }
    }

    /// Turns `count` offsets from `first` on, all known to be in state `from`, into `to`, neither of them settled.
    pub fn turn_run(&mut self, first: i64, count: u32, from: Slot, to: Slot) {
        if self.in_ring(first, count) {
            debug_assert!((0..i64::from(count)).all(|more| self.state(first + more) == from));
            self.fill(first, u64::from(count), to);
        } else {
            for more in 0..i64::from(count) {
                self.turn(first.saturating_add(more), from, to);
            }
        }
    }

    /// Turns one offset from `from` into `to`, neither of them settled. False, and nothing done, if it was not `from`.
    pub fn turn(&mut self, offset: i64, from: Slot, to: Slot) -> bool {
        if self.state(offset) != from {
            return false;
        }
        if let Some(slot) = self.far.get_mut(&offset) {
            *slot = to;
        } else {
            let at = self.at(offset);
            self.slots[at] = to as u8;
        }
        true
    }

    /// Settles `count` offsets from `first` on, all known to be in state `from`.
    pub fn settle_run(&mut self, first: i64, count: u32, from: Slot) {
        if !self.in_ring(first, count) {
            for more in 0..i64::from(count) {
                self.settle(first.saturating_add(more), from);
            }
            return;
        }
        debug_assert!((0..i64::from(count)).all(|more| self.state(first + more) == from));
        self.held = self.held.saturating_sub(u64::from(count));
        if first == self.base {
            self.fill(first, u64::from(count), Slot::Absent);
            self.base = first.saturating_add(i64::from(count));
            self.advance();
        } else {
            self.fill(first, u64::from(count), Slot::Done);
        }
    }

    /// Settles one offset. False, and nothing done, if it was not in state `from`.
    pub fn settle(&mut self, offset: i64, from: Slot) -> bool {
        if self.state(offset) != from {
            return false;
        }
        if !self.far.is_empty()
            && let Some(slot) = self.far.get_mut(&offset)
        {
            *slot = Slot::Done;
            self.advance();
            return true;
        }
        let at = self.at(offset);
        self.slots[at] = Slot::Done as u8;
        self.held = self.held.saturating_sub(1);
        if offset == self.base {
            self.advance();
        }
        true
    }

    /// Moves the base over what is settled, takes over from the map what has come into reach once the ring is empty, and
    /// forgets what is done below everything else.
    fn advance(&mut self) {
        loop {
            self.skip_settled();
            while let Some(first) = self.far.first_entry() {
                if *first.get() != Slot::Done || (self.held > 0 && *first.key() > self.base) {
                    break;
                }
                first.remove();
            }
            if self.held > 0 || self.far.is_empty() {
                return;
            }
            self.adopt();
        }
    }

    fn skip_settled(&mut self) {
        while self.base < self.end {
            let (run, _) = self.spans(self.base, self.end.abs_diff(self.base));
            let slots = &mut self.slots[run];
            let settled = leading_settled(slots);
            slots[..settled].fill(Slot::Absent as u8);
            let whole = settled == slots.len();
            self.base = self.base.saturating_add(i64::try_from(settled).unwrap_or(i64::MAX));
            if !whole {
                return;
            }
        }
    }

    /// The ring is empty: lets it start at the map's lowest offset and moves in what it covers.
    fn adopt(&mut self) {
        let Some((&low, _)) = self.far.first_key_value() else { return };
        (self.base, self.end) = (low, low);
        while let Some(first) = self.far.first_entry() {
            let offset = *first.key();
            if offset.abs_diff(low) >= self.slots.len() as u64 {
                return;
            }
            let slot = first.remove();
            let at = self.at(offset);
            self.slots[at] = slot as u8;
            self.held = self.held.saturating_add(u64::from(slot as u8 & UNSETTLED != 0));
            self.end = offset.saturating_add(1);
        }
    }

    /// True if the ring has, or can be given, a slot for this offset.
    fn covers(&mut self, offset: i64) -> bool {
        if offset < self.base {
            return false;
        }
        let span = offset.abs_diff(self.base).saturating_add(1);
        span <= self.slots.len() as u64 || self.grow(span)
    }

    /// Makes room for a span, if what the ring holds deserves it: a peer's offsets alone buy 64 KiB at most.
    fn grow(&mut self, span: u64) -> bool {
        let deserved = FREE_SLOTS.max(self.held.saturating_add(1).saturating_mul(SLOTS_PER_MESSAGE)).min(MOST_SLOTS);
        let Some(slots) = span.checked_next_power_of_two().filter(|slots| *slots <= deserved) else { return false };
        let Ok(slots) = usize::try_from(slots) else { return false };
        let mut wider = vec![Slot::Absent as u8; slots].into_boxed_slice();
        for offset in self.base..self.end {
            wider[index(offset, slots)] = self.slots[self.at(offset)];
        }
        self.slots = wider;
        true
    }

    fn in_ring(&self, first: i64, count: u32) -> bool {
        self.far.is_empty() && first >= self.base && first.saturating_add(i64::from(count)) <= self.end
    }

    /// Invariant of every index made of it: the length is a power of two, so the result is below it.
    fn at(&self, offset: i64) -> usize {
        index(offset, self.slots.len())
    }

    /// The one or two stretches of slots that `count` offsets from `first` on lie in; `count` is at most the length.
    fn spans(&self, first: i64, count: u64) -> (Range<usize>, Range<usize>) {
        let (at, len) = (self.at(first), self.slots.len());
        let count = usize::try_from(count).unwrap_or(len).min(len);
        let straight = count.min(len - at);
        (at..at + straight, 0..count - straight)
    }

    fn fill(&mut self, first: i64, count: u64, slot: Slot) {
        let (straight, wrapped) = self.spans(first, count);
        self.slots[straight].fill(slot as u8);
        self.slots[wrapped].fill(slot as u8);
    }
}

fn index(offset: i64, slots: usize) -> usize {
    offset as usize & (slots - 1)
}

/// How many slots at the front are settled, eight at a look.
fn leading_settled(slots: &[u8]) -> usize {
    let (eights, _) = slots.as_chunks::<8>();
    let whole = eights.iter().take_while(|eight| u64::from_ne_bytes(**eight) & u64::from_ne_bytes([UNSETTLED; 8]) == 0);
    let start = whole.count() * 8;
    let rest = slots[start..].iter().take_while(|slot| **slot & UNSETTLED == 0);
    start + rest.count()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeMap;

    struct XorShift(u64);

    impl XorShift {
        fn below(&mut self, n: u64) -> u64 {
            self.0 ^= self.0 << 13;
            self.0 ^= self.0 >> 7;
            self.0 ^= self.0 << 17;
            self.0 % n
        }
    }

    #[test]
    fn a_jump_costs_one_entry_and_no_allocation() {
        let mut ring = Ring::default();
        assert!(ring.put(0) && ring.put(1 << 40) && ring.put(i64::MAX - 1));
        assert!(!ring.put(-1) && !ring.put(i64::MAX) && !ring.put(1 << 40));
        assert_eq!((ring.slots.len(), ring.far.len()), (FIRST_SLOTS, 2));
        assert!(ring.turn(0, Slot::Waiting, Slot::Taken) && ring.settle(0, Slot::Taken));
        assert_eq!((ring.watermark(), ring.far.len()), (Some(1 << 40), 1), "the ring starts anew at the jump");
        assert!(ring.settle(1 << 40, Slot::Waiting) && ring.settle(i64::MAX - 1, Slot::Waiting));
        assert_eq!((ring.watermark(), ring.span()), (Some(i64::MAX), 0));
    }

    #[test]
    fn a_million_resident_messages_stay_in_the_ring() {
        let mut ring = Ring::default();
        for batch in 0..1 << 15 {
            assert_eq!(ring.put_run(batch * 32, 32), Some(32));
        }
        assert_eq!((ring.slots.len(), ring.far.len(), ring.span()), (1 << 20, 0, (1 << 20) - 1));
    }

    #[test]
    fn a_late_low_offset_waits_in_the_map_and_holds_the_watermark() {
        let mut ring = Ring::default();
        assert_eq!(ring.put_run(100, 4), Some(4));
        assert!(ring.put(50) && !ring.put(50));
        ring.settle_run(100, 4, Slot::Waiting);
        assert_eq!(ring.watermark(), Some(50));
        assert!(ring.settle(50, Slot::Waiting));
        assert_eq!((ring.watermark(), ring.far.len()), (Some(104), 0));
    }

    /// Against an ordered map that keeps everything, with jumps, wrap-arounds, doubles and any order of settling.
    #[test]
    fn the_ring_does_what_an_ordered_map_does() {
        for seed in 1..=400 {
            let (mut rng, mut ring, mut model) = (XorShift(seed), Ring::default(), BTreeMap::new());
            let (mut next, mut top) = (rng.below(1000) as i64, None);
            for _ in 0..300 {
                match rng.below(10) {
                    0..=3 => {
                        let count = 1 + rng.below(40) as u32;
                        if ring.put_run(next, count).is_none() {
                            for more in 0..i64::from(count) {
                                assert!(ring.put(next + more), "seed {seed}");
                            }
                        }
                        model.extend((next..next + i64::from(count)).map(|offset| (offset, Slot::Waiting)));
                        next += i64::from(count) + rng.below(3) as i64;
                        top = Some(next).max(top);
                        if rng.below(20) == 0 {
                            next += rng.below(1 << 20) as i64;
                        }
                    }
                    4 => {
                        let offset = (next - 1 - rng.below(3000) as i64).max(0);
                        let new = !model.contains_key(&offset) && ring.state(offset) == Slot::Absent;
                        assert_eq!(ring.put(offset), new, "seed {seed}");
                        if new {
                            model.insert(offset, Slot::Waiting);
                            top = top.max(Some(offset + 1));
                        }
                    }
                    _ => {
                        for _ in 0..rng.below(50) {
                            let Some((&low, _)) = model.first_key_value() else { break };
                            let Some((&high, _)) = model.last_key_value() else { break };
                            let from = low + rng.below((high - low) as u64 + 1) as i64;
                            let Some((&offset, &slot)) = model.range(from..).next() else { break };
                            if slot == Slot::Waiting {
                                assert!(ring.turn(offset, Slot::Waiting, Slot::Taken), "seed {seed}");
                                model.insert(offset, Slot::Taken);
                            } else {
                                assert!(ring.settle(offset, Slot::Taken), "seed {seed}");
                                model.remove(&offset);
                            }
                        }
                    }
                }
                if let Some((&low, _)) = model.first_key_value() {
                    assert_eq!(ring.watermark(), Some(low), "seed {seed}");
                } else if top.is_some() {
                    assert!(ring.watermark() <= top && ring.far.is_empty(), "seed {seed}");
                }
                for (&offset, &slot) in model.iter().take(5) {
                    assert_eq!(ring.state(offset), slot, "seed {seed}");
                }
            }
        }
    }
}
