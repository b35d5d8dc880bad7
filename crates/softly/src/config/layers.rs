//! Layers of configuration: presets, files and `--set a.b=c`, merged in that order and checked as a whole.

use std::path::Path;

use serde::Deserialize;
use softly_pde::grid::Grid;
use toml::{Table, Value};

use crate::config::presets::{ADAPTING, FIELDS, preset};
use crate::config::{Config, paths};
use crate::constraint::config::ParameterConfig;
use crate::data::config::DataConfig;
use crate::error::{Error, Result, nearest};
use crate::files::read_text;

/// With this environment variable every configuration is cut down to seconds of work: the commands of the documentation are
/// tried with it.
pub const REDUCED: &str = "SOFTLY_REDUCED";

/// The value of a parameter of the constraint that is still to be filled in.
pub(crate) const UNKNOWN: &str = "?";

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

    /// Adds a file. Relative paths in it are relative to its folder.
    pub fn file(mut self, path: &Path) -> Result<Self> {
        let text = read_text(path)?;
        let mut table = parse(&text, &path.display().to_string())?;
        paths::from_file(&mut table, path.parent().unwrap_or(Path::new("")));
        merge(&mut self.table, table);
        Ok(self)
    }

    /// Adds a TOML text; `location` names it in errors. Relative paths in it are relative to the working folder.
    pub fn text(mut self, text: &str, location: &str) -> Result<Self> {
        merge(&mut self.table, parse(text, location)?);
        Ok(self)
    }

    /// The same layers over the defaults for data of the kind that they ask for, with `settings` (`a.b=c`) that will follow:
    /// those of fields if the data live on a grid.
    pub fn over_defaults(self, settings: &[String]) -> Result<Self> {
        // Other settings may need the defaults, or the method, which come later.
        let of_data: Vec<String> = settings.iter().filter(|s| s.trim_start().starts_with("data.")).cloned().collect();
        let all = self.clone().with_settings(&of_data)?;
        let data = all.table.get("data").cloned().unwrap_or_else(|| Value::Table(Table::new()));
        let data = DataConfig::deserialize(data).map_err(|e| parse_error("data", &e))?;
        match data.grid()? {
            Some(grid) => self.over_field_defaults(&grid),
            None => Ok(self),
        }
    }

    /// The same layers over the defaults for fields on `grid`.
    pub fn over_field_defaults(self, grid: &Grid) -> Result<Self> {
        if grid.is_point() {
            return Ok(self);
        }
        let mut table = parse(preset(FIELDS)?, FIELDS)?;
        // A table that names its kind is whole: a resolved configuration stays what it is.
        lay(&mut table, self.table, true);
        Ok(Self { table })
    }

    /// Adds `a.b=c` settings.
    pub fn with_settings(self, settings: &[String]) -> Result<Self> {
        settings.iter().try_fold(self, |layers, setting| layers.set(setting))
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
            let known = if known.is_empty() { "none".into() } else { known };
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
        self.clone().merged(&location)?;
        Ok(self)
    }

    /// The same layers with 1 for those of the parameters `names` of the constraint that are still to be filled in: where a fit of
    /// them starts.
    #[must_use]
    pub fn starting(mut self, names: &[String]) -> Self {
        let law = self.table.get_mut("constraint").and_then(Value::as_table_mut);
        if let Some(Value::Table(parameters)) = law.and_then(|law| law.get_mut("parameters")) {
            for name in names {
                if parameters.get(name).and_then(Value::as_str) == Some(UNKNOWN) {
                    parameters.insert(name.clone(), Value::Float(1.0));
                }
            }
        }
        self
    }

    /// The merged configuration; `location` names it in errors. Nothing may be left to be filled in.
    pub fn finish(self, location: &str) -> Result<Config> {
        let config = self.merged(location)?;
        for (law, constraint) in [("constraint", &config.constraint), ("truth", &config.truth)] {
            let unknown = |parameter: &ParameterConfig| match parameter {
                ParameterConfig::Formula(text) => text.trim() == UNKNOWN,
                _ => false,
            };
            let mut parameters = constraint.iter().flat_map(|constraint| &constraint.parameters);
            if let Some((name, _)) = parameters.find(|(_, parameter)| unknown(parameter)) {
                let key = format!("{law}.parameters.{name}");
                let problem = format!(
                    "[{law}.parameters] {name} is still to be filled in: expected a number, found \"{UNKNOWN}\""
                );
                return Err(Error::input(location, problem).hint(format!(
                    "put its value there, or a first guess for a method that learns it, or give --set {key}=…"
                )));
            }
        }
        Ok(config)
    }

    /// The merged configuration; `location` names it in errors.
    fn merged(self, location: &str) -> Result<Config> {
        let mut config: Config =
            Config::deserialize(Value::Table(self.table.clone())).map_err(|e| parse_error(location, &e))?;
        refuse_lists(&self.table, &config, location)?;
        config.methods = Table::new();
        config.learn_numbers()?;
        config.check()?;
        Ok(if is_reduced() { config.reduced() } else { config })
    }
}

/// The table of a TOML text that is a configuration.
fn parse(text: &str, location: &str) -> Result<Table> {
    // Every setting has a default, so a layer alone must already make sense: errors point into its own text.
    let config = toml::from_str::<Config>(text).map_err(|e| parse_error(location, &e))?;
    let table = toml::from_str(text).map_err(|e| parse_error(location, &e))?;
    refuse_lists(&table, &config, location)?;
    Ok(table)
}

/// Refuses lists that were taken for tables: `train = [1000, 32]` would set the first two keys of `[train]`, `train = []` all of
/// them to their defaults.
fn refuse_lists(written: &Table, config: &Config, location: &str) -> Result<()> {
    let taken = Value::try_from(config).expect("a configuration is always valid TOML");
    match list_for_table(&Value::Table(written.clone()), Some(&taken)) {
        None => Ok(()),
        Some(path) => {
            let key = path.trim_start_matches('.');
            Err(Error::input(location, format!("{key}: expected a table, found a list"))
                .hint(format!("name its settings, as in {key}.SETTING = …")))
        }
    }
}

/// The path of the first list in `written` that is a table, or nothing at all, in what it was `taken` for.
fn list_for_table(written: &Value, taken: Option<&Value>) -> Option<String> {
    match (written, taken) {
        (Value::Array(_), Some(Value::Table(_))) => Some(String::new()),
        (Value::Array(list), None) if list.is_empty() => Some(String::new()),
        (Value::Table(written), Some(Value::Table(taken))) => {
            let inside = |(key, value)| Some(format!(".{key}{}", list_for_table(value, taken.get(key))?));
            written.iter().find_map(inside)
        }
        (Value::Array(written), Some(Value::Array(taken))) => {
            let inside = |(i, (written, taken))| Some(format!("[{i}]{}", list_for_table(written, Some(taken))?));
            written.iter().zip(taken).enumerate().find_map(inside)
        }
        _ => None,
    }
}

/// Lays `upper` over `lower`, table by table. A table with another `kind` or `shape`, and a parameter of a constraint, replaces
/// the old one whole: the settings of one kind mean nothing to another.
fn merge(lower: &mut Table, upper: Table) {
    lay(lower, upper, false);
}

/// The same; with `whole_kinds` a table that names its `kind` or `shape` replaces one of the same kind, too.
fn lay(lower: &mut Table, upper: Table, whole_kinds: bool) {
    for (key, value) in upper {
        match (lower.get_mut(&key), value) {
            (Some(Value::Table(old)), Value::Table(new)) => {
                let other = |tag: &str| new.get(tag).is_some_and(|v| whole_kinds || old.get(tag) != Some(v));
                // One of these keys says what a parameter of a constraint is, and the whole of it.
                let parameter = ["file", "normal", "learn"].into_iter().any(|key| new.contains_key(key));
                if parameter || ["kind", "shape"].into_iter().any(other) {
                    *old = new;
                } else {
                    lay(old, new, whole_kinds);
                }
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
    } else if message.starts_with("missing field `fields`") || message.starts_with("missing field `residual`") {
        Some(
            "[constraint] is an equation: fields = [\"u\"], residual = \"…\"; `softly init` writes a first one"
                .to_string(),
        )
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
    use std::path::PathBuf;

    use super::*;
    use crate::config::presets::PRESETS;

    #[test]
    fn every_preset_and_method_is_valid_and_survives_a_round_trip() {
        for (name, _) in PRESETS {
            let layers = with_law(name);
            let methods: Vec<String> = layers.table["methods"].as_table().unwrap().keys().cloned().collect();
            for method in methods {
                let config = layers.clone().method(&method).unwrap().finish(name).unwrap();
                let again = Layers::new().text(&config.to_toml(), "again").unwrap().finish("again").unwrap();
                assert_eq!(config, again, "{name} {method}");
            }
        }
    }

    #[test]
    fn a_resolved_configuration_stays_what_it_is_over_the_defaults_of_fields() {
        for (name, text) in PRESETS {
            let methods: Table = toml::from_str(text).unwrap();
            for method in methods["methods"].as_table().unwrap().keys() {
                let config = with_law(name).method(method).unwrap().finish(name).unwrap();
                let again = Layers::new().text(&config.to_toml(), "again").unwrap();
                let again = again.over_field_defaults(&Grid::unit(16, 16)).unwrap().finish("again").unwrap();
                assert_eq!(config, again, "{name} {method}");
            }
        }
    }

    #[test]
    fn lists_are_not_taken_for_tables() {
        let law = "constraint={fields=['x', 'y'], residual=[['x^2 + y^2 - 1']]}";
        for (setting, key) in [
            ("train=[]", "train"),
            ("train=[1000, 32]", "train"),
            ("sampler.churn=[]", "sampler.churn"),
            ("sampler.churn=[1.0]", "sampler.churn"),
            ("denoiser.scd=[]", "denoiser.scd"),
            ("train.adam=[[0.9, 0.99], 1e-8]", "train.adam"),
            ("train.ema=['constant', 0.5]", "train.ema"),
            (law, "constraint.residual[0]"),
        ] {
            let layers = Layers::new().preset("circle-demo").unwrap();
            let said = message(layers.set(setting).and_then(|layers| layers.finish("test")));
            assert!(said.contains(&format!("{key}: expected a table, found a list")), "{setting}: {said}");
        }
        let said =
            message(Layers::new().text("train = [1000, 32]\n", "my.toml").and_then(|layers| layers.finish("test")));
        assert!(said.contains("my.toml: train: expected a table, found a list"), "{said}");
    }

    /// A preset, with an equation if it has none.
    fn with_law(name: &str) -> Layers {
        let layers = Layers::new().preset(name).unwrap();
        if name != FIELDS {
            return layers;
        }
        layers.text(FIELD_LAW, "law").unwrap().over_field_defaults(&Grid::unit(16, 16)).unwrap()
    }

    const FIELD_LAW: &str = "[constraint]\nfields = ['p', 'K']\nresidual = 'K*laplacian(p) + dot(grad(K), grad(p)) + k'\n\
                             parameters = { k = 2.0 }\n";

    #[test]
    fn fields_have_defaults_of_their_own() {
        let generator =
            "data.generator={kind='darcy', size=16, length=0.2, modes=4, flow=10.0, discretisation='mirror'}";
        let layers = || Layers::new().text(FIELD_LAW, "law").unwrap();
        let finished = |layers: Layers, method: &str| layers.method(method).unwrap().finish("test").unwrap();
        let settings = [generator.to_string()];
        let fields = || layers().over_defaults(&settings).unwrap();
        let vanilla = finished(fields(), "vanilla");
        assert_eq!(vanilla.data.normalise, crate::data::config::Normalise::Std);
        assert!(matches!(vanilla.denoiser.backbone, crate::nn::backbone::BackboneConfig::Unet(_)));
        let adapt = finished(fields(), "adapt");
        assert!(adapt.denoiser.scd.unwrap().directions.contains(&crate::direction::DirectionKind::Kalman));
        assert_eq!(adapt.constraint.unwrap().parameters["k"], ParameterConfig::Number(2.0));
        let learn = finished(fields(), "adapt-learn");
        assert_eq!(learn.constraint.as_ref().unwrap().parameters["k"], ParameterConfig::Learn { learn: 2.0 });
        assert!(!learn.denoiser.scd.as_ref().unwrap().learn_parameters, "nothing is left to do");
        assert_eq!(learn.to_toml(), Layers::new().text(&learn.to_toml(), "l").unwrap().finish("l").unwrap().to_toml());
        // A file has the last word.
        let named = fields().set("methods.adapt.denoiser.scd.hidden=7").unwrap();
        assert_eq!(finished(named, "adapt").denoiser.scd.unwrap().hidden, 7);

        let said = message(
            fields()
                .set("constraint.parameters.k={normal=[1.0, 0.1]}")
                .unwrap()
                .method("adapt-learn")
                .unwrap()
                .finish("t"),
        );
        assert!(said.starts_with("denoiser.scd.learn_parameters: ") && said.contains("plain number"), "{said}");
        let said = message(Layers::new().over_defaults(&settings).unwrap().method("adapt").unwrap().finish("t"));
        assert!(said.contains("missing field `fields`") && said.contains("[constraint] is an equation"), "{said}");

        // Points keep the defaults of points, and so does a configuration without data.
        let points = ["data.generator={kind='points', curve={shape='circle'}}".to_string()];
        for settings in [&points[..], &[]] {
            let config =
                Layers::new().over_defaults(settings).unwrap().with_settings(settings).unwrap().finish("t").unwrap();
            assert_eq!(config.denoiser, Config::default().denoiser);
        }
        // A setting may change a part of what only the defaults have.
        let part = [generator.to_string(), "denoiser.backbone.channels=24".to_string()];
        let config = layers().over_defaults(&part).unwrap().with_settings(&part).unwrap().finish("t").unwrap();
        assert!(config.to_toml().contains("channels = 24"));
        // What is still to be filled in is refused, unless a fit starts there.
        let open = layers().set("constraint.parameters.k='?'").unwrap();
        assert!(message(open.clone().finish("t")).contains("still to be filled in"));
        let started = open.starting(&["k".to_string()]).finish("t").unwrap().constraint.unwrap();
        assert_eq!(started.parameters["k"], ParameterConfig::Number(1.0));
        let said = message(Layers::new().over_defaults(&["data.path=absent".to_string()]));
        assert!(said.contains("absent") && said.contains("dataset"), "{said}");
    }

    #[test]
    fn paths_in_a_file_are_relative_to_it() {
        let home = tempfile::tempdir().unwrap();
        let file = home.path().join("my.toml");
        std::fs::write(&file, "[data]\npath = 'data'\n[methods.m.data]\npath = 'other'\n").unwrap();
        let layers = Layers::new().file(&file).unwrap();
        let path = |layers: Layers| layers.finish("test").unwrap().data.path.unwrap();
        let same = |found: PathBuf, name: &str| {
            std::fs::create_dir(home.path().join(name)).unwrap();
            assert_eq!(found.canonicalize().unwrap(), home.path().join(name).canonicalize().unwrap());
        };
        same(path(layers.clone()), "data");
        same(path(layers.clone().method("m").unwrap()), "other");
        assert_eq!(path(layers.set("data.path=elsewhere").unwrap()), Path::new("elsewhere"));
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
            ("constraint={fields=['../u'], residual='1'}", "constraint.fields"),
            ("constraint={fields=['u'], residual='u', parameters={'a/b'=1.0}}", "constraint.parameters"),
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
