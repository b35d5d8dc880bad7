//! Products of the terms of an equation: all that least squares on its terms needs.

use rayon::prelude::*;

use crate::audit::claim::{Ready, Sample};

/// G_kl = ⟨T_k T_l⟩, the mean over the points that count and over samples, `[terms, terms]`.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Gram {
    pub terms: usize,
    pub products: Vec<f64>,
}

impl Gram {
    /// The products of every equation's terms over `samples`.
    pub fn of(ready: &Ready, samples: &[Sample]) -> Vec<Self> {
        let of_sample = |sample: &Sample| -> Vec<Self> {
            let inputs = ready.inputs(sample);
            let of_equation = |equation: &super::claim::ReadyEquation| {
                let terms = equation.terms(&ready.algebra, &inputs);
                let n = terms.len();
                let mut products = vec![0.0; n * n];
                for k in 0..n {
                    for l in 0..=k {
                        let sum: f64 = equation.points().map(|point| terms[k][point] * terms[l][point]).sum();
                        products[k * n + l] = sum / equation.count as f64;
                        products[l * n + k] = products[k * n + l];
                    }
                }
                Self { terms: n, products }
            };
            ready.equations.iter().map(of_equation).collect()
        };
        let all: Vec<Vec<Self>> = samples.par_iter().map(of_sample).collect();
        let mean = |e: usize| {
            let terms = all.first().map_or(0, |grams| grams[e].terms);
            let mut products = vec![0.0; terms * terms];
            for gram in all.iter().map(|grams| &grams[e]) {
                let each = products.iter_mut().zip(&gram.products);
                each.for_each(|(sum, product)| *sum += product / all.len() as f64);
            }
            Self { terms, products }
        };
        (0..ready.equations.len()).map(mean).collect()
    }

    /// √⟨T_k²⟩.
    pub fn size(&self, term: usize) -> f64 {
        self.products[term * (self.terms + 1)].max(0.0).sqrt()
    }

    /// The term of the largest size.
    pub fn largest(&self) -> usize {
        (0..self.terms).max_by(|a, b| self.size(*a).total_cmp(&self.size(*b))).unwrap_or(0)
    }

    /// √⟨(Σ c_k T_k)²⟩ and the size of the largest c_k T_k.
    fn weighted(&self, weights: &[f64]) -> (f64, f64) {
        let mut square = 0.0;
        for (k, a) in weights.iter().enumerate() {
            for (l, b) in weights.iter().enumerate() {
                square += a * b * self.products[k * self.terms + l];
            }
        }
        let largest = weights.iter().enumerate().map(|(k, c)| c.abs() * self.size(k)).fold(0.0, f64::max);
        (square.max(0.0).sqrt(), largest)
    }

    /// √⟨R²⟩ of the sum R of all terms, relative to the largest term; 0 if all terms are 0.
    pub fn relative(&self) -> f64 {
        self.relative_with(&vec![1.0; self.terms])
    }

    /// The same of Σ c_k T_k.
    pub fn relative_with(&self, weights: &[f64]) -> f64 {
        let (residual, largest) = self.weighted(weights);
        if largest > 0.0 { residual / largest } else { 0.0 }
    }

    /// The factor on term k that makes the residual smallest, the others as they are; `None` for a term that is 0.
    pub fn best_factor(&self, term: usize) -> Option<f64> {
        let n = self.terms;
        let others: f64 = (0..n).filter(|&l| l != term).map(|l| self.products[term * n + l]).sum();
        let own = self.products[term * n + term];
        (own > 0.0).then(|| -others / own)
    }

    /// The relative residual with a factor on one term.
    pub fn relative_with_factor(&self, term: usize, factor: f64) -> f64 {
        let weights: Vec<f64> = (0..self.terms).map(|k| if k == term { factor } else { 1.0 }).collect();
        self.relative_with(&weights)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn factors_and_sizes_follow_from_products() {
        // T₀ = (3, 0), T₁ = (−1, 0), T₂ = (0, 0.5): R = (2, 0.5).
        let gram = Gram { terms: 3, products: vec![9.0, -3.0, 0.0, -3.0, 1.0, 0.0, 0.0, 0.0, 0.25] };
        assert_eq!(gram.largest(), 0);
        assert!((gram.relative() - 4.25_f64.sqrt() / 3.0).abs() < 1e-15);
        assert_eq!(gram.best_factor(1), Some(3.0));
        assert!((gram.relative_with_factor(1, 3.0) - 0.5 / 3.0).abs() < 1e-15);
        let zero = Gram { terms: 1, products: vec![0.0] };
        assert_eq!((zero.relative(), zero.best_factor(0)), (0.0, None));
    }
}
