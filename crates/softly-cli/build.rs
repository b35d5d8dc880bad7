//! Records the commit that the program is built from.

use std::process::Command;

fn main() {
    println!("cargo:rerun-if-changed=../../.git/HEAD");
    println!("cargo:rerun-if-changed=../../.git/refs/heads");
    let output = Command::new("git").args(["describe", "--always", "--dirty", "--abbrev=12"]).output();
    let commit = output.ok().filter(|o| o.status.success()).and_then(|o| String::from_utf8(o.stdout).ok());
    println!("cargo:rustc-env=SOFTLY_COMMIT={}", commit.as_deref().map_or("unknown", str::trim));
}
