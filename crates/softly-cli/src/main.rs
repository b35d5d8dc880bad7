//! The `softly` program.

fn main() {}
