//! How a region is, and how the cluster looks from there.

use std::collections::BTreeMap;
use std::sync::Arc;

use axum::Json;
use axum::extract::State;
use axum::http::HeaderMap;
use serde::Serialize;
use utoipa::ToSchema;

use crate::admin::auth;
use crate::admin::auth::Need;
use crate::admin::schema::AdminProblems;
use crate::consensus::Membership;
use crate::consensus::Status;
use crate::domain::time::Span;
use crate::http::problem::Problem;
use crate::peer::BreakerState;
use crate::peer::PeerStatus;
use crate::peer::Refusal;
use crate::region::progress::Progress;
use crate::region::state::Region;
use crate::store::Health;
use crate::telemetry::usage::TellingReading;

/// How a region is.
#[derive(Debug, Serialize, ToSchema)]
pub struct ClusterStatus {
    /// The region that answers.
    pub region: String,
    /// The program's version.
    pub version: &'static str,
    /// Whether it can serve.
    pub ready: bool,
    /// Whether it wants no more traffic.
    pub draining: bool,
    /// The cluster's id, 16 hexadecimal digits; absent while the region belongs to none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cluster_id: Option<String>,
    /// What this region is in the cluster.
    pub role: Role,
    /// The newest term that this region has seen; 0 before the first.
    pub term: u64,
    /// The region that leads; absent: none that this region knows of.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub leader: Option<String>,
    /// The region that should lead; absent: any may.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub leader_preference: Option<String>,
    /// Whether this process has enrolled: only then is it granted units of strict limits.
    pub enrolled: bool,
    /// This region's copy of the cluster's log.
    pub log: LogStatus,
    /// Strict limits.
    pub strict: StrictStatus,
    /// The cluster's regions, this one too, in the order of their names.
    pub members: Vec<ClusterMember>,
    /// Version of the catalogue in force.
    pub catalogue_version: u64,
    /// Region time, in Unix milliseconds.
    pub time_ms: i64,
    /// When this process started, in Unix milliseconds.
    pub started_ms: i64,
    /// Which start of this data directory it is.
    pub start: u32,
    /// Counters in memory.
    pub counters: usize,
    /// New counters that were refused for want of room.
    pub refused_keys: u64,
    /// Holds that are remembered.
    pub holds: usize,
    /// Answers to keyed requests that are remembered.
    pub idempotency_keys: usize,
    /// Times that the wall clock was set back by more than an hour.
    pub clock_steps_back: u64,
    /// The store: `ok`, or what failed.
    pub store: String,
    /// Since when the store has failed, in Unix milliseconds.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub store_failed_since_ms: Option<i64>,
    /// Faults that were injected.
    pub faults: usize,
    /// The links to other regions.
    pub peers: Vec<ClusterPeer>,
}

/// What a region is in its cluster.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum Role {
    /// It decides for all.
    Leader,
    /// It has a vote.
    Voter,
    /// It has everything and no vote.
    Learner,
    /// It belongs to no cluster yet.
    Waiting,
}

/// A region's copy of the cluster's log.
#[derive(Debug, Serialize, ToSchema)]
pub struct LogStatus {
    /// Index of its last entry; 0: it is empty.
    pub last_index: u64,
    /// Index of the newest entry that it knows to be committed.
    pub committed_index: u64,
    /// Index of the newest entry that is in force here.
    pub applied_index: u64,
    /// Index up to which its newest snapshot goes.
    pub snapshot_index: u64,
    /// Why this region takes no part in the log; absent: it does.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub fault: Option<String>,
}

/// Strict limits, as this region has them.
#[derive(Debug, Serialize, ToSchema)]
pub struct StrictStatus {
    /// Counters of which this region holds, or asks for, units.
    pub reservations: u64,
    /// Counters with open windows in the leader's book, over all regions.
    pub counters: usize,
}

/// One of the cluster's regions.
#[derive(Debug, Serialize, ToSchema)]
pub struct ClusterMember {
    /// Its name.
    pub region: String,
    /// What it is.
    pub role: Role,
    /// Where it was reached when it was taken in.
    pub url: String,
    /// Whether this region can call it; itself always.
    pub connected: bool,
    /// Index up to which its copy of the log is known to be the same as the leader's; absent: not known.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub matched_index: Option<u64>,
    /// Entries that it is known to lack, at most a second ago; absent: not known.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub lag: Option<u64>,
    /// Its clock minus this region's, in milliseconds; absent: not known.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub clock_offset_ms: Option<f64>,
    /// The round trip of the newest heartbeat, in milliseconds; absent: not known.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rtt_ms: Option<f64>,
    /// The breaker of calls to it; absent for this region itself.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub breaker: Option<BreakerState>,
}

/// How it stands with another region.
#[derive(Debug, Serialize, ToSchema)]
pub struct ClusterPeer {
    /// Its name.
    pub region: String,
    /// Its address.
    pub url: String,
    /// Whether it can be called.
    pub connected: bool,
    /// Whether the link that it opened is up.
    pub connected_to_us: bool,
    /// `closed`: calls pass; `open`: they fail at once; `half_open`: one may try.
    pub breaker: BreakerState,
    /// The round trip of the newest heartbeat, in milliseconds.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rtt_ms: Option<f64>,
    /// The shortest round trip of the last few heartbeats, in milliseconds.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rtt_min_ms: Option<f64>,
    /// Its clock minus this region's, in milliseconds.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub clock_offset_ms: Option<f64>,
    /// Whether its clock is more than 2 s off.
    pub clock_far: bool,
    /// Time since anything was heard of it, in milliseconds.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub last_frame_age_ms: Option<u64>,
    /// Why the last handshake with it was refused.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub refused: Option<Refusal>,
    /// Messages to it that were dropped.
    pub dropped: u64,
    /// How long ago the oldest counts were gathered that it has not acknowledged, in milliseconds.
    pub usage_lag_ms: u64,
    /// Counters that wait to be told to it.
    pub usage_backlog: usize,
    /// Whether it and this region have told each other everything since they started.
    pub usage_caught_up: bool,
}

impl ClusterPeer {
    fn new(peer: PeerStatus, telling: &[TellingReading]) -> Self {
        let told = telling
            .iter()
            .find(|told| told.peer == peer.region.as_str());
        Self {
            usage_lag_ms: told.map_or(0, |told| told.lag.as_ms_ceil()),
            usage_backlog: told.map_or(0, |told| told.backlog),
            usage_caught_up: told.is_some_and(|told| told.is_caught_up),
            region: peer.region.to_string(),
            url: peer.url,
            connected: peer.is_connected,
            connected_to_us: peer.is_connected_to_us,
            breaker: peer.breaker,
            rtt_ms: peer.rtt_last.map(ms),
            rtt_min_ms: peer.rtt_min.map(ms),
            clock_offset_ms: peer.clock_offset_ns.map(micros),
            clock_far: peer.is_clock_far,
            last_frame_age_ms: peer.last_frame_age.map(Span::as_ms_ceil),
            refused: peer.refused,
            dropped: peer.dropped,
        }
    }
}

fn ms(span: Span) -> f64 {
    micros(i64::try_from(span.as_nanos()).unwrap_or(i64::MAX))
}

/// Milliseconds with three digits behind the point.
fn micros(nanos: i64) -> f64 {
    #[expect(
        clippy::cast_precision_loss,
        reason = "shown, never decided by; exact up to 285 years"
    )]
    let micros = (nanos / 1000) as f64;
    micros / 1000.0
}

/// How this region is.
#[utoipa::path(
    get,
    path = "/admin/v1/cluster",
    tag = "operations",
    security(("bearer" = [])),
    responses((status = 200, description = "How this region is", body = ClusterStatus), AdminProblems)
)]
pub async fn cluster(
    State(region): State<Arc<Region>>,
    headers: HeaderMap,
) -> Result<Json<ClusterStatus>, Problem> {
    auth::authorize(&region, &headers, Need::Read).await?;
    let (store, store_failed_since_ms) = match region.store.health() {
        Health::Ok => ("ok".to_owned(), None),
        Health::Failed { reason, since } => (reason, Some(since.as_unix_ms())),
    };
    let log = region.consensus_status();
    let peers = region.peer_status();
    let members = members(&region, &log, &peers);
    let own = members
        .iter()
        .find(|member| member.region == region.name.as_str());
    let (preference, counters) = {
        let core = region.replica.core();
        let preference = core.machine.preference().map(ToString::to_string);
        (preference, core.machine.book().counters())
    };
    let cluster_id = region.cluster_id();
    let now = region.clock.now();
    let telling = region.exchange.readings();
    Ok(Json(ClusterStatus {
        region: region.name.to_string(),
        version: env!("CARGO_PKG_VERSION"),
        ready: region.readiness().iter().all(|(_, met)| *met),
        draining: region.is_draining(),
        cluster_id: cluster_id.map(|id| format!("{id:016x}")),
        role: own.map_or(Role::Waiting, |own| own.role),
        term: log.term,
        leader: log.leader.as_ref().map(|leader| leader.region.to_string()),
        leader_preference: preference,
        enrolled: *region.enrolled.borrow(),
        log: LogStatus {
            last_index: log.last_log_index.unwrap_or(0),
            committed_index: log.committed_index.unwrap_or(0),
            applied_index: log.applied_index.unwrap_or(0),
            snapshot_index: log.snapshot_index.unwrap_or(0),
            fault: log.fault,
        },
        strict: StrictStatus {
            reservations: region.reservations.len(),
            counters,
        },
        members,
        catalogue_version: region.view().version(),
        time_ms: now.as_unix_ms(),
        started_ms: region.started_at.as_unix_ms(),
        start: region.ledger.start(),
        counters: region.ledger.keys(),
        refused_keys: region.ledger.refused_keys(),
        holds: region.holds.len(),
        idempotency_keys: region.answers.len(),
        clock_steps_back: region.clock.steps_followed_back(),
        store,
        store_failed_since_ms,
        faults: region.faults.list().len(),
        peers: peers
            .into_iter()
            .map(|peer| ClusterPeer::new(peer, &telling))
            .collect(),
    }))
}

fn members(region: &Region, log: &Status, peers: &[PeerStatus]) -> Vec<ClusterMember> {
    let membership = region.replica.members();
    let Membership { voters, learners } = &*membership;
    let progress = region.progress(log);
    let links: BTreeMap<&str, &PeerStatus> = peers
        .iter()
        .map(|peer| (peer.region.as_str(), peer))
        .collect();
    let leads = |name: &str| {
        let leader = log.leader.as_ref();
        leader.is_some_and(|leader| leader.region.as_str() == name)
    };
    let voters = voters.iter().map(|member| (member, Role::Voter));
    let learners = learners.iter().map(|member| (member, Role::Learner));
    let mut members: Vec<ClusterMember> = voters
        .chain(learners)
        .map(|(member, role)| {
            let name = member.region.as_str();
            let link = links.get(name);
            let is_self = member.region == region.name;
            let matched = |progress: &Progress| {
                if leads(name) {
                    Some(progress.last_index)
                } else {
                    progress.matched.get(name).copied()
                }
            };
            let matched_index = progress.as_ref().and_then(matched);
            let last = progress.as_ref().map(|progress| progress.last_index);
            ClusterMember {
                region: name.to_owned(),
                role: if leads(name) { Role::Leader } else { role },
                url: member.url.clone(),
                connected: is_self || link.is_some_and(|link| link.is_connected),
                matched_index,
                lag: last
                    .zip(matched_index)
                    .map(|(last, matched)| last.saturating_sub(matched)),
                clock_offset_ms: link.and_then(|link| link.clock_offset_ns).map(micros),
                rtt_ms: link.and_then(|link| link.rtt_last).map(ms),
                breaker: link.map(|link| link.breaker),
            }
        })
        .collect();
    members.sort_by(|a, b| a.region.cmp(&b.region));
    members
}
