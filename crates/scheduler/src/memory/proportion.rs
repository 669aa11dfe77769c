//! What b ≥ 0 alone says about one load from another, whatever b is.

use crate::Load;

/// The least c ≥ 1 such that `load` takes at most c times what `known` takes; infinite if `load` has
/// tokens and `known` has none.
pub(super) fn at_most(load: Load, known: Load) -> f64 {
    let [tokens, squared] = ratios(load, known);
    // 0 of 0 is NaN, which `max` and `min` pass over: such a term says nothing.
    1.0_f64.max(tokens).max(squared)
}

/// The largest c ≤ 1 such that `load` takes at least c times what `known` takes.
pub(super) fn at_least(load: Load, known: Load) -> f64 {
    let [tokens, squared] = ratios(load, known);
    1.0_f64.min(tokens).min(squared)
}

fn ratios(load: Load, known: Load) -> [f64; 2] {
    [
        load.tokens as f64 / known.tokens as f64,
        load.squared_tokens as f64 / known.squared_tokens as f64,
    ]
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::{at_least, at_most};
    use crate::{Coefficients, Load};

    fn load(tokens: u64, squared_tokens: u64) -> Load {
        Load {
            tokens,
            squared_tokens,
            adapter_bytes: 0,
        }
    }

    #[test]
    fn terms_that_are_zero_say_nothing() {
        let check = |a, b, most: f64, least: f64| {
            let found = (at_most(a, b), at_least(a, b));
            assert_eq!(found, (most, least));
        };
        check(load(0, 0), load(0, 0), 1.0, 1.0);
        check(load(4, 0), load(2, 0), 2.0, 1.0);
        check(load(2, 9), load(4, 3), 3.0, 0.5);
        check(load(4, 4), load(0, 4), f64::INFINITY, 1.0);
        check(load(0, 4), load(4, 4), 1.0, 0.0);
    }

    proptest! {
        #[test]
        fn they_hold_for_every_b(
            b in prop::array::uniform3(0.0..1e6_f64),
            a in (0_u64..5000, 0_u64..5_000_000),
            known in (0_u64..5000, 0_u64..5_000_000),
        ) {
            let b = Coefficients::new(b[0], b[1], b[2]).unwrap();
            let (a, known) = (load(a.0, a.1), load(known.0, known.1));
            let bytes = b.bytes(a);
            prop_assert!(bytes <= b.bytes(known) * at_most(a, known) * (1.0 + 1e-12));
            prop_assert!(bytes >= b.bytes(known) * at_least(a, known) * (1.0 - 1e-12));
        }
    }
}
