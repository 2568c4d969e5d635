//! One counter: the use of one (tenant, limit, epoch, key) and the state its algorithm needs.
//!
//! Every access begins with [`Counter::prepare`], which brings the state to `now` (rolls windows, drops
//! what has ended) without changing what anyone is owed. Then [`Counter::admission`] and
//! [`Counter::standing`] only read, and [`Counter::charge`] and [`Counter::give_back`] only write.
//!
//! Windows never go back: a caller whose `now` lies before the newest window (another thread was a moment
//! ahead, or the clock was set back by up to an hour) is decided in the newest window, so no closed window
//! is ever opened again with a zero count.

use crate::algorithm::Admission;
use crate::algorithm::BACK_STEP_MAX;
use crate::algorithm::Standing;
use crate::algorithm::bucket::Flow;
use crate::algorithm::bucket::Level;
use crate::algorithm::concurrency::Lease;
use crate::algorithm::concurrency::Leases;
use crate::algorithm::fixed_window;
use crate::algorithm::sliding_log::Log;
use crate::algorithm::sliding_window;
use crate::domain::limit::Rule;
use crate::domain::stamp::Stamp;
use crate::domain::time::Span;
use crate::domain::time::Timestamp;
use crate::domain::time::Window;
use crate::domain::time::WindowId;
use crate::usage::actor::ActorId;
use crate::usage::record::BucketLevel;
use crate::usage::record::CounterId;
use crate::usage::record::CounterRecord;
use crate::usage::window::WindowUse;

/// The shortest segment in which a bucket's use is counted, as a power of two of nanoseconds: 1.07 s.
const SEGMENT_SHIFT_MIN: u32 = 30;

/// A counter's version keeps the start of the process that wrote it above this many bits of counting.
const VERSION_BITS: u32 = 40;
const VERSION_MASK: u64 = (1 << VERSION_BITS) - 1;

/// The use of one (tenant, limit, epoch, key).
#[derive(Clone, Debug)]
pub struct Counter {
    /// The epoch that the use belongs to.
    pub epoch: u64,
    /// From here on nothing in this counter can change a decision.
    pub dead_at: Timestamp,
    /// Whether the disk lacks something of it.
    pub dirty: bool,
    /// Counts the changes of this counter, so that the newest level of a bucket wins on disk.
    version: u64,
    /// The newest window and the one before it.
    windows: [WindowUse; 2],
    state: State,
}

#[derive(Clone, Debug)]
enum State {
    /// Fixed and sliding windows: the windows say all.
    Aligned,
    /// Calendar windows: the bounds of the newest window, since finding them is slow.
    Calendar {
        start: Timestamp,
        end: Timestamp,
    },
    Bucket(Level),
    Log(Box<Log>),
    Leases(Box<Leases>),
}

/// Names what a charge touched, so that it can be given back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Mark {
    /// The window that was charged.
    pub window: WindowId,
    /// The number of a sliding log's entry.
    pub entry: u64,
}

/// What is given back, and from which charge.
#[derive(Clone, Copy, Debug)]
pub struct GiveBack {
    /// At most this many units.
    pub units: u64,
    /// The window that was charged.
    pub window: WindowId,
    /// A sliding log's entry.
    pub entry: Stamp,
    /// A concurrency limit's hold.
    pub hold: u128,
}

/// Which entries of a sliding log go into a record.
#[derive(Clone, Copy, Debug)]
pub enum Entries {
    /// Those from this number on.
    From(u64),
    /// Those that the disk may lack.
    Unsaved,
    /// Those that the disk may lack; from here on it is taken to have them.
    TakeUnsaved,
}

/// The amounts of a bucket, if `rule` is one.
pub fn flow(rule: &Rule) -> Option<Flow> {
    match *rule {
        Rule::TokenBucket {
            capacity,
            refill,
            per,
        } => Some(Flow {
            capacity,
            rate: refill,
            per,
        }),
        Rule::LeakyBucket {
            capacity,
            drain,
            per,
        } => Some(Flow {
            capacity,
            rate: drain,
            per,
        }),
        Rule::FixedWindow { .. }
        | Rule::CalendarWindow { .. }
        | Rule::SlidingWindow { .. }
        | Rule::SlidingLog { .. }
        | Rule::Concurrency { .. } => None,
    }
}

/// The segment of time in which a bucket's use at `now` is counted: aligned, a power of two of
/// nanoseconds, no shorter than the time to refill and at most four times as long.
fn segment(flow: &Flow, now: Timestamp) -> WindowId {
    let bits = |n: u64| u64::BITS - n.leading_zeros();
    let shift =
        (bits(flow.capacity) + bits(flow.per.as_nanos()) + 1).saturating_sub(bits(flow.rate));
    let shift = shift.clamp(SEGMENT_SHIFT_MIN, 62);
    WindowId(now.as_nanos() >> shift << shift)
}

impl Counter {
    /// A counter without use.
    pub fn new(epoch: u64) -> Self {
        Self {
            epoch,
            dead_at: Timestamp::EPOCH,
            dirty: false,
            version: 0,
            windows: [
                WindowUse::new(WindowId(i64::MIN)),
                WindowUse::new(WindowId(i64::MIN)),
            ],
            state: State::Aligned,
        }
    }

    /// Enters `epoch`: use of an older one is over. A caller that still holds an older catalogue is counted
    /// in the newer epoch.
    pub fn enter_epoch(&mut self, epoch: u64) {
        if self.epoch < epoch {
            *self = Self {
                dirty: self.dirty,
                version: self.version,
                ..Self::new(epoch)
            };
        }
    }

    /// Brings the state to `now` for `rule`.
    pub fn prepare(&mut self, rule: &Rule, now: Timestamp) {
        match rule {
            Rule::FixedWindow { window, .. } | Rule::SlidingWindow { window, .. } => {
                self.state = State::Aligned;
                let at = Window::aligned(now, *window);
                let previous = WindowId(at.id.0.saturating_sub_unsigned(window.as_nanos()));
                self.roll(at.id, previous, now);
            }
            Rule::CalendarWindow { calendar, .. } => {
                if let State::Calendar { start, end } = self.state
                    && now < end
                    && (start <= now || start <= now.plus(BACK_STEP_MAX))
                {
                    return;
                }
                let at = calendar.window(now);
                self.state = State::Calendar {
                    start: at.start,
                    end: at.end,
                };
                self.roll(at.id, WindowId(i64::MIN), now);
            }
            Rule::TokenBucket { .. } | Rule::LeakyBucket { .. } => {
                let Some(flow) = flow(rule) else { return };
                let level = if let State::Bucket(level) = self.state {
                    level
                } else {
                    Level { drawn: 0, at: now }
                };
                self.state = State::Bucket(level.at(&flow, now));
                let id = segment(&flow, now);
                if id > self.windows[0].id {
                    self.shift(id);
                }
            }
            Rule::SlidingLog { window, .. } => {
                if !matches!(self.state, State::Log(_)) {
                    self.state = State::Log(Box::default());
                }
                if let State::Log(log) = &mut self.state {
                    log.advance(*window, now);
                }
                let at = Window::aligned(now, *window);
                let previous = WindowId(at.id.0.saturating_sub_unsigned(window.as_nanos()));
                self.roll(at.id, previous, now);
            }
            Rule::Concurrency { .. } => {
                if !matches!(self.state, State::Leases(_)) {
                    self.state = State::Leases(Box::default());
                }
                if let State::Leases(leases) = &mut self.state {
                    leases.advance(now);
                }
            }
        }
    }

    /// Makes `id` the newest window. An older one is taken only when the clock was set back so far that it
    /// has to be followed.
    fn roll(&mut self, id: WindowId, previous: WindowId, now: Timestamp) {
        let newest = self.windows[0].id;
        if id == newest {
            return;
        }
        if id < newest && newest.0 <= now.plus(BACK_STEP_MAX).as_nanos() {
            return;
        }
        if id < newest {
            let [newest, older] = &mut self.windows;
            let back = if older.id == id {
                std::mem::take(older)
            } else {
                WindowUse::new(id)
            };
            *newest = back;
            *older = WindowUse::new(WindowId(i64::MIN));
            return;
        }
        self.shift(id);
        if self.windows[1].id != previous && previous.0 != i64::MIN {
            self.windows[1] = WindowUse::new(previous);
        }
    }

    fn shift(&mut self, id: WindowId) {
        let newest = std::mem::replace(&mut self.windows[0], WindowUse::new(id));
        self.windows[1] = newest;
    }

    fn sliding(&self, length: Span) -> sliding_window::Windows {
        sliding_window::Windows {
            length,
            start: Timestamp::from_nanos(self.windows[0].id.0),
            current: self.windows[0].home(),
            previous: self.windows[1].home(),
        }
    }

    /// The end of the newest window of a fixed or calendar limit.
    fn end(&self, rule: &Rule) -> Timestamp {
        match (rule, &self.state) {
            (Rule::FixedWindow { window, .. }, _) => {
                Timestamp::from_nanos(self.windows[0].id.0).plus(*window)
            }
            (_, State::Calendar { end, .. }) => *end,
            _ => Timestamp::MAX,
        }
    }

    /// The start of the newest window, of limits that have windows.
    pub fn window_start(&self, rule: &Rule) -> Option<Timestamp> {
        match (rule, &self.state) {
            (Rule::FixedWindow { .. } | Rule::SlidingWindow { .. }, _) => {
                Some(Timestamp::from_nanos(self.windows[0].id.0))
            }
            (Rule::CalendarWindow { .. }, State::Calendar { start, .. }) => Some(*start),
            _ => None,
        }
    }

    /// The length of the newest window of a calendar limit.
    pub fn calendar_length(&self) -> Option<Span> {
        match self.state {
            State::Calendar { start, end } => Some(end.since(start)),
            _ => None,
        }
    }

    /// `now`, or the start of the newest window when that lies a little ahead.
    fn window_now(&self, now: Timestamp) -> Timestamp {
        match self.state {
            State::Calendar { start, .. } => now.max(start),
            _ => now.max(Timestamp::from_nanos(self.windows[0].id.0)),
        }
    }

    /// May `asked` units pass?
    pub fn admission(&self, rule: &Rule, asked: u64, now: Timestamp) -> Admission {
        match (rule, &self.state) {
            (Rule::FixedWindow { quota, .. } | Rule::CalendarWindow { quota, .. }, _) => {
                fixed_window::admission(
                    *quota,
                    self.windows[0].home(),
                    asked,
                    self.end(rule),
                    self.window_now(now),
                )
            }
            (Rule::SlidingWindow { quota, window }, _) => sliding_window::admission(
                *quota,
                &self.sliding(*window),
                asked,
                self.window_now(now),
            ),
            (Rule::SlidingLog { quota, window }, State::Log(log)) => {
                log.admission(*quota, *window, asked, now)
            }
            (Rule::Concurrency { quota, .. }, State::Leases(leases)) => {
                leases.admission(*quota, asked, now)
            }
            (Rule::TokenBucket { .. } | Rule::LeakyBucket { .. }, State::Bucket(level)) => {
                flow(rule).map_or(Admission::Never, |flow| level.admission(&flow, asked))
            }
            // `prepare` has made the state fit the rule.
            _ => Admission::Never,
        }
    }

    /// How the limit stands.
    pub fn standing(&self, rule: &Rule, now: Timestamp) -> Standing {
        match (rule, &self.state) {
            (Rule::FixedWindow { quota, .. } | Rule::CalendarWindow { quota, .. }, _) => {
                fixed_window::standing(
                    *quota,
                    self.windows[0].home(),
                    self.end(rule),
                    self.window_now(now),
                )
            }
            (Rule::SlidingWindow { quota, window }, _) => {
                sliding_window::standing(*quota, &self.sliding(*window), self.window_now(now))
            }
            (Rule::SlidingLog { quota, window }, State::Log(log)) => {
                log.standing(*quota, *window, now)
            }
            (Rule::Concurrency { quota, .. }, State::Leases(leases)) => leases.standing(*quota),
            (Rule::TokenBucket { .. } | Rule::LeakyBucket { .. }, State::Bucket(level)) => {
                flow(rule).map_or_else(Standing::default, |flow| level.standing(&flow))
            }
            _ => Standing::default(),
        }
    }

    /// How long a leaky bucket's next unit waits before it is served.
    pub fn delay(&self, rule: &Rule) -> Span {
        match (rule, &self.state) {
            (Rule::LeakyBucket { .. }, State::Bucket(level)) => {
                flow(rule).map_or(Span::ZERO, |flow| level.wait(&flow))
            }
            _ => Span::ZERO,
        }
    }

    /// Charges `cost` units at `now`; on a concurrency limit they are held under `lease`.
    pub fn charge(&mut self, rule: &Rule, cost: u64, now: Timestamp, lease: Option<Lease>) -> Mark {
        self.version += 1;
        let mut entry = 0;
        match &mut self.state {
            State::Aligned | State::Calendar { .. } => {}
            State::Bucket(level) => {
                if let Some(flow) = flow(rule) {
                    level.draw(&flow, cost);
                }
            }
            State::Log(log) => entry = log.charge(cost, now),
            State::Leases(leases) => {
                if let Some(lease) = lease {
                    leases.take(lease);
                }
            }
        }
        if !matches!(self.state, State::Leases(_)) {
            self.windows[0].charge(cost);
        }
        Mark {
            window: self.windows[0].id,
            entry,
        }
    }

    /// Counts `cost` units as use without drawing them: what a shadow bucket would have refused.
    pub fn count(&mut self, cost: u64) -> Mark {
        self.version += 1;
        self.windows[0].charge(cost);
        Mark {
            window: self.windows[0].id,
            entry: 0,
        }
    }

    /// Notes when this counter is dead, from how it stands at `now`.
    pub fn note_life(&mut self, standing: &Standing, now: Timestamp) {
        self.dead_at = match &self.state {
            State::Leases(leases) => leases.last_end().unwrap_or(now),
            _ => now.plus(standing.reset_after),
        };
    }

    /// Gives units back to the charge they came from; returns how many were given. The window must still
    /// be one that the algorithm reads, else nothing is.
    pub fn give_back(&mut self, rule: &Rule, what: &GiveBack, own_start: u32) -> u64 {
        let given = match &mut self.state {
            State::Aligned | State::Calendar { .. } => {
                let read = if matches!(rule, Rule::SlidingWindow { .. }) {
                    2
                } else {
                    1
                };
                give_to(&mut self.windows[..read], Some(what.window), what.units)
            }
            State::Bucket(level) => {
                let given = flow(rule).map_or(0, |flow| level.put_back(&flow, what.units));
                give_to(&mut self.windows, None, given);
                given
            }
            State::Log(log) => {
                let number = log.number_of(what.entry, own_start);
                let given = number.map_or(0, |number| log.give_back(what.units, Some(number)));
                give_to(&mut self.windows, Some(what.window), given);
                given
            }
            State::Leases(leases) => leases.free(what.hold, what.units),
        };
        self.version += 1;
        given
    }

    /// Gives back up to `units` of whatever is in use now, newest first; returns how many.
    pub fn refund(&mut self, rule: &Rule, units: u64) -> u64 {
        let given = match &mut self.state {
            State::Aligned | State::Calendar { .. } => {
                let read = if matches!(rule, Rule::SlidingWindow { .. }) {
                    2
                } else {
                    1
                };
                give_to(&mut self.windows[..read], None, units)
            }
            State::Bucket(level) => {
                let given = flow(rule).map_or(0, |flow| level.put_back(&flow, units));
                give_to(&mut self.windows, None, given);
                given
            }
            State::Log(log) => {
                let given = log.give_back(units, None);
                give_to(&mut self.windows, None, given);
                given
            }
            State::Leases(_) => 0,
        };
        self.version += 1;
        given
    }

    /// Moves the end of a hold's lease.
    pub fn renew(&mut self, hold: u128, expires_at: Timestamp) -> bool {
        self.version += 1;
        match &mut self.state {
            State::Leases(leases) => leases.renew(hold, expires_at),
            _ => false,
        }
    }

    /// Takes over a lease that was read back from disk.
    pub fn restore_lease(&mut self, lease: Lease) {
        if !matches!(self.state, State::Leases(_)) {
            self.state = State::Leases(Box::default());
        }
        if let State::Leases(leases) = &mut self.state {
            leases.take(lease);
            self.dead_at = leases.last_end().unwrap_or(self.dead_at);
        }
    }

    /// Units of this region and of other regions in the newest window that the algorithm reads.
    pub fn window(&self) -> &WindowUse {
        &self.windows[0]
    }

    /// The window before the newest one.
    pub fn window_before(&self) -> &WindowUse {
        &self.windows[1]
    }

    /// What this process changed, for disk.
    pub fn record(
        &mut self,
        id: CounterId,
        own: ActorId,
        start: u32,
        entries: Entries,
    ) -> CounterRecord {
        let mut record = CounterRecord::empty(id, self.epoch);
        record.dead_at = self.dead_at;
        for window in &self.windows {
            let (p, n) = window.own();
            if p > 0 || n > 0 {
                record.set_slot(window.id, own, p, n);
            }
        }
        match &mut self.state {
            State::Bucket(level) => {
                let stamp = Stamp {
                    start,
                    count: self.version & VERSION_MASK,
                };
                record.bucket = Some(BucketLevel {
                    stamp,
                    at: level.at,
                    drawn: level.drawn,
                });
            }
            State::Log(log) => {
                let entries = match entries {
                    Entries::From(number) => log.changes_from(number, start),
                    Entries::Unsaved => log.changes_from(log.clean_below(), start),
                    Entries::TakeUnsaved => log.take_changes(start),
                };
                record.log = entries.into_iter().collect();
            }
            State::Aligned | State::Calendar { .. } | State::Leases(_) => {}
        }
        record
    }

    /// Joins a record of earlier processes or other regions; `home` tells which actors are of this region.
    pub fn merge(&mut self, record: &CounterRecord, own: ActorId, home: impl Fn(ActorId) -> bool) {
        for (id, counter) in &record.windows {
            let Some(window) = self.window_mut(*id) else {
                continue;
            };
            for (actor, p, n) in crate::usage::record::slots(counter) {
                if actor != own {
                    window.merge_slot(crate::usage::window::Slot {
                        actor,
                        p,
                        n,
                        home: home(actor),
                    });
                }
            }
        }
        if let Some(news) = record.bucket {
            let version =
                u64::from(news.stamp.start) << VERSION_BITS | news.stamp.count & VERSION_MASK;
            if version > self.version || !matches!(self.state, State::Bucket(_)) {
                self.version = version;
                self.state = State::Bucket(Level {
                    drawn: news.drawn,
                    at: news.at,
                });
            }
        }
        if !record.log.is_empty() {
            self.state = State::Log(Box::new(Log::restored(
                record.log.iter().map(|(s, e)| (*s, *e)),
            )));
        }
        self.dead_at = self.dead_at.max(record.dead_at);
    }

    fn window_mut(&mut self, id: WindowId) -> Option<&mut WindowUse> {
        if id > self.windows[0].id {
            self.shift(id);
        } else if id < self.windows[0].id && id > self.windows[1].id {
            self.windows[1] = WindowUse::new(id);
        }
        self.windows.iter_mut().find(|window| window.id == id)
    }
}

/// Gives `units` back to the windows (newest first), or to the one named, as far as they are in use.
fn give_to(windows: &mut [WindowUse], only: Option<WindowId>, units: u64) -> u64 {
    let mut left = units;
    for window in windows {
        if only.is_none_or(|only| only == window.id) {
            let given = left.min(window.home());
            window.give_back(given);
            left -= given;
        }
    }
    units - left
}
