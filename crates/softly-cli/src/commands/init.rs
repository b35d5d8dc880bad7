//! `softly init`: a first configuration for a dataset.

use std::collections::BTreeMap;
use std::time::Duration;

use serde_json::json;
use softly::error::{Error, Result};
use softly::files::write_text;
use softly::{DatasetFolder, Starter, device};

use crate::arguments::Init;
use crate::output::{print, print_json};
use crate::progress::say;

/// Writes the configuration.
pub fn run(arguments: &Init, json: bool) -> Result<()> {
    let out = &arguments.out;
    if out.exists() {
        return Err(Error::input(out.display(), "exists already, and may hold your changes")
            .hint("choose another --out, or remove the file first"));
    }
    let budget = duration(&arguments.budget)?;
    let parameters = arguments.parameters.iter().map(|text| parameter(text)).collect::<Result<BTreeMap<_, _>>>()?;
    let folder = DatasetFolder::open(&arguments.folder)?;
    let starter = Starter { equations: arguments.equations.clone(), parameters, budget };
    say("timing some training steps…");
    let start = starter.start(&folder, out, &device::by_name(&arguments.compute.device)?)?;
    write_text(out, &start.text)?;
    if !start.unknown.is_empty() {
        let names = start.unknown.join(", ");
        say(&format!("fill in the value of {names} in {}, under [constraint.parameters]", out.display()));
    }
    if json {
        print_json(&json!({
            "config": out, "unknown": start.unknown, "channels": start.channels, "iterations": start.iterations,
            "step_seconds": start.step_seconds,
        }));
    } else {
        print(&out.display().to_string());
    }
    Ok(())
}

/// A time such as `90s`, `30m` or `2h`.
fn duration(text: &str) -> Result<Duration> {
    let text = text.trim();
    let units = [('s', 1.0), ('m', 60.0), ('h', 3600.0)];
    let seconds = units.into_iter().find_map(|(unit, seconds)| {
        let number: f64 = text.strip_suffix(unit)?.trim().parse().ok()?;
        Some(number * seconds)
    });
    match seconds {
        Some(seconds) if (1.0..=1e7).contains(&seconds) => Ok(Duration::from_secs_f64(seconds)),
        _ => Err(Error::input(
            "--budget",
            format!("expected a time of a second or more such as 90s, 30m or 2h, found `{text}`"),
        )),
    }
}

/// A parameter's name and value.
fn parameter(text: &str) -> Result<(String, f64)> {
    let parts = text.split_once('=').and_then(|(name, value)| Some((name.trim(), value.trim().parse::<f64>().ok()?)));
    match parts {
        Some((name, value)) if !name.is_empty() && value.is_finite() => Ok((name.to_string(), value)),
        _ => Err(Error::input("--parameter", format!("expected NAME=NUMBER, found `{text}`"))
            .hint("for example --parameter nu=0.01")),
    }
}
