//! `softly presets`: list the presets, print one, or print the schema of configurations.

use softly::error::Result;
use softly::{Layers, PRESETS, schema_text};

use crate::output::{print, print_json};

/// Lists the presets, or prints `name` with a method laid over it.
pub fn run(name: Option<&str>, method: Option<&str>, schema: bool, json: bool) -> Result<()> {
    if schema {
        print(&schema_text());
        return Ok(());
    }
    let Some(name) = name else {
        if json {
            print_json(&PRESETS.iter().map(|(name, _)| name).collect::<Vec<_>>());
        } else {
            for (name, text) in PRESETS {
                print(&format!("{name:15} {}", text.lines().next().unwrap_or_default().trim_start_matches("# ")));
            }
        }
        return Ok(());
    };
    let mut layers = Layers::new().preset(name)?;
    if let Some(method) = method {
        layers = layers.method(method)?;
    }
    let config = layers.finish(name)?;
    if json {
        print_json(&config);
    } else {
        print(config.to_toml().trim_end());
    }
    Ok(())
}
