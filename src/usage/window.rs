//! One window's use in memory: this process's own slot inline, everything else folded aside.
//!
//! A map per key would cost more memory than all the rest of a counter, so the slots of other actors are
//! boxed and absent until one exists. There are as many as regions, and for one window as many more as
//! processes were started again inside it, so they are added up when they are read.

use serde::Deserialize;
use serde::Serialize;
use smallvec::SmallVec;

use crate::domain::time::WindowId;
use crate::usage::actor::ActorId;
use crate::usage::actor::Site;

/// What one other actor has charged and given back.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Slot {
    /// Whose slot.
    pub actor: ActorId,
    /// Charged.
    pub p: u64,
    /// Given back.
    pub n: u64,
    /// Its region; earlier processes of this region are of [`Site::HOME`].
    pub site: Site,
}

/// By how much a join raised a slot.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Raise {
    /// Charged.
    pub p: u64,
    /// Given back.
    pub n: u64,
}

impl Raise {
    /// Whether nothing was news.
    pub const fn is_zero(self) -> bool {
        self.p == 0 && self.n == 0
    }
}

/// Use in one window.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct WindowUse {
    /// Which window.
    pub id: WindowId,
    own_p: u64,
    own_n: u64,
    others: Option<Box<SmallVec<[Slot; 2]>>>,
}

impl WindowUse {
    /// A window without use.
    pub const fn new(id: WindowId) -> Self {
        Self {
            id,
            own_p: 0,
            own_n: 0,
            others: None,
        }
    }

    /// This process's own slot: charged and given back.
    pub const fn own(&self) -> (u64, u64) {
        (self.own_p, self.own_n)
    }

    /// Whether nothing was ever charged here.
    pub const fn is_empty(&self) -> bool {
        self.own_p == 0 && self.own_n == 0 && self.others.is_none()
    }

    fn net(&self, away: bool) -> u64 {
        let own = i128::from(self.own_p) - i128::from(self.own_n);
        let others = self.others().iter();
        let counted = others.filter(|slot| away || slot.site == Site::HOME);
        clamped(own + counted.map(net).sum::<i128>())
    }

    /// Units in use by this region, all its processes together; a sum below zero counts as zero.
    pub fn home(&self) -> u64 {
        self.net(false)
    }

    /// Units in use by another region, as far as they are known here.
    pub fn of(&self, site: Site) -> u64 {
        let others = self.others().iter();
        clamped(others.filter(|slot| slot.site == site).map(net).sum())
    }

    /// Units in use by all regions, as far as they are known here.
    pub fn world(&self) -> u64 {
        self.net(true)
    }

    /// Adds a charge to the own slot.
    pub fn charge(&mut self, units: u64) {
        self.own_p = self.own_p.saturating_add(units);
    }

    /// Adds to what the own slot has given back.
    ///
    /// The caller has made sure that no more is given back than is in use; the slot itself may go negative
    /// when what an earlier process charged is given back by this one.
    pub fn give_back(&mut self, units: u64) {
        self.own_n = self.own_n.saturating_add(units);
    }

    /// The slots of all other actors.
    pub fn others(&self) -> &[Slot] {
        self.others
            .as_deref()
            .map_or(&[], |others| others.as_slice())
    }

    /// Joins what is known of another actor's slot; says what was news.
    pub fn merge_slot(&mut self, news: Slot) -> Raise {
        let mut raise = Raise {
            p: news.p,
            n: news.n,
        };
        if raise.is_zero() {
            return raise;
        }
        let others = self.others.get_or_insert_default();
        match others.iter_mut().find(|slot| slot.actor == news.actor) {
            Some(known) => {
                #[cfg(feature = "planted-faults")]
                let news = planted(*known, news);
                raise.p = news.p.saturating_sub(known.p);
                raise.n = news.n.saturating_sub(known.n);
                known.p = known.p.max(news.p);
                known.n = known.n.max(news.n);
            }
            None => others.push(news),
        }
        raise
    }
}

/// What a merge with a planted fault makes of news.
#[cfg(feature = "planted-faults")]
fn planted(known: Slot, news: Slot) -> Slot {
    use crate::domain::planted;
    use crate::domain::planted::Planted;

    if planted::is(Planted::MergeForgets) {
        return known;
    }
    if !planted::is(Planted::MergeSums) {
        return news;
    }
    Slot {
        p: known.p.saturating_add(news.p),
        n: known.n.saturating_add(news.n),
        ..news
    }
}

fn net(slot: &Slot) -> i128 {
    i128::from(slot.p) - i128::from(slot.n)
}

fn clamped(net: i128) -> u64 {
    u64::try_from(net.max(0)).unwrap_or(u64::MAX)
}
