use serde::{Deserialize, Deserializer, Serialize, Serializer, de::Error};

/// A number that keeps its bits in JSON, also if it is not finite. It is written as text.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct ExactF64(pub(crate) f64);

impl Serialize for ExactF64 {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(&format_args!("{:?}", self.0))
    }
}

impl<'de> Deserialize<'de> for ExactF64 {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        text.parse().map(Self).map_err(D::Error::custom)
    }
}

#[cfg(test)]
mod tests {
    use super::ExactF64;

    #[test]
    fn every_number_comes_back_with_its_bits() {
        let mut word = 1_u64;
        let mut numbers = vec![
            0.0,
            -0.0,
            0.1,
            1e300,
            f64::MIN_POSITIVE / 8.0,
            f64::INFINITY,
        ];
        for _ in 0..2000 {
            word = word.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(1);
            numbers.push(f64::from_bits(word));
        }
        for number in numbers.into_iter().filter(|number| !number.is_nan()) {
            let text = serde_json::to_string(&ExactF64(number)).expect("text");
            let back: ExactF64 = serde_json::from_str(&text).expect("a number");
            assert_eq!(back.0.to_bits(), number.to_bits(), "{text}");
        }
    }
}
