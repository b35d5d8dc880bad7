//! VTK's image data (`.vti`), which ParaView reads: the fields of one sample on their grid.
//!
//! VTK has three directions. The axis called `x` lies along the first and the other one along the second; without an
//! `x` the second axis of the grid does. Numbers of cells are cell data, all others point data; where only one axis has
//! cells their centres are points.

use std::io::Write;
use std::path::Path;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use softly_pde::grid::{Axis, Grid, Placement};

use crate::error::{Error, Result};
use crate::files::write_atomically;

/// Writes the fields of one sample, each with its name and its values `[H, W]`.
pub fn write_vti(path: &Path, grid: &Grid, fields: &[(&str, &[f64])]) -> Result<()> {
    let [rows, cols] = &grid.axes[..] else {
        return Err(Error::input(path.display(), "expected fields on a grid, found single points")
            .hint("points need no viewer of fields: `softly sample` writes them as points.npy"));
    };
    let columns_first = rows.name == "x";
    let [first, second] = if columns_first { [rows, cols] } else { [cols, rows] };
    let cells = first.placement == Placement::Cells && second.placement == Placement::Cells;
    let last = |axis: &Axis| if cells { axis.nodes } else { axis.nodes - 1 };
    let origin = |axis: &Axis| if cells { axis.first } else { axis.coordinate(0) };
    let extent = format!("0 {} 0 {} 0 0", last(first), last(second));
    let (kind, comment) = if cells { ("CellData", "cells") } else { ("PointData", "points") };
    write_atomically(path, |out| {
        writeln!(out, "<?xml version=\"1.0\"?>")?;
        writeln!(out, "<!-- {comment} along {} and {} -->", escaped(&first.name), escaped(&second.name))?;
        writeln!(
            out,
            "<VTKFile type=\"ImageData\" version=\"1.0\" byte_order=\"LittleEndian\" header_type=\"UInt64\">"
        )?;
        writeln!(
            out,
            "<ImageData WholeExtent=\"{extent}\" Origin=\"{:?} {:?} 0\" Spacing=\"{:?} {:?} 1\">",
            origin(first),
            origin(second),
            first.spacing(),
            second.spacing()
        )?;
        writeln!(out, "<Piece Extent=\"{extent}\">\n<{kind}>")?;
        for (name, values) in fields {
            let ordered = if columns_first { transposed(values, grid.cols()) } else { values.to_vec() };
            writeln!(
                out,
                "<DataArray type=\"Float32\" Name=\"{}\" format=\"binary\">\n{}\n</DataArray>",
                escaped(name),
                encoded(&ordered)
            )?;
        }
        writeln!(out, "</{kind}>\n</Piece>\n</ImageData>\n</VTKFile>")
    })
}

/// `[H, W]` as `[W, H]`.
fn transposed(values: &[f64], cols: usize) -> Vec<f64> {
    (0..cols).flat_map(|c| values.iter().skip(c).step_by(cols).copied()).collect()
}

/// The number of bytes and the values in single precision, both in one text of base 64.
fn encoded(values: &[f64]) -> String {
    let mut bytes = ((4 * values.len()) as u64).to_le_bytes().to_vec();
    bytes.extend(values.iter().flat_map(|&v| (v as f32).to_le_bytes()));
    STANDARD.encode(bytes)
}

fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;").replace("--", "- -")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::files::read_text;

    /// The file of the values 0, 1, 2, … on `axes`.
    fn text(axes: [Axis; 2]) -> String {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("u.vti");
        let grid = Grid { axes: axes.to_vec() };
        let values: Vec<f64> = (0..grid.len()).map(|k| k as f64).collect();
        write_vti(&file, &grid, &[("a<b", &values)]).unwrap();
        read_text(&file).unwrap()
    }

    #[test]
    fn x_is_the_first_direction_whichever_axis_it_is() {
        let space_time = text([Axis::new("t", 2, 0.0, 4.0), Axis::new("x", 3, -1.0, 1.0)]);
        for part in ["WholeExtent=\"0 2 0 1 0 0\"", "Origin=\"-1.0 0.0 0\"", "Spacing=\"1.0 4.0 1\"", "<PointData>"] {
            assert!(space_time.contains(part), "{part}: {space_time}");
        }
        assert!(
            space_time.contains("Name=\"a&lt;b\"") && space_time.contains(&encoded(&[0.0, 1.0, 2.0, 3.0, 4.0, 5.0]))
        );
        let plane = text([Axis::new("x", 2, 0.0, 4.0), Axis::new("y", 3, -1.0, 1.0)]);
        assert!(plane.contains("WholeExtent=\"0 1 0 2 0 0\"") && plane.contains("Origin=\"0.0 -1.0 0\""), "{plane}");
        assert!(plane.contains(&encoded(&[0.0, 3.0, 1.0, 4.0, 2.0, 5.0])), "{plane}");
    }

    #[test]
    fn cells_are_cell_data_and_their_centres_points_beside_nodes() {
        let [x, y] = [Axis::new("x", 4, 0.0, 1.0).cells(), Axis::new("y", 2, 0.0, 1.0).cells()];
        let cells = text([x.clone(), y]);
        for part in ["<CellData>", "WholeExtent=\"0 4 0 2 0 0\"", "Origin=\"0.0 0.0 0\"", "Spacing=\"0.25 0.5 1\""] {
            assert!(cells.contains(part), "{part}: {cells}");
        }
        let mixed = text([x, Axis::new("y", 3, 0.0, 1.0)]);
        for part in ["<PointData>", "WholeExtent=\"0 3 0 2 0 0\"", "Origin=\"0.125 0.0 0\"", "Spacing=\"0.25 0.5 1\""] {
            assert!(mixed.contains(part), "{part}: {mixed}");
        }
    }

    #[test]
    fn the_header_counts_bytes() {
        // Four bytes of the number 1 after their number in eight.
        assert_eq!(encoded(&[1.0]), "BAAAAAAAAAAAAIA/");
    }
}
