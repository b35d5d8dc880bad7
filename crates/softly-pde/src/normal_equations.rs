//! Least squares with a handful of columns, from sums of products.

/// min ‖e − Σ w_i v_i‖² by its normal equations Σ_j ⟨v_i, v_j⟩ w_j = ⟨v_i, e⟩.
#[derive(Debug, Clone, PartialEq)]
pub struct NormalEquations {
    /// ⟨v_i, v_j⟩, `[n, n]`.
    pub gram: Vec<f64>,
    /// ⟨v_i, e⟩, `[n]`.
    pub right: Vec<f64>,
}

impl NormalEquations {
    /// No products yet, for `n` columns.
    pub fn new(n: usize) -> Self {
        Self { gram: vec![0.0; n * n], right: vec![0.0; n] }
    }

    /// Adds the products of `columns` and `target`, times `weight`.
    pub fn add_products(&mut self, columns: &[&[f64]], target: &[f64], weight: f64) {
        let n = columns.len();
        for (i, column) in columns.iter().enumerate() {
            self.right[i] += weight * dot(column, target);
            for (j, other) in columns.iter().enumerate().skip(i) {
                let product = weight * dot(column, other);
                self.gram[i * n + j] += product;
                if i != j {
                    self.gram[j * n + i] += product;
                }
            }
        }
    }

    /// Adds the products of another set of rows.
    pub fn add(&mut self, other: &Self) {
        let both = self.gram.iter_mut().zip(&other.gram).chain(self.right.iter_mut().zip(&other.right));
        both.for_each(|(sum, term)| *sum += term);
    }

    /// The equations of column `i` alone.
    #[must_use]
    pub fn only(&self, i: usize) -> Self {
        self.columns(&[i])
    }

    /// The equations with column `i` after all others.
    #[must_use]
    pub fn with_last(&self, i: usize) -> Self {
        let others = (0..self.right.len()).filter(|&j| j != i);
        self.columns(&others.chain([i]).collect::<Vec<_>>())
    }

    fn columns(&self, order: &[usize]) -> Self {
        let n = self.right.len();
        let gram = order.iter().flat_map(|&i| order.iter().map(move |&j| self.gram[i * n + j])).collect();
        Self { gram, right: order.iter().map(|&i| self.right[i]).collect() }
    }

    /// The weights; `None` for a column that is zero or a combination of those before it, which count without it.
    pub fn solve(&self) -> Vec<Option<f64>> {
        let n = self.right.len();
        let (mut gram, mut right) = (self.gram.clone(), self.right.clone());
        let mut independent = vec![false; n];
        // Elimination without exchanges: the matrix is symmetric and has no negative eigenvalues.
        for k in 0..n {
            let pivot = gram[k * n + k];
            // What is left of a dependent column is rounding.
            independent[k] = pivot.is_finite() && pivot > 1e-12 * self.gram[k * n + k];
            if !independent[k] {
                continue;
            }
            for i in k + 1..n {
                let factor = gram[i * n + k] / pivot;
                for j in k..n {
                    gram[i * n + j] -= factor * gram[k * n + j];
                }
                right[i] -= factor * right[k];
            }
        }
        let mut weights: Vec<Option<f64>> = vec![None; n];
        for k in (0..n).rev().filter(|&k| independent[k]) {
            let known: f64 = (k + 1..n).map(|j| gram[k * n + j] * weights[j].unwrap_or(0.0)).sum();
            weights[k] = Some((right[k] - known) / gram[k * n + k]);
        }
        weights
    }

    /// How much of ‖e‖² the columns explain: Σ w_i ⟨v_i, e⟩.
    pub fn explained(&self) -> f64 {
        self.solve().iter().zip(&self.right).map(|(w, r)| w.unwrap_or(0.0) * r).sum()
    }
}

fn dot(a: &[f64], b: &[f64]) -> f64 {
    a.iter().zip(b).map(|(a, b)| a * b).sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dependent_columns_change_nothing() {
        let (a, b, e) = ([1.0, 2.0, 0.0, 1.0], [0.0, 1.0, -1.0, 3.0], [2.0, 0.5, 1.0, -1.0]);
        let sum: Vec<f64> = a.iter().zip(b).map(|(a, b)| a + 2.0 * b).collect();
        let mut two = NormalEquations::new(2);
        two.add_products(&[&a, &b], &e, 1.0);
        // ⟨a,a⟩ = 6, ⟨a,b⟩ = 5, ⟨b,b⟩ = 11; ⟨a,e⟩ = 2, ⟨b,e⟩ = −3.5; determinant 41.
        let expected = [(2.0 * 11.0 + 3.5 * 5.0) / 41.0, (-3.5 * 6.0 - 2.0 * 5.0) / 41.0];
        for (found, expected) in two.solve().iter().zip(expected) {
            assert!((found.unwrap() - expected).abs() < 1e-12, "{found:?} against {expected}");
        }
        let mut four = NormalEquations::new(4);
        four.add_products(&[&a, &b, &sum, &[0.0; 4]], &e, 1.0);
        assert_eq!(four.solve()[2..], [None, None]);
        assert!((four.explained() - two.explained()).abs() < 1e-12);
        // Each of three dependent columns is the one too many when it comes last.
        assert!([0, 1, 2].iter().all(|&i| four.columns(&[0, 1, 2]).with_last(i).solve()[2].is_none()));
        assert!((two.only(0).explained() - 4.0 / 6.0).abs() < 1e-12);
    }
}
