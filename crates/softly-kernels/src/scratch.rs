//! Memory that tasks share: reused scratch buffers and disjoint pieces of one output.

use std::cell::RefCell;
use std::marker::PhantomData;

thread_local! {
    /// Free buffers of this thread. A stack, because a thread that waits for its tasks may run another kernel's task.
    static FREE: RefCell<Vec<Vec<f32>>> = const { RefCell::new(Vec::new()) };
}

/// Reused memory with arbitrary contents, given back when dropped. A value rather than a function that takes a closure,
/// because a closure would not be compiled for the instruction set of the kernel.
pub struct Scratch {
    buffer: Vec<f32>,
    len: usize,
}

impl Scratch {
    /// `len` numbers.
    pub fn new(len: usize) -> Self {
        let mut buffer = FREE.with_borrow_mut(Vec::pop).unwrap_or_default();
        if buffer.len() < len {
            buffer.resize(len, 0.0);
        }
        Self { buffer, len }
    }

    /// The numbers.
    pub fn slice(&mut self) -> &mut [f32] {
        &mut self.buffer[..self.len]
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        FREE.with_borrow_mut(|free| free.push(std::mem::take(&mut self.buffer)));
    }
}

/// A slice whose disjoint pieces are written by several tasks at once.
pub(crate) struct Shared<'a> {
    start: *mut f32,
    len: usize,
    borrow: PhantomData<&'a mut [f32]>,
}

// SAFETY: numbers can be written from any thread; that no two tasks get the same ones is promised to `piece`.
unsafe impl Sync for Shared<'_> {}

impl<'a> Shared<'a> {
    pub(crate) fn new(slice: &'a mut [f32]) -> Self {
        Self { start: slice.as_mut_ptr(), len: slice.len(), borrow: PhantomData }
    }

    /// Where the numbers `start..start + len` are, for writing some of them.
    #[inline(always)]
    pub(crate) fn pointer(&self, start: usize, len: usize) -> *mut f32 {
        assert!(start + len <= self.len);
        self.start.wrapping_add(start)
    }

    /// The numbers `start..start + len`.
    ///
    /// # Safety
    /// No other live piece may overlap.
    #[inline(always)]
    #[allow(clippy::mut_from_ref)]
    pub(crate) unsafe fn piece(&self, start: usize, len: usize) -> &mut [f32] {
        assert!(start + len <= self.len);
        // SAFETY: in bounds of the borrowed slice, and not aliased by the caller's promise.
        unsafe { std::slice::from_raw_parts_mut(self.start.add(start), len) }
    }
}
