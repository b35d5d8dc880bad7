//! Parts of a network whose activations are computed again on the way back instead of being kept.
//!
//! Such a part is one operation of the autodiff graph, which keeps the part's inputs alone. Its backward pass runs the part again in
//! a graph of its own: the gradients of Σ y · dy are those of y.

use std::array;
use std::cell::Cell;

use burn::backend::autodiff::checkpoint::strategy::NoCheckpointing;
use burn::backend::tensor::FloatTensor;
use burn::backend::{Autodiff, AutodiffBackend, DispatchTensor, Flex};
use burn::tensor::{Tensor, TensorData};
use burn_flex::FlexTensor;

use crate::nn::ops::record;

/// The CPU with gradients.
type Tracked = Autodiff<Flex, NoCheckpointing>;

/// Inputs of a part, at most.
const MOST: usize = 9;

thread_local! {
    static WANTED: Cell<bool> = const { Cell::new(false) };
}

/// Runs `work`; if `wanted`, networks on this thread compute activations again on the way back, where they can.
pub fn recomputing<T>(wanted: bool, work: impl FnOnce() -> T) -> T {
    let before = WANTED.replace(wanted);
    let result = work();
    WANTED.set(before);
    result
}

/// `work` of `inputs`, at most [`MOST`]; its activations are not kept within [`recomputing`], on the CPU.
pub(crate) fn part(
    inputs: Vec<DispatchTensor>,
    work: impl Fn(Vec<DispatchTensor>) -> Tensor<4> + Send + Sync + 'static,
) -> Tensor<4> {
    let tracked = |input: &DispatchTensor| Tensor::<1>::from_dispatch(input.clone()).try_into_primitive::<Tracked>();
    let tracked: Option<Vec<FloatTensor<Tracked>>> =
        if WANTED.get() { inputs.iter().map(|input| tracked(input).ok()).collect() } else { None };
    let Some(tracked) = tracked else { return work(inputs) };
    // Places that are not taken get no gradients.
    let nobody = Tracked::from_inner(FlexTensor::from_data(TensorData::from([0.0f32])));
    let nodes = array::from_fn(|k| tracked.get(k).unwrap_or(&nobody).node());
    let kept: Vec<FlexTensor> = tracked.into_iter().map(Tracked::inner).collect();
    let plain = kept.iter().map(|input| Tensor::<1>::from_primitive::<Flex>(input.clone()).into_dispatch());
    let y = work(plain.collect()).try_into_primitive::<Flex>().expect("what comes from the CPU stays there");
    let y = record::<NoCheckpointing, MOST>(nodes, y, move |dy, wanted| {
        let leaf = |(input, wanted): (&FlexTensor, bool)| {
            let leaf = Tracked::from_inner(input.clone());
            if wanted { leaf.require_grad() } else { leaf }
        };
        let leaves: Vec<FloatTensor<Tracked>> = kept.iter().zip(wanted).map(leaf).collect();
        let inputs = leaves.iter().map(|leaf| Tensor::<1>::from_primitive::<Tracked>(leaf.clone()).into_dispatch());
        let y = recomputing(false, || work(inputs.collect()));
        let sum = (y * Tensor::from_primitive::<Flex>(dy.clone())).sum();
        let mut gradients = sum.try_into_primitive::<Tracked>().expect("leaves with gradients").backward();
        array::from_fn(|k| leaves.get(k).filter(|_| wanted[k])?.grad_remove(&mut gradients))
    });
    Tensor::from_primitive::<Tracked>(y)
}
