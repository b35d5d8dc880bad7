//! What the program prints on stdout.

use std::io::Write;

use crate::ranks;
pub use softly::text::text_table;

/// Prints a line of data on stdout, on the leading rank; a closed pipe is not an error.
pub fn print(text: &str) {
    if ranks::here().leads() {
        let _ = writeln!(std::io::stdout(), "{text}");
    }
}

/// Prints one JSON object.
pub fn print_json(value: &impl serde::Serialize) {
    print(&serde_json::to_string(value).expect("values of the program are valid JSON"));
}
