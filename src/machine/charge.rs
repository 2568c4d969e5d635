//! Checks that the log decides: strict limits without reservations (sliding windows, logs, concurrency), and strict limits under an
//! `Idempotency-Key`.
//!
//! All items of a check are judged first; then all are charged or none. A check that is refused changes
//! nothing, so the leader judges it before it proposes ([`Machine::judge`]) and refusals rarely become
//! entries.

use std::sync::Arc;

use compact_str::CompactString;
use serde::Deserialize;
use serde::Serialize;

use crate::algorithm::Admission;
use crate::algorithm::Standing;
use crate::algorithm::bucket::Flow;
use crate::algorithm::bucket::Level;
use crate::catalogue::intern::LimitId;
use crate::domain::decision::DecidedBy;
use crate::domain::decision::Decision;
use crate::domain::decision::Reason;
use crate::domain::limit::Limit;
use crate::domain::limit::Mode;
use crate::domain::limit::Rule;
use crate::domain::name::LimitName;
use crate::domain::stamp::Stamp;
use crate::domain::time::Span;
use crate::domain::time::Timestamp;
use crate::domain::time::Window;
use crate::domain::time::WindowId;
use crate::grants::account::Account;
use crate::grants::account::Holder;
use crate::grants::account::PoolStanding;
use crate::grants::account::Quota;
use crate::grants::account::Totals;
use crate::grants::book;
use crate::grants::book::NotTaken;
use crate::grants::reservation::RETRY_AFTER_MIN;
use crate::ledger::check::Item;
use crate::ledger::check::ItemOutcome;
use crate::ledger::check::Request;
use crate::ledger::hold::Receipt;
use crate::ledger::idempotency::Operation;
use crate::machine::Machine;
use crate::machine::answers::Before;
use crate::machine::answers::Done;
use crate::machine::answers::FORGOTTEN;
use crate::machine::by_ledger::by_leader;
use crate::machine::by_ledger::ledger_item;
use crate::machine::by_ledger::ledger_items;
use crate::machine::by_ledger::ledger_request;
use crate::machine::by_ledger::place;
use crate::usage::record::CounterId;

/// Names a request of one process: an entry that is proposed twice counts once.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RequestNumber {
    /// The process.
    pub holder: Holder,
    /// Its number there, rising.
    pub number: u64,
    /// Requests of the process below this one have been answered and are not sent again.
    pub answered_below: u64,
}

/// An `Idempotency-Key` and the request that came with it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Keyed {
    /// Keys of each operation are apart.
    pub operation: Operation,
    /// The key.
    pub key: String,
    /// Tells the body from others.
    pub fingerprint: u128,
    /// How long the answer is remembered.
    pub retention: Span,
}

/// A check.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Charge {
    /// Which request.
    pub request: RequestNumber,
    /// Whose limits.
    pub tenant: CompactString,
    /// What is asked; no (limit, key) twice.
    pub items: Vec<ChargeItem>,
    /// A hold's number and end.
    pub hold: Option<(u128, Timestamp)>,
    /// The caller's key.
    pub keyed: Option<Keyed>,
    /// What the region's own limits said, in a form that only regions read; a repeat gets it again.
    pub local: Vec<u8>,
    /// Charges as much as is free, where it does not all fit.
    pub up_to: bool,
}

/// One limit of a check.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ChargeItem {
    /// The limit.
    pub limit: LimitName,
    /// The key; empty when the limit has none.
    pub key: CompactString,
    /// The epoch that the region knows.
    pub epoch: u64,
    /// Units.
    pub units: u64,
    /// Limits with windows: the window, as the leader found it.
    pub window: Option<Window>,
    /// Limits with windows: what the region did with its own units, and of which window.
    pub told: Option<(WindowId, Totals)>,
}

/// What came of a check.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum Charged {
    /// Every limit said yes and was charged.
    Allowed(Answered),
    /// The key was answered before; nothing was charged now.
    Repeated(Answered),
    /// A limit said no; nothing was charged.
    Refused(Vec<ItemOutcome>),
    /// The key was used with another body.
    Mismatch,
    /// A limit is another one by now.
    Stale {
        /// The catalogue's version.
        version: u64,
    },
    /// The process that asks is not the newest of its region, or the tenant has too many open counters.
    NotTaken(String),
}

/// The answer to an allowed check.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Answered {
    /// What each limit said, in the order asked.
    pub items: Vec<ItemOutcome>,
    /// What was charged, in the same order.
    pub receipts: Vec<Receipt>,
    /// What the region's own limits said.
    pub local: Vec<u8>,
}

/// One item with what the catalogue says of it.
pub(super) struct Known {
    pub(super) limit: Arc<Limit>,
    pub(super) id: LimitId,
    pub(super) account: Account,
}

/// Whether a strict limit of this kind is spent from reservations.
pub const fn has_reservations(rule: &Rule) -> bool {
    matches!(
        rule,
        Rule::FixedWindow { .. } | Rule::CalendarWindow { .. } | Rule::TokenBucket { .. }
    )
}

impl Machine {
    /// What can be said of `charge` at log time `at` without an entry: that its key was answered before, that
    /// its limits are others by now, or that one of the limits that the log itself counts says no. `None`: it
    /// has to be proposed. Changes nothing, so that the machine stays what the log made of it.
    pub fn judge(&self, charge: &Charge, at: Timestamp) -> Option<Charged> {
        let known = match self.admit(charge, at) {
            Ok(known) => known,
            Err(said) => return Some(said),
        };
        let units: Vec<u64> = charge.items.iter().map(|item| item.units).collect();
        let kept = ledger_items(charge, &known, &units);
        if kept.is_empty() || charge.up_to {
            return None;
        }
        let outcome = self.ledger.check(&Request {
            judge_only: true,
            ..ledger_request(charge, &kept, at)
        });
        if outcome.allowed {
            return None;
        }
        let mut told: Vec<Option<ItemOutcome>> = vec![None; known.len()];
        place(&mut told, charge, outcome.items.into_iter().map(by_leader));
        for ((told, item), known) in told.iter_mut().zip(&charge.items).zip(&known) {
            if let Some(window) = item.window {
                let holder = Some(&charge.request.holder);
                let standing = self.book.standing_at(at, &known.account, window.id, holder);
                *told = Some(windowed(
                    &known.limit,
                    window,
                    item.units,
                    standing.unwrap_or_else(|| untouched(&known.limit)),
                    true,
                    at,
                ));
            }
        }
        Some(Charged::Refused(told.into_iter().flatten().collect()))
    }

    /// The refusal of a check whose windows have too few units.
    pub fn refusal(&self, charge: &Charge, at: Timestamp) -> Charged {
        let Some(known) = self.known(charge, at) else {
            return Charged::Stale {
                version: self.catalogue.version(),
            };
        };
        let told = charge.items.iter().zip(&known).map(|(item, known)| {
            let Some(window) = item.window else {
                let item = ledger_item(item, known, item.units);
                return by_leader(self.look_at(&charge.tenant, &item, at));
            };
            let quota = Quota::of(&known.limit.rule);
            let preview = self.book.preview(at, &known.account, window, quota);
            let free = preview.map_or(0, |preview| preview.free);
            let holder = Some(&charge.request.holder);
            let standing = self.book.standing_at(at, &known.account, window.id, holder);
            let fits = i128::from(item.units) <= free;
            let standing = standing.unwrap_or_else(|| untouched(&known.limit));
            windowed(&known.limit, window, item.units, standing, fits, at)
        });
        let mut told: Vec<ItemOutcome> = told.collect();
        // A recall may have brought units meanwhile; the check was refused all the same.
        if told.iter().all(|told| told.decision == Decision::Allow)
            && let Some(first) = told.first_mut()
        {
            first.decision = Decision::Deny;
            first.reason = Some(Reason::QuotaExceeded);
            first.retry_after = Some(RETRY_AFTER_MIN);
        }
        Charged::Refused(told)
    }

    fn look_at(&self, tenant: &str, item: &Item<'_>, at: Timestamp) -> ItemOutcome {
        let outcome = self.ledger.check(&Request {
            now: at,
            tenant,
            items: std::slice::from_ref(item),
            hold: None,
            keep: false,
            store_failed: false,
            judge_only: true,
            boot: Span::ZERO,
            words: &[],
        });
        outcome.items[0]
    }

    /// How a limit without windows stands, for a look.
    pub fn look(&self, tenant: &str, item: &Item<'_>, at: Timestamp) -> ItemOutcome {
        let item = Item { cost: 0, ..*item };
        self.look_at(tenant, &item, at.max(self.log_time))
    }

    /// How the window of `account` stands that runs at `at`: the window, units used and units left. `None`
    /// when nobody has touched it.
    pub fn seen(&self, account: &Account, at: Timestamp) -> Option<(Window, PoolStanding)> {
        let runs = |window: &Window| window.is_endless() || (window.start <= at && at < window.end);
        let window = self.book.windows(account).find(runs)?;
        Some((window, self.book.standing_at(at, account, window.id, None)?))
    }

    pub(super) fn charge(&mut self, charge: &Charge) -> Charged {
        if let Some(Done::Charged(before)) = self.remembered.request(&charge.request) {
            return before.clone();
        }
        let charged = self.decide(charge);
        self.remembered
            .note_request(&charge.request, Done::Charged(charged.clone()));
        charged
    }

    /// What the catalogue says of every item, or why the check is not decided.
    fn admit(&self, charge: &Charge, at: Timestamp) -> Result<Vec<Known>, Charged> {
        if let Some(Done::Charged(before)) = self.remembered.request(&charge.request) {
            return Err(before.clone());
        }
        if !self.book.is_newest(&charge.request.holder) {
            return Err(Charged::NotTaken(NotTaken::NotEnrolled.to_string()));
        }
        if self.remembered.is_forgotten(&charge.request) {
            return Err(Charged::NotTaken(FORGOTTEN.to_owned()));
        }
        if let Some(keyed) = &charge.keyed {
            match self.remembered.before(&charge.tenant, keyed) {
                Before::Nothing => {}
                Before::Charged(answered) => return Err(Charged::Repeated(answered)),
                Before::Mismatch | Before::Given(_) => return Err(Charged::Mismatch),
                Before::Full => {
                    return Err(Charged::NotTaken(
                        "the tenant has as many Idempotency-Keys as are remembered".to_owned(),
                    ));
                }
            }
        }
        self.known(charge, at).ok_or_else(|| Charged::Stale {
            version: self.catalogue.version(),
        })
    }

    fn decide(&mut self, charge: &Charge) -> Charged {
        let known = match self.admit(charge, self.log_time) {
            Ok(known) => known,
            Err(said) => return said,
        };
        let units = self.units(charge, &known);
        if charge.up_to && units.iter().all(|units| *units == 0) {
            return Charged::Allowed(Answered {
                items: Vec::new(),
                receipts: Vec::new(),
                local: Vec::new(),
            });
        }
        let parts = parts(charge, &known, &units);
        let parts: Vec<(&book::Charge, Quota)> =
            parts.iter().map(|(part, quota)| (part, *quota)).collect();
        let fits = self.book.charge_fits(self.log_time, &parts);
        let kept = ledger_items(charge, &known, &units);
        let request = ledger_request(charge, &kept, self.log_time);
        let mut told: Vec<Option<ItemOutcome>> = vec![None; known.len()];
        let mut receipts: Vec<Option<Receipt>> = vec![None; known.len()];
        match fits {
            Ok(()) | Err((_, NotTaken::Empty)) => {}
            Err((_, NotTaken::Superseded)) => {
                return Charged::Stale {
                    version: self.catalogue.version(),
                };
            }
            Err((_, why)) => return Charged::NotTaken(why.to_string()),
        }
        let mut allowed = fits.is_ok();
        if !kept.is_empty() {
            let outcome = self.ledger.check(&Request {
                judge_only: !allowed,
                ..request
            });
            allowed &= outcome.allowed;
            place(&mut told, charge, outcome.items.into_iter().map(by_leader));
            place(&mut receipts, charge, outcome.receipts.into_iter());
        }
        if allowed && !parts.is_empty() && self.book.charge(self.log_time, &parts).is_err() {
            // They fitted a moment ago, under the same exclusive hold of the book.
            return Charged::NotTaken(NotTaken::Empty.to_string());
        }
        let empty = fits.err().map(|(place, _)| place);
        self.tell_windows(charge, &known, &units, empty, &mut told, &mut receipts);
        let items: Vec<ItemOutcome> = told.into_iter().flatten().collect();
        if !allowed {
            return Charged::Refused(items);
        }
        let answered = Answered {
            items,
            receipts: receipts.into_iter().flatten().collect(),
            local: charge.local.clone(),
        };
        if let Some(keyed) = &charge.keyed {
            self.remembered
                .note_charged(&charge.tenant, keyed, answered.clone(), self.log_time);
        }
        Charged::Allowed(answered)
    }

    /// Says how the limits with windows stand; `empty` is the place among them of one that lacks units.
    fn tell_windows(
        &self,
        charge: &Charge,
        known: &[Known],
        units: &[u64],
        empty: Option<usize>,
        told: &mut [Option<ItemOutcome>],
        receipts: &mut [Option<Receipt>],
    ) {
        let mut place = 0;
        for (index, ((item, known), units)) in charge.items.iter().zip(known).zip(units).enumerate()
        {
            let Some(window) = item.window else { continue };
            let holder = Some(&charge.request.holder);
            let standing = self.book.standing(&known.account, window.id, holder);
            told[index] = Some(windowed(
                &known.limit,
                window,
                *units,
                standing.unwrap_or_else(|| untouched(&known.limit)),
                empty != Some(place),
                self.log_time,
            ));
            receipts[index] = Some(Receipt {
                counter: CounterId {
                    limit: known.account.limit.clone(),
                    tenant: known.account.tenant.clone(),
                    key: known.account.key.clone(),
                },
                epoch: known.account.epoch,
                window: window.id,
                at: self.log_time,
                entry: Stamp::default(),
                units: *units,
            });
            place += 1;
        }
    }

    fn known(&self, charge: &Charge, at: Timestamp) -> Option<Vec<Known>> {
        let tenant = self.catalogue.view().tenant(&charge.tenant)?;
        let known = charge.items.iter().map(|item| {
            let found = tenant.limit(item.limit.as_str())?;
            let (limit, epoch) = found.at(&item.key, at);
            let is_it = epoch == item.epoch
                && limit.mode == Mode::Strict
                && has_reservations(&limit.rule) == item.window.is_some();
            is_it.then(|| Known {
                limit: Arc::clone(limit),
                id: found.id,
                account: Account {
                    tenant: charge.tenant.clone(),
                    limit: item.limit.clone(),
                    key: item.key.clone(),
                    epoch,
                },
            })
        });
        known.collect()
    }

    /// How many units each item charges: those asked, or what is free of them.
    fn units(&self, charge: &Charge, known: &[Known]) -> Vec<u64> {
        let items = charge.items.iter().zip(known);
        items
            .map(|(item, known)| {
                if !charge.up_to {
                    return item.units;
                }
                let free = match item.window {
                    Some(window) => self
                        .book
                        .preview(
                            self.log_time,
                            &known.account,
                            window,
                            Quota::of(&known.limit.rule),
                        )
                        .map_or(0, |preview| {
                            u64::try_from(preview.free.max(0)).unwrap_or(u64::MAX)
                        }),
                    None => {
                        let item = ledger_item(item, known, 1);
                        self.ledger
                            .standing(&item, &charge.tenant, self.log_time)
                            .remaining
                    }
                };
                item.units.min(free)
            })
            .collect()
    }
}

/// How a window stands that nobody has touched.
fn untouched(limit: &Limit) -> PoolStanding {
    PoolStanding {
        quota: limit.rule.quota(),
        free: limit.rule.quota(),
        ..PoolStanding::default()
    }
}

/// A bucket's amounts and its level at `at`, as its standing tells; `None`: no bucket.
pub fn level_of(rule: &Rule, standing: &PoolStanding, at: Timestamp) -> Option<(Flow, Level)> {
    let flow = *Quota::of(rule).flow()?;
    let drawn = standing.drawn;
    Some((flow, Level { drawn, at }))
}

/// When a bucket that refuses `units` will have them if nobody else takes any; `None`: no bucket, or they are
/// there already in some region's hands.
pub fn bucket_wait(bucket: Option<(Flow, Level)>, units: u64) -> Option<Span> {
    let (flow, level) = bucket?;
    match level.admission(&flow, units) {
        Admission::Wait { retry_after } => Some(retry_after),
        Admission::Pass | Admission::Never => None,
    }
}

/// What a limit with windows says of units that fit or do not.
fn windowed(
    limit: &Limit,
    window: Window,
    units: u64,
    standing: PoolStanding,
    fits: bool,
    at: Timestamp,
) -> ItemOutcome {
    let bucket = level_of(&limit.rule, &standing, at);
    let (reset_after, retry_after) = match &bucket {
        Some((flow, level)) => {
            let wait = bucket_wait(bucket, units).unwrap_or(RETRY_AFTER_MIN);
            (level.wait(flow), wait)
        }
        None => (window.end.since(at), window.end.since(at)),
    };
    let reason = (!fits).then_some(if units > limit.rule.quota() {
        Reason::CostExceedsQuota
    } else {
        Reason::QuotaExceeded
    });
    ItemOutcome {
        decision: if fits {
            Decision::Allow
        } else {
            Decision::Deny
        },
        reason,
        would_deny: false,
        degraded: false,
        decided_by: DecidedBy::Leader,
        standing: Standing {
            used: standing.used,
            remaining: match &bucket {
                Some((flow, level)) => level.standing(flow).remaining,
                None if fits => standing.free,
                None => 0,
            },
            reset_after,
        },
        retry_after: (reason == Some(Reason::QuotaExceeded)).then_some(retry_after),
        delay: Span::ZERO,
        window_start: bucket.is_none().then_some(window.start),
        calendar_length: matches!(limit.rule, Rule::CalendarWindow { .. })
            .then(|| window.end.since(window.start)),
    }
}

/// The items that have windows, with the quota in force.
fn parts(charge: &Charge, known: &[Known], units: &[u64]) -> Vec<(book::Charge, Quota)> {
    let items = charge.items.iter().zip(known).zip(units);
    items
        .filter_map(|((item, known), units)| {
            Some((
                book::Charge {
                    account: known.account.clone(),
                    window: item.window?,
                    holder: charge.request.holder.clone(),
                    totals: told_of(item.told, item.window?.id),
                    units: *units,
                },
                Quota::of(&known.limit.rule),
            ))
        })
        .collect()
}

/// What was told, when it was of this window.
pub fn told_of(told: Option<(WindowId, Totals)>, window: WindowId) -> Totals {
    told.filter(|(of, _)| *of == window)
        .map_or_else(Totals::default, |(_, totals)| totals)
}
