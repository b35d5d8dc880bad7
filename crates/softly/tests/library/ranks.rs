//! Work of several ranks: the same bytes for any number of them, failures that all hear of, stops at the same step.

use std::fs;
use std::path::Path;
use std::sync::Mutex;
use std::sync::mpsc::{Receiver, Sender, channel};

use softly::error::{Error, Result};
use softly::job::Job;
use softly::ranks::{Alone, Ranks};
use softly::{Config, RunFolder, Snapshot, Training, run};
use tempfile::TempDir;

use crate::common::{Watch, configured, contents, cpu, dataset, info, new_training, small};

/// One end of a channel to a rank and one from it.
type End<T> = (Sender<T>, Mutex<Receiver<T>>);

/// A rank that is a thread: messages of numbers and of bytes to and from every other.
struct Thread {
    index: usize,
    numbers: Vec<End<Vec<f32>>>,
    bytes: Vec<End<Vec<u8>>>,
}

impl Ranks for Thread {
    fn index(&self) -> usize {
        self.index
    }

    fn count(&self) -> usize {
        self.numbers.len()
    }

    fn exchange(&self, out: Option<(usize, &[f32])>, into: Option<(usize, &mut [f32])>) {
        if let Some((to, numbers)) = out {
            self.numbers[to].0.send(numbers.to_vec()).unwrap();
        }
        if let Some((from, numbers)) = into {
            numbers.copy_from_slice(&self.numbers[from].1.lock().unwrap().recv().unwrap());
        }
    }

    fn gather(&self, own: &[u8]) -> Vec<Vec<u8>> {
        self.bytes.iter().for_each(|(to, _)| to.send(own.to_vec()).unwrap());
        self.bytes.iter().map(|(_, from)| from.lock().unwrap().recv().unwrap()).collect()
    }
}

/// One end of a channel for every pair of ranks: `[rank][other]`.
fn ends<T>(count: usize) -> Vec<Vec<End<T>>> {
    let mut senders: Vec<Vec<Option<Sender<T>>>> = (0..count).map(|_| (0..count).map(|_| None).collect()).collect();
    let mut receivers: Vec<Vec<Receiver<T>>> = (0..count).map(|_| Vec::new()).collect();
    for to in 0..count {
        for from in &mut senders {
            let (sender, receiver) = channel();
            from[to] = Some(sender);
            receivers[to].push(receiver);
        }
    }
    let pairs = senders.into_iter().zip(receivers);
    pairs.map(|(s, r)| s.into_iter().map(Option::unwrap).zip(r.into_iter().map(Mutex::new)).collect()).collect()
}

/// The results of `work` on `count` ranks.
fn on_ranks<R: Send>(count: usize, work: impl Fn(&'static dyn Ranks) -> R + Sync) -> Vec<R> {
    let ends = ends(count).into_iter().zip(ends(count)).enumerate();
    let ranks: Vec<&'static Thread> =
        ends.map(|(index, (numbers, bytes))| &*Box::leak(Box::new(Thread { index, numbers, bytes }))).collect();
    std::thread::scope(|scope| {
        let threads: Vec<_> = ranks.into_iter().map(|rank| scope.spawn(|| work(rank))).collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    })
}

#[test]
fn sums_are_in_the_order_of_the_parts_and_rank_0_leads() {
    // Large numbers of both signs: another order of the sum is another sum.
    let (parts, len) = (7, 600_000);
    let part = |p: usize| -> Vec<f32> {
        (0..len).map(|i| [1.0, 3e7, -3e7, 0.3, 1e-3][(i + 2 * p) % 5] * (1.0 + (i % 97) as f32)).collect()
    };
    let mut expected = part(0);
    (1..parts).for_each(|p| expected.iter_mut().zip(part(p)).for_each(|(sum, value)| *sum += value));
    let mut backwards = part(parts - 1);
    (0..parts - 1).rev().for_each(|p| backwards.iter_mut().zip(part(p)).for_each(|(sum, value)| *sum += value));
    assert_ne!(expected, backwards);
    for count in 1..=5 {
        let found = on_ranks(count, |ranks| {
            let mut own = vec![ranks.index() as f32 + 0.5; 300_001];
            ranks.lead(&mut own);
            assert!(own.iter().all(|value| *value == 0.5));
            ranks.add(ranks.part(parts).map(part).collect())
        });
        assert!(found.into_iter().all(|sum| sum == expected), "{count} ranks");
    }
}

#[test]
fn everybody_hears_of_a_failure_and_of_another_text() {
    let outcomes = on_ranks(3, |ranks| {
        let work = || match ranks.index() {
            1 => Err(Error::input("file", "is not here").hint("copy it")),
            _ => ranks.any(false).map(|_| ()),
        };
        ranks.end(work()).unwrap_err()
    });
    assert!(outcomes.iter().all(|error| error.exit_code() == 2));
    assert_eq!(outcomes[0].to_string(), "rank 1: file: is not here\nhint: copy it");
    assert_eq!(outcomes[1].to_string(), "file: is not here\nhint: copy it");
    // All fail at once: the first one's error counts.
    let outcomes = on_ranks(2, |ranks| {
        ranks.end(Err(Error::Diverged { step: ranks.index() as u64, loss: f64::NAN, hint: String::new() })).unwrap_err()
    });
    assert!(
        outcomes[0].to_string().contains("step 0") && outcomes[1].to_string().contains("rank 0: training diverged")
    );
    let texts = on_ranks(3, |ranks| {
        let text = format!("a = 1\nb = {}\n", ranks.index() / 2);
        ranks.end(ranks.same("configuration", &text)).unwrap_err().to_string()
    });
    let expected = "rank 2: expected the configuration of rank 0, `b = 0`, found `b = 1`";
    assert!(texts.iter().all(|text| text.starts_with(expected)), "{texts:?}");
    assert!(on_ranks(3, |ranks| ranks.any(ranks.index() == 2).unwrap()).into_iter().all(|any| any));
}

/// A training of `config`, on top of `base` if there is one, in `folder`; rank `last.0` asks to stop after step `last.1`.
fn train(
    config: &Config,
    base: Option<&Snapshot>,
    folder: &Path,
    ranks: &'static dyn Ranks,
    last: (usize, u64),
) -> Result<()> {
    let watch = Watch::new(|step| last == (ranks.index(), step));
    let device = cpu();
    let job = Job { ranks, ..watch.job(&device) };
    let training = match base {
        Some(base) => Training::adapt_watched(base, Path::new("base"), None, config, dataset(config), &job),
        None => Training::begin(config, dataset(config), &job),
    };
    ranks.end(training.and_then(|training| run(training, &RunFolder::new(folder), info(), &job)))
}

/// Bytes of snapshot, metrics and checkpoint.
fn products(folder: &Path) -> [Vec<u8>; 3] {
    let folder = RunFolder::new(folder);
    [folder.snapshot(), folder.metrics(), folder.checkpoint()].map(|file| fs::read(file).unwrap())
}

#[test]
fn any_number_of_ranks_trains_the_same_bytes() {
    let home = TempDir::new().unwrap();
    let never = (0, u64::MAX);
    let mut base_training = new_training(&small("vanilla", &[])).unwrap();
    (0..60).for_each(|_| drop(base_training.step().unwrap()));
    let base = base_training.snapshot();
    let circle =
        "constraint={fields=['x', 'y'], residual='sqrt(x^2 + y^2) - r', norm='l2', parameters={r={learn=1.3}}}";
    let scd = "denoiser.scd={scale='polyak', input='features'}";
    let field = |settings: &[&str]| {
        let small = ["denoiser.backbone={kind='mlp', hidden=8}", "data.count=24", "data.valid=4", "train.batch=8"];
        let steps = ["train.shares=4", "train.iterations=60", "train.log_every=7", "train.checkpoint_every=10"];
        configured("darcy-demo", &[&small[..], &steps, settings].concat())
    };
    let mut plain = field(&[]);
    plain.denoiser.scd = None;
    let base_field = new_training(&plain).unwrap().snapshot();
    let kalman = "denoiser.scd={directions=['gradient', 'kalman'], solve_for='p', scale='unit', input='features'}";
    let cases = [
        ("scd", small("scd", &["train.shares=5"]), None),
        ("pidm", small("pidm", &["train.shares=4"]), None),
        ("adapted", small("vanilla", &[circle, scd, "train.shares=5", "train.batch=17"]), Some(&base)),
        ("kalman", field(&[kalman]), Some(&base_field)),
    ];
    for (name, config, base) in cases {
        let [alone, many, cut] = ["alone", "many", "cut"].map(|part| home.path().join(format!("{name}-{part}")));
        train(&config, base, &alone, &Alone, never).unwrap();
        let expected = products(&alone);
        for count in [2, 3, 4] {
            let folder = many.join(count.to_string());
            on_ranks(count, |ranks| train(&config, base, &folder, ranks, never).unwrap());
            assert!(products(&folder) == expected, "{name} on {count} ranks");
        }
        // Stopped on three ranks by the last of them, and on two by the first; finished on four.
        for (count, last) in [(3, (2, 23)), (2, (0, 41))] {
            let stopped = on_ranks(count, |ranks| train(&config, base, &cut, ranks, last).unwrap_err());
            let [step, next] = [last.1, last.1 + 1].map(|step| format!("step {step} of 60 is saved"));
            // Another rank may hear of it one step later.
            let text = stopped[0].to_string();
            assert!(text.contains(&step) || text.contains(&next), "{text}");
        }
        on_ranks(4, |ranks| train(&config, base, &cut, ranks, never).unwrap());
        assert!(products(&cut) == expected, "{name}, stopped and resumed");
        // Done already: on one rank and on several.
        let before = contents(&cut);
        on_ranks(2, |ranks| train(&config, base, &cut, ranks, never).unwrap());
        assert_eq!(contents(&cut), before);
    }
}

#[test]
fn ranks_that_cannot_work_together_are_refused() {
    let home = TempDir::new().unwrap();
    let folder = home.path().join("run");
    let never = (0, u64::MAX);
    let refused = |config: &(dyn Fn(usize) -> Config + Sync), words: &str| {
        let errors = on_ranks(3, |ranks| train(&config(ranks.index()), None, &folder, ranks, never).unwrap_err());
        assert!(errors.iter().all(|error| error.exit_code() == 2), "{errors:?}");
        assert!(errors[0].to_string().contains(words), "{}", errors[0]);
        assert!(!folder.exists());
    };
    refused(&|_| small("scd", &["train.shares=2"]), "train.shares: expected a share for each of 3 ranks, found 2");
    let rate = |rank: usize| small("scd", &["train.shares=3", &format!("train.rate=0.00{}", 1 + rank / 2)]);
    refused(&rate, "rank 2: expected the configuration of rank 0, `rate = 0.001`, found `rate = 0.002`");
    let seed = |rank: usize| {
        let mut config = small("scd", &["train.shares=3"]);
        config.data.seed += u64::from(rank == 1);
        config
    };
    refused(&seed, "rank 1: expected the configuration of rank 0, `seed = ");
    // A rank that cannot even begin, while the others wait for it.
    let bad = |rank: usize| {
        let mut config = small("scd", &["train.shares=3"]);
        config.train.shares = Some(if rank == 2 { 99 } else { 3 });
        config
    };
    refused(&bad, "rank 2: train.shares: expected 1 to 16");
}
