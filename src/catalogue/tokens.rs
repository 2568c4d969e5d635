//! Making and revoking access tokens.

use std::sync::Arc;

use crate::catalogue::Catalogue;
use crate::catalogue::change::Applied;
use crate::catalogue::change::Refused;
use crate::catalogue::path::FieldPath;
use crate::catalogue::token::NewToken;
use crate::catalogue::token::Scope;
use crate::catalogue::token::TOKEN_ID_BYTES_MAX;
use crate::catalogue::token::TOKENS_MAX;
use crate::catalogue::token::TokenRecord;
use crate::catalogue::token::TokenTable;
use crate::domain::time::Timestamp;

impl Catalogue {
    /// Ends a token. The catalogue's version does not move.
    pub(super) fn revoke_token(&mut self, id: &str) -> Result<Applied, Refused> {
        if self.tokens.remove(id).is_none() {
            return Err(Refused::NotFound(format!("there is no token {id:?}")));
        }
        Ok(self.tokens_changed())
    }

    /// Makes a token. The catalogue's version does not move.
    pub(super) fn create_token(
        &mut self,
        at: Timestamp,
        token: &NewToken,
    ) -> Result<Applied, Refused> {
        let field = |name: &str, message: &str| {
            Err(Refused::field(
                &FieldPath::root().with(name),
                message.to_owned(),
            ))
        };
        if !is_token_id(&token.id) {
            return field("id", "must be 1 to 64 letters, digits, _ or -");
        }
        if self.tokens.contains_key(&token.id)
            || self.tokens.values().any(|known| known.hash == token.hash)
        {
            return field("id", "is taken");
        }
        match (token.scope, &token.tenant) {
            (Scope::Tenant, None) => return field("tenant", "is missing; name the token's tenant"),
            (Scope::Admin | Scope::Read, Some(_)) => {
                return field("tenant", "belongs to tokens of scope tenant or check");
            }
            (Scope::Tenant | Scope::Check, _) | (Scope::Admin | Scope::Read, None) => {}
        }
        if token.expires_at.is_some_and(|end| end <= at) {
            return field("expires_at", "must lie in the future");
        }
        if self.tokens.len() >= TOKENS_MAX {
            self.tokens.retain(|_, token| token.is_live(at));
        }
        if self.tokens.len() >= TOKENS_MAX {
            return field(
                "id",
                "is one too many: there are 10000 tokens; revoke some first",
            );
        }
        let record = TokenRecord {
            id: token.id.clone(),
            scope: token.scope,
            tenant: token.tenant.clone(),
            hash: token.hash,
            created_at: at,
            expires_at: token.expires_at,
        };
        self.tokens.insert(token.id.clone(), record);
        Ok(self.tokens_changed())
    }

    fn tokens_changed(&mut self) -> Applied {
        Arc::make_mut(&mut self.view).tokens = Arc::new(TokenTable::new(self.tokens.values()));
        Applied {
            version: self.version,
            ..Applied::default()
        }
    }
}

fn is_token_id(id: &str) -> bool {
    (1..=TOKEN_ID_BYTES_MAX).contains(&id.len())
        && id
            .bytes()
            .all(|b| b.is_ascii_alphanumeric() || b == b'_' || b == b'-')
}
