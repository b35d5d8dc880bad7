//! The presets compiled into the program.

use crate::error::{Error, Result, nearest};

/// The presets compiled into the program, by name.
pub const PRESETS: &[(&str, &str)] = &[
    ("circle-demo", include_str!("../../../../presets/circle-demo.toml")),
    ("circle-cpu", include_str!("../../../../presets/circle-cpu.toml")),
    ("circle-paper", include_str!("../../../../presets/circle-paper.toml")),
    ("darcy-demo", include_str!("../../../../presets/darcy-demo.toml")),
    ("darcy-cpu", include_str!("../../../../presets/darcy-cpu.toml")),
    ("darcy-long", include_str!("../../../../presets/darcy-long.toml")),
    ("darcy-paper", include_str!("../../../../presets/darcy-paper.toml")),
    ("helmholtz-demo", include_str!("../../../../presets/helmholtz-demo.toml")),
    ("helmholtz-cpu", include_str!("../../../../presets/helmholtz-cpu.toml")),
    ("helmholtz-long", include_str!("../../../../presets/helmholtz-long.toml")),
    ("helmholtz-paper", include_str!("../../../../presets/helmholtz-paper.toml")),
    ("poisson-demo", include_str!("../../../../presets/poisson-demo.toml")),
    ("darcy-threshold-demo", include_str!("../../../../presets/darcy-threshold-demo.toml")),
    ("burgers-demo", include_str!("../../../../presets/burgers-demo.toml")),
    (FIELDS, include_str!("../../../../presets/fields.toml")),
];

/// The preset of fields on a grid that no other preset is named for.
pub const FIELDS: &str = "fields";

/// How a soft constraint is trained on a frozen denoiser unless a configuration says otherwise.
pub(super) const ADAPTING: &str = "
[train]
iterations = 600
batch = 64
rate = 2e-3
schedule = { kind = 'cosine', warmup = 20 }
ema = { kind = 'constant', decay = 0.99 }
log_every = 20
checkpoint_every = 200
";

/// The text of a preset.
pub fn preset(name: &str) -> Result<&'static str> {
    PRESETS.iter().find(|(n, _)| *n == name).map(|(_, text)| *text).ok_or_else(|| {
        let hint = nearest(name, PRESETS.iter().map(|(n, _)| *n))
            .map_or_else(|| "`softly presets` lists them".to_string(), |n| format!("did you mean `{n}`?"));
        Error::input("--preset", format!("there is no preset `{name}`")).hint(hint)
    })
}
