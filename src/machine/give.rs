//! Units that go back to strict limits: refunds, settles and releases; and holds that last longer.
//!
//! Each is one entry with a request number, and a refund by a caller has an `Idempotency-Key`: a refund that
//! counted twice would make units out of nothing. No more goes back than was spent.

use std::sync::Arc;

use compact_str::CompactString;
use serde::Deserialize;
use serde::Serialize;

use crate::catalogue::intern::LimitId;
use crate::domain::limit::Limit;
use crate::domain::limit::Mode;
use crate::domain::name::LimitName;
use crate::domain::time::Timestamp;
use crate::domain::time::Window;
use crate::domain::time::WindowId;
use crate::grants::account::Account;
use crate::grants::account::Holder;
use crate::grants::account::Totals;
use crate::ledger::check::Item;
use crate::ledger::hold::Receipt;
use crate::machine::Machine;
use crate::machine::answers::Before;
use crate::machine::answers::Done;
use crate::machine::answers::FORGOTTEN;
use crate::machine::charge::Keyed;
use crate::machine::charge::RequestNumber;
use crate::machine::charge::has_reservations;
use crate::machine::charge::told_of;

/// Units go back.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct GiveBack {
    /// Which request.
    pub request: RequestNumber,
    /// The caller's key.
    pub keyed: Option<Keyed>,
    /// Whose.
    pub tenant: CompactString,
    /// At most so many.
    pub units: u64,
    /// From where.
    pub source: Source,
    /// Limits with windows: what the region did with its own units, and of which window.
    pub told: Option<(WindowId, Totals)>,
}

impl GiveBack {
    /// The counter that the units go back to.
    pub fn account(&self) -> Account {
        let (limit, key, epoch) = match &self.source {
            Source::Charge { receipt, .. } => (
                &receipt.counter.limit,
                CompactString::new(&receipt.counter.key),
                receipt.epoch,
            ),
            Source::Use {
                limit, key, epoch, ..
            } => (limit, key.clone(), *epoch),
        };
        Account {
            tenant: self.tenant.clone(),
            limit: limit.clone(),
            key,
            epoch,
        }
    }
}

/// Where units that go back were charged.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Source {
    /// One charge, and the hold that it opened (0: none).
    Charge {
        /// The charge.
        receipt: Receipt,
        /// The hold.
        hold: u128,
    },
    /// Whatever is in use now.
    Use {
        /// The limit.
        limit: LimitName,
        /// The key; empty when the limit has none.
        key: CompactString,
        /// The epoch that the region knows.
        epoch: u64,
        /// Limits with windows: the running window, as the leader found it.
        window: Option<Window>,
    },
}

/// A hold lasts longer.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Renew {
    /// Which request.
    pub request: RequestNumber,
    /// The charges that it opened.
    pub receipts: Vec<Receipt>,
    /// The hold.
    pub hold: u128,
    /// Its new end, in log time.
    pub expires_at: Timestamp,
}

/// What came of it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Given {
    /// So many units went back.
    Units(u64),
    /// The key was answered before: so many had gone back then.
    Repeated(u64),
    /// The key was used with another body.
    Mismatch,
    /// The limit is another one by now.
    Stale {
        /// The catalogue's version.
        version: u64,
    },
    /// The process is not the newest of its region, or there is no room for its key.
    NotTaken(String),
}

impl Machine {
    pub(super) fn give_back(&mut self, give: &GiveBack) -> Given {
        if let Some(Done::Given(before)) = self.remembered.request(&give.request) {
            return before.clone();
        }
        let given = self.decide_give(give);
        self.remembered
            .note_request(&give.request, Done::Given(given.clone()));
        given
    }

    fn decide_give(&mut self, give: &GiveBack) -> Given {
        if !self.book.is_newest(&give.request.holder) {
            return Given::NotTaken("the process has not enrolled, or a newer one has".to_owned());
        }
        if self.remembered.is_forgotten(&give.request) {
            return Given::NotTaken(FORGOTTEN.to_owned());
        }
        if let Some(keyed) = &give.keyed {
            match self.remembered.before(&give.tenant, keyed) {
                Before::Nothing => {}
                Before::Given(units) => return Given::Repeated(units),
                Before::Mismatch | Before::Charged(_) => return Given::Mismatch,
                Before::Full => {
                    return Given::NotTaken(
                        "the tenant has as many Idempotency-Keys as are remembered".to_owned(),
                    );
                }
            }
        }
        let units = match &give.source {
            Source::Charge { receipt, hold } => Some(self.refund_charge(give, receipt, *hold)),
            Source::Use {
                limit,
                key,
                epoch,
                window,
            } => self.refund_use(give, (limit, key, *epoch), *window),
        };
        let Some(units) = units else {
            return Given::Stale {
                version: self.catalogue.version(),
            };
        };
        if let Some(keyed) = &give.keyed {
            self.remembered
                .note_given(&give.tenant, keyed, units, self.log_time);
        }
        Given::Units(units)
    }

    fn refund_charge(&mut self, give: &GiveBack, receipt: &Receipt, hold: u128) -> u64 {
        let account = Account {
            tenant: give.tenant.clone(),
            limit: receipt.counter.limit.clone(),
            key: CompactString::new(&receipt.counter.key),
            epoch: receipt.epoch,
        };
        let units = give.units.min(receipt.units);
        let of_region = |holder: &Holder| holder.region == give.request.holder.region;
        let from_book = self.refund_windows(give, &account, receipt.window, units, of_region);
        if from_book > 0 {
            return from_book;
        }
        let Some((limit, id)) = self.ledger_limit(&account) else {
            return 0;
        };
        let moved = self
            .ledger
            .give_back(id, &limit, receipt, units, hold, self.log_time);
        moved.units
    }

    fn refund_use(
        &mut self,
        give: &GiveBack,
        (limit, key, epoch): (&LimitName, &CompactString, u64),
        window: Option<Window>,
    ) -> Option<u64> {
        let account = Account {
            tenant: give.tenant.clone(),
            limit: limit.clone(),
            key: key.clone(),
            epoch,
        };
        let (found, in_force) = self.limit_of(&account, self.log_time)?;
        let id = found.id;
        if has_reservations(&in_force.rule) {
            let window = window?;
            return Some(self.refund_windows(give, &account, window.id, give.units, |_| true));
        }
        let item = Item {
            limit: &in_force,
            id,
            epoch,
            key,
            cost: give.units,
        };
        Some(self.ledger.refund(&item, &give.tenant, self.log_time).units)
    }

    /// Credits up to `units` of what the holders that `may` give have spent; the one that asks first.
    fn refund_windows(
        &mut self,
        give: &GiveBack,
        account: &Account,
        window: WindowId,
        units: u64,
        may: impl Fn(&Holder) -> bool,
    ) -> u64 {
        let asker = &give.request.holder;
        let mut left = units;
        left -= self.book.refund(
            self.log_time,
            account,
            window,
            asker,
            told_of(give.told, window),
            left,
        );
        let holders: Vec<Holder> = self
            .book
            .tallies(account, window)
            .map(|(holder, _)| holder.clone())
            .collect();
        for holder in holders {
            if left > 0 && holder != *asker && may(&holder) {
                left -= self.book.refund(
                    self.log_time,
                    account,
                    window,
                    &holder,
                    Totals::default(),
                    left,
                );
            }
        }
        units - left
    }

    /// The limit behind an account whose counter the log itself keeps.
    fn ledger_limit(&self, account: &Account) -> Option<(Arc<Limit>, LimitId)> {
        let found = self
            .catalogue
            .view()
            .tenant(&account.tenant)?
            .limit(account.limit.as_str())?;
        let (limit, _) = found.at(&account.key, self.log_time);
        let is_it = limit.mode == Mode::Strict && !has_reservations(&limit.rule);
        is_it.then(|| (Arc::clone(limit), found.id))
    }

    pub(super) fn renew(&mut self, renew: &Renew) -> Given {
        if let Some(Done::Given(before)) = self.remembered.request(&renew.request) {
            return before.clone();
        }
        if self.remembered.is_forgotten(&renew.request) {
            return Given::NotTaken(FORGOTTEN.to_owned());
        }
        for receipt in &renew.receipts {
            let account = Account {
                tenant: CompactString::new(&receipt.counter.tenant),
                limit: receipt.counter.limit.clone(),
                key: CompactString::new(&receipt.counter.key),
                epoch: receipt.epoch,
            };
            if let Some((limit, id)) = self.ledger_limit(&account) {
                self.ledger.renew(
                    id,
                    &limit,
                    receipt,
                    renew.hold,
                    renew.expires_at,
                    self.log_time,
                );
            }
        }
        let given = Given::Units(0);
        self.remembered
            .note_request(&renew.request, Done::Given(given.clone()));
        given
    }
}
