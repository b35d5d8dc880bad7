//! Numbers as sentences say them.

/// A fraction in percent with two digits that matter: `62 %`, `0.42 %`, `0.0031 %`.
pub fn percent(fraction: f64) -> String {
    let value = 100.0 * fraction;
    match value.abs() {
        v if v < 1e-4 => "less than 0.0001 %".into(),
        v if v >= 10.0 => format!("{value:.0} %"),
        v => {
            let digits = (1 - v.log10().floor() as i32).max(0) as usize;
            format!("{value:.digits$} %")
        }
    }
}

/// A number with four digits that matter, without trailing zeros: `0.05`, `1.234e-7`.
pub fn number(value: f64) -> String {
    with_digits(value, 4)
}

/// An interval with as many digits as tell its ends apart: `0.1993 to 0.2012`.
pub fn interval([low, high]: [f64; 2]) -> String {
    let ratio = low.abs().max(high.abs()) / (high - low).abs();
    let digits = if ratio.is_finite() { ratio.max(1.0).log10().floor() as i32 + 2 } else { 4 };
    let [low, high] = [low, high].map(|end| with_digits(end, digits.clamp(4, 15)));
    format!("{low} to {high}")
}

fn with_digits(value: f64, digits: i32) -> String {
    if value == 0.0 || !value.is_finite() {
        return format!("{value}");
    }
    let exponent = value.abs().log10().floor() as i32;
    if !(-4..6).contains(&exponent) {
        let text = format!("{value:.*e}", digits as usize - 1);
        let (digits, power) = text.split_once('e').unwrap_or((&text, "0"));
        return format!("{}e{power}", trimmed(digits));
    }
    let digits = (digits - 1 - exponent).max(0) as usize;
    trimmed(&format!("{value:.digits$}")).to_owned()
}

fn trimmed(digits: &str) -> &str {
    if digits.contains('.') { digits.trim_end_matches('0').trim_end_matches('.') } else { digits }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn digits_that_matter() {
        assert_eq!([0.62, 0.042, 0.0042, 3.1e-5, 1.0].map(percent), ["62 %", "4.2 %", "0.42 %", "0.0031 %", "100 %"]);
        assert_eq!(percent(1e-9), "less than 0.0001 %");
        let numbers = [0.05, 1.0 / 3.0, 1.5e-7, 1.0, -12.0, 123_456.0, 2e9, 0.0];
        assert_eq!(numbers.map(number), ["0.05", "0.3333", "1.5e-7", "1", "-12", "123456", "2e9", "0"]);
        assert_eq!(interval([0.19931, 0.20124]), "0.1993 to 0.2012");
        assert_eq!(interval([9.999_996_2, 10.000_001_3]), "9.9999962 to 10.000001");
        assert_eq!(interval([2.0, 2.0]), "2 to 2");
    }
}
