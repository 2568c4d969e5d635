//! Links between regions: messages in order, with authentication, deadlines, breakers, clock offsets and
//! injected faults.
//!
//! ```text
//! region a                                                            region b
//! call, tell ─► outbox ─── POST /peer/v1/link, request body ───► reader ─► Handler::handle, in order
//!   reply    ◄─ reader ◄────────── response body ─────────────── outbox ◄─ its future, when it is ready
//! ```
//!
//! Each region opens one such link to each peer and answers on the one that the peer opened. A link is one
//! HTTP/2 stream on a connection of its own, open for as long as both live. Frames of one link arrive in the
//! order in which they were handed over; none is sent twice. What was under way when a link broke is lost,
//! and its callers are told so.
//!
//! - [`frame`]: bytes on the wire. [`identity`]: who may speak to whom. [`exchange`]: clock offsets.
//! - [`breaker`]: failing at once. [`backoff`]: trying again. [`faults`]: what goes wrong on purpose. All pure.
//! - [`outbox`], [`link`]: one link. `serve`: reading it. `dial`, `accept`: its two ends.
//! - `state`: one peer. [`Peers`]: all of them.
//!
//! Invariants kept here: 9 (queues, frames, requests under way and handshakes are bounded; over a bound a
//! call fails at once and a tell is dropped and counted); two live processes of one region are refused.
//! The tests below `tests` hold them over real sockets.
//!
//! Never here: what the messages mean, who leads, which regions belong to the cluster.

mod accept;
pub mod backoff;
pub mod breaker;
mod dial;
pub mod exchange;
pub mod faults;
pub mod frame;
pub mod identity;
pub mod link;
pub mod outbox;
mod peers;
mod serve;
mod state;
#[cfg(test)]
mod tests;

use std::sync::Arc;

use bytes::Bytes;
use futures_util::future::BoxFuture;
use thiserror::Error;

use crate::domain::name::RegionName;
use crate::domain::secret::Secret;
use crate::domain::time::Span;
use crate::domain::time::Timestamp;

pub use crate::peer::breaker::BreakerState;
pub use crate::peer::faults::LinkFaults;
pub use crate::peer::faults::PeerFault;
pub use crate::peer::frame::BODY_BYTES_MAX;
pub use crate::peer::identity::Identity;
pub use crate::peer::identity::Refusal;
pub use crate::peer::identity::WIRE_VERSION;
pub use crate::peer::outbox::Bounds;
pub use crate::peer::peers::PEERS_MAX;
pub use crate::peer::peers::Peers;
pub use crate::peer::state::PeerStatus;

/// Where the time comes from: the region's clock.
pub trait Time: Send + Sync + 'static {
    /// The real time since some fixed moment of this process. Never steps.
    fn elapsed(&self) -> Span;
    /// The region time.
    fn now(&self) -> Timestamp;
}

/// Takes what peers send.
pub trait Handler: Send + Sync + 'static {
    /// Called for the messages of one link in the order in which they arrived; must not block. What it
    /// returns runs on its own; its output is the reply. `None`: there is nothing to reply; a request is
    /// declined then.
    fn handle(
        &self,
        from: &Identity,
        service: Service,
        body: Bytes,
    ) -> Option<BoxFuture<'static, Bytes>>;
}

/// Whom a message is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum Service {
    /// The replicated log. Never stopped by a breaker.
    Consensus = 1,
    /// Grants and reservations.
    Strict = 2,
    /// Requests that another region answers.
    Forward = 3,
    /// Counts.
    Usage = 4,
}

impl Service {
    /// The service with this number on the wire.
    pub const fn from_number(number: u8) -> Option<Self> {
        match number {
            1 => Some(Self::Consensus),
            2 => Some(Self::Strict),
            3 => Some(Self::Forward),
            4 => Some(Self::Usage),
            _ => None,
        }
    }

    /// Its number on the wire.
    pub const fn number(self) -> u8 {
        match self {
            Self::Consensus => 1,
            Self::Strict => 2,
            Self::Forward => 3,
            Self::Usage => 4,
        }
    }
}

/// Why a call got no reply.
#[derive(Clone, Copy, Debug, Error, PartialEq, Eq)]
pub enum PeerError {
    /// No such peer is configured. Nothing was sent.
    #[error("no such region is configured")]
    Unknown,
    /// There is no link at the moment. Nothing was sent.
    #[error("there is no link to the region")]
    NotConnected,
    /// Calls failed before; the next may try later. Nothing was sent.
    #[error("calls to the region failed before and are not tried for a while")]
    BreakerOpen,
    /// No reply came in time; the request may have arrived.
    #[error("the region did not answer in time")]
    TimedOut,
    /// No room: too much waits for this peer, or too many requests run there, or the body is longer than
    /// [`BODY_BYTES_MAX`]. Nothing was done.
    #[error("too much waits for the region")]
    Full,
    /// The link broke; the request may have arrived.
    #[error("the link to the region broke")]
    Closed,
    /// The request arrived and the region has nobody who serves it. Nothing was done.
    #[error("the region does not serve this")]
    Unserved,
}

/// A peer that is configured.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PeerAddress {
    /// Its name.
    pub region: RegionName,
    /// Its peer listener, `http://HOST:PORT`.
    pub url: String,
    /// A delay that is always added to what we send to it; zero in production.
    pub latency: Span,
}

/// What links are made with.
#[derive(Clone, Debug)]
pub struct Settings {
    /// What regions prove their membership with; `None`: nothing, and the others must have none either.
    pub secret: Option<Secret>,
    /// Every other region.
    pub peers: Vec<PeerAddress>,
    /// What may wait for one peer.
    pub bounds: Bounds,
    /// For jitter and losses.
    pub seed: u64,
}

impl Settings {
    /// What may wait for one peer by default.
    pub const BOUNDS: Bounds = Bounds {
        frames_max: 32_768,
        bytes_max: 64 << 20,
    };

    /// Settings with the default bounds.
    pub fn new(secret: Option<Secret>, peers: Vec<PeerAddress>, seed: u64) -> Self {
        Self {
            secret,
            peers,
            bounds: Self::BOUNDS,
            seed,
        }
    }
}

/// A handler that serves nothing: every request is declined, every tell forgotten.
#[derive(Clone, Copy, Debug)]
pub struct NoService;

impl Handler for NoService {
    fn handle(&self, _: &Identity, _: Service, _: Bytes) -> Option<BoxFuture<'static, Bytes>> {
        None
    }
}

/// Shared by all links of a region.
struct Shared {
    secret: Option<Secret>,
    bounds: Bounds,
    handler: Arc<dyn Handler>,
    time: Arc<dyn Time>,
    identity: tokio::sync::watch::Sender<Identity>,
    /// Ticks when a peer connects, disconnects or changes who it is.
    changed: tokio::sync::watch::Sender<u64>,
    stopped: tokio::sync::watch::Sender<bool>,
    /// Requests of peers that run.
    requests: Arc<tokio::sync::Semaphore>,
    /// Handshakes of regions that are not configured, by reason.
    strangers: parking_lot::Mutex<state::Refusals>,
    seeds: parking_lot::Mutex<crate::domain::draws::Draws>,
}
