//! A tower layer: every request of a service is a question first.

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::Context;
use std::task::Poll;

use http::HeaderName;
use http::HeaderValue;
use http::Request;
use http::Response;
use http::StatusCode;
use http::header::CACHE_CONTROL;
use http::header::CONTENT_TYPE;
use http::header::RETRY_AFTER;
use http::request::Parts;
use serde_json::json;
use tower_layer::Layer;
use tower_service::Service;

use super::Check;
use super::CheckError;
use super::Client;
use super::Verdict;

const REDUCED_CAPACITY: &str =
    "https://iana.org/assignments/http-problem-types#temporary-reduced-capacity";

/// Asks a Highwater server for every request that a service gets, and lets the allowed ones through.
///
/// A closure makes the question of a request's head; none lets the request pass unasked.
///
/// | verdict | what happens |
/// |---|---|
/// | allowed | the service answers; the `RateLimit…` headers of the verdict are added unless it set its own |
/// | refused by the server | its status (429, or 503), headers (`Retry-After`, `RateLimit…`) and `application/problem+json` body |
/// | no server decided, [`OnFailure::Allow`](super::OnFailure) | the service answers, without those headers |
/// | no server decided, [`OnFailure::Deny`](super::OnFailure) | 503, `Retry-After: 1`, a problem with `"degraded": true` |
/// | the question is at fault ([`CheckError`]) | 500: a fault of this service, which goes to the log; the caller is told nothing of it |
///
/// The [`Verdict`] is in the extensions of the request that the service gets and of every response, a [`CheckError`] in
/// those of the response, for handlers and for layers that count. A leaky bucket's [`Verdict::delay`] is not waited
/// for: a handler that wants to, does.
///
/// The service's response body `R` must be one that a `String` makes, as those of axum and of `http-body-util`'s `Full` are.
///
/// ```no_run
/// use axum::Router;
/// use axum::routing::get;
/// use highwater::client::Action;
/// use highwater::client::Check;
/// use highwater::client::Client;
/// use highwater::client::QuotaLayer;
///
/// # fn router() -> Result<Router, highwater::client::BuildError> {
/// let client = Client::builder("http://127.0.0.1:7110").build()?;
/// let quota = QuotaLayer::new(client, |request| {
///     let user = request.headers.get("x-user")?.to_str().ok()?;
///     Some(Check::new("acme", Action::named("api").key("user", user)))
/// });
/// let router = Router::new().route("/", get(|| async { "hello" })).layer(quota);
/// # Ok(router)
/// # }
/// ```
pub struct QuotaLayer<F> {
    asking: Arc<Asking<F>>,
}

/// A service behind a [`QuotaLayer`].
pub struct Quota<S, F> {
    service: S,
    asking: Arc<Asking<F>>,
}

/// The answer of a [`Quota`], in the making.
pub type QuotaFuture<R, E> = Pin<Box<dyn Future<Output = Result<Response<R>, E>> + Send>>;

struct Asking<F> {
    client: Client,
    question: F,
}

impl<F> QuotaLayer<F>
where
    F: Fn(&Parts) -> Option<Check>,
{
    /// A layer that asks with `client` what `question` makes of a request's head.
    pub fn new(client: Client, question: F) -> Self {
        Self {
            asking: Arc::new(Asking { client, question }),
        }
    }
}

impl<F> Clone for QuotaLayer<F> {
    fn clone(&self) -> Self {
        Self {
            asking: Arc::clone(&self.asking),
        }
    }
}

impl<F> fmt::Debug for QuotaLayer<F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let client = &self.asking.client;
        f.debug_struct("QuotaLayer")
            .field("client", client)
            .finish_non_exhaustive()
    }
}

impl<S, F> Layer<S> for QuotaLayer<F> {
    type Service = Quota<S, F>;

    fn layer(&self, service: S) -> Self::Service {
        Quota {
            service,
            asking: Arc::clone(&self.asking),
        }
    }
}

impl<S: Clone, F> Clone for Quota<S, F> {
    fn clone(&self) -> Self {
        Self {
            service: self.service.clone(),
            asking: Arc::clone(&self.asking),
        }
    }
}

impl<S: fmt::Debug, F> fmt::Debug for Quota<S, F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Quota")
            .field("service", &self.service)
            .finish_non_exhaustive()
    }
}

impl<S, F, B, R> Service<Request<B>> for Quota<S, F>
where
    S: Service<Request<B>, Response = Response<R>> + Clone + Send + 'static,
    S::Future: Send + 'static,
    F: Fn(&Parts) -> Option<Check> + Send + Sync + 'static,
    B: Send + 'static,
    R: From<String>,
{
    type Response = Response<R>;
    type Error = S::Error;
    type Future = QuotaFuture<R, S::Error>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        self.service.poll_ready(context)
    }

    fn call(&mut self, request: Request<B>) -> Self::Future {
        let (mut head, body) = request.into_parts();
        let check = (self.asking.question)(&head);
        // The service that said it is ready answers; its clone, which has not been asked yet, stays.
        let fresh = self.service.clone();
        let mut service = std::mem::replace(&mut self.service, fresh);
        let Some(check) = check else {
            return Box::pin(service.call(Request::from_parts(head, body)));
        };
        let client = self.asking.client.clone();
        Box::pin(async move {
            let verdict = match client.check(&check).await {
                Ok(verdict) => verdict,
                Err(error) => return Ok(fault(error)),
            };
            if !verdict.is_allowed() {
                return Ok(refusal(verdict));
            }
            head.extensions.insert(verdict.clone());
            let mut response = service.call(Request::from_parts(head, body)).await?;
            tell(&verdict, &mut response);
            response.extensions_mut().insert(verdict);
            Ok(response)
        })
    }
}

/// Adds the server's headers that the response does not have.
fn tell<R>(verdict: &Verdict, response: &mut Response<R>) {
    let Some(headers) = verdict.server_headers() else {
        return;
    };
    for (name, value) in headers {
        let entry = response.headers_mut().entry(name);
        entry.or_insert_with(|| value.clone());
    }
}

/// The refusal as the server tells it, or as it would.
fn refusal<R: From<String>>(verdict: Verdict) -> Response<R> {
    let mut response = match (verdict.problem(), verdict.failure()) {
        (Some(problem), _) => problem_response(verdict.status(), problem.to_owned()),
        (None, failure) => {
            let detail = failure.map(ToString::to_string).unwrap_or_default();
            let body = json!({
                "type": REDUCED_CAPACITY,
                "title": "Request cannot be satisfied due to temporary server capacity constraints",
                "status": verdict.status(),
                // Addresses and causes are for this service's own log, not for its callers.
                "detail": "the quota of this request could not be asked for",
                "decision": "deny",
                "degraded": true,
            });
            tracing::debug!(detail, "denied, since no server decided");
            problem_response(verdict.status(), body.to_string())
        }
    };
    tell(&verdict, &mut response);
    if verdict.is_local()
        && let Some(wait) = verdict.retry_after()
    {
        let seconds = HeaderValue::from(wait.as_secs());
        response.headers_mut().insert(RETRY_AFTER, seconds);
    }
    response.extensions_mut().insert(verdict);
    response
}

/// 500: whoever called did nothing wrong.
fn fault<R: From<String>>(error: CheckError) -> Response<R> {
    tracing::error!(%error, "a request's quota cannot be asked for");
    let body = json!({
        "type": "about:blank",
        "title": "Internal Server Error",
        "status": 500,
        "detail": "this service asks for a quota in a wrong way",
    });
    let mut response = problem_response(500, body.to_string());
    response.extensions_mut().insert(error);
    response
}

fn problem_response<R: From<String>>(status: u16, body: String) -> Response<R> {
    const HEADERS: [(HeaderName, HeaderValue); 2] = [
        (
            CONTENT_TYPE,
            HeaderValue::from_static("application/problem+json"),
        ),
        (CACHE_CONTROL, HeaderValue::from_static("no-store")),
    ];
    let mut response = Response::new(R::from(body));
    *response.status_mut() =
        StatusCode::from_u16(status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
    response.headers_mut().extend(HEADERS);
    response
}
