//! Who may use the check API.
//!
//! With `auth.check = "open"` anyone may; a check token that is presented still says whose requests these
//! are. With `"token"` a token of scope `check` (of the tenant, or of all) or an administrator's is wanted.

use std::sync::Arc;
use std::sync::LazyLock;

use axum::http::HeaderMap;
use sha2::Digest;
use sha2::Sha256;
use tokio::sync::Semaphore;

use crate::catalogue::token::Scope;
use crate::catalogue::token::TokenHash;
use crate::domain::time::Span;
use crate::http::input;
use crate::http::problem::Code;
use crate::http::problem::Problem;
use crate::region::config::CheckAuth;
use crate::region::state::Region;

/// How long a wrong token is kept waiting for its 401.
pub const WRONG_TOKEN_DELAY: Span = Span::from_ms(100);
/// Wrong tokens that are kept waiting at once; more are refused without a wait for a place.
const WAITING_MAX: usize = 512;

static WAITING: LazyLock<Arc<Semaphore>> = LazyLock::new(|| Arc::new(Semaphore::new(WAITING_MAX)));

/// Who asks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Caller {
    /// The one tenant that the caller may ask for; `None`: all.
    tenant: Option<String>,
}

impl Caller {
    /// Whether the caller may ask for `tenant`.
    ///
    /// # Errors
    /// 403 when the token is another tenant's.
    pub fn may_check(&self, tenant: &str) -> Result<(), Problem> {
        if self.owns(tenant) {
            return Ok(());
        }
        Err(Problem::new(
            403,
            Code::Forbidden,
            "this token is another tenant's",
        ))
    }

    /// The one tenant that the caller may ask for; `None`: all.
    pub fn tenant(&self) -> Option<&str> {
        self.tenant.as_deref()
    }

    /// Whether what belongs to `tenant` is the caller's to see.
    pub fn owns(&self, tenant: &str) -> bool {
        self.tenant.as_deref().is_none_or(|own| own == tenant)
    }
}

/// SHA-256 of a presented token.
pub fn hash(token: &str) -> TokenHash {
    TokenHash(Sha256::digest(token.as_bytes()).into())
}

/// Makes a wrong token wait, then says 401.
pub async fn unauthorized(detail: &str) -> Problem {
    if let Ok(_place) = WAITING.try_acquire() {
        tokio::time::sleep(WRONG_TOKEN_DELAY.to_std()).await;
    }
    Problem::new(401, Code::Unauthorized, detail)
}

/// Finds out who asks the check API.
///
/// # Errors
/// 401 when a token is wanted and none, or a wrong one, is presented; 403 when it has another scope; 503 while
/// the region does not know its cluster's catalogue.
pub async fn caller(region: &Region, headers: &HeaderMap) -> Result<Caller, Problem> {
    caller_with(region, input::bearer(headers)).await
}

/// Finds out who asks the check API with the token presented.
///
/// # Errors
/// As [`caller`].
pub async fn caller_with(region: &Region, presented: Option<&str>) -> Result<Caller, Problem> {
    if !region.has_catalogue() {
        return Err(Problem::unavailable(
            "this region has not joined its cluster yet and knows no limits",
        ));
    }
    if region.check_auth == CheckAuth::Open && presented.is_none() {
        return Ok(Caller { tenant: None });
    }
    let Some(presented) = presented else {
        return Err(unauthorized("send Authorization: Bearer and a token of scope check").await);
    };
    let own_tenant = match scope_of(region, presented) {
        Some((Scope::Admin, _)) => None,
        Some((Scope::Check, tenant)) => tenant,
        _ if region.check_auth == CheckAuth::Open => None,
        Some((Scope::Read | Scope::Tenant, _)) => {
            return Err(Problem::new(
                403,
                Code::Forbidden,
                "this token is not of scope check",
            ));
        }
        None => return Err(unauthorized("this token is not known here, or has ended").await),
    };
    Ok(Caller { tenant: own_tenant })
}

/// The scope and tenant of a token, if it is known and has not ended.
fn scope_of(region: &Region, presented: &str) -> Option<(Scope, Option<String>)> {
    if region
        .admin_token
        .as_ref()
        .is_some_and(|secret| secret.matches(presented))
    {
        return Some((Scope::Admin, None));
    }
    let view = region.view();
    let token = view.token(&hash(presented), region.clock.now())?;
    Some((
        token.scope,
        token
            .tenant
            .as_ref()
            .map(|tenant| tenant.as_str().to_owned()),
    ))
}
