//! The ledger of strict limits: how one window was used, region by region, in numbers that anyone can add up.
//!
//! Told from this region's copy of the leader's book, which is the same in every region. What a region has
//! spent since it last told the leader is still in its column `held`.

use std::sync::Arc;

use axum::Json;
use axum::extract::Path;
use axum::extract::RawQuery;
use axum::extract::State;
use axum::extract::rejection::PathRejection;
use axum::http::HeaderMap;
use serde::Deserialize;
use serde::Serialize;
use utoipa::IntoParams;
use utoipa::ToSchema;

use crate::admin::auth;
use crate::admin::auth::Need;
use crate::admin::schema::AdminProblems;
use crate::admin::write;
use crate::domain::limit::Mode;
use crate::domain::name::LimitName;
use crate::domain::name::TenantName;
use crate::grants::book::Proof;
use crate::grants::book::ProofRow;
use crate::http::input;
use crate::http::problem::Code;
use crate::http::problem::Problem;
use crate::http::resolve;
use crate::machine::charge::has_reservations;
use crate::region::state::Region;

/// Which window is asked for.
#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub struct LedgerQuery {
    /// Of which key, when the limit has one.
    #[param(nullable = false)]
    key: Option<String>,
    /// An instant inside the window, as Unix milliseconds or RFC 3339; now when absent.
    #[param(nullable = false)]
    at: Option<String>,
}

/// One window of a strict limit. `pool` (which is `free` and `withheld`) and, over all rows, `granted` −
/// `returned` + `charged` − `refunded` make up `quota`.
#[derive(Debug, Serialize, ToSchema)]
pub struct LedgerAnswer {
    /// Whose limit.
    pub tenant: String,
    /// The limit.
    pub limit: String,
    /// The key, when the limit has one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub key: Option<String>,
    /// From which entry of the log on use is counted.
    pub epoch: u64,
    /// Start of the window, in Unix milliseconds.
    pub window_start_ms: i64,
    /// End of the window, in Unix milliseconds; it belongs to the next one.
    pub window_end_ms: i64,
    /// The quota that was last in force.
    pub quota: u64,
    /// The largest quota that was in force: no more units than this were admitted.
    pub quota_max: u64,
    /// Units used: spent and charged, less what was refunded.
    pub used: u64,
    /// Units that nobody holds; below zero when the quota was lowered below what is out.
    pub free: i64,
    /// Units kept back because they may still be spent in an earlier epoch.
    pub withheld: u64,
    /// Units that ended processes took with them.
    pub stranded: u64,
    /// By region, in the order of their names.
    pub rows: Vec<LedgerRow>,
    /// Whether the numbers add up, process by process and over all regions. Always, unless Highwater is wrong.
    pub adds_up: bool,
}

/// What one region has had to do with a window: `granted` = `spent` + `held` + `returned` + `stranded`.
#[derive(Debug, Serialize, ToSchema)]
pub struct LedgerRow {
    /// The region.
    pub region: String,
    /// Units that it was granted.
    pub granted: u64,
    /// Units that it told to have spent.
    pub spent: u64,
    /// Units that it may still spend, or has spent without having told yet.
    pub held: u64,
    /// Units that it gave back unspent.
    pub returned: u64,
    /// Units that its ended processes took with them.
    pub stranded: u64,
    /// Units that the log charged for it.
    pub charged: u64,
    /// Units given back of what was spent or charged.
    pub refunded: u64,
}

impl LedgerRow {
    fn add(&mut self, row: &ProofRow) {
        let add = |sum: &mut u64, units: u64| *sum = sum.saturating_add(units);
        add(&mut self.granted, row.granted);
        add(&mut self.spent, row.spent);
        add(&mut self.held, row.held);
        add(&mut self.returned, row.returned);
        add(&mut self.stranded, row.stranded);
        add(&mut self.charged, row.charged);
        add(&mut self.refunded, row.refunded);
    }

    const fn of(region: String) -> Self {
        Self {
            region,
            granted: 0,
            spent: 0,
            held: 0,
            returned: 0,
            stranded: 0,
            charged: 0,
            refunded: 0,
        }
    }
}

impl From<&Proof> for LedgerAnswer {
    fn from(proof: &Proof) -> Self {
        let mut rows: Vec<LedgerRow> = Vec::new();
        for row in &proof.rows {
            let name = row.region.as_str();
            if rows.last().is_none_or(|last| last.region != name) {
                rows.push(LedgerRow::of(name.to_owned()));
            }
            if let Some(last) = rows.last_mut() {
                last.add(row);
            }
        }
        let account = &proof.account;
        Self {
            tenant: account.tenant.to_string(),
            limit: account.limit.to_string(),
            key: (!account.key.is_empty()).then(|| account.key.to_string()),
            epoch: account.epoch,
            window_start_ms: proof.window.start.as_unix_ms(),
            window_end_ms: proof.window.end.as_unix_ms(),
            quota: proof.quota,
            quota_max: proof.quota_max,
            used: proof.used(),
            free: i64::try_from(proof.free).unwrap_or(if proof.free < 0 {
                i64::MIN
            } else {
                i64::MAX
            }),
            withheld: proof.withheld,
            stranded: proof.stranded(),
            rows,
            adds_up: proof.adds_up(),
        }
    }
}

/// The proof of one window of a strict limit: who was granted, spent and holds how much. Windows stay for
/// `strict.keep_closed` after their end.
#[utoipa::path(
    get,
    operation_id = "get_ledger",
    path = "/admin/v1/tenants/{tenant}/limits/{limit}/ledger",
    tag = "tenants",
    security(("bearer" = [])),
    params(
        ("tenant" = String, Path, description = "The tenant"),
        ("limit" = String, Path, description = "The limit"),
        LedgerQuery,
    ),
    responses((status = 200, description = "How the window was used", body = LedgerAnswer), AdminProblems)
)]
pub async fn read(
    State(region): State<Arc<Region>>,
    names: Result<Path<(String, String)>, PathRejection>,
    RawQuery(raw): RawQuery,
    headers: HeaderMap,
) -> Result<Json<LedgerAnswer>, Problem> {
    let names = write::names(names);
    let need = names
        .as_ref()
        .map_or(Need::Read, |(tenant, _)| Need::ReadTenant(tenant));
    auth::authorize(&region, &headers, need).await?;
    let (tenant, limit) = names?;
    let tenant: TenantName = write::name("tenant", &tenant)?;
    let limit: LimitName = write::name("limit", &limit)?;
    let wanted: LedgerQuery = input::query(raw.as_deref())?;
    let now = region.clock.now();
    let at = wanted.at.as_deref().map_or(Ok(now), input::instant)?;
    let key = {
        let view = region.view();
        let tenant_view = resolve::tenant(&view, tenant.as_str())?;
        let found = resolve::limit(tenant_view, tenant.as_str(), limit.as_str())?;
        check_kind(&limit, &found.limit)?;
        resolve::key(found, wanted.key.as_deref())?.to_owned()
    };
    let proof = {
        let core = region.replica.core();
        core.machine
            .proof(tenant.as_str(), limit.as_str(), &key, at)
    };
    let proof = proof.filter(|proof| proof.window.end.plus(region.keep_closed) > now);
    let proof = proof.ok_or_else(|| {
        Problem::not_found(
            "no window is known that contains this time: nothing was asked of it, or it ended too long ago",
        )
    })?;
    Ok(Json(LedgerAnswer::from(&proof)))
}

fn check_kind(name: &LimitName, limit: &crate::domain::limit::Limit) -> Result<(), Problem> {
    let detail = if limit.mode != Mode::Strict {
        format!("{name} is not strict: only strict limits have a ledger")
    } else if !has_reservations(&limit.rule) {
        format!(
            "{name} has no windows that units are granted for: the log decides its checks one by one; see GET /v1/usage"
        )
    } else {
        return Ok(());
    };
    Err(Problem::new(422, Code::Invalid, detail))
}
