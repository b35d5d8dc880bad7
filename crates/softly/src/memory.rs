//! Memory that settings ask for, refused before it is allocated.

use std::sync::LazyLock;

use crate::error::{Error, Result};

/// Bytes of memory that the machine has; a tebibyte where it does not tell.
fn total() -> f64 {
    static TOTAL: LazyLock<f64> = LazyLock::new(|| {
        let text = std::fs::read_to_string("/proc/meminfo").unwrap_or_default();
        let kib = text
            .lines()
            .find_map(|line| line.strip_prefix("MemTotal:")?.trim().strip_suffix("kB")?.trim().parse().ok());
        kib.map_or(2f64.powi(40), |kib: f64| 1024.0 * kib)
    });
    *TOTAL
}

/// Refuses the setting `key` if what it asks for, about `bytes`, is more than the machine has.
pub(crate) fn check(key: &str, bytes: f64) -> Result<()> {
    let total = total();
    if bytes <= total {
        return Ok(());
    }
    let problem = format!("needs about {} of memory, and this machine has {}", readable(bytes), readable(total));
    Err(Error::input(key, problem).hint("choose a smaller number"))
}

/// `bytes` in the largest unit that they fill.
fn readable(bytes: f64) -> String {
    let units = ["B", "kB", "MB", "GB", "TB", "PB", "EB"];
    let at = (bytes.max(1.0).log10() / 3.0).floor().min(units.len() as f64 - 1.0);
    format!("{:.1} {}", bytes / 1000f64.powf(at), units[at as usize])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_no_machine_has_is_refused_with_both_numbers() {
        check("train.batch", 1e6).unwrap();
        let error = check("train.batch", 3.2e19).unwrap_err();
        assert_eq!(error.exit_code(), 2);
        assert!(error.to_string().starts_with("train.batch: needs about 32.0 EB of memory, and this machine has "));
        assert_eq!([1.0, 1e3, 2.5e9, f64::MAX].map(readable)[..3], ["1.0 B", "1.0 kB", "2.5 GB"]);
    }
}
