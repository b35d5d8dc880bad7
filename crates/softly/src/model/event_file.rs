//! TensorBoard's event files: the metrics of a run as scalars.
//!
//! A file is a chain of records, `length (u64) · crc(length) (u32) · bytes · crc(bytes) (u32)`, all little-endian, crc
//! being the masked CRC-32C. The bytes of a record are an `Event` in the encoding of protocol buffers:
//!
//! | message | field | |
//! |---|---|---|
//! | Event | 1 | wall time in seconds, f64 |
//! | | 2 | step, variable-length integer |
//! | | 3 | version of the file, text, in the first record only |
//! | | 5 | Summary |
//! | Summary | 1 | Value, any number of them |
//! | Value | 1 | tag, text |
//! | | 2 | the number, f32 |

use std::io::Write;

use crate::model::run_folder::Metrics;

/// The name of an event file: TensorBoard looks for `tfevents` in it.
pub const EVENT_FILE: &str = "events.out.tfevents.softly";

/// Writes an event file record by record.
pub struct EventWriter<W> {
    out: W,
}

impl<W: Write> EventWriter<W> {
    /// Starts a file at `wall_time`, in seconds since 1970.
    pub fn new(out: W, wall_time: f64) -> std::io::Result<Self> {
        let mut writer = Self { out };
        let mut event = Message::default();
        event.double(1, wall_time);
        event.bytes(3, b"brain.Event:2");
        writer.record(&event.0)?;
        Ok(writer)
    }

    /// Adds a line of metrics.
    pub fn metrics(&mut self, metrics: &Metrics, wall_time: f64) -> std::io::Result<()> {
        let mut summary = Message::default();
        for (tag, number) in scalars(metrics) {
            let mut value = Message::default();
            value.bytes(1, tag.as_bytes());
            value.float(2, number as f32);
            summary.bytes(1, &value.0);
        }
        let mut event = Message::default();
        event.double(1, wall_time);
        event.integer(2, metrics.step);
        event.bytes(5, &summary.0);
        self.record(&event.0)
    }

    /// Hands everything on to the system, so that a reader sees whole records.
    pub fn flush(&mut self) -> std::io::Result<()> {
        self.out.flush()
    }

    fn record(&mut self, bytes: &[u8]) -> std::io::Result<()> {
        let length = (bytes.len() as u64).to_le_bytes();
        self.out.write_all(&length)?;
        self.out.write_all(&masked(crc32c(&length)).to_le_bytes())?;
        self.out.write_all(bytes)?;
        self.out.write_all(&masked(crc32c(bytes)).to_le_bytes())
    }
}

/// The numbers of a line of metrics with their tags: terms of the loss, the optimiser's, learned parameters.
fn scalars(metrics: &Metrics) -> Vec<(String, f64)> {
    let Metrics { loss, gradient_norm, rate, replaced, constraint, terms, .. } = metrics;
    let mut all = vec![("loss/denoising".to_string(), *loss)];
    all.extend(terms.iter().map(|(name, value)| (format!("loss/{name}"), *value)));
    all.push(("optimiser/gradient norm".into(), *gradient_norm));
    all.push(("optimiser/rate".into(), *rate));
    all.push(("optimiser/replaced entries".into(), *replaced as f64));
    all.extend(constraint.iter().map(|(name, value)| (format!("constraint/{name}"), *value)));
    all
}

/// A message in the encoding of protocol buffers.
#[derive(Default)]
struct Message(Vec<u8>);

impl Message {
    /// Number of the field and how its value is written: 0 an integer, 1 eight bytes, 2 a length and bytes, 5 four
    /// bytes.
    fn key(&mut self, field: u64, kind: u64) {
        self.varint(field << 3 | kind);
    }

    /// Seven bits per byte, the lowest first; the eighth says that more follow.
    fn varint(&mut self, mut value: u64) {
        while value >= 0x80 {
            self.0.push(value as u8 | 0x80);
            value >>= 7;
        }
        self.0.push(value as u8);
    }

    fn integer(&mut self, field: u64, value: u64) {
        self.key(field, 0);
        self.varint(value);
    }

    fn double(&mut self, field: u64, value: f64) {
        self.key(field, 1);
        self.0.extend(value.to_le_bytes());
    }

    fn float(&mut self, field: u64, value: f32) {
        self.key(field, 5);
        self.0.extend(value.to_le_bytes());
    }

    fn bytes(&mut self, field: u64, value: &[u8]) {
        self.key(field, 2);
        self.varint(value.len() as u64);
        self.0.extend(value);
    }
}

/// CRC-32C (Castagnoli), bit by bit: records are short and few.
fn crc32c(bytes: &[u8]) -> u32 {
    let bit = |crc: u32, _| if crc & 1 == 1 { crc >> 1 ^ 0x82f6_3b78 } else { crc >> 1 };
    !bytes.iter().fold(!0, |crc, &byte| (0..8).fold(crc ^ u32::from(byte), bit))
}

/// The checksum as records hold it: turned by 15 bits and shifted by a constant, so that checksums of checksums mean
/// something.
fn masked(crc: u32) -> u32 {
    crc.rotate_right(15).wrapping_add(0xa282_ead8)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn checksums_are_the_published_ones() {
        // RFC 3720, appendix B.4.
        assert_eq!(crc32c(b"123456789"), 0xe306_9283);
        assert_eq!(crc32c(&[0; 32]), 0x8a91_36aa);
        assert_eq!(crc32c(&[0xff; 32]), 0x62a8_ab43);
        assert_eq!(crc32c(&(0..32).collect::<Vec<u8>>()), 0x46dd_794e);
        assert_eq!(masked(0), 0xa282_ead8);
    }

    #[test]
    fn integers_have_seven_bits_per_byte() {
        let mut message = Message::default();
        message.integer(1, 150);
        assert_eq!(message.0, [0x08, 0x96, 0x01]);
        let mut message = Message::default();
        message.integer(2, u64::MAX);
        assert_eq!(message.0.len(), 11);
    }
}
