//! The dial between a base denoiser and its constraint, and the projection at its end.

use burn::tensor::Tensor;
use softly::random::{Purpose, Stream};
use softly::tensors::{field_batch, to_vec_f64};
use softly::{Blueprint, Compliance, Projection, Split};

use crate::common::{
    POINT, bits, circle, configured, cpu, dataset, denoised, field, new_training, normals, toward, try_configured,
};

#[test]
fn the_dial_goes_from_the_base_through_what_was_learned_onto_the_constraint() {
    let constraint = circle("1", &[]);
    let values = normals(1, 0, 12);
    let sigmas = [1e-5, 0.02, 0.5, 3.0, 80.0, 1e7];
    let x = || field(&values, POINT);
    let at = |compliance| denoised(&toward(&constraint, 0.5, compliance), x(), &sigmas);
    let learned = at(Compliance::default());
    assert_eq!(bits(at(Compliance::NONE)), bits(values.clone()), "0 is the base");
    assert_eq!(bits(at(Compliance::FULL)), bits(learned.clone()), "what is full is projected by the sampler");
    assert_ne!(learned, values);
    for c in [0.25, 1.0, 2.0] {
        let found = at(Compliance::Number(c));
        let gamma = toward(&constraint, 0.5, Compliance::Number(c)).gamma(x(), &sigmas);
        for (k, (sigma, gamma)) in sigmas.iter().zip(to_vec_f64(gamma)).enumerate() {
            // The step onto the circle, times γ c^w.
            let factor = f64::powf(c, 0.25 / (0.25 + sigma * sigma));
            assert!((gamma - 0.5 * factor).abs() < 1e-6, "{gamma} at {sigma}");
            let radius = values[2 * k].hypot(values[2 * k + 1]);
            let expected = radius + 0.5 * factor * (1.0 - radius);
            assert!((found[2 * k].hypot(found[2 * k + 1]) - expected).abs() < 1e-6, "{c} at {sigma}");
        }
    }
    assert_eq!(bits(at(Compliance::Number(1.0))), bits(learned));
}

const SMALL: [&str; 3] = ["data.count=8", "data.valid=4", "denoiser.backbone={kind='mlp', hidden=8}"];

#[test]
fn full_compliance_projects_onto_the_equation() {
    let scd =
        "denoiser.scd={directions=['newton'], solve_for='p', constant=[0.0], newton={floor={}}, compliance='full'}";
    let config = configured("darcy-demo", &[&SMALL[..], &[scd]].concat());
    let data = dataset(&config);
    let blueprint = Blueprint::new(&config, &data).unwrap();
    let model = blueprint.build(&cpu()).unwrap();
    let truth = blueprint.truth().unwrap().unwrap();
    let nodes = data.grid.len();
    let clean = data.batch(Split::Valid, &[0, 1, 2], &blueprint.data.units).unwrap();
    let mut stream = Stream::new(2, Purpose::Metric, 0);
    let noise = |i: usize| if (i / nodes).is_multiple_of(2) { 0.03 } else { 0.0 };
    let noisy = clean.iter().enumerate().map(|(i, &x)| f64::from(x) + noise(i) * stream.normal()).collect();
    let noisy = field_batch(noisy, model.shape, &cpu());
    let projected = model.softly().unwrap().project(noisy.clone());
    let exact = field_batch(clean.iter().map(|&v| f64::from(v)).collect(), model.shape, &cpu());
    let [of_data, before, after] = [&exact, &noisy, &projected].map(|x| truth.mean_abs(x));
    for ((of_data, before), after) in of_data.iter().zip(before).zip(after) {
        assert!(before > 1.0 && after < 2.0 * of_data + 2e-3 * before, "{before} to {after}, data have {of_data}");
    }
    // K stays as it is.
    let permeability = |x: Tensor<4>| to_vec_f64(x.narrow(1, 1, 1));
    assert_eq!(permeability(noisy.clone()), permeability(projected));
    let learned = configured("darcy-demo", &[&SMALL[..], &[&scd.replace("'full'", "1")]].concat());
    let model = Blueprint::new(&learned, &data).unwrap().build(&cpu()).unwrap();
    assert_eq!(to_vec_f64(model.softly().unwrap().project(noisy.clone())), to_vec_f64(noisy));
}

#[test]
fn a_dial_that_makes_no_sense_is_refused_by_name() {
    let refused = |scd: &str| {
        let error = try_configured("darcy-demo", &[scd]).unwrap_err();
        assert_eq!(error.exit_code(), 2);
        error.to_string()
    };
    for value in ["-0.5", "nan", "inf"] {
        let said = refused(&format!("denoiser.scd={{compliance={value}}}"));
        assert!(said.starts_with("denoiser.scd.compliance") && said.contains("≥ 0"), "{said}");
    }
    assert!(refused("denoiser.scd={compliance='half'}").contains("a number ≥ 0 or"));
    let said = refused("denoiser.scd={compliance='full', solve_for='p'}");
    assert!(said.contains("denoiser.scd.compliance") && said.contains("no direction `newton`"), "{said}");
    // Training learns what 1 means.
    let config = configured("darcy-demo", &[&SMALL[..], &["denoiser.scd={compliance=2}"]].concat());
    let error = new_training(&config).err().unwrap();
    assert_eq!(error.exit_code(), 2);
    assert!(error.to_string().starts_with("denoiser.scd.compliance: 2"), "{error}");
    // Runs that do not use it are described as before.
    let config = configured("darcy-demo", &["denoiser.scd={compliance=1.0}"]);
    assert!(!config.to_toml().contains("compliance"));
}
