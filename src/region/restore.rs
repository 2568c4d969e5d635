//! What a start takes over from the store: counters, holds and answers.
//!
//! A counter belongs to a limit, and which limits there are is told by the log. A region that starts while nobody
//! leads goes by the entries that it knows to be committed; counters of a limit that a later entry made are kept
//! aside until this process has enrolled, which it does behind all that was committed before its start.

use std::sync::Weak;

use anyhow::Context;

use crate::domain::limit::Rule;
use crate::ledger::hold::HoldRecord;
use crate::ledger::idempotency::KeptAnswer;
use crate::ledger::restore::Restorer;
use crate::region::state::Region;
use crate::store::Sink;
use crate::usage::record::CounterId;
use crate::usage::record::CounterRecord;

/// Records that are kept aside at most. Those of limits that were deleted are among them.
const UNPLACED_MAX: usize = 100_000;

/// What was read from disk and has no limit yet.
#[derive(Debug, Default)]
pub struct Unplaced {
    records: Vec<CounterRecord>,
    /// The catalogue by which it was read: a later one may have the limits.
    version: u64,
}

impl Region {
    /// Brings counters, holds and answers back from the store. Blocks on the disk; called once, when the
    /// catalogue is there and before anything is decided.
    ///
    /// # Errors
    /// When the store cannot be read.
    pub fn restore(&self) -> anyhow::Result<()> {
        let started = self.clock.stopwatch();
        let now = (!self.clock.is_manual()).then(|| self.clock.now());
        let version = self.view().version();
        let mut restoring = Restoring::new(self);
        self.store
            .restore(now, &mut restoring)
            .context("the counts on disk")?;
        let records = restoring.finish();
        let unplaced = records.len();
        *self.unplaced.lock() = Unplaced { records, version };
        self.restore_leases();
        tracing::info!(
            counters = self.ledger.keys(),
            holds = self.holds.len(),
            answers = self.answers.len(),
            unplaced,
            ms = started.elapsed().as_ms_ceil(),
            "restored"
        );
        Ok(())
    }

    /// Takes over, once this process has enrolled, what could not be placed before, and tells the leader what
    /// earlier processes spent.
    pub async fn restore_the_rest(region: Weak<Self>) {
        let Some(mut enrolled) = region.upgrade().map(|region| region.enrolled.subscribe()) else {
            return;
        };
        if enrolled.wait_for(|enrolled| *enrolled).await.is_err() {
            return;
        }
        if let Some(region) = region.upgrade() {
            region.place_the_rest();
        }
        Self::tell_inherited(region).await;
    }

    fn place_the_rest(&self) {
        let Unplaced { records, version } = std::mem::take(&mut *self.unplaced.lock());
        if self.view().version() == version {
            return;
        }
        let read = records.len();
        let mut restoring = Restoring::new(self);
        for record in records {
            restoring.counter(record);
        }
        // What is left is of limits that were deleted: nobody asks for them any more.
        let over = restoring.finish().len();
        self.restore_leases();
        tracing::info!(
            records = read - over,
            over,
            "restored by the newest catalogue"
        );
    }

    /// Takes over the leases of open holds; again changes nothing.
    fn restore_leases(&self) {
        let view = self.view();
        self.holds.for_each(|hold| {
            let concurrency = |counter: &CounterId| {
                let found = view
                    .tenant(&counter.tenant)?
                    .limit(counter.limit.as_str())?;
                matches!(found.limit.rule, Rule::Concurrency { .. }).then_some(found.id)
            };
            self.ledger.restore_leases(hold, concurrency);
        });
    }
}

/// Takes over what the store hands out.
struct Restoring<'a> {
    region: &'a Region,
    restorer: Restorer<'a>,
    unplaced: Vec<CounterRecord>,
    dropped: u64,
}

impl<'a> Restoring<'a> {
    fn new(region: &'a Region) -> Self {
        Self {
            region,
            restorer: Restorer::new(&region.ledger),
            unplaced: Vec::new(),
            dropped: 0,
        }
    }

    /// Puts in what takes all records of a counter; gives back what has no limit.
    fn finish(self) -> Vec<CounterRecord> {
        let names = self.region.replica.names();
        self.restorer.finish(|limit| names.get(limit.as_str()));
        if self.dropped > 0 {
            tracing::warn!(
                records = self.dropped,
                "more than {UNPLACED_MAX} counters on disk are of limits that are not known here, and the rest of them was \
                 not read; start this region again once it reaches a leader, and they are"
            );
        }
        self.unplaced
    }
}

impl Sink for Restoring<'_> {
    fn counter(&mut self, record: CounterRecord) {
        if let Some(limit) = self.region.replica.names().get(record.id.limit.as_str()) {
            self.region.inherit(&record);
            self.restorer.counter(record, limit);
        } else if self.unplaced.len() < UNPLACED_MAX {
            self.unplaced.push(record);
        } else {
            self.dropped += 1;
        }
    }

    fn hold(&mut self, hold: HoldRecord) {
        self.region.holds.restore(hold);
    }

    fn answer(&mut self, answer: KeptAnswer) {
        self.region.answers.restore(answer);
    }
}
