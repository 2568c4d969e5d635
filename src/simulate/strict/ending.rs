//! What a check comes to: by the log, by the disk, by the failure policy; and what its caller is told.

use crate::domain::decision::Decision;
use crate::domain::decision::Reason;
use crate::domain::limit::Durability;
use crate::drill::record::Answer;
use crate::grants::account::Account;
use crate::ledger::check::ItemOutcome;
use crate::ledger::check::Outcome;
use crate::ledger::check::Request;
use crate::ledger::check::Word;
use crate::machine::charge::Charged;
use crate::machine::command::Reply;
use crate::simulate::exchange;
use crate::simulate::log::FSYNC;
use crate::simulate::process::Call;
use crate::simulate::process::Context;
use crate::simulate::process::Event;
use crate::simulate::process::Out;
use crate::simulate::process::Process;
use crate::simulate::process::keep;
use crate::simulate::process::said;
use crate::simulate::process::send;
use crate::simulate::proposing::Failed;

use super::Check;
use super::Stage;

impl Process {
    /// The log has decided, or nobody knows.
    pub(in crate::simulate) fn log_decided(
        &mut self,
        context: &mut Context<'_>,
        id: u64,
        ended: Result<Reply, Failed>,
    ) {
        let Some(Check {
            call,
            stage: Stage::Led { number, outcome },
            ..
        }) = self.checks.get(&id).cloned()
        else {
            return;
        };
        self.requests.1.remove(&number);
        let epoch = outcome.receipts.first().map_or(0, |receipt| receipt.epoch);
        let charged = match ended {
            Ok(Reply::Charged(charged)) => Ok(charged),
            Ok(_) => Err(Failed::Unavailable),
            Err(failed) => Err(failed),
        };
        let allowed = |told: &ItemOutcome| Answer::Allowed(said(told, epoch));
        match charged {
            Ok(Charged::Allowed(answered)) => {
                let told = answered.items.first();
                let answer = told.map_or(Answer::Wrong(500), allowed);
                for record in outcome.records {
                    keep(context.disk, record);
                }
                self.answer(context, id, answer);
            }
            Ok(Charged::Repeated(answered)) => {
                self.undo(context, &call, &outcome);
                let told = answered.items.first();
                let answer = told.map_or(Answer::Wrong(500), allowed);
                self.answer(context, id, answer);
            }
            Ok(Charged::Refused(items)) => {
                self.undo(context, &call, &outcome);
                let answer = items
                    .first()
                    .map_or(Answer::Wrong(500), |told| told_as(told, epoch));
                self.answer(context, id, answer);
            }
            Ok(Charged::Mismatch) => {
                self.undo(context, &call, &outcome);
                self.answer(context, id, Answer::Wrong(422));
            }
            Ok(Charged::Stale { version }) => {
                self.undo(context, &call, &outcome);
                self.park(context, id, version);
            }
            Ok(Charged::NotTaken(_)) => {
                self.undo(context, &call, &outcome);
                let unavailable = Answer::Unavailable {
                    may_be_charged: false,
                };
                self.answer(context, id, unavailable);
            }
            Err(Failed::Unknown) => {
                let unknown = Answer::Unavailable {
                    may_be_charged: true,
                };
                self.answer(context, id, unknown);
            }
            Err(Failed::Unavailable) => {
                self.undo(context, &call, &outcome);
                self.by_policy(context, id, false);
            }
        }
    }

    /// The failure policy decides: the leader, or the disk, cannot be had.
    fn by_policy(&mut self, context: &mut Context<'_>, id: u64, store_failed: bool) {
        let Some(check) = self.checks.get(&id) else {
            return;
        };
        let call = check.call.clone();
        let word = [Word::OutOfReach];
        let decided = self.with_item(context, &call, |process, context, item| {
            let request = Request {
                now: context.at.now,
                boot: context.at.boot,
                tenant: &call.tenant,
                items: &[item],
                hold: None,
                keep: false,
                store_failed,
                judge_only: false,
                words: if store_failed { &[] } else { &word },
            };
            (process.counts.ledger.check(&request), item.epoch)
        });
        let answer = decided.and_then(|(outcome, epoch)| {
            let told = outcome.items.first()?;
            Some(told_as(told, epoch))
        });
        self.answer(context, id, answer.unwrap_or(Answer::Wrong(404)));
    }

    fn undo(&self, context: &Context<'_>, call: &Call, outcome: &Outcome) {
        self.with_item(context, call, |process, context, item| {
            for receipt in &outcome.receipts {
                let ledger = &process.counts.ledger;
                ledger.give_back(
                    item.id,
                    item.limit,
                    receipt,
                    receipt.units,
                    0,
                    context.at.now,
                );
            }
        });
    }

    /// A check is decided here; what must be on disk before the answer is put there first.
    pub(super) fn decided(
        &mut self,
        context: &mut Context<'_>,
        id: u64,
        outcome: Outcome,
        epoch: u64,
    ) {
        if outcome.is_urgent {
            let mut out = exchange::Outbox::new();
            let limits = self.machine.catalogue();
            self.counts.tell_urgent(context.at, limits, &mut out);
            send(context, out);
        }
        let Some(told) = outcome.items.first().copied() else {
            return;
        };
        let Some(check) = self.checks.get_mut(&id) else {
            return;
        };
        let call = check.call.clone();
        let is_sync = self.with_item(context, &call, |_, _, item| {
            item.limit.durability == Durability::Sync
        });
        let must_be_kept = is_sync == Some(true) || call.idempotency.is_some();
        if outcome.allowed && must_be_kept && !self.is_store_failed {
            if let Some(check) = self.checks.get_mut(&id) {
                check.stage = Stage::Keeps { outcome };
            }
            context.later(FSYNC, Event::Kept(id));
            return;
        }
        self.answer(context, id, told_as(&told, epoch));
    }

    /// A check's charges are on disk, or the disk takes nothing.
    pub(in crate::simulate) fn kept(&mut self, context: &mut Context<'_>, id: u64) {
        let Some(Check {
            call,
            stage: Stage::Keeps { outcome },
            ..
        }) = self.checks.get(&id).cloned()
        else {
            return;
        };
        if context.is_full || self.is_store_failed {
            self.fail_store(context);
            self.undo(context, &call, &outcome);
            self.by_policy(context, id, true);
            return;
        }
        let epoch = outcome.receipts.first().map_or(0, |receipt| receipt.epoch);
        for record in outcome.records {
            keep(context.disk, record);
        }
        let told = outcome.items.first();
        let answer = told.map_or(Answer::Wrong(500), |told| told_as(told, epoch));
        if let Some(key) = &call.idempotency {
            context.disk.answers.insert(key.to_string(), answer.clone());
        }
        self.answer(context, id, answer);
    }

    /// A check waits nowhere any more, and its caller is told.
    pub(super) fn answer(&mut self, context: &mut Context<'_>, id: u64, answer: Answer) {
        let Some(check) = self.checks.remove(&id) else {
            return;
        };
        if let Stage::Waits { ticket, .. } = check.stage {
            self.tickets.remove(&ticket);
            let accounts: Vec<Account> = self
                .seats
                .keys()
                .filter(|account| {
                    *account.tenant == *check.call.tenant
                        && account.limit.as_str() == &*check.call.limit
                        && *account.key == *check.call.key
                })
                .cloned()
                .collect();
            for account in accounts {
                self.with_seat(context, &account, |reservation, now, effects| {
                    reservation.done(ticket, now, effects);
                });
            }
        }
        context.out.push(Out::Tell(id, answer));
    }
}

/// What a caller is told, as `http::answer` tells it.
fn told_as(told: &ItemOutcome, epoch: u64) -> Answer {
    match (told.decision, told.reason) {
        (Decision::Allow, _) => Answer::Allowed(said(told, epoch)),
        (_, Some(Reason::Unavailable)) => Answer::Unavailable {
            may_be_charged: false,
        },
        (_, Some(Reason::OutcomeUnknown)) => Answer::Unavailable {
            may_be_charged: true,
        },
        _ => Answer::Refused(said(told, epoch)),
    }
}
