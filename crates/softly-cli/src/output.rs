//! What the program prints on stdout.

use std::io::Write;

pub use softly::text::text_table;

/// Prints a line of data on stdout; a closed pipe is not an error.
pub fn print(text: &str) {
    let _ = writeln!(std::io::stdout(), "{text}");
}

/// Prints one JSON object.
pub fn print_json(value: &impl serde::Serialize) {
    print(&serde_json::to_string(value).expect("values of the program are valid JSON"));
}
