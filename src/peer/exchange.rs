//! Round trips to one peer and the offset of its clock, from the four stamps of each ping.
//!
//! ```text
//! we:    sent ────────────►            ────────► returned
//! peer:             received  answered
//! offset (peer minus us) = ((received - sent) + (answered - returned)) / 2
//! ```
//!
//! The error of an offset is at most half the round trip, so the exchange with the shortest of the last few
//! is the one that is told. Pure.

use crate::domain::time::Span;
use crate::domain::time::Timestamp;

/// Exchanges that are remembered.
pub const EXCHANGES_MAX: usize = 8;

/// One ping and its answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Exchange {
    /// Time on the way, there and back.
    pub rtt: Span,
    /// The peer's clock minus ours, in nanoseconds.
    pub offset_ns: i64,
}

/// The four stamps of a ping.
#[derive(Clone, Copy, Debug)]
pub struct Stamps {
    /// Our time when it went out.
    pub sent: Timestamp,
    /// The peer's time when it came in.
    pub received: Timestamp,
    /// The peer's time when the answer went out.
    pub answered: Timestamp,
    /// Our time when the answer came in.
    pub returned: Timestamp,
}

impl Exchange {
    /// The exchange with these stamps, whose way there and back took `waited` by a clock that does not step.
    pub fn new(stamps: Stamps, waited: Span) -> Self {
        let nanos = |time: Timestamp| i128::from(time.as_nanos());
        let there = nanos(stamps.received) - nanos(stamps.sent);
        let back = nanos(stamps.answered) - nanos(stamps.returned);
        let offset = (there + back) / 2;
        let limit = |value: i128| value.clamp(i128::from(i64::MIN), i128::from(i64::MAX));
        Self {
            rtt: waited.minus(stamps.answered.since(stamps.received)),
            offset_ns: i64::try_from(limit(offset)).unwrap_or_default(),
        }
    }
}

impl Exchange {
    /// By how much the clocks are apart at least, whatever the two ways took.
    pub const fn apart_at_least(self) -> Span {
        Span::from_nanos(self.offset_ns.unsigned_abs())
            .minus(Span::from_nanos(self.rtt.as_nanos() / 2))
    }
}

/// The last few exchanges.
#[derive(Clone, Debug, Default)]
pub struct Exchanges {
    kept: [Option<Exchange>; EXCHANGES_MAX],
    next: usize,
    last: Option<Exchange>,
}

impl Exchanges {
    /// Remembers `exchange` in place of the oldest.
    pub fn add(&mut self, exchange: Exchange) {
        self.kept[self.next] = Some(exchange);
        self.next = (self.next + 1) % EXCHANGES_MAX;
        self.last = Some(exchange);
    }

    /// The one with the shortest round trip.
    pub fn best(&self) -> Option<Exchange> {
        self.kept
            .iter()
            .flatten()
            .min_by_key(|exchange| exchange.rtt)
            .copied()
    }

    /// The newest.
    pub const fn last(&self) -> Option<Exchange> {
        self.last
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ms(ms: i64) -> Timestamp {
        Timestamp::from_unix_ms(ms)
    }

    #[test]
    fn an_even_way_gives_the_exact_offset_and_an_uneven_one_errs_by_half() {
        let stamps = Stamps {
            sent: ms(1_000),
            received: ms(1_340),
            answered: ms(1_345),
            returned: ms(1_085),
        };
        let exchange = Exchange::new(stamps, Span::from_ms(85));
        assert_eq!(exchange.rtt, Span::from_ms(80));
        assert_eq!(exchange.offset_ns, 300_000_000);
        let uneven = Stamps {
            returned: ms(1_045),
            ..stamps
        };
        let uneven = Exchange::new(uneven, Span::from_ms(45));
        assert_eq!(uneven.offset_ns, 320_000_000);
        assert_eq!(uneven.apart_at_least(), Span::from_ms(300));
        assert_eq!(exchange.apart_at_least(), Span::from_ms(260));
    }

    #[test]
    fn the_shortest_of_the_last_eight_is_told() {
        let mut exchanges = Exchanges::default();
        assert_eq!(exchanges.best(), None);
        let with = |rtt, offset_ns| Exchange {
            rtt: Span::from_ms(rtt),
            offset_ns,
        };
        exchanges.add(with(1, -7));
        for n in 0..7 {
            exchanges.add(with(20 + n, 5));
        }
        assert_eq!(exchanges.best(), Some(with(1, -7)));
        exchanges.add(with(30, 9));
        assert_eq!(exchanges.best(), Some(with(20, 5)));
        assert_eq!(exchanges.last(), Some(with(30, 9)));
    }

    #[test]
    fn no_stamps_overflow() {
        for (a, b) in [(i64::MIN, i64::MAX), (i64::MAX, i64::MIN)] {
            let stamps = Stamps {
                sent: Timestamp::from_nanos(a),
                received: Timestamp::from_nanos(b),
                answered: Timestamp::from_nanos(b),
                returned: Timestamp::from_nanos(a),
            };
            let exchange = Exchange::new(stamps, Span::ZERO);
            assert_eq!(exchange.rtt, Span::ZERO);
            assert_eq!(exchange.offset_ns > 0, b > a);
        }
    }
}
