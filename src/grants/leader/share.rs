//! Who gets how much of what is left, by demand. Integers only.

use crate::domain::time::Span;

/// Demand that is not told again halves in this time: by e in 3 s.
const HALF_LIFE_NANOS: u64 = 2_079_441_542;
/// No region's share of a pool falls below a fifth of an equal one. Half of a share is handed out at once,
/// so this is the divisor of pool / regions.
const FLOOR_DIVISOR: u128 = 10;

/// `demand` after it was not told for `age`.
pub(super) fn decayed(demand: u64, age: Span) -> u64 {
    let halvings = age.as_nanos() / HALF_LIFE_NANOS;
    let rest = u128::from(age.as_nanos() % HALF_LIFE_NANOS);
    let whole = match u32::try_from(halvings) {
        Ok(halvings) if halvings < u64::BITS => demand >> halvings,
        _ => 0,
    };
    // Straight between two halvings.
    let lost = u128::from(whole) * rest / (2 * u128::from(HALF_LIFE_NANOS));
    whole - u64::try_from(lost).unwrap_or(whole)
}

/// What a region may take beyond its need of `free` units: half of its share.
pub(super) fn half_share(free: u64, own: u64, of_all: u128, regions: usize) -> u64 {
    let free = u128::from(free);
    let regions = regions.max(1) as u128;
    let least = free / (FLOOR_DIVISOR * regions);
    let by_demand = if of_all == 0 {
        free / (2 * regions)
    } else {
        // Below 2^65 · 2^64 / 2, since `own` is part of `of_all`.
        free * u128::from(own).min(of_all) / (2 * of_all)
    };
    u64::try_from(by_demand.max(least)).unwrap_or(u64::MAX)
}

/// One that waits for units.
#[derive(Clone, Copy, Debug)]
pub(super) struct Claim {
    pub(super) demand: u64,
    pub(super) need: u64,
}

/// Deals `free` units out by demand, to each at most its need, until either is used up. Units too few to be
/// shared go one by one in the order of `claims`.
pub(super) fn deal(free: u64, claims: &[Claim]) -> Vec<u64> {
    let mut dealt = vec![0_u64; claims.len()];
    let mut left = free;
    while left > 0 {
        let is_open = |(place, claim): &(usize, &Claim)| {
            dealt.get(*place).is_some_and(|dealt| *dealt < claim.need)
        };
        let open: Vec<(usize, Claim)> = claims
            .iter()
            .enumerate()
            .filter(is_open)
            .map(|(place, claim)| (place, *claim))
            .collect();
        if open.is_empty() {
            break;
        }
        let weight = |claim: &Claim| u128::from(claim.demand.max(1));
        let of_all: u128 = open.iter().map(|(_, claim)| weight(claim)).sum();
        let at_start = u128::from(left);
        let before = left;
        for (place, claim) in &open {
            let share = at_start * weight(claim) / of_all;
            let share = u64::try_from(share).unwrap_or(u64::MAX);
            let given = share.min(claim.need - dealt[*place]).min(left);
            dealt[*place] += given;
            left -= given;
        }
        if left == before {
            for (place, _) in open
                .iter()
                .take(usize::try_from(left).unwrap_or(usize::MAX))
            {
                dealt[*place] += 1;
                left -= 1;
            }
        }
    }
    dealt
}

#[cfg(test)]
mod tests {
    use proptest::collection::vec;
    use proptest::prop_assert;
    use proptest::prop_assert_eq;
    use proptest::proptest;

    use super::*;

    #[test]
    fn demand_falls_by_e_in_three_seconds() {
        assert_eq!(decayed(1_000_000, Span::ZERO), 1_000_000);
        let after = decayed(1_000_000, Span::from_seconds(3));
        assert!((360_000..400_000).contains(&after), "{after}");
        let after = decayed(1_000_000, Span::from_seconds(30));
        assert!((40..60).contains(&after), "{after}");
        assert_eq!(decayed(u64::MAX, Span::MAX), 0);
    }

    #[test]
    fn half_a_share_goes_by_demand_and_never_below_the_floor() {
        assert_eq!(half_share(100, 30, 60, 3), 25);
        assert_eq!(half_share(100, 0, 60, 5), 2);
        assert_eq!(half_share(100, 0, 0, 5), 10);
        assert_eq!(
            half_share(u64::MAX, u64::MAX, u128::from(u64::MAX), 1),
            u64::MAX / 2
        );
        assert_eq!(half_share(1, 1, 1, 1), 0);
    }

    #[test]
    fn units_are_dealt_by_demand_and_the_last_ones_in_order() {
        let claim = |demand, need| Claim { demand, need };
        assert_eq!(deal(10, &[claim(3, 100), claim(1, 100)]), [8, 2]);
        assert_eq!(deal(10, &[claim(3, 2), claim(1, 100)]), [2, 8]);
        assert_eq!(deal(1, &[claim(5, 1), claim(5, 1)]), [1, 0]);
        assert_eq!(deal(10, &[claim(0, 1), claim(0, 1)]), [1, 1]);
        assert_eq!(deal(10, &[]), [0_u64; 0]);
    }

    proptest! {
        #[test]
        fn nothing_is_left_while_someone_waits(
            free in proptest::prop_oneof![0_u64..50, proptest::prelude::any::<u64>()],
            claims in vec((0_u64..1_000, 0_u64..40), 0..8),
        ) {
            let claims: Vec<Claim> = claims
                .into_iter()
                .map(|(demand, need)| Claim { demand, need })
                .collect();
            let dealt = deal(free, &claims);
            let sum: u64 = dealt.iter().sum();
            let needed: u64 = claims.iter().map(|claim| claim.need).sum();
            prop_assert_eq!(sum, free.min(needed));
            for (dealt, claim) in dealt.iter().zip(&claims) {
                prop_assert!(*dealt <= claim.need);
            }
        }
    }
}
