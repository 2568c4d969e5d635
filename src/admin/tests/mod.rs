//! The admin API over a real region in a temporary directory, without sockets.

mod access;
mod catalogue;

mod document;
mod items;
mod moves;
mod tenants;
mod tokens;

use std::sync::Arc;

use axum::Router;
use axum::body::Body;
use axum::http::HeaderMap;
use axum::http::Method;
use axum::http::Request;
use axum::http::header;
use http_body_util::BodyExt;
use serde_json::Value;
use serde_json::json;
use tempfile::TempDir;
use tokio::sync::watch;
use tower::ServiceExt;

use crate::admin;
use crate::region::clock::Clock;
use crate::region::cluster;
use crate::region::config::Above;
use crate::region::config::Config;
use crate::region::state::Region;

/// The configured token.
pub const ROOT: &str = "root-token";

/// A region and its admin router.
pub struct Server {
    pub region: Arc<Region>,
    router: Router,
    _stop: watch::Sender<bool>,
    _directory: TempDir,
}

/// An answer.
#[derive(Debug)]
pub struct Answer {
    pub status: u16,
    pub headers: HeaderMap,
    pub text: String,
    pub body: Value,
}

impl Answer {
    #[track_caller]
    pub fn ok(self) -> Value {
        assert_eq!(self.status, 200, "{self:?}");
        self.body
    }

    #[track_caller]
    pub fn problem(&self, status: u16, code: &str) {
        assert_eq!(self.status, status, "{self:?}");
        assert_eq!(self.body["code"], code, "{self:?}");
        assert_eq!(self.body["type"], "about:blank", "{self:?}");
        let kind = self
            .headers
            .get(header::CONTENT_TYPE)
            .expect("a content type");
        assert_eq!(kind, "application/problem+json");
    }
}

impl Server {
    pub async fn start() -> Self {
        let directory = TempDir::new().expect("a directory");
        let data_dir = directory.path().join("data");
        let text = format!(
            r#"
            cluster = "test"
            region = "us-east-1"
            data_dir = "{}"
            listen.check = "127.0.0.1:0"
            listen.admin = "127.0.0.1:0"
            listen.peer = "127.0.0.1:0"
            auth.admin_token = "{ROOT}"
            "#,
            data_dir.display()
        );
        let config =
            Config::resolve("test.toml", &text, Above::default()).expect("a configuration");
        let url = "http://127.0.0.1:0".to_owned();
        let (region, letters) = Region::open(&config, Clock::manual(), url).expect("a region");
        let (stop, stopped) = watch::channel(false);
        cluster::join(&config, &region, letters, &stopped)
            .await
            .expect("a log");
        region.wait_until_enrolled().await.expect("a cluster");
        let router = admin::router(Arc::clone(&region));
        Self {
            region,
            router,
            _stop: stop,
            _directory: directory,
        }
    }

    pub async fn send(
        &self,
        method: Method,
        path: &str,
        headers: &[(&str, &str)],
        body: impl Into<Body>,
    ) -> Answer {
        let mut request = Request::builder().method(method).uri(path);
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        let request = request.body(body.into()).expect("a request");
        let response = self
            .router
            .clone()
            .oneshot(request)
            .await
            .expect("an answer");
        let (parts, body) = response.into_parts();
        let bytes = body.collect().await.expect("a body").to_bytes();
        let text = String::from_utf8_lossy(&bytes).into_owned();
        let body = serde_json::from_str(&text).unwrap_or(Value::Null);
        Answer {
            status: parts.status.as_u16(),
            headers: parts.headers,
            text,
            body,
        }
    }

    /// With a token.
    pub async fn as_token(&self, token: &str, method: Method, path: &str, body: &Value) -> Answer {
        let bearer = format!("Bearer {token}");
        let body = if body.is_null() {
            String::new()
        } else {
            body.to_string()
        };
        self.send(method, path, &[("authorization", &bearer)], body)
            .await
    }

    /// With the configured token.
    pub async fn root(&self, method: Method, path: &str, body: &Value) -> Answer {
        self.as_token(ROOT, method, path, body).await
    }

    pub async fn get(&self, path: &str) -> Answer {
        self.root(Method::GET, path, &Value::Null).await
    }

    pub async fn put(&self, path: &str, body: &Value) -> Answer {
        self.root(Method::PUT, path, body).await
    }

    pub async fn delete(&self, path: &str) -> Answer {
        self.root(Method::DELETE, path, &Value::Null).await
    }

    /// Makes a token and tells it.
    pub async fn token(&self, request: &Value) -> String {
        let created = self
            .root(Method::POST, "/admin/v1/tokens", request)
            .await
            .ok();
        created["token"].as_str().expect("a token").to_owned()
    }

    /// A server with a catalogue of two plans and two tenants.
    pub async fn with_catalogue() -> Self {
        let server = Self::start().await;
        server
            .put("/admin/v1/catalogue", &catalogue_document())
            .await
            .ok();
        server
    }
}

pub fn catalogue_document() -> Value {
    json!({
        "default_plan": "free",
        "limits": {
            "api": { "algorithm": "fixed_window", "quota": 10, "window": "1m", "key": "user", "actions": ["api"] },
            "exports": { "quota": 5, "period": "day" },
        },
        "plans": { "free": { "limits": {} }, "pro": { "limits": { "api": { "quota": 100 } } } },
        "tenants": {
            "acme": { "plan": "pro", "time_zone": "Asia/Kolkata" },
            "other": { "plan": "pro" },
        },
    })
}
