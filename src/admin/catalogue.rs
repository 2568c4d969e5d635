//! The catalogue as one document.

use std::sync::Arc;

use axum::body::Body;
use axum::extract::State;
use axum::http::HeaderMap;
use axum::http::Response;
use serde::Serialize;
use utoipa::ToSchema;

use crate::admin::auth;
use crate::admin::auth::Need;
use crate::admin::json;
use crate::admin::schema::AdminProblems;
use crate::admin::write;
use crate::admin::write::CATALOGUE_BYTES_MAX;
use crate::admin::write::WriteAnswer;
use crate::catalogue::change::Change;
use crate::catalogue::change::FieldError;
use crate::catalogue::document;
use crate::catalogue::path::FieldPath;
use crate::catalogue::tree::Tree;
use crate::http::input;
use crate::http::problem::Code;
use crate::http::problem::Problem;
use crate::region::state::Region;

/// The whole catalogue. What was read can be put back as it is.
#[derive(Debug, Serialize, ToSchema)]
pub struct CatalogueDocument {
    /// Its version. In a PUT or PATCH: the version that must still be the one in force, as with `If-Match`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub version: Option<u64>,
    /// Its parts.
    #[serde(flatten)]
    pub tree: Tree,
}

/// The same without a copy.
#[derive(Serialize)]
struct DocumentInForce<'a> {
    version: u64,
    #[serde(flatten)]
    tree: &'a Tree,
}

/// The whole catalogue.
#[utoipa::path(
    get,
    operation_id = "get_catalogue",
    path = "/admin/v1/catalogue",
    tag = "catalogue",
    security(("bearer" = [])),
    responses((status = 200, description = "All of it", body = CatalogueDocument), AdminProblems)
)]
pub async fn read(
    State(region): State<Arc<Region>>,
    headers: HeaderMap,
) -> Result<Response<Body>, Problem> {
    auth::authorize(&region, &headers, Need::Read).await?;
    let catalogue = region.replica.catalogue();
    let written = tokio::task::spawn_blocking(move || {
        let version = catalogue.version();
        write::tagged(
            version,
            &DocumentInForce {
                version,
                tree: catalogue.tree(),
            },
        )
    });
    written
        .await
        .map_err(|_| Problem::new(500, Code::Internal, "the answer broke off"))
}

/// Make the catalogue exactly this, all or nothing.
#[utoipa::path(
    put,
    operation_id = "put_catalogue",
    path = "/admin/v1/catalogue",
    tag = "catalogue",
    security(("bearer" = [])),
    params(("If-Match" = Option<String>, Header, description = "The version that must still be in force, in quotes")),
    request_body = CatalogueDocument,
    responses((status = 200, description = "It is in force", body = WriteAnswer), AdminProblems)
)]
pub async fn replace(
    State(region): State<Arc<Region>>,
    headers: HeaderMap,
    request: Body,
) -> Result<WriteAnswer, Problem> {
    change(&region, &headers, request, |tree| Change::Replace { tree }).await
}

/// Create and change what is named; nothing is deleted. All or nothing.
#[utoipa::path(
    patch,
    operation_id = "patch_catalogue",
    path = "/admin/v1/catalogue",
    tag = "catalogue",
    security(("bearer" = [])),
    params(("If-Match" = Option<String>, Header, description = "The version that must still be in force, in quotes")),
    request_body = CatalogueDocument,
    responses((status = 200, description = "It is in force", body = WriteAnswer), AdminProblems)
)]
pub async fn patch(
    State(region): State<Arc<Region>>,
    headers: HeaderMap,
    request: Body,
) -> Result<WriteAnswer, Problem> {
    change(&region, &headers, request, |tree| Change::Patch { tree }).await
}

async fn change(
    region: &Arc<Region>,
    headers: &HeaderMap,
    request: Body,
    of: impl FnOnce(Tree) -> Change,
) -> Result<WriteAnswer, Problem> {
    let principal = auth::authorize(region, headers, Need::Admin).await?;
    let tag = write::if_match(headers)?;
    let bytes = input::body(headers, request, CATALOGUE_BYTES_MAX).await?;
    // Large documents take a while, and checks must not wait for them.
    let parsed = tokio::task::spawn_blocking(move || parse(&bytes)).await;
    let (version, tree) =
        parsed.map_err(|_| Problem::malformed("the body could not be read"))??;
    let expected = match (tag, version) {
        (Some(tag), Some(version)) if tag != version => {
            return Err(Problem::malformed(
                "If-Match and version name different versions",
            ));
        }
        (tag, version) => tag.or(version),
    };
    write::propose(region, &principal, expected, of(tree)).await
}

fn parse(bytes: &[u8]) -> Result<(Option<u64>, Tree), Problem> {
    let mut value = json::document(bytes)?;
    let version = value
        .as_object_mut()
        .and_then(|fields| fields.remove("version"))
        .filter(|v| !v.is_null());
    let version = version
        .as_ref()
        .map(|version| version.as_u64().ok_or_else(odd_version))
        .transpose()?;
    let tree = document::read_tree(&value).map_err(write::invalid)?;
    Ok((version, tree))
}

fn odd_version() -> Problem {
    let path = FieldPath::root().with("version");
    write::invalid(vec![FieldError::new(
        &path,
        "must be the catalogue's version, a number",
    )])
}
