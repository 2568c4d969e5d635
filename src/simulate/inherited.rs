//! What earlier processes of a region spent of strict limits and had no time to tell, as `region::inherited` has it.

use crate::catalogue::Catalogue;
use crate::domain::limit::Mode;
use crate::domain::time::Timestamp;
use crate::domain::time::WindowId;
use crate::grants::account::Account;
use crate::grants::account::Holder;
use crate::grants::account::Totals;
use crate::grants::message::Report;
use crate::grants::message::ToLeader;
use crate::machine::charge::has_reservations;
use crate::usage::actor::Actor;
use crate::usage::record::CounterRecord;
use crate::usage::record::slots;

use super::exchange::Limits;
use super::process::Context;
use super::process::Process;

/// After so many times the leader will not take it.
const TELLINGS_MAX: u32 = 60;

#[derive(Debug)]
struct Ended {
    account: Account,
    window: WindowId,
    holder: Holder,
    used: u64,
}

/// See the module.
#[derive(Debug, Default)]
pub struct Inherited {
    ended: Vec<Ended>,
    tellings: u32,
}

impl Inherited {
    /// Notes what a record from disk says of earlier processes.
    pub fn note(
        &mut self,
        own: &Holder,
        catalogue: &Catalogue,
        actors: &[Actor],
        record: &CounterRecord,
        now: Timestamp,
    ) {
        let id = &record.id;
        let found = catalogue.limit(&id.tenant, id.limit.as_str(), &id.key, now);
        let is_strict = found.is_some_and(|(limit, epoch)| {
            epoch == record.epoch && limit.mode == Mode::Strict && has_reservations(&limit.rule)
        });
        if !is_strict {
            return;
        }
        for (window, counter) in &record.windows {
            for (actor, p, n) in slots(counter) {
                let actor = usize::try_from(actor.0).ok().and_then(|at| actors.get(at));
                let ended = actor.filter(|actor| {
                    actor.region == own.region && actor.incarnation != own.incarnation
                });
                if let Some(actor) = ended {
                    self.ended.push(Ended {
                        account: Account {
                            tenant: id.tenant.as_str().into(),
                            limit: id.limit.clone(),
                            key: id.key.as_str().into(),
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
}

impl Process {
    /// Tells the leader what the book lacks of it.
    pub(super) fn tell_inherited(&mut self, context: &mut Context<'_>) {
        if !self.is_enrolled || self.inherited.tellings >= TELLINGS_MAX {
            return;
        }
        let book = self.machine.book();
        let mut words = Vec::new();
        self.inherited.ended.retain(|ended| {
            let tally = book.tally(&ended.account, ended.window, &ended.holder);
            let spent = ended.used.saturating_sub(tally.charged);
            let spent = spent.min(tally.granted.saturating_sub(tally.returned));
            if spent <= tally.spent {
                return false;
            }
            words.push(ToLeader::Report(Report {
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
        if !words.is_empty() {
            self.inherited.tellings += 1;
        }
        for word in words {
            self.say_to_leader(context, word);
        }
    }
}
