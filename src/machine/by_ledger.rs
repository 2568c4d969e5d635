//! The half of a charge that a ledger on log time decides: its items as requests, and what was said in their places.

use crate::domain::decision::DecidedBy;
use crate::domain::time::Span;
use crate::domain::time::Timestamp;
use crate::ledger::check::Item;
use crate::ledger::check::ItemOutcome;
use crate::ledger::check::Request;
use crate::machine::charge::Charge;
use crate::machine::charge::ChargeItem;
use crate::machine::charge::Known;

pub(super) fn ledger_request<'a>(
    charge: &'a Charge,
    items: &'a [Item<'a>],
    now: Timestamp,
) -> Request<'a> {
    Request {
        now,
        tenant: &charge.tenant,
        items,
        hold: charge.hold,
        keep: true,
        store_failed: false,
        judge_only: false,
        boot: Span::ZERO,
        words: &[],
    }
}

pub(super) fn by_leader(outcome: ItemOutcome) -> ItemOutcome {
    ItemOutcome {
        decided_by: DecidedBy::Leader,
        ..outcome
    }
}

pub(super) fn ledger_item<'a>(item: &'a ChargeItem, known: &'a Known, units: u64) -> Item<'a> {
    Item {
        limit: &known.limit,
        id: known.id,
        epoch: item.epoch,
        key: &item.key,
        cost: units,
    }
}

/// The items that have no window, as the ledger takes them.
pub(super) fn ledger_items<'a>(
    charge: &'a Charge,
    known: &'a [Known],
    units: &[u64],
) -> Vec<Item<'a>> {
    let items = charge.items.iter().zip(known).zip(units);
    items
        .filter(|((item, _), _)| item.window.is_none())
        .map(|((item, known), units)| ledger_item(item, known, *units))
        .collect()
}

/// Puts what the ledger said in the places of its items.
pub(super) fn place<T>(into: &mut [Option<T>], charge: &Charge, values: impl Iterator<Item = T>) {
    let places = into
        .iter_mut()
        .zip(&charge.items)
        .filter(|(_, item)| item.window.is_none());
    for ((place, _), value) in places.zip(values) {
        *place = Some(value);
    }
}
