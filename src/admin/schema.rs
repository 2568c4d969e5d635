//! What any request to the admin API may be told, for its OpenAPI document.

use utoipa::IntoResponses;

use crate::http::problem::Problem;

/// The problems of the admin API.
#[derive(IntoResponses)]
pub enum AdminProblems {
    /// The request is not of the wanted form.
    #[response(status = 400, content_type = "application/problem+json")]
    Malformed(#[to_schema] Problem),
    /// No token, or a wrong one.
    #[response(status = 401, content_type = "application/problem+json")]
    Unauthorized(#[to_schema] Problem),
    /// The token may not do this.
    #[response(status = 403, content_type = "application/problem+json")]
    Forbidden(#[to_schema] Problem),
    /// There is nothing here.
    #[response(status = 404, content_type = "application/problem+json")]
    NotFound(#[to_schema] Problem),
    /// The body did not arrive in time.
    #[response(status = 408, content_type = "application/problem+json")]
    Timeout(#[to_schema] Problem),
    /// Something else still uses it.
    #[response(status = 409, content_type = "application/problem+json")]
    InUse(#[to_schema] Problem),
    /// The catalogue is at another version than `If-Match` says.
    #[response(status = 412, content_type = "application/problem+json")]
    VersionMismatch(#[to_schema] Problem),
    /// The body is over its bound.
    #[response(status = 413, content_type = "application/problem+json")]
    TooLarge(#[to_schema] Problem),
    /// It cannot be as asked; `errors` names the fields.
    #[response(status = 422, content_type = "application/problem+json")]
    Invalid(#[to_schema] Problem),
    /// Not now, or the outcome is unknown.
    #[response(status = 503, content_type = "application/problem+json")]
    Unavailable(#[to_schema] Problem),
}
