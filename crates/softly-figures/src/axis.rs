//! Axes: scales, round numbers on them, and places between their ends.

/// How an axis maps values to lengths.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Scale {
    /// Length in proportion to the value.
    #[default]
    Linear,
    /// Length in proportion to log₁₀ of the value; only positive values have a place.
    Log,
}

impl Scale {
    /// Whether `value` has a place on the axis. The bounds far outside any result keep every later step finite.
    pub(crate) fn holds(self, value: f64) -> bool {
        value.is_finite() && value.abs() < 1e290 && (self == Scale::Linear || value > 1e-290)
    }
}

/// A marked place on an axis.
#[derive(Clone, Debug, PartialEq)]
pub struct Tick {
    /// Where.
    pub value: f64,
    /// What is written there.
    pub label: String,
}

/// Ticks at round numbers, about `intervals` + 1 of them, the first at or below `low` and the last at or above `high`.
///
/// Linear ticks are multiples of 1, 2 or 5 times a power of ten. Log ticks are powers of ten, or 1, 2 and 5 times
/// them where the data spans about two decades or less.
fn ticks(scale: Scale, low: f64, high: f64, intervals: usize) -> Vec<Tick> {
    match scale {
        Scale::Linear => linear_ticks(low, high, intervals),
        Scale::Log => log_ticks(low, high, intervals),
    }
}

/// Rounding may leave a bound this fraction of a step beyond its tick without asking for one more tick.
const SLACK: f64 = 1e-9;

fn linear_ticks(low: f64, high: f64, intervals: usize) -> Vec<Tick> {
    let [low, high] = widened(low, high);
    let rough = (high - low) / intervals.max(1) as f64;
    let power = 10_f64.powf((rough.log10() + SLACK).floor());
    let step = [1.0, 2.0, 5.0, 10.0].map(|m| m * power).into_iter().find(|step| *step >= rough * (1.0 - SLACK));
    let step = step.unwrap_or(10.0 * power);
    let (first, last) = ((low / step + SLACK).floor() as i64, (high / step - SLACK).ceil() as i64);
    let largest = (first.abs().max(last.abs()) as f64) * step;
    (first..=last)
        .map(|k| {
            let value = k as f64 * step;
            Tick { value, label: tick_label(value, step, largest) }
        })
        .collect()
}

/// `low` and `high` moved apart when they are too close, or the same, to hold distinct ticks.
fn widened(low: f64, high: f64) -> [f64; 2] {
    let size = low.abs().max(high.abs());
    if high - low > (SLACK * size).max(1e-280) {
        return [low, high];
    }
    let margin = if size < 1e-270 { 1.0 } else { 0.1 * size };
    let middle = 0.5 * low + 0.5 * high;
    [middle - margin, middle + margin]
}

fn log_ticks(low: f64, high: f64, intervals: usize) -> Vec<Tick> {
    let (first, last) = ((low.log10() + SLACK).floor() as i32, (high.log10() - SLACK).ceil() as i32);
    if high.log10() - low.log10() > 2.2 {
        // Labels of powers are short: a few more than on a linear axis save skipping powers.
        let stride = (last - first).unsigned_abs().div_ceil(intervals as u32 + 3);
        let count = (last - first).unsigned_abs().div_ceil(stride);
        return (0..=count)
            .map(|k| first + (k * stride) as i32)
            .map(|power| Tick { value: 10_f64.powi(power), label: format!("10{}", superscript(power)) })
            .collect();
    }
    let steps: Vec<(f64, i32)> =
        (first - 1..=last + 1).flat_map(|power| [1.0, 2.0, 5.0].map(|digit| (digit, power))).collect();
    let value = |&(digit, power): &(f64, i32)| digit * 10_f64.powi(power);
    let start = steps.iter().rposition(|step| value(step) <= low * (1.0 + SLACK)).unwrap_or(0);
    let end = steps.iter().position(|step| value(step) >= high * (1.0 - SLACK)).unwrap_or(steps.len() - 1);
    let steps = if start < end { &steps[start..=end] } else { &steps[start - 1..=end + 1] };
    steps
        .iter()
        .map(|step| {
            let label = match *step {
                (digit, power @ 0..=3) => format!("{}", digit * 10_f64.powi(power)),
                (digit, power @ -3..0) => format!("{:.*}", power.unsigned_abs() as usize, digit * 10_f64.powi(power)),
                (1.0, power) => format!("10{}", superscript(power)),
                (digit, power) => format!("{digit}×10{}", superscript(power)),
            };
            Tick { value: value(step), label }
        })
        .collect()
}

/// A multiple of `step` with exactly the digits the step needs; powers of ten where plain digits would be long.
fn tick_label(value: f64, step: f64, largest: f64) -> String {
    let step_power = (step.log10() + SLACK).floor() as i32;
    let text = if value.abs() < 0.5 * step {
        "0".to_owned()
    } else if largest < 1e5 && step_power >= -4 {
        format!("{value:.*}", (-step_power).max(0) as usize)
    } else {
        let power = (value.abs().log10() + SLACK).floor() as i32;
        let digits = (power - step_power).max(0) as usize;
        let text = format!("{value:.digits$e}");
        let (mantissa, power) = text.split_once('e').unwrap_or((&text, "0"));
        let mantissa =
            if mantissa.contains('.') { mantissa.trim_end_matches('0').trim_end_matches('.') } else { mantissa };
        format!("{mantissa}×10{}", superscript(power.parse().unwrap_or(0)))
    };
    text.replace('-', "−")
}

fn superscript(power: i32) -> String {
    power
        .to_string()
        .chars()
        .map(|c| c.to_digit(10).map_or('⁻', |d| ['⁰', '¹', '²', '³', '⁴', '⁵', '⁶', '⁷', '⁸', '⁹'][d as usize]))
        .collect()
}

/// A range of values and its ticks.
pub(crate) struct Axis {
    scale: Scale,
    pub(crate) low: f64,
    pub(crate) high: f64,
    pub(crate) ticks: Vec<Tick>,
}

impl Axis {
    /// A log axis ends this factor beyond its values.
    const BEYOND: f64 = 1.1;

    /// The axis that covers all `values` (0 to 1, or 1 to 10, without any) and all its ticks.
    pub(crate) fn covering(scale: Scale, values: impl Iterator<Item = f64>, own_ticks: &[Tick]) -> Self {
        let bounds = |values: &mut dyn Iterator<Item = f64>| {
            values
                .filter(|v| scale.holds(*v))
                .fold([f64::INFINITY, f64::NEG_INFINITY], |[l, h], v| [l.min(v), h.max(v)])
        };
        let own_ticks: Vec<Tick> = own_ticks.iter().filter(|tick| scale.holds(tick.value)).cloned().collect();
        let [mut low, mut high] = bounds(&mut values.chain(own_ticks.iter().map(|tick| tick.value)));
        if low > high {
            [low, high] = if scale == Scale::Linear { [0.0, 1.0] } else { [1.0, 10.0] };
        }
        if scale == Scale::Log && own_ticks.is_empty() {
            // A whole decade beyond the data would be mostly empty.
            let axis = Axis::exactly(scale, low / Self::BEYOND, high * Self::BEYOND, 5);
            if axis.ticks.len() > 2 {
                return axis;
            }
        }
        let ticks = if own_ticks.is_empty() { ticks(scale, low, high, 5) } else { own_ticks };
        let [low, high] = bounds(&mut ticks.iter().map(|tick| tick.value).chain([low, high]));
        let [low, high] = match scale {
            Scale::Linear => widened(low, high),
            Scale::Log if low == high => [low / 2.0, high * 2.0],
            Scale::Log => [low, high],
        };
        Axis { scale, low, high, ticks }
    }

    /// The axis of exactly `[low, high]`, with the ticks that lie inside; ends without a place become the default ones.
    pub(crate) fn exactly(scale: Scale, low: f64, high: f64, intervals: usize) -> Self {
        let valid = scale.holds(low) && scale.holds(high) && low <= high;
        let [low, high] = match scale {
            Scale::Linear if valid => widened(low, high),
            Scale::Linear => [0.0, 1.0],
            Scale::Log if valid && low < high => [low, high],
            Scale::Log if valid => [low / 2.0, high * 2.0],
            Scale::Log => [1.0, 10.0],
        };
        let slack = SLACK * (high - low);
        let mut ticks = ticks(scale, low, high, intervals);
        ticks.retain(|tick| tick.value >= low - slack && tick.value <= high + slack);
        Axis { scale, low, high, ticks }
    }

    /// The place of `value`: 0 at the lower end, 1 at the upper end; beyond the ends it stays at the end.
    pub(crate) fn place(&self, value: f64) -> f64 {
        let length = |v: f64| if self.scale == Scale::Log { v.max(1e-300).log10() } else { v };
        let (low, high) = (length(self.low), length(self.high));
        ((length(value) - low) / (high - low)).clamp(0.0, 1.0)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// The number a label stands for.
    fn read(label: &str) -> f64 {
        let plain: String = label
            .replace('−', "-")
            .replace("×10", "e")
            .chars()
            .map(|c| match "⁰¹²³⁴⁵⁶⁷⁸⁹".chars().position(|s| s == c) {
                Some(digit) => char::from(b'0' + digit as u8),
                None if c == '⁻' => '-',
                None => c,
            })
            .collect();
        // A bare power such as 10⁻³ has lost its sign of exponent.
        let bare = label.starts_with("10") && label.chars().nth(2).is_some_and(|c| "⁰¹²³⁴⁵⁶⁷⁸⁹⁻".contains(c));
        if bare { 10_f64.powi(plain[2..].parse().unwrap()) } else { plain.parse().unwrap() }
    }

    fn assert_good_ticks(ticks: &[Tick], low: f64, high: f64) -> Result<(), TestCaseError> {
        let room = 1e-8 * (high - low).abs().max(1e-8 * low.abs());
        prop_assert!(ticks[0].value <= low + room && ticks[ticks.len() - 1].value >= high - room, "{ticks:?}");
        prop_assert!((2..=11).contains(&ticks.len()), "{ticks:?}");
        for tick in ticks {
            let exact = (read(&tick.label) - tick.value).abs() <= 1e-9 * tick.value.abs();
            prop_assert!(exact, "{} is written {}", tick.value, tick.label);
        }
        prop_assert!(ticks.windows(2).all(|pair| pair[0].label != pair[1].label), "{ticks:?}");
        Ok(())
    }

    /// The leading digit of a number that has only one.
    fn is_round(value: f64) -> bool {
        let digit = value / 10_f64.powf((value.log10() + SLACK).floor());
        [1.0, 2.0, 5.0].iter().any(|round| (digit - round).abs() < 1e-6)
    }

    proptest! {
        #[test]
        fn linear_ticks_cover_the_data_at_round_steps(a in -10.0..10.0_f64, b in -10.0..10.0_f64, power in -30..30_i32) {
            let scale = 10_f64.powi(power);
            let (low, high) = (a.min(b) * scale, a.max(b) * scale);
            let ticks = ticks(Scale::Linear, low, high, 5);
            assert_good_ticks(&ticks, low, high)?;
            prop_assert!(ticks.windows(2).all(|p| is_round(p[1].value - p[0].value)), "{:?}", ticks);
        }

        #[test]
        fn log_ticks_cover_the_data_at_round_numbers(a in -20.0..20.0_f64, span in prop_oneof![0.0..3.0_f64, 0.0..40.0]) {
            let (low, high) = (10_f64.powf(a), 10_f64.powf(a + span));
            let ticks = ticks(Scale::Log, low, high, 5);
            assert_good_ticks(&ticks, low, high)?;
            prop_assert!(ticks.iter().all(|tick| is_round(tick.value)), "{:?}", ticks);
        }
    }

    fn labels(ticks: &[Tick]) -> Vec<&str> {
        ticks.iter().map(|tick| tick.label.as_str()).collect()
    }

    #[test]
    fn tick_labels_have_the_digits_they_need() {
        assert_eq!(labels(&ticks(Scale::Linear, 0.0, 0.3, 5)), ["0", "0.1", "0.2", "0.3"]);
        assert_eq!(labels(&ticks(Scale::Linear, -1.5, 1.2, 4)), ["−2", "−1", "0", "1", "2"]);
        assert_eq!(labels(&ticks(Scale::Linear, 0.0, 2e-6, 4)), ["0", "5×10⁻⁷", "1×10⁻⁶", "1.5×10⁻⁶", "2×10⁻⁶"]);
        assert_eq!(labels(&ticks(Scale::Log, 0.02, 0.7, 5)), ["0.02", "0.05", "0.1", "0.2", "0.5", "1"]);
        assert_eq!(labels(&ticks(Scale::Log, 1e-4, 1.0, 5)), ["10⁻⁴", "10⁻³", "10⁻²", "10⁻¹", "10⁰"]);
    }

    #[test]
    fn an_exact_axis_keeps_its_ends_and_the_ticks_between() {
        let axis = Axis::exactly(Scale::Log, 3e-3, 4.0, 5);
        assert_eq!(labels(&axis.ticks), ["10⁻²", "10⁻¹", "10⁰"]);
        assert_eq!([3e-3, 4.0, 1e-9].map(|v| axis.place(v)), [0.0, 1.0, 0.0]);
        let axis = Axis::exactly(Scale::Linear, -0.3, 1.1, 4);
        assert_eq!(labels(&axis.ticks), ["0", "0.5", "1.0"]);
        for (low, high) in [(0.0, 1.0), (2.0, 1.0), (f64::NAN, 1.0)] {
            let axis = Axis::exactly(Scale::Log, low, high, 5);
            assert_eq!((axis.low, axis.high), (1.0, 10.0));
        }
    }

    #[test]
    fn equal_data_has_an_axis_around_it() {
        for value in [0.0, 3.0, -1e-300, 7e12] {
            let ticks = ticks(Scale::Linear, value, value, 5);
            assert!(ticks[0].value < value && value < ticks[ticks.len() - 1].value, "{ticks:?}");
        }
        let ticks = ticks(Scale::Log, 1.0, 1.0, 5);
        assert_eq!(labels(&ticks), ["0.5", "1", "2"]);
    }
}
