//! Starting, watching and stopping the library.
//!
//! The library stops for good at the first storage error. Its instance is dropped then, so that the other
//! members elect a leader, and a new one is made from the store when that works again. The machine stays.

use std::sync::Arc;
use std::sync::Weak;
use std::sync::atomic::Ordering;
use std::time::Duration;

use openraft::AsyncRuntime;
use openraft::Config;
use openraft::Raft;
use openraft::RaftMetrics;
use openraft::SnapshotPolicy;
use openraft::async_runtime::Watch;
use openraft::async_runtime::WatchReceiver;
use openraft::errors::Fatal;
use tokio::time::timeout;

use crate::consensus::Inner;
use crate::consensus::Leadership;
use crate::consensus::Settings;
use crate::consensus::StartError;
use crate::consensus::log::Log;
use crate::consensus::members;
use crate::consensus::network::Network;
use crate::consensus::state::State;
use crate::consensus::state::store_snapshot;
use crate::consensus::types::Runtime;
use crate::consensus::types::TypeConfig;
use crate::consensus::types::place_of;
use crate::store::RaftWrite;

/// How long an instance may take to end.
const STOP_TIMEOUT: Duration = Duration::from_secs(10);
/// How long an answer to a part of a snapshot is waited for; the last one includes the install.
const PART_DEADLINE: Duration = Duration::from_secs(30);

pub(super) const WENT_BACK: &str = "this directory is an old copy: the other members have seen its log longer; \
     wipe it, so that it joins as a new voter";

type MetricsReceiver =
    <<Runtime as AsyncRuntime>::Watch as Watch>::Receiver<RaftMetrics<TypeConfig>>;

/// One instance of the library.
pub(super) struct Running {
    /// Counted from 1.
    pub number: u64,
    pub raft: Raft<TypeConfig, State>,
    pub log: Log,
    pub network: Network,
}

fn config_of(settings: &Settings) -> Result<Config, StartError> {
    let ms = |duration: Duration| u64::try_from(duration.as_millis()).unwrap_or(u64::MAX);
    let config = Config {
        cluster_name: "highwater".to_owned(),
        heartbeat_interval: ms(settings.heartbeat),
        election_timeout_min: ms(settings.election_min),
        election_timeout_max: ms(settings.election_max),
        enable_pre_vote: Some(true),
        max_payload_entries: 4_096,
        max_append_entries: Some(4_096),
        api_batch_capacity: 4_096,
        api_batch_linger_ms: 0,
        snapshot_policy: SnapshotPolicy::LogsSinceLast(settings.snapshot_entries),
        max_in_snapshot_log_to_keep: settings.kept_entries,
        // Each deletion is a transaction of its own, so they are made in portions.
        purge_batch_size: (settings.kept_entries / 8).max(1),
        replication_lag_threshold: settings.snapshot_entries.saturating_mul(5) / 2,
        install_snapshot_timeout: ms(PART_DEADLINE),
        // What the machine knows is in memory, so a leader that starts again has to be elected again.
        enable_leader_restore: Some(false),
        backoff: "200ms ...2s".to_owned(),
        ..Config::default()
    };
    config
        .validate()
        .map_err(|error| StartError::Settings(error.to_string()))
}

impl Inner {
    pub(super) fn running(&self) -> Option<Arc<Running>> {
        self.running.lock().clone()
    }

    pub(super) async fn start(self: &Arc<Self>) -> Result<(), StartError> {
        let config = Arc::new(config_of(&self.settings)?);
        let store_error = |error: &dyn ToString| StartError::Store(error.to_string());
        let log = Log::open(self.store.clone())
            .await
            .map_err(|error| store_error(&error))?;
        self.close_hole(&log).await?;
        let number = self.instances.fetch_add(1, Ordering::Relaxed) + 1;
        let weak = Arc::downgrade(self);
        let network = Network {
            wire: Arc::clone(&self.wire),
            reach: Arc::clone(&self.reach),
            part_deadline: PART_DEADLINE,
            on_went_back: Arc::new(move || {
                if let Some(inner) = weak.upgrade() {
                    inner.stop(number, WENT_BACK);
                }
            }),
        };
        let state = State::new(Arc::clone(&self.applied), log.clone());
        let raft = Raft::new(self.voter, config, network.clone(), log.clone(), state)
            .await
            .map_err(|error| store_error(&error))?;
        let metrics = raft.metrics();
        if is_only_voter(self.voter, &metrics.borrow_watched()) {
            // Nobody else can lead, so there is no reason to wait for a leader to be heard.
            raft.trigger()
                .elect(false)
                .await
                .map_err(|error| store_error(&error))?;
        }
        *self.fault.lock() = None;
        *self.running.lock() = Some(Arc::new(Running {
            number,
            raft,
            log,
            network,
        }));
        tokio::spawn(watch_over(Arc::downgrade(self), number, metrics));
        Ok(())
    }

    /// A machine that outlived an instance may be ahead of the log on disk, when a majority had an entry that
    /// this disk did not take. Its state becomes the snapshot that the log goes on from.
    async fn close_hole(&self, log: &Log) -> Result<(), StartError> {
        let Some(applied) = self.applied.last() else {
            return Ok(());
        };
        if log.last() >= Some(place_of(&applied)) {
            return Ok(());
        }
        let snapshot = self.applied.snapshot();
        let closed = async {
            store_snapshot(log, &snapshot.meta, &snapshot.snapshot).await?;
            log.write(RaftWrite::Truncate { after: None }).await?;
            log.write(RaftWrite::Purge(place_of(&applied))).await
        };
        closed
            .await
            .map_err(|error| StartError::Store(error.to_string()))
    }

    pub(super) async fn restart(self: &Arc<Self>) -> Result<(), StartError> {
        let _one = self.starting.lock().await;
        if let Some(running) = self.running() {
            let state = running
                .raft
                .metrics()
                .borrow_watched()
                .running_state
                .clone();
            if state.is_ok() {
                return Ok(());
            }
            self.stop(running.number, "it starts again");
        }
        let started = self.start_after_end().await;
        if let Err(error) = &started {
            *self.fault.lock() = Some(error.to_string());
        }
        started
    }

    async fn start_after_end(self: &Arc<Self>) -> Result<(), StartError> {
        let ending = self.ending.lock().take();
        if let Some(ending) = ending {
            timeout(STOP_TIMEOUT, ending.raft.shutdown()).await.ok();
        }
        // What the instance before has queued is refused or written before this is answered.
        let log = Log::open(self.store.clone()).await;
        let log = log.map_err(|error| StartError::Store(error.to_string()))?;
        log.settle()
            .await
            .map_err(|error| StartError::Store(error.to_string()))?;
        self.start().await
    }

    /// Drops instance `number`, if it is the one that runs.
    pub(super) fn stop(&self, number: u64, reason: &str) {
        let stopped = {
            let mut running = self.running.lock();
            match running.as_ref() {
                Some(instance) if instance.number == number => running.take(),
                _ => None,
            }
        };
        let Some(stopped) = stopped else {
            return;
        };
        stopped.log.close();
        *self.fault.lock() = Some(reason.to_owned());
        tracing::error!(region = %self.region, reason, "consensus has stopped on this region");
        self.leadership.send_modify(|leadership| {
            *leadership = Leadership {
                term: leadership.term,
                ..Leadership::default()
            };
        });
        *self.ending.lock() = Some(Arc::clone(&stopped));
        tokio::spawn(async move {
            // It ends by itself when it has failed, else when the last handle is gone.
            timeout(STOP_TIMEOUT, stopped.raft.shutdown()).await.ok();
        });
    }

    pub(super) async fn shutdown(&self) {
        let Some(running) = self.running.lock().take() else {
            return;
        };
        timeout(STOP_TIMEOUT, running.raft.shutdown()).await.ok();
        if let Err(error) = running.log.settle().await {
            tracing::warn!(%error, "the mark of what is committed was not written; the next start asks the others");
        }
        running.log.close();
        self.leadership.send_modify(|leadership| {
            *leadership = Leadership {
                term: leadership.term,
                ..Leadership::default()
            };
        });
    }

    fn tell_leadership(self: &Arc<Self>, number: u64, metrics: &RaftMetrics<TypeConfig>) {
        let running = self.running.lock();
        let Some(instance) = running.as_ref().filter(|it| it.number == number) else {
            return;
        };
        let is_self = metrics.state.is_leader();
        let applied_term = metrics.last_applied.map(|last| last.leader_id.term);
        // Only the leader of a term makes entries of it, and its first one comes first.
        let is_ready = is_self && applied_term == Some(metrics.current_term);
        let leader = metrics.current_leader.filter(|leader| {
            // A vote for oneself is no lead yet.
            *leader != self.voter || is_self
        });
        let members = metrics.membership_config.membership();
        let leader = leader.and_then(|voter| members.get_node(&voter)?.member(voter));
        let now = Leadership {
            term: metrics.current_term,
            leader,
            is_self,
            is_ready,
        };
        let became_ready = is_ready && !self.leadership.borrow().is_ready;
        self.leadership.send_if_modified(|before| {
            let is_new = *before != now;
            *before = now;
            is_new
        });
        if became_ready && members.get_joint_config().len() > 1 {
            members::finish_change(instance.raft.clone());
        }
    }
}

fn is_only_voter(voter: u64, metrics: &RaftMetrics<TypeConfig>) -> bool {
    let mut voters = metrics.membership_config.voter_ids();
    voters.next() == Some(voter) && voters.next().is_none()
}

/// Follows one instance until it ends or everything is dropped.
async fn watch_over(weak: Weak<Inner>, number: u64, mut metrics: MetricsReceiver) {
    loop {
        let now = metrics.borrow_and_update().clone();
        let Some(inner) = weak.upgrade() else {
            return;
        };
        if let Err(fatal) = &now.running_state {
            let reason = match fatal {
                Fatal::StorageError(error) => error.to_string(),
                Fatal::Panicked => "an error in the program".to_owned(),
                Fatal::Stopped => "it was stopped".to_owned(),
            };
            inner.stop(number, &reason);
            return;
        }
        if let Some(refusal) = inner.store.raft_refusal() {
            // A leader that cannot write must not keep the lead until somebody proposes something.
            inner.stop(number, &refusal.to_string());
            return;
        }
        inner.tell_leadership(number, &now);
        let pause = inner.settings.heartbeat;
        drop(inner);
        if let Ok(Err(_)) = timeout(pause, metrics.changed()).await {
            // The task ended without a word: it panicked, or everything was dropped.
            if let Some(inner) = weak.upgrade() {
                inner.stop(number, "an error in the program");
            }
            return;
        }
    }
}
