//! What strict limits let through while the leader was out of reach, to be debited once it is back.
//!
//! Such answers are marked degraded and are outside of what a strict limit promises. Their units are charged
//! afterwards, as far as the window still has some, so that the rest of the window is not given away twice.
//! A window that has ended owes nothing any more. The table is bounded; what does not fit is not debited.

use std::collections::BTreeMap;
use std::sync::Arc;

use parking_lot::Mutex;

use crate::domain::decision::Decision;
use crate::domain::limit::Rule;
use crate::domain::time::Span;
use crate::domain::time::Timestamp;
use crate::grants::account::Account;
use crate::ledger::check::Outcome;
use crate::ledger::check::Request;
use crate::machine::charge::Charge;
use crate::machine::charge::ChargeItem;
use crate::machine::charge::Charged;
use crate::machine::command::Command;
use crate::machine::command::Reply;
use crate::machine::lead::window_of;
use crate::region::proposals::ProposeError;
use crate::region::state::Region;
use crate::region::strict;

/// Counters that may owe at once.
const ACCOUNTS_MAX: usize = 100_000;
/// Debts that are paid in one go.
const PAID_AT_ONCE: usize = 64;
/// How long paying one debt may take.
const PAY_DEADLINE: Span = Span::from_seconds(2);
/// How often a debt is paid in part.
const PARTS_MAX: u32 = 30;
/// A debt is not paid so shortly before its window ends, lest the next one pays it.
const MARGIN: Span = Span::from_seconds(1);

#[derive(Clone, Copy, Debug)]
struct Debt {
    units: u64,
    /// From here on nothing is owed.
    until: Timestamp,
    /// How often it was paid in part.
    parts: u32,
}

/// A debt on its way into the log.
#[derive(Clone, Debug)]
struct Payment {
    charge: Charge,
    debt: Debt,
}

/// See the module.
#[derive(Debug, Default)]
pub struct Debts {
    owed: Mutex<BTreeMap<Account, Debt>>,
    /// A payment of which nobody knows whether it counted: it is asked about before any other is made.
    unsure: Mutex<Option<Payment>>,
}

/// When what was let through at `now` is owed no more.
fn until(rule: &Rule, now: Timestamp) -> Timestamp {
    match rule {
        Rule::SlidingWindow { window, .. } | Rule::SlidingLog { window, .. } => now.plus(*window),
        Rule::TokenBucket { per, .. } | Rule::LeakyBucket { per, .. } => now.plus(*per),
        // What is held ends with its hold.
        Rule::Concurrency { .. } => now,
        Rule::FixedWindow { .. } | Rule::CalendarWindow { .. } => {
            window_of(rule, now).map_or(now, |window| window.end)
        }
    }
}

impl Debts {
    /// Notes the units of strict limits that the failure policy let through.
    pub fn note(&self, request: &Request<'_>, outcome: &Outcome) {
        if !outcome.allowed || request.judge_only {
            return;
        }
        for (item, told) in request.items.iter().zip(&outcome.items) {
            let owes = told.degraded && told.decision == Decision::Allow && item.cost > 0;
            if !owes || !strict::is_strict(item) {
                continue;
            }
            let mut owed = self.owed.lock();
            let account = strict::account(request.tenant, item);
            if owed.len() >= ACCOUNTS_MAX && !owed.contains_key(&account) {
                continue;
            }
            let until = until(&item.limit.rule, request.now);
            let debt = owed.entry(account).or_insert(Debt {
                units: 0,
                until,
                parts: 0,
            });
            if debt.until < request.now {
                debt.units = 0;
            }
            debt.units = debt.units.saturating_add(item.cost);
            debt.until = until;
        }
    }

    /// Forgets what is owed no more at `now`; gives the payment that was asked about for as long.
    fn forget_ended(&self, now: Timestamp) -> Option<Payment> {
        let is_owed = |until: Timestamp| now.plus(MARGIN) < until;
        self.owed.lock().retain(|_, debt| is_owed(debt.until));
        self.unsure
            .lock()
            .take_if(|payment| !is_owed(payment.debt.until))
    }

    /// What could not be paid yet is owed again.
    fn owe(&self, unpaid: Vec<(Account, Debt)>) {
        let mut owed = self.owed.lock();
        for (account, rest) in unpaid {
            owed.entry(account)
                .and_modify(|debt| debt.units = debt.units.saturating_add(rest.units))
                .or_insert(rest);
        }
    }
}

impl Region {
    /// Debits what was let through while the leader was out of reach, as far as units are free.
    pub async fn pay_debts(self: &Arc<Self>) {
        if let Some(ended) = self.debts.forget_ended(self.clock.now()) {
            self.requests.answered(ended.charge.request.number);
        }
        let mut unpaid = Vec::new();
        self.pay_some(&mut unpaid).await;
        self.debts.owe(unpaid);
    }

    /// Pays some debts. What is left of one although the window still has units is added to `unpaid`.
    async fn pay_some(self: &Arc<Self>, unpaid: &mut Vec<(Account, Debt)>) {
        for _ in 0..PAID_AT_ONCE {
            let Some(payment) = self.next_payment() else {
                return;
            };
            let number = payment.charge.request.number;
            let charge = Command::Charge(payment.charge.clone());
            // A leader that is cut off does not know it yet, and what it appends may be lost: the same request
            // is made again until somebody knows what came of it.
            *self.debts.unsure.lock() = Some(payment.clone());
            match self.propose_until_known(charge, PAY_DEADLINE).await {
                Ok(reply) => {
                    *self.debts.unsure.lock() = None;
                    self.requests.answered(number);
                    unpaid.extend(self.rest_of(&payment, &reply));
                }
                Err(ProposeError::Refused(_)) => {
                    *self.debts.unsure.lock() = None;
                    self.requests.answered(number);
                }
                Err(ProposeError::Unavailable(_) | ProposeError::OutcomeUnknown(_)) => return,
            }
        }
    }

    /// What is left of a debt after a payment, while the window has units: the leader has asked for those that regions hold,
    /// a region that was away returns them only once it is back, and those that came with the payment are free after it.
    fn rest_of(&self, payment: &Payment, reply: &Reply) -> Option<(Account, Debt)> {
        let paid: u64 = match reply {
            Reply::Charged(Charged::Allowed(answered)) => {
                answered.receipts.iter().map(|receipt| receipt.units).sum()
            }
            Reply::Charged(Charged::Refused(_)) => 0,
            _ => return None,
        };
        let item = payment.charge.items.first()?;
        let units = item.units.saturating_sub(paid);
        if units == 0 || payment.debt.parts >= PARTS_MAX {
            return None;
        }
        let tenant = &payment.charge.tenant;
        let core = self.replica.core();
        let now = self.clock.now();
        let proof = core
            .machine
            .proof(tenant, item.limit.as_str(), &item.key, now)?;
        let may_be_had = proof.free > 0 || proof.rows.iter().any(|row| row.held > 0);
        (proof.account.epoch == item.epoch && may_be_had).then(|| {
            let rest = Debt {
                units,
                until: payment.debt.until,
                parts: payment.debt.parts + 1,
            };
            (proof.account, rest)
        })
    }

    /// The payment that is made next.
    fn next_payment(&self) -> Option<Payment> {
        if let Some(unsure) = self.debts.unsure.lock().clone() {
            return Some(unsure);
        }
        let (account, debt) = self.debts.owed.lock().pop_first()?;
        // What this region holds itself goes back with the charge: the leader does not ask for it.
        let told = self
            .reservations
            .with(&account, self.clock.boot(), |reservation, now| {
                reservation.take_for_charge(debt.units, now)
            })
            .flatten();
        let charge = Charge {
            request: self.requests.next(self.reservations.holder()),
            tenant: account.tenant,
            items: vec![ChargeItem {
                limit: account.limit,
                key: account.key,
                epoch: account.epoch,
                units: debt.units,
                window: None,
                told,
            }],
            hold: None,
            keyed: None,
            local: Vec::new(),
            up_to: true,
        };
        Some(Payment { charge, debt })
    }
}
