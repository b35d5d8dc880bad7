//! The noise of measurements that do not say their own: `--noise u=0.01`, or a share of a field's deviation, `u=1%`.

use crate::error::{Error, Result};

/// Standard deviations by quantity.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Noise(Vec<(Option<String>, Level)>);

/// A standard deviation.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Level {
    /// In physical units.
    Absolute(f64),
    /// Over the field's standard deviation in the training data.
    Relative(f64),
}

impl Noise {
    /// Reads `NAME=SD`, `NAME=1%`, or a share of every field's deviation by itself, `1%`.
    pub fn parse(settings: &[String]) -> Result<Self> {
        let parse = |setting: &String| {
            let (name, text) = match setting.rsplit_once('=') {
                Some((name, text)) => (Some(name.trim().to_string()), text.trim()),
                None => (None, setting.trim()),
            };
            let wrong = |what: &str| {
                Error::input("--noise", format!("expected {what}, found `{setting}`"))
                    .hint("for example --noise p=0.01, or --noise p=1% of the field's deviation in the training data")
            };
            let share = text.strip_suffix('%');
            let number: f64 = share.unwrap_or(text).trim().parse().map_err(|_| wrong("NAME=SD or NAME=SHARE%"))?;
            if !(number.is_finite() && number > 0.0) {
                return Err(wrong("a positive standard deviation"));
            }
            match (share, &name) {
                (Some(_), _) => Ok((name, Level::Relative(number / 100.0))),
                (None, Some(_)) => Ok((name, Level::Absolute(number))),
                (None, None) => Err(wrong("a field's name before the number")),
            }
        };
        Ok(Self(settings.iter().map(parse).collect::<Result<_>>()?))
    }

    /// The level for a quantity: its own, or else the one for all.
    pub fn of(&self, quantity: &str) -> Option<Level> {
        let own = self.0.iter().find(|(name, _)| name.as_deref() == Some(quantity));
        own.or_else(|| self.0.iter().find(|(name, _)| name.is_none())).map(|(_, level)| *level)
    }

    /// The first quantity that has a level and is none of `known`.
    pub fn unknown<'a>(&'a self, known: &[String]) -> Option<&'a str> {
        self.0.iter().filter_map(|(name, _)| name.as_deref()).find(|name| !known.iter().any(|k| k == name))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn levels_are_absolute_or_relative_and_never_zero() {
        let noise = Noise::parse(&["p=0.01".into(), "2%".into()]).unwrap();
        assert_eq!(noise.of("p"), Some(Level::Absolute(0.01)));
        assert_eq!(noise.of("K"), Some(Level::Relative(0.02)));
        assert_eq!(noise.unknown(&["K".to_string()]), Some("p"));
        for bad in ["p=0", "p=-1%", "p=x", "0.3", "p=nan"] {
            let said = Noise::parse(&[bad.into()]).unwrap_err().to_string();
            assert!(said.contains("--noise") && said.contains(bad), "{said}");
        }
    }
}
