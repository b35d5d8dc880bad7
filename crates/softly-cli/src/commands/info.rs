//! `softly info`: versions, device and threads.

use serde_json::json;
use softly::device;
use softly::error::Result;

use crate::configuration::run_info;
use crate::output::{print, print_json};

/// Prints what this program is and what it can use.
pub fn run(json: bool) -> Result<()> {
    let info = run_info(0, "cpu");
    let facts = json!({
        "version": info.version, "commit": info.commit, "device": info.device,
        "devices": device::NAMES.join(", "), "threads": info.threads, "vectors": device::vectors()?,
        "burn": "0.22.1", "target": format!("{}-{}", std::env::consts::ARCH, std::env::consts::OS),
    });
    if json {
        print_json(&facts);
    } else if let Some(facts) = facts.as_object() {
        for (key, value) in facts {
            print(&format!("{key:8} {}", value.as_str().map_or_else(|| value.to_string(), ToString::to_string)));
        }
    }
    Ok(())
}
