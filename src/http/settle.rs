//! `POST /v1/holds/{id}/settle` and `DELETE /v1/holds/{id}`: the end of a hold.
//!
//! A settle or release that must be on disk is refused before it changes anything when the store is known
//! to have failed. Should the store fail in the middle, the change stands in memory, is written when the
//! store is back, and the answer says that the outcome is unknown: the same request again gets the answer.

use std::collections::BTreeMap;
use std::sync::Arc;

use axum::body::Body;
use axum::extract::Path;
use axum::extract::State;
use axum::http::HeaderMap;
use axum::http::Response;
use serde::Serialize;
use utoipa::ToSchema;

use crate::algorithm::concurrency::Lease;
use crate::catalogue::view::View;
use crate::domain::time::Timestamp;
use crate::http::access;
use crate::http::access::Caller;
use crate::http::answer::Rendered;
use crate::http::body;
use crate::http::body::SettleBody;
use crate::http::holds;
use crate::http::input;
use crate::http::keyed;
use crate::http::problem::Code;
use crate::http::problem::Problem;
use crate::http::strict;
use crate::http::strict::Moved;
use crate::ledger::check::Item;
use crate::ledger::hold::HoldKey;
use crate::ledger::hold::HoldRecord;
use crate::ledger::hold::HoldState;
use crate::ledger::hold::Receipt;
use crate::ledger::holds::REMEMBERED;
use crate::ledger::holds::TTL_MAX;
use crate::ledger::idempotency::Operation;
use crate::region::state::Region;
use crate::store::Kept;
use crate::usage::record::CounterRecord;

/// Stands for the body of a release, which has none.
const RELEASE: &[u8] = b"release";

/// What became of one limit of a hold.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, ToSchema)]
pub struct SettledItem {
    /// The limit.
    pub limit: String,
    /// The key.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub key: Option<String>,
    /// Units that the hold took.
    pub taken: u64,
    /// Units that stay charged.
    pub cost: u64,
    /// Units that were given back. Less than taken − cost when their window is over.
    pub given_back: u64,
    /// Units beyond those taken that could not be charged.
    pub uncharged: u64,
}

/// The answer to a settle or a release.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, ToSchema)]
pub struct SettledAnswer {
    /// The hold.
    pub hold: String,
    /// The region that answered.
    pub region: String,
    /// What became of each limit.
    pub results: Vec<SettledItem>,
}

/// Say how many of the held units were used.
#[utoipa::path(
    post,
    path = "/v1/holds/{id}/settle",
    tag = "holds",
    params(
        ("id" = String, Path, description = "The hold"),
        ("Idempotency-Key" = Option<String>, Header, description = "Repeats of this request settle once"),
    ),
    request_body(content_type = "application/json", content = crate::http::schema::SettleRequest),
    responses(
        (status = 200, description = "Settled", body = SettledAnswer),
        crate::http::schema::HoldProblems,
    )
)]
pub async fn settle(
    State(region): State<Arc<Region>>,
    Path(id): Path<String>,
    headers: HeaderMap,
    request: Body,
) -> Response<Body> {
    let parts = async {
        let caller = access::caller(&region, &headers).await?;
        let bytes = input::body(&headers, request, body::BODY_BYTES_MAX).await?;
        let key = input::idempotency_key(&headers)?;
        let region = Arc::clone(&region);
        keyed::to_the_end(async move { settled(&region, &caller, &id, &bytes, key).await }).await
    };
    holds::respond(parts.await)
}

async fn settled(
    region: &Arc<Region>,
    caller: &Caller,
    id: &str,
    bytes: &[u8],
    key: Option<String>,
) -> Result<Rendered, Problem> {
    let body: SettleBody<'_> = body::parse(bytes)?;
    if body.cost.is_some() == body.checks.is_some() {
        return Err(Problem::malformed(
            "say either cost (a hold of one limit) or checks (costs by limit)",
        ));
    }
    close(region, caller, id, bytes, key, |receipts| {
        wanted(&body, receipts)
    })
    .await
}

/// Give all held units back.
#[utoipa::path(
    delete,
    path = "/v1/holds/{id}",
    tag = "holds",
    params(("id" = String, Path, description = "The hold")),
    responses(
        (status = 200, description = "Given back", body = SettledAnswer),
        crate::http::schema::HoldProblems,
    )
)]
pub async fn release(
    State(region): State<Arc<Region>>,
    Path(id): Path<String>,
    headers: HeaderMap,
) -> Response<Body> {
    let parts = async {
        let caller = access::caller(&region, &headers).await?;
        let region = Arc::clone(&region);
        keyed::to_the_end(async move {
            close(&region, &caller, &id, RELEASE, None, |receipts| {
                Ok(vec![0; receipts.len()])
            })
            .await
        })
        .await
    };
    holds::respond(parts.await)
}

/// Settles or releases a hold; `costs` says what of each receipt stays charged.
async fn close(
    region: &Arc<Region>,
    caller: &Caller,
    id: &str,
    bytes: &[u8],
    key: Option<String>,
    costs: impl Fn(&[Receipt]) -> Result<Vec<u64>, Problem>,
) -> Result<Rendered, Problem> {
    let hold_key = holds::hold_key(region, id)?;
    let now = region.clock.now();
    let view = region.view_full();
    let fingerprint = keyed::fingerprint(bytes);
    let tenant = tenant_of(region, caller, hold_key)?;
    let begun = keyed::begin_or_refuse(region, &tenant, Operation::Settle, key, fingerprint, now)?;
    let keyed = match begun {
        Ok(keyed) => keyed,
        Err(repeat) => return Ok(repeat),
    };
    let terms = Closing {
        key: hold_key,
        fingerprint,
        now,
    };
    let by_log = match moved_by_log(region, caller, &view, &terms, &costs).await {
        Ok(by_log) => by_log,
        Err(problem) => {
            keyed::abandon(region, keyed.as_ref());
            return Err(problem);
        }
    };
    let mut permit = region.store.keep_permit().await.ok();
    let store_failed = permit.is_none();
    let order = region.order.lock();
    let done = region.holds.with(hold_key, |hold| {
        if let HoldState::Closed {
            fingerprint: known,
            answer,
        } = &hold.state
            && *known == fingerprint
        {
            return Ok((answer.to_vec(), Vec::new(), None));
        }
        holds::open_hold(hold, caller, now)?;
        let costs = costs(&hold.receipts)?;
        let limits: Vec<_> = hold
            .receipts
            .iter()
            .map(|receipt| holds::limit_of(&view, receipt, now))
            .collect();
        let on_disk =
            keyed.is_some() || holds::any_sync(limits.iter().flatten().map(|(_, limit)| &**limit));
        if on_disk && store_failed {
            return Err(Problem::unavailable(
                "the store cannot be written at the moment; nothing was changed",
            ));
        }
        let (results, records) = move_units(region, &view, hold, &costs, &by_log, now);
        let answer = SettledAnswer {
            hold: id.to_owned(),
            region: region.name.to_string(),
            results,
        };
        let body = serde_json::to_vec(&answer).unwrap_or_default();
        hold.state = HoldState::Closed {
            fingerprint,
            answer: body.clone().into_boxed_slice(),
        };
        hold.forget_at = now
            .max(hold.expires_at.min(now.plus(TTL_MAX)))
            .plus(REMEMBERED);
        hold.version += 1;
        Ok((body, records, on_disk.then(|| hold.clone())))
    });
    let (body, records, record) = match done.unwrap_or_else(|| Err(holds::no_hold())) {
        Ok(done) => done,
        Err(problem) => {
            keyed::abandon(region, keyed.as_ref());
            return Err(problem);
        }
    };
    let rendered = Rendered {
        status: 200,
        headers: holds::json_header(),
        body,
    };
    let answer = keyed
        .as_ref()
        .map(|keyed| keyed.answer(region, &rendered, now));
    let keeping = record.and_then(|record| {
        let kept = Kept {
            records,
            holds: vec![record],
            answers: answer.into_iter().collect(),
            now,
        };
        permit.take().map(|permit| permit.send(kept))
    });
    drop(order);
    if let Some(keeping) = keeping
        && keeping.wait().await.is_err()
    {
        keyed::abandon(region, keyed.as_ref());
        return Err(holds::unknown_outcome());
    }
    keyed::finish(region, keyed.as_ref(), true, &rendered, now);
    Ok(rendered)
}

/// Whose hold it is.
fn tenant_of(region: &Region, caller: &Caller, hold_key: HoldKey) -> Result<String, Problem> {
    let tenant = region.holds.with(hold_key, |hold| hold.tenant.clone());
    tenant
        .filter(|tenant| caller.owns(tenant))
        .ok_or_else(holds::no_hold)
}

/// Which hold is closed, by which request, and when.
struct Closing {
    key: HoldKey,
    fingerprint: u128,
    now: Timestamp,
}

/// Moves what the log has a part in. It comes first: it is named by the hold, so a repeat moves nothing twice.
async fn moved_by_log(
    region: &Arc<Region>,
    caller: &Caller,
    view: &View,
    closing: &Closing,
    costs: impl Fn(&[Receipt]) -> Result<Vec<u64>, Problem>,
) -> Result<BTreeMap<usize, Moved>, Problem> {
    let open = region.holds.with(closing.key, |hold| {
        holds::open_hold(hold, caller, closing.now).map(|()| hold.clone())
    });
    // Closed, over or gone: whoever closes it finds that out.
    let Some(Ok(hold)) = open else {
        return Ok(BTreeMap::new());
    };
    let costs = costs(&hold.receipts)?;
    strict::settle(
        region,
        view,
        &hold,
        &costs,
        closing.fingerprint,
        closing.now,
    )
    .await
}

/// Gives back or charges what a hold's costs differ from what it took.
fn move_units(
    region: &Region,
    view: &View,
    hold: &HoldRecord,
    costs: &[u64],
    by_log: &BTreeMap<usize, Moved>,
    now: Timestamp,
) -> (Vec<SettledItem>, Vec<CounterRecord>) {
    let mut results = Vec::with_capacity(costs.len());
    let mut records = Vec::new();
    for (place, (receipt, cost)) in hold.receipts.iter().zip(costs).enumerate() {
        let counter = &receipt.counter;
        let mut result = SettledItem {
            limit: counter.limit.to_string(),
            key: (!counter.key.is_empty()).then(|| counter.key.to_string()),
            taken: receipt.units,
            cost: *cost,
            given_back: 0,
            uncharged: 0,
        };
        if let Some((limit_id, limit)) = holds::limit_of(view, receipt, now) {
            let (less, more) = holds::difference(&limit.rule, receipt.units, *cost);
            let moved_by_log = by_log.get(&place);
            if less > 0 {
                let moved = region
                    .ledger
                    .give_back(limit_id, &limit, receipt, less, hold.key.0, now);
                result.given_back = moved.units;
                records.extend(moved.record);
            }
            if let Some(moved) = moved_by_log {
                // The log's word counts; the counters here only tell what this region used.
                result.given_back = moved.given_back;
                result.uncharged = more.saturating_sub(moved.charged);
            } else if more > 0 {
                let tenant_view = view.tenant(&counter.tenant);
                let found = tenant_view.and_then(|tenant| tenant.limit(counter.limit.as_str()));
                let epoch = found.map_or(receipt.epoch, |found| found.at(&counter.key, now).1);
                let item = Item {
                    limit: &limit,
                    id: limit_id,
                    epoch,
                    key: &counter.key,
                    cost: more,
                };
                let lease = Lease {
                    hold: hold.key.0,
                    expires_at: hold.expires_at,
                    units: 0,
                };
                records.extend(
                    region
                        .ledger
                        .charge_late(&item, &counter.tenant, lease, now)
                        .record,
                );
            }
        }
        results.push(result);
    }
    (results, records)
}

/// What stays charged of each receipt by a settle's body.
fn wanted(body: &SettleBody<'_>, receipts: &[Receipt]) -> Result<Vec<u64>, Problem> {
    if let Some(cost) = body.cost {
        if receipts.len() != 1 {
            return Err(Problem::malformed(
                "this hold has several limits: say checks, with a cost for each",
            ));
        }
        return Ok(vec![cost.0]);
    }
    let mut costs: Vec<u64> = receipts.iter().map(|receipt| receipt.units).collect();
    let mut named = vec![false; receipts.len()];
    for item in body.checks.iter().flat_map(|checks| &checks.0) {
        let key = item.key.as_ref().map_or("", body::Text::as_str);
        let index = receipts
            .iter()
            .position(|receipt| {
                receipt.counter.limit.as_str() == item.limit.as_str() && receipt.counter.key == key
            })
            .ok_or_else(|| {
                Problem::malformed(format!(
                    "the hold took nothing of limit \"{}\" for this key",
                    item.limit.as_str()
                ))
            })?;
        if named[index] {
            return Err(Problem::new(
                400,
                Code::DuplicateCheck,
                format!("limit \"{}\" stands twice", item.limit.as_str()),
            ));
        }
        named[index] = true;
        costs[index] = item.cost.0;
    }
    Ok(costs)
}
