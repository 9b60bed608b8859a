//! Sorting of lists that are not hot: names, queues of a route, members. Small to compile: the library's sort is 2000
//! lines of LLVM for each type, this one is 100. The store sorts its keys with the library's.

use std::cmp::Ordering;

/// Sorts in place by `order`, in n log n steps whatever the input. What is equal may change places.
pub fn sort_by<T>(items: &mut [T], order: impl Fn(&T, &T) -> Ordering) {
    // A heap with the greatest in front; then the greatest goes behind what is left, again and again.
    let mut from = items.len() / 2;
    let mut end = items.len();
    while end > 1 {
        if from > 0 {
            from -= 1;
        } else {
            end -= 1;
            items.swap(0, end);
        }
        let mut parent = from;
        loop {
            let (left, right) = (2 * parent + 1, 2 * parent + 2);
            let Some(heap) = items.get(..end) else { return };
            let Some(mut greater) = heap.get(left) else { break };
            let mut child = left;
            if let Some(other) = heap.get(right)
                && order(greater, other).is_lt()
            {
                (greater, child) = (other, right);
            }
            if heap.get(parent).is_none_or(|parent| order(parent, greater).is_ge()) {
                break;
            }
            items.swap(parent, child);
            parent = child;
        }
    }
}

/// Sorts in place.
pub fn sort<T: Ord>(items: &mut [T]) {
    sort_by(items, T::cmp);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_sorts_as_the_library_does() {
        for seed in 1..=300u64 {
            let mut state = seed;
            let mut next = || {
                state ^= state << 13;
                state ^= state >> 7;
                state ^= state << 17;
                state
            };
            let len = next() % 70;
            let mut items: Vec<u64> = (0..len).map(|_| next() % 40).collect();
            let mut want = items.clone();
            want.sort_unstable();
            sort(&mut items);
            assert_eq!(items, want, "seed {seed}");
            sort(&mut items);
            assert_eq!(items, want, "sorted already, seed {seed}");
            sort_by(&mut items, |left, right| right.cmp(left));
            want.reverse();
            assert_eq!(items, want, "seed {seed}");
        }
    }
}
