//! One counter: the use of one (tenant, limit, epoch, key) and the state its algorithm needs.
//!
//! Every access begins with [`Counter::prepare`], which brings the state to `now` (rolls windows, drops
//! what has ended) without changing what anyone is owed. Then [`Counter::admission`] and
//! [`Counter::standing`] only read, and [`Counter::charge`] and [`Counter::give_back`] only write.
//!
//! Windows never go back: a caller whose `now` lies before the newest window (another thread was a moment
//! ahead, or the clock was set back by up to an hour) is decided in the newest window, so no closed window
//! is ever opened again with a zero count.

mod afar;
mod drawn;
mod give;
mod lost;
mod persist;
mod prepare;
mod slices;

use serde::Deserialize;
use serde::Serialize;

use crate::algorithm::Admission;
use crate::algorithm::Standing;
use crate::algorithm::bucket::Flow;
use crate::algorithm::bucket::Level;
use crate::algorithm::concurrency::Lease;
use crate::algorithm::concurrency::Leases;
use crate::algorithm::fixed_window;
use crate::algorithm::sliding_log::Log;
use crate::algorithm::sliding_window;
use crate::domain::limit::Limit;
use crate::domain::limit::Mode;
use crate::domain::limit::Rule;
use crate::domain::stamp::Stamp;
use crate::domain::time::Span;
use crate::domain::time::Timestamp;
use crate::domain::time::WindowId;
use crate::ledger::counter::afar::Afar;
pub use crate::ledger::counter::afar::Told;
pub use crate::ledger::counter::afar::Unsent;
use crate::usage::window::WindowUse;

/// A counter's version keeps the start of the process that wrote it above this many bits of counting.
const VERSION_BITS: u32 = 40;
const VERSION_MASK: u64 = (1 << VERSION_BITS) - 1;
/// Higher starts share the highest versions; a store would have to be opened 16 million times.
const VERSION_START_MAX: u32 = (1 << (u64::BITS - VERSION_BITS)) - 1;

/// The version that `stamp` names.
pub(super) fn version(stamp: Stamp) -> u64 {
    let start = u64::from(stamp.start.min(VERSION_START_MAX));
    start << VERSION_BITS | stamp.count.min(VERSION_MASK)
}

/// The use of one (tenant, limit, epoch, key).
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Counter {
    /// The epoch that the use belongs to.
    pub epoch: u64,
    /// From here on nothing in this counter can change a decision.
    pub dead_at: Timestamp,
    /// Whether the disk lacks something of it.
    pub dirty: bool,
    /// Fingerprint of the rule that the state was made for; 0 when it came from disk and was not asked yet.
    shape: u32,
    /// Counts the changes of this counter: names the level of a bucket and the entries of a log on disk.
    version: u64,
    /// The newest window and the one before it.
    windows: [WindowUse; 2],
    state: State,
    /// Whether the use of all regions is held against the limit, and not that of this region alone.
    is_shared: bool,
    /// Whether this region's time has come to the newest window.
    come: Come,
    /// Whether peers lack something of the newest window and of the one before.
    unsent: Unsent,
    /// What other regions make necessary.
    #[serde(skip)]
    afar: Option<Box<Afar>>,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
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

/// Whether this region's time has come to the newest window.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
enum Come {
    /// Peers were there first.
    Not,
    Here,
    /// It has, from a shared window of which nobody has noted yet what it came to.
    FromAnother,
}

/// Stands in a [`Mark`] for units that were counted as use of a bucket and not drawn from it.
pub const NOT_DRAWN: u64 = u64::MAX;

/// Names what a charge touched, so that it can be given back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Mark {
    /// The window that was charged.
    pub window: WindowId,
    /// The number of a sliding log's entry; [`NOT_DRAWN`] for what a bucket only counted.
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

/// A fingerprint of all of `rule` that makes a new epoch when it changes; not zero.
///
/// Of a calendar only the period counts: a counter keeps the bounds of its window, so a caller with an older
/// anchor or zone does no harm inside them.
fn shape(rule: &Rule) -> u32 {
    let (kind, span) = match rule {
        Rule::FixedWindow { window, .. } => (1, window.as_nanos()),
        Rule::CalendarWindow { calendar, .. } => {
            (2 + calendar.period() as u64, u64::from(calendar.every()))
        }
        Rule::SlidingWindow { window, .. } => (16, window.as_nanos()),
        Rule::SlidingLog { window, .. } => (17, window.as_nanos()),
        Rule::TokenBucket { per, .. } => (18, per.as_nanos()),
        Rule::LeakyBucket { per, .. } => (19, per.as_nanos()),
        Rule::Concurrency { .. } => (20, 0),
    };
    // Fibonacci hashing: the top half of a product with 2^64/φ depends on all bits.
    let mixed = (span ^ kind << 56).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    u32::try_from(mixed >> 32).unwrap_or(1).max(1)
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

impl Counter {
    /// A counter without use.
    pub fn new(epoch: u64) -> Self {
        Self {
            epoch,
            dead_at: Timestamp::EPOCH,
            dirty: false,
            shape: 0,
            version: 0,
            windows: [
                WindowUse::new(WindowId(i64::MIN)),
                WindowUse::new(WindowId(i64::MIN)),
            ],
            state: State::Aligned,
            is_shared: false,
            come: Come::Not,
            unsent: Unsent::default(),
            afar: None,
        }
    }

    /// Enters `epoch`: use of an older one is over.
    pub fn enter_epoch(&mut self, epoch: u64) {
        if self.epoch < epoch {
            *self = Self {
                dirty: self.dirty,
                version: self.version,
                unsent: self.unsent.in_newest(),
                ..Self::new(epoch)
            };
        }
    }

    /// Enters `epoch` with `limit`; false when the counter is in a newer epoch of another shape and must not
    /// be touched. A caller that still holds an older catalogue is counted in the newer epoch if the shape
    /// is the same: what it takes is then never counted nowhere.
    pub fn enter_with(&mut self, epoch: u64, limit: &Limit) -> bool {
        self.enter_epoch(epoch);
        let shape = shape(&limit.rule);
        // One that came from disk or from a peer was not asked yet. The epochs that the catalogue has forgotten are
        // lower than the counters', and these are of the same shape.
        if epoch < self.epoch && self.shape != 0 {
            return self.shape == shape;
        }
        if self.shape != 0 && self.shape != shape {
            // Who asked first had an older catalogue: its windows are no reason to stay in them.
            self.come = Come::Not;
        }
        self.shape = shape;
        self.is_shared = limit.mode == Mode::Approximate;
        true
    }

    /// Units in use in `window` that are held against the limit.
    fn used(&self, window: &WindowUse) -> u64 {
        if self.is_shared {
            window.world()
        } else {
            window.home()
        }
    }

    /// Whether the state is one that `rule` can read.
    pub fn fits(&self, rule: &Rule) -> bool {
        self.shape == 0 || self.shape == shape(rule)
    }

    fn sliding(&self, length: Span) -> sliding_window::Windows {
        sliding_window::Windows {
            length,
            start: Timestamp::from_nanos(self.windows[0].id.0),
            current: self.used(&self.windows[0]),
            previous: self.used(&self.windows[1]),
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

    /// The instant to decide at: `now`, or how far time had come for this counter when that is ahead.
    fn held(&self, now: Timestamp) -> Timestamp {
        match &self.state {
            State::Aligned => now.max(Timestamp::from_nanos(self.windows[0].id.0)),
            State::Calendar { start, .. } => now.max(*start),
            State::Bucket(level) => now.max(level.at),
            // Their entries have ends of their own and are compared with `now` itself.
            State::Log(_) | State::Leases(_) => now,
        }
    }

    /// May `asked` units pass?
    pub fn admission(&self, rule: &Rule, asked: u64, now: Timestamp) -> Admission {
        let held = self.held(now);
        let admission = match (rule, &self.state) {
            (Rule::FixedWindow { quota, .. } | Rule::CalendarWindow { quota, .. }, _) => {
                let used = self.used(&self.windows[0]);
                fixed_window::admission(*quota, used, asked, self.end(rule), held)
            }
            (Rule::SlidingWindow { quota, window }, _) => {
                sliding_window::admission(*quota, &self.sliding(*window), asked, held)
            }
            (Rule::SlidingLog { quota, window }, State::Log(log)) => {
                log.admission(*quota, *window, asked, held)
            }
            (Rule::Concurrency { quota, .. }, State::Leases(leases)) => {
                self.lease_admission(leases, *quota, asked, held)
            }
            (Rule::TokenBucket { .. } | Rule::LeakyBucket { .. }, State::Bucket(level)) => {
                flow(rule).map_or(Admission::Never, |flow| level.admission(&flow, asked))
            }
            // `prepare` has made the state fit the rule.
            _ => Admission::Never,
        };
        match admission {
            // The clock has to come back to where it was before any of the wait passes.
            Admission::Wait { retry_after } => Admission::Wait {
                retry_after: retry_after.plus(held.since(now)),
            },
            Admission::Pass | Admission::Never => admission,
        }
    }

    /// How the limit stands.
    pub fn standing(&self, rule: &Rule, now: Timestamp) -> Standing {
        let held = self.held(now);
        let mut standing = match (rule, &self.state) {
            (Rule::FixedWindow { quota, .. } | Rule::CalendarWindow { quota, .. }, _) => {
                let used = self.used(&self.windows[0]);
                fixed_window::standing(*quota, used, self.end(rule), held)
            }
            (Rule::SlidingWindow { quota, window }, _) => {
                sliding_window::standing(*quota, &self.sliding(*window), held)
            }
            (Rule::SlidingLog { quota, window }, State::Log(log)) => {
                log.standing(*quota, *window, held)
            }
            (Rule::Concurrency { quota, .. }, State::Leases(leases)) => {
                self.lease_standing(leases, *quota)
            }
            (Rule::TokenBucket { .. } | Rule::LeakyBucket { .. }, State::Bucket(level)) => {
                flow(rule).map_or_else(Standing::default, |flow| level.standing(&flow))
            }
            _ => Standing::default(),
        };
        if !standing.reset_after.is_zero() {
            standing.reset_after = standing.reset_after.plus(held.since(now));
        }
        standing
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

    /// Begins a change by this process. The new version is above `floor`, which is above every version that
    /// this process gave to a counter of the same name before: on disk a name means one change only.
    pub fn touch(&mut self, floor: u64) {
        self.version = self.version.max(floor).saturating_add(1);
    }

    /// The version of the last change.
    pub const fn version(&self) -> u64 {
        self.version
    }

    /// Charges `cost` units at `now`; on a concurrency limit they are held under `lease`, whose own units are
    /// not read.
    pub fn charge(&mut self, rule: &Rule, cost: u64, now: Timestamp, lease: Option<Lease>) -> Mark {
        let mut entry = 0;
        match &mut self.state {
            State::Aligned | State::Calendar { .. } => {}
            State::Bucket(level) => {
                if let Some(flow) = flow(rule) {
                    level.draw(&flow, cost);
                }
            }
            State::Log(log) => entry = log.charge(cost, now, self.version & VERSION_MASK),
            State::Leases(leases) => {
                if let Some(lease) = lease {
                    leases.take(Lease {
                        units: cost,
                        ..lease
                    });
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

    /// Charges units that lie in the window that began at `start`. The clock here may have left that window a moment ago,
    /// or come to it in a moment: what was counted in another one, a later process would report of that.
    pub fn charge_in(&mut self, rule: &Rule, start: Timestamp, cost: u64, now: Timestamp) -> Mark {
        let id = match (rule, &self.state) {
            (Rule::FixedWindow { .. }, State::Aligned) => WindowId(start.as_nanos()),
            (Rule::CalendarWindow { calendar, .. }, State::Calendar { start: own, .. })
                if *own != start =>
            {
                calendar.window(start).id
            }
            _ => return self.charge(rule, cost, now, None),
        };
        let [newest, before] = [self.windows[0].id, self.windows[1].id];
        if id > newest && matches!(self.state, State::Aligned) {
            self.enter(id);
        } else if before < id && id < newest {
            self.windows[1] = WindowUse::new(id);
        }
        if self.windows[1].id != id {
            return self.charge(rule, cost, now, None);
        }
        let own = self.windows[1].own();
        self.windows[1].charge(cost);
        self.mark_before_unsent(own);
        Mark {
            window: id,
            entry: 0,
        }
    }

    /// Counts `cost` units as use without drawing them: what a bucket would have refused. Not so where it is shared:
    /// peers draw all that is counted here.
    pub fn count(&mut self, cost: u64) -> Mark {
        if !self.is_shared {
            self.windows[0].charge(cost);
        }
        Mark {
            window: self.windows[0].id,
            entry: NOT_DRAWN,
        }
    }

    /// Notes when this counter is dead, from how it stands at `now`.
    ///
    /// A counter that was charged lives until the windows it was charged in decide nothing any more, also
    /// when all was given back: were it dropped and made again, its slot would begin below what the disk has
    /// seen of it, and the next charges would be lost in the join.
    pub fn note_life(&mut self, rule: &Rule, standing: &Standing, now: Timestamp) {
        self.tell_leases(rule);
        let before = self.dead_at;
        let start = Timestamp::from_nanos(self.windows[0].id.0);
        self.dead_at = match (rule, &self.state) {
            (_, State::Leases(leases)) => self.last_lease_end(leases).unwrap_or(now),
            (_, State::Calendar { end, .. }) => *end,
            (Rule::SlidingLog { window, .. }, State::Log(log)) => {
                log.newest().map_or(now, |newest| newest.plus(*window))
            }
            (Rule::SlidingWindow { window, .. }, State::Aligned) => {
                if !self.windows[0].is_empty() {
                    start.plus(*window).plus(*window)
                } else if !self.windows[1].is_empty() {
                    start.plus(*window)
                } else {
                    now
                }
            }
            (Rule::TokenBucket { .. } | Rule::LeakyBucket { .. }, _) => {
                // Its decisions rest on the level alone. What the disk keeps of a segment is never below
                // what was drawn since, unless something was given back in it. Peers take the end of its life for
                // the time to refill: for them it is kept apart from that.
                let refilled = now.plus(standing.reset_after);
                match flow(rule) {
                    Some(flow) if self.windows[0].own().1 > 0 && self.afar.is_none() => {
                        refilled.max(start.plus(prepare::segment_length(&flow)))
                    }
                    _ => refilled,
                }
            }
            _ => now.plus(standing.reset_after),
        };
        self.note_life_afar(rule, before, now);
    }

    /// Moves the end of a hold's lease.
    pub fn renew(&mut self, hold: u128, expires_at: Timestamp) -> bool {
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
            leases.set(lease);
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
}
