//! Vectors of `f32` for each instruction set, chosen at run time.
//!
//! A kernel is written once, generic over [`Simd`], as a [`Job`]; [`Level::run`] compiles it for every instruction set.
//! The portable level uses arrays that the compiler turns into whatever the target guarantees (NEON on ARM).

use std::cell::Cell;
use std::sync::LazyLock;

#[cfg(target_arch = "x86_64")]
#[allow(clippy::wildcard_imports)]
use std::arch::x86_64::*;

/// Instruction set that the kernels use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Level {
    /// Arrays of 8 numbers, no special instructions.
    Portable8,
    /// Arrays of 16 numbers, no special instructions: the block shapes of AVX-512 on every machine.
    Portable16,
    /// 8 numbers, AVX2 and FMA.
    #[cfg(target_arch = "x86_64")]
    Avx2,
    /// 16 numbers, AVX-512F.
    #[cfg(target_arch = "x86_64")]
    Avx512,
}

thread_local! {
    static FORCED: Cell<Option<Level>> = const { Cell::new(None) };
}

/// The environment variable that names the instruction set of all kernels of a process, the best one by default.
pub const SETTING: &str = "SOFTLY_VECTORS";

/// The level of kernels on threads where none is forced.
static CHOSEN: LazyLock<Level> = LazyLock::new(|| Level::asked_for().unwrap_or_else(|_| Level::best()));

/// Runs `work` with the kernels called on this thread restricted to `level`.
///
/// # Panics
/// If this machine does not have the instruction set.
pub fn with_level<T>(level: Level, work: impl FnOnce() -> T) -> T {
    /// Puts the former level back, also after a panic.
    struct Restore(Option<Level>);
    impl Drop for Restore {
        fn drop(&mut self) {
            FORCED.set(self.0);
        }
    }
    assert!(Level::supported().contains(&level), "this machine has no {level:?}");
    let _restore = Restore(FORCED.replace(Some(level)));
    work()
}

impl Level {
    /// Every level this machine can run, best last.
    pub fn supported() -> Vec<Self> {
        #[allow(unused_mut)]
        let mut levels = vec![Self::Portable16, Self::Portable8];
        #[cfg(target_arch = "x86_64")]
        {
            if is_x86_feature_detected!("avx2") && is_x86_feature_detected!("fma") {
                levels.push(Self::Avx2);
                if is_x86_feature_detected!("avx512f") {
                    levels.push(Self::Avx512);
                }
            }
        }
        levels
    }

    /// The best level of this machine.
    fn best() -> Self {
        Self::supported().pop().unwrap_or(Self::Portable8)
    }

    /// The name, as [`SETTING`] takes it.
    pub fn name(self) -> &'static str {
        match self {
            Self::Portable8 => "portable",
            Self::Portable16 => "portable-16",
            #[cfg(target_arch = "x86_64")]
            Self::Avx2 => "avx2",
            #[cfg(target_arch = "x86_64")]
            Self::Avx512 => "avx512",
        }
    }

    /// The level that the environment asks for, the best one if it does not; an unknown or missing one is the name that was found.
    pub fn asked_for() -> Result<Self, String> {
        let Some(name) = std::env::var_os(SETTING) else { return Ok(Self::best()) };
        let found = Self::supported().into_iter().find(|level| name == level.name());
        found.ok_or_else(|| name.to_string_lossy().into_owned())
    }

    /// The level of kernels called on this thread: the forced one, else the process's.
    pub fn current() -> Self {
        FORCED.get().unwrap_or_else(|| *CHOSEN)
    }

    /// Numbers of a vector.
    pub(crate) fn lanes(self) -> usize {
        match self {
            Self::Portable8 => 8,
            Self::Portable16 => 16,
            #[cfg(target_arch = "x86_64")]
            Self::Avx2 => 8,
            #[cfg(target_arch = "x86_64")]
            Self::Avx512 => 16,
        }
    }

    /// Runs `job` compiled for this level, which must come from [`Level::current`].
    #[inline]
    pub(crate) fn run<J: Job>(self, job: J) -> J::Output {
        match self {
            Self::Portable8 => job.run(Portable::<8>),
            Self::Portable16 => job.run(Portable::<16>),
            // SAFETY: `current` returns these levels only after the processor reported the features.
            #[cfg(target_arch = "x86_64")]
            Self::Avx2 => unsafe { run_avx2(job) },
            #[cfg(target_arch = "x86_64")]
            Self::Avx512 => unsafe { run_avx512(job) },
        }
    }
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2,fma")]
fn run_avx2<J: Job>(job: J) -> J::Output {
    job.run(Avx2(()))
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx512f,avx2,fma")]
fn run_avx512<J: Job>(job: J) -> J::Output {
    job.run(Avx512(()))
}

/// Work that is compiled once per instruction set. `run` must be `#[inline(always)]`.
pub(crate) trait Job {
    type Output;
    fn run<S: Simd>(self, simd: S) -> Self::Output;
}

/// Longest vector of all instruction sets.
pub(crate) const MAX_LANES: usize = 16;

/// Length of [`Simd::Half`] of all instruction sets.
pub(crate) const MIN_LANES: usize = 8;

/// Vector operations of one instruction set. A value of the type proves that the processor has it.
pub(crate) trait Simd: Copy + Send + Sync {
    const LANES: usize;
    type V: Copy;
    /// A vector of half as many `f64`.
    type Wide: Copy;
    /// Vectors of [`MIN_LANES`]: half as long, or the same where there are no shorter ones.
    type Half: Simd;

    fn half(self) -> Self::Half;

    fn splat(self, x: f32) -> Self::V;
    /// Reads `LANES` numbers.
    ///
    /// # Safety
    /// `from` must be valid for reading `LANES` numbers; no alignment needed.
    unsafe fn read(self, from: *const f32) -> Self::V;
    /// Writes `LANES` numbers.
    ///
    /// # Safety
    /// `to` must be valid for writing `LANES` numbers; no alignment needed.
    unsafe fn write(self, v: Self::V, to: *mut f32);
    fn add(self, a: Self::V, b: Self::V) -> Self::V;
    fn sub(self, a: Self::V, b: Self::V) -> Self::V;
    fn mul(self, a: Self::V, b: Self::V) -> Self::V;
    fn div(self, a: Self::V, b: Self::V) -> Self::V;
    fn min(self, a: Self::V, b: Self::V) -> Self::V;
    fn max(self, a: Self::V, b: Self::V) -> Self::V;
    fn sqrt(self, a: Self::V) -> Self::V;
    /// `a·b + c`, fused where the processor can.
    fn mul_add(self, a: Self::V, b: Self::V, c: Self::V) -> Self::V;
    fn wide_splat(self, x: f64) -> Self::Wide;
    /// Reads `LANES / 2` numbers.
    ///
    /// # Safety
    /// As for [`Simd::read`].
    unsafe fn wide_read(self, from: *const f64) -> Self::Wide;
    /// Writes `LANES / 2` numbers.
    ///
    /// # Safety
    /// As for [`Simd::write`].
    unsafe fn wide_write(self, v: Self::Wide, to: *mut f64);
    /// `a·b + c`, fused where the processor can.
    fn wide_mul_add(self, a: Self::Wide, b: Self::Wide, c: Self::Wide) -> Self::Wide;
    /// `a` where `|b| ≤ limit`, else 0.
    fn keep_within(self, a: Self::V, b: Self::V, limit: Self::V) -> Self::V;
    /// Nearest whole number.
    fn round(self, a: Self::V) -> Self::V;
    /// `2^a` for whole `a` in −126..=127.
    fn exp2_whole(self, a: Self::V) -> Self::V;

    /// The first `LANES` numbers of `from`.
    #[inline(always)]
    fn load(self, from: &[f32]) -> Self::V {
        assert!(from.len() >= Self::LANES);
        // SAFETY: the slice has at least `LANES` numbers.
        unsafe { self.read(from.as_ptr()) }
    }

    /// Writes the first `LANES` numbers of `to`.
    #[inline(always)]
    fn store(self, v: Self::V, to: &mut [f32]) {
        assert!(to.len() >= Self::LANES);
        // SAFETY: the slice has at least `LANES` numbers.
        unsafe { self.write(v, to.as_mut_ptr()) }
    }

    /// The numbers of `from` (fewer than `LANES`), then zeros.
    #[inline(always)]
    fn load_part(self, from: &[f32]) -> Self::V {
        let mut full = [0.0; MAX_LANES];
        full[..from.len()].copy_from_slice(from);
        self.load(&full)
    }

    /// Writes as many numbers as `to` has (fewer than `LANES`).
    #[inline(always)]
    fn store_part(self, v: Self::V, to: &mut [f32]) {
        to.copy_from_slice(&self.to_array(v)[..to.len()]);
    }

    /// The lanes, then zeros.
    #[inline(always)]
    fn to_array(self, v: Self::V) -> [f32; MAX_LANES] {
        let mut full = [0.0; MAX_LANES];
        self.store(v, &mut full);
        full
    }

    /// `to[c·stride + r] = rows[r][from + c]` for 8 × 8 numbers, by increasing `c`.
    ///
    /// # Safety
    /// Every row must be valid for reading `from..from + 8`, and `to` for writing `7·stride + 8` numbers.
    #[inline(always)]
    unsafe fn transpose(self, rows: [*const f32; 8], from: usize, to: *mut f32, stride: usize) {
        for c in 0..8 {
            for r in 0..8 {
                // SAFETY: promised by the caller.
                unsafe { *to.add(c * stride + r) = *rows[r].add(from + c) };
            }
        }
    }

    /// Sum of the lanes.
    #[inline(always)]
    fn sum(self, v: Self::V) -> f32 {
        let mut x = self.to_array(v);
        let mut half = Self::LANES / 2;
        while half > 0 {
            for i in 0..half {
                x[i] += x[i + half];
            }
            half /= 2;
        }
        x[0]
    }

    /// `e^x`, relative error about 1e-7; `x` beyond ±87 is moved to ±87.
    #[inline(always)]
    fn exp(self, x: Self::V) -> Self::V {
        // e^x = 2^n e^r with n = round(x / ln 2); ln 2 in two pieces so that n·high is exact.
        const LN2_HIGH: f32 = 355.0 / 512.0;
        const LN2_LOW: f32 = (std::f64::consts::LN_2 - 355.0 / 512.0) as f32;
        let x = self.min(self.max(x, self.splat(-87.0)), self.splat(87.0));
        let n = self.round(self.mul(x, self.splat(std::f32::consts::LOG2_E)));
        let r = self.mul_add(n, self.splat(-LN2_HIGH), x);
        let r = self.mul_add(n, self.splat(-LN2_LOW), r);
        // The series to r⁷, in pairs of terms so that few operations wait for each other.
        let pair = [
            self.add(self.splat(1.0), r),
            self.mul_add(r, self.splat(1.0 / 6.0), self.splat(1.0 / 2.0)),
            self.mul_add(r, self.splat(1.0 / 120.0), self.splat(1.0 / 24.0)),
            self.mul_add(r, self.splat(1.0 / 5040.0), self.splat(1.0 / 720.0)),
        ];
        let r2 = self.mul(r, r);
        let low = self.mul_add(pair[1], r2, pair[0]);
        let high = self.mul_add(pair[3], r2, pair[2]);
        let p = self.mul_add(high, self.mul(r2, r2), low);
        self.mul(p, self.exp2_whole(n))
    }

    /// `1 / (1 + e^−x)`.
    #[inline(always)]
    fn sigmoid(self, x: Self::V) -> Self::V {
        let one = self.splat(1.0);
        self.div(one, self.add(one, self.exp(self.sub(self.splat(0.0), x))))
    }
}

/// Arrays of `L` numbers.
#[derive(Clone, Copy)]
pub(crate) struct Portable<const L: usize>;

#[inline(always)]
fn zip<const L: usize>(a: [f32; L], b: [f32; L], f: impl Fn(f32, f32) -> f32) -> [f32; L] {
    std::array::from_fn(|i| f(a[i], b[i]))
}

impl<const L: usize> Simd for Portable<L> {
    const LANES: usize = L;
    type V = [f32; L];
    type Half = Portable<MIN_LANES>;
    /// Of which the first `L / 2` count.
    type Wide = [f64; MAX_LANES / 2];

    #[inline(always)]
    fn half(self) -> Self::Half {
        Portable
    }
    #[inline(always)]
    fn splat(self, x: f32) -> Self::V {
        [x; L]
    }
    #[inline(always)]
    unsafe fn read(self, from: *const f32) -> Self::V {
        // SAFETY: promised by the caller.
        unsafe { from.cast::<[f32; L]>().read_unaligned() }
    }
    #[inline(always)]
    unsafe fn write(self, v: Self::V, to: *mut f32) {
        // SAFETY: promised by the caller.
        unsafe { to.cast::<[f32; L]>().write_unaligned(v) }
    }
    #[inline(always)]
    fn add(self, a: Self::V, b: Self::V) -> Self::V {
        zip(a, b, |a, b| a + b)
    }
    #[inline(always)]
    fn sub(self, a: Self::V, b: Self::V) -> Self::V {
        zip(a, b, |a, b| a - b)
    }
    #[inline(always)]
    fn mul(self, a: Self::V, b: Self::V) -> Self::V {
        zip(a, b, |a, b| a * b)
    }
    #[inline(always)]
    fn div(self, a: Self::V, b: Self::V) -> Self::V {
        zip(a, b, |a, b| a / b)
    }
    #[inline(always)]
    fn min(self, a: Self::V, b: Self::V) -> Self::V {
        zip(a, b, |a, b| if a < b { a } else { b })
    }
    #[inline(always)]
    fn max(self, a: Self::V, b: Self::V) -> Self::V {
        zip(a, b, |a, b| if a > b { a } else { b })
    }
    #[inline(always)]
    fn sqrt(self, a: Self::V) -> Self::V {
        a.map(f32::sqrt)
    }
    #[inline(always)]
    fn mul_add(self, a: Self::V, b: Self::V, c: Self::V) -> Self::V {
        // Without the instruction `f32::mul_add` is a slow library call.
        if cfg!(any(target_arch = "aarch64", target_feature = "fma")) {
            std::array::from_fn(|i| a[i].mul_add(b[i], c[i]))
        } else {
            std::array::from_fn(|i| a[i] * b[i] + c[i])
        }
    }
    #[inline(always)]
    fn wide_splat(self, x: f64) -> Self::Wide {
        [x; MAX_LANES / 2]
    }
    #[inline(always)]
    unsafe fn wide_read(self, from: *const f64) -> Self::Wide {
        let mut v = [0.0; MAX_LANES / 2];
        for i in 0..L / 2 {
            // SAFETY: promised by the caller.
            v[i] = unsafe { *from.add(i) };
        }
        v
    }
    #[inline(always)]
    unsafe fn wide_write(self, v: Self::Wide, to: *mut f64) {
        for i in 0..L / 2 {
            // SAFETY: promised by the caller.
            unsafe { *to.add(i) = v[i] };
        }
    }
    #[inline(always)]
    fn wide_mul_add(self, a: Self::Wide, b: Self::Wide, c: Self::Wide) -> Self::Wide {
        let mut v = c;
        for i in 0..L / 2 {
            v[i] += a[i] * b[i];
        }
        v
    }
    #[inline(always)]
    fn keep_within(self, a: Self::V, b: Self::V, limit: Self::V) -> Self::V {
        std::array::from_fn(|i| if b[i].abs() <= limit[i] { a[i] } else { 0.0 })
    }
    #[inline(always)]
    fn round(self, a: Self::V) -> Self::V {
        // Adding 1.5·2^23 leaves no bits for a fraction; good for |a| < 2^22.
        const SHIFT: f32 = 12_582_912.0;
        a.map(|a| (a + SHIFT) - SHIFT)
    }
    #[inline(always)]
    fn exp2_whole(self, a: Self::V) -> Self::V {
        a.map(|a| f32::from_bits(((a as i32 + 127) as u32) << 23))
    }
}

/// AVX2 and FMA.
#[cfg(target_arch = "x86_64")]
#[derive(Clone, Copy)]
pub(crate) struct Avx2(());

/// AVX-512F.
#[cfg(target_arch = "x86_64")]
#[derive(Clone, Copy)]
pub(crate) struct Avx512(());

/// One method of [`Simd`] per line, all of the form: an instruction that the token in `self` proves to exist.
#[cfg(target_arch = "x86_64")]
macro_rules! instructions {
    ($($name:ident($($arg:ident),*) = $body:expr;)*) => {$(
        #[inline(always)]
        fn $name(self, $($arg: Self::V),*) -> Self::V {
            // SAFETY: a value of `Self` exists only inside functions that enable the feature.
            unsafe { $body }
        }
    )*};
}

/// [`Simd::transpose`] with AVX2.
///
/// # Safety
/// As for [`Simd::transpose`], and the processor must have AVX2.
#[cfg(target_arch = "x86_64")]
#[inline(always)]
unsafe fn transpose_avx2(rows: [*const f32; 8], from: usize, to: *mut f32, stride: usize) {
    // SAFETY: promised by the caller.
    unsafe {
        let mut x = [_mm256_setzero_ps(); 8];
        for r in 0..8 {
            x[r] = _mm256_loadu_ps(rows[r].add(from));
        }
        // Pairs of rows, then quadruples, each within the halves of the vectors; then the halves themselves.
        let mut pairs = x;
        for r in (0..8).step_by(2) {
            pairs[r] = _mm256_unpacklo_ps(x[r], x[r + 1]);
            pairs[r + 1] = _mm256_unpackhi_ps(x[r], x[r + 1]);
        }
        let mut fours = x;
        for r in [0, 4] {
            fours[r] = _mm256_shuffle_ps::<0x44>(pairs[r], pairs[r + 2]);
            fours[r + 1] = _mm256_shuffle_ps::<0xEE>(pairs[r], pairs[r + 2]);
            fours[r + 2] = _mm256_shuffle_ps::<0x44>(pairs[r + 1], pairs[r + 3]);
            fours[r + 3] = _mm256_shuffle_ps::<0xEE>(pairs[r + 1], pairs[r + 3]);
        }
        for c in 0..4 {
            _mm256_storeu_ps(to.add(c * stride), _mm256_permute2f128_ps::<0x20>(fours[c], fours[c + 4]));
        }
        for c in 0..4 {
            _mm256_storeu_ps(to.add((c + 4) * stride), _mm256_permute2f128_ps::<0x31>(fours[c], fours[c + 4]));
        }
    }
}

#[cfg(target_arch = "x86_64")]
impl Simd for Avx2 {
    const LANES: usize = 8;
    type V = __m256;
    type Wide = __m256d;
    type Half = Self;

    #[inline(always)]
    fn half(self) -> Self::Half {
        self
    }
    #[inline(always)]
    fn wide_splat(self, x: f64) -> Self::Wide {
        // SAFETY: a value of `Self` exists only inside functions that enable the feature.
        unsafe { _mm256_set1_pd(x) }
    }
    #[inline(always)]
    unsafe fn wide_read(self, from: *const f64) -> Self::Wide {
        // SAFETY: as in `wide_splat`, and the caller promises that the memory is valid.
        unsafe { _mm256_loadu_pd(from) }
    }
    #[inline(always)]
    unsafe fn wide_write(self, v: Self::Wide, to: *mut f64) {
        // SAFETY: as in `wide_splat`, and the caller promises that the memory is valid.
        unsafe { _mm256_storeu_pd(to, v) }
    }
    #[inline(always)]
    fn wide_mul_add(self, a: Self::Wide, b: Self::Wide, c: Self::Wide) -> Self::Wide {
        // SAFETY: as in `wide_splat`.
        unsafe { _mm256_fmadd_pd(a, b, c) }
    }

    #[inline(always)]
    fn splat(self, x: f32) -> Self::V {
        // SAFETY: a value of `Self` exists only inside functions that enable the feature.
        unsafe { _mm256_set1_ps(x) }
    }
    #[inline(always)]
    unsafe fn read(self, from: *const f32) -> Self::V {
        // SAFETY: as in `splat`, and the caller promises that the memory is valid.
        unsafe { _mm256_loadu_ps(from) }
    }
    #[inline(always)]
    unsafe fn write(self, v: Self::V, to: *mut f32) {
        // SAFETY: as in `splat`, and the caller promises that the memory is valid.
        unsafe { _mm256_storeu_ps(to, v) }
    }
    #[inline(always)]
    unsafe fn transpose(self, rows: [*const f32; 8], from: usize, to: *mut f32, stride: usize) {
        // SAFETY: as in `splat`, and the caller promises that the memory is valid.
        unsafe { transpose_avx2(rows, from, to, stride) }
    }
    instructions! {
        add(a, b) = _mm256_add_ps(a, b);
        sub(a, b) = _mm256_sub_ps(a, b);
        mul(a, b) = _mm256_mul_ps(a, b);
        div(a, b) = _mm256_div_ps(a, b);
        min(a, b) = _mm256_min_ps(a, b);
        max(a, b) = _mm256_max_ps(a, b);
        sqrt(a) = _mm256_sqrt_ps(a);
        mul_add(a, b, c) = _mm256_fmadd_ps(a, b, c);
        keep_within(a, b, limit) = {
            let size = _mm256_andnot_ps(_mm256_set1_ps(-0.0), b);
            _mm256_and_ps(a, _mm256_cmp_ps::<_CMP_LE_OQ>(size, limit))
        };
        round(a) = _mm256_round_ps::<{ _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC }>(a);
        exp2_whole(a) = {
            let biased = _mm256_add_epi32(_mm256_cvtps_epi32(a), _mm256_set1_epi32(127));
            _mm256_castsi256_ps(_mm256_slli_epi32::<23>(biased))
        };
    }
}

#[cfg(target_arch = "x86_64")]
impl Simd for Avx512 {
    const LANES: usize = 16;
    type V = __m512;
    type Wide = __m512d;
    type Half = Avx2;

    #[inline(always)]
    fn half(self) -> Self::Half {
        // Processors with AVX-512 have AVX2, and `run_avx512` enables it.
        Avx2(())
    }
    #[inline(always)]
    fn wide_splat(self, x: f64) -> Self::Wide {
        // SAFETY: a value of `Self` exists only inside functions that enable the feature.
        unsafe { _mm512_set1_pd(x) }
    }
    #[inline(always)]
    unsafe fn wide_read(self, from: *const f64) -> Self::Wide {
        // SAFETY: as in `wide_splat`, and the caller promises that the memory is valid.
        unsafe { _mm512_loadu_pd(from) }
    }
    #[inline(always)]
    unsafe fn wide_write(self, v: Self::Wide, to: *mut f64) {
        // SAFETY: as in `wide_splat`, and the caller promises that the memory is valid.
        unsafe { _mm512_storeu_pd(to, v) }
    }
    #[inline(always)]
    fn wide_mul_add(self, a: Self::Wide, b: Self::Wide, c: Self::Wide) -> Self::Wide {
        // SAFETY: as in `wide_splat`.
        unsafe { _mm512_fmadd_pd(a, b, c) }
    }

    #[inline(always)]
    fn splat(self, x: f32) -> Self::V {
        // SAFETY: a value of `Self` exists only inside functions that enable the feature.
        unsafe { _mm512_set1_ps(x) }
    }
    #[inline(always)]
    unsafe fn read(self, from: *const f32) -> Self::V {
        // SAFETY: as in `splat`, and the caller promises that the memory is valid.
        unsafe { _mm512_loadu_ps(from) }
    }
    #[inline(always)]
    unsafe fn write(self, v: Self::V, to: *mut f32) {
        // SAFETY: as in `splat`, and the caller promises that the memory is valid.
        unsafe { _mm512_storeu_ps(to, v) }
    }
    #[inline(always)]
    unsafe fn transpose(self, rows: [*const f32; 8], from: usize, to: *mut f32, stride: usize) {
        // SAFETY: as in `splat`, and the caller promises that the memory is valid.
        unsafe { transpose_avx2(rows, from, to, stride) }
    }
    instructions! {
        add(a, b) = _mm512_add_ps(a, b);
        sub(a, b) = _mm512_sub_ps(a, b);
        mul(a, b) = _mm512_mul_ps(a, b);
        div(a, b) = _mm512_div_ps(a, b);
        min(a, b) = _mm512_min_ps(a, b);
        max(a, b) = _mm512_max_ps(a, b);
        sqrt(a) = _mm512_sqrt_ps(a);
        mul_add(a, b, c) = _mm512_fmadd_ps(a, b, c);
        keep_within(a, b, limit) = {
            let inside = _mm512_cmp_ps_mask::<_CMP_LE_OQ>(_mm512_abs_ps(b), limit);
            _mm512_maskz_mov_ps(inside, a)
        };
        round(a) = _mm512_roundscale_ps::<{ _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC }>(a);
        exp2_whole(a) = {
            let biased = _mm512_add_epi32(_mm512_cvtps_epi32(a), _mm512_set1_epi32(127));
            _mm512_castsi512_ps(_mm512_slli_epi32::<23>(biased))
        };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Exp<'a>(&'a mut [f32]);

    impl Job for Exp<'_> {
        type Output = ();
        #[inline(always)]
        fn run<S: Simd>(self, s: S) {
            for x in self.0.chunks_exact_mut(S::LANES) {
                let y = s.exp(s.load(x));
                s.store(y, x);
            }
        }
    }

    #[test]
    fn exp_agrees_with_double_precision() {
        let x: Vec<f32> = (0..1_760_000).map(|i| (i as f32 - 880_000.0) * 1e-4).filter(|x| x.abs() < 87.0).collect();
        let x = &x[..x.len() / 16 * 16];
        for level in Level::supported() {
            let mut y = x.to_vec();
            level.run(Exp(&mut y));
            for (x, y) in x.iter().zip(y) {
                let exact = f64::from(*x).exp();
                assert!((f64::from(y) - exact).abs() < 3e-7 * exact, "{level:?}: exp({x}) = {y}");
            }
        }
    }

    #[test]
    fn lanes_are_summed_once_each() {
        struct Sum(Vec<f32>);
        impl Job for Sum {
            type Output = (f32, f32);
            #[inline(always)]
            fn run<S: Simd>(self, s: S) -> (f32, f32) {
                (s.sum(s.load(&self.0)), (S::LANES * (S::LANES + 1) / 2) as f32)
            }
        }
        for level in Level::supported() {
            let (sum, exact) = level.run(Sum((1..=16_u8).map(f32::from).collect()));
            assert_eq!(sum, exact);
        }
    }
}
