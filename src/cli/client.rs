//! The HTTP client of the commands, and how a server's refusal is told to a person.

use std::fmt;
use std::path::Path;
use std::time::Duration;

use anyhow::Context;
use reqwest::Method;
use reqwest::Response;
use reqwest::header::ETAG;
use reqwest::header::IF_MATCH;
use serde_json::Value;

use crate::client::transport;
use crate::client::transport::Transport;
use crate::client::transport::Unread;
use crate::region::config::secret;
use crate::region::config::secret::Secret;

use super::Global;
use super::output;

/// The admin listener of the first region of `highwater dev`.
pub const DEV_SERVER: &str = "http://127.0.0.1:7111";
/// The admin token of `highwater dev`.
pub const DEV_TOKEN: &str = "dev";

/// Items that are asked for at once.
const PAGE_SIZE: &str = "1000";
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
const ANSWER_TIMEOUT: Duration = Duration::from_secs(60);
/// A page of a list or a whole catalogue; downloads are streams.
const ANSWER_BYTES_MAX: usize = 1024 * 1024 * 1024;
/// Connections that are kept open between two calls of a command.
const IDLE_MAX: usize = 64;

/// A server to talk to.
#[derive(Debug)]
pub struct Client(Transport);

/// What a server answered.
#[derive(Clone, Debug)]
pub struct Answer {
    /// The HTTP status.
    pub status: u16,
    /// The body; null when it is empty.
    pub body: Value,
    /// The version of the catalogue, when the answer names it.
    pub version: Option<u64>,
}

impl Answer {
    /// Whether the status says yes.
    pub const fn is_success(&self) -> bool {
        matches!(self.status, 200..=299)
    }

    /// The answer when it is a yes.
    ///
    /// # Errors
    /// [`ServerError`] when it is not.
    pub fn success(self) -> Result<Self, ServerError> {
        if self.is_success() {
            Ok(self)
        } else {
            Err(ServerError(self))
        }
    }
}

/// A server's answer that is not a yes.
#[derive(Debug)]
pub struct ServerError(pub Answer);

impl ServerError {
    /// The faults that the server found in single fields, as (path, message).
    pub fn field_errors(&self) -> Vec<(String, String)> {
        let errors = self.0.body.get("errors").and_then(Value::as_array);
        let read = |error: &Value| {
            let text = |name: &str| error.get(name)?.as_str().map(str::to_owned);
            Some((text("path")?, text("message")?))
        };
        errors
            .map(|errors| errors.iter().filter_map(read).collect())
            .unwrap_or_default()
    }
}

impl fmt::Display for ServerError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Answer { status, body, .. } = &self.0;
        let text = |name: &str| {
            body.get(name)
                .and_then(Value::as_str)
                .filter(|text| !text.is_empty())
        };
        let said = text("detail")
            .or_else(|| text("title"))
            .unwrap_or("the server gave no reason");
        write!(f, "{said} (HTTP {status}")?;
        if let Some(code) = text("code") {
            write!(f, ", {code}")?;
        }
        f.write_str(")")?;
        if *status == 401 {
            f.write_str("; give a token with --token-file or HIGHWATER_TOKEN")?;
        }
        Ok(())
    }
}

impl std::error::Error for ServerError {}

/// Whether `error` is a server's no, rather than a command that could not be run: the server understood the
/// request, knew the caller, and would not do it.
pub fn is_refusal(error: &anyhow::Error) -> bool {
    status_of(error)
        .is_some_and(|status| matches!(status, 400..=499) && !matches!(status, 401 | 403))
}

/// Whether `error` is a server's word that something is not there.
pub fn is_not_found(error: &anyhow::Error) -> bool {
    status_of(error) == Some(404)
}

fn status_of(error: &anyhow::Error) -> Option<u16> {
    let refused = error.downcast_ref::<ServerError>();
    refused.map(|ServerError(answer)| answer.status)
}

impl Client {
    /// A client of the server that the flags name.
    ///
    /// # Errors
    /// When the address is no HTTP address or the token cannot be read.
    pub fn new(global: &Global) -> anyhow::Result<Self> {
        let token = token(global)?;
        Self::to(&global.server, token.as_ref())
    }

    /// A client of the server at `server` that shows `token`.
    ///
    /// # Errors
    /// When the address is no HTTP address.
    pub fn to(server: &str, token: Option<&Secret>) -> anyhow::Result<Self> {
        let token = token.map(Secret::expose);
        let transport = Transport::new(server, token, CONNECT_TIMEOUT, IDLE_MAX)
            .with_context(|| format!("--server {server}"))?;
        Ok(Self(transport))
    }

    /// `GET` of the path made of `segments`.
    ///
    /// # Errors
    /// When no answer comes.
    pub async fn get(&self, segments: &[&str], query: &[(&str, &str)]) -> anyhow::Result<Answer> {
        self.call(Method::GET, segments, query, None, None).await
    }

    /// One request with a JSON body and the version of the catalogue that it is meant for.
    ///
    /// # Errors
    /// When no answer comes.
    pub async fn call(
        &self,
        method: Method,
        segments: &[&str],
        query: &[(&str, &str)],
        body: Option<&Value>,
        if_match: Option<u64>,
    ) -> anyhow::Result<Answer> {
        let mut request = self
            .request(method, segments, query)
            .timeout(ANSWER_TIMEOUT);
        if let Some(body) = body {
            request = request.json(body);
        }
        if let Some(version) = if_match {
            request = request.header(IF_MATCH, format!("\"{version}\""));
        }
        let response = request
            .send()
            .await
            .map_err(|error| self.unreachable(&error))?;
        self.answer(response).await
    }

    /// A whole list, read page by page from `after` on.
    ///
    /// # Errors
    /// When no answer comes, or one that is not a yes.
    pub async fn list(
        &self,
        segments: &[&str],
        after: Option<String>,
    ) -> anyhow::Result<Vec<Value>> {
        let mut items: Vec<Value> = Vec::new();
        let mut after = after;
        loop {
            let mut query = vec![("page_size", PAGE_SIZE)];
            query.extend(after.as_deref().map(|after| ("after", after)));
            let page = self.get(segments, &query).await?.success()?.body;
            let read = output::list_in(&page);
            items.extend_from_slice(read);
            let next = page.get("next").filter(|next| !next.is_null());
            // A page without items ends the list too, so that no server can keep this going for ever.
            let Some(next) = next.filter(|_| !read.is_empty()) else {
                return Ok(items);
            };
            after = Some(
                next.as_str()
                    .map_or_else(|| next.to_string(), str::to_owned),
            );
        }
    }

    /// `GET` whose answer is a stream of bytes. The answer as JSON when it is not a yes.
    ///
    /// # Errors
    /// When no answer comes.
    pub async fn download(&self, segments: &[&str]) -> anyhow::Result<Result<Response, Answer>> {
        let request = self.request(Method::GET, segments, &[]);
        let response = request
            .send()
            .await
            .map_err(|error| self.unreachable(&error))?;
        if response.status().is_success() {
            return Ok(Ok(response));
        }
        Ok(Err(self.answer(response).await?))
    }

    fn request(
        &self,
        method: Method,
        segments: &[&str],
        query: &[(&str, &str)],
    ) -> reqwest::RequestBuilder {
        self.0.request(method, self.0.url(segments, query))
    }

    fn unreachable(&self, error: &reqwest::Error) -> anyhow::Error {
        let server = self.0.server();
        if error.is_connect() {
            return anyhow::anyhow!(
                "no server answers at {server}; start one with `highwater dev`, or name another with --server"
            );
        }
        if error.is_timeout() {
            return anyhow::anyhow!(
                "{server} gave no answer within {} s",
                ANSWER_TIMEOUT.as_secs()
            );
        }
        anyhow::anyhow!(
            "{server} could not be asked: {}",
            transport::root_cause(error)
        )
    }

    async fn answer(&self, response: Response) -> anyhow::Result<Answer> {
        let status = response.status().as_u16();
        let tag = response
            .headers()
            .get(ETAG)
            .and_then(|tag| tag.to_str().ok())
            .and_then(version_of_tag);
        let bytes = transport::body(response, ANSWER_BYTES_MAX).await;
        let bytes = bytes.map_err(|unread| match unread {
            Unread::Broken(error) => self.unreachable(&error),
            Unread::TooLarge => anyhow::anyhow!(
                "the answer of {} has more than {ANSWER_BYTES_MAX} bytes",
                self.0.server()
            ),
        })?;
        let body = if bytes.is_empty() {
            Value::Null
        } else {
            serde_json::from_slice(&bytes).unwrap_or_else(|_| not_json(&bytes))
        };
        let version = tag.or_else(|| body.get("version").and_then(Value::as_u64));
        Ok(Answer {
            status,
            body,
            version,
        })
    }
}

/// A body that is not JSON, in the form of an answer: something else than a Highwater server answered.
fn not_json(bytes: &[u8]) -> Value {
    let text = String::from_utf8_lossy(bytes);
    let start: String = text.trim().chars().take(200).collect();
    serde_json::json!({ "detail": format!("the answer is not JSON: {start}") })
}

fn version_of_tag(tag: &str) -> Option<u64> {
    tag.trim_start_matches("W/").trim_matches('"').parse().ok()
}

/// The token of the flags or the environment; that of `dev` when the server is the default one.
fn token(global: &Global) -> anyhow::Result<Option<Secret>> {
    if let Some(path) = &global.token_file {
        return Ok(Some(read_token(path)?));
    }
    match std::env::var("HIGHWATER_TOKEN") {
        Ok(text) if !text.trim().is_empty() => return Ok(Some(Secret::new(text.trim()))),
        _ => {}
    }
    Ok((global.server == DEV_SERVER).then(|| Secret::new(DEV_TOKEN)))
}

fn read_token(path: &Path) -> anyhow::Result<Secret> {
    let read = secret::read(path).map_err(|message| anyhow::anyhow!("--token-file: {message}"))?;
    if read.readable_by_others {
        eprintln!(
            "warning: {} can be read by other users of this machine",
            path.display()
        );
    }
    Ok(read.secret)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn told(status: u16, body: Value) -> String {
        let version = None;
        ServerError(Answer {
            status,
            body,
            version,
        })
        .to_string()
    }

    #[test]
    fn a_problem_is_told_as_a_sentence() {
        let body = json!({ "type": "about:blank", "title": "Not Found", "detail": "there is no limit \"x\"", "code": "unknown_limit" });
        assert_eq!(
            told(404, body),
            "there is no limit \"x\" (HTTP 404, unknown_limit)"
        );
        assert_eq!(
            told(502, json!({ "title": "Bad Gateway" })),
            "Bad Gateway (HTTP 502)"
        );
        assert_eq!(
            told(500, Value::Null),
            "the server gave no reason (HTTP 500)"
        );
        assert!(
            told(401, Value::Null).ends_with("; give a token with --token-file or HIGHWATER_TOKEN")
        );
    }

    #[test]
    fn a_no_is_told_from_a_command_that_could_not_run() {
        let error = |status| {
            let answer = Answer {
                status,
                body: Value::Null,
                version: None,
            };
            anyhow::Error::from(ServerError(answer)).context("more")
        };
        for status in [400, 404, 409, 412, 422, 429] {
            assert!(is_refusal(&error(status)), "{status}");
        }
        for status in [401, 403, 500, 503] {
            assert!(!is_refusal(&error(status)), "{status}");
        }
        assert!(!is_refusal(&anyhow::anyhow!("other")));
    }

    #[test]
    fn a_wrong_address_names_the_flag() {
        let refused = |server| format!("{:#}", Client::to(server, None).expect_err("refused"));
        let told = refused("https://example.org");
        assert!(
            told.starts_with("--server") && told.contains("HTTP only"),
            "{told}"
        );
        assert!(refused("localhost").contains("is not a URL"));
    }

    #[test]
    fn the_version_is_read_from_the_tag() {
        assert_eq!(version_of_tag("\"17\""), Some(17));
        assert_eq!(version_of_tag("W/\"17\""), Some(17));
        assert_eq!(version_of_tag("\"x\""), None);
    }
}
