/// Units from large to small, with their bytes.
const UNITS: [(&str, f64); 4] = [
    ("GiB", 1_073_741_824.0),
    ("MiB", 1_048_576.0),
    ("KiB", 1024.0),
    ("B", 1.0),
];

/// Most decimals of a size; a GiB then shows single bytes.
const MOST_DECIMALS: usize = 9;

/// Bytes for people, in the largest unit that they fill once rounded, with three digits, and four from 1000 on.
pub fn size(bytes: u64) -> String {
    for (unit, size) in UNITS {
        let value = bytes as f64 / size;
        let decimals = match value {
            _ if size <= 1.0 => 0,
            99.95.. => 0,
            9.995.. => 1,
            _ => 2,
        };
        if value >= 1.0 - 0.5 / 1024.0 {
            return format!("{value:.decimals$} {unit}");
        }
    }
    format!("{bytes} B")
}

/// Two sizes, with enough decimals to show that they differ.
pub fn sizes(one: u64, other: u64) -> [String; 2] {
    let sizes = [one, other].map(size);
    if one == other || sizes[0] != sizes[1] {
        return sizes;
    }
    let scale = Scale::that_tells_apart(one, other);
    [one, other].map(|bytes| scale.write(bytes))
}

/// The largest unit that these bytes fill, and its bytes.
fn unit(bytes: u64) -> (&'static str, f64) {
    let fitting = UNITS.into_iter().find(|(_, size)| bytes as f64 >= *size);
    fitting.unwrap_or(("B", 1.0))
}

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
        let (unit, size) = unit(bytes);
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

    /// As [`write`](Self::write), in a smaller unit if this one would leave less than two digits.
    pub(super) fn write_small(self, bytes: u64) -> String {
        if self.steps(bytes) < 10 {
            size(bytes)
        } else {
            self.write(bytes)
        }
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

#[cfg(test)]
mod tests {
    use super::{Scale, size, sizes};

    #[test]
    fn sizes_have_three_digits_or_as_many_as_tell_them_apart() {
        for (bytes, shown) in [
            (0, "0 B"),
            (1023, "1023 B"),
            (1024, "1.00 KiB"),
            (10_239, "10.0 KiB"),
            (12_345, "12.1 KiB"),
            (102_399, "100 KiB"),
            (1_048_063, "1023 KiB"),
            (1_048_064, "1.00 MiB"),
            (1_048_575, "1.00 MiB"),
            (1 << 20, "1.00 MiB"),
            (3 << 29, "1.50 GiB"),
            (250 << 30, "250 GiB"),
        ] {
            assert_eq!(size(bytes), shown, "{bytes}");
        }
        assert_eq!(sizes(9 << 30, 1 << 20), ["9.00 GiB", "1.00 MiB"]);
        assert_eq!(
            sizes((8 << 30) + 1, 8 << 30),
            ["8.000000001 GiB", "8.000000000 GiB"]
        );
        assert_eq!(sizes(8 << 30, 8 << 30), ["8.00 GiB", "8.00 GiB"]);
    }

    #[test]
    fn sizes_that_differ_look_different() {
        let limit = 8 << 30;
        let write = |bytes| Scale::that_tells_apart(bytes, limit).write(bytes);
        assert_eq!(write(9 << 30), "9.0 GiB");
        assert_eq!(write(limit + (20 << 20)), "8.02 GiB");
        assert_eq!(write(limit + 1), "8.000000001 GiB");
        assert_eq!(write(limit), "8.0 GiB");
    }

    #[test]
    fn a_small_limit_is_not_zero() {
        let scale = Scale::that_tells_apart(9 << 30, 60 << 20);
        assert_eq!(scale.write_small(60 << 20), "60.0 MiB");
        assert_eq!(scale.write_small(1 << 30), "1.0 GiB");
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
