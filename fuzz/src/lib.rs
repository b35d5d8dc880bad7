//! What libFuzzer needs around the [`targets`]: one thread, and an end to allocations that no small file deserves.

use std::alloc::{GlobalAlloc, Layout, System};

pub mod targets;

/// Bytes that one allocation may ask for.
const LARGEST: usize = 64 << 20;

/// The system's allocator, which ends the process on a request above [`LARGEST`]: a finding.
struct Bounded;

#[global_allocator]
static BOUNDED: Bounded = Bounded;

fn check(size: usize) {
    if size > LARGEST {
        eprintln!("an allocation of {size} bytes, more than {LARGEST}: {}", std::backtrace::Backtrace::force_capture());
        std::process::abort();
    }
}

// Every call goes on to the system's allocator as it came.
unsafe impl GlobalAlloc for Bounded {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        check(layout.size());
        unsafe { System.alloc(layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        check(layout.size());
        unsafe { System.alloc_zeroed(layout) }
    }

    unsafe fn realloc(&self, memory: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        check(size);
        unsafe { System.realloc(memory, layout, size) }
    }

    unsafe fn dealloc(&self, memory: *mut u8, layout: Layout) {
        unsafe { System.dealloc(memory, layout) }
    }
}

/// Makes this thread the only one: handing small files to others costs more than reading them.
pub fn prepare() {
    rayon::ThreadPoolBuilder::new().num_threads(1).use_current_thread().build_global().expect("no pool yet");
}
