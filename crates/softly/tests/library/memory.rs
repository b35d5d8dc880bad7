//! Memory over a long training.

#![cfg(target_os = "linux")]

use std::process::Command;
use std::{env, fs};

use crate::common::{new_training, small};

/// Set in the process that measures.
const ALONE: &str = "SOFTLY_TEST_ALONE";

/// Resident memory of this process in kilobytes.
fn resident() -> u64 {
    let status = fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find(|l| l.starts_with("VmRSS:")).unwrap();
    line.split_whitespace().nth(1).unwrap().parse().unwrap()
}

#[test]
fn memory_stays_flat_over_a_thousand_steps() {
    if env::var_os(ALONE).is_none() {
        // Other tests of this process would disturb the measurement, so the test runs itself in another one.
        let this = ["memory::memory_stays_flat_over_a_thousand_steps", "--exact", "--nocapture"];
        let found = Command::new(env::current_exe().unwrap()).args(this).env(ALONE, "1").output().unwrap();
        let said = [found.stdout, found.stderr].map(|text| String::from_utf8_lossy(&text).into_owned()).concat();
        assert!(found.status.success() && said.contains("1 passed"), "{said}");
        return;
    }
    for method in ["scd", "pidm-ddpm"] {
        let mut training = new_training(&small(method, &["train.iterations=2000", "train.batch=64"])).unwrap();
        let mut steps = |n: usize| {
            for _ in 0..n {
                training.step().unwrap();
            }
        };
        steps(200);
        let before = resident();
        steps(1_000);
        let grown = resident().saturating_sub(before);
        // One step's tensors are about 100 kB: keeping 1% of them would show.
        assert!(grown < 1_024, "{method}: {grown} kB more after 1,000 steps");
    }
}
