//! Exact Wasserstein-1 distances between samples: in the plane, on the line, on the circle, and sliced.
//!
//! Every sample is a uniform empirical measure, and the two of a pair may differ in size. In the plane the transport
//! problem is solved by a primal network simplex over a list of near pairs; the list grows by the pairs that a check
//! of all reduced costs finds missing, so the result is the optimum over all pairs although few are ever stored.

use std::f64::consts::{PI, TAU};

use thiserror::Error;

/// Why a distance between two samples cannot be computed.
#[derive(Debug, Clone, PartialEq, Error)]
pub enum DistanceError {
    /// A sample without points is not a measure.
    #[error("the {set} set has no points; a distance needs at least one point in each set")]
    Empty {
        /// `"first"` or `"second"`.
        set: &'static str,
    },
    /// A coordinate is infinite or not a number.
    #[error(
        "the {set} set has the value {value} at index {index}; every coordinate must be finite, remove such points"
    )]
    NotFinite {
        /// `"first"` or `"second"`.
        set: &'static str,
        /// Index of the point within its set.
        index: usize,
        /// The offending coordinate.
        value: f64,
    },
    /// A sliced distance was asked for without directions.
    #[error("a sliced distance over 0 directions is undefined; ask for at least 1 (50 is usual)")]
    NoDirections,
}

/// Empirical `W1(a, b) = min over plans P of sum_ij P_ij |a_i - b_j|`, Euclidean cost, every point of `a: [n, 2]`
/// weighing 1/n and every point of `b: [m, 2]` weighing 1/m.
///
/// Exact to round-off for any sizes. Memory grows with n + m, not with n m.
pub fn w1(a: &[[f64; 2]], b: &[[f64; 2]]) -> Result<f64, DistanceError> {
    check_points(a, b)?;
    let extent = extent(a, b);
    if extent == 0.0 {
        return Ok(0.0);
    }
    // Powers of two scale without rounding, and keep squared distances of huge or tiny clouds representable.
    let exponent = extent.log2().ceil().clamp(-1022.0, 1023.0);
    let shrink = |points: &[[f64; 2]]| points.iter().map(|p| p.map(|x| x * (-exponent).exp2())).collect();
    let mut simplex = Simplex::new(shrink(a), shrink(b));
    simplex.solve();
    Ok(simplex.cost() * exponent.exp2())
}

/// `W1(a, b) = integral of |F_a(x) - F_b(x)| dx` of two samples `a: [n]`, `b: [m]` on the line.
pub fn w1_1d(a: &[f64], b: &[f64]) -> Result<f64, DistanceError> {
    check_values(a, b)?;
    Ok(cdf_steps(a.to_vec(), b.to_vec()).iter().map(|step| step.width * step.difference.abs()).sum())
}

/// `W1(a, b) = min_c integral over the circle of |F_a(t) - F_b(t) - c| dt` of two samples of angles `a: [n]`,
/// `b: [m]` in radians, with the length of the shorter arc as cost. Angles are taken modulo 2 pi.
///
/// The minimising c is the median of the difference of the distribution functions.
pub fn w1_circle(a: &[f64], b: &[f64]) -> Result<f64, DistanceError> {
    check_values(a, b)?;
    let wrap = |angles: &[f64]| angles.iter().map(|t| t.rem_euclid(TAU)).collect();
    let mut steps = cdf_steps(wrap(a), wrap(b));
    // What remains of the circle lies beyond all points, where both functions agree.
    let covered: f64 = steps.iter().map(|step| step.width).sum();
    steps.push(Step { difference: 0.0, width: (TAU - covered).max(0.0) });
    steps.sort_unstable_by(|s, t| s.difference.total_cmp(&t.difference));
    let mut below = 0.0;
    let median = steps.iter().find(|step| {
        below += step.width;
        below >= PI
    });
    let median = median.map_or(0.0, |step| step.difference);
    Ok(steps.iter().map(|step| step.width * (step.difference - median).abs()).sum())
}

/// Mean over the angles `pi k / directions`, `k = 0..directions`, of the `W1` of the projections of `a: [n, 2]` and
/// `b: [m, 2]` onto that direction. Never exceeds [`w1`].
pub fn sliced_w1(a: &[[f64; 2]], b: &[[f64; 2]], directions: usize) -> Result<f64, DistanceError> {
    check_points(a, b)?;
    if directions == 0 {
        return Err(DistanceError::NoDirections);
    }
    let mut total = 0.0;
    for k in 0..directions {
        let (sin, cos) = (PI * k as f64 / directions as f64).sin_cos();
        let project = |points: &[[f64; 2]]| points.iter().map(|p| cos * p[0] + sin * p[1]).collect::<Vec<_>>();
        total += w1_1d(&project(a), &project(b))?;
    }
    Ok(total / directions as f64)
}

fn check_points(a: &[[f64; 2]], b: &[[f64; 2]]) -> Result<(), DistanceError> {
    for (set, points) in [("first", a), ("second", b)] {
        let coordinates = points.iter().enumerate().flat_map(|(index, p)| p.map(|value| (index, value)));
        check_set(set, coordinates)?;
    }
    Ok(())
}

fn check_values(a: &[f64], b: &[f64]) -> Result<(), DistanceError> {
    check_set("first", a.iter().copied().enumerate())?;
    check_set("second", b.iter().copied().enumerate())
}

fn check_set(set: &'static str, coordinates: impl Iterator<Item = (usize, f64)>) -> Result<(), DistanceError> {
    let mut empty = true;
    for (index, value) in coordinates {
        empty = false;
        if !value.is_finite() {
            return Err(DistanceError::NotFinite { set, index, value });
        }
    }
    if empty { Err(DistanceError::Empty { set }) } else { Ok(()) }
}

/// A stretch of the line on which the difference of two empirical distribution functions is constant.
struct Step {
    difference: f64,
    width: f64,
}

/// Steps of `F_a - F_b` between the first and the last of all points.
fn cdf_steps(mut a: Vec<f64>, mut b: Vec<f64>) -> Vec<Step> {
    a.sort_unstable_by(f64::total_cmp);
    b.sort_unstable_by(f64::total_cmp);
    let (mut i, mut j) = (0, 0);
    let mut previous = a[0].min(b[0]);
    let mut steps = Vec::with_capacity(a.len() + b.len());
    while i < a.len() || j < b.len() {
        let from_a = j == b.len() || (i < a.len() && a[i] <= b[j]);
        let here = if from_a { a[i] } else { b[j] };
        let difference = i as f64 / a.len() as f64 - j as f64 / b.len() as f64;
        steps.push(Step { difference, width: here - previous });
        previous = here;
        if from_a { i += 1 } else { j += 1 }
    }
    steps
}

/// Larger side of the common bounding box.
fn extent(a: &[[f64; 2]], b: &[[f64; 2]]) -> f64 {
    let side = |axis: usize| {
        let (low, high) = a
            .iter()
            .chain(b)
            .fold((f64::INFINITY, f64::NEG_INFINITY), |(low, high), p| (low.min(p[axis]), high.max(p[axis])));
        (high - low).min(f64::MAX)
    };
    side(0).max(side(1))
}

fn distance(p: [f64; 2], q: [f64; 2]) -> f64 {
    let (x, y) = (p[0] - q[0], p[1] - q[1]);
    (x * x + y * y).sqrt()
}

/// No node.
const NONE: u32 = u32::MAX;

/// Nearest partners of every point that enter the first list of pairs.
const NEAR: usize = 10;

/// Pivots per node after which the tolerance doubles.
const PATIENCE: usize = 1000;

/// A pair considered for entering the basis.
#[derive(Clone, Copy)]
struct Arc {
    source: u32,
    sink: u32,
    cost: f64,
}

/// A node of the basis tree together with the arc to its parent.
#[derive(Clone)]
struct Node {
    parent: u32,
    first_child: u32,
    next: u32,
    previous: u32,
    /// Number of nodes in the subtree.
    size: u32,
    cost: f64,
    /// A whole number of units.
    flow: f64,
}

/// Primal network simplex for the transport problem with n sources and m sinks, nodes `0..n` and `n..n+m`.
///
/// Each source supplies m/g and each sink takes n/g units, g = gcd(n, m), so that all flows are whole numbers. To exclude cycling
/// every supply is multiplied by `unit` = 4n and increased by one, the excess going to one sink: then no proper subset
/// of nodes is balanced, every tree arc carries flow, and every pivot lowers the perturbed cost. An optimal tree of
/// the perturbed problem is optimal for the original one.
struct Simplex {
    sources: Vec<[f64; 2]>,
    sinks: Vec<[f64; 2]>,
    nodes: Vec<Node>,
    /// `potential[source] + potential[sink] = cost` on tree arcs, `<= cost` on all at the optimum.
    potential: Vec<f64>,
    root: u32,
    unit: f64,
    arcs: Vec<Arc>,
    /// Reduced costs above minus this are round-off, which accumulates along the paths of the tree.
    tolerance: f64,
    pivots: usize,
    stack: Vec<u32>,
}

impl Simplex {
    /// Clouds whose squared distances are representable.
    fn new(sources: Vec<[f64; 2]>, sinks: Vec<[f64; 2]>) -> Self {
        let (n, m) = (sources.len(), sinks.len());
        let node = Node { parent: NONE, first_child: NONE, next: NONE, previous: NONE, size: 1, cost: 0.0, flow: 0.0 };
        let mut simplex = Self {
            arcs: near_arcs(&sources, &sinks),
            tolerance: 4.0 * f64::EPSILON * ((n + m) as f64).sqrt() * extent(&sources, &sinks),
            sources,
            sinks,
            nodes: vec![node; n + m],
            potential: vec![0.0; n + m],
            root: n as u32,
            unit: 4.0 * n as f64,
            pivots: 0,
            stack: Vec::new(),
        };
        simplex.plant();
        simplex
    }

    /// Units supplied by every source and taken by every sink.
    fn units(&self) -> (f64, f64) {
        let (n, m) = (self.sources.len(), self.sinks.len());
        let g = gcd(n, m);
        ((m / g) as f64, (n / g) as f64)
    }

    fn arc(&self, source: usize, sink: usize) -> Arc {
        let cost = distance(self.sources[source], self.sinks[sink]);
        Arc { source: source as u32, sink: sink as u32, cost }
    }

    /// Arcs of a plan that fills the shortest near pairs first. Each arc uses up one of its ends: they form a forest.
    fn greedy_forest(&self) -> Vec<Arc> {
        let (supply, demand) = self.units();
        let mut left = vec![supply; self.sources.len()];
        let mut open = vec![demand; self.sinks.len()];
        let mut forest = Vec::new();
        let mut fill = |arc: Arc, left: &mut [f64], open: &mut [f64]| {
            let (i, j) = (arc.source as usize, arc.sink as usize);
            let amount = left[i].min(open[j]);
            if amount > 0.0 {
                left[i] -= amount;
                open[j] -= amount;
                forest.push(arc);
            }
        };
        let mut by_cost = self.arcs.clone();
        by_cost.sort_unstable_by(|p, q| p.cost.total_cmp(&q.cost));
        for arc in by_cost {
            fill(arc, &mut left, &mut open);
        }
        let mut unfilled: Vec<usize> = (0..open.len()).filter(|&j| open[j] > 0.0).collect();
        for i in 0..left.len() {
            while left[i] > 0.0 {
                let nearest = unfilled.iter().map(|&j| self.arc(i, j)).min_by(|p, q| p.cost.total_cmp(&q.cost));
                let Some(arc) = nearest else { break };
                fill(arc, &mut left, &mut open);
                unfilled.retain(|&j| open[j] > 0.0);
            }
        }
        forest
    }

    /// Builds the first tree: the greedy forest, every component without the root tied to it from one source.
    fn plant(&mut self) {
        let n = self.sources.len();
        let mut neighbours = vec![Vec::new(); self.nodes.len()];
        for arc in self.greedy_forest() {
            let sink = arc.sink + n as u32;
            neighbours[arc.source as usize].push((sink, arc.cost));
            neighbours[sink as usize].push((arc.source, arc.cost));
        }
        let mut order = vec![self.root];
        let mut reached = vec![false; self.nodes.len()];
        reached[self.root as usize] = true;
        let (mut head, mut next_source) = (0, 0);
        loop {
            while let Some(&v) = order.get(head) {
                head += 1;
                for &(w, cost) in &neighbours[v as usize] {
                    if !std::mem::replace(&mut reached[w as usize], true) {
                        self.nodes[w as usize].cost = cost;
                        self.link(w, v);
                        order.push(w);
                    }
                }
            }
            while next_source < n && reached[next_source] {
                next_source += 1;
            }
            if next_source == n {
                break;
            }
            reached[next_source] = true;
            self.nodes[next_source].cost = self.arc(next_source, self.root as usize - n).cost;
            self.link(next_source as u32, self.root);
            order.push(next_source as u32);
        }
        let (supply, demand) = self.units();
        let mut net: Vec<f64> =
            (0..self.nodes.len()).map(|v| if v < n { supply * self.unit + 1.0 } else { -demand * self.unit }).collect();
        for &v in order[1..].iter().rev() {
            let v = v as usize;
            let parent = self.nodes[v].parent as usize;
            net[parent] += net[v];
            self.nodes[v].flow = net[v].abs();
            self.nodes[parent].size += self.nodes[v].size;
        }
        self.refresh(self.root);
    }

    /// Hangs `child` below `parent`, leaving subtree sizes alone.
    fn link(&mut self, child: u32, parent: u32) {
        let first = std::mem::replace(&mut self.nodes[parent as usize].first_child, child);
        if first != NONE {
            self.nodes[first as usize].previous = child;
        }
        let node = &mut self.nodes[child as usize];
        (node.parent, node.next, node.previous) = (parent, first, NONE);
    }

    /// Undoes [`Self::link`].
    fn unlink(&mut self, child: u32) {
        let Node { parent, next, previous, .. } = self.nodes[child as usize];
        if previous == NONE {
            self.nodes[parent as usize].first_child = next;
        } else {
            self.nodes[previous as usize].next = next;
        }
        if next != NONE {
            self.nodes[next as usize].previous = previous;
        }
        self.nodes[child as usize].parent = NONE;
    }

    /// Makes `top` the root of its component.
    fn reroot(&mut self, top: u32) {
        self.stack.clear();
        let mut v = top;
        while v != NONE {
            self.stack.push(v);
            v = self.nodes[v as usize].parent;
        }
        for k in (1..self.stack.len()).rev() {
            let (upper, lower) = (self.stack[k], self.stack[k - 1]);
            self.unlink(lower);
            self.nodes[upper as usize].size -= self.nodes[lower as usize].size;
            self.nodes[lower as usize].size += self.nodes[upper as usize].size;
            self.nodes[upper as usize].cost = self.nodes[lower as usize].cost;
            self.nodes[upper as usize].flow = self.nodes[lower as usize].flow;
            self.link(upper, lower);
        }
    }

    /// Recomputes potentials from the node `top` down. Nothing is accumulated over pivots, so nothing drifts.
    fn refresh(&mut self, top: u32) {
        self.stack.clear();
        self.stack.push(top);
        while let Some(v) = self.stack.pop() {
            let Node { parent, first_child, cost, .. } = self.nodes[v as usize];
            self.potential[v as usize] = if parent == NONE { 0.0 } else { cost - self.potential[parent as usize] };
            let mut child = first_child;
            while child != NONE {
                self.stack.push(child);
                child = self.nodes[child as usize].next;
            }
        }
    }

    /// Brings `arc` into the tree and takes out the arc of its cycle that runs empty first.
    fn pivot(&mut self, arc: Arc) {
        let n = self.sources.len() as u32;
        let (i, j) = (arc.source, arc.sink + n);
        // Subtree sizes grow upwards, so the smaller of two different nodes is never above the other.
        let (mut join, mut other) = (i, j);
        while join != other {
            let (p, q) = (self.nodes[join as usize].size, self.nodes[other as usize].size);
            if p <= q {
                join = self.nodes[join as usize].parent;
            }
            if q <= p {
                other = self.nodes[other as usize].parent;
            }
        }
        // Flow added on i -> j returns from j to i through the tree, against the arcs above sinks on j's side and above
        // sources on i's side.
        let (mut amount, mut leaving, mut inner, mut outer) = (f64::INFINITY, NONE, NONE, NONE);
        for (start, end, loses_at_source) in [(i, j, true), (j, i, false)] {
            let mut v = start;
            while v != join {
                let node = &self.nodes[v as usize];
                if (v < n) == loses_at_source && node.flow < amount {
                    (amount, leaving, inner, outer) = (node.flow, v, start, end);
                }
                v = node.parent;
            }
        }
        for (start, loses_at_source) in [(i, true), (j, false)] {
            let mut v = start;
            while v != join {
                let node = &mut self.nodes[v as usize];
                node.flow += if (v < n) == loses_at_source { -amount } else { amount };
                v = node.parent;
            }
        }
        let cut = self.nodes[leaving as usize].size;
        let mut v = self.nodes[leaving as usize].parent;
        while v != NONE {
            self.nodes[v as usize].size -= cut;
            v = self.nodes[v as usize].parent;
        }
        self.unlink(leaving);
        // The smaller part moves, even if it holds the root.
        let (top, below) = if 2 * cut as usize <= self.nodes.len() {
            (inner, outer)
        } else {
            self.root = leaving;
            (outer, inner)
        };
        self.reroot(top);
        self.link(top, below);
        let moved = &mut self.nodes[top as usize];
        (moved.cost, moved.flow) = (arc.cost, amount);
        let size = moved.size;
        let mut v = below;
        while v != NONE {
            self.nodes[v as usize].size += size;
            v = self.nodes[v as usize].parent;
        }
        self.refresh(top);
    }

    fn reduced_cost(&self, arc: Arc) -> f64 {
        arc.cost - self.potential[arc.source as usize] - self.potential[self.sources.len() + arc.sink as usize]
    }

    fn solve(&mut self) {
        loop {
            self.solve_listed();
            self.refresh(self.root);
            let missing = self.missing_arcs();
            if missing.is_empty() {
                return;
            }
            self.arcs.extend(missing);
        }
    }

    /// Pivots until no listed arc improves; each time on the best arc of the next block that has an improving one.
    fn solve_listed(&mut self) {
        let block = (self.arcs.len() as f64).sqrt().ceil() as usize;
        let (mut start, mut unimproved) = (0, 0);
        while unimproved < self.arcs.len() {
            let end = (start + block).min(self.arcs.len());
            let (mut best, mut entering) = (-self.tolerance, None);
            for &arc in &self.arcs[start..end] {
                let reduced = self.reduced_cost(arc);
                if reduced < best {
                    (best, entering) = (reduced, Some(arc));
                }
            }
            unimproved += end - start;
            start = if end == self.arcs.len() { 0 } else { end };
            if let Some(arc) = entering {
                self.pivot(arc);
                unimproved = 0;
                self.pivots += 1;
                // Far more pivots than any cloud needs mean that round-off is being chased.
                if self.pivots.is_multiple_of(PATIENCE * self.nodes.len()) {
                    self.tolerance *= 2.0;
                }
            }
        }
    }

    /// Of all pairs with a negative reduced cost the worst of every source and of every sink; empty at the optimum.
    fn missing_arcs(&self) -> Vec<Arc> {
        /// Sinks looked at together: a stretch without branches, which the compiler turns into vector instructions.
        const STRETCH: usize = 64;
        let (of_source, of_sink) = self.potential.split_at(self.sources.len());
        let mut worst_of_sink = vec![(-self.tolerance, None); self.sinks.len()];
        let mut missing = Vec::new();
        for (i, (p, u)) in self.sources.iter().zip(of_source).enumerate() {
            let mut worst = (-self.tolerance, None);
            for (k, (sinks, potentials)) in self.sinks.chunks(STRETCH).zip(of_sink.chunks(STRETCH)).enumerate() {
                // cost < u + v, without the square root.
                let mut excess = 0.0;
                for (q, v) in sinks.iter().zip(potentials) {
                    let (x, y) = (p[0] - q[0], p[1] - q[1]);
                    let reach = u + v - self.tolerance;
                    let reach = if reach > 0.0 { reach } else { 0.0 };
                    let over = reach * reach - (x * x + y * y);
                    excess = if over > excess { over } else { excess };
                }
                if excess > 0.0 {
                    for (j, worst_of_sink) in worst_of_sink.iter_mut().enumerate().skip(k * STRETCH).take(STRETCH) {
                        let arc = self.arc(i, j);
                        let reduced = self.reduced_cost(arc);
                        for worst in [&mut worst, worst_of_sink] {
                            if reduced < worst.0 {
                                *worst = (reduced, Some(arc));
                            }
                        }
                    }
                }
            }
            missing.extend(worst.1);
        }
        missing.extend(worst_of_sink.into_iter().filter_map(|(_, arc)| arc));
        missing
    }

    /// Cost of the plan per unit of mass, the perturbation taken back out of its flows.
    fn cost(&self) -> f64 {
        let total = self.units().0 * self.sources.len() as f64;
        self.nodes.iter().map(|node| (node.flow / self.unit).round() * node.cost).sum::<f64>() / total
    }
}

fn gcd(a: usize, b: usize) -> usize {
    if b == 0 { a } else { gcd(b, a % b) }
}

/// Every point paired with its nearest partners in the other set, each pair once.
fn near_arcs(sources: &[[f64; 2]], sinks: &[[f64; 2]]) -> Vec<Arc> {
    let mut arcs = Vec::new();
    let mut pair = |points: &[[f64; 2]], partners: &[[f64; 2]], arc: fn(u32, u32, f64) -> Arc| {
        let mut near: Vec<(f64, u32)> = Vec::with_capacity(partners.len());
        for (i, &p) in points.iter().enumerate() {
            near.clear();
            near.extend(partners.iter().zip(0..).map(|(&q, j)| (distance(p, q), j)));
            if near.len() > NEAR {
                near.select_nth_unstable_by(NEAR, |s, t| s.0.total_cmp(&t.0));
                near.truncate(NEAR);
            }
            arcs.extend(near.iter().map(|&(cost, j)| arc(i as u32, j, cost)));
        }
    };
    pair(sources, sinks, |source, sink, cost| Arc { source, sink, cost });
    pair(sinks, sources, |sink, source, cost| Arc { source, sink, cost });
    arcs.sort_unstable_by_key(|arc| (arc.source, arc.sink));
    arcs.dedup_by_key(|arc| (arc.source, arc.sink));
    arcs
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Smallest mean cost over all permutations of equally many points.
    fn brute_force<P: Copy>(a: &[P], b: &mut [P], cost: &dyn Fn(P, P) -> f64) -> f64 {
        fn total<P: Copy>(a: &[P], b: &mut [P], cost: &dyn Fn(P, P) -> f64) -> f64 {
            let Some((&first, rest)) = a.split_first() else { return 0.0 };
            (0..b.len()).fold(f64::INFINITY, |best, k| {
                b.swap(0, k);
                let here = cost(first, b[0]) + total(rest, &mut b[1..], cost);
                b.swap(0, k);
                best.min(here)
            })
        }
        total(a, b, cost) / a.len() as f64
    }

    fn repeat<P: Copy>(points: &[P], times: usize) -> Vec<P> {
        points.iter().flat_map(|&p| std::iter::repeat_n(p, times)).collect()
    }

    fn arc_length(s: f64, t: f64) -> f64 {
        let gap = (s - t).rem_euclid(TAU);
        gap.min(TAU - gap)
    }

    /// Clouds in general position, on a coarse lattice (ties and duplicates), or on the unit circle.
    fn cloud(size: impl Into<proptest::collection::SizeRange>) -> impl Strategy<Value = Vec<[f64; 2]>> {
        let point = (-1.0..1.0, -1.0..1.0);
        (0..3, proptest::collection::vec(point, size)).prop_map(|(kind, points)| {
            let place = |(x, y): (f64, f64)| match kind {
                0 => [x, y],
                1 => [(2.0 * x).round(), (2.0 * y).round()],
                _ => [(PI * x).cos(), (PI * x).sin()],
            };
            points.into_iter().map(place).collect()
        })
    }

    fn shifted(points: &[[f64; 2]], by: [f64; 2]) -> Vec<[f64; 2]> {
        points.iter().map(|p| [p[0] + by[0], p[1] + by[1]]).collect()
    }

    /// Low-discrepancy points in the unit square.
    fn scattered(count: usize, offset: f64) -> Vec<[f64; 2]> {
        (0..count)
            .map(|k| k as f64 + offset)
            .map(|k| [(k * 0.754_877_666).fract(), (k * 0.569_840_291).fract()])
            .collect()
    }

    /// Solves and asserts what proves optimality: the plan has the right marginals and costs what its dual is worth.
    fn certified(a: &[[f64; 2]], b: &[[f64; 2]]) -> f64 {
        let mut simplex = Simplex::new(a.to_vec(), b.to_vec());
        simplex.solve();
        let (n, m) = (a.len(), b.len());
        let (supply, demand) = simplex.units();
        let mut left: Vec<f64> = (0..n + m).map(|v| if v < n { supply } else { demand }).collect();
        for (v, node) in simplex.nodes.iter().enumerate().filter(|(_, node)| node.parent != NONE) {
            let parent = node.parent as usize;
            let (i, j) = (v.min(parent), v.max(parent));
            assert!(i < n && j >= n);
            assert_eq!(node.cost, distance(a[i], b[j - n]));
            let units = (node.flow / simplex.unit).round();
            assert!(units >= 0.0 && node.flow >= 1.0);
            left[i] -= units;
            left[j] -= units;
        }
        assert!(left.iter().all(|&units| units == 0.0));
        let (u, v) = simplex.potential.split_at(n);
        for (p, u) in a.iter().zip(u) {
            for (q, v) in b.iter().zip(v) {
                assert!(u + v <= distance(*p, *q) + 2.0 * simplex.tolerance);
            }
        }
        let dual = u.iter().sum::<f64>() / n as f64 + v.iter().sum::<f64>() / m as f64;
        let primal = simplex.cost();
        assert!((primal - dual).abs() < 1e-12, "primal {primal}, dual {dual}");
        primal
    }

    #[test]
    fn agrees_with_reference_values() {
        let file: serde_json::Value = serde_json::from_str(include_str!("../../tests/data/w1_pot.json")).unwrap();
        for case in file["cases"].as_array().unwrap() {
            let read = |name: &str| serde_json::from_value::<Vec<[f64; 2]>>(case[name].clone()).unwrap();
            let found = w1(&read("a"), &read("b")).unwrap();
            assert!((found - case["w1_euclidean"].as_f64().unwrap()).abs() < 1e-12);
        }
    }

    #[test]
    fn large_plans_are_optimal() {
        let (a, b) = (scattered(900, 0.5), scattered(700, 1234.0));
        certified(&a, &b);
        certified(&a, &shifted(&scattered(900, 99.0), [2.0, 0.5]));
        let ring = |turn: f64| (0..600).map(move |k| TAU * (f64::from(k) + turn) / 600.0).map(|t| [t.cos(), t.sin()]);
        let chord = 2.0 * (0.25 * TAU / 600.0).sin();
        let found = certified(&ring(0.0).collect::<Vec<_>>(), &ring(0.5).collect::<Vec<_>>());
        assert!((found - chord).abs() < 1e-13);
    }

    #[test]
    fn degenerate_clouds() {
        let a = scattered(50, 0.0);
        assert_eq!(w1(&a, &a), Ok(0.0));
        assert_eq!(w1(&[[3.0, 4.0]; 7], &[[3.0, 4.0]; 4]), Ok(0.0));
        assert_eq!(w1(&[[0.0, 0.0]; 7], &[[3.0, 4.0]; 4]), Ok(5.0));
        let from_point = a.iter().map(|p| p[0].hypot(p[1])).sum::<f64>() / 50.0;
        assert!((w1(&a, &[[0.0, 0.0]]).unwrap() - from_point).abs() < 1e-14);
        assert!((w1(&a, &[[0.0, 0.0]; 30]).unwrap() - from_point).abs() < 1e-14);
        // A cloud in duplicate is the same measure.
        assert!(w1(&a, &repeat(&a, 3)).unwrap() < 1e-14);
    }

    #[test]
    fn any_scale() {
        let (a, b) = (scattered(40, 0.0), scattered(30, 77.0));
        let unit = w1(&a, &b).unwrap();
        for scale in [1e-300, 1e-160, 1e-9, 1e12, 1e160, 1e300] {
            let grow = |points: &[[f64; 2]]| points.iter().map(|p| p.map(|x| x * scale)).collect::<Vec<_>>();
            assert!((w1(&grow(&a), &grow(&b)).unwrap() / scale - unit).abs() < 1e-14, "scale {scale}");
        }
        assert_eq!(w1(&[[5e-324, 0.0]], &[[0.0, 0.0]]), Ok(5e-324));
        assert_eq!(w1(&[[0.0, f64::MAX]], &[[0.0, 0.0]]), Ok(f64::MAX));
    }

    #[test]
    fn exact_answers_on_line_and_circle() {
        assert_eq!(w1_1d(&[0.0, 1.0], &[0.5]), Ok(0.5));
        assert_eq!(w1_1d(&[0.0, 1.0, 2.0], &[5.0, 7.0, 6.0]), Ok(5.0));
        let close = |found: Result<f64, _>, expected: f64| (found.unwrap() - expected).abs() < 1e-14;
        // Across the cut at pi, and any number of turns away.
        assert!(close(w1_circle(&[3.1], &[-3.1]), TAU - 6.2));
        assert!(close(w1_circle(&[0.25 + 3.0 * TAU], &[0.0]), 0.25));
        assert!(close(w1_circle(&[0.0, 0.0], &[PI, 0.0]), PI / 2.0));
        // One point against the uniform circle is pi / 2 away on average.
        let even: Vec<f64> = (0..1000).map(|k| TAU * f64::from(k) / 1000.0 - PI).collect();
        assert!((w1_circle(&[1.0], &even).unwrap() - PI / 2.0).abs() < 1e-5);
        // Projections of a shift by (1, 0): the mean of |cos| over four directions.
        let mean = (1.0 + 2.0 * 0.5_f64.sqrt()) / 4.0;
        assert!(close(sliced_w1(&[[1.0, 0.0]], &[[0.0, 0.0]], 4), mean));
    }

    #[test]
    fn errors_name_the_culprit() {
        let good = [[0.0, 0.0]];
        assert_eq!(w1(&[], &good), Err(DistanceError::Empty { set: "first" }));
        assert_eq!(w1_1d(&[1.0], &[]), Err(DistanceError::Empty { set: "second" }));
        assert_eq!(sliced_w1(&good, &good, 0), Err(DistanceError::NoDirections));
        let infinite = DistanceError::NotFinite { set: "second", index: 1, value: f64::INFINITY };
        assert_eq!(w1(&good, &[[0.0, 0.0], [0.0, f64::INFINITY]]), Err(infinite.clone()));
        assert_eq!(w1_circle(&[1.0], &[0.0, f64::INFINITY]), Err(infinite));
        let text = sliced_w1(&[[f64::NAN, 0.0]], &good, 3).unwrap_err().to_string();
        assert!(text.contains("first set") && text.contains("NaN at index 0"), "{text}");
    }

    proptest! {
        #[test]
        fn equals_brute_force((a, mut b) in (1_usize..=6).prop_flat_map(|n| (cloud(n), cloud(n)))) {
            let expected = brute_force(&a, &mut b, &distance);
            prop_assert!((w1(&a, &b).unwrap() - expected).abs() < 1e-14);
        }

        #[test]
        fn unequal_sizes_equal_brute_force_on_copies(a in cloud(1..=3), b in cloud(1..=3)) {
            let common = a.len() * b.len() / gcd(a.len(), b.len());
            let expected = brute_force(&repeat(&a, common / a.len()), &mut repeat(&b, common / b.len()), &distance);
            prop_assert!((w1(&a, &b).unwrap() - expected).abs() < 1e-14);
        }

        #[test]
        fn unequal_sizes_equal_assignment_of_copies(a in cloud(1..=14), b in cloud(1..=14)) {
            let expected = w1(&repeat(&a, b.len()), &repeat(&b, a.len())).unwrap();
            prop_assert!((w1(&a, &b).unwrap() - expected).abs() < 1e-13);
        }

        #[test]
        fn plans_are_optimal(a in cloud(1..=60), b in cloud(1..=60)) {
            certified(&a, &b);
        }

        #[test]
        fn is_a_metric(a in cloud(1..=20), b in cloud(1..=20), c in cloud(1..=20)) {
            let (ab, bc, ac) = (w1(&a, &b).unwrap(), w1(&b, &c).unwrap(), w1(&a, &c).unwrap());
            prop_assert!((ab - w1(&b, &a).unwrap()).abs() < 1e-14);
            prop_assert!(ac <= ab + bc + 1e-14);
            prop_assert_eq!(w1(&a, &a).unwrap(), 0.0);
        }

        #[test]
        fn a_shift_costs_its_length(a in cloud(1..=30), x in -3.0..3.0, y in -3.0..3.0) {
            let found = w1(&a, &shifted(&a, [x, y])).unwrap();
            prop_assert!((found - f64::hypot(x, y)).abs() < 1e-13);
        }

        #[test]
        fn collinear_clouds_are_one_dimensional(
            a in proptest::collection::vec(-2.0..2.0, 1..40),
            b in proptest::collection::vec(-2.0..2.0, 1..40),
        ) {
            let lift = |values: &[f64]| values.iter().map(|t| [0.6 * t + 1.0, 0.8 * t]).collect::<Vec<_>>();
            prop_assert!((w1(&lift(&a), &lift(&b)).unwrap() - w1_1d(&a, &b).unwrap()).abs() < 1e-13);
        }

        #[test]
        fn slices_never_exceed_the_whole(a in cloud(1..=20), b in cloud(1..=20), directions in 1_usize..20) {
            prop_assert!(sliced_w1(&a, &b, directions).unwrap() <= w1(&a, &b).unwrap() + 1e-14);
        }

        #[test]
        fn circle_equals_brute_force(
            a in proptest::collection::vec(-PI..PI, 1..=3),
            b in proptest::collection::vec(-PI..PI, 1..=3),
        ) {
            let common = a.len() * b.len() / gcd(a.len(), b.len());
            let expected = brute_force(&repeat(&a, common / a.len()), &mut repeat(&b, common / b.len()), &arc_length);
            prop_assert!((w1_circle(&a, &b).unwrap() - expected).abs() < 1e-13);
        }
    }
}
