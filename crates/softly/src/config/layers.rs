//! Layers of configuration: presets, files and `--set a.b=c`, merged in that order and checked as a whole.

use std::path::Path;

use serde::Deserialize;
use toml::{Table, Value};

use crate::config::Config;
use crate::config::presets::{ADAPTING, preset};
use crate::error::{Error, Result, nearest};
use crate::files::read_text;

/// With this environment variable every configuration is cut down to seconds of work: the commands of the documentation are
/// tried with it.
pub const REDUCED: &str = "SOFTLY_REDUCED";

/// Whether [`REDUCED`] is set.
pub fn is_reduced() -> bool {
    std::env::var_os(REDUCED).is_some()
}

/// Layers of configuration, lowest first.
#[derive(Debug, Clone, Default)]
pub struct Layers {
    table: Table,
}

impl Layers {
    /// No layer yet: every setting has its default.
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds a preset.
    pub fn preset(self, name: &str) -> Result<Self> {
        self.text(preset(name)?, &format!("preset {name}"))
    }

    /// Adds a file. Relative paths in it stay relative to the working folder.
    pub fn file(self, path: &Path) -> Result<Self> {
        let text = read_text(path)?;
        self.text(&text, &path.display().to_string())
    }

    /// Adds a TOML text; `location` names it in errors.
    pub fn text(mut self, text: &str, location: &str) -> Result<Self> {
        // Every setting has a default, so a layer alone must already make sense: errors point into its own text.
        toml::from_str::<Config>(text).map_err(|e| parse_error(location, &e))?;
        let table: Table = toml::from_str(text).map_err(|e| parse_error(location, &e))?;
        merge(&mut self.table, table);
        Ok(self)
    }

    /// Adds the training settings that suit the few weights of a soft constraint on a frozen denoiser.
    pub fn adapting(self) -> Result<Self> {
        self.text(ADAPTING, "adapting")
    }

    /// Lays the named method's table over what is there.
    pub fn method(mut self, name: &str) -> Result<Self> {
        let methods = self.table.get("methods").and_then(Value::as_table).cloned().unwrap_or_default();
        let Some(Value::Table(chosen)) = methods.get(name) else {
            let known = methods.keys().map(String::as_str).collect::<Vec<_>>().join(", ");
            let hint = nearest(name, methods.keys().map(String::as_str)).map(|n| format!("did you mean `{n}`?"));
            return Err(Error::input("--method", format!("there is no method `{name}`; there are: {known}"))
                .hint(hint.unwrap_or_default()));
        };
        merge(&mut self.table, chosen.clone());
        Ok(self)
    }

    /// Adds one `a.b.c=value` setting; the value is TOML, or a bare word.
    pub fn set(mut self, assignment: &str) -> Result<Self> {
        let location = format!("--set {assignment}");
        let Some((key, text)) = assignment.split_once('=') else {
            return Err(Error::input(location, "expected key=value").hint("for example --set train.iterations=1000"));
        };
        let parse = |text: &str| toml::from_str::<Table>(&format!("value = {text}")).ok()?.remove("value");
        let value = parse(text).unwrap_or_else(|| Value::String(text.trim().to_string()));
        let mut layer = value;
        for part in key.trim().split('.').rev() {
            layer = Value::Table(Table::from_iter([(part.to_string(), layer)]));
        }
        if let Value::Table(layer) = layer {
            merge(&mut self.table, layer);
        }
        // Check now, so that the error names this setting.
        self.clone().finish(&location)?;
        Ok(self)
    }

    /// The merged configuration; `location` names it in errors.
    pub fn finish(self, location: &str) -> Result<Config> {
        let mut config: Config =
            Config::deserialize(Value::Table(self.table)).map_err(|e| parse_error(location, &e))?;
        config.methods = Table::new();
        config.check()?;
        Ok(if is_reduced() { config.reduced() } else { config })
    }
}

/// Lays `upper` over `lower`, table by table. A table with another `kind` or `shape`, and a parameter of a constraint, replaces
/// the old one whole: the settings of one kind mean nothing to another.
fn merge(lower: &mut Table, upper: Table) {
    for (key, value) in upper {
        match (lower.get_mut(&key), value) {
            (Some(Value::Table(old)), Value::Table(new)) => {
                let other = |tag: &str| new.get(tag).is_some_and(|v| old.get(tag) != Some(v));
                // One of these keys says what a parameter of a constraint is, and the whole of it.
                let parameter = ["file", "normal", "learn"].into_iter().any(|key| new.contains_key(key));
                if parameter || ["kind", "shape"].into_iter().any(other) { *old = new } else { merge(old, new) }
            }
            (_, value) => {
                lower.insert(key, value);
            }
        }
    }
}

/// TOML's own message (line, caret) with the nearest known key as a hint.
fn parse_error(location: &str, error: &toml::de::Error) -> Error {
    let message = error.message();
    let mut quoted = message.split('`').skip(1).step_by(2);
    let hint = if message.starts_with("missing field `kind`") {
        Some("say which kind it is, for example guidance = { kind = \"dps\", scale = 0.1 }".to_string())
    } else if message.starts_with("unknown") {
        let wrong = quoted.next().unwrap_or_default();
        nearest(wrong, quoted).map(|n| format!("did you mean `{n}`?"))
    } else {
        None
    };
    Error::input(location, error.to_string().trim_end()).hint(hint.unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::presets::PRESETS;
    use crate::constraint::config::ParameterConfig;

    #[test]
    fn every_preset_and_method_is_valid_and_survives_a_round_trip() {
        for (name, _) in PRESETS {
            let layers = Layers::new().preset(name).unwrap();
            let methods: Vec<String> = layers.table["methods"].as_table().unwrap().keys().cloned().collect();
            for method in methods {
                let config = layers.clone().method(&method).unwrap().finish(name).unwrap();
                let again = Layers::new().text(&config.to_toml(), "again").unwrap().finish("again").unwrap();
                assert_eq!(config, again, "{name} {method}");
            }
        }
    }

    fn message(result: Result<impl std::fmt::Debug>) -> String {
        let error = result.unwrap_err();
        assert_eq!(error.exit_code(), 2);
        error.to_string()
    }

    #[test]
    fn typos_name_the_line_and_the_nearest_key() {
        let text = "[train]\nitertions = 5\n";
        let said = message(Layers::new().text(text, "my.toml"));
        assert!(
            said.contains("my.toml") && said.contains("line 2") && said.contains("did you mean `iterations`?"),
            "{said}"
        );
        let said = message(Layers::new().set("train.batches=3"));
        assert!(said.contains("--set train.batches=3") && said.contains("did you mean `batch`?"), "{said}");
        let said = message(Layers::new().set("train.batch=many"));
        assert!(said.contains("--set train.batch=many") && said.contains("invalid type"), "{said}");
    }

    #[test]
    fn impossible_settings_are_refused_by_name() {
        for (setting, place) in [
            ("sampler.steps=0", "sampler.steps"),
            ("sampler.sigma_min=-0.1", "sampler.sigma_min"),
            ("sampler.sigma_min=100", "sampler.sigma_min"),
            ("data.count=0", "data.count"),
            ("train.rate=-1", "train.rate"),
            ("train.adam={betas=[0.9, 1.0], eps=1e-8}", "train.adam.betas"),
            ("train.adam={betas=[0.9, 0.99], eps=0.0}", "train.adam.eps"),
            ("train.ema={kind='constant', decay=1.5}", "train.ema.decay"),
            ("train.ema={kind='power', sigma_rel=0.5}", "train.ema.sigma_rel"),
            ("sampler.steps=1000000000", "sampler.steps"),
            ("sampler.churn.amount=-1", "sampler.churn.amount"),
            ("sampler.churn.noise=nan", "sampler.churn.noise"),
            ("objective.noise.std=0", "objective.noise.std"),
            ("denoiser.scd.hidden=3", "denoiser.scd"),
        ] {
            let set = if setting.contains("noise.std") {
                Layers::new().set("objective.noise={kind='log-normal', mean=-1.2, std=0.0}")
            } else {
                Layers::new().set(setting)
            };
            let said = message(set);
            assert!(said.starts_with(place), "{setting}: {said}");
        }
    }

    #[test]
    fn parameters_are_replaced_by_their_type() {
        let constraint = "[constraint]\nfields=['u']\nresidual='u*k'\n[constraint.parameters]\nk={ normal=[1.0, 0.1] }";
        let set = |setting: &str| {
            let layers = Layers::new().text(constraint, "c").unwrap().set(setting).unwrap();
            layers.finish("c").unwrap().constraint.unwrap().parameters["k"].clone()
        };
        let field = ParameterConfig::LearnField { learn: 2.0, length: 0.2, size: 1.0 };
        assert_eq!(set("constraint.parameters.k={learn=2.0, length=0.2, size=1.0}"), field);
        assert_eq!(set("constraint.parameters.k={learn=2.0}"), ParameterConfig::Learn { learn: 2.0 });
        assert_eq!(set("constraint.parameters.k=3.0"), ParameterConfig::Number(3.0));
    }
}
