//! What b ≥ 0 alone says about one load from another, whatever b is.

use super::coefficients::{Coefficients, terms};
use crate::Load;

/// The least c ≥ 1 such that `load` takes at most c times what `known` takes; infinite if `load` has
/// tokens and `known` has none.
pub(super) fn at_most(load: Load, known: Load) -> f64 {
    let [tokens, squared] = ratios(load, known);
    // 0 of 0 is NaN, which `max` and `min` pass over: such a term says nothing.
    1.0_f64.max(tokens).max(squared)
}

/// The least c such that `load` takes at most c times what `known` takes, if b is `like` with each
/// coefficient multiplied by something, the largest of these at most `skew` times the smallest.
/// Coefficients of which `like` has 0 may be anything.
pub(super) fn at_most_like(like: Coefficients, skew: f64, load: Load, known: Load) -> f64 {
    let b = [like.base(), like.per_token(), like.per_squared_token()];
    let (of_load, of_known) = (terms(load), terms(known));
    // A ratio of two linear functions is largest in a corner of what the factors may be.
    let corners = (0..8).map(|corner| {
        let sum = |terms: [f64; 3]| {
            let factor = |term: usize| if corner >> term & 1 == 1 { skew } else { 1.0 };
            (0..3).map(|k| b[k] * factor(k) * terms[k]).sum::<f64>()
        };
        sum(of_load) / sum(of_known)
    });
    let anything = (0..3)
        .filter(|&k| b[k] == 0.0)
        .map(|k| of_load[k] / of_known[k]);
    corners.chain(anything).fold(0.0, f64::max)
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

    use super::{at_least, at_most, at_most_like};
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

        #[test]
        fn they_hold_for_every_b_like_another(
            like in prop::array::uniform3(prop_oneof![1 => Just(0.0), 4 => 0.1..10.0_f64]),
            factors in prop::array::uniform3(1.0..4.0_f64), anything in 0.0..1e3_f64,
            scale in 0.1..10.0_f64,
            a in (0_u64..5000, 0_u64..5000), known in (0_u64..5000, 0_u64..5000),
        ) {
            let b = [0, 1, 2].map(|k| match like[k] {
                0.0 => anything,
                like => like * factors[k] * scale,
            });
            let b = Coefficients::new(b[0], b[1], b[2]).unwrap();
            let like = Coefficients::new(like[0], like[1], like[2]).unwrap();
            let (a, known) = (load(a.0, a.1), load(known.0, known.1));
            let times = at_most_like(like, 4.0, a, known);
            prop_assert!(b.bytes(a) <= b.bytes(known) * times * (1.0 + 1e-12));
            prop_assert!(times <= at_most(a, known) * (1.0 + 1e-12));
            prop_assert!(at_most_like(like, 1.0, a, known) <= times);
        }
    }
}
