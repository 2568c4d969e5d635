//! Numbers that look random and follow from a seed: for what must be the same again, and for nothing secret.

use crate::domain::time::Span;

/// A sequence of numbers that looks random and follows from its seed.
#[derive(Clone, Debug)]
pub struct Draws(u64);

impl Draws {
    /// The sequence of `seed`.
    pub const fn new(seed: u64) -> Self {
        Self(seed)
    }

    /// The next number (splitmix64).
    pub const fn draw(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// A span of at most `most`.
    pub fn up_to(&mut self, most: Span) -> Span {
        let whole = u128::from(most.as_nanos()) * u128::from(self.draw()) / u128::from(u64::MAX);
        Span::from_nanos_saturating(whole)
    }

    /// True in `percent` of a hundred draws.
    pub fn hits(&mut self, percent: u8) -> bool {
        percent > 0 && self.draw() % 100 < u64::from(percent)
    }

    /// A number below `end`; 0 when `end` is.
    pub fn below(&mut self, end: u64) -> u64 {
        let wide = u128::from(self.draw()) * u128::from(end);
        u64::try_from(wide >> 64).unwrap_or(0)
    }

    /// A share between 0 and 1, never 0.
    pub fn share(&mut self) -> f64 {
        #[expect(clippy::cast_precision_loss, reason = "53 bits fit")]
        let share = ((self.draw() >> 11) + 1) as f64 / (1_u64 << 53) as f64;
        share
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn draws_follow_their_seed_and_their_share() {
        let mut draws = Draws::new(7);
        let mut again = Draws::new(7);
        assert_eq!(draws.draw(), again.draw());
        let hits = (0..10_000).filter(|_| draws.hits(25)).count();
        assert!((2_200..2_800).contains(&hits), "{hits}");
        assert!((0..1000).all(|_| !draws.hits(0)));
        assert!((0..1000).all(|_| draws.hits(100)));
        assert!((0..1000).all(|_| draws.up_to(Span::from_ms(3)) <= Span::from_ms(3)));
    }
}
