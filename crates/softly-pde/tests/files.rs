//! Axes, stencils and regions as configuration files and datasets write them.

use serde::{Deserialize, Serialize};
use softly_pde::derivative::Scheme;
use softly_pde::grid::{Axis, Grid};
use softly_pde::region::{End, Region};
use softly_pde::stencil::Stencil;

#[derive(Debug, PartialEq, Serialize, Deserialize)]
struct File {
    #[serde(default)]
    stencil: Stencil,
    #[serde(default)]
    region: Region,
    axes: Grid,
}

fn read(text: &str) -> Result<File, String> {
    toml::from_str(text).map_err(|error| error.to_string())
}

#[test]
fn files_are_read_with_defaults_and_written_back() {
    let file = read(
        r#"
        stencil = { t = "one-sided-4", x = "periodic-4" }
        region = "t=first"
        [[axes]]
        name = "t"
        nodes = 5
        last = 2.5
        [[axes]]
        name = "x"
        nodes = 8
        first = -1.0
        periodic = true
        placement = "cells"
        "#,
    )
    .unwrap();
    let x = Axis::new("x", 8, -1.0, 1.0).periodic().cells();
    assert_eq!(file.axes, Grid { axes: vec![Axis::new("t", 5, 0.0, 2.5), x] });
    assert_eq!(file.region, Region::End { axis: "t".into(), end: End::First });
    let schemes = [("t".into(), Scheme::OneSided4), ("x".into(), Scheme::Periodic4)].into();
    assert_eq!(file.stencil, Stencil::PerAxis(schemes));
    assert_eq!(read(&toml::to_string(&file).unwrap()), Ok(file));

    let point = read("axes = []").unwrap();
    assert_eq!((point.axes, point.region, point.stencil), (Grid::point(), Region::All, Stencil::default()));
    for (name, scheme) in Scheme::ALL {
        let file = read(&format!("axes = []\nstencil = \"{name}\"")).unwrap();
        assert_eq!((file.stencil, scheme.to_string().as_str()), (Stencil::All(scheme), name));
    }
}

#[test]
fn what_is_wrong_is_said_when_reading() {
    let axes = |axis: &str| format!("axes = [{{ name = \"x\", nodes = 4, {axis} }}, {{ name = \"y\", nodes = 4 }}]");
    for (text, expected) in [
        (axes("first = 2.0"), "axis `x`: expected finite ends with first < last, found first 2 and last 1"),
        (axes("last = inf"), "axis `x`: expected finite ends"),
        (axes("perodic = true"), "unknown field `perodic`"),
        (axes("placement = \"faces\""), "unknown variant `faces`, expected `nodes` or `cells`"),
        ("axes = [{ name = \"x\", nodes = 4 }]".into(), "a grid has two axes, or none for a lone point (found 1)"),
        ("axes = []\nregion = \"left\"".into(), "instead of `left` write the second axis' first end: y=first"),
        ("axes = []\nstencil = \"mirrored\"".into(), "expected a stencil (one-sided-2, one-sided-4, mirror"),
        ("axes = []\nstencil = { x = 3 }".into(), "or one per axis"),
    ] {
        let error = read(&text).unwrap_err();
        assert!(error.contains(expected), "{text}: {error}");
    }
}
