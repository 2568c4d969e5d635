//! Faults that are injected on purpose, for drills and tests. Each ends by itself.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering;

use parking_lot::Mutex;
use serde::Deserialize;
use serde::Serialize;
use utoipa::ToSchema;

use crate::domain::time::Span;
use crate::domain::time::Timestamp;
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

/// A fault that runs.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, ToSchema)]
pub struct Fault {
    /// Names the fault.
    pub id: String,
    /// What goes wrong.
    pub kind: FaultKind,
    /// How far the clock is off.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub offset_ms: Option<i64>,
    /// How long it runs in all.
    #[schema(value_type = String)]
    #[serde(with = "crate::domain::duration::text")]
    pub ttl: Span,
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
            .filter_map(|fault| fault.offset_ms)
            .fold(0, i64::saturating_add)
    }

    fn store_fault(&self) -> Option<StoreFault> {
        let running = self.running.lock();
        let runs = |kind: FaultKind| running.values().any(|fault| fault.kind == kind);
        if runs(FaultKind::StoreErrors) {
            Some(StoreFault::Errors)
        } else {
            runs(FaultKind::StoreFull).then_some(StoreFault::Full)
        }
    }
}

impl Region {
    /// Starts a fault that ends by itself after `ttl` of real time; `None` when too many run already.
    ///
    /// # Errors
    /// When the store is closed.
    pub async fn begin_fault(
        self: &Arc<Self>,
        kind: FaultKind,
        offset_ms: Option<i64>,
        ttl: Span,
        now: Timestamp,
    ) -> Result<Option<Fault>, StoreError> {
        let number = self.faults.last.fetch_add(1, Ordering::Relaxed) + 1;
        let fault = Fault {
            id: number.to_string(),
            kind,
            offset_ms,
            ttl,
            began_ms: now.as_unix_ms(),
        };
        {
            let mut running = self.faults.running.lock();
            if running.len() >= FAULTS_MAX {
                return Ok(None);
            }
            running.insert(number, fault.clone());
        }
        tracing::warn!(id = number, ?kind, %ttl, "a fault is injected");
        let region = Arc::clone(self);
        tokio::spawn(async move {
            tokio::time::sleep(ttl.to_std()).await;
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
        self.clock.set_fault_offset(self.faults.offset_ms());
        match self.faults.store_fault() {
            Some(fault) => self.store.inject(fault).await,
            None => self.store.clear_fault().await,
        }
    }
}
