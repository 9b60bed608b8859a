//! What the process queue promises, by the numbers of the client specification, and a model with random interleavings.

use std::collections::{BTreeMap, BTreeSet};

use super::*;
use crate::consume::listener::{Mark, Marks};

/// Offsets and sizes, nothing else.
#[derive(Debug)]
struct Fetched(Vec<(i64, u64)>);

impl Batch for Fetched {
    fn len(&self) -> usize {
        self.0.len()
    }
    fn offset(&self, at: usize) -> QueueOffset {
        QueueOffset(self.0[at].0)
    }
    fn bytes(&self, at: usize) -> u64 {
        self.0[at].1
    }
}

type Queue = ProcessQueue<Fetched>;

const NOW: Nanos = Nanos(1_000_000_000);
/// One call, and the worker goes on itself.
const ALONE: Share = Share::Keep { calls: 1 };

fn queue(batch: u32) -> Queue {
    ProcessQueue::new(Epoch(1), QueueOffset(0), Settings { batch, ..Settings::default() })
}

fn fetched(offsets: impl IntoIterator<Item = i64>) -> Arc<Fetched> {
    Arc::new(Fetched(offsets.into_iter().map(|offset| (offset, 100)).collect()))
}

fn put(queue: &Queue, offsets: impl IntoIterator<Item = i64>) -> Put {
    let batch = fetched(offsets);
    let next = batch.0.last().map_or(0, |last| last.0 + 1);
    queue.put(&batch, QueueOffset(next), NOW)
}

/// Takes one chunk with the token of `post` and shares the token at once.
fn take(queue: &Queue, post: Option<Generation>) -> (Chunk<Fetched>, Option<Generation>) {
    let next = queue.take(post.unwrap(), Share::Rest, NOW);
    (next.chunk.unwrap(), next.post)
}

/// Takes everything there is.
fn take_all(queue: &Queue, mut post: Option<Generation>) -> Vec<Chunk<Fetched>> {
    let mut chunks = Vec::new();
    while post.is_some() {
        let (chunk, more) = take(queue, post);
        chunks.push(chunk);
        post = more;
    }
    chunks
}

fn done(queue: &Queue, chunk: Chunk<Fetched>) -> Next<Fetched> {
    queue.finish(chunk, Verdicts::DONE, false, Share::Rest, NOW)
}

fn fail(queue: &Queue, chunk: Chunk<Fetched>, outcome: Outcome) -> Vec<Failed<Fetched>> {
    let next = queue.finish(chunk, Verdicts { marks: None, rest: outcome }, false, Share::Rest, NOW);
    assert!(next.ring, "the loop is told");
    queue.news(NOW).failed
}

fn offsets(chunk: &Chunk<Fetched>) -> Vec<i64> {
    chunk.parts().flat_map(|part| (part.from..part.to).map(|at| part.batch.0[at as usize].0)).collect()
}

fn commit(queue: &Queue) -> i64 {
    queue.progress().0
}

#[test]
fn b100_c036_the_commit_point_is_the_first_unfinished_or_one_past_the_last() {
    let queue = queue(1);
    let post = put(&queue, [10, 5]).post;
    let mut chunks = take_all(&queue, post);
    assert_eq!(chunks.iter().flat_map(offsets).collect::<Vec<_>>(), [10, 5]);
    done(&queue, chunks.remove(0));
    assert_eq!(commit(&queue), 5);
    let next = done(&queue, chunks.remove(0));
    assert!((next.ring || queue.news(NOW).moved) && commit(&queue) == 11);
}

#[test]
fn b101_finishing_d_c_b_keeps_a() {
    let queue = queue(1);
    let mut chunks = take_all(&queue, put(&queue, 400..404).post);
    for (left, want) in [(3, 400), (2, 400), (1, 400), (0, 404)] {
        let next = done(&queue, chunks.remove(left));
        assert_eq!(commit(&queue), want);
        assert_eq!(
            queue.held(),
            Held { messages: left as u64, bytes: 100 * left as u64, span: if left == 0 { 0 } else { 3 } }
        );
        assert_eq!((next.chunk.is_none(), next.post), (true, None));
    }
}

#[test]
fn b102_a_second_put_keeps_the_state_and_counts_nothing() {
    let queue = queue(1);
    let mut chunks = take_all(&queue, put(&queue, 0..3).post);
    done(&queue, chunks.remove(1));
    let again = put(&queue, 0..5);
    assert_eq!((again.inserted, queue.held().messages), (2, 4), "offset 1 was done, 0 and 2 are in hand");
    let post = queue.overdue(NOW + TAKE_BACK);
    assert_eq!(take_all(&queue, post).iter().flat_map(offsets).collect::<Vec<_>>(), [3, 4]);
}

#[test]
fn b103_c039_taken_messages_count_until_they_are_finished_and_only_once() {
    let queue = queue(3);
    let mut chunks = take_all(&queue, put(&queue, 0..16).post);
    assert_eq!(queue.held(), Held { messages: 16, bytes: 1600, span: 15 });
    done(&queue, chunks.remove(0));
    assert_eq!((queue.held().messages, commit(&queue)), (13, 3));
    while let Some(chunk) = chunks.pop() {
        done(&queue, chunk);
    }
    assert_eq!((queue.held(), commit(&queue)), (Held::default(), 16));
    assert_eq!((queue.held_messages(), queue.held_bytes()), (0, 0));
}

#[test]
fn b081_c051_c052_an_empty_answer_is_progress_only_with_nothing_held() {
    let queue = queue(1);
    let empty = fetched([]);
    let put_empty = |next| queue.put(&empty, QueueOffset(next), NOW);
    assert!(put_empty(64).moved && commit(&queue) == 64);
    let post = put(&queue, [70]).post;
    assert!(!put_empty(128).moved);
    assert_eq!(commit(&queue), 64, "never beyond what is held");
    let (chunk, _) = take(&queue, post);
    put_empty(192);
    assert_eq!(commit(&queue), 64, "in hand is held");
    done(&queue, chunk);
    assert_eq!(commit(&queue), 71, "what lies above the last message counts with the next empty answer");
    put_empty(256);
    assert_eq!(commit(&queue), 256);
    put_empty(100);
    assert_eq!(commit(&queue), 256, "and never back");
}

#[test]
fn b109_filtered_offsets_between_messages_are_walked_over() {
    let queue = queue(32);
    let (chunk, _) = take(&queue, put(&queue, [3, 9, 4000, 1 << 50]).post);
    assert_eq!(chunk.len(), 4);
    done(&queue, chunk);
    assert_eq!(commit(&queue), (1 << 50) + 1);
}

#[test]
fn b120_chunks_end_where_a_fetch_ended() {
    let queue = queue(4);
    let first = put(&queue, 0..6);
    assert_eq!(put(&queue, 6..8).post, None, "one token");
    let sizes: Vec<_> = take_all(&queue, first.post).iter().map(Chunk::len).collect();
    assert_eq!(sizes, [4, 2, 2]);
}

#[test]
fn d5_with_a_wait_chunks_gather_over_fetches_and_short_ones_wait() {
    let wait = Duration::from_millis(20);
    let settings = Settings { batch: 4, wait, ..Settings::default() };
    let queue: Queue = ProcessQueue::new(Epoch(1), QueueOffset(0), settings);
    let short = put(&queue, 0..3);
    assert_eq!((short.post, short.gather_until), (None, Some(NOW + wait)));
    assert_eq!(put(&queue, 3..4).gather_until, None, "a whole batch waits for nobody");
    // The first put with four messages posted the token; take it by its number.
    let (chunk, _) = take(&queue, Some(Generation(1)));
    assert_eq!((offsets(&chunk), chunk.at(3).map(|(part, at)| part.batch.0[at].0)), (vec![0, 1, 2, 3], Some(3)));
    assert!(put(&queue, 4..6).post.is_none());
    let next = queue.finish(chunk, Verdicts::DONE, true, ALONE, NOW);
    assert!(next.chunk.is_none() && next.ring);
    assert_eq!(queue.news(NOW).gather_until, None, "it was armed by the put before");
    let later = NOW + wait;
    assert_eq!(offsets(&queue.take(queue.gathered(later).unwrap(), ALONE, later).chunk.unwrap()), [4, 5]);
}

#[test]
fn b072_b075_a_full_queue_parks_its_fetch_and_rings_when_there_is_room() {
    let queue = queue(1);
    assert_eq!((put(&queue, 0..1000).full, queue.room()), (None, None));
    let full = put(&queue, 1000..1001);
    assert_eq!((full.full, queue.room()), (Some(Full::Messages), Some(Full::Messages)));
    let (chunk, more) = take(&queue, Some(Generation(1)));
    assert!(!queue.news(NOW).rearm);
    assert!(done(&queue, chunk).ring);
    let news = queue.news(NOW);
    assert!(news.rearm && news.moved && news.failed.is_empty() && !queue.news(NOW).rearm, "once");
    let (chunk, _) = take(&queue, more);
    assert!(!done(&queue, chunk).ring, "nothing is parked, the movement is known");
}

#[test]
fn movement_rings_once_until_the_commit_point_is_taken() {
    let queue = queue(1);
    let mut chunks = take_all(&queue, put(&queue, 0..4).post).into_iter();
    assert!(done(&queue, chunks.next().unwrap()).ring);
    assert!(!done(&queue, chunks.next().unwrap()).ring, "rung and not answered");
    assert!(queue.news(NOW).moved);
    assert!(!done(&queue, chunks.next().unwrap()).ring && !queue.news(NOW).moved, "the loop has a timer by now");
    assert_eq!(queue.commit_point(), QueueOffset(3));
    assert!(done(&queue, chunks.next().unwrap()).ring && queue.news(NOW).moved);
    queue.commit_point();
    let (chunk, _) = take(&queue, put(&queue, 4..5).post);
    assert!(done(&queue, chunk).ring);
    queue.unrung();
    let (chunk, _) = take(&queue, put(&queue, 5..6).post);
    done(&queue, chunk);
    assert!(queue.news(NOW).failed.is_empty(), "a bell that could not be rung loses nothing");
}

#[test]
fn b121_c040_the_acknowledged_part_is_done_and_the_rest_goes_back() {
    let mut marks = Marks::default();
    for (through, rest, want) in [
        (Some(4), Outcome::Retry, 5),
        (Some(99), Outcome::Retry, 16),
        (None, Outcome::Done, 16),
        (None, Outcome::Retry, 0),
    ] {
        let queue = queue(16);
        let (chunk, _) = take(&queue, put(&queue, 0..16).post);
        marks.reset(16);
        for place in 0..through.map_or(0, |through: u32| through + 1) {
            marks.set(place, Mark::Outcome(Outcome::Done));
        }
        queue.finish(chunk, Verdicts { marks: Some(&marks), rest }, false, ALONE, NOW);
        let failed = queue.news(NOW).failed;
        assert_eq!(failed.iter().map(|failed| failed.offset.0).collect::<Vec<_>>(), (want..16).collect::<Vec<_>>());
        assert_eq!((commit(&queue), queue.held().messages), (want, 16 - want as u64), "all are held until handed on");
        for failed in &failed {
            assert!(queue.handed_on(failed) && !queue.handed_on(failed), "once");
        }
        assert_eq!((commit(&queue), queue.held()), (16, Held::default()));
    }
}

#[test]
fn b124_each_failed_message_carries_what_was_said_about_it() {
    let (queue, mut marks) = (queue(4), Marks::default());
    let (chunk, _) = take(&queue, put(&queue, 0..4).post);
    let level = Outcome::RetryAfter(DelayLevel::new(5).unwrap());
    marks.reset(4);
    marks.set(0, Mark::Outcome(Outcome::DeadLetter));
    marks.reason(0, "unreadable".into());
    marks.set(1, Mark::Outcome(level));
    marks.set(3, Mark::Outcome(Outcome::Done));
    queue.finish(chunk, Verdicts { marks: Some(&marks), rest: Outcome::Retry }, false, ALONE, NOW);
    let failed = queue.news(NOW).failed;
    let facts: Vec<_> = failed.iter().map(|f| (f.offset.0, f.outcome, f.reason.as_deref(), f.stuck)).collect();
    let dead = (0, Outcome::DeadLetter, Some("unreadable"), false);
    assert_eq!(facts, [dead, (1, level, None, false), (2, Outcome::Retry, None, false)]);
    failed.iter().for_each(|failed| assert!(queue.handed_on(failed)));
    let tally = queue.tally();
    assert_eq!((tally.finished, tally.dead_lettered, tally.sent_back, commit(&queue)), (1, 1, 2, 4));
}

#[test]
fn b128_c038_a_message_that_cannot_be_handed_on_is_delivered_again_and_holds_the_commit_point() {
    let queue = queue(3);
    let (chunk, _) = take(&queue, put(&queue, 0..3).post);
    let mut failed = fail(&queue, chunk, Outcome::Retry);
    assert!(queue.handed_on(&failed[0]) && queue.handed_on(&failed[2]));
    assert_eq!((commit(&queue), queue.held().messages), (1, 1));
    let post = queue.again(failed.remove(1), NOW);
    let (chunk, _) = take(&queue, post);
    assert_eq!((offsets(&chunk), chunk.parts().map(|part| part.attempt).collect::<Vec<_>>()), (vec![1], vec![1]));
    let twice = fail(&queue, chunk, Outcome::Retry).remove(0);
    assert_eq!(twice.attempt, 1);
    let stale = Failed { attempt: 0, batch: twice.batch.clone(), reason: None, ..twice };
    assert!(!queue.handed_on(&stale), "the answer to an earlier attempt comes too late");
    let (chunk, _) = take(&queue, queue.again(Failed { attempt: 1, ..stale }, NOW));
    assert_eq!(chunk.first.attempt, 2);
    done(&queue, chunk);
    assert_eq!((commit(&queue), queue.held(), queue.tally().again), (3, Held::default(), 2));
}

#[test]
fn b110_b111_a_stuck_message_is_sent_back_once_with_level_3_and_its_late_result_ignored() {
    let queue = queue(2);
    let (chunk, _) = take(&queue, put(&queue, 0..2).post);
    let limit = NOW + queue.settings().timeout;
    assert_eq!(queue.expire(limit), (0, Some(limit)), "B-113: strictly longer");
    assert_eq!(queue.expire(Nanos(limit.0 + 1)), (2, None));
    assert_eq!(queue.expire(Nanos(limit.0 + 2)), (0, None), "once");
    let failed = queue.news(NOW).failed;
    let level = Outcome::RetryAfter(DelayLevel::new(3).unwrap());
    assert!(failed.iter().all(|failed| failed.stuck && failed.outcome == level) && failed.len() == 2);
    assert!(queue.handed_on(&failed[0]));
    assert_eq!(commit(&queue), 1);
    done(&queue, chunk);
    assert_eq!((commit(&queue), queue.tally().late), (1, 2), "the handler's own result comes too late");
    assert!(queue.handed_on(&failed[1]));
    assert_eq!((commit(&queue), queue.held()), (2, Held::default()));
}

#[test]
fn b132_b089_nothing_counts_after_the_end() {
    let queue = queue(1);
    let mut chunks = take_all(&queue, put(&queue, 0..3).post);
    let failed = fail(&queue, chunks.remove(0), Outcome::Retry).remove(0);
    assert_eq!(queue.close(), (QueueOffset(0), 3));
    done(&queue, chunks.remove(0));
    assert!(!queue.handed_on(&failed) && queue.again(failed, NOW).is_none());
    assert_eq!((put(&queue, 3..4), commit(&queue)), (Put::default(), 0));
}

#[test]
fn d12_a_stop_finishes_what_runs_and_drops_what_is_cached() {
    let queue = queue(2);
    let (chunk, post) = take(&queue, put(&queue, 0..6).post);
    assert_eq!((queue.stop(false), queue.ended()), (4, false));
    assert!(queue.take(post.unwrap(), Share::Rest, NOW).chunk.is_none());
    assert!(done(&queue, chunk).ring && queue.news(NOW).ended);
    assert_eq!((queue.close(), queue.tally().finished), ((QueueOffset(2), 0), 2));
}

#[test]
fn d12_a_draining_stop_delivers_what_is_cached() {
    let queue = queue(2);
    let mut post = put(&queue, 0..5).post;
    assert_eq!((queue.stop(true), put(&queue, 5..6).inserted), (0, 0));
    while post.is_some() {
        let (chunk, more) = take(&queue, post);
        post = more;
        assert!(!queue.ended());
        done(&queue, chunk);
    }
    assert!(queue.news(NOW).ended);
    assert_eq!(queue.close(), (QueueOffset(5), 0));
}

#[test]
fn c083_c037_a_token_in_a_blocked_hand_is_taken_back() {
    let queue = queue(1);
    let post = put(&queue, 0..3).post.unwrap();
    let held = queue.take(post, ALONE, NOW).chunk.unwrap();
    assert_eq!((queue.overdue(NOW), put(&queue, 3..4).post), (None, None), "it goes on itself");
    let post = queue.overdue(NOW + TAKE_BACK).unwrap();
    assert_eq!(queue.overdue(NOW + TAKE_BACK), None, "once");
    let other = queue.take(post, ALONE, NOW + TAKE_BACK).chunk.unwrap();
    let back = queue.finish(held, Verdicts::DONE, true, ALONE, NOW + TAKE_BACK);
    assert!(back.chunk.is_none() && back.was_taken_back && back.post.is_none(), "the token is another's");
    let next = queue.finish(other, Verdicts::DONE, true, ALONE, NOW);
    assert_eq!(offsets(&next.chunk.unwrap()), [2]);
    assert_eq!(commit(&queue), 2);
}

/// One call's message of a stretch of `calls` is begun for each time this is called.
fn stretch(queue: &Queue, calls: u32, post: Option<Generation>) -> Chunk<Fetched> {
    let chunk = queue.take(post.unwrap(), Share::Keep { calls }, NOW).chunk.unwrap();
    assert!(chunk.is_stretch());
    chunk
}

#[test]
fn c083_of_several_calls_taken_at_once_those_not_begun_are_taken_back() {
    let queue = queue(2);
    let mut held = stretch(&queue, 4, put(&queue, 0..9).post);
    assert_eq!(offsets(&held), [0, 1, 2, 3, 4, 5, 6, 7]);
    assert!(queue.begin(&mut held, 1), "0 and 1 are handled, 2 and 3 are begun and block");
    assert_eq!(queue.overdue(NOW), None);
    let post = queue.overdue(NOW + TAKE_BACK);
    assert!(!queue.begin(&mut held, 2));
    assert_eq!(offsets(&held), [0, 1, 2, 3]);
    let rest: Vec<_> = take_all(&queue, post).into_iter().map(|chunk| (offsets(&chunk), done(&queue, chunk))).collect();
    assert_eq!(rest.iter().map(|(offsets, _)| offsets.clone()).collect::<Vec<_>>(), [vec![4, 5], vec![6, 7], vec![8]]);
    assert_eq!(commit(&queue), 0);
    let back = queue.finish(held, Verdicts::DONE, true, ALONE, NOW);
    assert!(back.was_taken_back && back.chunk.is_none());
    assert_eq!((commit(&queue), queue.held(), queue.tally().finished), (9, Held::default(), 9));
}

#[test]
fn a_stretch_has_no_second_handler_under_a_running_limit_of_one() {
    let settings = Settings { running: 1, ..Settings::default() };
    let queue: Queue = ProcessQueue::new(Epoch(1), QueueOffset(0), settings);
    let mut held = stretch(&queue, 9, put(&queue, 0..3).post);
    assert_eq!(queue.overdue(NOW + TAKE_BACK), None);
    assert!(queue.begin(&mut held, 1) && queue.begin(&mut held, 2));
    assert!(queue.finish(held, Verdicts::DONE, true, ALONE, NOW).chunk.is_none());
    assert_eq!(commit(&queue), 3);
}

#[test]
fn what_a_stretch_has_not_begun_is_dropped_by_a_stop_and_not_stuck_after_the_timeout() {
    let queue = queue(1);
    let mut held = stretch(&queue, 9, put(&queue, 0..3).post);
    assert_eq!(queue.stop(false), 2, "of three one is begun");
    assert!(!queue.begin(&mut held, 1) && !queue.ended());
    queue.finish(held, Verdicts::DONE, true, ALONE, NOW);
    assert_eq!((queue.ended(), commit(&queue)), (true, 1));

    let queue = self::queue(1);
    let mut held = stretch(&queue, 9, put(&queue, 0..3).post);
    let late = NOW + queue.settings().timeout + Duration::from_nanos(1);
    assert_eq!(queue.expire(late).0, 1);
    let failed = queue.news(late).failed;
    assert_eq!((failed.len(), failed[0].offset, failed[0].stuck), (1, QueueOffset(0), true));
    assert!(!queue.begin(&mut held, 1));
    let next = queue.finish(held, Verdicts::DONE, true, Share::Keep { calls: 9 }, late);
    assert_eq!((offsets(&next.chunk.unwrap()), queue.tally().late), (vec![1, 2], 1));
}

#[test]
fn d21_batches_that_little_waits_of_are_replaced_once_they_have_waited() {
    let queue = queue(30);
    let (batch, later) = (fetched(0..32), NOW + SETTLED);
    let post = queue.put(&batch, QueueOffset(32), NOW).post;
    let excerpt = |batch: &Fetched, places: Range<u32>| {
        (places.len() < 8).then(|| Fetched(batch.0[places.start as usize..places.end as usize].to_vec()))
    };
    let (held, post) = take(&queue, post);
    assert_eq!(queue.thin(later, excerpt), 0, "a handler holds the others");
    done(&queue, held);
    assert_eq!(queue.thin(later, excerpt), 0, "so does somebody else");
    let gone = Arc::downgrade(&batch);
    drop(batch);
    assert_eq!((queue.thin(NOW, excerpt), queue.thin(later, excerpt)), (0, 1), "not before a second");
    assert!(gone.upgrade().is_none());
    let (rest, _) = take(&queue, post);
    assert_eq!((offsets(&rest), rest.first.batch.0.len()), (vec![30, 31], 2));
    done(&queue, rest);
    assert_eq!((commit(&queue), queue.held()), (32, Held::default()));
}

#[test]
fn a_running_limit_of_one_keeps_the_order_of_a_queue() {
    let settings = Settings { running: 1, ..Settings::default() };
    let queue: Queue = ProcessQueue::new(Epoch(1), QueueOffset(0), settings);
    let first = queue.take(put(&queue, 0..3).post.unwrap(), Share::Rest, NOW);
    assert_eq!((first.post, queue.overdue(NOW + TAKE_BACK)), (None, None), "no second handler");
    let mut next = queue.finish(first.chunk.unwrap(), Verdicts::DONE, true, Share::Rest, NOW);
    for want in 1..3 {
        let chunk = next.chunk.unwrap();
        assert_eq!((offsets(&chunk), next.post), (vec![want], None));
        next = queue.finish(chunk, Verdicts::DONE, true, Share::Rest, NOW);
    }
    assert!(next.chunk.is_none());
}

#[test]
fn detached_messages_finish_on_their_own_and_later_than_their_batch() {
    let (queue, mut marks) = (queue(3), Marks::default());
    let (chunk, _) = take(&queue, put(&queue, 0..3).post);
    marks.reset(3);
    marks.set(1, Mark::Detached);
    let part = chunk.first.clone();
    queue.finish(chunk, Verdicts { marks: Some(&marks), rest: Outcome::Done }, false, ALONE, NOW);
    assert_eq!((commit(&queue), queue.held().messages), (1, 1));
    queue.finish_detached(&part, 1, Outcome::Done, None, NOW);
    queue.finish_detached(&part, 1, Outcome::Retry, None, NOW);
    assert_eq!((commit(&queue), queue.held(), queue.tally().late), (3, Held::default(), 1));
}

struct XorShift(u64);

impl XorShift {
    fn below(&mut self, n: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 % n as u64) as usize
    }
}

fn share(rng: &mut XorShift) -> Share {
    match rng.below(4) {
        0 | 1 => Share::Rest,
        calls => Share::Keep { calls: calls as u32 * 3 },
    }
}

/// One run of the model: what was put and not finished, and how much of it.
#[derive(Default)]
struct Model {
    open: BTreeMap<i64, u64>,
    ever: i64,
    next: i64,
    /// With the calls that have begun.
    in_hand: Vec<(Chunk<Fetched>, u32)>,
    failed: Vec<Failed<Fetched>>,
    tokens: Vec<Generation>,
    delivered: BTreeMap<i64, u32>,
    /// Open offsets that were put when the commit point was above them already.
    late: BTreeSet<i64>,
}

impl Model {
    fn put(&mut self, rng: &mut XorShift, queue: &Queue) {
        let mut found = Vec::new();
        for _ in 0..rng.below(20) {
            self.next += if rng.below(4) == 0 { rng.below(50) as i64 } else { 0 };
            if rng.below(500) == 0 {
                self.next += 1 << 30;
            }
            found.push((self.next, rng.below(2000) as u64));
            self.next += 1;
        }
        if rng.below(10) == 0 && self.next > 100 {
            // The broker answers from an earlier offset: some known, some below everything.
            found.insert(0, (self.next - 100, 1));
        }
        found.sort_unstable();
        found.dedup_by_key(|message| message.0);
        let batch = Arc::new(Fetched(found.clone()));
        let before: Vec<_> = self.open.keys().copied().collect();
        let point = queue.progress().0;
        let put = queue.put(&batch, QueueOffset(self.next), NOW);
        let (mut new, mut below) = (0, false);
        for (offset, bytes) in found {
            // One below the commit point may be delivered again; one above it that was finished may not.
            let known = before.binary_search(&offset).is_ok() || self.delivered.contains_key(&offset);
            if !known {
                new += 1;
                self.open.insert(offset, bytes);
                self.ever = self.ever.max(offset + 1);
            } else if !self.open.contains_key(&offset) && offset < queue.progress().0 {
                below = true;
            }
        }
        if below {
            // Delivered again below the commit point: the model takes it as new.
            for at in 0..batch.len() {
                let (offset, bytes) = batch.0[at];
                if queue.stock.lock().ring.state(offset) == Slot::Waiting {
                    self.open.entry(offset).or_insert(bytes);
                }
            }
        } else {
            assert_eq!(put.inserted, new);
        }
        let late = batch.0.iter().map(|message| message.0).filter(|offset| *offset < point);
        self.late.extend(late.filter(|offset| self.open.contains_key(offset) && before.binary_search(offset).is_err()));
        self.tokens.extend(put.post);
    }

    fn step(&mut self, rng: &mut XorShift, queue: &Queue) {
        match rng.below(9) {
            0 | 1 => self.put(rng, queue),
            2 | 3 => {
                if let Some(token) = self.tokens.pop() {
                    let next = queue.take(token, share(rng), NOW);
                    self.took(next);
                }
            }
            4 | 5 => {
                if !self.in_hand.is_empty() {
                    let chunk = self.in_hand.swap_remove(rng.below(self.in_hand.len()));
                    self.finish(rng, queue, chunk);
                }
            }
            6 => {
                self.failed.extend(queue.news(NOW).failed);
                if !self.failed.is_empty() {
                    let failed = self.failed.swap_remove(rng.below(self.failed.len()));
                    if rng.below(2) == 0 {
                        assert!(queue.handed_on(&failed));
                        self.open.remove(&failed.offset.0);
                    } else {
                        self.tokens.extend(queue.again(failed, NOW));
                    }
                }
            }
            7 => {
                let at = rng.below(self.in_hand.len().max(1));
                if let Some((chunk, run)) = self.in_hand.get_mut(at) {
                    Self::begin(queue, chunk, run);
                }
            }
            _ => self.tokens.extend(queue.overdue(NOW + TAKE_BACK)),
        }
    }

    fn took(&mut self, next: Next<Fetched>) {
        self.tokens.extend(next.post);
        if let Some(chunk) = next.chunk {
            for offset in offsets(&chunk) {
                *self.delivered.entry(offset).or_default() += 1;
            }
            self.in_hand.push((chunk, 1));
        }
    }

    /// The worker's next call of a stretch. False if there is none.
    fn begin(queue: &Queue, chunk: &mut Chunk<Fetched>, run: &mut u32) -> bool {
        let may = *run * queue.settings().batch < chunk.len() && queue.begin(chunk, *run);
        *run += u32::from(may);
        may
    }

    fn finish(&mut self, rng: &mut XorShift, queue: &Queue, (mut chunk, mut run): (Chunk<Fetched>, u32)) {
        while Self::begin(queue, &mut chunk, &mut run) {}
        let mut marks = Marks::default();
        marks.reset(chunk.len() as usize);
        let all_done = rng.below(3) > 0;
        for (place, offset) in (0..).zip(offsets(&chunk)) {
            if all_done || rng.below(2) == 0 {
                marks.set(place, Mark::Outcome(Outcome::Done));
                self.open.remove(&offset);
            }
        }
        let verdicts = Verdicts { marks: Some(&marks), rest: if all_done { Outcome::Done } else { Outcome::Retry } };
        let next = queue.finish(chunk, verdicts, rng.below(2) == 0, share(rng), NOW);
        self.took(next);
    }

    /// B-104 and B-109 at every step.
    fn check(&self, queue: &Queue, seed: u64) {
        let held = queue.held();
        assert_eq!(held.messages, self.open.len() as u64, "seed {seed}");
        assert_eq!(held.bytes, self.open.values().sum::<u64>(), "seed {seed}");
        // The commit point never passes what is not finished, except what was put below it already.
        if let Some(unfinished) = self.open.keys().find(|offset| !self.late.contains(offset)) {
            assert!(commit(queue) <= *unfinished, "{} passed {unfinished}, seed {seed}", commit(queue));
        }
        assert!(self.tokens.len() <= 1, "one token, seed {seed}");
    }
}

#[test]
fn b104_b109_random_interleavings_keep_counts_and_commit_point() {
    for seed in 1..=120 {
        let mut rng = XorShift(seed);
        let queue = queue(1 + rng.below(8) as u32);
        let mut model = Model::default();
        let mut floor = 0;
        for _ in 0..300 {
            model.step(&mut rng, &queue);
            model.check(&queue, seed);
            assert!(commit(&queue) >= floor, "never back, seed {seed}");
            floor = commit(&queue);
        }
        // Everything is finished in the end, whoever holds what.
        for _ in 0..100_000 {
            if model.open.is_empty() {
                break;
            }
            model.failed.extend(queue.news(NOW).failed);
            for failed in std::mem::take(&mut model.failed) {
                assert!(queue.handed_on(&failed), "seed {seed}");
                model.open.remove(&failed.offset.0);
            }
            if let Some(chunk) = model.in_hand.pop() {
                model.finish(&mut rng, &queue, chunk);
            } else if let Some(token) = model.tokens.pop() {
                model.took(queue.take(token, Share::Rest, NOW));
            } else {
                model.tokens.extend(queue.overdue(NOW + TAKE_BACK));
            }
        }
        assert!(model.open.is_empty(), "a message was forgotten, seed {seed}");
        assert_eq!((queue.held(), commit(&queue)), (Held::default(), floor.max(model.ever)), "seed {seed}");
    }
}
