//! What one limit says, before anything is charged.

use crate::algorithm::Admission;
use crate::algorithm::Standing;
use crate::domain::decision::DecidedBy;
use crate::domain::decision::Decision;
use crate::domain::decision::Reason;
use crate::domain::limit::Limit;
use crate::domain::limit::Mode;
use crate::domain::limit::OnUnavailable;
use crate::domain::time::Span;
use crate::ledger::check::Item;
use crate::ledger::check::ItemOutcome;
use crate::ledger::check::Request;
use crate::ledger::check::UNAVAILABLE_RETRY_AFTER;
use crate::ledger::counter::Counter;
use crate::ledger::mesh::Mesh;
use crate::ledger::sharing::Shared;

/// What `item` is told, before anything is charged, and whether the units are there.
pub(super) fn judge(
    counter: Option<&mut Counter>,
    item: &Item<'_>,
    request: &Request<'_>,
    able: &Able<'_>,
) -> (ItemOutcome, bool) {
    let Some(counter) = counter else {
        // A place that `find` gave under this lock holds a counter; were it not so, nothing is known.
        return (unknown(item), false);
    };
    let now = request.now;
    let limit = item.limit;
    let mut unavailable = request.store_failed || !able.room || !able.reachable;
    let asked = if item.cost == 0 || limit.overdraft {
        1
    } else {
        item.cost
    };
    let mut admission = counter.admission(&limit.rule, asked, now);
    let shared = able.mesh.filter(|mesh| mesh.regions > 1);
    let shared = shared.filter(|_| limit.mode == Mode::Approximate);
    let mut is_minority = false;
    if let Some(mesh) = shared
        && item.cost > 0
    {
        counter.attempt(request.boot, item.cost);
        if admission == Admission::Pass {
            match counter.share(limit, mesh, request.boot, asked, now) {
                Shared::Granted => {}
                Shared::Refused { retry_after } => admission = Admission::Wait { retry_after },
                Shared::Minority => is_minority = true,
            }
        }
    }
    unavailable |= is_minority;
    let is_cut_off = shared.is_some_and(Mesh::is_degraded);
    let admitted = admission == Admission::Pass && !is_minority;
    let mut told = ItemOutcome {
        decision: Decision::Allow,
        reason: None,
        would_deny: false,
        degraded: unavailable || is_cut_off,
        decided_by: if unavailable {
            DecidedBy::Fallback
        } else {
            DecidedBy::Local
        },
        // What is about to be charged is told as it stands afterwards.
        standing: if admitted && !unavailable && item.cost > 0 {
            Standing::default()
        } else {
            counter.standing(&limit.rule, now)
        },
        retry_after: None,
        delay: counter.delay(&limit.rule),
        window_start: counter.window_start(&limit.rule),
        calendar_length: counter.calendar_length(),
    };
    if limit.never_refuses(item.key) {
        return (told, admitted);
    }
    let policy = unavailable.then_some(match limit.on_unavailable {
        _ if is_minority => OnUnavailable::Closed,
        // Use that cannot be counted here cannot be held to a quota of its own.
        OnUnavailable::Local if !able.room => OnUnavailable::Closed,
        policy => policy,
    });
    let refusal = refusal(limit, admission, asked, &told.standing, policy);
    if let Some((reason, retry_after)) = refusal {
        if limit.enforce {
            told.decision = Decision::Deny;
            told.reason = Some(reason);
            told.retry_after = retry_after;
        } else {
            told.would_deny = reason != Reason::Unavailable;
        }
    }
    (told, admitted)
}

/// What this region is able to do for an item.
pub(super) struct Able<'a> {
    /// Keep its counter.
    pub(super) room: bool,
    /// Reach whoever decides it.
    pub(super) reachable: bool,
    /// See the others, where a limit is shared with them.
    pub(super) mesh: Option<&'a Mesh>,
}

/// Why `asked` units may not pass, and when they may; `None`: they may. `policy` is what to follow when this
/// region cannot decide or cannot keep the answer.
fn refusal(
    limit: &Limit,
    admission: Admission,
    asked: u64,
    standing: &Standing,
    policy: Option<OnUnavailable>,
) -> Option<(Reason, Option<Span>)> {
    if admission == Admission::Never {
        // True whatever the counters say, so no failure policy is asked.
        return Some((Reason::CostExceedsQuota, None));
    }
    match policy {
        None => {}
        Some(OnUnavailable::Open) => return None,
        #[cfg(feature = "planted-faults")]
        Some(OnUnavailable::Closed)
            if crate::domain::planted::is(crate::domain::planted::Planted::FailOpenTooWide) =>
        {
            return None;
        }
        Some(OnUnavailable::Closed) => {
            return Some((Reason::Unavailable, Some(UNAVAILABLE_RETRY_AFTER)));
        }
        Some(OnUnavailable::Local) => {
            let within = standing.used.saturating_add(asked) <= limit.fallback_quota;
            if !within && admission == Admission::Pass {
                return Some((
                    Reason::QuotaExceeded,
                    Some(standing.reset_after.max(UNAVAILABLE_RETRY_AFTER)),
                ));
            }
        }
    }
    match admission {
        Admission::Pass => None,
        Admission::Wait { retry_after } => Some((Reason::QuotaExceeded, Some(retry_after))),
        Admission::Never => Some((Reason::CostExceedsQuota, None)),
    }
}

fn unknown(item: &Item<'_>) -> ItemOutcome {
    let closed = item.limit.on_unavailable != OnUnavailable::Open;
    ItemOutcome {
        decision: if closed {
            Decision::Deny
        } else {
            Decision::Allow
        },
        reason: closed.then_some(Reason::Unavailable),
        would_deny: false,
        degraded: true,
        decided_by: DecidedBy::Fallback,
        standing: Standing::default(),
        retry_after: closed.then_some(UNAVAILABLE_RETRY_AFTER),
        delay: Span::ZERO,
        window_start: None,
        calendar_length: None,
    }
}
