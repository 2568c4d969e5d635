//! Tokens are kept with the catalogue, but its version does not move with them.

use super::Fixture;
use super::operator;
use super::tenant;
use crate::catalogue::change::Change;
use crate::catalogue::change::Refused;
use crate::catalogue::token::NewToken;
use crate::catalogue::token::Scope;
use crate::catalogue::token::TOKENS_MAX;
use crate::catalogue::token::TokenHash;
use crate::domain::time::Span;
use crate::domain::time::Timestamp;

fn token(id: &str, byte: u8, scope: Scope) -> NewToken {
    NewToken {
        id: id.to_owned(),
        scope,
        tenant: None,
        hash: TokenHash([byte; 32]),
        expires_at: None,
    }
}

#[test]
fn a_token_is_made_found_and_revoked() {
    let mut fixture = Fixture::empty();
    let applied = fixture
        .change(Change::CreateToken {
            token: token("a", 1, Scope::Admin),
        })
        .expect("accepted");
    assert_eq!(applied.version, 0, "the catalogue's version does not move");
    let found = fixture
        .catalogue
        .view()
        .token(&TokenHash([1; 32]), fixture.now)
        .expect("a token");
    assert_eq!(
        (found.id.as_str(), found.scope, found.created_at),
        ("a", Scope::Admin, fixture.now)
    );
    assert!(
        fixture
            .catalogue
            .view()
            .token(&TokenHash([2; 32]), fixture.now)
            .is_none()
    );
    assert_eq!(fixture.reread().view(), fixture.catalogue.view());
    fixture
        .change(Change::RevokeToken { id: "a".to_owned() })
        .expect("accepted");
    assert!(
        fixture
            .catalogue
            .view()
            .token(&TokenHash([1; 32]), fixture.now)
            .is_none()
    );
}

#[test]
fn tokens_end_by_themselves() {
    let mut fixture = Fixture::empty();
    let end = fixture.now.plus(Span::from_seconds(10));
    let new = NewToken {
        expires_at: Some(end),
        ..token("a", 1, Scope::Read)
    };
    fixture
        .change(Change::CreateToken { token: new })
        .expect("accepted");
    let view = fixture.catalogue.view();
    assert!(view.token(&TokenHash([1; 32]), fixture.now).is_some());
    assert!(view.token(&TokenHash([1; 32]), end).is_none());
    let past = NewToken {
        expires_at: Some(Timestamp::EPOCH),
        ..token("b", 2, Scope::Read)
    };
    let refused = fixture.change(Change::CreateToken { token: past });
    assert!(super::fault(refused).starts_with("expires_at: "));
}

#[test]
fn scope_and_tenant_go_together() {
    let mut fixture = Fixture::empty();
    let mut create = |scope: Scope, of: Option<&str>, byte: u8| {
        let new = NewToken {
            tenant: of.map(tenant),
            ..token(&format!("t{byte}"), byte, scope)
        };
        fixture.change(Change::CreateToken { token: new })
    };
    assert!(create(Scope::Tenant, Some("acme"), 1).is_ok());
    assert!(create(Scope::Check, Some("acme"), 2).is_ok());
    assert!(create(Scope::Check, None, 3).is_ok());
    assert!(super::fault(create(Scope::Tenant, None, 4)).starts_with("tenant: is missing"));
    assert!(super::fault(create(Scope::Admin, Some("acme"), 5)).starts_with("tenant: "));
    assert!(super::fault(create(Scope::Read, Some("acme"), 6)).starts_with("tenant: "));
}

#[test]
fn ids_and_hashes_are_taken_once() {
    let mut fixture = Fixture::empty();
    fixture
        .change(Change::CreateToken {
            token: token("a", 1, Scope::Read),
        })
        .expect("accepted");
    for new in [
        token("a", 2, Scope::Read),
        token("b", 1, Scope::Read),
        token("b c", 3, Scope::Read),
        token("", 3, Scope::Read),
    ] {
        let refused = fixture.change(Change::CreateToken { token: new });
        assert!(super::fault(refused).starts_with("id: "));
    }
}

#[test]
fn tokens_are_bounded_and_expired_ones_make_room() {
    let mut fixture = Fixture::empty();
    let end = fixture.now.plus(Span::from_seconds(10));
    for i in 0..TOKENS_MAX {
        let mut hash = [0; 32];
        hash[..8].copy_from_slice(&i.to_le_bytes());
        let expires_at = (i == 0).then_some(end);
        let new = NewToken {
            hash: TokenHash(hash),
            expires_at,
            ..token(&format!("t{i}"), 0, Scope::Read)
        };
        let entry = crate::catalogue::change::Entry {
            author: operator(),
            expected_version: None,
            change: Change::CreateToken { token: new },
        };
        // Not through the fixture, which copies the catalogue each time.
        fixture.catalogue.tokens.insert(
            format!("t{i}"),
            match entry.change {
                Change::CreateToken { token } => crate::catalogue::token::TokenRecord {
                    id: token.id,
                    scope: token.scope,
                    tenant: None,
                    hash: token.hash,
                    created_at: fixture.now,
                    expires_at: token.expires_at,
                },
                _ => unreachable!("made above"),
            },
        );
    }
    let one_more = || Change::CreateToken {
        token: token("more", 0xff, Scope::Read),
    };
    assert!(super::fault(fixture.change(one_more())).contains("revoke some"));
    fixture.now = end;
    fixture
        .change(one_more())
        .expect("the expired one made room");
    assert_eq!(fixture.catalogue.tokens().len(), TOKENS_MAX);
}

#[test]
fn an_expected_version_is_not_compared_for_tokens() {
    let mut fixture = Fixture::empty();
    let change = Change::CreateToken {
        token: token("a", 1, Scope::Read),
    };
    assert!(fixture.apply_at(operator(), Some(77), change).is_ok());
    let refused = fixture.change(Change::RevokeToken { id: "b".to_owned() });
    assert!(matches!(refused, Err(Refused::NotFound(_))));
}
