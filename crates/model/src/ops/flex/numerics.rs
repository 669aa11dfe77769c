//! Scalar functions that compilers turn into vector code when they are inlined into loops over
//! fixed numbers of lanes.

#![expect(
    clippy::inline_always,
    reason = "they must take on the instruction set of the loop they are called from"
)]

/// Lanes that reductions run side by side.
pub(super) const LANES: usize = 16;

/// `e^x` to about one unit in the last place, saturating where `float32` ends; NaN stays NaN.
///
/// Reduction to `[-ln2/2, ln2/2]` and a polynomial of degree 6 (the coefficients of Cephes' `expf`,
/// S. Moshier).
#[inline(always)]
pub(super) fn exp(x: f32) -> f32 {
    const LN2_HIGH: f32 = 0.693_359_4;
    const LN2_LOW: f32 = -2.121_944_4e-4;
    /// Adding it leaves the nearest integer in the low bits.
    const ROUND: f32 = 12_582_912.0;
    // Comparisons, not `clamp`'s `max` and `min`: those would turn NaN into a number.
    let x = if x < -87.0 { -87.0 } else { x };
    let x = if x > 88.0 { 88.0 } else { x };
    let shifted = x * std::f32::consts::LOG2_E + ROUND;
    let n = shifted - ROUND;
    let r = x - n * LN2_HIGH - n * LN2_LOW;
    let mut p = 1.987_569_1e-4;
    for coefficient in [
        1.398_199_9e-3,
        8.333_452e-3,
        4.166_579_6e-2,
        0.166_666_65,
        0.5,
    ] {
        p = p * r + coefficient;
    }
    let mantissa = p * r * r + r + 1.0;
    let power = f32::from_bits(shifted.to_bits().wrapping_add(127) << 23);
    mantissa * power
}

/// `tanh(x)` to three units in the last place: by [`exp`], and by a polynomial near zero, where that
/// would cancel (the coefficients of Cephes' `tanhf`, S. Moshier).
#[inline(always)]
pub(super) fn tanh(x: f32) -> f32 {
    let square = x * x;
    let mut p = -5.704_989e-3;
    for coefficient in [2.063_909e-2, -5.373_971_5e-2, 0.133_314_42, -0.333_332_8] {
        p = p * square + coefficient;
    }
    let near = p * square * x + x;
    let far = 1.0 - 2.0 / (exp(2.0 * x) + 1.0);
    if x.abs() < 0.625 { near } else { far }
}

/// `Σ f(i)` over `0..length`, in lanes: always the same order for the same length.
#[inline(always)]
pub(super) fn sum(length: usize, f: impl Fn(usize) -> f32) -> f32 {
    let mut lanes = [0f32; LANES];
    let whole = length - length % LANES;
    let mut base = 0;
    while base < whole {
        for (lane, sum) in lanes.iter_mut().enumerate() {
            *sum += f(base + lane);
        }
        base += LANES;
    }
    for index in whole..length {
        lanes[index - whole] += f(index);
    }
    let mut width = LANES / 2;
    while width > 0 {
        for lane in 0..width {
            lanes[lane] += lanes[lane + width];
        }
        width /= 2;
    }
    lanes[0]
}

/// The largest element; NaN is skipped, and shows in the result.
#[inline(always)]
pub(super) fn largest(x: &[f32]) -> f32 {
    let mut lanes = [f32::NEG_INFINITY; LANES];
    let (chunks, rest) = x.as_chunks::<LANES>();
    for chunk in chunks {
        for (lane, &x) in lanes.iter_mut().zip(chunk) {
            *lane = if x > *lane { x } else { *lane };
        }
    }
    rest.iter()
        .chain(&lanes)
        .fold(f32::NEG_INFINITY, |a, &b| a.max(b))
}

#[cfg(test)]
#[expect(clippy::float_cmp, reason = "small integers are exact")]
mod tests {
    use super::*;

    #[test]
    fn exp_is_accurate_and_keeps_nan() {
        let mut x = -86.9f32;
        while x < 87.9 {
            let exact = f64::from(x).exp();
            let error = (f64::from(exp(x)) - exact).abs() / exact;
            assert!(error < 2.0 * f64::from(f32::EPSILON), "exp({x}): {error:e}");
            x += 0.000_97;
        }
        assert!(exp(f32::NAN).is_nan());
        assert!(exp(-1000.0) < 1e-37);
        assert!(exp(1000.0) > 1e38);
    }

    #[test]
    fn tanh_is_accurate_and_keeps_nan() {
        let mut x = -12f32;
        while x < 12.0 {
            let exact = f64::from(x).tanh();
            let error = (f64::from(tanh(x)) - exact).abs();
            assert!(error <= 3e-7 * exact.abs(), "tanh({x}): {error:e}");
            x += 0.000_37;
        }
        assert!(tanh(f32::NAN).is_nan());
        assert_eq!([tanh(1e9), tanh(-1e9)], [1.0, -1.0]);
    }

    #[test]
    fn sum_and_largest_of_any_length() {
        for length in [0, 1, 15, 16, 17, 100] {
            let x: Vec<f32> = (0..length).map(|i| i as f32 - 3.0).collect();
            assert_eq!(sum(length, |i| x[i]), x.iter().sum::<f32>());
            let expected = x.iter().copied().fold(f32::NEG_INFINITY, f32::max);
            assert_eq!(largest(&x), expected);
        }
    }
}
