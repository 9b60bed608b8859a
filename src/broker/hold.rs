//! Pulls that wait for a message: which arrival wakes which, when each ends, which go with a closed connection.
//!
//! The dispatcher calls this under rank 1. It knows nothing of stores or answers: a woken pull is given back to the
//! caller, who runs it again with waiting no longer allowed.
//!
//! Expiry is exact. A pull that an arrival passed by (another tag) is woken at most [`PASSED_OVER`] later, so that a
//! filtered consumer's offset keeps moving; that bounds the lag of filters.
//!
//! Source: apache/rocketmq@rocketmq-all-4.9.3 broker/src/main/java/org/apache/rocketmq/broker/longpolling/PullRequestHoldService.java

use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap};
use std::sync::Arc;
use std::time::Duration;

use super::session::SessionId;
use crate::work::clock::Nanos;

/// Longest time between an arrival that a held pull's filter refused and the answer that moves its offset on.
pub const PASSED_OVER: Duration = Duration::from_secs(5);
/// Most arrivals whose tags are looked at for one held pull at a time.
const SCANNED: i64 = 256;

/// What a held pull waits for.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum Wants {
    /// Any message.
    All,
    /// A message whose tag has one of these hashes, which are sorted.
    Tags(Arc<[i32]>),
}

impl Wants {
    fn admits(&self, tag_hash: Option<i32>) -> bool {
        match (self, tag_hash) {
            (Self::All, _) | (_, None) => true,
            (Self::Tags(hashes), Some(hash)) => hashes.binary_search(&hash).is_ok(),
        }
    }
}

/// One waiting pull. `R` is whatever its owner needs to run it again.
#[derive(Debug)]
pub struct Held<R> {
    /// Topic it waits on.
    pub topic: Arc<str>,
    /// Queue it waits on.
    pub queue: i32,
    /// Offset it asked for: an arrival wakes it when the queue's end is beyond.
    pub offset: i64,
    /// Its filter.
    pub wants: Wants,
    /// Whose it is: it goes when the connection closes.
    pub session: SessionId,
    /// When it is answered in any case.
    pub until: Nanos,
    /// The request.
    pub request: R,
}

/// Every waiting pull.
#[derive(Debug)]
pub struct Holds<R> {
    slots: Vec<Slot<R>>,
    free: Vec<u32>,
    queues: HashMap<Arc<str>, HashMap<i32, Vec<u32>>>,
    sessions: HashMap<SessionId, Vec<u32>>,
    ends: BinaryHeap<Reverse<(Nanos, u32, u32)>>,
    live: usize,
}

#[derive(Debug)]
struct Slot<R> {
    generation: u32,
    /// Offsets below are known not to concern it.
    seen: i64,
    passed_over: bool,
    /// Its place in the list of its session: one client may have a pull at each of 50 000 queues, and they end together.
    place: usize,
    held: Option<Held<R>>,
}

impl<R> Default for Holds<R> {
    fn default() -> Self {
        Self {
            slots: Vec::new(),
            free: Vec::new(),
            queues: HashMap::new(),
            sessions: HashMap::new(),
            ends: BinaryHeap::new(),
            live: 0,
        }
    }
}

impl<R> Holds<R> {
    /// How many pulls wait.
    pub fn len(&self) -> usize {
        self.live
    }

    /// Whether a pull waits on a queue.
    pub fn waits_on(&self, topic: &str, queue: i32) -> bool {
        self.queues.get(topic).is_some_and(|queues| queues.contains_key(&queue))
    }

    /// Lets a pull wait. The caller looks at the queue's end once more afterwards: a message may have come in between.
    pub fn hold(&mut self, held: Held<R>) {
        let at = self.free.pop().unwrap_or_else(|| {
            self.slots.push(Slot { generation: 0, seen: 0, passed_over: false, place: 0, held: None });
            u32::try_from(self.slots.len() - 1).unwrap_or(u32::MAX)
        });
        let Some(slot) = self.slots.get_mut(at as usize) else { return };
        slot.generation = slot.generation.wrapping_add(1);
        slot.passed_over = false;
        slot.seen = held.offset;
        self.ends.push(Reverse((held.until, at, slot.generation)));
        let mine = self.sessions.entry(held.session).or_default();
        slot.place = mine.len();
        mine.push(at);
        if !self.queues.contains_key(&held.topic) {
            self.queues.insert(held.topic.clone(), HashMap::new());
        }
        if let Some(queues) = self.queues.get_mut(&held.topic) {
            queues.entry(held.queue).or_default().push(at);
        }
        slot.held = Some(held);
        self.live += 1;
    }

    /// Messages came: the queue now ends at `end`. Those pulls that one of them concerns move to `woken`. `tag` tells the
    /// tag hash at an offset; `None` means that nothing is known of it, which wakes.
    pub fn arrived(
        &mut self,
        topic: &str,
        queue: i32,
        end: i64,
        tag: impl Fn(i64) -> Option<i32>,
        now: Nanos,
        woken: &mut Vec<Held<R>>,
    ) {
        let Some(waiting) = self.queues.get(topic).and_then(|queues| queues.get(&queue)) else { return };
        let mut taken = Vec::new();
        for at in waiting {
            let Some(slot) = self.slots.get_mut(*at as usize) else { continue };
            let Some(held) = &slot.held else { continue };
            if end <= slot.seen {
                continue;
            }
            // One answer scans no more than this; what lies beyond is looked at by the pull itself.
            let scan_end = end.min(slot.seen.saturating_add(SCANNED));
            if held.wants == Wants::All || scan_end < end || (slot.seen..end).any(|at| held.wants.admits(tag(at))) {
                taken.push(*at);
            } else {
                slot.seen = end;
                if !slot.passed_over {
                    slot.passed_over = true;
                    self.ends.push(Reverse((held.until.min(now + PASSED_OVER), *at, slot.generation)));
                }
            }
        }
        woken.extend(taken.into_iter().filter_map(|at| self.take(at)));
    }

    /// When [`Holds::due`] has something to give at the earliest.
    pub fn next_due(&mut self) -> Option<Nanos> {
        while let Some(Reverse((at, slot, generation))) = self.ends.peek() {
            if self.is_live(*slot, *generation) {
                return Some(*at);
            }
            self.ends.pop();
        }
        None
    }

    /// Moves to `ended` every pull whose time is up, or that an arrival passed over long enough ago.
    pub fn due(&mut self, now: Nanos, ended: &mut Vec<Held<R>>) {
        while let Some(Reverse((at, slot, generation))) = self.ends.peek().copied() {
            if now < at {
                return;
            }
            self.ends.pop();
            if self.is_live(slot, generation) {
                ended.extend(self.take(slot));
            }
        }
    }

    /// Takes every pull of a connection that is gone; nobody answers them.
    pub fn closed(&mut self, session: SessionId) -> Vec<Held<R>> {
        let gone = self.sessions.remove(&session).unwrap_or_default();
        gone.into_iter().filter_map(|at| self.take(at)).collect()
    }

    /// Takes every pull of a topic, so that it is answered although nothing came (the topic was deleted).
    pub fn take_topic(&mut self, topic: &str, woken: &mut Vec<Held<R>>) {
        let mut waiting = Vec::new();
        if let Some(queues) = self.queues.get(topic) {
            queues.values().for_each(|places| waiting.extend_from_slice(places));
        }
        woken.extend(waiting.into_iter().filter_map(|at| self.take(at)));
    }

    fn is_live(&self, at: u32, generation: u32) -> bool {
        self.slots.get(at as usize).is_some_and(|slot| slot.held.is_some() && slot.generation == generation)
    }

    fn take(&mut self, at: u32) -> Option<Held<R>> {
        let slot = self.slots.get_mut(at as usize)?;
        let (held, place) = (slot.held.take()?, slot.place);
        self.free.push(at);
        self.live -= 1;
        // The list is gone already if its connection is.
        if let Some(mine) = self.sessions.get_mut(&held.session).filter(|mine| mine.get(place) == Some(&at)) {
            mine.swap_remove(place);
            if let Some(moved) = mine.get(place).and_then(|moved| self.slots.get_mut(*moved as usize)) {
                moved.place = place;
            }
            if mine.is_empty() {
                self.sessions.remove(&held.session);
            }
        }
        if let Some(queues) = self.queues.get_mut(&held.topic) {
            if let Some(waiting) = queues.get_mut(&held.queue) {
                waiting.retain(|other| *other != at);
                if waiting.is_empty() {
                    queues.remove(&held.queue);
                }
            }
            if queues.is_empty() {
                self.queues.remove(&held.topic);
            }
        }
        Some(held)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pull(queue: i32, offset: i64, wants: Wants, session: u64, until_ms: u64) -> Held<&'static str> {
        Held {
            topic: "t".into(),
            queue,
            offset,
            wants,
            session: SessionId(session),
            until: Nanos(until_ms * 1_000_000),
            request: "r",
        }
    }

    fn ms(ms: u64) -> Nanos {
        Nanos(ms * 1_000_000)
    }

    /// E-047, E-054.
    #[test]
    fn an_arrival_wakes_the_pulls_it_concerns() {
        let mut holds = Holds::default();
        holds.hold(pull(0, 5, Wants::All, 1, 100));
        holds.hold(pull(0, 5, Wants::Tags([7].into()), 2, 100));
        holds.hold(pull(0, 6, Wants::All, 3, 100));
        holds.hold(pull(1, 0, Wants::All, 4, 100));
        let mut woken = Vec::new();
        holds.arrived("t", 0, 6, |_| Some(9), ms(1), &mut woken);
        assert_eq!(woken.iter().map(|held| held.session.0).collect::<Vec<_>>(), [1]);
        holds.arrived("t", 0, 7, |at| Some(if at == 6 { 7 } else { 9 }), ms(2), &mut woken);
        assert_eq!(woken.iter().map(|held| held.session.0).collect::<Vec<_>>(), [1, 2, 3]);
        holds.arrived("other", 1, 7, |_| None, ms(2), &mut woken);
        assert_eq!((woken.len(), holds.len()), (3, 1));
    }

    /// E-048.
    #[test]
    fn a_pull_ends_exactly_when_its_time_is_up() {
        let mut holds = Holds::default();
        holds.hold(pull(0, 0, Wants::All, 1, 15_000));
        holds.hold(pull(0, 0, Wants::All, 2, 20_000));
        assert_eq!(holds.next_due(), Some(ms(15_000)));
        let mut ended = Vec::new();
        holds.due(ms(14_999), &mut ended);
        assert!(ended.is_empty());
        holds.due(ms(15_000), &mut ended);
        assert_eq!((ended.len(), holds.len(), holds.next_due()), (1, 1, Some(ms(20_000))));
    }

    /// E-050.
    #[test]
    fn a_pull_that_was_passed_over_ends_within_five_seconds_of_the_first_arrival() {
        let mut holds = Holds::default();
        holds.hold(pull(0, 0, Wants::Tags([7].into()), 1, 15_000));
        let mut woken = Vec::new();
        holds.arrived("t", 0, 1, |_| Some(8), ms(1_000), &mut woken);
        holds.arrived("t", 0, 2, |_| Some(8), ms(3_000), &mut woken);
        assert!(woken.is_empty());
        assert_eq!(holds.next_due(), Some(ms(6_000)));
        holds.due(ms(6_000), &mut woken);
        assert_eq!((woken.len(), holds.len(), holds.next_due()), (1, 0, None));
    }

    /// E-119.
    #[test]
    fn a_closed_connection_takes_its_pulls_along() {
        let mut holds = Holds::default();
        for queue in 0..4 {
            holds.hold(pull(queue, 0, Wants::All, u64::from(queue == 3), 100));
        }
        holds.closed(SessionId(0));
        assert_eq!((holds.len(), holds.queues.len(), holds.sessions.len()), (1, 1, 1));
        holds.closed(SessionId(1));
        assert_eq!((holds.len(), holds.queues.len(), holds.sessions.len(), holds.next_due()), (0, 0, 0, None));
        holds.hold(pull(0, 0, Wants::All, 9, 50));
        assert_eq!(holds.next_due(), Some(ms(50)), "a slot that is used again has a new generation");
    }

    /// E-050, for a pull that takes the place of one that had been passed over.
    #[test]
    fn a_place_that_is_used_again_remembers_nothing_of_the_pull_before() {
        let mut holds = Holds::default();
        let (mut woken, tags) = (Vec::new(), || Wants::Tags([7].into()));
        holds.hold(pull(0, 0, tags(), 1, 15_000));
        holds.arrived("t", 0, 1, |_| Some(8), ms(1_000), &mut woken);
        holds.closed(SessionId(1));
        holds.hold(pull(0, 1, tags(), 2, 20_000));
        holds.due(ms(15_000), &mut woken);
        assert_eq!((woken.len(), holds.next_due()), (0, Some(ms(20_000))), "ends of the one before end nothing");
        holds.arrived("t", 0, 2, |_| Some(8), ms(15_000), &mut woken);
        assert_eq!((woken.len(), holds.next_due()), (0, Some(ms(20_000))));
        holds.closed(SessionId(2));
        holds.hold(pull(0, 2, tags(), 3, 60_000));
        holds.arrived("t", 0, 3, |_| Some(8), ms(16_000), &mut woken);
        assert_eq!((woken.len(), holds.next_due()), (0, Some(ms(21_000))), "passed over for the first time");
    }

    /// More arrivals than one answer scans wake a pull whatever their tags are.
    #[test]
    fn a_pull_that_is_far_behind_is_woken_to_look_for_itself() {
        let mut holds = Holds::default();
        holds.hold(pull(0, 0, Wants::Tags([7].into()), 1, 15_000));
        let mut woken = Vec::new();
        holds.arrived("t", 0, SCANNED, |_| Some(8), ms(1), &mut woken);
        assert!(woken.is_empty());
        // What it was passed over by is not looked at again.
        let looked = std::cell::Cell::new(0);
        let tag = |_| {
            looked.set(looked.get() + 1);
            Some(8)
        };
        holds.arrived("t", 0, SCANNED + 1, tag, ms(2), &mut woken);
        assert_eq!((woken.len(), looked.get()), (0, 1));
        holds.arrived("t", 0, 2 * SCANNED + 2, |_| Some(8), ms(3), &mut woken);
        assert_eq!(woken.len(), 1);
    }

    #[test]
    fn a_deleted_topic_gives_its_pulls_back() {
        let mut holds = Holds::default();
        holds.hold(pull(0, 0, Wants::All, 1, 100));
        holds.hold(pull(3, 0, Wants::All, 1, 100));
        let mut woken = Vec::new();
        holds.take_topic("t", &mut woken);
        assert_eq!((woken.len(), holds.len()), (2, 0));
    }

    /// Each of them looked for among all others would be two thousand million steps, under the lock of all holds.
    #[test]
    fn the_pulls_of_a_client_of_very_many_queues_end_together() {
        const QUEUES: i32 = 1 << 16;
        let mut holds = Holds::default();
        for queue in 0..QUEUES {
            holds.hold(pull(queue, 0, Wants::All, u64::from(queue % 3 == 0), 100));
        }
        // Places stay right whichever are taken out of the middle.
        let mut woken = Vec::new();
        (0..QUEUES).step_by(7).for_each(|queue| holds.arrived("t", queue, 1, |_| None, ms(1), &mut woken));
        let (of_one, left) = (|queue: &i32| queue % 3 == 0 && queue % 7 != 0, holds.len());
        let mut gone: Vec<i32> = holds.closed(SessionId(1)).into_iter().map(|held| held.queue).collect();
        gone.sort_unstable();
        assert!(gone.iter().copied().eq((0..QUEUES).filter(of_one)));
        let mut ended = Vec::new();
        holds.due(ms(100), &mut ended);
        assert_eq!((ended.len(), holds.len()), (left - gone.len(), 0));
        assert!(ended.iter().all(|held| held.session == SessionId(0)));
    }
}
