//! LZF, the fast compression that h5py offers (HDF5 filter 32000).
//!
//! The stream is a list of instructions, each begun by a control byte c. c < 32: copy the next c + 1 bytes of the
//! stream. Otherwise repeat earlier output: the length is (c >> 5) + 2, where 7 in the upper bits adds a further byte;
//! the distance is 1 + 256 (c & 31) + the last byte.

/// The most that a byte of a stream becomes: three bytes repeat 264.
const MOST_PER_BYTE: usize = 88;

/// Unfolds a stream to at most `limit` bytes; none if it is damaged.
pub fn unfold(stream: &[u8], limit: usize) -> Option<Vec<u8>> {
    // The limit of a damaged file is any number.
    let mut out = Vec::with_capacity(limit.min(MOST_PER_BYTE * stream.len()));
    let mut bytes = stream.iter();
    while let Some(&control) = bytes.next() {
        let control = usize::from(control);
        if control < 32 {
            let literal = bytes.as_slice().get(..=control)?;
            out.extend_from_slice(literal);
            bytes = bytes.as_slice()[control + 1..].iter();
        } else {
            let mut length = (control >> 5) + 2;
            if control >> 5 == 7 {
                length += usize::from(*bytes.next()?);
            }
            let distance = 1 + ((control & 31) << 8) + usize::from(*bytes.next()?);
            let from = out.len().checked_sub(distance)?;
            // The source may run into what is being written, so bytes are copied one after the other.
            for i in from..from + length {
                out.push(out[i]);
            }
        }
        if out.len() > limit {
            return None;
        }
    }
    Some(out)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn literals_repeats_and_overlaps_are_unfolded() {
        // "abc", then five bytes from three back (overlapping), then nine from one back by the long form.
        let stream = [2, b'a', b'b', b'c', 3 << 5, 2, 7 << 5, 0, 0];
        assert_eq!(unfold(&stream, 64).unwrap(), b"abcabcabbbbbbbbbb");
    }

    #[test]
    fn damaged_streams_are_refused() {
        assert!(unfold(&[5, b'a'], 64).is_none(), "literal ends too early");
        assert!(unfold(&[1 << 5, 9], 64).is_none(), "distance before the beginning");
        assert!(unfold(&[0, b'a', 7 << 5, 200, 0], 64).is_none(), "longer than the limit");
    }
}
