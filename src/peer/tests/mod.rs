//! Links over real sockets on loopback: several regions in one process.

mod bounds;
mod calls;
mod faults;
mod handshake;
mod restart;
mod slow;

use std::future::ready;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;
use std::time::Instant;
use std::time::SystemTime;
use std::time::UNIX_EPOCH;

use bytes::Bytes;
use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use parking_lot::Mutex;
use tokio::net::TcpListener;
use tokio::sync::watch;
use tokio::task::JoinHandle;

use crate::domain::name::RegionName;
use crate::domain::secret::Secret;
use crate::domain::time::Span;
use crate::domain::time::Timestamp;
use crate::peer::Bounds;
use crate::peer::Handler;
use crate::peer::Identity;
use crate::peer::LinkFaults;
use crate::peer::PeerAddress;
use crate::peer::PeerFault;
use crate::peer::PeerStatus;
use crate::peer::Peers;
use crate::peer::Service;
use crate::peer::Settings;
use crate::peer::Time;
use crate::peer::WIRE_VERSION;

/// A reply must come within this time where nothing is in its way.
const SOON: Span = Span::from_seconds(10);

struct RealTime {
    origin: Instant,
    offset: Span,
}

impl Time for RealTime {
    fn elapsed(&self) -> Span {
        Span::from_nanos_saturating(self.origin.elapsed().as_nanos())
    }

    fn now(&self) -> Timestamp {
        let since = SystemTime::now()
            .duration_since(UNIX_EPOCH)
            .expect("after 1970");
        Timestamp::EPOCH
            .plus(Span::from_nanos_saturating(since.as_nanos()))
            .plus(self.offset)
    }
}

/// Answers requests of `Strict` with their body, those of `Forward` never; remembers what came in.
#[derive(Default)]
struct Echo {
    heard: Mutex<Vec<(RegionName, Service, Bytes)>>,
}

impl Handler for Echo {
    fn handle(
        &self,
        from: &Identity,
        service: Service,
        body: Bytes,
    ) -> Option<BoxFuture<'static, Bytes>> {
        self.heard
            .lock()
            .push((from.region.clone(), service, body.clone()));
        match service {
            Service::Consensus | Service::Strict => Some(ready(body).boxed()),
            Service::Forward => Some(std::future::pending().boxed()),
            Service::Usage => None,
        }
    }
}

fn region(name: &str) -> RegionName {
    RegionName::new(name).expect("a name")
}

fn identity(name: &str, incarnation: u64) -> Identity {
    Identity {
        wire_version: WIRE_VERSION,
        cluster: "test".to_owned(),
        cluster_id: None,
        region: region(name),
        incarnation,
        voter: incarnation,
        time_zones: "2026a".to_owned(),
        is_empty: true,
    }
}

/// How a node is made.
struct Plan {
    identity: Identity,
    secret: Option<&'static str>,
    peers: Vec<(RegionName, SocketAddr)>,
    bounds: Bounds,
    clock_ahead: Span,
}

impl Plan {
    fn new(name: &str, incarnation: u64, peers: &[(&str, SocketAddr)]) -> Self {
        Self {
            identity: identity(name, incarnation),
            secret: Some("s"),
            peers: peers
                .iter()
                .map(|(name, address)| (region(name), *address))
                .collect(),
            bounds: Settings::BOUNDS,
            clock_ahead: Span::ZERO,
        }
    }
}

/// A region's links.
struct Node {
    peers: Peers,
    echo: Arc<Echo>,
    stop: watch::Sender<bool>,
    serving: JoinHandle<()>,
}

impl Node {
    fn start(plan: Plan, listener: TcpListener) -> Self {
        let echo = Arc::new(Echo::default());
        let addresses = plan.peers.into_iter().map(|(region, address)| PeerAddress {
            region,
            url: format!("http://{address}"),
            latency: Span::ZERO,
        });
        let settings = Settings {
            secret: plan.secret.map(Secret::new),
            peers: addresses.collect(),
            bounds: plan.bounds,
            seed: plan.identity.incarnation,
        };
        let time = RealTime {
            origin: Instant::now(),
            offset: plan.clock_ahead,
        };
        let peers = Peers::start(
            settings,
            plan.identity,
            Arc::clone(&echo) as Arc<dyn Handler>,
            Arc::new(time),
        );
        let stop = watch::Sender::new(false);
        let serving = tokio::spawn(peers.clone().serve(listener, stop.subscribe()));
        Self {
            peers,
            echo,
            stop,
            serving,
        }
    }

    async fn stop(self) {
        self.stop.send_replace(true);
        self.peers.stop();
        self.serving.await.expect("the listener ends");
    }

    fn status(&self, peer: &str) -> PeerStatus {
        self.peers
            .status()
            .into_iter()
            .find(|status| status.region.as_str() == peer)
            .expect("a peer")
    }

    fn is_connected(&self, peer: &str) -> bool {
        self.status(peer).is_connected
    }

    async fn connected(&self, peer: &str) {
        until(&format!("a link to {peer}"), || self.is_connected(peer)).await;
    }

    fn fault(&self, peer: &str, faults: LinkFaults) {
        self.peers.set_faults(vec![PeerFault {
            peer: Some(region(peer)),
            faults,
        }]);
    }

    fn heal(&self) {
        self.peers.set_faults(Vec::new());
    }
}

async fn listener() -> (TcpListener, SocketAddr) {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let address = listener.local_addr().expect("bound");
    (listener, address)
}

/// The same port again, once whoever had it is gone.
async fn listener_at(address: SocketAddr) -> TcpListener {
    let deadline = Instant::now() + Duration::from_secs(10);
    loop {
        match TcpListener::bind(address).await {
            Ok(listener) => return listener,
            Err(error) => assert!(Instant::now() < deadline, "{address}: {error}"),
        }
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

/// Two regions that know each other.
async fn pair() -> (Node, Node) {
    let (at_a, a) = listener().await;
    let (at_b, b) = listener().await;
    let node_a = Node::start(Plan::new("a", 1, &[("b", b)]), at_a);
    let node_b = Node::start(Plan::new("b", 2, &[("a", a)]), at_b);
    node_a.connected("b").await;
    node_b.connected("a").await;
    (node_a, node_b)
}

/// Polls until `condition` holds.
async fn until(what: &str, condition: impl Fn() -> bool) {
    within(what, Duration::from_secs(20), condition).await;
}

async fn within(what: &str, limit: Duration, condition: impl Fn() -> bool) {
    let deadline = Instant::now() + limit;
    while !condition() {
        assert!(Instant::now() < deadline, "waited in vain for {what}");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

/// A deadline that is short against the time after which a silent link is closed.
const BRIEF: Span = Span::from_ms(300);

fn body(text: &str) -> Bytes {
    Bytes::copy_from_slice(text.as_bytes())
}
