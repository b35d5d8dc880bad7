//! Linear systems solved by a given number of Krylov iterations in tensor operations, every sample by itself.

use burn::tensor::{DType, Tensor};

use crate::tensors::constant;

/// Σ over all numbers of a sample, `[N, …]` → `[N, 1, …]`.
pub(crate) fn sum<const D: usize>(x: Tensor<D>) -> Tensor<D> {
    let (n, size) = (x.dims()[0], x.dims()[1..].iter().product::<usize>());
    let mut shape = [1; D];
    shape[0] = n;
    x.reshape([n, size]).sum_dim(1).reshape(shape)
}

/// Σ a b over all numbers of a sample, `[N, …]` → `[N, 1, …]`.
pub(crate) fn dot<const D: usize>(a: &Tensor<D>, b: &Tensor<D>) -> Tensor<D> {
    let mut shape = [1; D];
    shape[0] = a.dims()[0];
    // A product of matrices adds up several numbers at a time, a sum in f64 one after the other.
    row(a).matmul(column(b)).reshape(shape)
}

/// x with A x ≈ b by generalised conjugate residuals; all `[N, …]`.
///
/// x has the least ‖b − A x‖ of the Krylov space. The iteration never diverges, whatever A is like, and needs no symmetry.
pub(crate) fn conjugate_residuals<const D: usize>(
    right: Tensor<D>,
    iterations: usize,
    apply: impl Fn(Tensor<D>) -> Tensor<D>,
) -> Tensor<D> {
    let mut residual = right;
    let mut solution = residual.zeros_like();
    // Search directions, their images, and the inverse squared length of each image.
    let mut past: Vec<(Tensor<D>, Tensor<D>, Tensor<D>)> = Vec::with_capacity(iterations);
    for _ in 0..iterations {
        let mut search = residual.clone();
        let mut image = apply(search.clone());
        for (old, old_image, inverse) in &past {
            let overlap = dot(&image, old_image) * inverse.clone();
            search = search - old.clone() * overlap.clone();
            image = image - old_image.clone() * overlap;
        }
        // A search direction that A hardly feels gets no length, and neither does one that is zero for all that matters in
        // normalised units; the square of the largest inverse, which its slope needs, still is a number in f32.
        let square = dot(&image, &image) + dot(&search, &search) * 1e-8;
        let inverse = square.clamp_min(1e-18).recip();
        let length = dot(&residual, &image) * inverse.clone();
        solution = solution + search.clone() * length.clone();
        residual = residual - image.clone() * length;
        past.push((search, image, inverse));
    }
    solution
}

/// The most iterations that autodiff has to go back through: it keeps what every one of them computes.
const UNDER_AUTODIFF: usize = 24;

/// x with A x ≈ b by preconditioned conjugate gradients, A symmetric and positive; all `[N, …]`, and so many `iterations` of each
/// sample.
pub(crate) fn conjugate_gradients<const D: usize>(
    right: Tensor<D>,
    iterations: &[usize],
    apply: impl Fn(Tensor<D>) -> Tensor<D>,
    precondition: impl Fn(Tensor<D>) -> Tensor<D>,
) -> Tensor<D> {
    if right.dtype() == DType::F32 && !right.is_autodiff() {
        return all_conjugate(right, iterations, apply, precondition);
    }
    let differentiable = right.is_autodiff();
    let mut residual = right;
    let mut solution = residual.zeros_like();
    let mut scaled = precondition(residual.clone());
    let mut search = scaled.clone();
    let mut size = dot(&residual, &scaled);
    let most = if differentiable { most(iterations).min(UNDER_AUTODIFF) } else { most(iterations) };
    for done in 0..most {
        let image = apply(search.clone());
        // Zero only if there is nothing left to solve.
        let length = under_way(size.clone() / dot(&search, &image).clamp_min(1e-18), iterations, done);
        solution = solution + search.clone() * length.clone();
        residual = residual - image * length;
        scaled = precondition(residual.clone());
        let next = dot(&residual, &scaled);
        search = scaled.clone() + search * (next.clone() / size.clamp_min(1e-18));
        size = next;
    }
    solution
}

/// The same with every search direction made conjugate to all earlier ones, not to the last alone: in f32 the iteration would
/// otherwise forget what it has solved. Autodiff would have to keep all of them.
fn all_conjugate<const D: usize>(
    right: Tensor<D>,
    iterations: &[usize],
    apply: impl Fn(Tensor<D>) -> Tensor<D>,
    precondition: impl Fn(Tensor<D>) -> Tensor<D>,
) -> Tensor<D> {
    let mut residual = right;
    let mut solution = residual.zeros_like();
    let mut past = Past::default();
    for done in 0..most(iterations) {
        let search = past.conjugate(precondition(residual.clone()));
        let image = apply(search.clone());
        // Zero only if there is nothing left to solve.
        let unit = dot(&search, &image).clamp_min(1e-18).sqrt().recip();
        let (search, image) = (search * unit.clone(), image * unit);
        let length = under_way(dot(&residual, &search), iterations, done);
        solution = solution + search.clone() * length.clone();
        residual = residual - image.clone() * length;
        past.push(&search, &image);
    }
    solution
}

/// Search directions sᵢ with sᵢ·A sⱼ = 1 if i = j, else 0.
#[derive(Default)]
struct Past {
    /// Some s and their A s, one after the other, `[N, K, size]` each: all of them are one product of matrices.
    blocks: Vec<[Tensor<3>; 2]>,
    /// The last ones, `[N, 1, size]` each.
    loose: Vec<[Tensor<3>; 2]>,
}

impl Past {
    /// Directions in a block.
    const BLOCK: usize = 6;

    /// `search` without its part along the directions.
    fn conjugate<const D: usize>(&self, search: Tensor<D>) -> Tensor<D> {
        let (shape, mut search) = (search.dims(), row(&search));
        for [old, image] in self.blocks.iter().chain(&self.loose) {
            let overlaps = image.clone().matmul(column(&search)).swap_dims(1, 2);
            search = search - overlaps.matmul(old.clone());
        }
        search.reshape(shape)
    }

    fn push<const D: usize>(&mut self, search: &Tensor<D>, image: &Tensor<D>) {
        self.loose.push([row(search), row(image)]);
        if self.loose.len() == Self::BLOCK {
            let (searches, images) = self.loose.drain(..).map(|[search, image]| (search, image)).unzip();
            self.blocks.push([Tensor::cat(searches, 1), Tensor::cat(images, 1)]);
        }
    }
}

/// `[N, …]` → `[N, 1, size]`.
fn row<const D: usize>(x: &Tensor<D>) -> Tensor<3> {
    let (n, size) = (x.dims()[0], x.dims()[1..].iter().product::<usize>());
    x.clone().reshape([n, 1, size])
}

/// `[N, …]` → `[N, size, 1]`.
fn column<const D: usize>(x: &Tensor<D>) -> Tensor<3> {
    let (n, size) = (x.dims()[0], x.dims()[1..].iter().product::<usize>());
    x.clone().reshape([n, size, 1])
}

/// The iterations of the sample that takes most of them.
fn most(iterations: &[usize]) -> usize {
    iterations.iter().copied().max().unwrap_or(0)
}

/// `length` `[N, 1, …]` of the samples that take more than `done` iterations, 0 of the others.
fn under_way<const D: usize>(length: Tensor<D>, iterations: &[usize], done: usize) -> Tensor<D> {
    if iterations.iter().all(|&all| all > done) {
        return length;
    }
    let counts: Vec<f64> = iterations.iter().map(|&all| if all > done { 1.0 } else { 0.0 }).collect();
    let mut shape = [1; D];
    shape[0] = counts.len();
    length.clone() * constant(counts, shape, &length.device(), length.dtype())
}
