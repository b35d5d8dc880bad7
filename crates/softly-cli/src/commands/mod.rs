//! The commands, one file per verb: parse, call the library, print.

mod bench;
mod data;
mod denoise;
mod distance;
mod eval;
mod export;
mod info;
mod init;
mod posterior;
mod presets;
mod report;
mod reproduce;
mod residual;
mod sample;
mod solve;
mod train;

use clap::CommandFactory;
use softly::error::Result;
use softly::failure;
use softly::{REDUCED, is_reduced};

use crate::arguments::{Arguments, Command, Data, Distance};
use crate::progress::say;
use crate::ranks;

/// Runs the program; returns its exit code.
pub fn run(arguments: Arguments) -> u8 {
    let threads =
        arguments.threads.map_or_else(|| std::thread::available_parallelism().map_or(1, Into::into), usize::from);
    // Fails only if a pool exists already, and this is the first use of one.
    let _ = rayon::ThreadPoolBuilder::new().num_threads(threads).build_global();
    if is_reduced() {
        say(&format!("{REDUCED} is set: trainings, data, samplers and evaluations are cut down, results mean nothing"));
    }
    // Inside the pool: handing every small kernel over to it from outside would cost more than the kernel.
    rayon::scope(|_| {
        let can_share = can_share(&arguments.command);
        ranks::as_rank(can_share, || failure::guarded(|| dispatch(arguments.command, arguments.json)))
    })
}

/// Whether several ranks can do the work of a command together.
fn can_share(command: &Command) -> bool {
    match command {
        Command::Train { .. } | Command::Adapt { .. } | Command::Bench(_) => true,
        Command::Sample { observing, restart, .. } => observing.observe.is_empty() && restart.is_none(),
        Command::Eval(arguments) => eval::can_share(arguments),
        Command::Data { kind } => matches!(kind, Data::Generate { .. }),
        _ => false,
    }
}

fn dispatch(command: Command, json: bool) -> Result<()> {
    match command {
        Command::Reproduce(arguments) => reproduce::run(&arguments, json),
        Command::Presets { name, method, schema } => presets::run(name.as_deref(), method.as_deref(), schema, json),
        Command::Data { kind } => data::run(kind, json),
        Command::Init(arguments) => init::run(&arguments, json),
        Command::Train { source, out, compute } => train::train(&source, &out, &compute.device, json),
        Command::Adapt { base, source, out, compute } => train::adapt(&base, &source, &out, &compute.device, json),
        Command::Sample { sampling, observing, seeds, out, .. } if !observing.observe.is_empty() => {
            posterior::run(&sampling, &observing, seeds.as_deref(), &out, json)
        }
        Command::Sample { sampling, seeds, restart, out, .. } => {
            sample::run(&sampling, seeds.as_deref(), restart, &out, json)
        }
        Command::Eval(arguments) => eval::run(&arguments, json),
        Command::Denoise { model, input, sigma, out, compute } => {
            denoise::run(&model, &input, &sigma, &out, &compute.device, json)
        }
        Command::Residual { config, fields, axes, out } => residual::run(&config, &fields, &axes, out.as_deref()),
        Command::Report { folders, out, compute } => report::run(&folders, out.as_deref(), &compute.device, json),
        Command::Export(arguments) => export::run(&arguments, json),
        Command::Solve { kind } => solve::run(kind, json),
        Command::Distance { kind: Distance::W1 { a, b } } => distance::w1_of(&a, &b),
        Command::Bench(arguments) => bench::run(&arguments, json),
        Command::Info => info::run(json),
        Command::Completions { shell } => {
            clap_complete::generate(shell, &mut Arguments::command(), "softly", &mut std::io::stdout());
            Ok(())
        }
    }
}
