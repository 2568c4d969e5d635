//! Until when the regions may spend units of buckets.
//!
//! A region's lease runs [`LEASE`] from the instant at which it sent the newest message that the leader has
//! heard; every stamp tells it so. Lengths of boot clocks are all that matters: no clock is set right for it.
//! When nothing was heard for that long and [`LAPSE_MARGIN`], the region spends no more, and an entry says that
//! what it did not tell of counts as spent. While that entry is on its way nothing is granted to the region and
//! its lease is not renewed.
//!
//! Earlier leaders may have renewed leases until they noticed that they lead no more; a new leader lets every
//! lease run in full, from [`EARLIER_LEADERS`] after its start.

use std::collections::BTreeMap;

use crate::domain::time::Span;
use crate::grants::account::Holder;
use crate::grants::book::Book;
use crate::grants::exchange::LEASE;
use crate::grants::leader::Action;
use crate::grants::leader::Leader;
use crate::grants::leader::Now;

/// How much later than a lease's end the leader takes its units for spent. Far more than two boot clocks drift
/// apart in [`LEASE`].
pub const LAPSE_MARGIN: Span = Span::from_ms(250);
/// A leader that leads no more renews leases for no longer than this.
pub const EARLIER_LEADERS: Span = Span::from_seconds(3);
/// Leases are looked at this often.
const LOOK_EVERY: Span = Span::from_ms(250);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    /// It runs, or ran out and no entry says so.
    Running,
    /// An entry is on its way.
    Ending,
    /// An entry was lost.
    Lost,
    /// An entry has ended it.
    Ended,
}

#[derive(Clone, Copy, Debug)]
struct Lease {
    /// By the region's boot clock; `None`: nothing was heard of it.
    sent: Option<Span>,
    /// By the own boot clock.
    heard: Span,
    state: State,
}

/// All leases.
#[derive(Clone, Debug, Default)]
pub(super) struct Leases {
    begun: Option<Span>,
    is_paused: bool,
    look_at: Span,
    known: BTreeMap<Holder, Lease>,
}

impl Leases {
    /// `holder` sent something at its boot time `sent`.
    pub(super) fn hear(&mut self, boot: Span, holder: &Holder, sent: Span) {
        if self.is_paused || self.is_ending(holder) {
            return;
        }
        self.begun.get_or_insert(boot);
        let is_known = |lease: &Lease| lease.sent.is_some_and(|known| known >= sent);
        if !self.known.get(holder).is_some_and(is_known) {
            let lease = Lease {
                sent: Some(sent),
                heard: boot,
                state: State::Running,
            };
            self.known.insert(holder.clone(), lease);
        }
    }

    /// Whether an entry is on its way that ends the lease of `holder`.
    pub(super) fn is_ending(&self, holder: &Holder) -> bool {
        let lease = self.known.get(holder);
        lease.is_some_and(|lease| matches!(lease.state, State::Ending | State::Lost))
    }

    /// From where on the lease of `holder` runs.
    pub(super) fn of(&self, holder: &Holder) -> Option<Span> {
        let lease = self.known.get(holder)?;
        lease.sent.filter(|_| lease.state == State::Running)
    }

    /// Holders whose leases have ended; entries about them are on their way from now on.
    fn end(&mut self, boot: Span, holders: impl Iterator<Item = Holder>) -> Vec<Holder> {
        let begun = *self.begun.get_or_insert(boot);
        if boot < self.look_at {
            return Vec::new();
        }
        self.look_at = boot.plus(LOOK_EVERY);
        let full = LEASE.plus(LAPSE_MARGIN);
        let earliest = begun.plus(EARLIER_LEADERS).plus(full);
        let mut kept = BTreeMap::new();
        let mut ended = Vec::new();
        for holder in holders {
            let mut lease = self.known.remove(&holder).unwrap_or(Lease {
                sent: None,
                heard: begun,
                state: State::Running,
            });
            let is_over = boot >= lease.heard.plus(full).max(earliest);
            if lease.state == State::Lost || (lease.state == State::Running && is_over) {
                lease.state = State::Ending;
                ended.push(holder.clone());
            }
            kept.insert(holder, lease);
        }
        // Processes that were replaced hold no units: the book has ended their leases.
        self.known = kept;
        ended
    }
}

impl Leader {
    /// Whether leases may be renewed: not when this region may have been deposed without knowing.
    pub const fn renew_leases(&mut self, may: bool) {
        self.leases.is_paused = !may;
    }

    /// Ends leases that have run out; to be called several times a second.
    pub fn end_leases(&mut self, now: Now, book: &Book, out: &mut Vec<Action>) {
        let ended = self.leases.end(now.boot, book.leased());
        out.extend(ended.into_iter().map(Action::Lapse));
    }

    /// An entry that ends the lease of `holder` was applied, or nobody knows: then it is made again.
    pub fn lapsed(&mut self, holder: &Holder, is_applied: bool) {
        if let Some(lease) = self.leases.known.get_mut(holder)
            && lease.state == State::Ending
        {
            lease.state = if is_applied {
                State::Ended
            } else {
                State::Lost
            };
        }
    }
}
