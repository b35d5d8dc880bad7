//! Train a softly constrained model of points on a circle and draw three samples: the README's example.
//!
//! `cargo run --release --example train_and_sample`

use softly::{Dataset, Layers, Training, Unobserved, device};

fn main() -> softly::error::Result<()> {
    let config = Layers::new().preset("circle-demo")?.method("scd")?.finish("circle-demo")?;
    let device = device::by_name("cpu")?;
    let mut training = Training::new(&config, Dataset::from_config(&config.data)?, &device)?;
    for _ in 0..1000 {
        training.step()?;
    }
    let model = training.snapshot().model(&device, "memory".as_ref())?;
    let samples = config.sampler.sample(model.target(), 0, &[0, 1, 2], &device, &mut Unobserved);
    println!("{samples}"); // [N, C, H, W]
    Ok(())
}
