//! The background work of a region: flushing, sweeping, housekeeping, probing.
//!
//! Each is a loop of its own that ends when the region stops. A flush that the store refused is kept and
//! tried again before anything newer is collected, so a counter's changes reach the disk in order and at
//! most one batch waits. While the manual clock has not been set, nothing expires: what came back from disk
//! may belong to the time that is about to be set.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use tokio::sync::watch;

use crate::domain::time::Span;
use crate::domain::time::Timestamp;
use crate::region::state::Region;
use crate::store::Batch;
use crate::store::StoreError;
use crate::store::Unflushed;

/// Dead counters are looked for this often.
const SWEEP_INTERVAL: Span = Span::from_ms(100);
/// Sweeps that see every counter once.
const SWEEPS_PER_ROUND: usize = 50;
/// Places that a sweep looks at at least.
const SWEEP_CELLS_MIN: usize = 4096;
/// Holds and answers of each shard that one sweep may forget.
const SWEEP_ENTRIES: usize = 64;
/// The store's housekeeping is done this often.
const TEND_INTERVAL: Span = Span::from_ms(250);
/// A failed store is tried again this often.
const PROBE_INTERVAL: Span = Span::from_ms(500);
/// Records in one flush at most.
const BATCH_RECORDS_MAX: usize = 50_000;

/// Starts the loops; they end after `stop` turns true. The flush loop is not among them: it must outlive
/// the last request.
pub fn start(region: &Arc<Region>, stop: &watch::Receiver<bool>) {
    tokio::spawn(every(
        SWEEP_INTERVAL,
        Arc::clone(region),
        stop.clone(),
        |region| async move { region.sweep() },
    ));
    tokio::spawn(every(
        TEND_INTERVAL,
        Arc::clone(region),
        stop.clone(),
        |region| async move { region.tend().await },
    ));
    tokio::spawn(every(
        PROBE_INTERVAL,
        Arc::clone(region),
        stop.clone(),
        |region| async move { region.probe().await },
    ));
}

/// Waits until `stop` turns true, or nobody can turn it any more.
pub async fn stopped(stop: &mut watch::Receiver<bool>) {
    if stop.wait_for(|stop| *stop).await.is_err() {
        tracing::debug!("whoever could say stop is gone");
    }
}

async fn every<F: Future<Output = ()>>(
    interval: Span,
    region: Arc<Region>,
    mut stop: watch::Receiver<bool>,
    work: impl Fn(Arc<Region>) -> F + Send,
) {
    let mut ticks = tokio::time::interval(interval.to_std());
    ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    loop {
        tokio::select! {
            biased;
            () = stopped(&mut stop) => return,
            _ = ticks.tick() => work(Arc::clone(&region)).await,
        }
    }
}

/// Flushes every `interval` until `stop` turns true, and then once more.
pub async fn flush_until(region: Arc<Region>, interval: Span, mut stop: watch::Receiver<bool>) {
    let mut ticks = tokio::time::interval(interval.to_std());
    ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    let mut flusher = Flusher::default();
    loop {
        let stopping = tokio::select! {
            biased;
            () = stopped(&mut stop) => true,
            () = region.flush_wanted.notified() => false,
            _ = ticks.tick() => false,
        };
        let flushed = flusher.flush(&region).await;
        region.flushed.send_modify(|count| *count += 1);
        if stopping {
            if let Err(error) = flushed {
                tracing::error!(%error, "the last counts could not be written; up to one flush interval is lost");
            }
            return;
        }
    }
}

/// Collects what changed and hands it to the store.
#[derive(Debug, Default)]
struct Flusher {
    refused: Option<Box<Batch>>,
}

impl Flusher {
    async fn flush(&mut self, region: &Region) -> Result<(), StoreError> {
        if region.store.is_failed() {
            return Err(StoreError::Closed);
        }
        if let Some(batch) = self.refused.take() {
            self.hand_over(region, *batch).await?;
        }
        let mark = region.store.sync_mark();
        let mut batch = Batch {
            now: region.clock.now(),
            ..Batch::default()
        };
        for shard in 0..region.ledger.shards() {
            region.drain(shard, &mut batch.records);
            if batch.records.len() >= BATCH_RECORDS_MAX {
                let full = std::mem::replace(
                    &mut batch,
                    Batch {
                        now: region.clock.now(),
                        ..Batch::default()
                    },
                );
                self.hand_over(region, full).await?;
            }
        }
        batch.covers = Some(mark);
        self.hand_over(region, batch).await
    }

    async fn hand_over(&mut self, region: &Region, mut batch: Batch) -> Result<(), StoreError> {
        // After the counters: what a settle gave back must not be on disk while its hold is still open there.
        batch.holds.extend(region.holds.drain());
        // Whoever changed a counter that was collected has queued its record by now, and that goes first.
        drop(region.order.lock());
        if let Err(error) = region.store.keep_barrier(batch.now).await {
            self.refused = Some(Box::new(batch));
            return Err(error);
        }
        match region.store.flush(batch).await {
            Ok(()) => Ok(()),
            Err(Unflushed { error, batch }) => {
                self.refused = Some(batch);
                region
                    .metrics
                    .errors(crate::telemetry::metrics::Stage::Store)
                    .inc();
                Err(error)
            }
        }
    }
}

impl Region {
    fn sweep(&self) {
        let Some(now) = self.expiry_now() else { return };
        let cells = (self.ledger.keys() / SWEEPS_PER_ROUND).max(SWEEP_CELLS_MIN);
        self.ledger
            .sweep(now, u32::try_from(cells).unwrap_or(u32::MAX));
        self.holds.sweep(now, SWEEP_ENTRIES);
        self.answers.sweep(now, SWEEP_ENTRIES);
    }

    async fn tend(&self) {
        let Some(now) = self.expiry_now() else { return };
        if self.store.is_failed() {
            return;
        }
        while let Ok(true) = self.store.tend(now).await {
            tokio::task::yield_now().await;
        }
    }

    async fn probe(&self) {
        if self.store.is_failed() {
            self.log_stopped.store(true, Ordering::Relaxed);
            match self.store.probe().await {
                Ok(()) => tracing::info!("the store can be written again"),
                Err(error) => {
                    tracing::warn!(%error, "the store still cannot be written");
                    return;
                }
            }
        }
        // The log stopped with the store; it goes on from what the store holds.
        if self.log_stopped.load(Ordering::Relaxed)
            && let Some(consensus) = self.consensus()
        {
            match consensus.restart().await {
                Ok(()) => self.log_stopped.store(false, Ordering::Relaxed),
                Err(error) => {
                    tracing::warn!(%error, "the replicated log does not start again yet");
                }
            }
        }
    }

    /// The time by which things expire; `None` while the manual clock waits to be set.
    fn expiry_now(&self) -> Option<Timestamp> {
        self.time_is_set().then(|| self.clock.now())
    }
}
