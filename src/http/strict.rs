//! Holds, settles and refunds on strict limits: what the log has a part in.
//!
//! What goes back to a strict limit, and what is charged late, is one entry each, named by the hold or by the
//! caller's key: the same settle again, after a crash or to another leader, moves nothing twice.

use std::collections::BTreeMap;
use std::sync::Arc;

use bytes::Bytes;

use crate::catalogue::view::View;
use crate::domain::limit::Limit;
use crate::domain::limit::Mode;
use crate::domain::limit::Rule;
use crate::domain::name::RegionName;
use crate::domain::time::Span;
use crate::domain::time::Timestamp;
use crate::http::holds;
use crate::http::keyed;
use crate::http::problem::Code;
use crate::http::problem::Problem;
use crate::ledger::check::Item;
use crate::ledger::hold::HoldRecord;
use crate::ledger::hold::Receipt;
use crate::ledger::idempotency::Operation;
use crate::machine::charge::Charge;
use crate::machine::charge::ChargeItem;
use crate::machine::charge::Charged;
use crate::machine::charge::Keyed;
use crate::machine::charge::has_reservations;
use crate::machine::command::Command;
use crate::machine::command::Reply;
use crate::machine::give::GiveBack;
use crate::machine::give::Given;
use crate::machine::give::Renew;
use crate::machine::give::Source;
use crate::region::proposals;
use crate::region::proposals::ProposeError;
use crate::region::state::Region;
use crate::region::strict;

/// How long the log remembers what a hold was settled to: longer than any hold lives.
const SETTLE_REMEMBERED: Span = Span::from_seconds(26 * 3600);
/// How long a move may take: a fail-over, and more.
const MOVE_DEADLINE: Span = Span::from_seconds(5);

/// What moved for one receipt of a hold.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Moved {
    /// Units that went back.
    pub given_back: u64,
    /// Units that were charged on top.
    pub charged: u64,
}

fn is_strict(limit: &Limit, key: &str) -> bool {
    limit.mode == Mode::Strict && limit.enforce && !limit.never_refuses(key)
}

/// The problem of a move that the log did not make.
fn problem_of(error: &ProposeError) -> Problem {
    match error {
        ProposeError::OutcomeUnknown(_) => Problem {
            retry_after_seconds: Some(1),
            ..Problem::new(
                503,
                Code::OutcomeUnknown,
                "the leader did not say whether the units were moved; repeat the same request",
            )
        },
        ProposeError::Unavailable(why) => Problem::unavailable(format!(
            "no leader of strict limits can be reached ({why}); nothing was moved"
        )),
        ProposeError::Refused(refused) => Problem::unavailable(refused.to_string()),
    }
}

fn mismatch() -> Problem {
    Problem::new(
        409,
        Code::HoldSettled,
        "this hold was settled or released already, with another request",
    )
}

fn strange(reply: &Reply) -> Problem {
    Problem::unavailable(format!("the leader answered something else: {reply:?}"))
}

/// Gives back to strict limits what of a hold was not used, and charges what was used beyond it as far as
/// units are free; by place among the receipts. `costs` says what of each stays charged.
///
/// # Errors
/// When the log cannot be reached or does not say what became of it; the same settle may be sent again.
pub async fn settle(
    region: &Arc<Region>,
    view: &View,
    hold: &HoldRecord,
    costs: &[u64],
    fingerprint: u128,
    now: Timestamp,
) -> Result<BTreeMap<usize, Moved>, Problem> {
    let mut moved = BTreeMap::new();
    for (place, (receipt, cost)) in hold.receipts.iter().zip(costs).enumerate() {
        let Some((_, limit)) = holds::limit_of(view, receipt, now) else {
            continue;
        };
        if !is_strict(&limit, &receipt.counter.key) {
            continue;
        }
        let (less, more) = holds::difference(&limit.rule, receipt.units, *cost);
        let name = |what: &str| Keyed {
            operation: Operation::Settle,
            key: format!("{}.{:032x}.{place}.{what}", region.name, hold.key.0),
            fingerprint,
            retention: SETTLE_REMEMBERED,
        };
        let mut moves = Moved::default();
        if less > 0 {
            let source = Source::Charge {
                receipt: receipt.clone(),
                hold: hold.key.0,
            };
            let tenant = &receipt.counter.tenant;
            moves.given_back =
                give(region, tenant, less, source, Some(name("back")), receipt).await?;
        }
        if more > 0 {
            moves.charged = charge_late(region, view, receipt, more, name("late"), now).await?;
        }
        moved.insert(place, moves);
    }
    Ok(moved)
}

/// What this region has told of its own units of a receipt's window.
fn told(
    region: &Region,
    receipt: &Receipt,
) -> Option<(
    crate::domain::time::WindowId,
    crate::grants::account::Totals,
)> {
    let account = crate::grants::account::Account {
        tenant: receipt.counter.tenant.as_str().into(),
        limit: receipt.counter.limit.clone(),
        key: receipt.counter.key.as_str().into(),
        epoch: receipt.epoch,
    };
    region
        .reservations
        .with(&account, region.clock.boot(), |reservation, now| {
            reservation.take_for_charge(0, now)
        })
        .flatten()
}

async fn give(
    region: &Arc<Region>,
    tenant: &str,
    units: u64,
    source: Source,
    key: Option<Keyed>,
    receipt: &Receipt,
) -> Result<u64, Problem> {
    let request = region.requests.next(region.reservations.holder());
    let number = request.number;
    let command = Command::GiveBack(GiveBack {
        request,
        keyed: key,
        tenant: tenant.into(),
        units,
        source,
        told: told(region, receipt),
    });
    let replied = region.propose_until_known(command, MOVE_DEADLINE).await;
    region.requests.answered(number);
    match replied.map(proposals::given) {
        Ok(Ok(Given::Units(units) | Given::Repeated(units))) => Ok(units),
        Ok(Ok(Given::Mismatch)) => Err(mismatch()),
        // The limit began anew: there is nothing to give back to.
        Ok(Ok(Given::Stale { .. })) => Ok(0),
        Ok(Ok(Given::NotTaken(why))) => Err(Problem::unavailable(why)),
        Ok(Err(reply)) => Err(strange(&reply)),
        Err(error) => Err(problem_of(&error)),
    }
}

/// Charges units that were used already, as far as they are free.
async fn charge_late(
    region: &Arc<Region>,
    view: &View,
    receipt: &Receipt,
    units: u64,
    key: Keyed,
    now: Timestamp,
) -> Result<u64, Problem> {
    let counter = &receipt.counter;
    let found = view
        .tenant(&counter.tenant)
        .and_then(|tenant| tenant.limit(counter.limit.as_str()));
    let Some(found) = found else { return Ok(0) };
    let (limit, epoch) = found.at(&counter.key, now);
    let request = region.requests.next(region.reservations.holder());
    let number = request.number;
    let command = Command::Charge(Charge {
        request,
        tenant: counter.tenant.as_str().into(),
        items: vec![ChargeItem {
            limit: counter.limit.clone(),
            key: counter.key.as_str().into(),
            epoch,
            units,
            window: None,
            told: told(region, receipt),
        }],
        hold: None,
        keyed: Some(key),
        local: Vec::new(),
        up_to: true,
    });
    let replied = region.propose_until_known(command, MOVE_DEADLINE).await;
    region.requests.answered(number);
    match replied.map(proposals::charged) {
        Ok(Ok(Charged::Allowed(answered) | Charged::Repeated(answered))) => {
            let charged = answered.receipts.first().map_or(0, |receipt| receipt.units);
            let item = Item {
                limit,
                id: found.id,
                epoch,
                key: &counter.key,
                cost: charged,
            };
            region.count(&counter.tenant, item, now);
            Ok(charged)
        }
        Ok(Ok(Charged::Refused(_) | Charged::Stale { .. })) => Ok(0),
        Ok(Ok(Charged::Mismatch)) => Err(mismatch()),
        Ok(Ok(Charged::NotTaken(why))) => Err(Problem::unavailable(why)),
        Ok(Err(reply)) => Err(strange(&reply)),
        Err(error) => Err(problem_of(&error)),
    }
}

/// Lets the leases of strict concurrency limits last until `ends`.
///
/// # Errors
/// When the log cannot be reached or does not say whether they do.
pub async fn renew(
    region: &Arc<Region>,
    view: &View,
    hold: &HoldRecord,
    ends: Timestamp,
    now: Timestamp,
) -> Result<(), Problem> {
    let receipts: Vec<Receipt> = hold
        .receipts
        .iter()
        .filter(|receipt| {
            holds::limit_of(view, receipt, now).is_some_and(|(_, limit)| {
                is_strict(&limit, &receipt.counter.key)
                    && matches!(limit.rule, Rule::Concurrency { .. })
            })
        })
        .cloned()
        .collect();
    if receipts.is_empty() {
        return Ok(());
    }
    let request = region.requests.next(region.reservations.holder());
    let number = request.number;
    let command = Command::Renew(Renew {
        request,
        receipts,
        hold: hold.key.0,
        expires_at: ends,
    });
    let replied = region.propose_until_known(command, MOVE_DEADLINE).await;
    region.requests.answered(number);
    match replied.map(proposals::given) {
        Ok(Ok(_)) => Ok(()),
        Ok(Err(reply)) => Err(strange(&reply)),
        Err(error) => Err(problem_of(&error)),
    }
}

/// Gives units back to a strict limit without a hold. `None`: the limit is not strict.
///
/// # Errors
/// 400 without an `Idempotency-Key`, 422 when it was used with another body, 503 when the log cannot be
/// reached or does not say what became of it.
pub async fn refund(
    region: &Arc<Region>,
    tenant: &str,
    item: &Item<'_>,
    key: Option<&str>,
    body: &Bytes,
) -> Result<Option<u64>, Problem> {
    if !is_strict(item.limit, item.key) {
        return Ok(None);
    }
    let Some(key) = key else {
        return Err(Problem::malformed(
            "Idempotency-Key: a refund on a strict limit needs one, so that it never counts twice",
        ));
    };
    let account = strict::account(tenant, item);
    let told = region
        .reservations
        .with(&account, region.clock.boot(), |reservation, now| {
            reservation.take_for_charge(0, now)
        })
        .flatten();
    let request = region.requests.next(region.reservations.holder());
    let number = request.number;
    let command = Command::GiveBack(GiveBack {
        request,
        keyed: Some(Keyed {
            operation: Operation::Refund,
            key: key.to_owned(),
            fingerprint: keyed::fingerprint(body),
            retention: region.retention,
        }),
        tenant: tenant.into(),
        units: item.cost,
        source: Source::Use {
            limit: item.limit.name.clone(),
            key: item.key.into(),
            epoch: item.epoch,
            window: None,
        },
        told,
    });
    let replied = region.propose_until_known(command, MOVE_DEADLINE).await;
    region.requests.answered(number);
    match replied.map(proposals::given) {
        Ok(Ok(Given::Units(units) | Given::Repeated(units))) => Ok(Some(units)),
        Ok(Ok(Given::Mismatch)) => Err(keyed::mismatch()),
        Ok(Ok(Given::Stale { .. })) => Err(crate::http::check::changing()),
        Ok(Ok(Given::NotTaken(why))) => Err(Problem::unavailable(why)),
        Ok(Err(reply)) => Err(strange(&reply)),
        Err(error) => Err(problem_of(&error)),
    }
}

/// Use by region of the running window of a strict limit, as the log and this region know it. `None`: it has
/// no windows in the book that end.
pub fn use_by_region(
    region: &Region,
    tenant: &str,
    item: &Item<'_>,
    now: Timestamp,
) -> Option<BTreeMap<RegionName, u64>> {
    if !is_strict(item.limit, item.key) || !has_reservations(&item.limit.rule) {
        return None;
    }
    let account = strict::account(tenant, item);
    let view = region
        .reservations
        .with(&account, region.clock.boot(), |reservation, now| {
            reservation.view(now)
        })
        .flatten();
    let core = region.replica.core();
    let book = core.machine.book();
    let window = match &view {
        Some(view) => view.window,
        None => core.machine.seen(&account, now)?.0,
    };
    if window.is_endless() {
        // What a bucket's regions spent since it was last forgotten is not what is in use now.
        return None;
    }
    let mut by_region = BTreeMap::new();
    for row in book
        .proof(&account, window.id)
        .into_iter()
        .flat_map(|proof| proof.rows)
    {
        let is_own = row.incarnation == Some(region.reservations.holder().incarnation)
            && row.region == region.name;
        // What this process spent it knows better than the log.
        let spent = match view {
            Some(view) if is_own => view.spent.max(row.spent),
            _ => row.spent,
        };
        let used = spent
            .saturating_add(row.charged)
            .saturating_sub(row.refunded);
        *by_region.entry(row.region).or_insert(0) += used;
    }
    if let Some(view) = view {
        by_region.entry(region.name.clone()).or_insert(view.spent);
    }
    Some(by_region)
}
