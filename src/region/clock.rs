//! The only reader of the clock in the crate.
//!
//! Every decision is taken at a [`Timestamp`] that [`Clock::now`] gave. That is *region time*: the wall
//! clock, except that it does not run backwards.
//!
//! ```text
//! wall clock ahead of region time ─────────────► region time = wall clock
//! wall clock behind, by at most one hour ──────► region time goes on at half rate until it is caught up
//! wall clock behind, by more than one hour ────► region time follows it back; alarm
//! ```
//!
//! An hour is held because clocks are stepped by minutes when they are corrected, and a window that has
//! closed must not open again for that. More than an hour is followed because then the time before was the
//! wrong one, and limits would stand still for as long as the mistake was large.
//!
//! [`RegionTime`] is that rule as a pure machine. [`Clock`] feeds it and keeps the newest time that anyone
//! was told in one atomic, so that a call costs one reading of the wall clock and one atomic step.
//!
//! Invariants kept here: 8 (time never runs backwards in a decision), shown by `tests::laws`.
//! Never here: timers, sleeping, deadlines. Those run on the runtime's own monotonic clock.

use std::sync::Arc;
use std::sync::atomic::AtomicI64;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering;
use std::time::Instant;
use std::time::SystemTime;
use std::time::UNIX_EPOCH;

use parking_lot::Mutex;
use thiserror::Error;

use crate::domain::time::Span;
use crate::domain::time::Timestamp;

/// The largest step back that is held. A larger one is followed.
pub const STEP_BACK_HELD_MAX: Span = Span::from_seconds(3_600);
/// The latest time that a manual clock can be set to: the first instant of the year 2200.
pub const UNIX_MS_MAX: i64 = 7_258_118_400_000;

/// Two threads that read the wall clock at the same moment meet [`Clock::now`] in either order. Up to this
/// much behind is that, or a correction too small to matter, and is held without asking the machine.
const READ_RACE_NANOS_MAX: i64 = 1_000_000;
/// How far the wall clock may run before the machine is shown it again. Bounds by how much region time can
/// stand still, at half rate, when a step back begins.
const SAMPLE_NANOS: i64 = 50_000_000;

/// One reading of region time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Observed {
    /// The region time.
    pub time: Timestamp,
    /// By how much region time went back, when it followed the wall clock back.
    pub followed_back: Option<Span>,
}

/// The rule for region time, fed with both clocks.
///
/// Keeps the last region time at which the wall clock was ahead, and the monotonic time of that moment, so
/// that half of the elapsed time is counted from one point and loses nothing to rounding.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RegionTime {
    anchor: Timestamp,
    anchor_monotonic: Span,
    monotonic: Span,
}

impl RegionTime {
    /// Region time at a start. `newest` is the newest time that the store has seen: when the wall clock is
    /// behind it by no more than an hour, region time begins there.
    pub fn start(wall: Timestamp, monotonic: Span, newest: Option<Timestamp>) -> (Self, Observed) {
        let newest = newest.unwrap_or(wall);
        let behind = newest.since(wall);
        let followed_back = (behind > STEP_BACK_HELD_MAX).then_some(behind);
        let time = if followed_back.is_some() {
            wall
        } else {
            wall.max(newest)
        };
        let machine = Self {
            anchor: time,
            anchor_monotonic: monotonic,
            monotonic,
        };
        (
            machine,
            Observed {
                time,
                followed_back,
            },
        )
    }

    /// Takes one reading of both clocks.
    pub fn observe(&mut self, wall: Timestamp, monotonic: Span) -> Observed {
        self.monotonic = self.monotonic.max(monotonic);
        let elapsed = self.monotonic.minus(self.anchor_monotonic);
        let least = self.anchor.plus(Span::from_nanos(elapsed.as_nanos() / 2));
        let behind = least.since(wall);
        if !behind.is_zero() && behind <= STEP_BACK_HELD_MAX {
            return Observed {
                time: least,
                followed_back: None,
            };
        }
        self.anchor = wall;
        self.anchor_monotonic = self.monotonic;
        Observed {
            time: wall,
            followed_back: (!behind.is_zero()).then_some(behind),
        }
    }
}

/// Why a clock cannot be set.
#[derive(Debug, Error, PartialEq, Eq)]
pub enum ClockError {
    /// The clock shows the real time.
    #[error("this region runs on the real clock; start it with --manual-clock to set the time")]
    NotManual,
    /// The time asked for is out of range.
    #[error("unix_ms must be between 0 and {UNIX_MS_MAX}, and so must the time after advance_ms")]
    OutOfRange,
}

/// Where the wall clock's time comes from.
#[derive(Debug)]
enum Wall {
    /// The system.
    Real,
    /// Whoever set it last; stands still in between. Nanoseconds since the Unix epoch.
    Manual(AtomicI64),
}

/// The clock of a running region. Copies share one time.
#[derive(Clone, Debug)]
pub struct Clock(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    wall: Wall,
    /// Added to the wall clock: an injected fault.
    offset_nanos: AtomicI64,
    /// The newest region time that anyone was told.
    newest_nanos: AtomicI64,
    /// The wall clock's time when the machine last saw it.
    sampled_nanos: AtomicI64,
    machine: Mutex<RegionTime>,
    steps_followed_back: AtomicU64,
    origin: Instant,
}

impl Clock {
    /// A clock that shows the real time.
    pub fn real() -> Self {
        Self::new(Wall::Real)
    }

    /// A clock that starts at the real time and moves only by [`Clock::set`] and [`Clock::advance`].
    pub fn manual() -> Self {
        Self::manual_at(Timestamp::from_unix_ms(system_time().as_unix_ms()))
    }

    /// A manual clock that starts at `time`.
    pub fn manual_at(time: Timestamp) -> Self {
        Self::new(Wall::Manual(AtomicI64::new(time.as_nanos())))
    }

    fn new(wall: Wall) -> Self {
        let (machine, _) = RegionTime::start(Timestamp::EPOCH, Span::ZERO, None);
        let clock = Self(Arc::new(Inner {
            wall,
            offset_nanos: AtomicI64::new(0),
            newest_nanos: AtomicI64::new(0),
            sampled_nanos: AtomicI64::new(0),
            machine: Mutex::new(machine),
            steps_followed_back: AtomicU64::new(0),
            origin: Instant::now(),
        }));
        clock.start_from(None);
        clock
    }

    /// Starts region time from the newest time that the store has seen. Called once, before any decision.
    pub fn start_from(&self, newest: Option<Timestamp>) {
        let mut machine = self.0.machine.lock();
        let wall = self.wall();
        let (started, observed) = RegionTime::start(wall, self.monotonic(), newest);
        *machine = started;
        self.0
            .sampled_nanos
            .store(wall.as_nanos(), Ordering::Relaxed);
        self.0
            .newest_nanos
            .store(observed.time.as_nanos(), Ordering::Relaxed);
        self.note(observed);
    }

    /// The region time.
    pub fn now(&self) -> Timestamp {
        let wall = self.wall();
        let wall_nanos = wall.as_nanos();
        let newest_nanos = self.0.newest_nanos.fetch_max(wall_nanos, Ordering::Relaxed);
        if wall_nanos >= newest_nanos {
            if wall_nanos.saturating_sub(self.0.sampled_nanos.load(Ordering::Relaxed))
                > SAMPLE_NANOS
            {
                self.sample(wall);
            }
            return wall;
        }
        if newest_nanos.saturating_sub(wall_nanos) <= READ_RACE_NANOS_MAX {
            return Timestamp::from_nanos(newest_nanos);
        }
        self.behind()
    }

    /// Shows the machine that the wall clock is ahead. Skipped when another thread is at it.
    #[cold]
    fn sample(&self, wall: Timestamp) {
        if let Some(mut machine) = self.0.machine.try_lock() {
            machine.observe(wall, self.monotonic());
            self.0
                .sampled_nanos
                .store(wall.as_nanos(), Ordering::Relaxed);
        }
    }

    /// The region time while the wall clock is behind it.
    #[cold]
    fn behind(&self) -> Timestamp {
        let mut machine = self.0.machine.lock();
        // Read again under the lock: another thread may have followed the step meanwhile.
        let wall = self.wall();
        let observed = machine.observe(wall, self.monotonic());
        if observed.followed_back.is_some() {
            self.0
                .sampled_nanos
                .store(wall.as_nanos(), Ordering::Relaxed);
            self.0
                .newest_nanos
                .store(observed.time.as_nanos(), Ordering::Relaxed);
            self.note(observed);
            return observed.time;
        }
        let before = self
            .0
            .newest_nanos
            .fetch_max(observed.time.as_nanos(), Ordering::Relaxed);
        observed.time.max(Timestamp::from_nanos(before))
    }

    fn note(&self, observed: Observed) {
        let Some(back) = observed.followed_back else {
            return;
        };
        self.0.steps_followed_back.fetch_add(1, Ordering::Relaxed);
        tracing::error!(
            back_ms = back.as_ms_ceil(),
            now_unix_ms = observed.time.as_unix_ms(),
            "the wall clock was set back by more than an hour; region time follows it, and windows that had closed \
             may open again: check this machine's time synchronisation"
        );
    }

    /// How often region time followed a step back of more than an hour. An alarm when it rises.
    pub fn steps_followed_back(&self) -> u64 {
        self.0.steps_followed_back.load(Ordering::Relaxed)
    }

    /// Whether the clock can be set.
    pub fn is_manual(&self) -> bool {
        matches!(self.0.wall, Wall::Manual(_))
    }

    /// Sets a manual clock's wall time, ahead or back, and gives the region time that follows from it.
    ///
    /// # Errors
    /// When the clock is not manual or the time is out of range; nothing changes then.
    pub fn set(&self, unix_ms: i64) -> Result<Timestamp, ClockError> {
        let Wall::Manual(wall_nanos) = &self.0.wall else {
            return Err(ClockError::NotManual);
        };
        if !(0..=UNIX_MS_MAX).contains(&unix_ms) {
            return Err(ClockError::OutOfRange);
        }
        wall_nanos.store(
            Timestamp::from_unix_ms(unix_ms).as_nanos(),
            Ordering::Relaxed,
        );
        Ok(self.now())
    }

    /// Moves a manual clock's wall time ahead and gives the region time that follows from it.
    ///
    /// # Errors
    /// When the clock is not manual or the time would be out of range; nothing changes then.
    pub fn advance(&self, ms: u64) -> Result<Timestamp, ClockError> {
        let Wall::Manual(wall_nanos) = &self.0.wall else {
            return Err(ClockError::NotManual);
        };
        let latest = Timestamp::from_unix_ms(UNIX_MS_MAX).as_nanos();
        wall_nanos
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, |nanos| {
                let moved = Timestamp::from_nanos(nanos)
                    .plus(Span::from_ms(ms))
                    .as_nanos();
                (moved <= latest).then_some(moved)
            })
            .map_err(|_| ClockError::OutOfRange)?;
        Ok(self.now())
    }

    /// Adds `offset_ms` to the wall clock until it is set again: an injected fault. Zero ends it.
    pub fn set_fault_offset(&self, offset_ms: i64) {
        let nanos = Timestamp::from_unix_ms(offset_ms).as_nanos();
        self.0.offset_nanos.store(nanos, Ordering::Relaxed);
    }

    /// The machine's boot clock: it never goes back, and it goes on while the machine sleeps. What it counts
    /// from means nothing to others. Real also when the wall clock is set by hand.
    pub fn boot(&self) -> Span {
        boot_time(self.0.origin)
    }

    /// The real time since the clock was made, whatever the wall clock does, also of a manual clock.
    pub fn uptime(&self) -> Span {
        elapsed(self.0.origin)
    }

    /// Starts to measure real elapsed time, whatever the wall clock does.
    pub fn stopwatch(&self) -> Stopwatch {
        Stopwatch(Instant::now())
    }

    fn wall(&self) -> Timestamp {
        let time = match &self.0.wall {
            Wall::Real => system_time(),
            Wall::Manual(nanos) => Timestamp::from_nanos(nanos.load(Ordering::Relaxed)),
        };
        Timestamp::from_nanos(
            time.as_nanos()
                .saturating_add(self.0.offset_nanos.load(Ordering::Relaxed)),
        )
    }

    /// The monotonic time since the clock was made. A manual clock's stands still: while its wall time is
    /// behind, region time holds, so that exact cases can step back and on without a rate in between.
    fn monotonic(&self) -> Span {
        match self.0.wall {
            Wall::Real => elapsed(self.0.origin),
            Wall::Manual(_) => Span::ZERO,
        }
    }
}

impl crate::peer::Time for Clock {
    fn elapsed(&self) -> Span {
        self.uptime()
    }

    fn now(&self) -> Timestamp {
        Self::now(self)
    }
}

/// Measures real elapsed time.
#[derive(Clone, Copy, Debug)]
pub struct Stopwatch(Instant);

impl Stopwatch {
    /// The time since the stopwatch was started.
    pub fn elapsed(&self) -> Span {
        elapsed(self.0)
    }
}

/// `CLOCK_BOOTTIME`: unlike the clock behind [`Instant`] it does not stop while the machine is suspended, so a
/// reservation cannot outlive its window by that.
#[cfg(target_os = "linux")]
fn boot_time(_origin: Instant) -> Span {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::Boottime);
    let seconds = u64::try_from(time.tv_sec).unwrap_or(0);
    let nanos = u64::try_from(time.tv_nsec).unwrap_or(0);
    Span::from_nanos(seconds.saturating_mul(1_000_000_000).saturating_add(nanos))
}

#[cfg(not(target_os = "linux"))]
fn boot_time(origin: Instant) -> Span {
    elapsed(origin)
}

fn elapsed(since: Instant) -> Span {
    Span::from_nanos_saturating(since.elapsed().as_nanos())
}

fn system_time() -> Timestamp {
    match SystemTime::now().duration_since(UNIX_EPOCH) {
        Ok(after) => Timestamp::EPOCH.plus(Span::from_nanos_saturating(after.as_nanos())),
        Err(before) => {
            Timestamp::EPOCH.minus(Span::from_nanos_saturating(before.duration().as_nanos()))
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::Strategy;
    use proptest::prelude::prop;
    use proptest::prelude::prop_oneof;

    use super::*;

    const HOUR_MS: i64 = 3_600_000;
    const T0: i64 = 1_796_000_000_000;

    fn ms(ms: i64) -> Timestamp {
        Timestamp::from_unix_ms(ms)
    }

    #[test]
    fn the_wall_clock_is_told_as_it_is() {
        let clock = Clock::real();
        let before = system_time();
        let now = clock.now();
        assert!(now >= before && now <= system_time());
    }

    #[test]
    fn a_step_back_goes_on_at_half_rate_until_caught_up() {
        let (mut time, _) = RegionTime::start(ms(T0), Span::ZERO, None);
        let minute = |n: i64| ms(T0 + n * 60_000);
        let mut at = |wall: i64, monotonic: u64| {
            time.observe(minute(wall), Span::from_seconds(60 * monotonic))
                .time
        };
        assert_eq!(at(10, 10), minute(10));
        assert_eq!(at(0, 10), minute(10));
        assert_eq!(at(4, 14), minute(12));
        assert_eq!(at(19, 29), ms(T0 + 60_000 * 39 / 2));
        assert_eq!(at(20, 30), minute(20));
        assert_eq!(at(21, 31), minute(21));
    }

    #[test]
    fn a_step_back_of_more_than_an_hour_is_followed_with_an_alarm() {
        let clock = Clock::manual_at(ms(T0));
        assert_eq!(clock.set(T0 - HOUR_MS), Ok(ms(T0)));
        assert_eq!(clock.steps_followed_back(), 0);
        assert_eq!(clock.set(T0 - HOUR_MS - 1), Ok(ms(T0 - HOUR_MS - 1)));
        assert_eq!(clock.steps_followed_back(), 1);
        assert_eq!(clock.now(), ms(T0 - HOUR_MS - 1));
    }

    #[test]
    fn a_manual_clock_holds_while_it_is_behind_and_stands_still_otherwise() {
        let clock = Clock::manual_at(ms(T0));
        assert_eq!(clock.set(T0 + 100_000), Ok(ms(T0 + 100_000)));
        assert_eq!(clock.set(T0 + 89_000), Ok(ms(T0 + 100_000)));
        assert_eq!(clock.set(T0 + 101_000), Ok(ms(T0 + 101_000)));
        assert_eq!(clock.set(T0 + 90_000), Ok(ms(T0 + 101_000)));
        assert_eq!(clock.advance(12_000), Ok(ms(T0 + 102_000)));
        assert_eq!(clock.now(), ms(T0 + 102_000));
    }

    #[test]
    fn a_start_begins_at_the_newest_time_of_the_store_within_an_hour() {
        let clock = Clock::manual_at(ms(T0));
        clock.start_from(Some(ms(T0 + HOUR_MS)));
        assert_eq!(clock.now(), ms(T0 + HOUR_MS));
        assert_eq!(clock.set(T0 + HOUR_MS + 1), Ok(ms(T0 + HOUR_MS + 1)));
        let later = Clock::manual_at(ms(T0));
        later.start_from(Some(ms(T0 + HOUR_MS + 1)));
        assert_eq!(later.now(), ms(T0));
        assert_eq!(later.steps_followed_back(), 1);
        let earlier = Clock::manual_at(ms(T0));
        earlier.start_from(Some(ms(T0 - 1)));
        assert_eq!(earlier.now(), ms(T0));
    }

    #[test]
    fn a_real_clock_that_is_stepped_back_never_shows_an_earlier_time() {
        let clock = Clock::real();
        let mut newest = clock.now();
        for offset_ms in [-1_800_000, 0, -5_000, -1, 2_000, 0, -3_000_000] {
            clock.set_fault_offset(offset_ms);
            for _ in 0..1_000 {
                let now = clock.now();
                assert!(now >= newest, "{offset_ms}");
                newest = now;
            }
        }
        assert_eq!(clock.steps_followed_back(), 0);
        clock.set_fault_offset(-2 * HOUR_MS);
        assert!(clock.now() < newest);
        assert_eq!(clock.steps_followed_back(), 1);
    }

    #[test]
    fn threads_that_meet_a_stepping_clock_see_no_earlier_time() {
        let clock = Clock::real();
        std::thread::scope(|scope| {
            for _ in 0..3 {
                let clock = clock.clone();
                scope.spawn(move || {
                    let mut newest = clock.now();
                    for _ in 0..50_000 {
                        let now = clock.now();
                        assert!(now >= newest);
                        newest = now;
                    }
                });
            }
            for step in 0..2_000 {
                clock.set_fault_offset(if step % 2 == 0 { -1_000 * step } else { 0 });
            }
        });
        assert_eq!(clock.steps_followed_back(), 0);
    }

    #[test]
    fn out_of_range_times_and_real_clocks_are_refused() {
        let clock = Clock::manual_at(ms(T0));
        assert_eq!(clock.set(-1), Err(ClockError::OutOfRange));
        assert_eq!(clock.set(UNIX_MS_MAX + 1), Err(ClockError::OutOfRange));
        assert_eq!(clock.advance(u64::MAX), Err(ClockError::OutOfRange));
        assert_eq!(clock.now(), ms(T0));
        assert_eq!(clock.set(UNIX_MS_MAX), Ok(ms(UNIX_MS_MAX)));
        assert_eq!(clock.advance(1), Err(ClockError::OutOfRange));
        assert_eq!(clock.set(0), Ok(Timestamp::EPOCH));
        assert_eq!(Clock::real().set(T0), Err(ClockError::NotManual));
        assert_eq!(Clock::real().advance(1), Err(ClockError::NotManual));
    }

    /// One step of a machine's life: real time that passes, and by how much the wall clock is stepped then.
    fn steps() -> impl Strategy<Value = Vec<(u64, i64)>> {
        let passes = prop_oneof![0..10u64, 0..2_000_000_000u64, 0..7_200_000_000_000u64];
        let hour = 3_600_000_000_000i64;
        let jump = prop_oneof![4 => -1_000i64..1_000, 2 => -hour..hour, 1 => -30 * hour..30 * hour, 4 => 0..=0i64];
        prop::collection::vec((passes, jump), 1..60)
    }

    mod laws {
        use proptest::prelude::prop_assert;
        use proptest::prelude::prop_assert_eq;
        use proptest::prelude::proptest;

        use super::*;

        proptest! {
            /// Goes back only with an alarm and only by more than an hour; never slower than half rate;
            /// never behind the wall clock; equal to it again after twice the gap.
            #[test]
            fn region_time_is_monotone_at_half_rate_and_catches_up(steps in steps()) {
                let mut monotonic = 0u64;
                let mut wall = ms(T0).as_nanos();
                let (mut machine, mut last) = RegionTime::start(Timestamp::from_nanos(wall), Span::ZERO, None);
                for (passes, jump) in steps {
                    monotonic += passes;
                    wall += i64::try_from(passes).expect("small") + jump;
                    let seen = machine.observe(Timestamp::from_nanos(wall), Span::from_nanos(monotonic));
                    match seen.followed_back {
                        Some(back) => {
                            prop_assert!(back > STEP_BACK_HELD_MAX);
                            prop_assert_eq!(seen.time, Timestamp::from_nanos(wall));
                        }
                        None => {
                            prop_assert!(seen.time >= last.time);
                            // Both ends of the span are rounded down to a nanosecond by the halving.
                            prop_assert!(seen.time.since(last.time).as_nanos() + 1 >= passes / 2);
                        }
                    }
                    prop_assert!(seen.time.as_nanos() >= wall);
                    prop_assert!(seen.time.as_nanos() - wall <= 3_600_000_000_000);
                    last = seen;
                }
                let gap = last.time.as_nanos() - wall;
                let wait = u64::try_from(2 * gap).expect("not negative");
                let caught_up = Timestamp::from_nanos(wall + 2 * gap);
                let seen = machine.observe(caught_up, Span::from_nanos(monotonic + wait));
                prop_assert_eq!(seen.time, caught_up);
            }
        }
    }
}
