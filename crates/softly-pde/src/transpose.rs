//! Transposition, which lets transforms along either axis work on contiguous lines.

/// Writes the transpose of `from` `[rows, cols]` into `to`, whose lines are `stride >= rows` long: `[cols, stride]`.
pub(crate) fn transpose<T: Copy>(from: &[T], cols: usize, to: &mut [T], stride: usize) {
    /// Tiles of this side stay in the fastest cache.
    const TILE: usize = 16;
    let rows = from.len() / cols;
    for top in (0..rows).step_by(TILE) {
        for left in (0..cols).step_by(TILE) {
            for i in top..rows.min(top + TILE) {
                for j in left..cols.min(left + TILE) {
                    to[j * stride + i] = from[i * cols + j];
                }
            }
        }
    }
}
