//! Clocks of machines: each has a boot clock with an offset and a drift, and a wall clock beside it. True time is
//! nanoseconds since the simulation began.

use crate::domain::time::Span;
use crate::domain::time::Timestamp;
use crate::grants::log_time::Reading;

/// Where a simulation begins: on the edge of a minute.
pub const EPOCH_NANOS: i64 = 1_800_000_000_000_000_000;

/// One machine's clocks.
#[derive(Clone, Copy, Debug)]
pub struct Clock {
    /// The boot clock shows so much at the beginning.
    pub boot_offset: u64,
    /// The wall clock is so far ahead.
    pub wall_offset: i64,
    /// How much too fast both go, in millionths.
    pub drift_ppm: i64,
}

impl Clock {
    fn elapsed(self, at: u64) -> u64 {
        let at = i128::from(at);
        let elapsed = at + at * i128::from(self.drift_ppm) / 1_000_000;
        u64::try_from(elapsed.max(0)).unwrap_or(u64::MAX)
    }

    /// The boot clock at a true time.
    pub fn boot(self, at: u64) -> Span {
        Span::from_nanos(self.boot_offset.saturating_add(self.elapsed(at)))
    }

    /// The wall clock at a true time.
    pub fn region_time(self, at: u64) -> Timestamp {
        let elapsed = i64::try_from(self.elapsed(at)).unwrap_or(i64::MAX);
        let begun = EPOCH_NANOS.saturating_add(self.wall_offset);
        Timestamp::from_nanos(begun.saturating_add(elapsed))
    }

    /// Both at a true time.
    pub fn reading(self, at: u64) -> Reading {
        Reading {
            boot: self.boot(at),
            region_time: self.region_time(at),
        }
    }

    /// The first true time at which the boot clock shows `boot`.
    pub fn at(self, boot: Span) -> u64 {
        let elapsed = i128::from(boot.as_nanos()) - i128::from(self.boot_offset);
        let guess = elapsed * 1_000_000 / (1_000_000 + i128::from(self.drift_ppm));
        let mut at = u64::try_from(guess.max(0))
            .unwrap_or(u64::MAX / 4)
            .saturating_sub(2);
        while self.boot(at) < boot {
            at += 1;
        }
        at
    }
}
