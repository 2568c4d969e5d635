//! What a region holds of one window.

use crate::domain::time::Span;
use crate::domain::time::Timestamp;
use crate::domain::time::Window;
use crate::grants::account::PoolStanding;
use crate::grants::account::Totals;
use crate::grants::exchange::Exchange;
use crate::grants::exchange::Resumed;
use crate::grants::message::LogStamp;
use crate::grants::reservation::Now;

/// Changed totals are told this often.
pub(super) const REPORT_EVERY: Span = Span::from_ms(100);
/// Totals that did not change any more are told again after these times, since a report may be lost.
const REPEAT_AFTER: [Span; 2] = [Span::from_ms(1_000), Span::from_ms(4_000)];

/// Units of a bucket that were not used for so long go back.
const IDLE: Span = Span::from_seconds(5);
/// How often an unused bucket is told of.
const ASK_WHETHER_FORGOTTEN: Span = Span::from_seconds(60);

/// The leader's word that no unit is to be had, on the own boot clock.
#[derive(Clone, Copy, Debug)]
pub(super) struct DryWord {
    /// Until when it holds; for [`STALE`] longer it is believed and asked about.
    pub(super) until: Span,
    /// Until when units can come from a recall.
    pub(super) recalling_until: Option<Span>,
}

/// How long a dry word that ran out is still believed.
pub(super) const STALE: Span = Span::from_seconds(1);

/// The leader's view of a window.
#[derive(Clone, Copy, Debug)]
pub(super) struct Told {
    pub(super) pool: PoolStanding,
    /// It is at least as new as this boot time.
    pub(super) boot: Span,
    /// The term and log time of the word.
    pub(super) order: (u64, Timestamp),
}

/// What was asked of one window.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Asked {
    /// The highest `need_to` that was sent.
    pub(super) need_to: u64,
    /// What was wanted by the last ask.
    pub(super) want_to: u64,
    /// When the last ask was sent.
    pub(super) last: Option<Span>,
}

/// Units of one window. `spent + held + returned = received ≤ granted`.
#[derive(Clone, Debug)]
pub(super) struct Held {
    pub(super) window: Window,
    /// Units may be used from this boot time on; [`Span::MAX`]: not known yet.
    pub(super) from: Span,
    /// Units may be used before this boot time; [`Span::MAX`] when `from` is.
    pub(super) until: Span,
    pub(super) received: u64,
    pub(super) totals: Totals,
    pub(super) asked: Asked,
    /// How far the low water mark is pulled down after a short grant; [`u64::MAX`]: not at all.
    pub(super) low_cap: u64,
    pub(super) dry: Option<DryWord>,
    pub(super) told: Option<Told>,
    /// Buckets: the lease under which the units are held.
    lease: Option<u32>,
    /// Buckets: when units were last spent or came.
    used_at: Span,
    reported: Totals,
    /// When totals last went out.
    told_totals_at: Span,
    /// When the next report is due; [`Span::MAX`]: none.
    pub(super) report_at: Span,
    repeats: u8,
}

impl Held {
    pub(super) fn new(window: Window, exchange: &Exchange) -> Self {
        let mut held = Self {
            window,
            from: Span::MAX,
            until: Span::MAX,
            received: 0,
            totals: Totals::default(),
            asked: Asked::default(),
            low_cap: u64::MAX,
            dry: None,
            told: None,
            lease: None,
            used_at: Span::ZERO,
            reported: Totals::default(),
            told_totals_at: Span::ZERO,
            report_at: Span::MAX,
            repeats: 0,
        };
        held.place(exchange);
        held
    }

    /// Finds the boot times between which the units may be used.
    pub(super) fn place(&mut self, exchange: &Exchange) {
        if self.window.is_endless() {
            self.from = Span::ZERO;
            return;
        }
        if let (Some(from), Some(until)) = (
            exchange.not_before(self.window.start),
            exchange.not_after(self.window.end),
        ) {
            self.from = from;
            self.until = until;
        }
    }

    /// Units that can be spent or returned.
    pub(super) const fn units(&self) -> u64 {
        self.received
            .saturating_sub(self.totals.returned)
            .saturating_sub(self.totals.spent)
    }

    pub(super) fn is_usable(&self, boot: Span) -> bool {
        self.from <= boot && boot < self.until
    }

    /// Moves `units` at most from held to spent; tells whether all of them were there.
    pub(super) fn spend(&mut self, units: u64, boot: Span) -> bool {
        let enough = self.units() >= units;
        if enough && units > 0 {
            self.totals.spent += units;
            self.used_at = boot;
            self.report_soon(boot);
        }
        enough
    }

    /// Moves `units` at most from held to returned.
    pub(super) fn give(&mut self, units: u64, boot: Span) {
        let units = units.min(self.units());
        if units > 0 {
            self.totals.returned += units;
            self.report_soon(boot);
        }
    }

    /// The dry word, while it is believed.
    pub(super) fn believed_dry(&self, boot: Span) -> Option<DryWord> {
        self.dry.filter(|dry| boot < dry.until.plus(self.stale()))
    }

    /// How long a dry word that ran out is still believed here: a bucket has earned by then.
    pub(super) const fn stale(&self) -> Span {
        if self.window.is_endless() {
            Span::ZERO
        } else {
            STALE
        }
    }

    // Buckets.

    /// Whether units are held under a lease that has ended.
    #[inline]
    pub(super) fn has_lapsed(&self, now: &Now<'_>) -> bool {
        self.window.is_endless() && self.units() > 0 && self.lease != now.exchange.lease(now.boot)
    }

    /// The lease has ended: what is held counts as spent.
    pub(super) fn lapse(&mut self, boot: Span) {
        self.totals.spent += self.units();
        self.report_soon(boot);
    }

    /// Units up to the total `granted` have come, those up to `lapsed_to` too late. The message is of the lease
    /// that runs.
    pub(super) fn receive(&mut self, granted: u64, lapsed_to: u64, now: &Now<'_>) {
        if granted > self.received {
            self.received = granted;
            self.used_at = now.boot;
        }
        let done = self.totals.spent.saturating_add(self.totals.returned);
        let lapsed_to = lapsed_to.min(self.received);
        if done < lapsed_to {
            self.totals.spent += lapsed_to - done;
            self.report_soon(now.boot);
        }
        self.lease = now.exchange.lease(now.boot);
    }

    /// Whether nothing is drawn of the bucket as far as the leader knows, and something was spent here that it
    /// was not told of.
    pub(super) fn is_of_full_bucket(&self) -> bool {
        self.window.is_endless()
            && self.totals != self.reported
            && self.told.is_some_and(|told| told.pool.drawn == 0)
    }

    /// When units of a bucket that nobody used for a while go back; [`Span::MAX`]: there are none.
    pub(super) fn idle_at(&self) -> Span {
        if self.window.is_endless() && self.units() > 0 {
            self.used_at.plus(IDLE)
        } else {
            Span::MAX
        }
    }

    /// Whether all that was done was told, often enough.
    pub(super) fn is_told(&self) -> bool {
        self.report_at == Span::MAX
            || (self.totals == self.reported && usize::from(self.repeats) >= REPEAT_AFTER.len())
    }

    /// Keeps the newest standing of any order of arrival.
    pub(super) fn tell(&mut self, pool: PoolStanding, stamp: &LogStamp, boot: Span) {
        let order = (stamp.term, stamp.log_time);
        // A clock that is set by hand stands still: then what comes later is newer. A repeat is not.
        let is_newer =
            |told: Told| told.order < order || (told.order == order && told.pool != pool);
        if self.told.is_none_or(is_newer) {
            self.told = Some(Told {
                pool,
                boot: stamp.echo.filter(|sent| *sent <= boot).unwrap_or(boot),
                order,
            });
        }
    }

    fn report_soon(&mut self, boot: Span) {
        let soon = boot.plus(REPORT_EVERY);
        if self.report_at > soon {
            self.report_at = soon;
        }
    }

    /// The totals go out with some message at `boot`: the next report of them can wait.
    pub(super) fn told_totals(&mut self, boot: Span) {
        self.told_totals_at = boot;
        if self.totals != self.reported {
            self.reported = self.totals;
            self.repeats = 0;
            self.report_at = boot.plus(REPEAT_AFTER[0]);
        }
    }

    /// What was told may not have arrived: it is told again, at once what is recent, and after `later` what is
    /// older, if another leader wants it.
    pub(super) fn tell_again(&mut self, resumed: Resumed, boot: Span, later: Span) {
        if self.totals == Totals::default() {
            return;
        }
        if self.told_totals_at >= resumed.lost_since {
            self.repeats = 0;
            self.report_at = boot;
        } else if resumed.is_another {
            self.repeats = 0;
            self.report_at = self.report_at.min(boot.plus(later));
        }
    }

    /// Whether a report is due; then the next one is planned.
    pub(super) fn report_is_due(&mut self, boot: Span) -> bool {
        if self.report_at > boot {
            return false;
        }
        if self.totals != self.reported {
            self.told_totals(boot);
            return true;
        }
        self.told_totals_at = boot;
        self.repeats = self.repeats.saturating_add(1);
        self.report_at = REPEAT_AFTER
            .get(usize::from(self.repeats))
            .map_or(self.asks_again(boot), |after| boot.plus(*after));
        true
    }

    /// A bucket that nobody uses is told of once in a while, so that the leader can say that it was forgotten.
    fn asks_again(&self, boot: Span) -> Span {
        if self.window.is_endless() {
            boot.plus(ASK_WHETHER_FORGOTTEN)
        } else {
            Span::MAX
        }
    }

    /// The window is over: its last totals are told at once.
    pub(super) fn end(&mut self, boot: Span) {
        if self.totals != Totals::default() {
            self.repeats = 0;
            self.report_at = boot;
        }
    }
}
