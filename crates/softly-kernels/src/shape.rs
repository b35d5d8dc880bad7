//! The shapes that kernels take.

/// A batch of `C` images with `P` pixels each: arrays `[N, C, P]`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Planes {
    /// Samples, `N`.
    pub batch: usize,
    /// Channels, `C`.
    pub channels: usize,
    /// Pixels per channel, `P`.
    pub pixels: usize,
}

impl Planes {
    /// Number of rows of pixels, `N·C`.
    pub fn rows(self) -> usize {
        self.batch * self.channels
    }

    /// Number of values, `N·C·P`.
    pub fn values(self) -> usize {
        self.rows() * self.pixels
    }
}

/// A convolution from `I` to `O` channels that keeps the image size `H × W`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ConvShape {
    /// Samples, `N`.
    pub batch: usize,
    /// Input channels, `I`.
    pub inputs: usize,
    /// Output channels, `O`.
    pub outputs: usize,
    /// Rows, `H`.
    pub height: usize,
    /// Columns, `W`.
    pub width: usize,
}

impl ConvShape {
    /// Pixels of one channel, `H·W`.
    pub fn pixels(self) -> usize {
        self.height * self.width
    }

    /// Values of the input, `N·I·H·W`.
    pub fn input_values(self) -> usize {
        self.batch * self.inputs * self.pixels()
    }

    /// Values of the output, `N·O·H·W`.
    pub fn output_values(self) -> usize {
        self.batch * self.outputs * self.pixels()
    }

    /// The shape of the adjoint: inputs and outputs exchanged.
    pub(crate) fn adjoint(self) -> Self {
        Self { inputs: self.outputs, outputs: self.inputs, ..self }
    }
}
