//! One peer: its links, its breaker, what its clock says, and why it was refused.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use futures_util::future::join_all;
use parking_lot::Mutex;
use tokio::sync::Notify;
use tokio::sync::watch;

use crate::domain::name::RegionName;
use crate::domain::time::Span;
use crate::peer::Shared;
use crate::peer::breaker::Breaker;
use crate::peer::breaker::BreakerState;
use crate::peer::exchange::Exchange;
use crate::peer::exchange::Exchanges;
use crate::peer::faults::LinkFaults;
use crate::peer::identity::Identity;
use crate::peer::identity::Refusal;
use crate::peer::link::Link;
use crate::peer::link::Side;
use crate::peer::outbox::Road;
use crate::peer::outbox::Traffic;

/// How long a live process of a region may take to say that it lives when another one comes.
const SIGN_WITHIN: Span = Span::from_seconds(1);
/// The same warning about one peer is logged this often at most.
const WARNING_INTERVAL: Span = Span::from_seconds(30);
/// A clock that is surely further off is warned about.
const OFFSET_WARNED: Span = Span::from_ms(100);
/// A clock that is surely further off is marked.
const OFFSET_MARKED: Span = Span::from_seconds(2);

/// How it stands with one peer.
#[derive(Clone, Debug)]
pub struct PeerStatus {
    /// Its name.
    pub region: RegionName,
    /// Its address.
    pub url: String,
    /// Whether it can be called: the link that we opened is up.
    pub is_connected: bool,
    /// Whether the link that it opened is up.
    pub is_connected_to_us: bool,
    /// Who it is; `None` while no link is up.
    pub identity: Option<Identity>,
    /// Its breaker.
    pub breaker: BreakerState,
    /// The round trip of the newest ping.
    pub rtt_last: Option<Span>,
    /// The shortest round trip of the last few pings.
    pub rtt_min: Option<Span>,
    /// Its clock minus ours, in nanoseconds.
    pub clock_offset_ns: Option<i64>,
    /// Whether its clock is surely more than 2 s off.
    pub is_clock_far: bool,
    /// Since when nothing was heard of it; `None`: never was.
    pub last_frame_age: Option<Span>,
    /// Why it or we refused the last handshake; `None` when it went well or there was none.
    pub refused: Option<Refusal>,
    /// Handshakes that either side refused, by reason.
    pub refusals: Vec<(Refusal, u64)>,
    /// Frames received.
    pub frames_in: u64,
    /// Frames sent.
    pub frames_out: u64,
    /// Bytes received.
    pub bytes_in: u64,
    /// Bytes sent.
    pub bytes_out: u64,
    /// Messages dropped because a queue was full or no link was up.
    pub dropped: u64,
}

/// Refused handshakes, and which was last warned about.
#[derive(Debug, Default)]
pub struct Refusals {
    counts: BTreeMap<Refusal, u64>,
    warned: BTreeMap<Refusal, Span>,
}

impl Refusals {
    /// Counts a refusal; whether it should be logged.
    pub fn note(&mut self, refusal: Refusal, now: Span) -> bool {
        *self.counts.entry(refusal).or_default() += 1;
        let is_due = self
            .warned
            .get(&refusal)
            .is_none_or(|last| now.minus(*last) >= WARNING_INTERVAL);
        if is_due {
            self.warned.insert(refusal, now);
        }
        is_due
    }

    /// The counts.
    pub fn counts(&self) -> Vec<(Refusal, u64)> {
        self.counts
            .iter()
            .map(|(refusal, count)| (*refusal, *count))
            .collect()
    }
}

#[derive(Default)]
struct Links {
    outbound: Option<Arc<Link>>,
    inbound: Option<Arc<Link>>,
}

impl Links {
    fn iter(&self) -> impl Iterator<Item = &Arc<Link>> {
        self.outbound.iter().chain(&self.inbound)
    }

    const fn place(&mut self, side: Side) -> &mut Option<Arc<Link>> {
        match side {
            Side::Outbound => &mut self.outbound,
            Side::Inbound => &mut self.inbound,
        }
    }

    fn others(&self, incarnation: u64) -> Vec<Arc<Link>> {
        let is_other = |link: &&Arc<Link>| {
            !link.is_closed()
                && link
                    .identity()
                    .is_some_and(|known| known.incarnation != incarnation)
        };
        self.iter().filter(is_other).cloned().collect()
    }
}

#[derive(Default)]
struct State {
    links: Links,
    breaker: Breaker,
    exchanges: Exchanges,
    last_heard: Option<Span>,
    refused: Option<Refusal>,
    refusals: Refusals,
    offset_warned: Option<Span>,
    zones_warned: Option<Span>,
}

/// One peer.
pub struct Peer {
    /// Its name.
    pub region: RegionName,
    /// Its address.
    pub url: String,
    /// Always added to what we send to it.
    pub latency: Span,
    /// What acts on its links.
    pub faults: watch::Sender<LinkFaults>,
    /// Wakes whoever opens links to it.
    pub kick: Notify,
    /// Turns true when it is a peer no more.
    pub removed: watch::Sender<bool>,
    /// What went over its links.
    pub traffic: Arc<Traffic>,
    state: Mutex<State>,
}

impl Peer {
    /// A peer without links.
    pub fn new(region: RegionName, url: String, latency: Span) -> Arc<Self> {
        let faults = LinkFaults {
            delay: latency,
            ..LinkFaults::default()
        };
        Arc::new(Self {
            region,
            url,
            latency,
            faults: watch::Sender::new(faults),
            kick: Notify::new(),
            removed: watch::Sender::new(false),
            traffic: Arc::new(Traffic::default()),
            state: Mutex::new(State::default()),
        })
    }

    /// What its links need to know.
    pub fn road(&self) -> Road {
        Road {
            faults: self.faults.subscribe(),
            traffic: Arc::clone(&self.traffic),
        }
    }

    /// The link that we opened.
    pub fn outbound(&self) -> Option<Arc<Link>> {
        self.state
            .lock()
            .links
            .outbound
            .clone()
            .filter(|link| !link.is_closed())
    }

    /// Both links.
    pub fn links(&self) -> Vec<Arc<Link>> {
        self.state.lock().links.iter().cloned().collect()
    }

    /// Puts a link in its place, whose other side has told who it is, and closes the one that stood there.
    /// Links of another process of that region are asked for a sign first: when one lives, the newcomer is
    /// refused, else they are closed.
    pub async fn admit(&self, link: &Arc<Link>) -> Result<(), Refusal> {
        let incarnation = link.identity().map_or(0, |identity| identity.incarnation);
        loop {
            let others = {
                let mut state = self.state.lock();
                let others = state.links.others(incarnation);
                if others.is_empty() {
                    if let Some(before) = state.links.place(link.side).replace(Arc::clone(link)) {
                        before.close();
                    }
                    state.refused = None;
                    return Ok(());
                }
                others
            };
            let signs = others.iter().map(|other| other.is_alive(SIGN_WITHIN));
            if join_all(signs).await.contains(&true) {
                return Err(Refusal::TwoIncarnations);
            }
            others.iter().for_each(|other| other.close());
        }
    }

    /// Takes a link out of its place; false when another stands there already.
    pub fn withdraw(&self, link: &Arc<Link>) -> bool {
        let mut state = self.state.lock();
        let place = state.links.place(link.side);
        let stands = place
            .as_ref()
            .is_some_and(|standing| Arc::ptr_eq(standing, link));
        if stands {
            *place = None;
        }
        state.last_heard = state.last_heard.max(Some(link.last_heard()));
        stands
    }

    /// Works on the breaker.
    pub fn breaker<T>(&self, work: impl FnOnce(&mut Breaker) -> T) -> T {
        work(&mut self.state.lock().breaker)
    }

    /// Counts a refused handshake and warns about it.
    pub fn refuse(&self, refusal: Refusal, by: &'static str, now: Span) {
        let is_due = {
            let mut state = self.state.lock();
            state.refused = Some(refusal);
            state.refusals.note(refusal, now)
        };
        if is_due {
            tracing::warn!(peer = %self.region, url = %self.url, reason = %refusal, by, "no link: a handshake was refused");
        }
    }

    /// Remembers an exchange of pings, and warns when the clocks are apart.
    pub fn measured(&self, exchange: Exchange, now: Span) {
        let told = {
            let mut state = self.state.lock();
            state.exchanges.add(exchange);
            let Some(best) = state.exchanges.best() else {
                return;
            };
            let is_off = best.apart_at_least() > OFFSET_WARNED;
            let is_due = state
                .offset_warned
                .is_none_or(|last| now.minus(last) >= WARNING_INTERVAL);
            if is_off && is_due {
                state.offset_warned = Some(now);
            }
            (is_off && is_due).then_some(best)
        };
        if let Some(best) = told {
            tracing::warn!(
                peer = %self.region,
                offset_ms = best.offset_ns / 1_000_000,
                rtt_ms = best.rtt.as_ms_ceil(),
                "the clocks of two regions are apart: check the time synchronisation of both machines"
            );
        }
    }

    /// Warns when the peer's time-zone database is another one.
    pub fn compare_zones(&self, we: &Identity, other: &Identity, now: Span) {
        let is_due = {
            let mut state = self.state.lock();
            let is_due = state
                .zones_warned
                .is_none_or(|last| now.minus(last) >= WARNING_INTERVAL);
            if we.time_zones != other.time_zones && is_due {
                state.zones_warned = Some(now);
            }
            is_due
        };
        if we.time_zones != other.time_zones && is_due {
            tracing::warn!(
                peer = %self.region,
                ours = %we.time_zones,
                theirs = %other.time_zones,
                "the time-zone databases of two regions differ: calendar windows may begin at different times; run \
                 the same version everywhere"
            );
        }
    }

    /// How it stands.
    pub fn status(&self, shared: &Shared) -> PeerStatus {
        let now = shared.time.elapsed();
        let state = self.state.lock();
        let is_up = |link: &Option<Arc<Link>>| link.as_ref().is_some_and(|link| !link.is_closed());
        let live = || state.links.iter().filter(|link| !link.is_closed());
        let heard = state
            .links
            .iter()
            .map(|link| link.last_heard())
            .chain(state.last_heard)
            .max();
        let best = state.exchanges.best();
        let count = |count: &std::sync::atomic::AtomicU64| count.load(Ordering::Relaxed);
        PeerStatus {
            region: self.region.clone(),
            url: self.url.clone(),
            is_connected: is_up(&state.links.outbound),
            is_connected_to_us: is_up(&state.links.inbound),
            identity: live()
                .find_map(|link| link.identity())
                .map(|identity| Identity::clone(&identity)),
            breaker: state.breaker.state(now),
            rtt_last: state.exchanges.last().map(|exchange| exchange.rtt),
            rtt_min: best.map(|exchange| exchange.rtt),
            clock_offset_ns: best.map(|exchange| exchange.offset_ns),
            is_clock_far: best.is_some_and(|exchange| exchange.apart_at_least() > OFFSET_MARKED),
            last_frame_age: heard.map(|heard| now.minus(heard)),
            refused: state.refused,
            refusals: state.refusals.counts(),
            frames_in: count(&self.traffic.frames_in),
            frames_out: count(&self.traffic.frames_out),
            bytes_in: count(&self.traffic.bytes_in),
            bytes_out: count(&self.traffic.bytes_out),
            dropped: count(&self.traffic.dropped),
        }
    }
}
