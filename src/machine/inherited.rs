//! What earlier processes of a region spent of strict limits and had no time to tell.
//!
//! A process that is killed takes with it what it had not told the leader of yet; to the book those units are
//! stranded, though they may have been spent. The region's disk knows more: of limits with
//! `durability = "sync"` exactly what was spent, of others at least all up to the last flush. The next process
//! tells it in the name of the one that died, until the book has it. Nothing becomes free by that.

use crate::domain::limit::Limit;
use crate::domain::limit::Mode;
use crate::domain::time::WindowId;
use crate::grants::account::Account;
use crate::grants::account::Holder;
use crate::grants::account::Totals;
use crate::grants::book::Book;
use crate::grants::message::Report;
use crate::machine::charge::has_reservations;
use crate::usage::actor::ActorTable;
use crate::usage::record::CounterRecord;
use crate::usage::record::slots;

/// After so many times the leader will not take it.
const TELLINGS_MAX: u32 = 60;
/// Windows of dead processes that are told of at most.
const ENDED_MAX: usize = 100_000;

/// What earlier processes of one region spent, as far as the book may lack it.
#[derive(Debug, Default)]
pub struct Inherited {
    ended: Vec<Ended>,
    tellings: u32,
}

/// One window of one counter, of a process that ended.
#[derive(Debug)]
struct Ended {
    account: Account,
    window: WindowId,
    holder: Holder,
    /// At least so many units were used in it and not given back: spent, or charged by the leader.
    used: u64,
}

impl Inherited {
    /// Notes what a record from disk says of earlier processes. `known` is the limit as it holds for the record's
    /// key, with its epoch.
    pub fn note(
        &mut self,
        actors: &ActorTable,
        record: &CounterRecord,
        known: Option<(&Limit, u64)>,
    ) {
        let is_told = known.is_some_and(|(limit, epoch)| {
            epoch == record.epoch && limit.mode == Mode::Strict && has_reservations(&limit.rule)
        });
        if !is_told {
            return;
        }
        for (window, counter) in &record.windows {
            for (actor, p, n) in slots(counter) {
                let own = actors.own_actor();
                let ended = actors.get(actor).filter(|actor| {
                    actor.region == own.region && actor.incarnation != own.incarnation
                });
                if let Some(actor) = ended
                    && self.ended.len() < ENDED_MAX
                {
                    self.ended.push(Ended {
                        account: Account {
                            tenant: record.id.tenant.as_str().into(),
                            limit: record.id.limit.clone(),
                            key: record.id.key.as_str().into(),
                            epoch: record.epoch,
                        },
                        window: *window,
                        holder: Holder {
                            region: actor.region.clone(),
                            incarnation: actor.incarnation,
                        },
                        used: p.saturating_sub(n),
                    });
                }
            }
        }
    }

    /// What `book` lacks yet, to be told to the leader. What it has is forgotten; empty once it has everything, or
    /// when it was told often enough.
    pub fn lacking(&mut self, book: &Book) -> Vec<Report> {
        if self.tellings >= TELLINGS_MAX {
            self.ended = Vec::new();
        }
        let mut lacking = Vec::new();
        self.ended.retain(|ended| {
            let tally = book.tally(&ended.account, ended.window, &ended.holder);
            // What the leader charged is counted on the disk as well.
            let spent = ended.used.saturating_sub(tally.charged);
            let spent = spent.min(tally.granted.saturating_sub(tally.returned));
            if spent <= tally.spent {
                return false;
            }
            lacking.push(Report {
                holder: ended.holder.clone(),
                account: ended.account.clone(),
                window: ended.window,
                totals: Totals {
                    spent,
                    returned: tally.returned,
                },
                demand: 0,
                recall: 0,
            });
            true
        });
        self.tellings += u32::from(!lacking.is_empty());
        lacking
    }
}
