//! One gateway between a browser and an application, with Highwater beside it.

use std::path::Path;
use std::time::Duration;
use std::time::Instant;

use reqwest::Client;
use reqwest::Method;
use serde_json::Value;
use serde_json::json;

use crate::answer::Answer;
use crate::application;
use crate::calls;
use crate::calls::RUNTIME;
use crate::program::Addresses;
use crate::program::Program;
use crate::program::free_port;
use crate::server::Server;
use crate::server::Stop;

/// No recipe waits longer for Highwater than its 250 ms; the rest is for a machine with other things to do.
const DEADLINE: Duration = Duration::from_millis(1_500);

/// See the module.
pub struct Edge {
    /// Highwater.
    pub server: Server,
    addresses: Addresses,
    program: Program,
    client: Client,
}

/// What a recipe says of the gateway.
pub struct Promise {
    /// Whether allowed answers carry RateLimit headers.
    pub tells_allowed: bool,
    /// Whether a refusal's body is Highwater's own.
    pub passes_body: bool,
    /// The status of requests while Highwater is stopped; 200 passes them.
    pub stopped: u16,
    /// The status of requests while it does not answer.
    pub slow: u16,
}

impl Edge {
    /// Starts Highwater with the recipes' catalogue and 2 requests an hour for each address, an application, and
    /// with `start` the gateway.
    pub fn new(start: impl Fn(&Addresses) -> Program) -> Self {
        let server = Server::on_real_clock(&[("listen.grpc", "\"127.0.0.1:0\"")]);
        let catalogue = Path::new(env!("CARGO_MANIFEST_DIR")).join("ops/gateways/catalogue.toml");
        let applied = server.cli(&["apply", "-f", &catalogue.to_string_lossy()]);
        assert!(
            applied.status.success(),
            "{}",
            String::from_utf8_lossy(&applied.stderr)
        );
        server
            .admin(
                Method::PUT,
                "/admin/v1/limits/per-address",
                &json!({
                    "algorithm": "sliding_log", "quota": 2, "window": "1h", "key": "ip", "actions": ["api"],
                    "match": ["remote_address"],
                }),
            )
            .succeeded();
        let port = |url: &str| -> u16 {
            let port = url.rsplit(':').next().expect("a port");
            port.parse().expect("a port")
        };
        let addresses = Addresses {
            highwater: port(server.check_url()),
            highwater_grpc: port(server.grpc_url()),
            application: application::start(),
            edge: free_port(),
        };
        Self {
            program: start(&addresses),
            server,
            addresses,
            client: calls::new_client(),
        }
    }

    /// Sends a request to the gateway.
    pub fn call(&self, method: Method, path: &str, headers: &[(&str, &str)], body: &str) -> Answer {
        let url = format!("http://127.0.0.1:{}{path}", self.addresses.edge);
        let body = if body.is_empty() {
            Value::Null
        } else {
            Value::from(body)
        };
        RUNTIME
            .block_on(calls::send(&self.client, method, &url, headers, &body))
            .unwrap_or_else(|error| panic!("the gateway answers: {error}\n{}", self.program.log()))
    }

    fn get(&self) -> Answer {
        self.call(Method::GET, "/hello?a=1", &[], "")
    }

    /// Holds the gateway to `promise`.
    pub fn keeps(&mut self, promise: &Promise) {
        let spoofed = [
            ("x-forwarded-for", "203.0.113.99"),
            ("x-original-uri", "/cheap"),
            ("x-original-method", "OPTIONS"),
            ("x-forwarded-uri", "/cheap"),
            ("x-quota-decision", "allow"),
            ("host", "example.com"),
        ];
        let body = "x".repeat(100_000);
        let allowed = [
            self.get(),
            // The query of a client is none of the profile's.
            self.call(
                Method::POST,
                "/upload?deny_status=200&max_wait_ms=x",
                &spoofed,
                &body,
            ),
        ];
        for (left, answer) in [1, 0].into_iter().zip(&allowed) {
            assert_eq!(answer.status, 200, "{answer:?}");
            assert!(answer.text.starts_with("application "), "{answer:?}");
            if promise.tells_allowed {
                let (limit, remaining, _) = answer.rate_limit();
                assert_eq!((limit.as_str(), remaining), ("per-address", left));
                assert_eq!(answer.policy("q"), Some("2"), "{answer:?}");
            }
        }
        // However it is asked: the address is the one that the gateway saw.
        for headers in [&[][..], &spoofed] {
            let refused = self.call(Method::GET, "/hello?deny_status=401", headers, "");
            assert_eq!(refused.status, 429, "{refused:?}");
            let (limit, remaining, _) = refused.rate_limit();
            assert_eq!((limit.as_str(), remaining), ("per-address", 0));
            assert_eq!(refused.policy("q"), Some("2"), "{refused:?}");
            let wait = refused.retry_after().expect("Retry-After");
            assert!((3_000..=3_600).contains(&wait), "{refused:?}");
            assert_eq!(
                refused.header("content-type"),
                Some("application/problem+json")
            );
            assert!(
                refused.body["type"]
                    .as_str()
                    .is_some_and(|kind| kind.ends_with("#quota-exceeded")),
                "{refused:?}"
            );
            assert_eq!(refused.body["status"], 429);
            let violated = &refused.body["violated-policies"];
            assert_eq!(*violated == json!(["per-address"]), promise.passes_body);
        }
        let reset = "/admin/v1/tenants/acme/limits/per-address/reset";
        self.server
            .admin(Method::POST, reset, &json!({}))
            .succeeded();
        let forbidden = self.call(Method::GET, "/forbidden", &[], "");
        assert_eq!(
            forbidden.status, 403,
            "the application's own: {forbidden:?}"
        );
        assert!(forbidden.text.starts_with("application "), "{forbidden:?}");

        self.pause(rustix::process::Signal::STOP);
        self.answers(promise.slow, "slow");
        self.pause(rustix::process::Signal::CONT);
        self.server.stop(Stop::Kill);
        self.answers(promise.stopped, "stopped");
    }

    fn pause(&self, signal: rustix::process::Signal) {
        let pid = i32::try_from(self.server.pid())
            .ok()
            .and_then(rustix::process::Pid::from_raw)
            .expect("a process id");
        rustix::process::kill_process(pid, signal).expect("the child is ours");
    }

    fn answers(&self, status: u16, when: &str) {
        for _ in 0..2 {
            let began = Instant::now();
            let answer = self.get();
            let took = began.elapsed();
            assert_eq!(answer.status, status, "{when}: {answer:?}");
            assert_eq!(
                answer.text.starts_with("application "),
                status == 200,
                "{when}: {answer:?}"
            );
            assert!(took < DEADLINE, "{when}: answered after {took:?}");
        }
    }
}
