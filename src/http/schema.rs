//! The requests and answers of the check API as OpenAPI describes them.
//!
//! The parsers in [`crate::http::body`] borrow from the bytes; these owned twins exist for the document
//! alone, and a test holds them to the same fields.

use serde::Deserialize;
use serde::Serialize;
use utoipa::IntoResponses;
use utoipa::ToSchema;

use crate::http::answer::CheckAnswer;
use crate::http::problem::Problem;

/// One limit of a check.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct CheckRequestItem {
    /// The limit's name.
    #[schema(
        min_length = 1,
        max_length = 64,
        pattern = "^[a-z0-9][a-z0-9_-]{0,63}$"
    )]
    pub limit: String,
    /// The key, if the limit has one.
    #[schema(nullable = false, min_length = 1, max_length = 512)]
    pub key: Option<String>,
    /// Units; 1 when absent; 0 only looks.
    #[schema(nullable = false, minimum = 0, maximum = 9_007_199_254_740_991_u64)]
    pub cost: Option<u64>,
}

/// A check: `limit` (with `key`, `cost`), or `checks`, or `action` (with `keys`, `cost`).
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct CheckRequest {
    /// Who asks.
    #[schema(min_length = 1, max_length = 128)]
    pub tenant: String,
    /// One limit.
    #[schema(nullable = false, min_length = 1, max_length = 64)]
    pub limit: Option<String>,
    /// The key of that limit.
    #[schema(nullable = false, min_length = 1, max_length = 512)]
    pub key: Option<String>,
    /// Units; 1 when absent; 0 only looks.
    #[schema(nullable = false, minimum = 0, maximum = 9_007_199_254_740_991_u64)]
    pub cost: Option<u64>,
    /// Several limits: all are charged or none.
    #[schema(nullable = false, min_items = 1, max_items = 16)]
    pub checks: Option<Vec<CheckRequestItem>>,
    /// All limits of the tenant that have this action and whose key is absent or given.
    #[schema(nullable = false)]
    pub action: Option<String>,
    /// Keys by kind.
    #[schema(nullable = false, value_type = Object)]
    pub keys: Option<serde_json::Value>,
    /// A label for metrics and logs.
    #[schema(nullable = false)]
    pub endpoint: Option<String>,
    /// A label for logs.
    #[schema(nullable = false)]
    pub ip: Option<String>,
    /// The longest wait for a leader region, in milliseconds; 0 never waits.
    #[schema(nullable = false, minimum = 0, maximum = 9_007_199_254_740_991_u64)]
    pub max_wait_ms: Option<u64>,
}

/// A check that takes units under a hold.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct HoldRequest {
    /// Who asks.
    #[schema(min_length = 1, max_length = 128)]
    pub tenant: String,
    /// One limit.
    #[schema(nullable = false, min_length = 1, max_length = 64)]
    pub limit: Option<String>,
    /// The key of that limit.
    #[schema(nullable = false, min_length = 1, max_length = 512)]
    pub key: Option<String>,
    /// Units; 1 when absent.
    #[schema(nullable = false, minimum = 0, maximum = 9_007_199_254_740_991_u64)]
    pub cost: Option<u64>,
    /// Several limits: all are taken or none.
    #[schema(nullable = false, min_items = 1, max_items = 16)]
    pub checks: Option<Vec<CheckRequestItem>>,
    /// All limits of the tenant that have this action.
    #[schema(nullable = false)]
    pub action: Option<String>,
    /// Keys by kind.
    #[schema(nullable = false, value_type = Object)]
    pub keys: Option<serde_json::Value>,
    /// A label for metrics and logs.
    #[schema(nullable = false)]
    pub endpoint: Option<String>,
    /// A label for logs.
    #[schema(nullable = false)]
    pub ip: Option<String>,
    /// The longest wait for a leader region, in milliseconds; 0 never waits.
    #[schema(nullable = false, minimum = 0, maximum = 9_007_199_254_740_991_u64)]
    pub max_wait_ms: Option<u64>,
    /// How long, at most 24h.
    #[schema(nullable = false, example = "60s", pattern = "^[0-9]+(ms|s|m|h|d)$")]
    pub ttl: Option<String>,
}

/// Many checks.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct BatchRequest {
    /// The checks, each like the body of a check, with an optional `idempotency_key` of its own. Each is
    /// decided alone: what is wrong with one is said in its own result.
    #[schema(min_items = 1, max_items = 1000)]
    pub items: Vec<serde_json::Value>,
}

/// The answers of a batch.
#[derive(Serialize, ToSchema)]
pub struct BatchAnswer {
    /// One for each item, in order: an answer, or a problem, with its `status`.
    #[schema(value_type = Vec<Object>)]
    pub results: Vec<serde_json::Value>,
}

/// The cost of one limit of a hold.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct SettleRequestItem {
    /// The limit's name.
    pub limit: String,
    /// The key, if the limit has one.
    #[schema(nullable = false)]
    pub key: Option<String>,
    /// Units that were used in the end.
    #[schema(minimum = 0, maximum = 9_007_199_254_740_991_u64)]
    pub cost: u64,
}

/// `cost` for a hold of one limit, or `checks`.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct SettleRequest {
    /// Units that were used in the end.
    #[schema(nullable = false, minimum = 0, maximum = 9_007_199_254_740_991_u64)]
    pub cost: Option<u64>,
    /// Costs by limit; limits that are not named keep what was taken.
    #[schema(nullable = false, min_items = 1, max_items = 16)]
    pub checks: Option<Vec<SettleRequestItem>>,
}

/// How long a hold is to live on.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct RenewRequest {
    /// From now, at most 24h; the limit's own when absent.
    #[schema(nullable = false, example = "60s", pattern = "^[0-9]+(ms|s|m|h|d)$")]
    pub ttl: Option<String>,
}

/// What is to be given back.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct RefundRequest {
    /// Whose.
    pub tenant: String,
    /// The limit's name.
    pub limit: String,
    /// The key, if the limit has one.
    #[schema(nullable = false)]
    pub key: Option<String>,
    /// Units; 1 when absent.
    #[schema(nullable = false, minimum = 0, maximum = 9_007_199_254_740_991_u64)]
    pub cost: Option<u64>,
}

/// What any request to the check API may be told.
#[derive(IntoResponses)]
pub enum RequestProblems {
    /// The request is not of the wanted form.
    #[response(status = 400, content_type = "application/problem+json")]
    Malformed(#[to_schema] Problem),
    /// No token, or a wrong one.
    #[response(status = 401, content_type = "application/problem+json")]
    Unauthorized(#[to_schema] Problem),
    /// The token may not do this.
    #[response(status = 403, content_type = "application/problem+json")]
    Forbidden(#[to_schema] Problem),
    /// No such tenant or limit.
    #[response(status = 404, content_type = "application/problem+json")]
    NotFound(#[to_schema] Problem),
    /// The body did not arrive in time.
    #[response(status = 408, content_type = "application/problem+json")]
    Timeout(#[to_schema] Problem),
    /// The first request with this Idempotency-Key is still running.
    #[response(status = 409, content_type = "application/problem+json")]
    Running(#[to_schema] Problem),
    /// The body is over its bound.
    #[response(status = 413, content_type = "application/problem+json")]
    TooLarge(#[to_schema] Problem),
    /// The Idempotency-Key was used with another body.
    #[response(status = 422, content_type = "application/problem+json")]
    Mismatch(#[to_schema] Problem),
}

/// What a request for a hold may be told.
#[derive(IntoResponses)]
pub enum HoldProblems {
    /// The request is not of the wanted form.
    #[response(status = 400, content_type = "application/problem+json")]
    Malformed(#[to_schema] Problem),
    /// No token, or a wrong one.
    #[response(status = 401, content_type = "application/problem+json")]
    Unauthorized(#[to_schema] Problem),
    /// The token may not do this.
    #[response(status = 403, content_type = "application/problem+json")]
    Forbidden(#[to_schema] Problem),
    /// No such hold.
    #[response(status = 404, content_type = "application/problem+json")]
    NotFound(#[to_schema] Problem),
    /// The body did not arrive in time.
    #[response(status = 408, content_type = "application/problem+json")]
    Timeout(#[to_schema] Problem),
    /// Settled or released already, with another request.
    #[response(status = 409, content_type = "application/problem+json")]
    Settled(#[to_schema] Problem),
    /// The hold's time is over.
    #[response(status = 410, content_type = "application/problem+json")]
    Expired(#[to_schema] Problem),
    /// The body is over its bound.
    #[response(status = 413, content_type = "application/problem+json")]
    TooLarge(#[to_schema] Problem),
    /// The hold is another region's, which is named.
    #[response(status = 421, content_type = "application/problem+json")]
    Misdirected(#[to_schema] Problem),
    /// The Idempotency-Key was used with another body.
    #[response(status = 422, content_type = "application/problem+json")]
    Mismatch(#[to_schema] Problem),
    /// Nothing was changed, or the outcome is unknown.
    #[response(status = 503, content_type = "application/problem+json")]
    Unavailable(#[to_schema] Problem),
}

/// The answer of a usage query: as a look, with the use of each region.
#[derive(Serialize, ToSchema)]
pub struct UsageAnswer<'a> {
    /// Who.
    #[schema(value_type = String)]
    pub tenant: &'a str,
    /// What each limit says.
    #[serde(flatten)]
    pub look: CheckAnswer<'a>,
    /// Units in use by region.
    #[schema(value_type = Object)]
    pub by_region: std::collections::BTreeMap<&'a str, u64>,
}
