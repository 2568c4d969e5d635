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
