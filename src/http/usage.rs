//! `GET /v1/usage`: what is in use, without taking anything.

use std::collections::BTreeMap;
use std::sync::Arc;

use axum::body::Body;
use axum::extract::RawQuery;
use axum::extract::State;
use axum::http::HeaderMap;
use axum::http::Response;
use axum::response::IntoResponse;
use serde::Deserialize;
use smallvec::smallvec;
use utoipa::IntoParams;

use crate::domain::decision::Decision;
use crate::http::access;
use crate::http::answer;
use crate::http::answer::CheckAnswer;
use crate::http::answer::Frame;
use crate::http::answer::ItemAnswer;
use crate::http::answer::Judged;
use crate::http::answer::Rendered;
use crate::http::input;
use crate::http::problem::Code;
use crate::http::problem::Problem;
use crate::http::resolve;
use crate::http::resolve::Purpose;
use crate::http::schema::UsageAnswer;
use crate::http::strict as by_log;
use crate::ledger::check::Request;
use crate::region::state::Region;
use crate::region::strict;

/// What is asked.
#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub struct UsageQuery {
    /// Whose use.
    pub tenant: String,
    /// Of which limit.
    pub limit: String,
    /// Of which key, if the limit has one.
    #[param(nullable = false)]
    pub key: Option<String>,
    /// In which window: an instant inside it, as Unix milliseconds or RFC 3339. The running one and, of
    /// fixed and calendar limits, the one before are kept.
    #[param(nullable = false)]
    pub at: Option<String>,
}

/// See what is in use.
#[utoipa::path(
    get,
    path = "/v1/usage",
    tag = "check",
    params(UsageQuery),
    responses(
        (status = 200, description = "How the limit stands; nothing is taken", body = UsageAnswer<'static>),
        (status = 400, description = "The request is not of the wanted form", content_type = "application/problem+json", body = Problem),
        (status = 401, description = "No token, or a wrong one", content_type = "application/problem+json", body = Problem),
        (status = 403, description = "The token may not do this", content_type = "application/problem+json", body = Problem),
        (status = 404, description = "No such tenant, limit or window", content_type = "application/problem+json", body = Problem),
    )
)]
pub async fn usage(
    State(region): State<Arc<Region>>,
    RawQuery(query): RawQuery,
    headers: HeaderMap,
) -> Response<Body> {
    let answered = async {
        let caller = access::caller(&region, &headers).await?;
        let query: UsageQuery = input::query(query.as_deref())?;
        caller.may_check(&query.tenant)?;
        look(&region, &query)
    };
    answered
        .await
        .map_or_else(IntoResponse::into_response, Into::into)
}

fn look(region: &Region, query: &UsageQuery) -> Result<Rendered, Problem> {
    let now = region.clock.now();
    let view = region.view();
    let tenant_view = resolve::tenant(&view, &query.tenant)?;
    let found = resolve::limit(tenant_view, &query.tenant, &query.limit)?;
    let item = resolve::item(found, query.key.as_deref(), 0, now, Purpose::Check)?;
    let items = [item];
    let request = Request {
        now,
        tenant: &query.tenant,
        items: &items,
        hold: None,
        keep: false,
        store_failed: false,
        judge_only: false,
        boot: region.clock.boot(),
        words: &[],
    };
    let mut outcome = match strict::parts(&request, false) {
        None => region.ledger.check(&request),
        Some(parts) => region
            .strict_at_once(&request, &parts)
            .ok_or_else(|| Problem::new(500, Code::Internal, "a look waits for nobody"))?,
    };
    if let Some(at) = &query.at {
        let at = input::instant(at)?;
        region.ledger.rewind(&request, at, &mut outcome).ok_or_else(|| {
            Problem::not_found("the use of that window is not kept: the running window and, of fixed and calendar limits, the one before are")
        })?;
    }
    let by_region = by_log::use_by_region(region, &query.tenant, &item, now)
        .unwrap_or_else(|| region.ledger.use_by_region(&item, &query.tenant, now));
    let told = outcome
        .items
        .first()
        .ok_or_else(|| Problem::new(500, Code::Internal, "the limit said nothing"))?;
    let judged = Judged {
        limit: item.limit,
        key: item.key,
        epoch: item.epoch,
        cost: 0,
        staleness: region.staleness(),
        outcome: told,
    };
    let by_region = if by_region.is_empty() {
        BTreeMap::from([(region.name.as_str(), told.standing.used)])
    } else {
        by_region
            .iter()
            .map(|(name, used)| (name.as_str(), *used))
            .collect()
    };
    let answer = UsageAnswer {
        tenant: &query.tenant,
        look: CheckAnswer {
            kind: None,
            title: None,
            status: None,
            detail: None,
            violated_policies: None,
            hold: None,
            expires_ms: None,
            decision: if told.decision == Decision::Allow {
                Decision::Allow
            } else {
                Decision::Deny
            },
            region: region.name.as_str(),
            delay_ms: told.delay.as_ms_ceil(),
            results: smallvec![ItemAnswer::new(&judged)],
        },
        by_region,
    };
    let frame = Frame {
        region: region.name.as_str(),
        now,
        styles: region.header_styles,
        hold: None,
        in_batch: false,
    };
    Ok(Rendered {
        status: 200,
        headers: answer::standing_headers(&judged, &frame),
        body: serde_json::to_vec(&answer).unwrap_or_default(),
    })
}
