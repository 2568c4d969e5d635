//! Merges frames of peers into the ledger.

use smallvec::SmallVec;

use crate::catalogue::intern::Interner;
use crate::catalogue::intern::LimitId;
use crate::domain::name::RegionName;
use crate::domain::time::Span;
use crate::domain::time::Timestamp;
use crate::ledger::Ledger;
use crate::ledger::counter;
use crate::ledger::counter::Counter;
use crate::ledger::counter::Unsent;
use crate::ledger::exchange::Heard;
use crate::ledger::exchange::LONG_AGO;
use crate::ledger::exchange::News;
use crate::ledger::exchange::Told;
use crate::ledger::mesh::Mesh;
use crate::ledger::sharing::Gossip;
use crate::replication::pages::EntryHead;
use crate::replication::pages::put;
use crate::replication::wire::Entry;
use crate::replication::wire::Frame;
use crate::replication::wire::FrameWriter;
use crate::replication::wire::Kind;
use crate::usage::actor::Actor;
use crate::usage::actor::ActorId;
use crate::usage::actor::Site;
use crate::usage::window::Slot;

/// What the actors in a frame are called here; `None`: there are too many.
type Numbers = SmallVec<[Option<Number>; 8]>;

/// What an actor in a frame is called here.
#[derive(Clone, Copy)]
struct Number {
    actor: ActorId,
    site: Site,
    /// Whether the actor tells of itself, here or in frames of its own.
    speaks: bool,
    /// Whether it is in touch here, or is the sender.
    is_fresh: bool,
}

/// Where and when frames are merged.
#[derive(Clone, Copy, Debug)]
pub struct Place<'a> {
    /// Into what.
    pub ledger: &'a Ledger,
    /// The limits that the catalogue knows.
    pub names: &'a Interner,
    /// The catalogue's version: no epoch is newer.
    pub version: u64,
    /// Region time.
    pub now: Timestamp,
    /// Boot time.
    pub boot: Span,
    /// Regular rounds of peers are so far apart.
    pub round_every: Span,
}

/// What all entries of a frame are merged with.
struct Merging<'a, K> {
    place: &'a Place<'a>,
    /// Whose frame it is.
    site: Site,
    /// What is new was charged after this.
    since: Timestamp,
    numbers: Numbers,
    mesh: &'a Mesh,
    keep_parts: K,
}

/// Merges all entries of a frame of `from`; entries near their limits are answered in `reply`. All that can be is
/// merged.
///
/// `lives` says whether a process of another region tells of itself here. `keep_parts` keeps the parts of regions that
/// are cut off ([`Counter::reserve`]) before news change what is left.
pub fn merge(
    place: &Place<'_>,
    from: &RegionName,
    frame: &Frame<'_>,
    lives: impl Fn(&RegionName, u64) -> bool,
    keep_parts: impl Fn(&Entry<'_>, &mut Counter, &Mesh),
    mut reply: Option<&mut FrameWriter>,
) -> Merged {
    let ledger = place.ledger;
    let mesh = ledger.mesh();
    let in_touch = |site: Site| {
        let mut peers = mesh.peers.iter();
        peers.find(|peer| peer.site == site && peer.is_reachable)
    };
    let numbers: Numbers = frame
        .actors()
        .enumerate()
        .map(|(index, named)| {
            let region = RegionName::new(named.region).ok()?;
            let incarnation = named.incarnation;
            // The sender is the first actor of its frame.
            let speaks = index == 0 || lives(&region, incarnation);
            let actor = Actor {
                region,
                incarnation,
            };
            let (actor, site) = ledger.number(&actor)?;
            Some(Number {
                actor,
                site,
                speaks,
                is_fresh: index == 0 || speaks && in_touch(site).is_some(),
            })
        })
        .collect();
    let Some(site) = ledger.site(from) else {
        return Merged {
            refused: 1,
            is_whole: true,
        };
    };
    // What a peer could not tell at once was charged at any time before.
    let is_fresh = matches!(frame.head().kind, Kind::Round | Kind::Reply);
    let sender = in_touch(site).filter(|_| is_fresh);
    let since = sender.map(|peer| place.now.minus(place.round_every.plus(peer.latency)));
    // Slots of processes that cannot be told apart are lost.
    let mut refused = u64::from(numbers.iter().any(Option::is_none));
    let merging = Merging {
        place,
        site,
        since: since.unwrap_or(LONG_AGO),
        numbers,
        mesh: &mesh,
        keep_parts,
    };
    let mut limit: Option<(&str, LimitId)> = None;
    let mut is_whole = true;
    for entry in frame.entries() {
        let known = match limit {
            Some((name, id)) if name == entry.limit => Some(id),
            _ => place.names.get(entry.limit),
        };
        let Some(id) = known.filter(|_| entry.epoch <= place.version) else {
            // Newer than the catalogue here, which comes in a moment: all else is merged, and it is told again.
            is_whole = false;
            continue;
        };
        limit = Some((entry.limit, id));
        let heard = merging.entry(id, &entry, reply.as_deref_mut());
        refused += u64::from(matches!(heard, Heard::Refused | Heard::TooFarAhead));
    }
    Merged { refused, is_whole }
}

/// What came of a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Merged {
    /// Entries that were refused.
    pub refused: u64,
    /// Whether none was of a limit or an epoch that the catalogue here does not know.
    pub is_whole: bool,
}

impl<K: Fn(&Entry<'_>, &mut Counter, &Mesh)> Merging<'_, K> {
    fn entry(&self, limit: LimitId, entry: &Entry<'_>, reply: Option<&mut FrameWriter>) -> Heard {
        let (site, boot) = (self.site, self.place.boot);
        let news = News {
            limit,
            tenant: entry.tenant,
            key: entry.key,
            epoch: entry.epoch,
            dead_at: entry.dead_at,
            since: self.since,
        };
        let told = entry.windows().flat_map(|window| {
            let start = window.start;
            window.slots().filter_map(move |counts| {
                let number = self.numbers.get(counts.actor as usize);
                let number = number.copied().flatten()?;
                Some(Told {
                    window: start,
                    slot: Slot {
                        actor: number.actor,
                        p: counts.p,
                        n: counts.n,
                        site: number.site,
                    },
                    speaks: number.speaks,
                    is_fresh: number.is_fresh,
                })
            })
        });
        let gossip = entry.gossip.map(|[demand, peak]| Gossip { demand, peak });
        let before = |counter: &mut Counter| {
            if self.mesh.is_degraded() {
                (self.keep_parts)(entry, counter, self.mesh);
            }
        };
        let ledger = self.place.ledger;
        ledger.hear(&news, self.place.now, told, before, |counter| {
            counter.hear_demand(boot, site, gossip);
            if entry.near
                && let Some(reply) = reply
            {
                put_known(reply, entry, counter, ledger.actors().own());
            }
        })
    }
}

/// Puts all that is known of a counter into a reply.
fn put_known(reply: &mut FrameWriter, entry: &Entry<'_>, counter: &Counter, own: ActorId) {
    if reply.is_full() {
        return;
    }
    let head = EntryHead {
        limit: entry.limit,
        tenant: entry.tenant,
        key: entry.key,
        gossip: None,
    };
    put(
        reply,
        &head,
        counter,
        counter::Told::ChangedWithAll,
        Unsent::ALL,
        own,
    );
}
