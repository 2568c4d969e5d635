//! Slow, obvious counters on exact rationals and unbounded integers.
//!
//! An oracle is moved in time with [`Oracle::observe`] and then only asked: whatever a ledger says about
//! waiting is put to the test by moving a copy of the oracle. All oracles share two rules of the product:
//! time that ran back by at most an hour stands still for them, and time that ran back further is followed.

use std::collections::BTreeMap;

use highwater::domain::calendar::Calendar;
use highwater::domain::time::Timestamp;
use num_bigint::BigInt;
use num_rational::BigRational;

/// How far back time may run before it is followed, in nanoseconds.
pub const HELD: i128 = 3_600_000_000_000;

/// A slow counter of one key.
pub trait Oracle: Clone {
    /// Brings the counter to `now`.
    fn observe(&mut self, now: i128);
    /// Units in use, with fractions; what the counter was last brought to counts as now.
    fn in_use(&self) -> BigRational;
    /// Adds a charge.
    fn charge(&mut self, now: i128, units: u64);
    /// Takes use back, newest first; returns how many whole units.
    fn refund(&mut self, units: u64) -> u64;
    /// Start and end of the running window, of kinds that have one whose end is the reset.
    fn window(&self) -> Option<(i128, i128)> {
        None
    }
    /// Whether use is remembered in windows that are still to come, since the clock was set back far: they
    /// may turn out full, so no wait can be promised.
    fn knows_the_future(&self) -> bool {
        false
    }
    /// Changes how fast a bucket's units come back.
    fn set_rate(&mut self, _rate: u64) {}
}

/// A whole number.
pub fn whole(n: impl Into<BigInt>) -> BigRational {
    BigRational::from_integer(n.into())
}

/// Units as `used` tells them: begun units count whole.
pub fn begun(units: &BigRational) -> BigInt {
    units.ceil().to_integer()
}

fn take_from(known: &mut BigInt, wanted: u64) -> u64 {
    let taken = BigInt::from(wanted).min(known.clone());
    *known -= &taken;
    u64::try_from(&taken).expect("no more than was wanted")
}

/// `quota` per aligned window.
#[derive(Clone, Debug)]
pub struct FixedWindow {
    window: i128,
    newest: Option<i128>,
    used: BTreeMap<i128, BigInt>,
}

impl FixedWindow {
    /// Windows of `window` nanoseconds.
    pub fn new(window: i128) -> Self {
        Self {
            window,
            newest: None,
            used: BTreeMap::new(),
        }
    }
}

/// The window to decide in at `now`, when `newest` was the last one.
fn window_at(newest: Option<i128>, window: i128, now: i128) -> i128 {
    let current = now.div_euclid(window);
    match newest {
        Some(newest) if current < newest && newest * window <= now + HELD => newest,
        _ => current,
    }
}

impl Oracle for FixedWindow {
    fn observe(&mut self, now: i128) {
        let current = window_at(self.newest, self.window, now);
        if self.newest != Some(current) {
            // The counts of the window that is left and of the one that is entered are remembered.
            let left = self.newest.replace(current);
            self.used
                .retain(|window, _| *window == current || Some(*window) == left);
        }
    }

    fn in_use(&self) -> BigRational {
        let used = self.newest.and_then(|newest| self.used.get(&newest));
        whole(used.cloned().unwrap_or_default())
    }

    fn charge(&mut self, _now: i128, units: u64) {
        let newest = self.newest.expect("observed");
        *self.used.entry(newest).or_default() += units;
    }

    fn refund(&mut self, units: u64) -> u64 {
        let used = self.newest.and_then(|newest| self.used.get_mut(&newest));
        used.map_or(0, |used| take_from(used, units))
    }

    fn window(&self) -> Option<(i128, i128)> {
        let newest = self.newest? * self.window;
        Some((newest, newest + self.window))
    }

    fn knows_the_future(&self) -> bool {
        self.used.keys().any(|window| Some(*window) > self.newest)
    }
}

/// `quota` per calendar window; where the windows lie is taken from the calendar, which has tests of its own.
#[derive(Clone, Debug)]
pub struct CalendarWindow {
    calendar: Calendar,
    newest: Option<(i128, i128)>,
    used: BTreeMap<i128, BigInt>,
}

impl CalendarWindow {
    /// The windows of `calendar`.
    pub fn new(calendar: Calendar) -> Self {
        Self {
            calendar,
            newest: None,
            used: BTreeMap::new(),
        }
    }
}

impl Oracle for CalendarWindow {
    fn observe(&mut self, now: i128) {
        let instant = i64::try_from(now).map_or(Timestamp::MAX, Timestamp::from_nanos);
        let window = self.calendar.window(instant);
        let current = (window.start.as_nanos().into(), window.end.as_nanos().into());
        let left = match self.newest {
            Some(newest) if current < newest && newest.0 <= now + HELD => return,
            newest => newest,
        };
        if left != Some(current) {
            self.used
                .retain(|start, _| *start == current.0 || Some(*start) == left.map(|l| l.0));
            self.newest = Some(current);
        }
    }

    fn in_use(&self) -> BigRational {
        let used = self.newest.and_then(|(start, _)| self.used.get(&start));
        whole(used.cloned().unwrap_or_default())
    }

    fn charge(&mut self, _now: i128, units: u64) {
        let (start, _) = self.newest.expect("observed");
        *self.used.entry(start).or_default() += units;
    }

    fn refund(&mut self, units: u64) -> u64 {
        let used = self.newest.and_then(|(start, _)| self.used.get_mut(&start));
        used.map_or(0, |used| take_from(used, units))
    }

    fn window(&self) -> Option<(i128, i128)> {
        self.newest
    }

    fn knows_the_future(&self) -> bool {
        self.used
            .keys()
            .any(|start| Some(*start) > self.newest.map(|(start, _)| start))
    }
}

/// `quota` per aligned window, the window before counted by the share of it that is in sight.
#[derive(Clone, Debug)]
pub struct SlidingWindow {
    window: i128,
    newest: Option<i128>,
    now: i128,
    used: BTreeMap<i128, BigInt>,
}

impl SlidingWindow {
    /// Windows of `window` nanoseconds.
    pub fn new(window: i128) -> Self {
        Self {
            window,
            newest: None,
            now: 0,
            used: BTreeMap::new(),
        }
    }

    fn of(&self, window: i128) -> BigRational {
        whole(self.used.get(&window).cloned().unwrap_or_default())
    }
}

impl Oracle for SlidingWindow {
    fn observe(&mut self, now: i128) {
        let newest = window_at(self.newest, self.window, now);
        self.newest = Some(newest);
        self.now = now.max(newest * self.window);
        self.used
            .retain(|window, _| *window == newest || *window == newest - 1);
    }

    fn in_use(&self) -> BigRational {
        let newest = self.newest.expect("observed");
        let elapsed = self.now - newest * self.window;
        let in_sight = BigRational::new((self.window - elapsed).into(), self.window.into());
        self.of(newest) + self.of(newest - 1) * in_sight
    }

    fn charge(&mut self, _now: i128, units: u64) {
        let newest = self.newest.expect("observed");
        *self.used.entry(newest).or_default() += units;
    }

    fn refund(&mut self, units: u64) -> u64 {
        let mut left = units;
        for used in self.used.values_mut().rev() {
            left -= take_from(used, left);
        }
        units - left
    }
}

/// Every charge with its instant.
#[derive(Clone, Debug)]
pub struct SlidingLog {
    window: i128,
    entries: Vec<(i128, BigInt)>,
}

impl SlidingLog {
    /// A log over `window` nanoseconds.
    pub fn new(window: i128) -> Self {
        Self {
            window,
            entries: Vec::new(),
        }
    }
}

impl Oracle for SlidingLog {
    fn observe(&mut self, now: i128) {
        if self.entries.iter().any(|(at, _)| *at > now + HELD) {
            for (at, _) in &mut self.entries {
                *at = (*at).min(now);
            }
        }
        let window = self.window;
        self.entries.retain(|(at, _)| now - at < window);
    }

    fn in_use(&self) -> BigRational {
        whole(self.entries.iter().map(|(_, cost)| cost).sum::<BigInt>())
    }

    fn charge(&mut self, now: i128, units: u64) {
        let newest = self.entries.last().map_or(now, |(at, _)| (*at).max(now));
        self.entries.push((newest, units.into()));
    }

    fn refund(&mut self, units: u64) -> u64 {
        let mut left = units;
        for (_, cost) in self.entries.iter_mut().rev() {
            left -= take_from(cost, left);
        }
        units - left
    }
}

/// A level that falls at a constant rate: token bucket and leaky bucket.
#[derive(Clone, Debug)]
pub struct Bucket {
    rate: u64,
    per: i128,
    at: Option<i128>,
    drawn: BigRational,
}

impl Bucket {
    /// `rate` units come back per `per` nanoseconds.
    pub fn new(rate: u64, per: i128) -> Self {
        Self {
            rate,
            per,
            at: None,
            drawn: whole(0),
        }
    }
}

impl Oracle for Bucket {
    fn observe(&mut self, now: i128) {
        let at = match self.at {
            Some(at) if at <= now + HELD => at,
            _ => now,
        };
        let elapsed = (now - at).max(0);
        let earned = BigRational::new(BigInt::from(elapsed) * self.rate, self.per.into());
        self.drawn = (&self.drawn - earned).max(whole(0));
        self.at = Some(at.max(now));
    }

    fn in_use(&self) -> BigRational {
        self.drawn.clone()
    }

    fn charge(&mut self, _now: i128, units: u64) {
        self.drawn += whole(units);
    }

    fn refund(&mut self, units: u64) -> u64 {
        let begun = u64::try_from(&begun(&self.drawn)).unwrap_or(u64::MAX);
        let given = units.min(begun);
        self.drawn = (&self.drawn - whole(given)).max(whole(0));
        given
    }

    fn set_rate(&mut self, rate: u64) {
        self.rate = rate;
    }
}
