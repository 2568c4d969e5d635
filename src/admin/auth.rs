//! Who may use the admin API.
//!
//! | scope | may |
//! |---|---|
//! | the configured token, `admin` | everything |
//! | `read` | every GET |
//! | `tenant` | read its own tenant, and change its limits and overrides up to what plan and administrator have set |
//! | `check` | nothing here |
//!
//! A tenant's token learns nothing of other tenants: whatever it asks of one, there or not, gets the same
//! 403. A missing or wrong token waits for its 401.

use axum::http::HeaderMap;

use crate::catalogue::change::Author;
use crate::catalogue::token::Scope;
use crate::domain::name::TenantName;
use crate::http::access;
use crate::http::input;
use crate::http::problem::Code;
use crate::http::problem::Problem;
use crate::region::state::Region;

/// What a request needs its token to allow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Need<'a> {
    /// To read anything.
    Read,
    /// To read what belongs to a tenant.
    ReadTenant(&'a str),
    /// To change what belongs to a tenant.
    Tenant(&'a str),
    /// To change anything.
    Admin,
}

/// Who asks, as far as it may.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Principal {
    /// Id of the token, or `config` for the configured one.
    pub token: String,
    /// The tenant that it speaks for; `None`: an administrator or a reader.
    pub tenant: Option<TenantName>,
}

impl Principal {
    /// The author of this principal's changes.
    pub fn author(&self) -> Author {
        match &self.tenant {
            None => Author::Operator {
                token: self.token.clone(),
            },
            Some(tenant) => Author::Tenant {
                tenant: tenant.clone(),
                token: self.token.clone(),
            },
        }
    }
}

/// Finds out who asks, and whether they may.
///
/// # Errors
/// 401 for a missing or wrong token, 403 for one that does not reach.
pub async fn authorize(
    region: &Region,
    headers: &HeaderMap,
    need: Need<'_>,
) -> Result<Principal, Problem> {
    let Some(presented) = input::bearer(headers) else {
        return Err(access::unauthorized("send Authorization: Bearer and a token").await);
    };
    if region
        .admin_token
        .as_ref()
        .is_some_and(|secret| secret.matches(presented))
    {
        return Ok(Principal {
            token: "config".to_owned(),
            tenant: None,
        });
    }
    let found = {
        let view = region.view();
        view.token(&access::hash(presented), region.clock.now())
            .cloned()
    };
    let Some(token) = found else {
        return Err(access::unauthorized("this token is not known here, or has ended").await);
    };
    if !allows(token.scope, token.tenant.as_ref(), need) {
        return Err(Problem::new(
            403,
            Code::Forbidden,
            "this token may not do this",
        ));
    }
    let tenant = token
        .tenant
        .clone()
        .filter(|_| token.scope == Scope::Tenant);
    Ok(Principal {
        token: token.id.clone(),
        tenant,
    })
}

fn allows(scope: Scope, own: Option<&TenantName>, need: Need<'_>) -> bool {
    match scope {
        Scope::Admin => true,
        Scope::Read => matches!(need, Need::Read | Need::ReadTenant(_)),
        Scope::Tenant => match need {
            Need::ReadTenant(tenant) | Need::Tenant(tenant) => {
                own.is_some_and(|own| own.as_str() == tenant)
            }
            Need::Read | Need::Admin => false,
        },
        Scope::Check => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_scope_reaches_as_far_as_it_says() {
        let acme = TenantName::new("acme").unwrap();
        let needs = [
            Need::Read,
            Need::ReadTenant("acme"),
            Need::Tenant("acme"),
            Need::ReadTenant("b"),
            Need::Tenant("b"),
            Need::Admin,
        ];
        let reach = |scope, tenant| needs.map(|need| allows(scope, tenant, need));
        assert_eq!(reach(Scope::Admin, None), [true; 6]);
        assert_eq!(
            reach(Scope::Read, None),
            [true, true, false, true, false, false]
        );
        assert_eq!(
            reach(Scope::Tenant, Some(&acme)),
            [false, true, true, false, false, false]
        );
        assert_eq!(reach(Scope::Check, Some(&acme)), [false; 6]);
    }
}
