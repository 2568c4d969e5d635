//! Deciding with a disk behind it.
//!
//! An `async` check never waits: the ledger decides and the next flush writes. A `sync`, keyed or holding
//! check is charged in memory, put on disk, and only then answered. Charge and place in the log file's queue
//! are taken in one turn ([`Region::order`]), and a flush waits for what is queued: so no charge can reach the
//! disk before the answer that belongs to it, and a repeat after a crash finds both or neither.
//! When the disk does not take it the
//! charge is undone and the check is decided once more by each limit's failure policy, so an answer is
//! either on disk or marked degraded.

use crate::domain::time::Timestamp;
use crate::ledger::check::Outcome;
use crate::ledger::check::Request;
use crate::ledger::hold::HoldRecord;
use crate::ledger::idempotency::KeptAnswer;
use crate::region::state::Region;
use crate::store::Kept;
use crate::store::StoreError;
use crate::usage::record::CounterRecord;

/// What must be on disk together with a check's charges.
#[derive(Debug, Default)]
pub struct Together {
    /// The hold that it opens.
    pub hold: Option<HoldRecord>,
    /// The answer that a repeat gets again.
    pub answer: Option<KeptAnswer>,
}

impl Together {
    /// With the records of what was decided at `now`: all that goes to disk.
    pub(super) fn with(self, outcome: &mut Outcome, now: Timestamp) -> Kept {
        Kept {
            records: std::mem::take(&mut outcome.records),
            holds: self.hold.into_iter().collect(),
            answers: self.answer.into_iter().collect(),
            now,
        }
    }
}

impl Region {
    /// Decides a check. `together` says what else goes to disk with an allowed one; it is asked only when
    /// the disk is waited for.
    pub async fn decide(
        &self,
        request: &Request<'_>,
        together: impl FnOnce(&Outcome) -> Together,
    ) -> Outcome {
        let by_policy = || {
            self.ledger.check(&Request {
                store_failed: true,
                ..*request
            })
        };
        let Ok(permit) = self.store.keep_permit().await else {
            return by_policy();
        };
        let (outcome, keeping) = {
            let _order = self.order.lock();
            let store_failed = self.store.is_failed();
            let mut outcome = self.ledger.check(&Request {
                store_failed,
                ..*request
            });
            if store_failed || outcome.records.is_empty() {
                return outcome;
            }
            let kept = together(&outcome).with(&mut outcome, request.now);
            (outcome, permit.send(kept))
        };
        if keeping.wait().await.is_ok() {
            return outcome;
        }
        self.undo(request, &outcome);
        by_policy()
    }

    /// Puts records on disk and waits until they are there.
    ///
    /// # Errors
    /// When the store cannot.
    pub async fn keep(
        &self,
        now: Timestamp,
        records: Vec<CounterRecord>,
        hold: Option<HoldRecord>,
        answer: Option<KeptAnswer>,
    ) -> Result<(), StoreError> {
        let kept = Kept {
            records,
            holds: hold.into_iter().collect(),
            answers: answer.into_iter().collect(),
            now,
        };
        self.store.keep(kept).await
    }

    /// Gives back all that `outcome` charged.
    pub(super) fn undo(&self, request: &Request<'_>, outcome: &Outcome) {
        let hold = request.hold.map_or(0, |(hold, _)| hold);
        for receipt in &outcome.receipts {
            // Not every item that was allowed has a receipt: one that there was no room to count has none.
            let counter = &receipt.counter;
            let charged = request
                .items
                .iter()
                .find(|item| item.limit.name == counter.limit && item.key == counter.key);
            if let Some(item) = charged {
                self.ledger.give_back(
                    item.id,
                    item.limit,
                    receipt,
                    receipt.units,
                    hold,
                    request.now,
                );
            }
        }
    }
}
