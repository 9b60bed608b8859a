//! Which request an answer belongs to: a table of slots, whose numbers go out as opaque and come back.
//!
//! Owned by one loop, without locks. An opaque is a slot and its generation, so that a late answer finds nothing; and it
//! belongs to one connection. It arms no deadlines: its owner does, and takes the entry when one has come due.

use std::collections::VecDeque;

use super::role::Conn;

/// Bits of an opaque that say the slot.
const SLOT_BITS: u32 = 20;
/// Requests that can wait for their answers at once: about a million.
pub const MOST: usize = 1 << SLOT_BITS;
/// A slot rests until this many others have been used, so that an opaque comes back only after four million calls.
const RESTING: usize = 1024;

/// Requests that wait for an answer.
#[derive(Debug)]
pub struct Correlation<P> {
    slots: Vec<Slot<P>>,
    free: VecDeque<u32>,
    waiting: usize,
    unknown: u64,
}

#[derive(Debug)]
struct Slot<P> {
    generation: u32,
    entry: Option<(Conn, P)>,
}

impl<P> Correlation<P> {
    /// An empty table.
    pub fn new() -> Self {
        Self { slots: Vec::new(), free: VecDeque::new(), waiting: 0, unknown: 0 }
    }

    /// Keeps `pending` for the answer to a request on `conn`; the opaque to send it with. Gives it back if a million
    /// wait already.
    pub fn insert(&mut self, conn: Conn, pending: P) -> Result<i32, P> {
        let number = if self.free.len() >= RESTING || self.slots.len() >= MOST {
            self.free.pop_front()
        } else {
            self.slots.push(Slot { generation: 0, entry: None });
            Some(self.slots.len() as u32 - 1)
        };
        let Some((number, slot)) = number.and_then(|number| Some((number, self.slots.get_mut(number as usize)?)))
        else {
            return Err(pending);
        };
        slot.entry = Some((conn, pending));
        self.waiting += 1;
        Ok(opaque(number, slot.generation))
    }

    /// What waits for this answer on this connection. `None`, and counted, if nothing does: it came too late or was
    /// never asked for.
    pub fn take(&mut self, conn: Conn, opaque: i32) -> Option<P> {
        let number = opaque as u32 & (MOST as u32 - 1);
        let found = self.slots.get_mut(number as usize).filter(|slot| {
            slot.generation == opaque as u32 >> SLOT_BITS && slot.entry.as_ref().is_some_and(|(of, _)| *of == conn)
        });
        let Some(slot) = found else {
            self.unknown += 1;
            return None;
        };
        let pending = slot.entry.take().map(|(_, pending)| pending);
        self.release(number);
        pending
    }

    /// What waits for this answer, left where it is.
    pub fn peek(&mut self, conn: Conn, opaque: i32) -> Option<&mut P> {
        let slot = self.slots.get_mut((opaque as u32 & (MOST as u32 - 1)) as usize)?;
        let (of, pending) = slot.entry.as_mut()?;
        (slot.generation == opaque as u32 >> SLOT_BITS && *of == conn).then_some(pending)
    }

    /// Takes everything that waits on `conn`, with its opaques; for when the connection has ended.
    pub fn drain(&mut self, conn: Conn) -> Vec<(i32, P)> {
        self.drain_where(|of| of == conn)
    }

    /// Takes everything that waits; for a shutdown.
    pub fn drain_all(&mut self) -> Vec<(i32, P)> {
        self.drain_where(|_| true)
    }

    /// Requests that wait.
    pub fn len(&self) -> usize {
        self.waiting
    }

    /// True if none waits.
    pub fn is_empty(&self) -> bool {
        self.waiting == 0
    }

    /// Answers that nothing waited for.
    pub fn unknown(&self) -> u64 {
        self.unknown
    }

    fn drain_where(&mut self, wanted: impl Fn(Conn) -> bool) -> Vec<(i32, P)> {
        let mut drained = Vec::new();
        if self.waiting == 0 {
            return drained;
        }
        for number in 0..self.slots.len() as u32 {
            let Some(slot) = self.slots.get_mut(number as usize) else { continue };
            let generation = slot.generation;
            if let Some((_, pending)) = slot.entry.take_if(|(of, _)| wanted(*of)) {
                drained.push((opaque(number, generation), pending));
                self.release(number);
            }
        }
        drained
    }

    /// The slot is empty: its opaque is void from now on, and it rests behind all others.
    fn release(&mut self, number: u32) {
        if let Some(slot) = self.slots.get_mut(number as usize) {
            slot.generation = (slot.generation + 1) & (u32::MAX >> SLOT_BITS);
        }
        self.free.push_back(number);
        self.waiting -= 1;
    }
}

impl<P> Default for Correlation<P> {
    fn default() -> Self {
        Self::new()
    }
}

fn opaque(number: u32, generation: u32) -> i32 {
    (generation << SLOT_BITS | number) as i32
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;

    const A: Conn = Conn(1);
    const B: Conn = Conn(2);

    /// C-021: a generation that wraps disturbs nobody; an old one finds nothing; what is in flight is not given twice.
    #[test]
    fn a_generation_wraps_with_others_in_flight() {
        let mut table = Correlation::new();
        let others: Vec<i32> = (0..4).map(|number| table.insert(A, number).unwrap()).collect();
        let (mut before, mut negative, mut seen) = (None, false, HashSet::new());
        for call in 0..(RESTING * (1 << (32 - SLOT_BITS)) + 10) {
            let opaque = table.insert(A, 1000 + call).unwrap();
            assert!(!others.contains(&opaque));
            negative |= opaque < 0;
            if call < 100_000 {
                assert!(seen.insert(opaque), "opaque {opaque} came again after {call} calls");
            }
            if let Some(before) = before {
                assert_eq!(table.take(A, before), None, "an old answer");
            }
            assert_eq!(table.take(A, opaque), Some(1000 + call));
            before = Some(opaque);
        }
        assert!(negative);
        assert!(table.unknown() > 1000);
        for (number, opaque) in others.into_iter().enumerate() {
            assert_eq!(table.take(A, opaque), Some(number));
        }
        assert!(table.is_empty());
    }

    #[test]
    fn an_answer_on_another_connection_finds_nothing() {
        let mut table = Correlation::new();
        let opaque = table.insert(A, 'x').unwrap();
        assert_eq!(table.take(B, opaque), None);
        assert_eq!(table.peek(A, opaque), Some(&mut 'x'));
        assert_eq!(table.take(A, opaque), Some('x'));
        assert_eq!(table.peek(A, opaque), None);
        assert_eq!(table.take(A, opaque), None);
        for never in [0, -1, i32::MAX, i32::MIN] {
            assert_eq!(table.take(A, never), None);
        }
    }

    /// C-024, C-029: the end of a connection takes its own entries, all of them, and no others.
    #[test]
    fn the_end_of_a_connection_takes_all_that_wait_on_it() {
        let mut table = Correlation::new();
        let opaques: Vec<(Conn, i32)> = (0..10_000)
            .map(|number| {
                let conn = if number % 2 == 0 { A } else { B };
                (conn, table.insert(conn, number).unwrap())
            })
            .collect();
        let drained = table.drain(A);
        assert_eq!((drained.len(), table.len()), (5000, 5000));
        assert!(drained.iter().all(|(opaque, number)| number % 2 == 0 && opaques.contains(&(A, *opaque))));
        assert!(table.drain(A).is_empty());
        assert_eq!(table.drain_all().len(), 5000);
        assert!(table.is_empty());
    }

    #[test]
    fn a_million_wait_at_most() {
        let mut table = Correlation::new();
        let accepted = (0..).take_while(|number| table.insert(A, *number).is_ok()).count();
        assert_eq!(accepted, MOST);
        let opaque = table.drain_where(|_| true).pop().map(|(opaque, _)| opaque).unwrap();
        assert_eq!(table.take(A, opaque), None);
        assert!(table.insert(A, 0).is_ok());
    }
}
