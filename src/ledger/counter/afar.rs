//! What a counter knows of other regions, and what they are to be told.
//!
//! A peer's clock may be a little ahead, so peers can be in a window that this region has not come to. Such a
//! window is kept aside until this region's own time enters it: never does a peer's word move a window.

use serde::Deserialize;
use serde::Serialize;
use smallvec::SmallVec;

use crate::domain::limit::Limit;
use crate::domain::limit::Mode;
use crate::domain::limit::Rule;
use crate::domain::limit::Split;
use crate::domain::time::Span;
use crate::domain::time::Timestamp;
use crate::domain::time::WindowId;
use crate::ledger::counter::Come;
use crate::ledger::counter::Counter;
use crate::ledger::counter::State;
use crate::ledger::counter::drawn::Drawn;
use crate::ledger::counter::flow;
use crate::ledger::counter::prepare::segment_length;
use crate::ledger::counter::slices::Slices;
use crate::ledger::counter::slices::is_slice;
use crate::ledger::exchange::LONG_AGO;
use crate::ledger::mesh::Mesh;
use crate::ledger::sharing::Gossip;
use crate::ledger::sharing::Position;
use crate::ledger::sharing::Shared;
use crate::ledger::sharing::Sharing;
use crate::usage::actor::ActorId;
use crate::usage::actor::Site;
use crate::usage::window::Raise;
use crate::usage::window::Slot;
use crate::usage::window::WindowUse;

/// Windows that are kept aside at most: two that an algorithm reads, and one for clocks that are ahead.
const AHEAD_MAX: usize = 3;

/// What other regions make necessary.
#[derive(Clone, Debug, Default)]
pub(super) struct Afar {
    /// How this region shares the limit with the others.
    sharing: Option<Sharing>,
    /// When peers were last told of this counter, by boot time.
    told_at: Span,
    /// Apart, so that the many counters of windows do not pay for it in memory.
    seldom: Option<Box<Seldom>>,
}

/// What only buckets, concurrency limits, and windows that a peer is ahead in make necessary.
#[derive(Clone, Debug, Default)]
pub(super) struct Seldom {
    /// Windows that peers have entered and this region has not.
    ahead: SmallVec<[WindowUse; 1]>,
    /// What was drawn from a bucket elsewhere.
    pub(super) drawn: Drawn,
    /// Units of a concurrency limit that are held, by when they end.
    pub(super) slices: Slices,
    /// Until then the own slot of a bucket's segment is in the minds of peers and must not begin anew below that, or
    /// what peers drew has not come back by what they know.
    kept_until: Timestamp,
}

/// Refused demand is told this often.
const DEMAND_TOLD_EVERY: Span = Span::from_ms(300);
/// Buckets that are full again sooner are too small to be shared out: a share would be spent before it is known.
const SHARED_REFILL_MIN: Span = Span::from_seconds(3);

/// The longest wait for a share where no window ends.
const SHARED_RETRY_MAX: Span = Span::from_seconds(1);

/// Which windows peers lack something of: the first bit is for the newest, the second for the one before.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Unsent(u8);

impl Unsent {
    /// Both, with the slots of other processes.
    pub const ALL: Self = Self(7);

    /// Whether the slots of other processes are to be told too.
    pub const fn with_others(self) -> bool {
        self.0 & 4 == 4
    }

    const fn has(self, place: usize) -> bool {
        self.0 >> place & 1 == 1
    }

    /// Slots of other processes alone are no reason to tell anything.
    const fn is_empty(self) -> bool {
        self.0 & 3 == 0
    }

    /// Another window is the newest.
    const fn moved_on(self) -> Self {
        Self((self.0 & 1) << 1 | self.0 & 4)
    }

    /// All of it in the newest window.
    pub(super) const fn in_newest(self) -> Self {
        Self((self.0 | self.0 >> 1) & 1)
    }
}

/// Which windows a peer is told of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Told {
    /// Those that changed, with this process's own slot.
    Changed,
    /// Those that changed, with all slots.
    ChangedWithAll,
    /// All of them, with all slots.
    Everything,
    /// Those that are not over, with all slots.
    Current,
}

impl Afar {
    pub(super) fn seldom_or_new(&mut self) -> &mut Seldom {
        self.seldom.get_or_insert_default()
    }
}

impl Counter {
    fn afar_mut(&mut self) -> &mut Afar {
        self.afar.get_or_insert_default()
    }

    pub(super) fn seldom(&self) -> Option<&Seldom> {
        self.afar.as_ref()?.seldom.as_deref()
    }

    /// As far as there is any yet.
    pub(super) fn seldom_mut(&mut self) -> Option<&mut Seldom> {
        self.afar.as_mut()?.seldom.as_deref_mut()
    }

    pub(super) fn seldom_or_new(&mut self) -> &mut Seldom {
        self.afar_mut().seldom_or_new()
    }

    /// Own changes since the last call to [`Counter::take_unsent`] are marked from now on; returns whether this is
    /// the first.
    pub fn mark_unsent(&mut self) -> bool {
        let is_first = self.unsent.is_empty();
        self.unsent.0 |= 1;
        is_first
    }

    /// Marks the window before the newest one too, if its own slot is another than `before` and the newest is marked.
    pub(super) fn mark_before_unsent(&mut self, before: (u64, u64)) {
        if self.is_unsent() && self.windows[1].own() != before {
            self.unsent.0 |= 2;
        }
    }

    /// Peers may lack anything of it, of other processes' slots too; whether nothing was marked before.
    pub fn mark_all_unsent(&mut self) -> bool {
        let is_first = self.unsent.is_empty();
        self.unsent = Unsent::ALL;
        is_first
    }

    /// Whether peers lack something.
    pub const fn is_unsent(&self) -> bool {
        !self.unsent.is_empty()
    }

    /// From here on peers are taken to have everything.
    pub const fn take_unsent(&mut self) -> Unsent {
        std::mem::replace(&mut self.unsent, Unsent(0))
    }

    /// Shows every window with its slots: the own one first, if it has one, then those of others.
    pub fn show(
        &self,
        told: Told,
        unsent: Unsent,
        own: ActorId,
        mut each: impl FnMut(WindowId, &[Slot]),
    ) {
        let mut slots: SmallVec<[Slot; 8]> = SmallVec::new();
        let wanted = |place: usize| match told {
            Told::Everything => true,
            Told::Current => place == 0,
            Told::Changed | Told::ChangedWithAll => unsent.has(place),
        };
        let windows = self.windows.iter().enumerate();
        let windows = windows.filter(|(place, _)| wanted(*place));
        let seldom = self.seldom();
        let ahead = seldom.into_iter().flat_map(|seldom| &seldom.ahead);
        let ahead = ahead.filter(|_| matches!(told, Told::Everything | Told::Current));
        let slices = seldom.into_iter().flat_map(|seldom| seldom.slices.iter());
        let windows = windows.map(|(_, window)| window).chain(ahead);
        for window in windows.chain(slices) {
            slots.clear();
            let (p, n) = window.own();
            if p > 0 || n > 0 {
                slots.push(Slot {
                    actor: own,
                    p,
                    n,
                    site: Site::HOME,
                });
            }
            if told != Told::Changed {
                slots.extend_from_slice(window.others());
            }
            if !slots.is_empty() {
                each(window.id, &slots);
            }
        }
    }

    /// Joins what a peer told of one slot in one window; it was charged after `since`. What is known of this process
    /// itself is not asked for. Says what was news.
    pub fn hear(&mut self, id: WindowId, slot: Slot, since: Timestamp, now: Timestamp) -> Raise {
        if is_slice(id) {
            let raise = self.seldom_or_new().slices.hear(id, slot, now);
            if slot.site == Site::HOME && !raise.is_zero() {
                self.tell_leases_anew();
            }
            return raise;
        }
        let Some(window) = self.window_heard_of(id, now) else {
            return Raise::default();
        };
        let mut others = window.others().iter();
        let is_first = others.all(|known| known.actor != slot.actor);
        let raise = window.merge_slot(slot);
        let counts = self.is_shared || slot.site == Site::HOME;
        if counts && !raise.is_zero() && matches!(self.state, State::Bucket(_)) {
            let drawn = &mut self.seldom_or_new().drawn;
            // The process may have told of it before, to a counter of this name that was forgotten since.
            let is_new = !is_first || drawn.knows_all_since(Timestamp::from_nanos(id.0));
            drawn.hear(raise, if is_new { since } else { LONG_AGO });
        }
        raise
    }

    /// Joins what a peer told of one slot when all of it had come back. Of a bucket it stays known: as long as the
    /// segment runs the slot goes on from there, and all of it would be drawn with what is charged next.
    pub fn hear_over(&mut self, id: WindowId, slot: Slot, now: Timestamp) {
        if matches!(self.state, State::Bucket(_))
            && let Some(window) = self.window_heard_of(id, now)
        {
            window.merge_slot(slot);
        }
    }

    fn sharing(&mut self, boot: Span) -> &mut Sharing {
        let afar = self.afar_mut();
        afar.sharing.get_or_insert_with(|| Sharing::new(boot))
    }

    fn has_sharing(&self) -> bool {
        self.afar
            .as_ref()
            .is_some_and(|afar| afar.sharing.is_some())
    }

    /// Units are asked for, whatever comes of it.
    pub fn attempt(&mut self, boot: Span, units: u64) {
        self.sharing(boot).attempt(boot, units);
    }

    /// Whether refused demand is to be told to peers.
    pub fn wants_to_tell(&self, boot: Span) -> bool {
        let told_at = self.afar.as_ref().map_or(Span::ZERO, |afar| afar.told_at);
        boot.minus(told_at) >= DEMAND_TOLD_EVERY
    }

    /// May `units` that are left by all that is known be taken by this region?
    pub fn share(
        &mut self,
        limit: &Limit,
        mesh: &Mesh,
        boot: Span,
        units: u64,
        now: Timestamp,
    ) -> Shared {
        let standing = self.standing(&limit.rule, now);
        let at = self.position(limit, mesh, boot, standing.remaining);
        match self.sharing(boot).judge(&at, units) {
            Shared::Refused { retry_after } => {
                // Of what is held, and of a full bucket, it is not known when more is there.
                let reset_after = match standing.reset_after {
                    Span::ZERO => SHARED_RETRY_MAX,
                    reset_after => reset_after,
                };
                Shared::Refused {
                    retry_after: retry_after.min(reset_after),
                }
            }
            granted => granted,
        }
    }

    /// Whether a charge brought this counter so near its limit that peers are to be told at once.
    pub fn wants_push(&mut self, limit: &Limit, mesh: &Mesh, boot: Span, remaining: u64) -> bool {
        if mesh.regions <= 1 || !self.has_sharing() {
            return false;
        }
        let at = self.position(limit, mesh, boot, remaining);
        self.sharing(boot).wants_push(&at)
    }

    /// Keeps the parts of regions that are cut off out of what is left, before news change what that is. Of a window
    /// that was not asked for here yet too: once it is, what this side of the cut used meanwhile must not lessen them.
    pub fn reserve(&mut self, limit: &Limit, mesh: &Mesh, boot: Span, now: Timestamp) {
        let is_window = matches!(
            limit.rule,
            Rule::FixedWindow { .. } | Rule::CalendarWindow { .. } | Rule::SlidingWindow { .. }
        );
        if limit.mode == Mode::Approximate && is_window {
            self.enter_with(self.epoch, limit);
        }
        if !self.is_shared {
            return;
        }
        self.prepare(&limit.rule, now);
        let standing = self.standing(&limit.rule, now);
        let at = self.position(limit, mesh, boot, standing.remaining);
        self.sharing(boot).reserve(&at);
    }

    fn position<'a>(
        &self,
        limit: &Limit,
        mesh: &'a Mesh,
        boot: Span,
        remaining: u64,
    ) -> Position<'a> {
        let flow = flow(&limit.rule);
        let is_small = flow.is_some_and(|flow| flow.time_to_refill() < SHARED_REFILL_MIN);
        Position {
            boot,
            mesh,
            own: self.use_at_home(),
            remaining,
            quota: limit.rule.quota(),
            split: if is_small { Split::None } else { limit.split },
            on_partition: limit.on_partition,
            bucket: flow.map(|flow| flow.capacity),
        }
    }

    /// Units that each other region uses in the newest window, as far as they are known here.
    pub fn use_by_site(&self) -> Vec<(Site, u64)> {
        if matches!(self.state, State::Leases(_)) {
            return self.held_by_site();
        }
        let others = self.windows[0].others().iter();
        let mut sites: Vec<Site> = others.map(|slot| slot.site).collect();
        sites.sort_unstable();
        sites.dedup();
        let away = sites.into_iter().filter(|site| *site != Site::HOME);
        away.map(|site| (site, self.windows[0].of(site))).collect()
    }

    /// Units that this region uses in the newest window.
    pub fn use_at_home(&self) -> u64 {
        match &self.state {
            State::Leases(leases) => leases.held(),
            _ => self.windows[0].home(),
        }
    }

    /// Whether all slots are to be told, so that peers learn of each other's too.
    pub fn is_near(&self) -> bool {
        let sharing = self.afar.as_ref().and_then(|afar| afar.sharing.as_ref());
        sharing.is_some_and(|sharing| sharing.is_near(self.use_at_home()))
    }

    /// Notes that peers are told of this counter in `round`; what is to be said of this region's demand.
    pub fn tell(&mut self, round: u64, boot: Span) -> Option<Gossip> {
        let own = self.use_at_home();
        let afar = self.afar.as_mut()?;
        afar.told_at = boot;
        let sharing = afar.sharing.as_mut()?;
        sharing.gathered(round, own);
        Some(sharing.gossip(boot))
    }

    /// The least that a region knows of this one's net use in the newest window which has merged every round up to
    /// `round`; 0 when nothing was gathered yet.
    pub fn known_by(&self, round: u64) -> u64 {
        let sharing = self.afar.as_ref().and_then(|afar| afar.sharing.as_ref());
        sharing.map_or(0, |sharing| sharing.known_by(round))
    }

    /// A peer told of its demand, or at least of its use.
    pub fn hear_demand(&mut self, boot: Span, from: Site, gossip: Option<Gossip>) {
        if !self.is_shared || gossip.is_none() && !self.has_sharing() {
            return;
        }
        let sharing = self.sharing(boot);
        sharing.news();
        if let Some(gossip) = gossip {
            sharing.hear(boot, from, gossip);
        }
    }

    /// From here on it may be forgotten.
    pub fn ends_at(&self) -> Timestamp {
        let kept_until = self.seldom().map(|seldom| seldom.kept_until);
        self.dead_at.max(kept_until.unwrap_or(Timestamp::EPOCH))
    }

    /// Keeps what is kept for other regions alive: `before` was the end of this counter's life by then.
    pub(super) fn note_life_afar(&mut self, rule: &Rule, before: Timestamp, now: Timestamp) {
        if self.afar.is_none() {
            return;
        }
        if self.seldom().is_some_and(|seldom| !seldom.ahead.is_empty()) {
            self.dead_at = self.dead_at.max(before);
        }
        if let Some(flow) = flow(rule) {
            let newest = &self.windows[0];
            let told = (newest.own() != (0, 0)).then_some(Timestamp::from_nanos(newest.id.0));
            let seldom = self.seldom_or_new();
            seldom.drawn.keep_flow(flow, now);
            if let Some(start) = told {
                let end = start.plus(segment_length(&flow));
                seldom.kept_until = seldom.kept_until.max(end);
            }
        }
    }

    /// What a peer knows of the end of this counter's life. Of a bucket that is asked here this region has a word of
    /// its own to pass on: others bound by it what they hear from here.
    pub fn live_until(&mut self, dead_at: Timestamp) {
        match self.seldom_mut() {
            Some(seldom) if seldom.drawn.is_at_once() => {
                seldom.kept_until = seldom.kept_until.max(dead_at);
            }
            _ => self.dead_at = self.dead_at.max(dead_at),
        }
    }

    /// The window `id`, which may lie ahead; `None` when it is over here.
    fn window_heard_of(&mut self, id: WindowId, now: Timestamp) -> Option<&mut WindowUse> {
        if let Some(place) = self.windows.iter().position(|window| window.id == id) {
            return self.windows.get_mut(place);
        }
        if id < self.windows[0].id {
            if id < self.windows[1].id {
                return None;
            }
            self.windows[1] = self.take_ahead(id).unwrap_or(WindowUse::new(id));
            return self.windows.get_mut(1);
        }
        if !self.is_entered() {
            let heard_before = self.take_ahead(id).unwrap_or(WindowUse::new(id));
            self.windows[1] = std::mem::replace(&mut self.windows[0], heard_before);
            return self.windows.get_mut(0);
        }
        let come = self.name_of(now);
        let ahead = &mut self.seldom_or_new().ahead;
        match ahead.iter().position(|window| window.id == id) {
            Some(place) => ahead.get_mut(place),
            None => {
                // Where nobody asks, this region's time passes windows by that it never enters.
                let began = ahead.iter().map(|window| window.id).chain([id]);
                let mut began: SmallVec<[WindowId; 4]> = began.filter(|id| *id <= come).collect();
                began.sort_unstable_by(|one, other| other.cmp(one));
                if let Some(before) = began.get(1) {
                    if id < *before {
                        // It was here, and what it tells would be news again.
                        return None;
                    }
                    ahead.retain(|window| window.id >= *before);
                }
                if ahead.len() >= AHEAD_MAX {
                    // Time comes to the earliest first.
                    let last = (0..ahead.len()).max_by_key(|place| ahead[*place].id)?;
                    if ahead[last].id < id {
                        return None;
                    }
                    ahead.swap_remove(last);
                }
                ahead.push(WindowUse::new(id));
                ahead.last_mut()
            }
        }
    }

    /// What a window would be named that begins at `now`.
    fn name_of(&self, now: Timestamp) -> WindowId {
        match self.state {
            State::Calendar { start, .. } => {
                let offset = self.windows[0].id.0.saturating_sub(start.as_nanos());
                WindowId(now.as_nanos().saturating_add(offset))
            }
            _ => WindowId(now.as_nanos()),
        }
    }

    /// Puts the windows aside that only peers have come to when this region's time is at `id`.
    pub(super) fn leave_to_peers(&mut self, id: WindowId) {
        if self.is_entered() {
            return;
        }
        for place in [1, 0] {
            if self.windows[place].id > id {
                let later =
                    std::mem::replace(&mut self.windows[place], WindowUse::new(WindowId(i64::MIN)));
                let ahead = &mut self.seldom_or_new().ahead;
                if ahead.len() < AHEAD_MAX {
                    ahead.push(later);
                }
            }
        }
    }

    /// Takes out a window that was kept aside.
    pub(super) fn take_ahead(&mut self, id: WindowId) -> Option<WindowUse> {
        let ahead = &mut self.seldom_mut()?.ahead;
        let place = ahead.iter().position(|window| window.id == id)?;
        Some(ahead.swap_remove(place))
    }

    /// The window before the newest one has just been left.
    pub(super) fn note_ended(&mut self) {
        if self.is_shared && self.windows[1].world() > 0 {
            self.come = Come::FromAnother;
        }
    }

    /// What a window came to that has ended since the last call: units beyond its quota, and the quota.
    pub fn take_ended(&mut self, rule: &Rule) -> Option<(u64, u64)> {
        if self.come != Come::FromAnother {
            return None;
        }
        self.come = Come::Here;
        let quota = rule.quota();
        Some((self.windows[1].world().saturating_sub(quota), quota))
    }

    /// The newest window is another one now.
    pub(super) fn entered_another(&mut self) {
        self.unsent = self.unsent.moved_on();
        let newest = self.windows[0].id;
        if self.windows[0].home() > 0 {
            // Peers told of it while the window lay ahead. They may not have it of each other, and would be taken to
            // know it with what is charged next.
            self.unsent.0 |= 4;
        }
        if let Some(seldom) = self.seldom_mut() {
            seldom.ahead.retain(|window| window.id > newest);
        }
        if let Some(afar) = &mut self.afar
            && let Some(sharing) = &mut afar.sharing
        {
            sharing.enter();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Every key of an approximate limit has one in each region.
    #[test]
    fn what_other_regions_make_necessary_is_small() {
        assert!(size_of::<Afar>() <= 136, "{}", size_of::<Afar>());
    }
}
