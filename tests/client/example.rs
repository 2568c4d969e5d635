//! An axum service whose callers have a quota each.
//!
//! Beside `highwater dev`: `cargo run --example client`, then `curl -i -H 'x-user: alice' localhost:3000/hello` until
//! it is refused, which it is after 100 calls at once.

use std::time::Duration;

use axum::Extension;
use axum::Router;
use axum::routing::get;
use highwater::client::BuildError;
use highwater::client::Charge;
use highwater::client::Check;
use highwater::client::Client;
use highwater::client::OnFailure;
use highwater::client::QuotaLayer;
use highwater::client::Verdict;

/// The service; `server` is the check listener of a region nearby.
///
/// # Errors
/// When the address is no HTTP address.
pub fn router(server: &str) -> Result<Router, BuildError> {
    let client = Client::builder(server)
        .deadline(Duration::from_millis(250))
        .on_failure(OnFailure::Allow)
        .build()?;
    let quota = QuotaLayer::new(client, |request| {
        if request.uri.path() == "/livez" {
            return None;
        }
        let user = request
            .headers
            .get("x-user")
            .and_then(|user| user.to_str().ok());
        let user = user.filter(|user| !user.is_empty()).unwrap_or("nobody");
        Some(Check::new("demo", Charge::on("regional-api").key(user)))
    });
    Ok(Router::new()
        .route("/hello", get(hello))
        .route("/livez", get(|| async { "alive" }))
        .layer(quota))
}

async fn hello(Extension(verdict): Extension<Verdict>) -> String {
    match verdict.rate_limit() {
        Some(limit) => format!("hello, {} of {} left", limit.remaining, limit.quota),
        None => "hello, nobody counts".to_owned(),
    }
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let server = std::env::args().nth(1);
    let service = router(server.as_deref().unwrap_or("http://127.0.0.1:7110"))?;
    let listener = tokio::net::TcpListener::bind("127.0.0.1:3000").await?;
    println!("listening on http://{}", listener.local_addr()?);
    axum::serve(listener, service).await?;
    Ok(())
}
