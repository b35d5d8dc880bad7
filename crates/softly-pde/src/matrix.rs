//! Square matrices that act along one axis of a field.

use crate::grid::AxisId;

/// A square matrix `[n, n]`, stored by rows of non-zero entries.
#[derive(Debug, Clone, PartialEq)]
pub struct Matrix {
    /// For each row its `(column, value)` entries, ascending in column.
    pub rows: Vec<Vec<(usize, f64)>>,
}

impl Matrix {
    /// The matrix with the given rows times `scale`; entries of one column are added, zeros dropped.
    pub(crate) fn new(rows: impl Iterator<Item = Vec<(usize, f64)>>, scale: f64) -> Self {
        let scaled = |row| merged(row).into_iter().map(|(j, v)| (j, v * scale)).collect();
        Self { rows: rows.map(scaled).collect() }
    }

    /// Number of rows and columns n.
    pub fn size(&self) -> usize {
        self.rows.len()
    }

    /// The transposed matrix: the adjoint.
    #[must_use]
    pub fn transposed(&self) -> Self {
        let mut rows = vec![Vec::new(); self.size()];
        for (i, row) in self.rows.iter().enumerate() {
            for &(j, v) in row {
                rows[j].push((i, v));
            }
        }
        Self { rows }
    }

    /// Every entry, row-major `[n, n]`.
    pub fn dense(&self) -> Vec<f64> {
        let n = self.size();
        let mut entries = vec![0.0; n * n];
        for (i, row) in self.rows.iter().enumerate() {
            for &(j, v) in row {
                entries[i * n + j] = v;
            }
        }
        entries
    }

    /// Applies the matrix along `axis` of a field `[rows, cols]`.
    pub fn apply(&self, axis: AxisId, field: &[f64], rows: usize, cols: usize) -> Vec<f64> {
        let mut out = vec![0.0; rows * cols];
        match axis {
            AxisId::Rows => {
                for (row, out_row) in self.rows.iter().zip(out.chunks_exact_mut(cols)) {
                    for &(j, v) in row {
                        for (o, f) in out_row.iter_mut().zip(&field[j * cols..(j + 1) * cols]) {
                            *o += v * f;
                        }
                    }
                }
            }
            AxisId::Cols => {
                for (line, out_line) in field.chunks_exact(cols).zip(out.chunks_exact_mut(cols)) {
                    for (row, o) in self.rows.iter().zip(out_line) {
                        *o = row.iter().map(|&(j, v)| v * line[j]).sum();
                    }
                }
            }
        }
        out
    }
}

/// Sums entries of the same column, sorts them and drops zeros.
fn merged(mut row: Vec<(usize, f64)>) -> Vec<(usize, f64)> {
    row.sort_by_key(|&(j, _)| j);
    let mut out: Vec<(usize, f64)> = Vec::with_capacity(row.len());
    for (j, v) in row {
        match out.last_mut() {
            Some(last) if last.0 == j => last.1 += v,
            _ => out.push((j, v)),
        }
    }
    out.retain(|&(_, v)| v != 0.0);
    out
}
