//! What a likelihood costs and how far it is off: the default integrator and Heun's fixed steps beside a hundred times smaller errors.
//!
//! `cargo run --release --example likelihood_cost -- RUN [SAMPLES]`
//!
//! Samples are held-out ones of the run's data, with one probe each as in evaluations. Errors are deviations, sample by sample, from
//! the adaptive integrator with a hundredth of its tolerance; the same noise and the same probes leave the integrator alone.

use std::time::Instant;

use softly::error::Result;
use softly::job::Job;
use softly::{HeldOut, Integrator, Likelihood, LikelihoodReport, Probes, Split, Trained, device};

fn main() -> Result<()> {
    let mut words = std::env::args().skip(1);
    let run = words.next().expect("usage: likelihood_cost RUN [SAMPLES]");
    let count: usize = words.next().map_or(32, |count| count.parse().expect("a number of samples"));
    let device = device::by_name("cpu")?;
    let trained = Trained::load(run.as_ref(), &device)?;
    let data = trained.own_data()?;
    let indices: Vec<usize> = (0..count).collect();
    let values = data.batch(Split::Valid, &indices, &trained.blueprint.data.units)?;
    let held_out = HeldOut { values: &values, shape: data.shape(), units: &trained.blueprint.data.units };
    let own =
        Likelihood { probes: Probes::Rademacher { count: 1 }, ..Likelihood::for_model(&trained.blueprint.config) };
    let Integrator::Adaptive { tolerance } = own.integrator else { panic!("this model has no adaptive likelihood") };
    let measure = |integrator: Integrator| -> Result<(LikelihoodReport, f64)> {
        let start = Instant::now();
        let report = Likelihood { integrator, ..own }.evaluate(&trained.model, held_out, 0, &Job::silent(&device))?;
        Ok((report, start.elapsed().as_secs_f64()))
    };
    let (exact, seconds) = measure(Integrator::Adaptive { tolerance: 0.01 * tolerance })?;
    println!("{count} samples, {:.4} bits/dim, reference in {seconds:.1} s", exact.bits_per_dim);
    println!("{:<22} {:>7} {:>9} {:>12} {:>12}", "integrator", "calls", "seconds", "mean error", "rms error");
    let heun = [12, 16, 24, 32, 64, 128].map(|steps| (format!("heun {steps}"), Integrator::Heun { steps, rho: 7.0 }));
    let adaptive = [1.0, 0.3].map(|factor| {
        let tolerance = factor * tolerance;
        (format!("adaptive {tolerance:.0e}"), Integrator::Adaptive { tolerance })
    });
    for (name, integrator) in adaptive.into_iter().chain(heun) {
        let (report, seconds) = measure(integrator)?;
        let pairs = report.samples.iter().zip(&exact.samples);
        let errors: Vec<f64> = pairs.map(|(a, b)| a.bits_per_dim - b.bits_per_dim).collect();
        let rms = (errors.iter().map(|e| e * e).sum::<f64>() / count as f64).sqrt();
        let mean = errors.iter().sum::<f64>() / count as f64;
        println!("{name:<22} {:>7.1} {seconds:>9.2} {mean:>+12.5} {rms:>12.5}", report.evaluations);
    }
    Ok(())
}
