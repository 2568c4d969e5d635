//! What regions and the leader tell each other. Any message may be lost, doubled, late or out of order.
//!
//! Times of a sender's own clock travel only to be given back to it: a boot time means nothing elsewhere.

use serde::Deserialize;
use serde::Serialize;

use crate::domain::time::Span;
use crate::domain::time::Timestamp;
use crate::domain::time::Window;
use crate::domain::time::WindowId;
use crate::grants::account::Account;
use crate::grants::account::Holder;
use crate::grants::account::PoolStanding;
use crate::grants::account::Totals;

/// From a region to the leader.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum ToLeader {
    /// Wants units.
    Ask(Ask),
    /// Tells what it did with its units; every 100 ms for counters that changed, and at once on a recall.
    Report(Report),
    /// Nothing but a sign of life and a clock sample; at least every 250 ms.
    Pulse(Pulse),
}

/// A region's sign of life.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Pulse {
    /// Who tells.
    pub holder: Holder,
    /// The sender's boot clock.
    pub sent_boot: Span,
    /// The time of one refill as the sender measures it; zero when it has not measured.
    pub refill: Span,
    /// The sender's region time, for the leader's view of everybody's clock.
    pub region_time: Timestamp,
}

/// A region wants units of one window of one counter.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Ask {
    /// Who asks.
    pub holder: Holder,
    /// The counter.
    pub account: Account,
    /// An instant of log time in the window that is meant; `None`: the window that runs at the leader.
    pub at: Option<Timestamp>,
    /// The cumulative total that waiting checks need: spent + returned + what waits.
    pub need_to: u64,
    /// The cumulative total that is worth holding; at least `need_to`.
    pub want_to: u64,
    /// Units per 1000 s that the region needs at present.
    pub demand: u64,
    /// What the region did with its units of that window.
    pub totals: Totals,
    /// The sender's boot clock.
    pub sent_boot: Span,
}

/// What a region did with its units of one window.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Report {
    /// Who tells.
    pub holder: Holder,
    /// The counter.
    pub account: Account,
    /// The window.
    pub window: WindowId,
    /// What it did.
    pub totals: Totals,
    /// Units per 1000 s that the region needs at present.
    pub demand: u64,
    /// The recall that this answers; 0: none.
    pub recall: u64,
}

/// From the leader to a region.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum ToRegion {
    /// How much the region was granted.
    Answer(Answer),
    /// Why an ask can get no answer.
    Refused(Refused),
    /// Give back what is held.
    Recall(Recall),
    /// Answers a pulse.
    Pulse(PulseAnswer),
}

/// The leader's clock, and what it answers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LogStamp {
    /// The leader's term.
    pub term: u64,
    /// Log time when this was handed out.
    pub log_time: Timestamp,
    /// The boot time that the region sent in what this answers; `None` when it answers nothing.
    pub echo: Option<Span>,
    /// The region's lease on units of buckets runs [`LEASE`] from this boot time of its own; `None`: it is not
    /// renewed.
    ///
    /// [`LEASE`]: crate::grants::exchange::LEASE
    pub lease: Option<Span>,
}

/// How much a region was granted: of any age, from any leader, for one incarnation.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Answer {
    /// Who was granted.
    pub holder: Holder,
    /// The counter.
    pub account: Account,
    /// The window.
    pub window: Window,
    /// The committed cumulative total.
    pub granted: u64,
    /// Buckets: units up to this cumulative total count as spent, since a lease ended: they may be used no more.
    pub lapsed_to: u64,
    /// The pool is empty and the need was not met.
    pub dry: Option<Dry>,
    /// How the window stands, as far as the leader knows.
    pub standing: PoolStanding,
    /// The leader's clock.
    pub stamp: LogStamp,
}

/// The leader's word that no unit is to be had.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Dry {
    /// How long the word holds; at most 1 s.
    pub lasts: Span,
    /// A recall is running: units may come within a round.
    pub recalling: bool,
}

/// Why an ask can get no answer.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Refused {
    /// Who asked.
    pub holder: Holder,
    /// The counter as it was asked for.
    pub account: Account,
    /// Why.
    pub why: Why,
    /// The leader's clock.
    pub stamp: LogStamp,
}

/// Why an ask can get no answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Why {
    /// The limit is another one by now: the region has to catch up with the catalogue first.
    Changed {
        /// The catalogue's version at the leader.
        version: u64,
    },
    /// The window has ended, or begins too far ahead.
    WindowClosed,
    /// The tenant has too many open strict counters.
    Capacity,
    /// The book has forgotten this window: nothing of it is held by anybody, and what was told of it is needed
    /// no more.
    Forgotten {
        /// The window.
        window: WindowId,
    },
}

/// Give back what is held, unless checks wait for it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Recall {
    /// Whose units.
    pub holder: Holder,
    /// The counter.
    pub account: Account,
    /// The window.
    pub window: WindowId,
    /// Names the round; the report that answers it says so.
    pub round: u64,
}

/// Answers a pulse.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PulseAnswer {
    /// The leader's clock.
    pub stamp: LogStamp,
    /// The refill time of the slowest live region.
    pub slowest_refill: Span,
    /// The addressed region's processes enrolled twice within 60 s: it asks for no more than what waits.
    pub restarting: bool,
}
