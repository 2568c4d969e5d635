//! Faults that are injected on purpose, for drills and tests. Each ends by itself.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering;

use parking_lot::Mutex;
use serde::Deserialize;
use serde::Serialize;
use utoipa::ToSchema;

use crate::domain::name::RegionName;
use crate::domain::time::Span;
use crate::domain::time::Timestamp;
use crate::peer::LinkFaults;
use crate::peer::PeerFault;
use crate::region::state::Region;
use crate::store::StoreError;
use crate::store::StoreFault;

/// Faults that may run at once.
pub const FAULTS_MAX: usize = 64;
/// The longest fault.
pub const TTL_MAX: Span = Span::from_seconds(900);

/// What goes wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum FaultKind {
    /// A peer cannot be reached.
    Partition,
    /// Messages to peers take longer.
    Latency,
    /// Messages to peers get lost.
    Loss,
    /// The wall clock is off by `offset_ms`.
    ClockOffset,
    /// Every write of the store fails.
    StoreErrors,
    /// The disk is full.
    StoreFull,
}

/// Which way a partition cuts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum Direction {
    /// Nothing passes.
    #[default]
    Both,
    /// What the peer sends vanishes.
    In,
    /// What this region sends vanishes.
    Out,
}

/// A fault without a name: what goes wrong, and for how long.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, ToSchema)]
pub struct FaultPlan {
    /// What goes wrong.
    pub kind: FaultKind,
    /// `partition`, `latency`, `loss`: the peer that it concerns; absent: all.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>, nullable = false)]
    pub peer: Option<RegionName>,
    /// `partition`: which way it cuts.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    pub direction: Option<Direction>,
    /// `latency`: added to the way of every frame that this region sends.
    #[serde(
        skip_serializing_if = "Option::is_none",
        with = "crate::domain::duration::optional"
    )]
    #[schema(value_type = Option<String>, nullable = false)]
    pub delay: Option<Span>,
    /// `latency`: each frame is delayed by up to this much more.
    #[serde(
        skip_serializing_if = "Option::is_none",
        with = "crate::domain::duration::optional"
    )]
    #[schema(value_type = Option<String>, nullable = false)]
    pub jitter: Option<Span>,
    /// `loss`: of a hundred frames that this region sends, so many vanish.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    pub loss_percent: Option<u8>,
    /// `clock_offset`: how far the clock is off.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    pub offset_ms: Option<i64>,
    /// How long it runs in all.
    #[schema(value_type = String)]
    #[serde(with = "crate::domain::duration::text")]
    pub ttl: Span,
}

impl FaultPlan {
    /// What it does to links; `None` when it does nothing to them.
    fn on_links(&self) -> Option<PeerFault> {
        let faults = match self.kind {
            FaultKind::Partition => {
                let direction = self.direction.unwrap_or_default();
                LinkFaults {
                    blocks_in: direction != Direction::Out,
                    blocks_out: direction != Direction::In,
                    ..LinkFaults::default()
                }
            }
            FaultKind::Latency => LinkFaults {
                delay: self.delay.unwrap_or_default(),
                jitter: self.jitter.unwrap_or_default(),
                ..LinkFaults::default()
            },
            FaultKind::Loss => LinkFaults {
                loss_percent: self.loss_percent.unwrap_or_default(),
                ..LinkFaults::default()
            },
            FaultKind::ClockOffset | FaultKind::StoreErrors | FaultKind::StoreFull => return None,
        };
        Some(PeerFault {
            peer: self.peer.clone(),
            faults,
        })
    }
}

/// A fault that runs.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, ToSchema)]
pub struct Fault {
    /// Names the fault.
    pub id: String,
    /// What goes wrong, and for how long.
    #[serde(flatten)]
    pub plan: FaultPlan,
    /// Region time when it began, in Unix milliseconds.
    #[schema(value_type = i64)]
    pub began_ms: i64,
}

/// The faults of one region.
#[derive(Debug, Default)]
pub struct Faults {
    running: Mutex<BTreeMap<u64, Fault>>,
    last: AtomicU64,
}

impl Faults {
    /// The faults that run.
    pub fn list(&self) -> Vec<Fault> {
        self.running.lock().values().cloned().collect()
    }

    fn offset_ms(&self) -> i64 {
        self.running
            .lock()
            .values()
            .filter_map(|fault| fault.plan.offset_ms)
            .fold(0, i64::saturating_add)
    }

    fn on_links(&self) -> Vec<PeerFault> {
        self.running
            .lock()
            .values()
            .filter_map(|fault| fault.plan.on_links())
            .collect()
    }

    fn store_fault(&self) -> Option<StoreFault> {
        let running = self.running.lock();
        let runs = |kind: FaultKind| running.values().any(|fault| fault.plan.kind == kind);
        if runs(FaultKind::StoreErrors) {
            Some(StoreFault::Errors)
        } else {
            runs(FaultKind::StoreFull).then_some(StoreFault::Full)
        }
    }
}

impl Region {
    /// Starts a fault that ends by itself after its `ttl` of real time; `None` when too many run already.
    ///
    /// # Errors
    /// When the store is closed.
    pub async fn begin_fault(
        self: &Arc<Self>,
        plan: FaultPlan,
        now: Timestamp,
    ) -> Result<Option<Fault>, StoreError> {
        let number = self.faults.last.fetch_add(1, Ordering::Relaxed) + 1;
        let fault = Fault {
            id: number.to_string(),
            plan,
            began_ms: now.as_unix_ms(),
        };
        {
            let mut running = self.faults.running.lock();
            if running.len() >= FAULTS_MAX {
                return Ok(None);
            }
            running.insert(number, fault.clone());
        }
        let FaultPlan {
            kind, peer, ttl, ..
        } = &fault.plan;
        let peer = peer.as_ref().map(RegionName::as_str);
        tracing::warn!(id = number, ?kind, peer, %ttl, "a fault is injected");
        let ttl = *ttl;
        let region = Arc::clone(self);
        tokio::spawn(async move {
            tokio::time::sleep(ttl.to_std()).await;
            #[cfg(feature = "planted-faults")]
            if crate::domain::planted::is(crate::domain::planted::Planted::FaultDoesNotHeal) {
                return;
            }
            if region.end_fault(number).await.is_err() {
                tracing::debug!(id = number, "the store was closed before the fault ended");
            }
        });
        self.apply_faults().await?;
        Ok(Some(fault))
    }

    /// Ends a fault; false when it does not run.
    ///
    /// # Errors
    /// When the store is closed.
    pub async fn end_fault(&self, number: u64) -> Result<bool, StoreError> {
        let ended = self.faults.running.lock().remove(&number).is_some();
        if ended {
            tracing::warn!(id = number, "an injected fault ends");
            self.apply_faults().await?;
        }
        Ok(ended)
    }

    async fn apply_faults(&self) -> Result<(), StoreError> {
        if let Some(peers) = self.peers.get() {
            peers.set_faults(self.faults.on_links());
        }
        self.clock.set_fault_offset(self.faults.offset_ms());
        match self.faults.store_fault() {
            Some(fault) => self.store.inject(fault).await,
            None => self.store.clear_fault().await,
        }
    }
}
