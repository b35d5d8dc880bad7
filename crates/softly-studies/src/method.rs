//! The methods that studies compare.
//!
//! A method has one text form, in tables, in files and on pages: `scd`, `dps 0.2`, `post-hoc newton 0.3`, and with one setting
//! changed `vanilla, 25 steps`.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

/// A correction that is put on a trained denoiser with a constant weight.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Correction {
    /// The gradient of the squared residual, relaxed at every node.
    Jacobi,
    /// The Newton step of the solved field.
    Newton,
    /// The Kalman update with measured covariances.
    Kalman,
}

impl Correction {
    const ALL: [(Self, &'static str); 3] =
        [(Self::Jacobi, "jacobi"), (Self::Newton, "newton"), (Self::Kalman, "kalman")];
}

/// What kind of method it is.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Kind {
    /// A method of the study's preset, trained or adapted as it says there.
    Trained(Trained),
    /// The vanilla denoiser with guidance.
    Dps {
        /// Scale of the guidance.
        scale: f64,
    },
    /// A denoiser with a correction of constant weight: nothing is trained.
    PostHoc {
        /// The correction.
        correction: Correction,
        /// Its weight γ.
        weight: f64,
    },
}

/// Makes the enumeration of trained methods from their names.
macro_rules! trained {
    ($($(#[$doc:meta])* $method:ident, $name:literal;)*) => {
        /// A method of a preset, trained or adapted.
        #[derive(Debug, Clone, Copy, PartialEq, Eq)]
        pub enum Trained {
            $($(#[$doc])* $method,)*
        }

        impl Trained {
            const ALL: &[(Self, &'static str)] = &[$((Self::$method, $name)),*];

            /// Its name in presets and tables.
            pub fn name(self) -> &'static str {
                match self { $(Self::$method => $name,)* }
            }
        }
    };
}

trained! {
    /// The denoiser without a constraint.
    Vanilla, "vanilla";
    /// Vanilla at the learning rate that suits it best.
    VanillaTuned, "vanilla-tuned";
    /// The softly constrained denoiser with the preset's scale.
    Scd, "scd";
    /// SCD at the learning rate that suits it best.
    ScdTuned, "scd-tuned";
    /// SCD along the unit gradient.
    ScdUnit, "scd-unit";
    /// SCD with the paper's Eq. 8 as written.
    ScdPaper, "scd-paper";
    /// The same, damped by the squared norm of the gradient in place of e^{−λσ}.
    ScdPaperNorm, "scd-paper-norm";
    /// PIDM's regulariser.
    Pidm, "pidm";
    /// PIDM's regulariser with the published weight.
    PidmPublished, "pidm-published";
    /// PIDM as published: a DDPM.
    PidmDdpm, "pidm-ddpm";
    /// FunDPS: a denoiser of functions, guided by observed nodes and the residual.
    Fundps, "fundps";
    /// The frozen vanilla denoiser, adapted.
    Adapt, "adapt";
    /// The same, with a parameter of the equation learned.
    AdaptLearn, "adapt-learn";
    /// Network and strong directions trained at once.
    Joint, "joint";
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Trained(trained) => f.write_str(trained.name()),
            Self::Dps { scale } => write!(f, "dps {scale}"),
            Self::PostHoc { correction, weight } => {
                let name = Correction::ALL.iter().find(|(c, _)| c == correction).map_or("", |(_, name)| name);
                write!(f, "post-hoc {name} {weight}")
            }
        }
    }
}

/// A method, with one setting changed if it is a variation.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(into = "String", try_from = "String")]
pub struct Method {
    /// What kind of method.
    pub kind: Kind,
    /// The changed setting in words.
    pub variation: Option<String>,
}

impl Method {
    /// The method without variation, if it is trained.
    pub fn trained(&self) -> Option<Trained> {
        match self {
            Self { kind: Kind::Trained(trained), variation: None } => Some(*trained),
            _ => None,
        }
    }

    /// The method with one setting changed, which `what` says in words.
    #[must_use]
    pub fn with(self, what: impl Into<String>) -> Self {
        Self { variation: Some(what.into()), ..self }
    }

    /// The text form with letters that suit a file's name.
    pub fn file_name(&self) -> String {
        self.to_string().replace([' ', ','], "-")
    }
}

impl From<Trained> for Method {
    fn from(trained: Trained) -> Self {
        Kind::Trained(trained).into()
    }
}

impl From<Kind> for Method {
    fn from(kind: Kind) -> Self {
        Self { kind, variation: None }
    }
}

impl fmt::Display for Method {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.variation {
            None => self.kind.fmt(f),
            Some(what) => write!(f, "{}, {what}", self.kind),
        }
    }
}

impl From<Method> for String {
    fn from(method: Method) -> Self {
        method.to_string()
    }
}

impl TryFrom<String> for Method {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        text.parse()
    }
}

impl FromStr for Kind {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let words: Vec<&str> = text.split(' ').collect();
        let number = |text: &str| text.parse::<f64>().map_err(|_| format!("`{text}` is no number"));
        match words[..] {
            ["dps", scale] => Ok(Self::Dps { scale: number(scale)? }),
            ["post-hoc", name, weight] => {
                let known = Correction::ALL.iter().find(|(_, known)| *known == name);
                let (correction, _) = known.ok_or_else(|| format!("there is no correction `{name}`"))?;
                Ok(Self::PostHoc { correction: *correction, weight: number(weight)? })
            }
            _ => {
                let known = Trained::ALL.iter().find(|(_, name)| *name == text);
                known.map(|(trained, _)| Self::Trained(*trained)).ok_or_else(|| format!("there is no method `{text}`"))
            }
        }
    }
}

impl FromStr for Method {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text.split_once(", ") {
            None => Ok(text.parse::<Kind>()?.into()),
            Some((kind, what)) => Ok(Method::from(kind.parse::<Kind>()?).with(what)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn methods_are_what_their_text_says() {
        let post_hoc = Kind::PostHoc { correction: Correction::Newton, weight: 0.3 };
        for (method, text) in [
            (Trained::AdaptLearn.into(), "adapt-learn"),
            (Kind::Dps { scale: 0.00001 }.into(), "dps 0.00001"),
            (Method::from(post_hoc), "post-hoc newton 0.3"),
            (Method::from(Trained::Vanilla).with("σ_min 0.005"), "vanilla, σ_min 0.005"),
        ] {
            assert_eq!(method.to_string(), text);
            assert_eq!(text.parse(), Ok(method.clone()));
            assert_eq!(serde_json::to_string(&method).unwrap(), format!("\"{text}\""));
        }
        for (trained, name) in Trained::ALL {
            assert_eq!(name.parse::<Method>().unwrap().trained(), Some(*trained));
        }
        assert_eq!(Method::from(post_hoc).file_name(), "post-hoc-newton-0.3");
        assert!("post-hoc magic 1".parse::<Method>().is_err() && "vanila".parse::<Method>().is_err());
    }
}
