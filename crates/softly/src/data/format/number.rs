//! Stored numbers: their type and their conversion to `f32` or `f64`.

use std::fmt;

/// A float that numbers of a file are converted to.
pub trait Real: Copy + Default + Send + 'static {
    /// The nearest value.
    fn from_f32(value: f32) -> Self;
    /// The nearest value.
    fn from_f64(value: f64) -> Self;
}

impl Real for f32 {
    fn from_f32(value: f32) -> Self {
        value
    }

    fn from_f64(value: f64) -> Self {
        value as Self
    }
}

impl Real for f64 {
    fn from_f32(value: f32) -> Self {
        Self::from(value)
    }

    fn from_f64(value: f64) -> Self {
        value
    }
}

/// The kind of a stored number.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// IEEE 754 float of 2, 4 or 8 bytes.
    Float,
    /// Signed integer of 1, 2, 4 or 8 bytes.
    Signed,
    /// Unsigned integer (or truth value) of 1, 2, 4 or 8 bytes.
    Unsigned,
}

/// The type of a stored number.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct NumberType {
    kind: Kind,
    bytes: usize,
    big_endian: bool,
}

impl NumberType {
    /// A type, if numbers of this kind and size exist.
    pub fn new(kind: Kind, bytes: usize, big_endian: bool) -> Option<Self> {
        let known = matches!((kind, bytes), (Kind::Float, 2 | 4 | 8) | (Kind::Signed | Kind::Unsigned, 1 | 2 | 4 | 8));
        known.then_some(Self { kind, bytes, big_endian })
    }

    /// Bytes per number.
    pub fn size(self) -> usize {
        self.bytes
    }

    /// Whether the stored bytes are those of an `f32` on this machine.
    pub fn is_native_f32(self) -> bool {
        self.kind == Kind::Float && self.bytes == 4 && self.big_endian == cfg!(target_endian = "big")
    }

    /// Decodes `raw` into every `stride`-th element of `out`, from its first one on.
    pub fn decode<T: Real>(self, raw: &[u8], out: &mut [T], stride: usize) {
        match (self.kind, self.bytes) {
            (Kind::Float, 2) => self.each(raw, out, stride, |b| T::from_f32(half(u16::from_le_bytes(b)))),
            (Kind::Float, 4) => self.each(raw, out, stride, |b| T::from_f32(f32::from_le_bytes(b))),
            (Kind::Float, _) => self.each(raw, out, stride, |b| T::from_f64(f64::from_le_bytes(b))),
            (Kind::Signed, 1) => self.each(raw, out, stride, |b| T::from_f32(f32::from(i8::from_le_bytes(b)))),
            (Kind::Signed, 2) => self.each(raw, out, stride, |b| T::from_f32(f32::from(i16::from_le_bytes(b)))),
            (Kind::Signed, 4) => self.each(raw, out, stride, |b| T::from_f64(f64::from(i32::from_le_bytes(b)))),
            (Kind::Signed, _) => self.each(raw, out, stride, |b| T::from_f64(i64::from_le_bytes(b) as f64)),
            (Kind::Unsigned, 1) => self.each(raw, out, stride, |b| T::from_f32(f32::from(u8::from_le_bytes(b)))),
            (Kind::Unsigned, 2) => self.each(raw, out, stride, |b| T::from_f32(f32::from(u16::from_le_bytes(b)))),
            (Kind::Unsigned, 4) => self.each(raw, out, stride, |b| T::from_f64(f64::from(u32::from_le_bytes(b)))),
            (Kind::Unsigned, _) => self.each(raw, out, stride, |b| T::from_f64(u64::from_le_bytes(b) as f64)),
        }
    }

    fn each<T: Real, const N: usize>(self, raw: &[u8], out: &mut [T], stride: usize, value: impl Fn([u8; N]) -> T) {
        let chunks = raw.as_chunks::<N>().0;
        for (slot, &bytes) in out.iter_mut().step_by(stride).zip(chunks) {
            let mut bytes = bytes;
            if self.big_endian {
                bytes.reverse();
            }
            *slot = value(bytes);
        }
    }
}

impl fmt::Display for NumberType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let letter = match self.kind {
            Kind::Float => 'f',
            Kind::Signed => 'i',
            Kind::Unsigned => 'u',
        };
        let order = if self.big_endian && self.bytes > 1 { " big-endian" } else { "" };
        write!(f, "{letter}{}{order}", self.bytes)
    }
}

/// The value of an IEEE 754 half-precision number: sign, five bits of exponent, ten bits of fraction.
fn half(bits: u16) -> f32 {
    let fraction = f32::from(bits & 0x3ff);
    let magnitude = match (bits >> 10) & 0x1f {
        0 => fraction * 2f32.powi(-24),
        31 if fraction == 0.0 => f32::INFINITY,
        31 => f32::NAN,
        exponent => (1.0 + fraction / 1024.0) * 2f32.powi(i32::from(exponent) - 15),
    };
    if bits & 0x8000 == 0 { magnitude } else { -magnitude }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn halves_have_their_exact_values() {
        for (bits, value) in [
            (0x0000, 0.0),
            (0x0001, 5.960_464_5e-8),
            (0x03ff, 6.097_555e-5),
            (0x0400, 6.103_515_6e-5),
            (0x3c00, 1.0),
            (0x3c01, 1.000_976_6),
            (0xc000, -2.0),
            (0x7bff, 65504.0),
            (0xfc00, f32::NEG_INFINITY),
        ] {
            assert_eq!(half(bits), value, "{bits:#06x}");
        }
        assert!(half(0x7e00).is_nan());
    }

    #[test]
    fn numbers_of_every_type_keep_their_value() {
        let decode = |kind, raw: &[u8], big| {
            let mut out = [0f64];
            NumberType::new(kind, raw.len(), big).unwrap().decode(raw, &mut out, 1);
            out[0]
        };
        assert_eq!(decode(Kind::Signed, &(-5i8).to_le_bytes(), false), -5.0);
        assert_eq!(decode(Kind::Signed, &(-300i16).to_be_bytes(), true), -300.0);
        assert_eq!(decode(Kind::Signed, &(-70_000i32).to_be_bytes(), true), -70_000.0);
        assert_eq!(decode(Kind::Signed, &(-5_000_000_000i64).to_le_bytes(), false), -5e9);
        assert_eq!(decode(Kind::Unsigned, &[200], false), 200.0);
        assert_eq!(decode(Kind::Unsigned, &60_000u16.to_le_bytes(), false), 60_000.0);
        assert_eq!(decode(Kind::Unsigned, &4_000_000_000u32.to_be_bytes(), true), 4e9);
        assert_eq!(decode(Kind::Unsigned, &(1u64 << 40).to_be_bytes(), true), (1u64 << 40) as f64);
        assert_eq!(decode(Kind::Float, &0.1f32.to_be_bytes(), true), f64::from(0.1f32));
        assert_eq!(decode(Kind::Float, &0.1f64.to_le_bytes(), false), 0.1);
        assert!(NumberType::new(Kind::Float, 16, false).is_none());
    }
}
