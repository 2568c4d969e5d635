//! What a region learns from its talk with the leader: how far the leader's log time can be from the own
//! boot clock, and how long a refill takes.
//!
//! Every message of the leader carries log time. Let `S` be that stamp, read after the region sent what it
//! answers and before the region received it. Then `log time − boot time` lies between `S − received` and
//! `S − sent`. The bounds of one term are intersected over all its messages; a bound that is not renewed
//! widens by what two clocks may drift apart and what log time may be slewed. From the bounds follow, for a
//! window of log time, the boot times between which it surely runs: [`Exchange::not_before`] and
//! [`Exchange::not_after`].
//!
//! Log time belongs to a term. The bounds of the newest term that was heard *with an echo* hold; a message
//! that answers nothing only says that log time has come that far, which is not enough to take a term over.
//! What a deposed leader says of its clock is ignored.
//!
//! Invariant kept here: S5 (no use of units outside their window), as far as clocks keep to the bounds
//! below; the sums of the book hold under any clock.

use crate::domain::time::Span;
use crate::domain::time::Timestamp;
use crate::grants::message::LogStamp;
use crate::grants::message::PulseAnswer;

/// How far two boot clocks may drift apart, in millionths.
pub const DRIFT_PPM: i128 = 200;
/// How far log time may be slewed against the leader's boot clock, in millionths.
pub const SLEW_PPM: i128 = 500;
/// Units of a bucket may be spent for this long after the region sent what the leader's newest word answers. A
/// length of the boot clock.
pub const LEASE: Span = Span::from_seconds(10);
/// What is added to two refills to get the longest wait.
pub const WAIT_MARGIN: Span = Span::from_ms(50);

/// Later than any boot clock: not before the clock is set again.
const FAR: Span = Span::from_nanos(u64::MAX / 2);
const MILLION: i128 = 1_000_000;
const SPREAD_PPM: i128 = DRIFT_PPM + SLEW_PPM;
/// Assumed for a refill that was never measured.
const REFILL_UNKNOWN: Span = Span::from_ms(250);
const REFILL_MIN: Span = Span::from_ms(1);
const REFILL_MAX: Span = Span::from_seconds(5);
/// The leader answers a pulse every 200 ms: after so long without a word its messages did not arrive, and
/// those to it may not have.
const SILENCE: Span = Span::from_seconds(1);
/// What was told this long before the last word may still have been lost: on its way, or with a leader that
/// had put it into no entry yet.
const LOST_BEFORE: Span = Span::from_seconds(2);
/// Bounds that became narrower by less than this are not worth computing anything anew.
const WORTH_TELLING_NANOS: i128 = 1_000_000;

/// A region's knowledge of the leader; one per region, small and copied freely.
#[derive(Clone, Copy, Debug, Default)]
pub struct Exchange {
    bounds: Option<Bounds>,
    revision: u32,
    refill: Option<Refill>,
    slowest_refill: Span,
    is_restarting: bool,
    last_word: Option<Span>,
    by_hand: Option<Timestamp>,
    lease: Lease,
    resumed: Resumed,
}

/// The talk with the leader went on after a silence, or with another leader.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Resumed {
    /// How many times.
    pub times: u32,
    /// What was told since this boot time may have been lost.
    pub lost_since: Span,
    /// Another leader answers. The one before may have been alone for any time, and have put nothing that it
    /// was told into the log.
    pub is_another: bool,
}

/// The lease on units of buckets.
#[derive(Clone, Copy, Debug, Default)]
struct Lease {
    /// How often a lease began that did not follow on the one before.
    number: u32,
    until: Span,
}

/// Between which instants log time is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LogTime {
    /// It is surely this late.
    pub earliest: Timestamp,
    /// It is surely not later.
    pub latest: Timestamp,
}

/// `log time − boot time` of one term.
#[derive(Clone, Copy, Debug)]
struct Bounds {
    term: u64,
    low: Bound,
    high: Bound,
}

/// A bound of an offset and the boot time at which it was found.
#[derive(Clone, Copy, Debug)]
struct Bound {
    offset: i128,
    at: Span,
}

impl Bound {
    /// How far the bound has widened by `boot`.
    fn spread(self, boot: Span) -> i128 {
        (i128::from(boot.minus(self.at).as_nanos()) * SPREAD_PPM + MILLION - 1) / MILLION
    }
}

/// Round trips of refills.
#[derive(Clone, Copy, Debug)]
struct Refill {
    mean: u64,
    deviation: u64,
}

impl Exchange {
    /// Nothing known yet.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Log time follows the region's own clock, which is set by hand and shows `time`: what the leader's stamps
    /// say of log time is not asked.
    pub fn follow(&mut self, time: Timestamp) {
        if self.by_hand != Some(time) {
            self.by_hand = Some(time);
            self.revision = self.revision.wrapping_add(1);
        }
    }

    /// Takes in the clock of a message that was received at `boot`. Call it before the message is handed to
    /// a reservation.
    pub fn heard(&mut self, stamp: &LogStamp, boot: Span) {
        let last_word = self.last_word;
        if self.bounds.is_none_or(|bounds| stamp.term >= bounds.term) {
            self.last_word = self.last_word.max(Some(boot));
            if last_word.is_some_and(|last| boot.minus(last) >= SILENCE) {
                self.resume(last_word, false);
            }
        }
        if self.is_leased(stamp, boot)
            && let Some(sent) = stamp.lease
        {
            if self.lease.until <= boot {
                self.lease.number = self.lease.number.wrapping_add(1);
            }
            self.lease.until = self.lease.until.max(sent.plus(LEASE));
        }
        let log = i128::from(stamp.log_time.as_nanos());
        let low = Bound {
            offset: log - i128::from(boot.as_nanos()),
            at: boot,
        };
        // An echo from the future is not ours.
        let high = stamp.echo.filter(|sent| *sent <= boot).map(|sent| Bound {
            offset: log - i128::from(sent.as_nanos()),
            // The leader may have read its clock as soon as this was sent, and have drifted since.
            at: sent,
        });
        let term = stamp.term;
        let is_better = match (&mut self.bounds, high) {
            (Some(bounds), high) if bounds.term == term => bounds.narrow(low, high, boot),
            (Some(bounds), _) if bounds.term > term => false,
            (bounds, Some(high)) => {
                let is_another = bounds.is_some();
                *bounds = Some(Bounds { term, low, high });
                if is_another {
                    self.resume(last_word, true);
                }
                true
            }
            (_, None) => false,
        };
        if is_better {
            self.revision = self.revision.wrapping_add(1);
        }
    }

    /// Whether the lease of a stamp runs at `boot`: what such a message tells of units of a bucket holds. No
    /// lease of this region has ended in the book since the message was sent.
    pub fn is_leased(&self, stamp: &LogStamp, boot: Span) -> bool {
        let is_newest = self.term().is_none_or(|term| stamp.term >= term);
        let runs = |sent: Span| sent <= boot && boot < sent.plus(LEASE);
        is_newest && stamp.lease.is_some_and(runs)
    }

    /// The number of the lease that runs at `boot`; `None`: units of buckets may not be spent. What was held
    /// under another number may not be spent either: the book may have taken it for spent in between.
    pub fn lease(&self, boot: Span) -> Option<u32> {
        (boot < self.lease.until).then_some(self.lease.number)
    }

    fn resume(&mut self, last_word: Option<Span>, is_another: bool) {
        self.resumed = Resumed {
            times: self.resumed.times.wrapping_add(1),
            lost_since: last_word.unwrap_or_default().minus(LOST_BEFORE),
            is_another,
        };
        self.revision = self.revision.wrapping_add(1);
    }

    /// Takes in the answer to a pulse, received at `boot`.
    pub fn pulse(&mut self, answer: &PulseAnswer, boot: Span) {
        self.heard(&answer.stamp, boot);
        if self.term().is_none_or(|term| answer.stamp.term >= term) {
            self.slowest_refill = answer.slowest_refill;
            self.is_restarting = answer.restarting;
        }
    }

    /// Takes in that a refill took `took`, from the ask to the answer that brought units.
    pub fn refilled(&mut self, took: Span) {
        let took = took.min(REFILL_MAX).as_nanos();
        self.refill = Some(match self.refill {
            None => Refill {
                mean: took,
                deviation: took / 8,
            },
            Some(Refill { mean, deviation }) => {
                let off = mean.abs_diff(took);
                Refill {
                    mean: mean - mean / 8 + took / 8,
                    deviation: deviation - deviation / 4 + off / 4,
                }
            }
        });
    }

    /// The term whose log time is known; `None` before the first answer.
    pub fn term(&self) -> Option<u64> {
        self.bounds.map(|bounds| bounds.term)
    }

    /// Changes whenever [`Exchange::not_before`] and [`Exchange::not_after`] are worth asking anew.
    pub const fn revision(&self) -> u32 {
        self.revision
    }

    /// The time of one refill, from the ask to usable units: the mean and two mean deviations; 250 ms
    /// before the first one. From 1 ms to 15 s.
    pub fn refill_time(&self) -> Span {
        self.measured_refill().unwrap_or(REFILL_UNKNOWN)
    }

    /// The time of one refill as it was measured; `None` before the first one.
    pub fn measured_refill(&self) -> Option<Span> {
        let refill = self.refill?;
        let nanos = refill.mean.saturating_add(refill.deviation * 2);
        Some(Span::from_nanos(nanos).max(REFILL_MIN))
    }

    /// How often the talk with the leader has gone on anew.
    pub const fn resumed(&self) -> Resumed {
        self.resumed
    }

    /// The refill time of the slowest live region as the leader told it, at most 15 s; the own one when
    /// that is longer.
    pub fn slowest_refill(&self) -> Span {
        let told = self.slowest_refill.min(Span::from_seconds(15));
        told.max(self.refill_time())
    }

    /// How long a check waits for units unless its caller wants less: one own refill, one recall from the
    /// slowest region, and 50 ms.
    pub fn max_wait(&self) -> Span {
        self.refill_time()
            .plus(self.slowest_refill())
            .plus(WAIT_MARGIN)
    }

    /// This region's processes enrolled twice within a minute: it asks for no more than what waits.
    pub const fn is_restarting(&self) -> bool {
        self.is_restarting
    }

    /// The boot time of the last message of a leader that was not known to be deposed.
    pub const fn last_word(&self) -> Option<Span> {
        self.last_word
    }

    /// Between which instants log time is at `boot`; `None` before the first answer.
    pub fn log_time(&self, boot: Span) -> Option<LogTime> {
        if let Some(time) = self.by_hand {
            return Some(LogTime {
                earliest: time,
                latest: time,
            });
        }
        let bounds = self.bounds?;
        let boot_nanos = i128::from(boot.as_nanos());
        Some(LogTime {
            earliest: timestamp(boot_nanos + bounds.low.offset - bounds.low.spread(boot)),
            latest: timestamp(boot_nanos + bounds.high.offset + bounds.high.spread(boot)),
        })
    }

    /// The first boot time at which log time has surely reached `start`; `None` before the first answer.
    pub fn not_before(&self, start: Timestamp) -> Option<Span> {
        if let Some(time) = self.by_hand {
            return Some(if start <= time { Span::ZERO } else { FAR });
        }
        let low = self.bounds?.low;
        let at = i128::from(low.at.as_nanos());
        let ahead = i128::from(start.as_nanos()) - low.offset - at;
        if ahead <= 0 {
            return Some(low.at);
        }
        let pace = MILLION - SPREAD_PPM;
        Some(span(at + (ahead * MILLION + pace - 1) / pace + 2))
    }

    /// The first boot time at which log time can have reached `end`; `None` before the first answer.
    pub fn not_after(&self, end: Timestamp) -> Option<Span> {
        if let Some(time) = self.by_hand {
            return Some(if end <= time { Span::ZERO } else { FAR });
        }
        let high = self.bounds?.high;
        let at = i128::from(high.at.as_nanos());
        let ahead = i128::from(end.as_nanos()) - high.offset - at;
        if ahead <= 0 {
            return Some(high.at);
        }
        let pace = MILLION + SPREAD_PPM;
        Some(span(at + (ahead * MILLION / pace - 2).max(0)))
    }
}

impl Bounds {
    /// Intersects with another message of the same term; tells whether that changed much. Bounds that
    /// contradict each other are worth nothing: then the newest message alone holds.
    fn narrow(&mut self, low: Bound, high: Option<Bound>, boot: Span) -> bool {
        let own_low = self.low.offset - self.low.spread(boot);
        let own_high = self.high.offset + self.high.spread(boot);
        let new_high = |high: Bound| high.offset + high.spread(boot);
        if low.offset > own_high || high.is_some_and(|high| new_high(high) < own_low) {
            self.low = low;
            self.high = high.unwrap_or(Bound {
                offset: own_high.max(low.offset),
                at: boot,
            });
            return true;
        }
        let mut gained = 0;
        if low.offset > own_low {
            gained = low.offset - own_low;
            self.low = low;
        }
        if let Some(high) = high
            && new_high(high) < own_high
        {
            gained = gained.max(own_high - new_high(high));
            self.high = high;
        }
        gained > WORTH_TELLING_NANOS
    }
}

fn timestamp(nanos: i128) -> Timestamp {
    let clamped = nanos.clamp(i128::from(i64::MIN), i128::from(i64::MAX));
    Timestamp::from_nanos(i64::try_from(clamped).unwrap_or(i64::MAX))
}

fn span(nanos: i128) -> Span {
    Span::from_nanos(u64::try_from(nanos.max(0)).unwrap_or(u64::MAX))
}

#[cfg(test)]
mod tests;
