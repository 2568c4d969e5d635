//! Planned moves: another leader, a region more or less, and who should lead. Whichever region is asked, the
//! leader carries them out; an answer of 200 says that it is done.

use std::sync::Arc;

use axum::Json;
use axum::body::Body;
use axum::extract::Path;
use axum::extract::State;
use axum::extract::rejection::PathRejection;
use axum::http::HeaderMap;
use serde::Deserialize;
use serde::Deserializer;
use serde::Serialize;
use utoipa::ToSchema;

use crate::admin::auth;
use crate::admin::auth::Need;
use crate::admin::schema::AdminProblems;
use crate::admin::write;
use crate::catalogue::change::FieldError;
use crate::catalogue::path::FieldPath;
use crate::consensus::Membership;
use crate::domain::name::RegionName;
use crate::http::body;
use crate::http::input;
use crate::http::problem::Code;
use crate::http::problem::Problem;
use crate::region::config;
use crate::region::moves::MoveError;
use crate::region::proposals::ProposeError;
use crate::region::state::Region;

type Names<T> = Result<Path<T>, PathRejection>;

/// Who is to lead.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct LeaderRequest {
    /// A region with a vote.
    pub region: String,
}

/// Who leads.
#[derive(Debug, Serialize, ToSchema)]
pub struct LeaderAnswer {
    /// The region that leads.
    pub leader: String,
    /// Since this term.
    pub term: u64,
}

/// Hand the lead to a region. Nothing is lost; strict checks that need the leader wait for a moment.
#[utoipa::path(
    post,
    path = "/admin/v1/cluster/leader",
    tag = "operations",
    security(("bearer" = [])),
    request_body = LeaderRequest,
    responses((status = 200, description = "It leads", body = LeaderAnswer), AdminProblems)
)]
pub async fn transfer(
    State(region): State<Arc<Region>>,
    headers: HeaderMap,
    request: Body,
) -> Result<Json<LeaderAnswer>, Problem> {
    auth::authorize(&region, &headers, Need::Admin).await?;
    let bytes = input::body(&headers, request, body::BODY_BYTES_MAX).await?;
    let wanted: LeaderRequest = body::parse(&bytes)?;
    let to = region_name(&wanted.region)?;
    let moving = Arc::clone(&region);
    carried_out(async move { moving.transfer(to).await }).await?;
    let status = region
        .consensus()
        .map(crate::consensus::Consensus::status)
        .unwrap_or_default();
    Ok(Json(LeaderAnswer {
        leader: wanted.region,
        term: status.term,
    }))
}

/// Who should lead.
#[derive(Debug, Deserialize, Serialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct LeaderPreference {
    /// A region with a vote; null: any may lead.
    #[serde(deserialize_with = "present")]
    #[schema(required)]
    pub region: Option<String>,
}

/// A field that must be there: without it a typing error would take a preference away.
fn present<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<String>, D::Error> {
    Option::deserialize(deserializer)
}

/// Say which region should lead: it is handed the lead when it is up and has everything.
#[utoipa::path(
    put,
    path = "/admin/v1/cluster/leader-preference",
    tag = "operations",
    security(("bearer" = [])),
    request_body = LeaderPreference,
    responses((status = 200, description = "It is noted in the log", body = LeaderPreference), AdminProblems)
)]
pub async fn prefer(
    State(region): State<Arc<Region>>,
    headers: HeaderMap,
    request: Body,
) -> Result<Json<LeaderPreference>, Problem> {
    auth::authorize(&region, &headers, Need::Admin).await?;
    let bytes = input::body(&headers, request, body::BODY_BYTES_MAX).await?;
    let wanted: LeaderPreference = body::parse(&bytes)?;
    let preferred = wanted.region.as_deref().map(region_name).transpose()?;
    carried_out(async move { region.prefer(preferred).await }).await?;
    Ok(Json(wanted))
}

/// A region that is to be taken in.
#[derive(Debug, Default, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct RegionRequest {
    /// Its peer listener, `http://HOST:PORT`; may be left out when it is among the configured peers.
    #[serde(default)]
    #[schema(nullable = false)]
    pub url: Option<String>,
}

/// Who belongs to the cluster.
#[derive(Debug, Serialize, ToSchema)]
pub struct MembersAnswer {
    /// Regions with a vote. Odd in number, but for two regions.
    pub voters: Vec<String>,
    /// Regions without one.
    pub learners: Vec<String>,
}

impl From<&Membership> for MembersAnswer {
    fn from(members: &Membership) -> Self {
        let names = |members: &[crate::consensus::Member]| {
            members
                .iter()
                .map(|member| member.region.to_string())
                .collect()
        };
        Self {
            voters: names(&members.voters),
            learners: names(&members.learners),
        }
    }
}

/// Take a region into the cluster. It must run, with this cluster's regions among its peers. It gets everything,
/// then a vote where that leaves the number of votes odd.
#[utoipa::path(
    put,
    path = "/admin/v1/cluster/regions/{region}",
    tag = "operations",
    security(("bearer" = [])),
    params(("region" = String, Path, description = "The region")),
    request_body = RegionRequest,
    responses((status = 200, description = "It belongs to the cluster", body = MembersAnswer), AdminProblems)
)]
pub async fn take_in(
    State(region): State<Arc<Region>>,
    names: Names<String>,
    headers: HeaderMap,
    request: Body,
) -> Result<Json<MembersAnswer>, Problem> {
    auth::authorize(&region, &headers, Need::Admin).await?;
    let name: RegionName = write::name("region", &write::names(names)?)?;
    let bytes = input::body(&headers, request, body::BODY_BYTES_MAX).await?;
    let wanted: RegionRequest = match bytes.trim_ascii_start().first() {
        None => RegionRequest::default(),
        Some(b'{') => body::parse(&bytes)?,
        // Serde would take a list for the fields of a struct.
        Some(_) => {
            return Err(Problem::malformed(
                "the body is an object with a url, or empty",
            ));
        }
    };
    let url = wanted.url.as_deref().map(url_of).transpose()?;
    let members = carried_out(async move { region.take_in(name, url).await }).await?;
    Ok(Json(MembersAnswer::from(&*members)))
}

/// Let a region go: its vote is gone, and it is granted nothing. Its process goes on with what it has; stop it.
#[utoipa::path(
    delete,
    path = "/admin/v1/cluster/regions/{region}",
    tag = "operations",
    security(("bearer" = [])),
    params(("region" = String, Path, description = "The region")),
    responses((status = 200, description = "It does not belong to the cluster any more", body = MembersAnswer), AdminProblems)
)]
pub async fn let_go(
    State(region): State<Arc<Region>>,
    names: Names<String>,
    headers: HeaderMap,
) -> Result<Json<MembersAnswer>, Problem> {
    auth::authorize(&region, &headers, Need::Admin).await?;
    let name: RegionName = write::name("region", &write::names(names)?)?;
    let gone = carried_out(async move { region.let_go(name).await }).await;
    match gone {
        Ok(members) => Ok(Json(MembersAnswer::from(&*members))),
        // Here the region is what the path names, not a value that does not fit.
        Err(problem) if problem.status == 422 => Err(Problem::not_found(problem.detail)),
        Err(problem) => Err(problem),
    }
}

/// Carries a move out, whether the caller waits for its end or not.
async fn carried_out<T: Send + 'static>(
    work: impl Future<Output = Result<T, MoveError>> + Send + 'static,
) -> Result<T, Problem> {
    let moved = tokio::spawn(work).await;
    let moved = moved.map_err(|_| write::unknown("the move broke off"))?;
    moved.map_err(|error| match error {
        MoveError::NotJoined => Problem::unavailable(error.to_string()),
        MoveError::NoMember(_) | MoveError::NoVote(_) => {
            Problem::new(422, Code::Invalid, error.to_string())
        }
        MoveError::NoAddress(_) => fault("url", error.to_string()),
        MoveError::OtherAddress { .. } | MoveError::LastOne(_) | MoveError::Leads(_) => {
            Problem::new(409, Code::InUse, error.to_string())
        }
        MoveError::Failed(ProposeError::Refused(refused)) => {
            Problem::new(422, Code::Invalid, refused.to_string())
        }
        MoveError::Failed(ProposeError::Unavailable(why)) => {
            Problem::unavailable(format!("it was not done: {why}"))
        }
        MoveError::Failed(ProposeError::OutcomeUnknown(why)) => {
            write::unknown(format!("nobody said whether it was done: {why}"))
        }
    })
}

fn region_name(text: &str) -> Result<RegionName, Problem> {
    text.parse::<RegionName>()
        .map_err(|error| fault("region", error.to_string()))
}

fn url_of(text: &str) -> Result<String, Problem> {
    config::peer_address(text).map_err(|message| fault("url", message))
}

fn fault(field: &str, message: String) -> Problem {
    let path = FieldPath::root().with(field);
    write::invalid(vec![FieldError::new(&path, message)])
}
