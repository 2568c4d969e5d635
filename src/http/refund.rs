//! `POST /v1/refund`: units given back without a hold.

use std::sync::Arc;

use axum::body::Body;
use axum::extract::State;
use axum::http::HeaderMap;
use axum::http::Response;
use bytes::Bytes;
use serde::Serialize;
use utoipa::ToSchema;

use crate::domain::limit::Durability;
use crate::domain::limit::Rule;
use crate::domain::time::Timestamp;
use crate::http::access;
use crate::http::access::Caller;
use crate::http::answer::Rendered;
use crate::http::body;
use crate::http::body::RefundBody;
use crate::http::holds;
use crate::http::input;
use crate::http::keyed;
use crate::http::keyed::Keyed;
use crate::http::problem::Problem;
use crate::http::resolve;
use crate::http::resolve::Purpose;
use crate::http::strict;
use crate::ledger::check::Item;
use crate::ledger::idempotency::Operation;
use crate::region::state::Region;
use crate::store::Kept;

/// The answer to a refund.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, ToSchema)]
pub struct RefundAnswer {
    /// Units that were given back.
    pub refunded: u64,
    /// The limit.
    pub limit: String,
    /// The key.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub key: Option<String>,
    /// The region that answered.
    pub region: String,
}

/// Give units back without a hold.
#[utoipa::path(
    post,
    path = "/v1/refund",
    tag = "check",
    params(("Idempotency-Key" = Option<String>, Header, description = "Repeats of this request give back once")),
    request_body(content_type = "application/json", content = crate::http::schema::RefundRequest),
    responses(
        (status = 200, description = "Given back, at most what the window has in use", body = RefundAnswer),
        crate::http::schema::RequestProblems,
        (status = 503, description = "Nothing was given back, or the outcome is unknown", content_type = "application/problem+json", body = Problem),
    )
)]
pub async fn refund(
    State(region): State<Arc<Region>>,
    headers: HeaderMap,
    request: Body,
) -> Response<Body> {
    let parts = async {
        let caller = access::caller(&region, &headers).await?;
        let bytes = input::body(&headers, request, body::BODY_BYTES_MAX).await?;
        let key = input::idempotency_key(&headers)?;
        let region = Arc::clone(&region);
        keyed::to_the_end(async move { refunded(&region, &caller, &bytes, key).await }).await
    };
    holds::respond(parts.await)
}

async fn refunded(
    region: &Arc<Region>,
    caller: &Caller,
    bytes: &Bytes,
    key: Option<String>,
) -> Result<Rendered, Problem> {
    let now = region.clock.now();
    let view = region.view_full();
    let body: RefundBody<'_> = body::parse(bytes)?;
    let tenant = body.tenant.as_str();
    caller.may_check(tenant)?;
    let tenant_view = resolve::tenant(&view, tenant)?;
    let found = resolve::limit(tenant_view, tenant, body.limit.as_str())?;
    let cost = body.cost.map_or(1, |cost| cost.0);
    let item = resolve::item(
        found,
        body.key.as_ref().map(body::Text::as_str),
        cost,
        now,
        Purpose::Hold,
    )?;
    if matches!(item.limit.rule, Rule::Concurrency { .. }) {
        return Err(Problem::malformed(
            "what is held is given back with DELETE /v1/holds/{id}",
        ));
    }
    if let Some(units) = strict::refund(region, tenant, &item, key.as_deref(), bytes).await? {
        return Ok(holds::plain(&RefundAnswer {
            refunded: units,
            limit: item.limit.name.to_string(),
            key: (!item.key.is_empty()).then(|| item.key.to_owned()),
            region: region.name.to_string(),
        }));
    }
    let fingerprint = keyed::fingerprint(bytes);
    let keyed =
        match keyed::begin_or_refuse(region, tenant, Operation::Refund, key, fingerprint, now)? {
            Ok(keyed) => keyed,
            Err(repeat) => return Ok(repeat),
        };
    give_back(region, tenant, &item, keyed.as_ref(), now).await
}

/// Gives units back to a limit that no log decides: at most what the running window has in use here.
///
/// # Errors
/// 503 when the store cannot take it, or does not say whether it did.
pub async fn give_back(
    region: &Arc<Region>,
    tenant: &str,
    item: &Item<'_>,
    keyed: Option<&Keyed>,
    now: Timestamp,
) -> Result<Rendered, Problem> {
    let on_disk = keyed.is_some() || item.limit.durability == Durability::Sync;
    let mut permit = if on_disk {
        region.store.keep_permit().await.ok()
    } else {
        None
    };
    if on_disk && permit.is_none() {
        keyed::abandon(region, keyed);
        return Err(Problem::unavailable(
            "the store cannot be written at the moment; nothing was given back",
        ));
    }
    let (rendered, keeping) = {
        let _order = region.order.lock();
        let moved = region.ledger.refund(item, tenant, now);
        let answer = RefundAnswer {
            refunded: moved.units,
            limit: item.limit.name.to_string(),
            key: (!item.key.is_empty()).then(|| item.key.to_owned()),
            region: region.name.to_string(),
        };
        let rendered = holds::plain(&answer);
        let keeping = permit.take().map(|permit| {
            let answer = keyed.map(|keyed| keyed.answer(region, &rendered, now));
            permit.send(Kept {
                records: moved.record.into_iter().collect(),
                holds: Vec::new(),
                answers: answer.into_iter().collect(),
                now,
            })
        });
        (rendered, keeping)
    };
    if let Some(keeping) = keeping
        && keeping.wait().await.is_err()
    {
        keyed::abandon(region, keyed);
        return Err(holds::unknown_outcome());
    }
    keyed::finish(region, keyed, true, &rendered, now);
    Ok(rendered)
}
