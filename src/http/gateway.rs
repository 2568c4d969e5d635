//! `/v1/gateway/{profile}`: the question of a gateway that holds a request back until it is answered.
//!
//! Exactly 200 without a body lets the request pass. Every answer says in `X-Quota-Decision` what was decided and
//! in `X-Quota-Status` which status a check would have had, for gateways that understand two statuses only. The
//! request's body is neither needed nor waited for.
//!
//! The caller's own mistakes never follow the profile's `on_error`: whoever could make a request that cannot be
//! judged would pass.

use std::net::IpAddr;
use std::net::SocketAddr;
use std::sync::Arc;

use axum::body::Body;
use axum::extract::Request;
use axum::extract::State;
use axum::http::HeaderMap;
use axum::http::HeaderName;
use axum::http::HeaderValue;
use axum::http::Response;
use axum::http::header;
use axum::response::IntoResponse;
use smallvec::SmallVec;

use crate::catalogue::profile::DENY_STATUS;
use crate::catalogue::profile::Gateway;
use crate::catalogue::profile::OnError;
use crate::catalogue::profile::request::Incoming;
use crate::catalogue::profile::request::Wanted;
use crate::domain::time::Span;
use crate::http::access;
use crate::http::answer;
use crate::http::answer::Frame;
use crate::http::answer::Rendered;
use crate::http::ask;
use crate::http::ask::Limits;
use crate::http::ask::Question;
use crate::http::check;
use crate::http::problem::Problem;
use crate::region::state::Region;

/// Where gateways ask.
pub const PATH: &str = "/v1/gateway/";

/// A strict limit waits for its leader no longer, unless the gateway says so: gateways wait for a quarter of a second, and
/// what the profile does on an error must come before that.
const MAX_WAIT: Span = Span::from_ms(200);
const DECISION: HeaderName = HeaderName::from_static("x-quota-decision");
const STATUS: HeaderName = HeaderName::from_static("x-quota-status");
/// A token of scope `check`, where `Authorization` is the client's.
const TOKEN: HeaderName = HeaderName::from_static("x-quota-token");

/// Who opened a connection. The listener puts it beside requests to [`PATH`].
#[derive(Clone, Copy, Debug)]
pub struct Hop(pub SocketAddr);

/// May this request pass?
#[utoipa::path(
    get,
    path = "/v1/gateway/{profile}",
    tag = "check",
    description = "Any method. The profile says where tenant, action, keys and cost are found in the request that the gateway holds back. Below this path, at /v1/gateway/{profile}/…, the rest of the path and the query are the original request's.",
    params(
        ("profile" = String, Path, description = "The profile in the catalogue"),
        ("max_wait_ms" = Option<u32>, Query, description = "longest wait for the leader of a strict limit; 200 unless given"),
        ("deny_status" = Option<u16>, Query, description = "401, 403, 429 or 503 instead of the profile's status of a refusal"),
        ("X-Quota-Token" = Option<String>, Header, description = "A token of scope check; Authorization may be the client's"),
    ),
    responses(
        (status = 200, description = "It may; X-Quota-Decision is allow, or error where the profile lets pass what cannot be decided"),
        (status = 429, description = "It may not", content_type = "application/problem+json", body = answer::CheckAnswer<'static>),
        (status = 503, description = "This region cannot decide", content_type = "application/problem+json", body = answer::CheckAnswer<'static>),
        crate::http::schema::RequestProblems,
    )
)]
pub async fn gateway(State(region): State<Arc<Region>>, request: Request) -> Response<Body> {
    let (head, _) = request.into_parts();
    let target = Target::of(head.uri.path(), head.uri.query());
    let hop = head.extensions.get::<Hop>().map(|hop| hop.0.ip());
    let told = match statuses(&region, &target) {
        Ok((gateway, deny)) => {
            let asked = Asked {
                gateway: &gateway,
                target: &target,
                hop,
                method: head.method.as_str(),
                headers: &head.headers,
            };
            told(answered(&region, &asked).await, gateway.on_error, deny)
        }
        Err(problem) => {
            // Of a profile that there is not its gateway understands no other status either.
            let deny = deny_status(&target).ok().flatten();
            told(Err(problem), OnError::Deny, deny.unwrap_or(DENY_STATUS))
        }
    };
    told.into_response()
}

/// What the path and query of a request to [`PATH`] name.
struct Target<'r> {
    profile: &'r str,
    /// The path below the profile's, with its leading slash; empty at the profile itself.
    below: &'r str,
    query: Option<&'r str>,
}

impl<'r> Target<'r> {
    fn of(path: &'r str, query: Option<&'r str>) -> Self {
        let rest = path.strip_prefix(PATH).unwrap_or_default();
        let (profile, below) = match rest.find('/') {
            Some(at) => rest.split_at(at),
            None => (rest, ""),
        };
        Self {
            profile,
            below,
            query,
        }
    }
}

struct Asked<'r> {
    gateway: &'r Gateway,
    target: &'r Target<'r>,
    hop: Option<IpAddr>,
    method: &'r str,
    headers: &'r HeaderMap,
}

/// The profile, and the status of a refusal.
fn statuses(region: &Region, target: &Target<'_>) -> Result<(Arc<Gateway>, u16), Problem> {
    if !region.has_catalogue() {
        return Err(Problem::unavailable(
            "this region has not joined its cluster yet and knows no profiles",
        ));
    }
    let view = region.view();
    let gateway = view.gateway(target.profile).ok_or_else(|| {
        Problem::not_found("there is no such gateway profile; define it in the catalogue")
    })?;
    let deny = deny_status(target)?.unwrap_or(gateway.deny_status);
    Ok((Arc::clone(gateway), deny))
}

/// What the gateway says with the profile's path by `name=`; below that path the query is the client's.
fn said<'r>(target: &Target<'r>, name: &str) -> Option<&'r str> {
    if !target.below.is_empty() {
        return None;
    }
    let mut pairs = target.query.unwrap_or_default().split('&');
    pairs.find_map(|pair| pair.strip_prefix(name)?.strip_prefix('='))
}

/// How long a strict limit may wait for its leader.
fn max_wait(target: &Target<'_>) -> Result<Span, Problem> {
    let Some(wanted) = said(target, "max_wait_ms") else {
        return Ok(MAX_WAIT);
    };
    let ms = wanted.parse::<u32>().ok();
    ms.map(|ms| Span::from_ms(ms.into())).ok_or_else(|| {
        Problem::malformed("max_wait_ms must be a whole number of milliseconds, as max_wait_ms=200")
    })
}

/// The status of a refusal that the gateway wants.
fn deny_status(target: &Target<'_>) -> Result<Option<u16>, Problem> {
    let Some(wanted) = said(target, "deny_status") else {
        return Ok(None);
    };
    match wanted {
        "401" => Ok(Some(401)),
        "403" => Ok(Some(403)),
        "429" => Ok(Some(429)),
        "503" => Ok(Some(503)),
        _ => Err(Problem::malformed(
            "deny_status may be 401, 403, 429 or 503; the profile may name others",
        )),
    }
}

async fn answered(region: &Arc<Region>, asked: &Asked<'_>) -> Result<Rendered, Problem> {
    let caller = match asked.headers.get(TOKEN) {
        None => access::caller(region, asked.headers).await?,
        Some(token) => {
            let token = token.to_str().unwrap_or_default();
            access::caller_with(region, Some(token)).await?
        }
    };
    let wanted = wanted(asked)?;
    caller.may_check(&wanted.tenant)?;
    let keys: SmallVec<[(&str, &str); 4]> = wanted
        .keys
        .iter()
        .map(|(label, key)| (*label, key.as_str()))
        .collect();
    let ip = wanted.client_ip.map(|ip| ip.to_string());
    let question = Question {
        tenant: &wanted.tenant,
        limits: Limits::Action {
            action: &wanted.action,
            keys: &keys,
        },
        cost: wanted.cost,
        endpoint: Some(asked.target.profile),
        ip: ip.as_deref(),
        max_wait: Some(max_wait(asked.target)?),
    };
    ask::decide(region, &question, |items, outcome, now| {
        let frame = Frame {
            region: region.name.as_str(),
            now,
            styles: region.header_styles,
            hold: None,
            in_batch: false,
        };
        answer::render(&check::judged(region, items, outcome), &frame)
    })
    .await
}

/// The check that is meant.
fn wanted<'r>(asked: &Asked<'r>) -> Result<Wanted<'r>, Problem> {
    let headers: SmallVec<[(&str, &[u8]); 32]> = asked
        .headers
        .iter()
        .map(|(name, value)| (name.as_str(), value.as_bytes()))
        .collect();
    let incoming = Incoming {
        hop: asked.hop,
        method: asked.method,
        below: asked.target.below,
        query: asked.target.query,
        headers: &headers,
    };
    asked.gateway.wanted(&incoming).map_err(Problem::malformed)
}

/// An answer as a gateway understands it.
fn told(answered: Result<Rendered, Problem>, on_error: OnError, deny: u16) -> Told {
    match answered {
        Ok(rendered) => match rendered.status {
            200 => Told::empty("allow", 200, rendered),
            429 => Told::refusal("deny", deny, rendered),
            status if on_error == OnError::Allow => Told::empty("error", status, rendered),
            status => Told::refusal("error", status, rendered),
        },
        Err(problem) => {
            let status = problem.status;
            // Only what is no mistake of the caller's may pass.
            if status >= 500 && on_error == OnError::Allow {
                return Told::empty("error", status, Rendered::default());
            }
            // A gateway that was given a status of its own understands no others of refusals.
            let sent = if status < 500 && deny != DENY_STATUS {
                deny
            } else {
                status
            };
            Told {
                decision: "error",
                status,
                sent: Sent::Problem(Box::new(Problem {
                    status: sent,
                    ..problem
                })),
            }
        }
    }
}

/// What is told to a gateway.
struct Told {
    decision: &'static str,
    /// The status that a check would have had.
    status: u16,
    sent: Sent,
}

enum Sent {
    Rendered(Box<Rendered>),
    Problem(Box<Problem>),
}

impl Told {
    /// 200 without a body.
    fn empty(decision: &'static str, status: u16, mut rendered: Rendered) -> Self {
        rendered.status = 200;
        rendered.body.clear();
        rendered
            .headers
            .retain(|(name, _)| *name != header::CONTENT_TYPE && *name != header::RETRY_AFTER);
        Self {
            decision,
            status,
            sent: Sent::Rendered(Box::new(rendered)),
        }
    }

    /// A refusal with `sent` as its status, which its body tells too.
    fn refusal(decision: &'static str, sent: u16, mut rendered: Rendered) -> Self {
        let status = rendered.status;
        if sent != status {
            let told = format!("\"status\":{status},");
            let start = memchr::memmem::find(&rendered.body, told.as_bytes());
            if let Some(start) = start {
                let end = start + told.len();
                let instead = format!("\"status\":{sent},");
                rendered.body.splice(start..end, instead.into_bytes());
            }
            rendered.status = sent;
        }
        Self {
            decision,
            status,
            sent: Sent::Rendered(Box::new(rendered)),
        }
    }
}

impl IntoResponse for Told {
    fn into_response(self) -> Response<Body> {
        let mut response = match self.sent {
            Sent::Rendered(rendered) => Response::from(*rendered),
            Sent::Problem(problem) => problem.into_response(),
        };
        let headers = response.headers_mut();
        headers.insert(DECISION, HeaderValue::from_static(self.decision));
        headers.insert(STATUS, HeaderValue::from(self.status));
        response
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::http::problem::Code;

    fn refused() -> Rendered {
        Rendered {
            status: 429,
            headers: SmallVec::new(),
            body: br#"{"type":"x","title":"y","status":429,"detail":"limit a"}"#.to_vec(),
        }
    }

    fn status_and_body(told: Told) -> (u16, u16, &'static str, String) {
        let decision = told.decision;
        let inner = told.status;
        match told.sent {
            Sent::Rendered(rendered) => (
                rendered.status,
                inner,
                decision,
                String::from_utf8(rendered.body).expect("text"),
            ),
            Sent::Problem(problem) => (problem.status, inner, decision, problem.detail.clone()),
        }
    }

    #[test]
    fn a_refusal_has_the_status_that_the_gateway_understands() {
        let (status, inner, decision, body) =
            status_and_body(told(Ok(refused()), OnError::Allow, 403));
        assert_eq!((status, inner, decision), (403, 429, "deny"));
        assert_eq!(
            body,
            r#"{"type":"x","title":"y","status":403,"detail":"limit a"}"#
        );
    }

    #[test]
    fn only_what_is_nobodys_mistake_follows_on_error() {
        let unavailable = || Err(Problem::unavailable("not now"));
        let malformed = || Err(Problem::malformed("twice"));
        let sent = |answered, on_error, deny| {
            let (status, inner, decision, _) = status_and_body(told(answered, on_error, deny));
            (status, inner, decision)
        };
        assert_eq!(
            sent(unavailable(), OnError::Allow, 429),
            (200, 503, "error")
        );
        assert_eq!(sent(unavailable(), OnError::Deny, 403), (503, 503, "error"));
        assert_eq!(sent(malformed(), OnError::Allow, 429), (400, 400, "error"));
        assert_eq!(sent(malformed(), OnError::Allow, 403), (403, 400, "error"));
    }

    #[test]
    fn a_target_is_profile_and_rest() {
        let target = |path| {
            let target = Target::of(path, None);
            (target.profile.to_owned(), target.below.to_owned())
        };
        let pair = |a: &str, b: &str| (a.to_owned(), b.to_owned());
        assert_eq!(target("/v1/gateway/envoy"), pair("envoy", ""));
        assert_eq!(target("/v1/gateway/envoy/"), pair("envoy", "/"));
        assert_eq!(target("/v1/gateway/envoy/a/b"), pair("envoy", "/a/b"));
        assert_eq!(target("/v1/gateway/"), pair("", ""));
    }

    #[test]
    fn the_query_chooses_a_status_at_the_profile_alone() {
        let wanted = |path, query| deny_status(&Target::of(path, Some(query)));
        assert_eq!(
            wanted("/v1/gateway/n", "a=1&deny_status=403"),
            Ok(Some(403))
        );
        assert_eq!(wanted("/v1/gateway/n", "a=1"), Ok(None));
        assert_eq!(wanted("/v1/gateway/n/x", "deny_status=200"), Ok(None));
        let waits = |path, query| max_wait(&Target::of(path, Some(query)));
        assert_eq!(
            waits("/v1/gateway/n", "max_wait_ms=900"),
            Ok(Span::from_ms(900))
        );
        for (path, query) in [
            ("/v1/gateway/n", "a=1"),
            ("/v1/gateway/n/x", "max_wait_ms=9"),
        ] {
            assert_eq!(waits(path, query), Ok(MAX_WAIT));
        }
        let code = wanted("/v1/gateway/n", "deny_status=200").map_err(|problem| problem.code);
        assert_eq!(code, Err(Code::Malformed));
    }
}
