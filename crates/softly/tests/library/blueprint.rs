//! What a blueprint finds out from the data.

use softly::job::Job;
use softly::{Blueprint, Config, Dataset, Layers, Trained, generate};

use crate::common::{configured, cpu, dataset, law, new_training, one, train};

/// The equation that metrics use for a model of `config` trained on `data`.
fn truth(config: &Config, data: &Dataset) -> Option<softly::ConstraintConfig> {
    Blueprint::new(config, data).unwrap().config.truth
}

#[test]
fn the_truth_is_the_equation_of_the_data_unless_it_is_given() {
    let settings = [
        "data.count=8",
        "data.valid=2",
        "data.generator.flow=3.0",
        "denoiser.backbone={kind='mlp', hidden=8}",
        "constraint.parameters.flow=15.0",
    ];
    let mut config = configured("darcy-demo", &settings);
    config.truth = None;
    let data = dataset(&config);
    let equation = data.equation.clone().unwrap();
    assert_ne!(Some(&equation), config.constraint.as_ref(), "the method is given another equation");
    assert_eq!(truth(&config, &data), Some(equation.clone()));

    // Data from a folder know it, too.
    let home = tempfile::tempdir().unwrap();
    let folder = home.path().join("data");
    generate(&config.data, &folder, &Job::silent(&cpu())).unwrap();
    let mut from_folder = config.clone();
    from_folder.data.path = Some(folder);
    from_folder.data.generator = None;
    assert_eq!(truth(&from_folder, &dataset(&from_folder)), Some(equation.clone()));

    // A snapshot does not need its data any more.
    let snapshot = home.path().join("snapshot.safetensors");
    new_training(&from_folder).unwrap().snapshot().write(&snapshot).unwrap();
    let trained = Trained::load(&snapshot, &cpu()).unwrap();
    assert_eq!(trained.blueprint.config.truth, Some(equation));

    // What is given counts.
    let given = law(&["p", "K"], one("p - K"), softly::Norm::L2);
    config.truth = Some(given.clone());
    assert_eq!(truth(&config, &data), Some(given));
}

#[test]
fn without_an_equation_of_the_data_the_truth_is_the_constraint() {
    let dent = "data.generator={kind='points', curve={shape='dent'}}";
    let config = configured("circle-demo", &["data.count=8", "data.valid=2", dent]);
    let data = dataset(&config);
    assert!(data.equation.is_none(), "a dented circle has no single formula");
    let blueprint = Blueprint::new(&config, &data).unwrap();
    assert_eq!(blueprint.config.truth, None);
    let [truth, given] = [blueprint.truth(), blueprint.constraint()].map(|c| c.unwrap().unwrap());
    let sample = [vec![0.3], vec![-0.8]];
    assert_eq!(truth.residual_values(&sample), given.residual_values(&sample));
}

#[test]
fn data_have_to_be_named() {
    let config = Layers::new().finish("test").unwrap();
    let error = Dataset::from_config(&config.data).unwrap_err();
    assert_eq!(error.exit_code(), 2);
    let said = error.to_string();
    assert!(said.starts_with("data: ") && said.contains("`path`") && said.contains("`generator`"), "{said}");
}

#[test]
fn a_field_without_scatter_is_not_normalised() {
    let settings = ["data.count=8", "data.valid=2", "denoiser.backbone={kind='mlp', hidden=8}"];
    let config = configured("darcy-demo", &settings);
    let mut data = dataset(&config);
    let nodes = data.grid.len();
    let mut values = train(&data);
    for sample in values.chunks_exact_mut(2 * nodes) {
        sample[nodes..].fill(0.7);
    }
    data.train = values.clone().into();
    let error = Blueprint::new(&config, &data).unwrap_err();
    assert_eq!(error.exit_code(), 2);
    let said = error.to_string();
    assert!(said.starts_with("train data, field `K`: expected values that vary, found 0.6999999"), "{said}");
    // Small units are no reason to refuse.
    for value in &mut values {
        *value = (*value + 0.1 * (*value * 37.0).sin()) * 1e-30;
    }
    values[nodes] = 0.0;
    data.train = values.into();
    Blueprint::new(&config, &data).unwrap();
}
