//! What the leader of strict limits takes from the machine below it: limits and windows for what regions ask.

use crate::domain::limit::Rule;
use crate::domain::time::Timestamp;
use crate::domain::time::Window;
use crate::grants::account::Account;
use crate::grants::account::Quota;
use crate::grants::book;
use crate::grants::leader::Action;
use crate::grants::leader::Leader;
use crate::grants::leader::Now;
use crate::grants::leader::Part;
use crate::grants::message::Ask;
use crate::grants::message::Refused;
use crate::grants::message::ToRegion;
use crate::grants::message::Why;
use crate::machine::Machine;
use crate::machine::charge::Charge;
use crate::machine::charge::has_reservations;
use crate::machine::charge::told_of;

/// The window of `rule` that contains `at`; `None` when the rule has no windows that end.
pub fn window_of(rule: &Rule, at: Timestamp) -> Option<Window> {
    match rule {
        Rule::FixedWindow { window, .. } => Some(Window::aligned(at, *window)),
        Rule::CalendarWindow { calendar, .. } => Some(calendar.window(at)),
        _ => None,
    }
}

/// The window of an account that contains `at`; of a bucket the one that it has.
pub fn window(
    leader: &mut Leader,
    machine: &Machine,
    now: Now,
    (account, rule): (&Account, &Rule),
    at: Timestamp,
) -> Option<Window> {
    if let quota @ Quota::Bucket(_) = Quota::of(rule) {
        return Some(leader.bucket_window(now, machine.book(), account, quota));
    }
    window_of(rule, at)
}

/// A region asks for units; it is told when the limit is another one by now.
pub fn ask(leader: &mut Leader, machine: &Machine, now: Now, ask: &Ask, out: &mut Vec<Action>) {
    let found = machine.limit_of(&ask.account, now.log);
    let known = found.and_then(|(_, limit)| {
        let at = ask.at.unwrap_or(now.log);
        let window = window(leader, machine, now, (&ask.account, &limit.rule), at)?;
        Some((window, Quota::of(&limit.rule)))
    });
    match known {
        Some((window, quota)) => leader.ask(now, machine.book(), ask, window, quota, out),
        None => {
            let refused = Refused {
                holder: ask.holder.clone(),
                account: ask.account.clone(),
                why: Why::Changed {
                    version: machine.catalogue().version(),
                },
                stamp: leader.stamp(now, &ask.holder, Some(ask.sent_boot)),
            };
            out.push(Action::Tell(ask.holder.clone(), ToRegion::Refused(refused)));
        }
    }
}

/// Notes the running window of every item that has windows, and gives their parts of the charge.
pub fn parts(leader: &mut Leader, machine: &Machine, charge: &mut Charge, now: Now) -> Vec<Part> {
    let mut parts = Vec::new();
    for item in &mut charge.items {
        let account = Account {
            tenant: charge.tenant.clone(),
            limit: item.limit.clone(),
            key: item.key.clone(),
            epoch: item.epoch,
        };
        let Some((_, limit)) = machine.limit_of(&account, now.log) else {
            continue;
        };
        if !has_reservations(&limit.rule) {
            continue;
        }
        item.window = window(leader, machine, now, (&account, &limit.rule), now.log);
        if let Some(window) = item.window {
            parts.push(Part {
                charge: book::Charge {
                    account,
                    window,
                    holder: charge.request.holder.clone(),
                    totals: told_of(item.told, window.id),
                    units: item.units,
                },
                quota: Quota::of(&limit.rule),
            });
        }
    }
    parts
}
