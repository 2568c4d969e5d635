//! One region's parts, built from its configuration and from what its store kept.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::OnceLock;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering;

use ahash::RandomState;
use anyhow::Context;
use arc_swap::ArcSwap;
use hashbrown::HashTable;
use parking_lot::Mutex;
use tokio::sync::Notify;
use tokio::sync::mpsc;
use tokio::sync::watch;

use crate::catalogue::Catalogue;
use crate::catalogue::change::Entry;
use crate::catalogue::intern::LimitId;
use crate::catalogue::view::View;
use crate::consensus::Consensus;
use crate::domain::limit::Mode;
use crate::domain::name::LimitName;
use crate::domain::name::PlanName;
use crate::domain::name::RegionName;
use crate::domain::time::Span;
use crate::domain::time::Timestamp;
use crate::grants::account::Holder;
use crate::ledger::Bounds;
use crate::ledger::Ledger;
use crate::ledger::answers::Answers;
use crate::ledger::check::Item;
use crate::ledger::holds::Holds;
use crate::machine::inherited::Inherited;
use crate::peer::Peers;
use crate::region::clock::Clock;
use crate::region::config::CheckAuth;
use crate::region::config::Config;
use crate::region::config::HeaderStyles;
use crate::region::config::secret::Secret;
use crate::region::debts::Debts;
use crate::region::entropy;
use crate::region::exchange::Exchange;
use crate::region::faults::Faults;
use crate::region::outbox::Letter;
use crate::region::outbox::Outbox;
use crate::region::progress::Heard;
use crate::region::rejections::Rejections;
use crate::region::replica::Replica;
use crate::region::requests::Requests;
use crate::region::reservations::Reservations;
use crate::region::restore::Unplaced;
use crate::store::Change;
use crate::store::Opened;
use crate::store::Snapshot;
use crate::store::Store;
use crate::store::StoreError;
use crate::store::StoredChange;
use crate::telemetry::meters::LimitMeters;
use crate::telemetry::metrics::Metrics;
use crate::telemetry::refusal::RefusalLog;
use crate::usage::record::CounterRecord;

/// The counters of a limit for tenants of a plan.
type Metered = (LimitId, Option<PlanName>, Mode, Arc<LimitMeters>);

/// What `/readyz` says of a region that has no catalogue.
const NO_CLUSTER: &str =
    "catalogue (no cluster yet: waits until all its peers are up, or it is taken in)";

/// A running region.
pub struct Region {
    /// Its name.
    pub name: RegionName,
    /// Drawn at this start: names the counter slots and the links of this process.
    pub incarnation: u64,
    /// Its links to the other regions; set once they are begun.
    pub peers: OnceLock<Peers>,
    /// Its time.
    pub clock: Clock,
    /// Its counters.
    pub ledger: Ledger,
    /// Its holds.
    pub holds: Holds,
    /// Its remembered answers.
    pub answers: Answers,
    /// Its newest refusals.
    pub rejections: Rejections,
    /// The log of refusals.
    pub refusal_log: RefusalLog,
    /// Its disk.
    pub store: Store,
    /// Its copy of what the log drives: the catalogue and the book of strict limits.
    pub replica: Arc<Replica>,
    /// What it holds of strict limits.
    pub reservations: Reservations,
    /// How far the members are, as the leader told last.
    pub progress: Mutex<Option<Heard>>,
    /// What earlier processes of this region spent of strict limits, by this region's disk.
    pub inherited: Mutex<Inherited>,
    /// Counters on disk of limits that the catalogue did not name when they were read.
    pub unplaced: Mutex<Unplaced>,
    /// Its requests to the log.
    pub requests: Requests,
    /// What strict limits let through while the leader was out of reach.
    pub debts: Debts,
    /// Counts to and from the other regions.
    pub exchange: Exchange,
    /// Whether a majority has been heard lately while this region leads: without one it does not speak as the
    /// leader.
    pub has_majority: AtomicBool,
    /// When that was noted last, in nanoseconds of the boot clock.
    pub majority_noted: AtomicU64,
    /// What its machines want told.
    pub outbox: Outbox,
    /// Whether this process has enrolled: from then on it can be granted units.
    pub enrolled: watch::Sender<bool>,
    /// The catalogue (JSON) that this directory had before there was a log, until a cluster is founded.
    pub adopted: Mutex<Option<Vec<u8>>>,
    /// Where other regions reach this one.
    pub peer_url: String,
    /// Its metrics.
    pub metrics: Metrics,
    /// How long an answer to a keyed request is remembered.
    pub retention: Span,
    /// How long after its end a window of a strict limit is shown in the ledger.
    pub keep_closed: Span,
    /// Which headers answers carry.
    pub header_styles: HeaderStyles,
    /// Who may use the check API.
    pub check_auth: CheckAuth,
    /// The configured administrator's token.
    pub admin_token: Option<Secret>,
    /// The token for `/metrics`; absent: open.
    pub metrics_token: Option<Secret>,
    /// Whether faults may be injected.
    pub faults_enabled: bool,
    /// Held while a change that must be on disk is made and queued, so that changes reach the disk in the
    /// order in which they were made. Never held across a wait; taken before any other lock.
    pub order: Mutex<()>,
    /// Asks the flusher to flush now.
    pub flush_wanted: Notify,
    /// Counts flushes that were tried.
    pub flushed: watch::Sender<u64>,
    /// Faults that were injected.
    pub faults: Faults,
    /// Where its files are.
    pub data_dir: PathBuf,
    /// Region time of the start.
    pub started_at: Timestamp,
    consensus: OnceLock<Consensus>,
    meters: ArcSwap<HashTable<Metered>>,
    hasher: RandomState,
    /// Whether the store has failed since the log last started.
    pub(super) log_stopped: AtomicBool,
    /// Whether this copy of the log has once been behind all that was committed: one that begins empty is filled
    /// entry by entry, and knows some limits and not others until then.
    pub(super) caught_up: AtomicBool,
    /// Until when it wants no traffic, on the boot clock, in nanoseconds.
    draining_until: AtomicU64,
    manual_set: AtomicBool,
    refused_keys_told: AtomicU64,
}

impl Region {
    /// Opens the store. Blocks on the disk. `peer_url` is where other regions reach this one. Nothing is
    /// brought back yet: that takes the catalogue, which comes from the log ([`Region::restore`]).
    ///
    /// # Errors
    /// When the store cannot be opened or read.
    pub fn open(
        config: &Config,
        clock: Clock,
        peer_url: String,
    ) -> anyhow::Result<(Arc<Self>, mpsc::Receiver<Letter>)> {
        let incarnation = entropy::bits64();
        let opened = Store::open(&config.data_dir, &config.region, incarnation)
            .with_context(|| format!("data_dir {}", config.data_dir.display()))?;
        let Opened {
            store,
            actors,
            start,
            last_time,
            catalogue,
            changes,
        } = opened;
        clock.start_from(last_time);
        let was_member = store.identity().cluster.is_some();
        let adopted = adopted(catalogue, changes).context("the catalogue in log.db")?;
        let (outbox, letters) = Outbox::new();
        let holder = Holder {
            region: config.region.clone(),
            incarnation,
        };
        let bounded = |max: u64| usize::try_from(max).unwrap_or(usize::MAX);
        let seed = || [entropy::bits64(), entropy::bits64()];
        let bounds = Bounds {
            keys_max: bounded(config.memory.max_keys),
            keys_per_tenant_max: bounded(config.memory.max_keys_per_tenant),
        };
        let keys_max = bounded(config.idempotency.max_keys);
        let region = Arc::new(Self {
            name: config.region.clone(),
            incarnation,
            peers: OnceLock::new(),
            ledger: Ledger::new(bounds, actors, start, seed()),
            holds: Holds::new(keys_max),
            answers: Answers::new(keys_max, seed()),
            rejections: Rejections::new(seed()),
            refusal_log: RefusalLog::default(),
            store,
            replica: Arc::new(Replica::new()),
            reservations: Reservations::new(holder, seed()),
            progress: Mutex::default(),
            inherited: Mutex::default(),
            unplaced: Mutex::default(),
            requests: Requests::default(),
            debts: Debts::default(),
            exchange: Exchange::new(config.replication_interval),
            caught_up: AtomicBool::new(was_member),
            has_majority: AtomicBool::new(true),
            majority_noted: AtomicU64::new(0),
            outbox,
            enrolled: watch::Sender::new(false),
            adopted: Mutex::new(adopted),
            peer_url,
            metrics: Metrics::new(&config.metrics.endpoints),
            retention: config.idempotency.retention,
            keep_closed: config.strict_keep_closed,
            header_styles: HeaderStyles::new(&config.header_styles),
            check_auth: config.auth.check,
            admin_token: config.auth.admin_token.clone(),
            metrics_token: config.metrics.token.clone(),
            faults_enabled: config.faults_enabled,
            order: Mutex::new(()),
            flush_wanted: Notify::new(),
            flushed: watch::Sender::new(0),
            faults: Faults::default(),
            data_dir: config.data_dir.clone(),
            started_at: clock.now(),
            consensus: OnceLock::new(),
            meters: ArcSwap::default(),
            hasher: RandomState::with_seeds(1, 2, 3, 4),
            log_stopped: AtomicBool::new(false),
            draining_until: AtomicU64::new(0),
            manual_set: AtomicBool::new(false),
            refused_keys_told: AtomicU64::new(0),
            clock,
        });
        Ok((region, letters))
    }

    /// The log, once it runs.
    pub fn consensus(&self) -> Option<&Consensus> {
        self.consensus.get()
    }

    /// The links to the other regions, once they run.
    pub fn peers(&self) -> Option<&Peers> {
        self.peers.get()
    }

    /// Gives the region its log. Called once.
    pub fn set_consensus(&self, consensus: Consensus) {
        let is_first = self.consensus.set(consensus).is_ok();
        debug_assert!(is_first, "a region has one log");
    }

    /// The catalogue in force.
    pub fn view(&self) -> arc_swap::Guard<Arc<View>> {
        self.replica.view()
    }

    /// The catalogue in force, to be held across waits.
    pub fn view_full(&self) -> Arc<View> {
        self.replica.view_full()
    }

    /// What the counters of one shard changed, for disk.
    pub fn drain(&self, shard: usize, out: &mut Vec<CounterRecord>) {
        let names = self.replica.names();
        let name_of = |id: LimitId| -> Option<LimitName> { names.name(id).cloned() };
        self.ledger.drain(shard, name_of, out);
    }

    /// Flushes now and waits until it was tried; false when the store did not take it.
    pub async fn flush_now(&self) -> bool {
        let mut flushed = self.flushed.subscribe();
        let seen = *flushed.borrow_and_update();
        self.flush_wanted.notify_one();
        // One flush may have been running already; the second began after this call.
        flushed
            .wait_for(|count| *count >= seen + 2 || self.store.is_failed())
            .await
            .is_ok()
            && !self.store.is_failed()
    }

    /// Puts the catalogue beside the log on disk: a directory that is restored from a backup begins with it.
    ///
    /// # Errors
    /// When the store cannot be written.
    pub async fn keep_catalogue(&self) -> Result<(), StoreError> {
        let catalogue = self.replica.catalogue();
        let body = serde_json::to_vec(&*catalogue).map_err(|error| StoreError::Refused {
            reason: error.to_string(),
        })?;
        let kept = self.store.append_change(Change {
            index: catalogue.version(),
            at: self.clock.now(),
            author: "backup".to_owned(),
            summary: "the catalogue as it was backed up".to_owned(),
            entry: Vec::new(),
            snapshot: Some(body),
        });
        match kept.await {
            // This version, or a newer one, is there already.
            Ok(()) | Err(StoreError::Refused { .. }) => Ok(()),
            Err(error) => Err(error),
        }
    }

    /// The id of the cluster that this region belongs to, or has belonged to before it started.
    pub fn cluster_id(&self) -> Option<u64> {
        let kept = self.store.identity().cluster;
        kept.or_else(|| self.replica.core().machine.cluster())
    }

    /// Whether this region knows its cluster's catalogue. One that does not can say nothing of tenants, limits and
    /// tokens, least of all that there are none.
    pub fn has_catalogue(&self) -> bool {
        self.replica.is_founded() && self.caught_up.load(Ordering::Acquire)
    }

    /// Whether each condition for serving is met. A peer out of reach is none of them, but for a region that
    /// has never belonged to a cluster: it has no catalogue to serve by.
    pub fn readiness(&self) -> [(&'static str, bool); 3] {
        [
            if self.has_catalogue() {
                ("catalogue", true)
            } else {
                (NO_CLUSTER, false)
            },
            ("store", !self.store.is_failed()),
            ("accepting", !self.is_draining()),
        ]
    }

    /// Says that the region wants no more traffic: for so long, or until it is resumed.
    pub fn drain_for(&self, lasts: Option<Span>) {
        let ends = lasts.map_or(Span::MAX, |lasts| self.clock.boot().plus(lasts));
        self.draining_until
            .store(ends.as_nanos(), Ordering::Relaxed);
    }

    /// Says that the region wants traffic again.
    pub fn resume(&self) {
        self.draining_until.store(0, Ordering::Relaxed);
    }

    /// Whether the region wants no more traffic.
    pub fn is_draining(&self) -> bool {
        self.clock.boot().as_nanos() < self.draining_until.load(Ordering::Relaxed)
    }

    /// Notes that the manual clock tells a time that somebody chose: the windows that it ends are over when
    /// whoever chose it is answered.
    pub fn note_clock_set(&self) {
        self.reservations.follow(self.clock.now());
        self.manual_set.store(true, Ordering::Relaxed);
        // The next check must not find the windows of the time before.
        self.let_time_pass();
    }

    /// Whether the clock tells a time that things may expire by.
    pub fn time_is_set(&self) -> bool {
        !self.clock.is_manual() || self.manual_set.load(Ordering::Relaxed)
    }

    /// The counters of a limit for tenants of a plan.
    pub fn meters(&self, item: &Item<'_>, tier: Option<&PlanName>) -> Arc<LimitMeters> {
        let mode = item.limit.mode;
        let hash = self
            .hasher
            .hash_one((item.id.0, tier.map(PlanName::as_str)));
        let known = self.meters.load();
        let found = known.find(hash, |(id, plan, known_mode, _)| {
            *id == item.id && *known_mode == mode && plan.as_ref() == tier
        });
        if let Some((.., meters)) = found {
            return Arc::clone(meters);
        }
        let meters =
            self.metrics
                .limits
                .limit(item.limit.name.as_str(), tier.map(PlanName::as_str), mode);
        if known.len() < crate::telemetry::meters::LABEL_SETS_MAX {
            self.meters.rcu(|known| {
                let mut next = HashTable::clone(known);
                let entry = (item.id, tier.cloned(), mode, Arc::clone(&meters));
                next.insert_unique(hash, entry, |(id, plan, ..)| {
                    self.hasher
                        .hash_one((id.0, plan.as_ref().map(PlanName::as_str)))
                });
                next
            });
        }
        meters
    }

    /// Brings the gauges up to date; called before metrics are written.
    pub fn measure(&self) {
        let gauge = |value: usize| i64::try_from(value).unwrap_or(i64::MAX);
        let metrics = &self.metrics;
        metrics.live_counters.set(gauge(self.ledger.keys()));
        metrics.open_holds.set(gauge(self.holds.len()));
        metrics.idempotency_keys.set(gauge(self.answers.len()));
        metrics.store_failed.set(i64::from(self.store.is_failed()));
        metrics
            .pending_commits
            .set(i64::try_from(self.store.stats().pending).unwrap_or(i64::MAX));
        metrics
            .catalogue_version
            .set(i64::try_from(self.view().version()).unwrap_or(i64::MAX));
        metrics.set_clock_steps_back(self.clock.steps_followed_back());
        self.measure_peers();
        self.measure_usage();
        metrics.show_cluster(&self.cluster_reading());
        let refused = self.ledger.refused_keys();
        let told = self.refused_keys_told.swap(refused, Ordering::Relaxed);
        metrics
            .refused_new_keys
            .inc_by(refused.saturating_sub(told));
    }
}

/// The catalogue (JSON) as a directory kept it before there was a log.
fn adopted(
    snapshot: Option<Snapshot>,
    changes: Vec<StoredChange>,
) -> anyhow::Result<Option<Vec<u8>>> {
    if snapshot.is_none() && changes.is_empty() {
        return Ok(None);
    }
    let mut catalogue = match snapshot {
        Some(snapshot) => serde_json::from_slice::<Catalogue>(&snapshot.body)?,
        None => Catalogue::default(),
    };
    for change in changes {
        let entry: Entry = serde_json::from_slice(&change.entry)?;
        catalogue
            .apply(change.index, change.at, &entry)
            .map_err(|refused| {
                anyhow::anyhow!("change {} does not apply: {refused}", change.index)
            })?;
    }
    Ok(Some(serde_json::to_vec(&catalogue)?))
}
