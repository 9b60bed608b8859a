//! An ordered map and set that cost little to compile.
//!
//! Every room keeps its tables that are walked in order in these: each type of key or value that goes into a `BTreeMap`
//! costs a user's build about 8000 lines of LLVM, here it is some hundred. Keys and values lie in chunks of at most
//! `CHUNK` behind one list of chunks, so that a change moves a chunk and, seldom, the list: under a microsecond at a
//! million entries, whatever order a peer sends them in. What is hot and may hold a million entries for long
//! (`consume/ring.rs`) stays with `BTreeMap`. Knows no protocol, no clock, no lock.

use std::borrow::Borrow;
use std::fmt;

pub use items::{IntoItems, IntoIter, Items, ItemsMut, Iter};

mod items;

/// Most entries of a chunk.
const CHUNK: usize = 128;

/// Where an entry lies: chunk, and place in it.
type Place = (usize, usize);

/// Keys in order, in chunks of which none is empty.
#[derive(Clone, Debug)]
struct Keys<K> {
    chunks: Vec<Vec<K>>,
    len: usize,
}

/// What an insertion does to a list of chunks: to the keys, and to the values alike.
#[derive(Clone, Copy)]
enum Put {
    /// A place in a chunk that has room.
    At(Place),
    /// A new chunk for one entry at the end.
    Behind,
    /// The chunk is cut into halves first.
    Cut(usize, Place),
}

impl<K: Ord> Keys<K> {
    /// Where a key is, or where it would go.
    fn find<Q: Ord + ?Sized>(&self, key: &Q) -> Result<Place, Place>
    where
        K: Borrow<Q>,
    {
        let (mut low, mut high) = (0, self.chunks.len());
        while low < high {
            let middle = low.midpoint(high);
            let ends_before = |chunk: &Vec<K>| chunk.last().is_none_or(|last| last.borrow() < key);
            if self.chunks.get(middle).is_some_and(ends_before) {
                low = middle + 1;
            } else {
                high = middle;
            }
        }
        let Some(chunk) = self.chunks.get(low) else {
            // Behind all: at the end of the last chunk.
            let Some((last, before)) = self.chunks.split_last() else { return Err((0, 0)) };
            return Err((before.len(), last.len()));
        };
        let (mut from, mut to) = (0, chunk.len());
        while from < to {
            let middle = from.midpoint(to);
            if chunk.get(middle).is_some_and(|known| known.borrow() < key) {
                from = middle + 1;
            } else {
                to = middle;
            }
        }
        if chunk.get(from).is_some_and(|known| known.borrow() == key) { Ok((low, from)) } else { Err((low, from)) }
    }

    /// Puts a key where [`Keys::find`] has said.
    fn insert(&mut self, (at, place): Place, key: K) -> Put {
        self.len += 1;
        let put = match self.chunks.get(at) {
            Some(chunk) if chunk.len() < CHUNK => Put::At((at, place)),
            Some(chunk) if place < chunk.len() || at + 1 < self.chunks.len() => {
                let half = CHUNK / 2;
                Put::Cut(at, if place <= half { (at, place) } else { (at + 1, place - half) })
            }
            // What comes in order fills its chunks.
            Some(_) | None => Put::Behind,
        };
        insert_at(&mut self.chunks, put, key);
        put
    }

    /// Takes out what [`Keys::find`] has found.
    fn remove(&mut self, (at, place): Place) -> K {
        self.len -= 1;
        remove_at(&mut self.chunks, (at, place))
    }
}

/// Puts an entry in, cutting its chunk if `put` says so.
fn insert_at<T>(chunks: &mut Vec<Vec<T>>, put: Put, item: T) {
    let (at, place) = match put {
        Put::At(place) => place,
        Put::Behind => {
            chunks.push(Vec::new());
            (chunks.len() - 1, 0)
        }
        Put::Cut(chunk, place) => {
            let upper = chunks[chunk].split_off(CHUNK / 2);
            chunks.insert(chunk + 1, upper);
            place
        }
    };
    chunks[at].insert(place, item);
}

/// Takes an entry out, and its chunk if it was the last one.
fn remove_at<T>(chunks: &mut Vec<Vec<T>>, (at, place): Place) -> T {
    let chunk = &mut chunks[at];
    let gone = chunk.remove(place);
    if chunk.is_empty() {
        chunks.remove(at);
    }
    gone
}

/// A map in the order of its keys.
#[derive(Clone)]
pub struct SortedMap<K, V> {
    keys: Keys<K>,
    /// As `keys.chunks`, entry by entry: every place of a key is a place here.
    values: Vec<Vec<V>>,
}

impl<K, V> SortedMap<K, V> {
    /// An empty map; allocates nothing.
    pub const fn new() -> Self {
        Self { keys: Keys { chunks: Vec::new(), len: 0 }, values: Vec::new() }
    }

    /// Number of entries.
    pub fn len(&self) -> usize {
        self.keys.len
    }

    /// No entries.
    pub fn is_empty(&self) -> bool {
        self.keys.len == 0
    }

    /// All entries in order.
    pub fn iter(&self) -> Iter<'_, K, V> {
        Iter { keys: self.keys(), values: self.values() }
    }

    /// All keys in order.
    pub fn keys(&self) -> Items<'_, K> {
        Items::new(&self.keys.chunks)
    }

    /// All values in the order of their keys.
    pub fn values(&self) -> Items<'_, V> {
        Items::new(&self.values)
    }

    /// As [`SortedMap::values`], to be changed.
    pub fn values_mut(&mut self) -> ItemsMut<'_, V> {
        ItemsMut { chunks: self.values.iter_mut(), now: [].iter_mut() }
    }

    /// All keys in order, by value.
    pub fn into_keys(self) -> IntoItems<K> {
        IntoItems::new(self.keys.chunks)
    }

    /// All values in the order of their keys, by value.
    pub fn into_values(self) -> IntoItems<V> {
        IntoItems::new(self.values)
    }

    /// Forgets everything.
    pub fn clear(&mut self) {
        *self = Self::new();
    }
}

impl<K: Ord, V> SortedMap<K, V> {
    /// The value of a key.
    pub fn get<Q: Ord + ?Sized>(&self, key: &Q) -> Option<&V>
    where
        K: Borrow<Q>,
    {
        let (at, place) = self.keys.find(key).ok()?;
        self.values.get(at)?.get(place)
    }

    /// As [`SortedMap::get`], to be changed.
    pub fn get_mut<Q: Ord + ?Sized>(&mut self, key: &Q) -> Option<&mut V>
    where
        K: Borrow<Q>,
    {
        let (at, place) = self.keys.find(key).ok()?;
        self.values.get_mut(at)?.get_mut(place)
    }

    /// The key as it was put, and its value.
    pub fn get_key_value<Q: Ord + ?Sized>(&self, key: &Q) -> Option<(&K, &V)>
    where
        K: Borrow<Q>,
    {
        let (at, place) = self.keys.find(key).ok()?;
        Some((self.keys.chunks.get(at)?.get(place)?, self.values.get(at)?.get(place)?))
    }

    /// Whether the key is there.
    pub fn contains_key<Q: Ord + ?Sized>(&self, key: &Q) -> bool
    where
        K: Borrow<Q>,
    {
        self.keys.find(key).is_ok()
    }

    /// Puts a value in; gives back the one that was there.
    pub fn insert(&mut self, key: K, value: V) -> Option<V> {
        match self.keys.find(&key) {
            Ok((at, place)) => Some(std::mem::replace(&mut self.values[at][place], value)),
            Err(free) => {
                self.put(free, key, value);
                None
            }
        }
    }

    fn put(&mut self, free: Place, key: K, value: V) -> Place {
        let put = self.keys.insert(free, key);
        insert_at(&mut self.values, put, value);
        match put {
            Put::At(place) | Put::Cut(_, place) => place,
            Put::Behind => (self.values.len() - 1, 0),
        }
    }

    /// Takes a value out.
    pub fn remove<Q: Ord + ?Sized>(&mut self, key: &Q) -> Option<V>
    where
        K: Borrow<Q>,
    {
        let place = self.keys.find(key).ok()?;
        self.keys.remove(place);
        Some(remove_at(&mut self.values, place))
    }

    /// The value of a key, put there by `new` if there is none.
    pub fn get_or_insert_with(&mut self, key: K, new: impl FnOnce() -> V) -> &mut V {
        let (at, place) = match self.keys.find(&key) {
            Ok(known) => known,
            Err(free) => self.put(free, key, new()),
        };
        &mut self.values[at][place]
    }

    /// The value of a key, the default one if there was none.
    pub fn get_or_default(&mut self, key: K) -> &mut V
    where
        V: Default,
    {
        self.get_or_insert_with(key, V::default)
    }

    /// Keeps what `keep` says; it is asked in order.
    pub fn retain(&mut self, mut keep: impl FnMut(&K, &mut V) -> bool) {
        let old = std::mem::take(self);
        for (key, mut value) in old {
            if keep(&key, &mut value) {
                self.push(key, value);
            }
        }
    }

    /// Puts what is known to come behind all others.
    fn push(&mut self, key: K, value: V) {
        let end = self.keys.chunks.split_last().map_or((0, 0), |(last, before)| (before.len(), last.len()));
        self.put(end, key, value);
    }
}

impl<K, V> Default for SortedMap<K, V> {
    fn default() -> Self {
        Self::new()
    }
}

impl<K: fmt::Debug, V: fmt::Debug> fmt::Debug for SortedMap<K, V> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut map = f.debug_map();
        for (key, value) in self.iter() {
            map.entry(key, value);
        }
        map.finish()
    }
}

impl<K: PartialEq, V: PartialEq> PartialEq for SortedMap<K, V> {
    /// Equal entries, however they are cut into chunks.
    fn eq(&self, other: &Self) -> bool {
        let mut theirs = other.iter();
        self.len() == other.len() && self.iter().all(|mine| theirs.next() == Some(mine))
    }
}

impl<K: Eq, V: Eq> Eq for SortedMap<K, V> {}

impl<K: Ord, V> Extend<(K, V)> for SortedMap<K, V> {
    fn extend<I: IntoIterator<Item = (K, V)>>(&mut self, entries: I) {
        for (key, value) in entries {
            self.insert(key, value);
        }
    }
}

impl<K: Ord, V> FromIterator<(K, V)> for SortedMap<K, V> {
    fn from_iter<I: IntoIterator<Item = (K, V)>>(entries: I) -> Self {
        let mut map = Self::new();
        map.extend(entries);
        map
    }
}

impl<K: Ord, V, const N: usize> From<[(K, V); N]> for SortedMap<K, V> {
    fn from(entries: [(K, V); N]) -> Self {
        entries.into_iter().collect()
    }
}

impl<K, V> IntoIterator for SortedMap<K, V> {
    type Item = (K, V);
    type IntoIter = IntoIter<K, V>;

    fn into_iter(self) -> IntoIter<K, V> {
        IntoIter { keys: IntoItems::new(self.keys.chunks), values: IntoItems::new(self.values) }
    }
}

impl<'a, K, V> IntoIterator for &'a SortedMap<K, V> {
    type Item = (&'a K, &'a V);
    type IntoIter = Iter<'a, K, V>;

    fn into_iter(self) -> Iter<'a, K, V> {
        self.iter()
    }
}

/// A set in order.
#[derive(Clone)]
pub struct SortedSet<K> {
    keys: Keys<K>,
}

impl<K> SortedSet<K> {
    /// An empty set; allocates nothing.
    pub const fn new() -> Self {
        Self { keys: Keys { chunks: Vec::new(), len: 0 } }
    }

    /// Number of members.
    pub fn len(&self) -> usize {
        self.keys.len
    }

    /// No members.
    pub fn is_empty(&self) -> bool {
        self.keys.len == 0
    }

    /// All members in order.
    pub fn iter(&self) -> Items<'_, K> {
        Items::new(&self.keys.chunks)
    }

    /// Forgets everything.
    pub fn clear(&mut self) {
        *self = Self::new();
    }
}

impl<K: Ord> SortedSet<K> {
    /// Whether it is there.
    pub fn contains<Q: Ord + ?Sized>(&self, key: &Q) -> bool
    where
        K: Borrow<Q>,
    {
        self.keys.find(key).is_ok()
    }

    /// Puts it in; false if it was there.
    pub fn insert(&mut self, key: K) -> bool {
        match self.keys.find(&key) {
            Ok(_) => false,
            Err(free) => {
                self.keys.insert(free, key);
                true
            }
        }
    }

    /// Takes it out; false if it was not there.
    pub fn remove<Q: Ord + ?Sized>(&mut self, key: &Q) -> bool
    where
        K: Borrow<Q>,
    {
        let found = self.keys.find(key);
        found.is_ok_and(|place| {
            self.keys.remove(place);
            true
        })
    }
}

impl<K> Default for SortedSet<K> {
    fn default() -> Self {
        Self::new()
    }
}

impl<K: fmt::Debug> fmt::Debug for SortedSet<K> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_set().entries(self.iter()).finish()
    }
}

impl<K: PartialEq> PartialEq for SortedSet<K> {
    fn eq(&self, other: &Self) -> bool {
        let mut theirs = other.iter();
        self.len() == other.len() && self.iter().all(|mine| theirs.next() == Some(mine))
    }
}

impl<K: Eq> Eq for SortedSet<K> {}

impl<K: Ord> Extend<K> for SortedSet<K> {
    fn extend<I: IntoIterator<Item = K>>(&mut self, members: I) {
        for member in members {
            self.insert(member);
        }
    }
}

impl<K: Ord> FromIterator<K> for SortedSet<K> {
    fn from_iter<I: IntoIterator<Item = K>>(members: I) -> Self {
        let mut set = Self::new();
        set.extend(members);
        set
    }
}

impl<K> IntoIterator for SortedSet<K> {
    type Item = K;
    type IntoIter = IntoItems<K>;

    fn into_iter(self) -> IntoItems<K> {
        IntoItems::new(self.keys.chunks)
    }
}

impl<'a, K> IntoIterator for &'a SortedSet<K> {
    type Item = &'a K;
    type IntoIter = Items<'a, K>;

    fn into_iter(self) -> Items<'a, K> {
        self.iter()
    }
}

#[cfg(test)]
mod tests {
    use std::collections::{BTreeMap, BTreeSet};

    use super::*;

    struct XorShift(u64);

    impl XorShift {
        fn below(&mut self, end: u64) -> u64 {
            self.0 ^= self.0 << 13;
            self.0 ^= self.0 >> 7;
            self.0 ^= self.0 << 17;
            self.0 % end
        }
    }

    fn same(map: &SortedMap<u64, u64>, model: &BTreeMap<u64, u64>, seed: u64) {
        assert_eq!(map.len(), model.len(), "seed {seed}");
        assert!(map.iter().eq(model.iter()), "seed {seed}");
        assert!(map.keys().eq(model.keys()) && map.values().eq(model.values()), "seed {seed}");
        let full = |chunk: &Vec<u64>| !chunk.is_empty() && chunk.len() <= CHUNK;
        assert!(map.keys.chunks.iter().all(full), "seed {seed}");
        let lens = |chunks: &[Vec<u64>]| chunks.iter().map(Vec::len).collect::<Vec<_>>();
        assert_eq!(lens(&map.keys.chunks), lens(&map.values), "seed {seed}");
    }

    #[test]
    fn it_does_what_a_btree_map_does() {
        for seed in 1..=60 {
            let (mut rng, mut map, mut model) = (XorShift(seed), SortedMap::new(), BTreeMap::new());
            let span = [4, 40, 1000, 100_000][(seed % 4) as usize];
            for step in 0..3000u64 {
                let key = rng.below(span);
                match rng.below(if seed % 3 == 0 { 4 } else { 12 }) {
                    0 | 1 => assert_eq!(map.remove(&key), model.remove(&key), "seed {seed}"),
                    2 => assert_eq!(map.get_or_insert_with(key, || 7), model.entry(key).or_insert(7), "seed {seed}"),
                    3 => assert_eq!(map.get_mut(&key), model.get_mut(&key), "seed {seed}"),
                    _ => assert_eq!(map.insert(key, step), model.insert(key, step), "seed {seed}"),
                }
                assert_eq!(map.get(&key), model.get(&key), "seed {seed}");
                assert_eq!(map.get_key_value(&(key + 1)), model.get_key_value(&(key + 1)), "seed {seed}");
            }
            same(&map, &model, seed);
            map.values_mut().zip(model.values_mut()).for_each(|(mine, its)| (*mine, *its) = (*mine + 1, *its + 1));
            map.retain(|key, value| !(key + *value).is_multiple_of(3));
            model.retain(|key, value| !(key + *value).is_multiple_of(3));
            same(&map, &model, seed);
            let again: SortedMap<_, _> = map.clone().into_iter().collect();
            assert_eq!(again, map, "however they are cut");
            assert!(map.clone().into_keys().eq(model.clone().into_keys()), "seed {seed}");
            assert!(map.into_iter().eq(model), "seed {seed}");
        }
    }

    #[test]
    fn a_set_does_what_a_btree_set_does() {
        for seed in 1..=20 {
            let (mut rng, mut set, mut model) = (XorShift(seed), SortedSet::new(), BTreeSet::new());
            for _ in 0..3000 {
                let key = rng.below(500);
                if rng.below(3) == 0 {
                    assert_eq!(set.remove(&key), model.remove(&key), "seed {seed}");
                } else {
                    assert_eq!(set.insert(key), model.insert(key), "seed {seed}");
                }
                assert_eq!(set.contains(&(key / 2)), model.contains(&(key / 2)), "seed {seed}");
            }
            assert_eq!((set.len(), set.is_empty()), (model.len(), false));
            assert!(set.iter().eq(model.iter()) && set.into_iter().eq(model), "seed {seed}");
        }
    }

    #[test]
    fn what_comes_in_order_fills_its_chunks() {
        let map: SortedMap<_, _> = (0..1000u64).map(|key| (key, key)).collect();
        assert_eq!(map.keys.chunks.len(), 1000usize.div_ceil(CHUNK));
        let back: SortedMap<_, _> = (0..1000u64).rev().map(|key| (key, key)).collect();
        assert_eq!(map, back);
    }
}
