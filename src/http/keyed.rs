//! Requests with an `Idempotency-Key`: charged once however often they are repeated.
//!
//! Such a request runs to its end even if the caller goes away, since a repeat must find either an answer
//! or nothing. An allowed answer is remembered and given again; a refusal took nothing and is forgotten.

use axum::http::HeaderName;
use axum::http::HeaderValue;
use sha2::Digest;
use sha2::Sha256;

use crate::domain::time::Span;
use crate::domain::time::Timestamp;
use crate::http::answer::Rendered;
use crate::http::problem::Code;
use crate::http::problem::Problem;
use crate::ledger::answers::Begin;
use crate::ledger::idempotency::KeptAnswer;
use crate::ledger::idempotency::Operation;
use crate::ledger::idempotency::RequestId;
use crate::machine::charge;
use crate::region::state::Region;

/// A keyed request that is being answered. It must be finished.
#[derive(Debug)]
pub struct Keyed {
    id: RequestId,
    fingerprint: u128,
}

/// How a keyed request begins.
#[derive(Debug)]
pub enum Begun {
    /// It is new, and noted as running.
    New(Keyed),
    /// It was answered: the same again.
    Repeat(Box<Rendered>),
    /// There is no place to remember it.
    Full,
}

/// Looks a keyed request up.
///
/// # Errors
/// 409 while the first one runs, 422 when the key was used with another body.
pub fn begin(
    region: &Region,
    tenant: &str,
    operation: Operation,
    key: String,
    fingerprint: u128,
    now: Timestamp,
) -> Result<Begun, Problem> {
    let id = RequestId {
        tenant: tenant.to_owned(),
        operation,
        key,
    };
    match region.answers.begin(&id, fingerprint, now) {
        Begin::Fresh => Ok(Begun::New(Keyed { id, fingerprint })),
        Begin::Full => Ok(Begun::Full),
        Begin::Answered(kept) => Ok(Begun::Repeat(Box::new(repeated(&kept)))),
        Begin::Running => Err(Problem {
            retry_after_seconds: Some(1),
            ..Problem::new(
                409,
                Code::IdempotencyRunning,
                "the first request with this Idempotency-Key is still running",
            )
        }),
        Begin::Mismatch => Err(mismatch()),
    }
}

/// As [`begin`], for operations that are refused when there is no place to remember them.
///
/// # Errors
/// Those of [`begin`], and 503 when there is no place.
pub fn begin_or_refuse(
    region: &Region,
    tenant: &str,
    operation: Operation,
    key: Option<String>,
    fingerprint: u128,
    now: Timestamp,
) -> Result<Result<Option<Keyed>, Rendered>, Problem> {
    let Some(key) = key else { return Ok(Ok(None)) };
    match begin(region, tenant, operation, key, fingerprint, now)? {
        Begun::New(keyed) => Ok(Ok(Some(keyed))),
        Begun::Repeat(rendered) => Ok(Err(*rendered)),
        Begun::Full => Err(Problem::unavailable(
            "this region remembers as many Idempotency-Keys as it may",
        )),
    }
}

/// The answer to a key that was used with another body.
pub fn mismatch() -> Problem {
    Problem::new(
        422,
        Code::IdempotencyMismatch,
        "this Idempotency-Key was used with another body; a new request needs a new key",
    )
}

/// The answer when the log remembers a key in a form that this build cannot read.
pub fn unreadable() -> Problem {
    Problem::new(
        503,
        Code::OutcomeUnknown,
        "the request was answered before, by a build whose answer this one cannot read; upgrade this region",
    )
}

impl Keyed {
    /// The key as the log remembers it.
    pub fn for_log(&self, operation: Operation, retention: Span) -> charge::Keyed {
        charge::Keyed {
            operation,
            key: self.id.key.clone(),
            fingerprint: self.fingerprint,
            retention,
        }
    }

    /// The answer as it is remembered.
    pub fn answer(&self, region: &Region, rendered: &Rendered, now: Timestamp) -> KeptAnswer {
        let headers = rendered.headers.iter().filter_map(|(name, value)| {
            Some((name.as_str().to_owned(), value.to_str().ok()?.to_owned()))
        });
        KeptAnswer {
            request: self.id.clone(),
            fingerprint: self.fingerprint,
            status: rendered.status,
            headers: headers.collect(),
            body: rendered.body.clone().into_boxed_slice(),
            expires_at: now.plus(region.retention),
        }
    }
}

/// Remembers the answer of a request that took something; forgets one that took nothing.
pub fn finish(
    region: &Region,
    keyed: Option<&Keyed>,
    took: bool,
    rendered: &Rendered,
    now: Timestamp,
) {
    if let Some(keyed) = keyed {
        if took {
            region.answers.finish(keyed.answer(region, rendered, now));
        } else {
            region.answers.abandon(&keyed.id);
        }
    }
}

/// Forgets a request that took nothing.
pub fn abandon(region: &Region, keyed: Option<&Keyed>) {
    if let Some(keyed) = keyed {
        region.answers.abandon(&keyed.id);
    }
}

fn repeated(kept: &KeptAnswer) -> Rendered {
    let headers = kept.headers.iter().filter_map(|(name, value)| {
        Some((
            name.parse::<HeaderName>().ok()?,
            HeaderValue::from_str(value).ok()?,
        ))
    });
    Rendered {
        status: kept.status,
        headers: headers.collect(),
        body: kept.body.to_vec(),
    }
}

/// What tells a body from others under the same key.
pub fn fingerprint(bytes: &[u8]) -> u128 {
    Sha256::digest(bytes)
        .iter()
        .take(16)
        .fold(0, |sum, byte| sum << 8 | u128::from(*byte))
}

/// Runs an operation to its end even if the caller goes away.
///
/// # Errors
/// The operation's own, and 500 when it broke off.
pub async fn to_the_end(
    operation: impl Future<Output = Result<Rendered, Problem>> + Send + 'static,
) -> Result<Rendered, Problem> {
    tokio::spawn(operation).await.unwrap_or_else(|_| {
        Err(Problem::new(
            500,
            Code::Internal,
            "the request broke off; repeat it to learn its outcome",
        ))
    })
}
