//! Dealing out whole units by weight: the same code with the same numbers gives the same parts in every
//! region.

use smallvec::SmallVec;

/// One part in this many is dealt out equally, whatever the weights.
const EQUAL_PART: u64 = 5;
/// Weights are shortened to this many bits in all.
const WEIGHT_BITS: u32 = 20;
/// Below 2^this products fit in 64 bits.
const NARROW_BITS: u32 = 32;

/// Weights of regions in the order of their names.
pub(super) type Weights = SmallVec<[u64; 8]>;

/// What `own` (a place in `weights`) gets of `units`: a fifth of all is dealt out equally and the rest by
/// weight, what does not divide goes by the largest remainder, ties by order.
pub(super) fn allotted(units: u64, weights: &Weights, own: usize) -> u64 {
    let regions = weights.len() as u64;
    if regions <= 1 {
        return units;
    }
    let sum: u64 = weights.iter().sum();
    let excess = (u64::BITS - sum.leading_zeros()).saturating_sub(WEIGHT_BITS);
    let sum: u64 = weights.iter().map(|weight| weight >> excess).sum();
    let part = |weight: u64| match sum {
        0 => 1,
        sum => sum + (EQUAL_PART - 1) * regions * (weight >> excess),
    };
    let of = match sum {
        0 => regions,
        sum => EQUAL_PART * regions * sum,
    };
    // The part of a region in whole units, and what is over.
    let divided = |weight: u64| {
        if units >> NARROW_BITS == 0 {
            let product = units * part(weight);
            (product / of, product % of)
        } else {
            let product = u128::from(units) * u128::from(part(weight));
            let whole = product / u128::from(of);
            let over = product % u128::from(of);
            (
                u64::try_from(whole).unwrap_or(u64::MAX),
                u64::try_from(over).unwrap_or(u64::MAX),
            )
        }
    };
    let (whole, over) = divided(weights[own]);
    let (mut dealt, mut before) = (0_u64, 0_u64);
    for (place, weight) in weights.iter().enumerate() {
        let (their_whole, their_over) = divided(*weight);
        dealt += their_whole;
        if their_over > over || (their_over == over && place < own) {
            before += 1;
        }
    }
    whole + u64::from(before < units - dealt)
}

#[cfg(test)]
mod tests {
    use proptest::collection::vec;
    use proptest::prelude::any;
    use proptest::prop_assert;
    use proptest::prop_assert_eq;
    use proptest::prop_oneof;
    use proptest::proptest;

    use super::*;

    fn all(units: u64, weights: &[u64]) -> Vec<u64> {
        let weights = Weights::from_slice(weights);
        (0..weights.len())
            .map(|own| allotted(units, &weights, own))
            .collect()
    }

    #[test]
    fn units_go_by_weight_and_the_last_ones_by_what_is_over() {
        assert_eq!(all(100, &[3, 1]), [70, 30]);
        assert_eq!(all(100, &[0, 0, 0]), [34, 33, 33]);
        assert_eq!(all(100, &[0, 7, 0, 0]), [5, 85, 5, 5]);
        assert_eq!(all(1, &[1, 5, 5]), [0, 1, 0]);
        assert_eq!(all(2, &[1, 5, 5]), [0, 1, 1]);
        assert_eq!(all(7, &[9]), [7]);
        assert_eq!(all(u64::MAX, &[1 << 40, 1 << 40]), [1 << 63, (1 << 63) - 1]);
    }

    proptest! {
        #[test]
        fn all_units_are_dealt_out_and_more_weight_gets_no_less(
            units in prop_oneof![0_u64..100, any::<u64>()],
            weights in vec(prop_oneof![0_u64..20, 0_u64..(1 << 40)], 1..32),
        ) {
            let dealt = all(units, &weights);
            let sum: u128 = dealt.iter().map(|units| u128::from(*units)).sum();
            prop_assert_eq!(sum, u128::from(units));
            for (one, gets) in weights.iter().zip(&dealt) {
                for (other, others) in weights.iter().zip(&dealt) {
                    prop_assert!(one <= other || gets + 1 >= *others);
                }
            }
        }
    }
}
