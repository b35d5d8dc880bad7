//! `.npy` arrays of `f4` and `f8` in C order, little-endian.

use std::fs::File;
use std::io::{BufReader, Write};
use std::path::Path;

use npyz::{DType, NpyFile, TypeChar, WriterBuilder};

use crate::error::{Error, Result};
use crate::files::write_atomically;

/// An array of any rank, row-major.
#[derive(Debug, Clone, PartialEq)]
pub struct Array {
    /// Size along each axis.
    pub shape: Vec<usize>,
    /// Values, row-major.
    pub values: Vec<f64>,
}

/// Reads an `f4` or `f8` array.
pub fn read(path: &Path) -> Result<Array> {
    let file = File::open(path).map_err(Error::io("read", path))?;
    let place = || path.display().to_string();
    let file = NpyFile::new(BufReader::new(file)).map_err(|e| {
        Error::input(place(), format!("expected a .npy array, found something else ({e})"))
            .hint("save it with numpy.save")
    })?;
    let shape: Vec<usize> = file.shape().iter().map(|&n| n as usize).collect();
    if file.order() == npyz::Order::Fortran && shape.len() > 1 {
        return Err(
            Error::input(place(), "expected C order, found Fortran order").hint("save numpy.ascontiguousarray(array)")
        );
    }
    let dtype = file.dtype();
    let width = match &dtype {
        DType::Plain(ts) if ts.type_char() == TypeChar::Float && ts.endianness() != npyz::Endianness::Big => {
            ts.size_field()
        }
        _ => 0,
    };
    let expected: usize = shape.iter().product();
    let truncated = |e: std::io::Error| {
        Error::input(place(), format!("the file ends before the {expected} values that its header promises ({e})"))
            .hint("the file is truncated: copy or save it again")
    };
    let values = match width {
        4 => file.into_vec::<f32>().map_err(truncated)?.into_iter().map(f64::from).collect(),
        8 => file.into_vec::<f64>().map_err(truncated)?,
        _ => {
            return Err(Error::input(
                place(),
                format!("expected little-endian f4 or f8 numbers, found {}", dtype.descr()),
            )
            .hint("save array.astype('<f4')"));
        }
    };
    Ok(Array { shape, values })
}

/// Writes `f4` values of the given shape.
pub fn write_f32(path: &Path, shape: &[usize], values: impl Iterator<Item = f32>) -> Result<()> {
    write_atomically(path, |out| {
        let shape: Vec<u64> = shape.iter().map(|&n| n as u64).collect();
        let mut writer =
            npyz::WriteOptions::new().default_dtype().shape(&shape).writer(out as &mut dyn Write).begin_nd()?;
        writer.extend(values)?;
        writer.finish()
    })
}

/// Writes `f8` values of the given shape.
pub fn write_f64(path: &Path, shape: &[usize], values: impl Iterator<Item = f64>) -> Result<()> {
    write_atomically(path, |out| {
        let shape: Vec<u64> = shape.iter().map(|&n| n as u64).collect();
        let mut writer =
            npyz::WriteOptions::new().default_dtype().shape(&shape).writer(out as &mut dyn Write).begin_nd()?;
        writer.extend(values)?;
        writer.finish()
    })
}

/// Reads points `[N, 2]`.
pub fn read_points(path: &Path) -> Result<Vec<[f64; 2]>> {
    let array = read(path)?;
    if array.shape.len() != 2 || array.shape[1] != 2 {
        return Err(Error::input(path.display(), format!("expected points [N, 2], found shape {:?}", array.shape)));
    }
    if array.shape[0] == 0 {
        return Err(Error::input(path.display(), "expected at least one point, found none"));
    }
    if let Some(bad) = array.values.iter().position(|v| !v.is_finite()) {
        let problem = format!("expected finite coordinates, found {} in point {}", array.values[bad], bad / 2);
        return Err(Error::input(path.display(), problem).hint("drop or repair such points"));
    }
    Ok(array.values.chunks_exact(2).map(|p| [p[0], p[1]]).collect())
}
