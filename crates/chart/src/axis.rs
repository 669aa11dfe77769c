/// Marks of an axis at round numbers, and how to write them.
#[derive(Debug, Clone, PartialEq)]
pub struct Axis {
    /// Values of the marks, ascending.
    pub marks: Vec<f64>,
    /// Digits after the point that tell them apart.
    pub decimals: usize,
}

impl Axis {
    /// Marks from 0 to `highest`, at most `most` apart from that at 0.
    pub fn from_zero(highest: f64, most: usize) -> Self {
        if !(highest > 0.0 && highest.is_finite()) {
            return Self {
                marks: vec![0.0],
                decimals: 0,
            };
        }
        let distance = round_up(highest / most.max(1) as f64);
        // A mark at the highest value is kept if the division comes out a rounding error below.
        let count = (highest / distance * (1.0 + 1e-9)) as usize;
        Self {
            marks: (0..=count).map(|mark| mark as f64 * distance).collect(),
            decimals: (-distance.log10().floor()).clamp(0.0, 12.0) as usize,
        }
    }
}

/// The next 1, 2 or 5 times a power of ten.
pub fn round_up(value: f64) -> f64 {
    let power = 10f64.powf(value.log10().floor());
    [1.0, 2.0, 5.0]
        .into_iter()
        .map(|factor| factor * power)
        .find(|&rounded| rounded >= value * (1.0 - 1e-9))
        .unwrap_or(10.0 * power)
}

#[cfg(test)]
mod tests {
    use super::Axis;

    #[test]
    fn marks_are_round_and_as_many_as_asked_for() {
        let cases: [(f64, &[f64], usize); 6] = [
            (0.0, &[0.0], 0),
            (1.0, &[0.0, 0.5, 1.0], 1),
            (148.0, &[0.0, 50.0, 100.0], 0),
            (1165.0, &[0.0, 500.0, 1000.0], 0),
            (0.3, &[0.0, 0.1, 0.2, 0.3], 1),
            (0.0021, &[0.0, 0.001, 0.002], 3),
        ];
        for (highest, marks, decimals) in cases {
            let axis = Axis::from_zero(highest, 3);
            assert_eq!(axis.marks.len(), marks.len(), "{highest}: {axis:?}");
            for (mark, expected) in axis.marks.iter().zip(marks) {
                assert!((mark - expected).abs() < 1e-12, "{highest}: {axis:?}");
            }
            assert_eq!(axis.decimals, decimals, "{highest}");
        }
    }
}
