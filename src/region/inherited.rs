//! What earlier processes of this region spent of strict limits and had no time to tell.
//!
//! A process that is killed takes with it what it had not told the leader of yet; to the book those units are
//! stranded, though they may have been spent. This region's disk knows more: of limits with
//! `durability = "sync"` exactly what was spent, of others at least all up to the last flush. The next process
//! tells it in the name of the one that died, until the book has it. Nothing becomes free by that.

use std::sync::Arc;
use std::sync::Weak;
use std::time::Duration;

use compact_str::CompactString;

use crate::domain::limit::Mode;
use crate::domain::time::WindowId;
use crate::grants::account::Account;
use crate::grants::account::Holder;
use crate::grants::account::Totals;
use crate::grants::message::Report;
use crate::grants::message::ToLeader;
use crate::machine::charge::has_reservations;
use crate::region::state::Region;
use crate::usage::record::CounterRecord;
use crate::usage::record::slots;

/// How often what the book lacks is told again.
const TELL_INTERVAL: Duration = Duration::from_millis(500);
/// After so many times the leader will not take it.
const TELLINGS_MAX: u32 = 60;
/// Windows of dead processes that are told of at most.
const INHERITED_MAX: usize = 100_000;

/// One window of one counter, of a process that ended.
#[derive(Clone, Debug)]
pub struct Inherited {
    account: Account,
    window: WindowId,
    holder: Holder,
    /// At least so many units were used in it and not given back: spent, or charged by the leader.
    used: u64,
}

impl Region {
    /// Notes what a record from disk says of earlier processes.
    pub fn inherit(&self, record: &CounterRecord) {
        let view = self.view();
        let (tenant, key) = (record.id.tenant.as_str(), record.id.key.as_str());
        let is_strict = view
            .tenant(tenant)
            .and_then(|tenant| tenant.limit(record.id.limit.as_str()))
            .map(|found| found.at(key, self.clock.now()))
            .is_some_and(|(limit, epoch)| {
                epoch == record.epoch && limit.mode == Mode::Strict && has_reservations(&limit.rule)
            });
        if !is_strict {
            return;
        }
        let mut inherited = self.inherited.lock();
        for (window, counter) in &record.windows {
            for (actor, p, n) in slots(counter) {
                let ended = self.ledger.actors().get(actor).filter(|actor| {
                    actor.region == self.name && actor.incarnation != self.incarnation
                });
                if let Some(actor) = ended
                    && inherited.len() < INHERITED_MAX
                {
                    inherited.push(Inherited {
                        account: Account {
                            tenant: CompactString::new(tenant),
                            limit: record.id.limit.clone(),
                            key: CompactString::new(key),
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

    /// Tells the leader what was inherited until the book has it. To be called once this process has enrolled.
    pub(super) async fn tell_inherited(region: Weak<Self>) {
        for _ in 0..TELLINGS_MAX {
            let Some(region) = region.upgrade() else {
                return;
            };
            if region.tell_what_the_book_lacks() == 0 {
                return;
            }
            drop(region);
            tokio::time::sleep(TELL_INTERVAL).await;
        }
    }

    /// Tells once; of how many windows the book still lacks something.
    fn tell_what_the_book_lacks(self: &Arc<Self>) -> usize {
        let mut inherited = self.inherited.lock();
        let core = self.replica.core();
        let book = core.machine.book();
        inherited.retain(|ended| {
            let tally = book.tally(&ended.account, ended.window, &ended.holder);
            // What the leader charged is counted here as well.
            let spent = ended.used.saturating_sub(tally.charged);
            let spent = spent.min(tally.granted.saturating_sub(tally.returned));
            if spent <= tally.spent {
                return false;
            }
            self.outbox.to_leader(ToLeader::Report(Report {
                holder: ended.holder.clone(),
                account: ended.account.clone(),
                window: ended.window,
                totals: Totals {
                    spent,
                    returned: tally.returned,
                },
                demand: 0,
                recall: 0,
            }));
            true
        });
        inherited.len()
    }
}
