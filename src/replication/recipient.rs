//! One peer that is told counts: what is on its way to it, what it is owed, how far it has acknowledged.
//!
//! # Acknowledged rounds
//!
//! A *debt* is a counter with a round that gathered it and that the peer may not have merged. At each moment
//! every debt stands in exactly one of these: a flight of that round, a flight of backlog, the backlog. The
//! acknowledged round is the one before the oldest debt, or the newest round when there is none; so it never
//! exceeds what was merged, whatever is lost, repeated or late:
//!
//! - A flight holds its debts until its own end is known. A reply frees them. That to a counter written whole, of
//!   the backlog or a walk, also frees its debts in the backlog, as far as these are for rounds that its content covers:
//!   counts are absolute. A round tells only what changed in it, and frees no other. Nothing is freed in other flights.
//! - A failure, and the loss of the link, turn flights into backlog. A reply that comes after that is for a
//!   flight that is no more and frees nothing, though the peer may well have merged it: too little is
//!   claimed, and the counter is told again.
//! - Backlog is written after it was taken, so its content covers every round that was gathered until then.
//!   A counter that was gathered again in between is a debt of its own.
//! - Replies out of order free what they are for; the oldest debt decides.
//! - A counter that is gone when backlog is written is no debt: nobody reads it any more.
//! - Another process of the peer may lack anything: all flights and debts are dropped, and nothing counts as
//!   acknowledged until a walk through the whole ledger that began after that was acknowledged to its last
//!   counter. Counters of rounds that are gathered during the walk are debts as ever.

use std::collections::VecDeque;
use std::sync::Arc;

use bytes::Bytes;
use hashbrown::HashMap;

use crate::domain::name::RegionName;
use crate::domain::time::Span;
use crate::replication::backlog::Backlog;
use crate::replication::backlog::Owed;
use crate::replication::sender::Figures;
use crate::replication::sender::Ref;
use crate::replication::sender::SendId;
use crate::replication::wire::FRAME_BYTES_MAX;

/// Frames on their way to one peer: the rounds of a long way there and back while counters are pushed.
pub const FLIGHTS_MAX: usize = 16;
/// Of these, frames that are not rounds, so that fresh counts find room beside a long backlog.
pub const BACKLOG_FLIGHTS_MAX: usize = 4;
/// Bytes on their way to one peer; a single frame may be longer.
pub const FLYING_BYTES_MAX: usize = 1 << 20;
/// Counters in one frame of backlog.
const BACKLOG_ENTRIES_MAX: usize = 500;
/// A peer without a link that is owed more counters than this is told everything instead.
pub const BACKLOG_LOST_MAX: usize = 1 << 18;
/// A walk is continued when fewer of its counters wait.
const WALK_LOW: usize = 2 * BACKLOG_ENTRIES_MAX;
/// Processes of a peer whose word is remembered.
const TELLERS_MAX: usize = 4;
/// The first pause after a failure.
const PAUSE: Span = Span::from_ms(100);
/// The pause is doubled at most this often: 3.2 s.
const PAUSE_DOUBLINGS_MAX: u32 = 5;

/// What a flight carries.
#[derive(Debug)]
pub(crate) enum Load {
    /// Counters as they were gathered in a round.
    Round(Arc<[Ref]>, u64),
    /// Debts, in content that covers rounds up to this one.
    Backlog(Vec<(Ref, Owed)>, u64),
    /// Counters of a walk, in content that covers rounds up to this one.
    Walk(Vec<Ref>, u64),
    /// The word that everything was told.
    Everything,
}

impl Load {
    /// The counters that are written anew for it.
    pub(crate) fn refs(&self) -> Option<Vec<Ref>> {
        match self {
            Self::Round(refs, _) => Some(refs.to_vec()),
            Self::Backlog(debts, _) => Some(debts.iter().map(|(place, _)| *place).collect()),
            Self::Walk(refs, _) => Some(refs.clone()),
            Self::Everything => None,
        }
    }

    fn first_owed(&self) -> Option<u64> {
        match self {
            Self::Round(refs, round) => (!refs.is_empty()).then_some(*round),
            Self::Backlog(debts, _) => debts.iter().map(|(_, owed)| owed.first).min(),
            Self::Walk(..) | Self::Everything => None,
        }
    }

    /// The part of it that is in a frame of `refs`.
    fn part(&self, refs: &[Ref]) -> Self {
        match self {
            Self::Backlog(debts, round) => {
                let owed: HashMap<Ref, Owed> = debts.iter().copied().collect();
                let part = refs.iter().filter_map(|r| owed.get(r).map(|o| (*r, *o)));
                Self::Backlog(part.collect(), *round)
            }
            Self::Walk(_, round) => Self::Walk(refs.to_vec(), *round),
            Self::Round(_, round) => Self::Round(Arc::from(refs), *round),
            Self::Everything => Self::Everything,
        }
    }
}

/// A frame on its way, or one that is being written.
#[derive(Debug)]
pub(crate) struct Flight {
    id: SendId,
    load: Load,
    bytes: usize,
    is_written: bool,
}

/// How far a walk through the ledger has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Walk {
    /// Has to begin when there is a link.
    Due,
    /// Its next counters were asked for.
    Asked,
    /// Its next counters are to be asked for when those that are here run out.
    Partly,
    /// All of its counters were handed in.
    Ended,
}

/// Whether the peer knows that it was told everything.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Word {
    Due,
    Flying,
    Arrived,
}

/// A peer that is told counts.
#[derive(Debug)]
pub(crate) struct Recipient {
    pub(crate) name: RegionName,
    incarnation: Option<u64>,
    is_connected: bool,
    flights: Vec<Flight>,
    flying_bytes: usize,
    backlog: Backlog,
    pass: u64,
    walk: Walk,
    walked: VecDeque<Ref>,
    /// Since when the peer lacks everything.
    since: Span,
    word: Word,
    /// Processes of the peer that told this one everything, the newest word first: the word of a process may
    /// come before its link is seen, and that of an older one after it.
    told_by: Vec<u64>,
    walk_is_next: bool,
    failures: u32,
    paused_until: Span,
    figures: Figures,
}

impl Recipient {
    pub(crate) fn new(name: RegionName, boot: Span) -> Self {
        Self {
            name,
            incarnation: None,
            is_connected: false,
            flights: Vec::new(),
            flying_bytes: 0,
            backlog: Backlog::new(),
            pass: 0,
            walk: Walk::Due,
            walked: VecDeque::new(),
            since: boot,
            word: Word::Due,
            told_by: Vec::new(),
            walk_is_next: false,
            failures: 0,
            paused_until: Span::ZERO,
            figures: Figures::default(),
        }
    }

    pub(crate) const fn is_connected(&self) -> bool {
        self.is_connected
    }

    fn start_over(&mut self, boot: Span) {
        self.flights.clear();
        self.flying_bytes = 0;
        self.backlog.clear();
        self.pass += 1;
        self.walk = Walk::Due;
        self.walked.clear();
        self.since = boot;
        self.word = Word::Due;
    }

    pub(crate) fn connected(&mut self, incarnation: u64, boot: Span) {
        self.lost();
        if self.incarnation != Some(incarnation) {
            self.incarnation = Some(incarnation);
            self.start_over(boot);
        }
        self.is_connected = true;
        self.failures = 0;
        self.paused_until = Span::ZERO;
    }

    pub(crate) fn lost(&mut self) {
        self.is_connected = false;
        for flight in std::mem::take(&mut self.flights) {
            self.figures.failed += u64::from(flight.is_written);
            self.put_back(flight.load);
        }
        self.flying_bytes = 0;
        if self.walk == Walk::Asked {
            // The question may be lost; a second answer does no harm.
            self.walk = Walk::Partly;
        }
    }

    fn put_back(&mut self, load: Load) {
        match load {
            Load::Round(refs, round) => {
                let debts = refs.iter().map(|place| (*place, Owed::of(round)));
                self.backlog.add(debts);
            }
            Load::Backlog(debts, _) => self.backlog.add(debts),
            Load::Walk(refs, _) => self.walked.extend(refs),
            Load::Everything => self.word = Word::Due,
        }
    }

    /// Counters gathered in `round` were not sent.
    pub(crate) fn owe(&mut self, refs: &[Ref], round: u64, boot: Span) {
        if self.walk == Walk::Due {
            // The walk will find them.
            return;
        }
        self.backlog
            .add(refs.iter().map(|place| (*place, Owed::of(round))));
        if !self.is_connected && self.backlog.len() > BACKLOG_LOST_MAX {
            self.start_over(boot);
        }
    }

    pub(crate) fn has_room(&self, bytes: usize) -> bool {
        self.flights.is_empty()
            || self.flights.len() < FLIGHTS_MAX && self.flying_bytes + bytes <= FLYING_BYTES_MAX
    }

    pub(crate) fn fly(&mut self, id: SendId, load: Load, bytes: usize) {
        if matches!(load, Load::Everything) {
            self.word = Word::Flying;
        }
        self.figures.sent += 1;
        self.flying_bytes += bytes;
        self.flights.push(Flight {
            id,
            load,
            bytes,
            is_written: true,
        });
    }

    /// `load` is being written; it takes the room of a full frame until then.
    pub(crate) fn write(&mut self, id: SendId, load: Load) {
        self.flying_bytes += FRAME_BYTES_MAX;
        self.flights.push(Flight {
            id,
            load,
            bytes: FRAME_BYTES_MAX,
            is_written: false,
        });
    }

    fn land(&mut self, id: SendId, is_written: bool) -> Option<Load> {
        let at = self
            .flights
            .iter()
            .position(|flight| flight.id == id && (flight.is_written || !is_written))?;
        let flight = self.flights.remove(at);
        self.flying_bytes -= flight.bytes;
        Some(flight.load)
    }

    pub(crate) fn replied(&mut self, id: SendId) {
        let Some(load) = self.land(id, true) else {
            return;
        };
        self.figures.replied += 1;
        self.failures = 0;
        self.paused_until = Span::ZERO;
        match load {
            // A round tells what changed in it, which need not be what an earlier one told: no debt is paid by it.
            Load::Round(..) => {}
            Load::Backlog(debts, round) => self
                .backlog
                .settle(debts.into_iter().map(|(place, _)| place), round),
            Load::Walk(refs, round) => self.backlog.settle(refs, round),
            Load::Everything => self.word = Word::Arrived,
        }
    }

    pub(crate) fn failed(&mut self, id: SendId, boot: Span) {
        let Some(load) = self.land(id, false) else {
            return;
        };
        self.figures.failed += 1;
        self.put_back(load);
        let pause = PAUSE.as_nanos() << self.failures.min(PAUSE_DOUBLINGS_MAX);
        self.paused_until = boot.plus(Span::from_nanos(pause));
        self.failures = self.failures.saturating_add(1);
    }

    /// Frames of a load that was being written: those that may be sent, with their names.
    pub(crate) fn encoded(
        &mut self,
        id: SendId,
        frames: Vec<(Bytes, Vec<Ref>)>,
        next_id: &mut u64,
    ) -> Vec<(SendId, Bytes)> {
        let is_expected = |flight: &Flight| flight.id == id && !flight.is_written;
        if !self.flights.iter().any(is_expected) {
            return Vec::new();
        }
        let Some(load) = self.land(id, false) else {
            return Vec::new();
        };
        let mut sends = Vec::with_capacity(frames.len());
        for (bytes, refs) in frames {
            let part = load.part(&refs);
            // The first one has the room that was kept for it.
            if !sends.is_empty() && !self.has_room(bytes.len()) {
                self.put_back(part);
                continue;
            }
            let name = if sends.is_empty() {
                id
            } else {
                *next_id += 1;
                SendId(*next_id - 1)
            };
            self.fly(name, part, bytes.len());
            sends.push((name, bytes));
        }
        sends
    }

    /// The walk whose next counters are to be handed in, if they are wanted now.
    pub(crate) fn wants_walk(&mut self) -> Option<u64> {
        let wants = self.is_connected
            && match self.walk {
                Walk::Due => true,
                Walk::Partly => self.walked.len() < WALK_LOW,
                Walk::Asked | Walk::Ended => false,
            };
        wants.then(|| {
            self.walk = Walk::Asked;
            self.pass
        })
    }

    pub(crate) fn mark(&mut self, pass: u64, refs: impl IntoIterator<Item = Ref>, is_last: bool) {
        if pass != self.pass || matches!(self.walk, Walk::Due | Walk::Ended) {
            return;
        }
        self.walked.extend(refs);
        self.walk = if is_last { Walk::Ended } else { Walk::Partly };
    }

    pub(crate) fn told_everything(&mut self, incarnation: u64) {
        self.told_by.retain(|known| *known != incarnation);
        self.told_by.insert(0, incarnation);
        self.told_by.truncate(TELLERS_MAX);
    }

    pub(crate) fn is_caught_up(&self) -> bool {
        let told = |incarnation| self.told_by.contains(&incarnation);
        self.word == Word::Arrived && self.incarnation.is_some_and(told)
    }

    /// Whether something beside rounds may be sent.
    pub(crate) fn may_tell(&self, boot: Span) -> bool {
        let others = self
            .flights
            .iter()
            .filter(|flight| !matches!(flight.load, Load::Round(..)));
        self.is_connected
            && boot >= self.paused_until
            && self.has_room(FRAME_BYTES_MAX)
            && others.count() < BACKLOG_FLIGHTS_MAX
    }

    /// What is told next beside rounds: debts and the walk by turns, then the word that this was everything.
    pub(crate) fn next_load(&mut self, round: u64) -> Option<Load> {
        let walk_is_next = self.walk_is_next || self.backlog.is_empty();
        if walk_is_next && !self.walked.is_empty() {
            self.walk_is_next = false;
            let count = self.walked.len().min(BACKLOG_ENTRIES_MAX);
            return Some(Load::Walk(self.walked.drain(..count).collect(), round));
        }
        if !self.backlog.is_empty() {
            self.walk_is_next = true;
            return Some(Load::Backlog(self.backlog.take(BACKLOG_ENTRIES_MAX), round));
        }
        (self.word == Word::Due && self.has_all()).then_some(Load::Everything)
    }

    /// Whether a walk was acknowledged to its last counter.
    fn has_all(&self) -> bool {
        self.walk == Walk::Ended
            && self.walked.is_empty()
            && !self
                .flights
                .iter()
                .any(|flight| matches!(flight.load, Load::Walk(..)))
    }

    pub(crate) fn lacks_all_since(&self) -> Option<Span> {
        (!self.has_all()).then_some(self.since)
    }

    pub(crate) fn acked_round(&self, newest: u64) -> u64 {
        if !self.has_all() {
            return 0;
        }
        let flying = self.flights.iter().filter_map(|f| f.load.first_owed());
        match flying.chain(self.backlog.first()).min() {
            Some(first) => first.saturating_sub(1),
            None => newest,
        }
    }

    pub(crate) fn backlog_len(&self) -> usize {
        self.backlog.len() + self.walked.len()
    }

    pub(crate) fn figures(&self) -> Figures {
        Figures {
            in_flight: self.flights.len(),
            flying_bytes: self.flying_bytes,
            backlog: self.backlog_len(),
            ..self.figures
        }
    }
}
