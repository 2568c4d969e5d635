//! What all changes of the catalogue have in common: the version they were made against, the way into the
//! log, and the answer.

use std::sync::Arc;

use axum::body::Body;
use axum::extract::Path;
use axum::extract::rejection::PathRejection;
use axum::http::HeaderMap;
use axum::http::HeaderValue;
use axum::http::Response;
use axum::http::header;
use axum::response::IntoResponse;
use serde::Serialize;
use utoipa::ToSchema;

use crate::admin::auth::Principal;
use crate::catalogue::change::Applied;
use crate::catalogue::change::Change;
use crate::catalogue::change::Entry;
use crate::catalogue::change::FieldError;
use crate::catalogue::change::NewEpoch;
use crate::catalogue::change::Refused;
use crate::consensus::PROPOSAL_BYTES_MAX;
use crate::http;
use crate::http::problem::Code;
use crate::http::problem::FieldProblem;
use crate::http::problem::Problem;
use crate::region::proposals::Changed;
use crate::region::proposals::ProposeError;
use crate::region::state::Region;

/// The longest body that describes one limit, plan or tenant: with its author it must fit into one entry of
/// the log.
pub const ITEM_BYTES_MAX: usize = PROPOSAL_BYTES_MAX - (64 << 10);
/// The longest body that describes a whole catalogue. A larger one is written in parts, with PATCH.
pub const CATALOGUE_BYTES_MAX: usize = ITEM_BYTES_MAX;

/// What a change did.
#[derive(Debug, Serialize, ToSchema)]
pub struct WriteAnswer {
    /// The catalogue's version now.
    pub version: u64,
    /// Regions that have not confirmed the change yet.
    pub pending_regions: Vec<String>,
    /// What the author should know.
    pub warnings: Vec<String>,
    /// Counters that start from zero because of the change.
    pub new_epochs: Vec<NewEpoch>,
}

impl From<Changed> for WriteAnswer {
    fn from(changed: Changed) -> Self {
        let Changed { applied, pending } = changed;
        let Applied {
            version,
            warnings,
            new_epochs,
        } = applied;
        Self {
            version,
            pending_regions: pending.iter().map(ToString::to_string).collect(),
            warnings,
            new_epochs,
        }
    }
}

impl IntoResponse for WriteAnswer {
    fn into_response(self) -> Response<Body> {
        tagged(self.version, &self)
    }
}

/// A JSON answer that names the catalogue's version in `ETag`.
pub fn tagged(version: u64, body: &impl Serialize) -> Response<Body> {
    let Ok(body) = serde_json::to_vec(body) else {
        return Problem::new(500, Code::Internal, "the answer cannot be written").into_response();
    };
    let mut response = http::json(200, body);
    if let Ok(tag) = HeaderValue::try_from(format!("\"{version}\"")) {
        response.headers_mut().insert(header::ETAG, tag);
    }
    response
}

/// The version that `If-Match` names.
///
/// # Errors
/// 400 when it names anything but one version.
pub fn if_match(headers: &HeaderMap) -> Result<Option<u64>, Problem> {
    let malformed = || {
        Problem::malformed(
            "If-Match: give the catalogue's version in quotes, as ETag has it: \"7\"",
        )
    };
    let mut values = headers.get_all(header::IF_MATCH).iter();
    let Some(value) = values.next() else {
        return Ok(None);
    };
    if values.next().is_some() {
        return Err(malformed());
    }
    let text = value.to_str().map_err(|_| malformed())?.trim();
    if text == "*" {
        return Ok(None);
    }
    let version = text
        .strip_prefix('"')
        .and_then(|text| text.strip_suffix('"'))
        .ok_or_else(malformed)?;
    version.parse().map(Some).map_err(|_| malformed())
}

/// The names in a request's path.
///
/// # Errors
/// 400 when they are not UTF-8.
pub fn names<T>(path: Result<Path<T>, PathRejection>) -> Result<T, Problem> {
    path.map(|Path(names)| names)
        .map_err(|_| Problem::malformed("the path is not percent-encoded UTF-8"))
}

/// Reads one name.
///
/// # Errors
/// 400 when it cannot be one.
pub fn name<T: std::str::FromStr<Err: ToString>>(kind: &str, text: &str) -> Result<T, Problem> {
    text.parse()
        .map_err(|error: T::Err| Problem::malformed(format!("{kind}: {}", error.to_string())))
}

/// Makes a change, whether the caller waits for its end or not.
///
/// # Errors
/// When it is refused, or cannot be written.
pub async fn propose(
    region: &Arc<Region>,
    author: &Principal,
    expected_version: Option<u64>,
    change: Change,
) -> Result<WriteAnswer, Problem> {
    let entry = Entry {
        author: author.author(),
        expected_version,
        change,
    };
    let region = Arc::clone(region);
    // A caller that goes away must not leave a change half made.
    let made = tokio::spawn(async move { region.change(&entry).await });
    let outcome = made.await.map_err(|_| unknown("the change broke off"))?;
    outcome.map(WriteAnswer::from).map_err(problem_of)
}

/// 503: it may or may not have been done.
pub fn unknown(detail: impl Into<String>) -> Problem {
    Problem {
        code: Code::OutcomeUnknown,
        ..Problem::unavailable(detail)
    }
}

fn problem_of(error: ProposeError) -> Problem {
    match error {
        ProposeError::Refused(refused) => refused_problem(refused),
        ProposeError::Unavailable(_) => Problem::unavailable(error.to_string()),
        ProposeError::OutcomeUnknown(_) => unknown(error.to_string()),
    }
}

fn refused_problem(refused: Refused) -> Problem {
    let detail = refused.to_string();
    match refused {
        Refused::Invalid(faults) => invalid(faults),
        Refused::NotFound(_) => Problem::not_found(detail),
        Refused::InUse(_) => Problem::new(409, Code::InUse, detail),
        Refused::VersionMismatch { .. } => Problem::new(412, Code::VersionMismatch, detail),
        Refused::Forbidden(_) => Problem::new(403, Code::Forbidden, detail),
    }
}

/// 422 that names every fault.
pub fn invalid(faults: Vec<FieldError>) -> Problem {
    let detail = Refused::Invalid(faults.clone()).to_string();
    let errors = faults.into_iter().map(|fault| FieldProblem {
        path: fault.path,
        message: fault.message,
    });
    Problem {
        errors: errors.collect(),
        ..Problem::new(422, Code::Invalid, detail)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(value: &str) -> Result<Option<u64>, u16> {
        let mut headers = HeaderMap::new();
        headers.insert(
            header::IF_MATCH,
            HeaderValue::from_str(value).expect("a header"),
        );
        if_match(&headers).map_err(|problem| problem.status)
    }

    #[test]
    fn if_match_names_one_version() {
        assert!(matches!(if_match(&HeaderMap::new()), Ok(None)));
        assert_eq!(read("\"7\""), Ok(Some(7)));
        assert_eq!(read(" \"0\" "), Ok(Some(0)));
        assert_eq!(read("*"), Ok(None));
        for odd in ["7", "\"seven\"", "\"1\", \"2\"", "W/\"7\"", "\"7", "\"\""] {
            assert_eq!(read(odd), Err(400), "{odd}");
        }
    }
}
