//! The iterators of sorted maps and sets: over borrowed entries, entries to be changed, and entries by value.
//!
//! Each walks the list of chunks, and in each chunk its entries. Made by `sorted.rs` only.

use std::slice;
use std::vec;

/// Keys, values or members in order.
pub struct Items<'a, T> {
    pub(super) chunks: slice::Iter<'a, Vec<T>>,
    pub(super) now: slice::Iter<'a, T>,
}

impl<'a, T> Items<'a, T> {
    pub(super) fn new(chunks: &'a [Vec<T>]) -> Self {
        Self { chunks: chunks.iter(), now: [].iter() }
    }
}

impl<T> Clone for Items<'_, T> {
    fn clone(&self) -> Self {
        Self { chunks: self.chunks.clone(), now: self.now.clone() }
    }
}

impl<'a, T> Iterator for Items<'a, T> {
    type Item = &'a T;

    fn next(&mut self) -> Option<&'a T> {
        loop {
            if let Some(item) = self.now.next() {
                return Some(item);
            }
            self.now = self.chunks.next()?.iter();
        }
    }
}

/// As [`Items`], to be changed.
pub struct ItemsMut<'a, T> {
    pub(super) chunks: slice::IterMut<'a, Vec<T>>,
    pub(super) now: slice::IterMut<'a, T>,
}

impl<'a, T> Iterator for ItemsMut<'a, T> {
    type Item = &'a mut T;

    fn next(&mut self) -> Option<&'a mut T> {
        loop {
            if let Some(item) = self.now.next() {
                return Some(item);
            }
            self.now = self.chunks.next()?.iter_mut();
        }
    }
}

/// As [`Items`], by value.
pub struct IntoItems<T> {
    pub(super) chunks: vec::IntoIter<Vec<T>>,
    pub(super) now: vec::IntoIter<T>,
}

impl<T> IntoItems<T> {
    pub(super) fn new(chunks: Vec<Vec<T>>) -> Self {
        Self { chunks: chunks.into_iter(), now: Vec::new().into_iter() }
    }
}

impl<T> Iterator for IntoItems<T> {
    type Item = T;

    fn next(&mut self) -> Option<T> {
        loop {
            if let Some(item) = self.now.next() {
                return Some(item);
            }
            self.now = self.chunks.next()?.into_iter();
        }
    }
}

/// Entries in order.
pub struct Iter<'a, K, V> {
    pub(super) keys: Items<'a, K>,
    pub(super) values: Items<'a, V>,
}

impl<'a, K, V> Iterator for Iter<'a, K, V> {
    type Item = (&'a K, &'a V);

    fn next(&mut self) -> Option<(&'a K, &'a V)> {
        Some((self.keys.next()?, self.values.next()?))
    }
}

/// As [`Iter`], by value.
pub struct IntoIter<K, V> {
    pub(super) keys: IntoItems<K>,
    pub(super) values: IntoItems<V>,
}

impl<K, V> Iterator for IntoIter<K, V> {
    type Item = (K, V);

    fn next(&mut self) -> Option<(K, V)> {
        Some((self.keys.next()?, self.values.next()?))
    }
}
