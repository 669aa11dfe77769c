/// Units from large to small, with their bytes.
const UNITS: [(&str, f64); 4] = [
    ("GiB", 1_073_741_824.0),
    ("MiB", 1_048_576.0),
    ("KiB", 1024.0),
    ("B", 1.0),
];

/// Most decimals of a size; a GiB then shows single bytes.
const MOST_DECIMALS: usize = 9;

/// A size of fewer units of the last digit is written in a smaller unit.
const FEWEST_STEPS: u64 = 10;

/// One unit and precision for sizes that are compared with each other.
#[derive(Debug, Clone, Copy)]
pub(super) struct Scale {
    unit: &'static str,
    bytes: f64,
    decimals: usize,
}

impl Scale {
    /// For sizes of about this many bytes, with one decimal.
    pub(super) fn of(bytes: u64) -> Self {
        let fitting = UNITS.into_iter().find(|(_, size)| bytes as f64 >= *size);
        let (unit, size) = fitting.unwrap_or(("B", 1.0));
        let decimals = usize::from(size > 1.0);
        Self {
            unit,
            bytes: size,
            decimals,
        }
    }

    /// With enough decimals to show that two different sizes differ.
    pub(super) fn that_tells_apart(one: u64, other: u64) -> Self {
        let mut scale = Self::of(one.max(other));
        while one != other
            && scale.steps(one) == scale.steps(other)
            && scale.decimals < MOST_DECIMALS
        {
            scale.decimals += 1;
        }
        scale
    }

    /// The size, rounded.
    pub(super) fn write(self, bytes: u64) -> String {
        self.write_steps(self.steps(bytes))
    }

    /// The size, rounded; of one too small for this unit, in its own.
    pub(super) fn write_small(self, bytes: u64) -> String {
        let fits = bytes == 0 || self.steps(bytes) >= FEWEST_STEPS;
        if fits { self } else { Self::of(bytes) }.write(bytes)
    }

    /// `whole - part`, rounded such that the three written sizes add up.
    pub(super) fn write_rest(self, whole: u64, part: u64) -> String {
        self.write_steps(self.steps(whole).saturating_sub(self.steps(part)))
    }

    /// The size in units of the last digit.
    fn steps(self, bytes: u64) -> u64 {
        (bytes as f64 / self.bytes * self.steps_per_unit()).round() as u64
    }

    fn write_steps(self, steps: u64) -> String {
        let decimals = self.decimals;
        let value = steps as f64 / self.steps_per_unit();
        format!("{value:.decimals$} {}", self.unit)
    }

    fn steps_per_unit(self) -> f64 {
        10_f64.powi(self.decimals as i32)
    }
}

/// Two sizes for people, with enough decimals to show that they differ.
pub fn compared_sizes(one: u64, other: u64) -> [String; 2] {
    let scale = Scale::that_tells_apart(one, other);
    [one, other].map(|bytes| scale.write_small(bytes))
}

#[cfg(test)]
mod tests {
    use super::{Scale, compared_sizes};

    #[test]
    fn sizes_that_differ_look_different() {
        let limit = 8 << 30;
        let write = |bytes| Scale::that_tells_apart(bytes, limit).write(bytes);
        assert_eq!(write(9 << 30), "9.0 GiB");
        assert_eq!(write(limit + (20 << 20)), "8.02 GiB");
        assert_eq!(write(limit + 1), "8.000000001 GiB");
        assert_eq!(write(limit), "8.0 GiB");
        for (other, expected) in [
            (limit + 1, ["8.000000000 GiB", "8.000000001 GiB"]),
            (limit, ["8.0 GiB", "8.0 GiB"]),
            (1 << 20, ["8.0 GiB", "1.0 MiB"]),
            (0, ["8.0 GiB", "0.0 GiB"]),
        ] {
            assert_eq!(compared_sizes(limit, other), expected);
        }
    }

    #[test]
    fn parts_add_up_as_they_are_written() {
        let scale = Scale::of(9 << 30);
        let (whole, part) = (9_770_000_000, 8_740_000_000);
        assert_eq!(scale.write(whole), "9.1 GiB");
        assert_eq!(scale.write(part), "8.1 GiB");
        assert_eq!(scale.write_rest(whole, part), "1.0 GiB");
        assert_eq!(scale.write_rest(part, whole), "0.0 GiB");
    }
}
