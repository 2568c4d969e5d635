//! All peers of a region: calling them, adding and removing them, and how it stands with each.

use std::collections::BTreeMap;
use std::sync::Arc;

use bytes::Bytes;
use parking_lot::Mutex;
use parking_lot::RwLock;
use tokio::net::TcpListener;
use tokio::sync::Semaphore;
use tokio::sync::watch;

use crate::domain::draws::Draws;
use crate::domain::name::RegionName;
use crate::domain::time::Span;
use crate::peer::BODY_BYTES_MAX;
use crate::peer::Handler;
use crate::peer::PeerAddress;
use crate::peer::PeerError;
use crate::peer::Service;
use crate::peer::Settings;
use crate::peer::Shared;
use crate::peer::Time;
use crate::peer::accept;
use crate::peer::breaker::Admission;
use crate::peer::dial;
use crate::peer::faults;
use crate::peer::faults::LinkFaults;
use crate::peer::faults::PeerFault;
use crate::peer::frame::Head;
use crate::peer::identity;
use crate::peer::identity::Identity;
use crate::peer::identity::Refusal;
use crate::peer::link::Asked;
use crate::peer::outbox::add;
use crate::peer::state::Peer;
use crate::peer::state::PeerStatus;
use crate::peer::state::Refusals;

/// The most peers of one region.
pub const PEERS_MAX: usize = 64;
/// Requests of all peers that run at once.
const REQUESTS_MAX: usize = 65_536;

/// The peers of a region. Copies share them.
#[derive(Clone)]
pub struct Peers(Arc<Inner>);

struct Inner {
    shared: Arc<Shared>,
    peers: RwLock<BTreeMap<RegionName, Arc<Peer>>>,
    running: Mutex<Vec<PeerFault>>,
}

impl std::fmt::Debug for Peers {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Peers").finish_non_exhaustive()
    }
}

impl Peers {
    /// Begins to open links to the peers in `settings` as `identity`; `handler` takes what they send.
    /// Called within the runtime.
    pub fn start(
        settings: Settings,
        identity: Identity,
        handler: Arc<dyn Handler>,
        time: Arc<dyn Time>,
    ) -> Self {
        let shared = Arc::new(Shared {
            secret: settings.secret,
            bounds: settings.bounds,
            handler,
            time,
            identity: watch::Sender::new(identity),
            changed: watch::Sender::new(0),
            stopped: watch::Sender::new(false),
            requests: Arc::new(Semaphore::new(REQUESTS_MAX)),
            strangers: Mutex::new(Refusals::default()),
            seeds: Mutex::new(Draws::new(settings.seed)),
        });
        let peers = Self(Arc::new(Inner {
            shared,
            peers: RwLock::new(BTreeMap::new()),
            running: Mutex::new(Vec::new()),
        }));
        for address in settings.peers {
            peers.insert(address);
        }
        peers
    }

    pub(super) fn shared(&self) -> &Arc<Shared> {
        &self.0.shared
    }

    pub(super) fn get(&self, region: &RegionName) -> Option<Arc<Peer>> {
        self.0.peers.read().get(region).cloned()
    }

    /// Takes the links that peers open on `listener`, until `stop` turns true.
    pub async fn serve(self, listener: TcpListener, stop: watch::Receiver<bool>) {
        accept::serve(self, listener, stop).await;
    }

    /// Sends a request to `to` and waits for its reply, at most `deadline` from now. The request is queued
    /// before this returns, so requests go out in the order of the calls, whenever their futures are polled.
    /// A future that is dropped gives its call up; the request may have arrived all the same.
    ///
    /// # Errors
    /// See [`PeerError`]; each says whether the request can have arrived.
    pub fn call(
        &self,
        to: &RegionName,
        service: Service,
        body: Bytes,
        deadline: Span,
    ) -> impl Future<Output = Result<Bytes, PeerError>> + Send + 'static + use<> {
        let begun = self.begin(to, service, body);
        let time = Arc::clone(&self.0.shared.time);
        let began = time.elapsed();
        async move {
            let call = begun?;
            call.finish(deadline.minus(time.elapsed().minus(began)))
                .await
        }
    }

    fn begin(&self, to: &RegionName, service: Service, body: Bytes) -> Result<Call, PeerError> {
        let peer = self.get(to).ok_or(PeerError::Unknown)?;
        if body.len() > BODY_BYTES_MAX {
            return Err(PeerError::Full);
        }
        let now = self.0.shared.time.elapsed();
        let admission = match service {
            Service::Consensus => Admission::Passed,
            Service::Strict | Service::Forward | Service::Usage => {
                peer.breaker(|breaker| breaker.admit(now))
            }
        };
        if admission == Admission::Refused {
            return Err(PeerError::BreakerOpen);
        }
        let mut call = Call {
            shared: Arc::clone(&self.0.shared),
            peer: Arc::clone(&peer),
            admission,
            asked: None,
            is_settled: false,
        };
        let asked = match peer.outbound() {
            Some(link) => link.ask(service.number(), body),
            None => Err(PeerError::NotConnected),
        };
        match asked {
            Ok(asked) => {
                call.asked = Some(asked);
                Ok(call)
            }
            Err(error) => {
                call.settle(Some(error));
                Err(error)
            }
        }
    }

    /// Sends a message to `to` that has no reply, in order with the requests. Whether it was queued; when it
    /// was not, because no link is up or no room is left, it is counted as dropped.
    pub fn tell(&self, to: &RegionName, service: Service, body: Bytes) -> bool {
        let Some(peer) = self.get(to) else {
            return false;
        };
        let head = Head::Tell {
            service: service.number(),
        };
        let is_queued = body.len() <= BODY_BYTES_MAX
            && peer
                .outbound()
                .is_some_and(|link| link.send(&head, body).is_ok());
        if !is_queued {
            add(&peer.traffic.dropped, 1);
        }
        is_queued
    }

    /// Adds a peer, or gives one another address. False when there are too many, or when it is this region.
    pub fn add(&self, region: RegionName, url: String) -> bool {
        let latency = match self.get(&region) {
            Some(known) if known.url == url => return true,
            Some(known) => known.latency,
            None => Span::ZERO,
        };
        self.insert(PeerAddress {
            region,
            url,
            latency,
        })
    }

    fn insert(&self, address: PeerAddress) -> bool {
        let shared = &self.0.shared;
        let PeerAddress {
            region,
            url,
            latency,
        } = address;
        let mut peers = self.0.peers.write();
        let has_room = peers.len() < PEERS_MAX || peers.contains_key(&region);
        if shared.identity.borrow().region == region || !has_room {
            return false;
        }
        let peer = Peer::new(
            region.clone(),
            url.trim_end_matches('/').to_owned(),
            latency,
        );
        self.act(&peer, &self.0.running.lock());
        if let Some(before) = peers.insert(region, Arc::clone(&peer)) {
            before.removed.send_replace(true);
        }
        drop(peers);
        tokio::spawn(dial::keep_open(Arc::clone(shared), peer));
        shared.tick();
        true
    }

    /// Removes a peer and ends its links; false when there is none.
    pub fn remove(&self, region: &RegionName) -> bool {
        let removed = self.0.peers.write().remove(region);
        let Some(peer) = removed else { return false };
        peer.removed.send_replace(true);
        self.0.shared.tick();
        true
    }

    /// The peers' names, in order.
    pub fn regions(&self) -> Vec<RegionName> {
        self.0.peers.read().keys().cloned().collect()
    }

    /// How it stands with each peer, in the order of their names.
    pub fn status(&self) -> Vec<PeerStatus> {
        self.0
            .peers
            .read()
            .values()
            .map(|peer| peer.status(&self.0.shared))
            .collect()
    }

    /// Refused handshakes of regions that are not configured or did not prove their membership.
    pub fn strangers(&self) -> Vec<(Refusal, u64)> {
        self.0.shared.strangers.lock().counts()
    }

    /// Ticks whenever a peer is added or removed, connects, disconnects or changes who it is.
    pub fn changed(&self) -> watch::Receiver<u64> {
        self.0.shared.changed.subscribe()
    }

    /// Who this region is.
    pub fn identity(&self) -> Identity {
        self.0.shared.identity.borrow().clone()
    }

    /// Changes who this region is and tells the peers. Region and incarnation stay as they are. Links to
    /// regions that turn out to be of another cluster end.
    pub fn set_identity(&self, change: impl FnOnce(&mut Identity)) {
        let shared = &self.0.shared;
        shared.identity.send_modify(|identity| {
            let (region, incarnation) = (identity.region.clone(), identity.incarnation);
            change(identity);
            identity.region = region;
            identity.incarnation = incarnation;
        });
        let we = self.identity();
        let peers: Vec<Arc<Peer>> = self.0.peers.read().values().cloned().collect();
        for peer in peers {
            for link in peer.links() {
                let Some(other) = link.identity() else {
                    continue;
                };
                match identity::check_cluster(&we, &other) {
                    Ok(()) => link.signal(&Head::Identity(we.clone())),
                    Err(refusal) => {
                        peer.refuse(refusal, "us", shared.time.elapsed());
                        link.close();
                    }
                }
            }
        }
    }

    /// Lets these faults act, and no others, beside the configured latencies.
    pub fn set_faults(&self, running: Vec<PeerFault>) {
        let peers = self.0.peers.read();
        for peer in peers.values() {
            self.act(peer, &running);
        }
        *self.0.running.lock() = running;
    }

    fn act(&self, peer: &Peer, running: &[PeerFault]) {
        let configured = LinkFaults {
            delay: peer.latency,
            ..LinkFaults::default()
        };
        let all = configured.and(faults::towards(&peer.region, running));
        peer.faults.send_if_modified(|acting| {
            let differs = *acting != all;
            *acting = all;
            differs
        });
    }

    /// Ends all links and opens no more.
    pub fn stop(&self) {
        self.0.shared.stopped.send_replace(true);
    }
}

/// A call, and what it means for the breaker.
struct Call {
    shared: Arc<Shared>,
    peer: Arc<Peer>,
    admission: Admission,
    asked: Option<Asked>,
    is_settled: bool,
}

impl Call {
    async fn finish(mut self, deadline: Span) -> Result<Bytes, PeerError> {
        let reply = match self.asked.take() {
            Some(asked) => asked.reply(deadline).await,
            None => Err(PeerError::NotConnected),
        };
        self.settle(reply.as_ref().err().copied());
        reply
    }

    fn settle(&mut self, error: Option<PeerError>) {
        self.is_settled = true;
        let now = self.shared.time.elapsed();
        let admission = self.admission;
        self.peer.breaker(|breaker| match error {
            None | Some(PeerError::Unserved) => breaker.succeeded(),
            Some(PeerError::TimedOut | PeerError::Closed | PeerError::NotConnected) => {
                breaker.failed(now, admission);
            }
            Some(PeerError::Full | PeerError::Unknown | PeerError::BreakerOpen) => {
                breaker.abandoned(now, admission);
            }
        });
    }
}

impl Drop for Call {
    fn drop(&mut self) {
        if !self.is_settled {
            let now = self.shared.time.elapsed();
            let admission = self.admission;
            self.peer
                .breaker(|breaker| breaker.abandoned(now, admission));
        }
    }
}

impl Shared {
    /// Counts a refused handshake of a region that is not configured, and warns about it.
    pub(super) fn refuse_stranger(&self, refusal: Refusal) {
        let is_due = self.strangers.lock().note(refusal, self.time.elapsed());
        if is_due {
            tracing::warn!(reason = %refusal, "a handshake of a region that is not configured here was refused");
        }
    }
}
