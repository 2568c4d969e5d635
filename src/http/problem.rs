//! Errors as `application/problem+json` (RFC 9457).
//!
//! Every error of both listeners has this shape: `type`, `title`, `status`, `detail`, and a stable `code`
//! that programs can match on.

use axum::body::Body;
use axum::http::HeaderValue;
use axum::http::Response;
use axum::http::StatusCode;
use axum::http::header;
use axum::response::IntoResponse;
use serde::Serialize;
use utoipa::ToSchema;

/// What went wrong, for programs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum Code {
    /// The request is not of the wanted form.
    Malformed,
    /// A field that does not exist.
    UnknownField,
    /// No such tenant.
    UnknownTenant,
    /// The tenant has no such limit.
    UnknownLimit,
    /// The same limit and key twice in one check.
    DuplicateCheck,
    /// The limit counts by a key and none was given.
    KeyRequired,
    /// The limit has no key and one was given.
    KeyUnexpected,
    /// The body is over its bound.
    BodyTooLarge,
    /// No token, or a wrong one.
    Unauthorized,
    /// The token may not do this.
    Forbidden,
    /// The `Idempotency-Key` was used with another body.
    IdempotencyMismatch,
    /// The first request with this `Idempotency-Key` is still running.
    IdempotencyRunning,
    /// The hold was settled or released otherwise.
    HoldSettled,
    /// The hold's time is over.
    HoldExpired,
    /// There is nothing here.
    NotFound,
    /// The method does not exist here.
    MethodNotAllowed,
    /// The catalogue is not at the version named in `If-Match`.
    VersionMismatch,
    /// The hold is another region's.
    Misdirected,
    /// The request took too long to arrive.
    RequestTimeout,
    /// A limit, plan or tenant cannot be as asked.
    Invalid,
    /// Something else still uses it.
    InUse,
    /// This region cannot do it now.
    Unavailable,
    /// It may or may not have been done.
    OutcomeUnknown,
    /// The fault is ours.
    Internal,
}

/// A value of the wrong kind, with the place where it stands.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, ToSchema)]
pub struct FieldProblem {
    /// Where, as in `limits.exports.window`.
    pub path: String,
    /// What is wrong and what to do.
    pub message: String,
}

/// An error answer.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, ToSchema)]
pub struct Problem {
    /// `about:blank`: the status says what kind it is.
    #[serde(rename = "type")]
    pub kind: &'static str,
    /// The status in words.
    pub title: &'static str,
    /// The HTTP status.
    pub status: u16,
    /// What is wrong and what to do.
    pub detail: String,
    /// What went wrong, for programs.
    pub code: Code,
    /// The places that are wrong, when there are several.
    #[serde(skip_serializing_if = "<[FieldProblem]>::is_empty")]
    #[schema(value_type = Vec<FieldProblem>)]
    pub errors: Box<[FieldProblem]>,
    /// The region to ask instead.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub region: Option<String>,
    /// When to come back, in the `Retry-After` header.
    #[serde(skip)]
    pub retry_after_seconds: Option<u64>,
}

impl Problem {
    /// A problem of `status` with its code and a sentence for people.
    pub fn new(status: u16, code: Code, detail: impl Into<String>) -> Self {
        let title = StatusCode::from_u16(status)
            .ok()
            .and_then(|s| s.canonical_reason())
            .unwrap_or("Error");
        Self {
            kind: "about:blank",
            title,
            status,
            detail: detail.into(),
            code,
            errors: Box::default(),
            region: None,
            retry_after_seconds: None,
        }
    }

    /// 400 for a request of the wrong form.
    pub fn malformed(detail: impl Into<String>) -> Self {
        Self::new(400, Code::Malformed, detail)
    }

    /// 404 for something that is not there.
    pub fn not_found(detail: impl Into<String>) -> Self {
        Self::new(404, Code::NotFound, detail)
    }

    /// 503: not now.
    pub fn unavailable(detail: impl Into<String>) -> Self {
        Self {
            retry_after_seconds: Some(1),
            ..Self::new(503, Code::Unavailable, detail)
        }
    }

    /// The answer's body.
    pub fn body(&self) -> Vec<u8> {
        serde_json::to_vec(self).unwrap_or_default()
    }
}

impl IntoResponse for Problem {
    fn into_response(self) -> Response<Body> {
        let mut response = Response::new(Body::from(self.body()));
        *response.status_mut() =
            StatusCode::from_u16(self.status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
        let headers = response.headers_mut();
        headers.insert(
            header::CONTENT_TYPE,
            HeaderValue::from_static("application/problem+json"),
        );
        headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-store"));
        if let Some(seconds) = self.retry_after_seconds {
            headers.insert(header::RETRY_AFTER, HeaderValue::from(seconds));
        }
        if self.status == 401 {
            headers.insert(header::WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
        }
        response
    }
}
