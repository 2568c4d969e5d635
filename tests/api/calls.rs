//! What tests ask of a running server: calls of both listeners, alone and in parallel, and the command line.

use std::process::Output;
use std::process::Stdio;
use std::sync::LazyLock;
use std::time::Duration;
use std::time::Instant;

use reqwest::Client;
use reqwest::Method;
use serde_json::Value;
use serde_json::json;
use tokio::runtime::Runtime;

use crate::answer::Answer;
use crate::server::ADMIN_TOKEN;
use crate::server::Server;
use crate::server::highwater;

/// So long a 503 that nothing was done for is taken for the machine's.
const CALM_PATIENCE: Duration = Duration::from_secs(5);

/// Carries the HTTP calls of all tests of one binary.
pub static RUNTIME: LazyLock<Runtime> = LazyLock::new(|| {
    tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()
        .expect("a runtime for the HTTP calls")
});

impl Server {
    /// Starts a fault of at most a minute and gives its id.
    pub fn inject(&self, kind: &str) -> String {
        let fault = self.admin(
            Method::POST,
            "/admin/v1/faults",
            &json!({ "kind": kind, "ttl": "60s" }),
        );
        fault.succeeded();
        match &fault.body["id"] {
            Value::String(id) => id.clone(),
            Value::Number(id) => id.to_string(),
            other => panic!("a fault has an id, not {other}: {fault:?}"),
        }
    }

    /// Ends a fault.
    pub fn heal(&self, fault: &str) {
        self.admin(
            Method::DELETE,
            &format!("/admin/v1/faults/{fault}"),
            &Value::Null,
        )
        .succeeded();
    }

    /// Replaces the whole catalogue.
    pub fn catalogue(&self, catalogue: &Value) -> Answer {
        let answer = self.admin(Method::PUT, "/admin/v1/catalogue", catalogue);
        answer.succeeded();
        answer
    }

    /// Replaces the whole catalogue by `limits` that hold for every tenant, known or not.
    pub fn limits(&self, limits: &Value) -> Answer {
        self.catalogue(&json!({ "default_plan": "all", "plans": { "all": {} }, "limits": limits }))
    }

    /// A call of the admin API with the admin token; a `body` of null is none.
    pub fn admin(&self, method: Method, path: &str, body: &Value) -> Answer {
        self.send(
            method,
            &format!("{}{path}", self.admin_url()),
            &[("authorization", "Bearer dev")],
            body,
        )
    }

    /// A call of the admin API with the token given, or none.
    pub fn admin_as(
        &self,
        token: Option<&str>,
        method: Method,
        path: &str,
        body: &Value,
    ) -> Answer {
        let bearer = token.map(|token| format!("Bearer {token}"));
        let headers: Vec<(&str, &str)> = bearer
            .iter()
            .map(|bearer| ("authorization", bearer.as_str()))
            .collect();
        self.send(
            method,
            &format!("{}{path}", self.admin_url()),
            &headers,
            body,
        )
    }

    /// `GET` on the check listener.
    pub fn get(&self, path: &str) -> Answer {
        self.send(
            Method::GET,
            &format!("{}{path}", self.check_url()),
            &[],
            &Value::Null,
        )
    }

    /// `POST` on the check listener.
    pub fn post(&self, path: &str, body: &Value) -> Answer {
        self.post_with(path, &[], body)
    }

    /// `POST` on the check listener with headers.
    pub fn post_with(&self, path: &str, headers: &[(&str, &str)], body: &Value) -> Answer {
        self.send(
            Method::POST,
            &format!("{}{path}", self.check_url()),
            headers,
            body,
        )
    }

    /// `POST /v1/check`.
    pub fn check(&self, body: &Value) -> Answer {
        self.post("/v1/check", body)
    }

    /// `POST /v1/check/batch`; the statuses and bodies of its items in order.
    pub fn batch(&self, items: &[Value]) -> Vec<Value> {
        let answer = self.post("/v1/check/batch", &json!({ "items": items }));
        assert_eq!(answer.status, 200, "{answer:?}");
        let results = answer.body["results"]
            .as_array()
            .expect("results of a batch")
            .clone();
        assert_eq!(results.len(), items.len(), "one result per item");
        results
    }

    /// Any call; a `body` of null is none.
    #[allow(
        clippy::needless_pass_by_value,
        reason = "callers write the method in its place"
    )]
    pub fn send(
        &self,
        method: Method,
        url: &str,
        headers: &[(&str, &str)],
        body: &Value,
    ) -> Answer {
        let changes = method != Method::GET;
        if changes && (url.contains("/faults") || url.contains("/cluster/")) {
            self.disturb();
        }
        let began = Instant::now();
        loop {
            let answer = RUNTIME
                .block_on(send(self.client(), method.clone(), url, headers, body))
                .expect("the server answers");
            if !changes
                || answer.status != 503
                || !self.is_calm()
                || answer.text.contains("outcome_unknown")
                || began.elapsed() > CALM_PATIENCE
            {
                return answer;
            }
            std::thread::sleep(Duration::from_millis(50));
        }
    }

    /// `POST` of any text on the check listener, said to be JSON.
    #[allow(dead_code, reason = "each test binary uses its part of the harness")]
    pub fn post_text(&self, path: &str, body: &str) -> Answer {
        self.send_text(
            Method::POST,
            &format!("{}{path}", self.check_url()),
            &[],
            body,
        )
    }

    /// Any call with any text as its body, said to be JSON.
    #[allow(dead_code, reason = "each test binary uses its part of the harness")]
    pub fn send_text(
        &self,
        method: Method,
        url: &str,
        headers: &[(&str, &str)],
        body: &str,
    ) -> Answer {
        let request = send_text(self.client(), method, url, headers, body.to_owned());
        RUNTIME.block_on(request).expect("the server answers")
    }

    /// The same call of the check listener `calls` times on each of `connections` connections at once.
    pub fn in_parallel(
        &self,
        connections: usize,
        calls: usize,
        path: &str,
        body: &Value,
    ) -> Vec<Answer> {
        let url = format!("{}{path}", self.check_url());
        RUNTIME.block_on(async {
            let callers: Vec<_> = (0..connections)
                .map(|_| {
                    let (url, body) = (url.clone(), body.clone());
                    tokio::spawn(async move {
                        let client = new_client();
                        let mut answers = Vec::with_capacity(calls);
                        for _ in 0..calls {
                            let answer = send(&client, Method::POST, &url, &[], &body).await;
                            answers.push(answer.expect("the server answers"));
                        }
                        answers
                    })
                })
                .collect();
            let mut answers = Vec::with_capacity(connections * calls);
            for caller in callers {
                answers.extend(caller.await.expect("the caller ends"));
            }
            answers
        })
    }

    /// Runs a client command of the same binary against this server.
    pub fn cli(&self, arguments: &[&str]) -> Output {
        highwater()
            .args(arguments)
            .args(["--server", self.admin_url()])
            .env("HIGHWATER_TOKEN", ADMIN_TOKEN)
            .stdin(Stdio::null())
            .output()
            .expect("the command runs")
    }

    /// The sum of all samples of one metric, with labels (`name{policy="open"}` in any order) narrowed down by
    /// texts that each sample's line must contain; 0 when there is none.
    pub fn metric(&self, name: &str, labels: &[&str]) -> f64 {
        let metrics = self.admin(Method::GET, "/metrics", &Value::Null);
        assert_eq!(metrics.status, 200, "{metrics:?}");
        metrics
            .text
            .lines()
            .filter(|line| {
                line.starts_with(&format!("{name}{{")) || line.starts_with(&format!("{name} "))
            })
            .filter(|line| labels.iter().all(|label| line.contains(label)))
            .filter_map(|line| line.rsplit(' ').next())
            .map(|value| value.parse::<f64>().expect("a number"))
            .sum()
    }
}

/// A client with connections of its own.
pub fn new_client() -> Client {
    Client::builder()
        .no_proxy()
        .timeout(Duration::from_secs(60))
        .tcp_nodelay(true)
        .build()
        .expect("a client")
}

/// One call, a `body` of null is none; an error means that no complete answer came.
pub async fn send(
    client: &Client,
    method: Method,
    url: &str,
    headers: &[(&str, &str)],
    body: &Value,
) -> Result<Answer, reqwest::Error> {
    let body = if body.is_null() {
        String::new()
    } else {
        body.to_string()
    };
    send_text(client, method, url, headers, body).await
}

async fn send_text(
    client: &Client,
    method: Method,
    url: &str,
    headers: &[(&str, &str)],
    body: String,
) -> Result<Answer, reqwest::Error> {
    let mut request = client.request(method, url);
    for (name, value) in headers {
        request = request.header(*name, *value);
    }
    if !body.is_empty() {
        request = request
            .header("content-type", "application/json")
            .body(body);
    }
    let response = request.send().await?;
    let status = response.status().as_u16();
    let headers = response
        .headers()
        .iter()
        .map(|(name, value)| {
            (
                name.as_str().to_owned(),
                String::from_utf8_lossy(value.as_bytes()).into_owned(),
            )
        })
        .collect();
    Ok(Answer::new(status, headers, response.text().await?))
}
