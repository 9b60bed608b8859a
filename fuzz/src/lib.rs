//! What the fuzz targets share: an allocator that counts, so that a decoder that takes memory by a length that somebody
//! announced is found at once. The bodies of the targets stand in the crate, beside what they fuzz.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;

thread_local! {
    static HELD: Cell<usize> = const { Cell::new(0) };
    static MOST: Cell<usize> = const { Cell::new(0) };
}

/// Counts the bytes that each thread holds, and the most it has held.
pub struct Counting;

#[global_allocator]
static ALLOCATOR: Counting = Counting;

fn changed(more: usize, less: usize) {
    let _ = HELD.try_with(|held| {
        held.set(held.get().wrapping_add(more).wrapping_sub(less));
        let _ = MOST.try_with(|most| most.set(most.get().max(held.get())));
    });
}

// SAFETY: every call goes to the system allocator unchanged; counting touches thread-local cells only.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        changed(layout.size(), 0);
        unsafe { System.alloc(layout) }
    }
    unsafe fn dealloc(&self, at: *mut u8, layout: Layout) {
        changed(0, layout.size());
        unsafe { System.dealloc(at, layout) }
    }
    unsafe fn realloc(&self, at: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        changed(size, layout.size());
        unsafe { System.realloc(at, layout, size) }
    }
}

/// How many bytes `work` held at most beyond those held before.
pub fn measure(work: &mut dyn FnMut()) -> usize {
    let before = HELD.with(Cell::get);
    MOST.with(|most| most.set(before));
    work();
    MOST.with(Cell::get).saturating_sub(before)
}
