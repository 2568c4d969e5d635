//! The client: asks a Highwater server, and answers by a stated policy when none answers in time.
//!
//! With `default-features = false, features = ["client"]` this is all of the crate: no SQLite, no Raft, no gRPC.
//!
//! ```toml
//! [dependencies]
//! highwater = { version = "0.1", default-features = false, features = ["client"] }
//! ```
//!
//! ```no_run
//! use std::time::Duration;
//!
//! use highwater::client::Charge;
//! use highwater::client::Check;
//! use highwater::client::Client;
//! use highwater::client::OnFailure;
//!
//! # async fn export() -> Result<(), Box<dyn std::error::Error>> {
//! let client = Client::builder("http://127.0.0.1:7110")
//!     .deadline(Duration::from_millis(100))
//!     .on_failure(OnFailure::Deny)
//!     .build()?;
//! let verdict = client
//!     .check(&Check::new("acme", Charge::on("tokens").key("gpt-5").cost(120)))
//!     .await?;
//! if !verdict.is_allowed() {
//!     println!("come back in {:?}", verdict.retry_after());
//! }
//! # Ok(())
//! # }
//! ```
//!
//! # Who decides
//!
//! | what happens | [`Client::check`] gives |
//! |---|---|
//! | 200, 429 | the server's verdict |
//! | 503 with a decision: a limit says `on_unavailable = "closed"`, or is strict, and cannot be decided | the server's verdict, denied: the limit's own policy stands over the client's |
//! | no connection, a broken one, no whole answer within the deadline, an answer that cannot be read or is too long, any other status that is no decision | a local verdict by [`OnFailure`]: [`Verdict::is_local`], with its [`Failure`] |
//! | 400 to 499 but 408 and 429: the question or the token is wrong | [`CheckError`], never the policy: a wrong name must not pass for ever, nor be refused for ever, unseen |
//!
//! The client does not ask again by itself: a check that was sent may have been charged although no answer came. With
//! [`Check::idempotency_key`] asking again is safe.
//!
//! # Bounds
//!
//! At most [`Builder::connections_max`] checks are under way, each on a connection of its own; further ones wait for their
//! turn, within their deadline. An answer has at most 256 KiB.
//!
//! [`QuotaLayer`] asks for every request of a tower service, as axum's routers are.
//!
//! Not here: holds, refunds, batches and use, which are plain HTTP; TLS, which servers do not speak either.

mod error;
mod layer;
mod question;
pub(crate) mod transport;
mod verdict;

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use http::Method;
use http::header::CONTENT_TYPE;
use reqwest::Url;
use tokio::sync::Semaphore;

pub use crate::domain::decision::DecidedBy;
pub use crate::domain::decision::Decision;
pub use crate::domain::decision::Reason;
pub use error::BuildError;
pub use error::CheckError;
pub use error::Failure;
pub use layer::Quota;
pub use layer::QuotaFuture;
pub use layer::QuotaLayer;
pub use question::Action;
pub use question::Asked;
pub use question::Charge;
pub use question::Check;
pub use verdict::LimitVerdict;
pub use verdict::RateLimit;
pub use verdict::Verdict;

use transport::Transport;
use transport::Unread;
use verdict::NoVerdict;

const DEADLINE: Duration = Duration::from_millis(250);
const DEADLINE_MAX: Duration = Duration::from_secs(60);
const CONNECTIONS: usize = 256;
const CONNECTIONS_MAX: usize = 65_536;
/// Sixteen limits with the longest keys, every byte of them escaped, are 55 KB.
const ANSWER_BYTES_MAX: usize = 256 * 1024;

/// What a check is answered when no server decides in time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum OnFailure {
    /// It passes, uncounted: an outage of the quota server is none of the service. The default, as
    /// `on_unavailable = "open"` is that of limits.
    #[default]
    Allow,
    /// It does not: nothing passes that was not counted.
    Deny,
}

/// A token, which `Debug` does not show.
#[derive(Clone)]
struct Token(String);

impl fmt::Debug for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Token(…)")
    }
}

/// Settings of a [`Client`].
#[derive(Clone, Debug)]
#[must_use]
pub struct Builder {
    server: String,
    token: Option<Token>,
    deadline: Duration,
    on_failure: OnFailure,
    connections_max: usize,
}

impl Builder {
    /// The token to show, of scope `check`, where the server has `auth.check = "token"`.
    pub fn token(mut self, token: impl Into<String>) -> Self {
        self.token = Some(Token(token.into()));
        self
    }

    /// The longest that a check may take in all, 1 ms to 60 s: wait for a connection, connect, send and read. 250 ms
    /// unless it is set. A strict limit may need a round trip to another region: give it that, or say
    /// [`Check::max_wait`].
    pub const fn deadline(mut self, deadline: Duration) -> Self {
        self.deadline = deadline;
        self
    }

    /// What is answered when no server decides in time; [`OnFailure::Allow`] unless it is set.
    pub const fn on_failure(mut self, policy: OnFailure) -> Self {
        self.on_failure = policy;
        self
    }

    /// Connections in use at most, and so checks under way at once, 1 to 65536; 256 unless it is set.
    pub const fn connections_max(mut self, connections: usize) -> Self {
        self.connections_max = connections;
        self
    }

    /// Makes the client. Connects to nothing yet.
    ///
    /// # Errors
    /// When the address is no HTTP address, the token is none, or a setting is out of range.
    pub fn build(self) -> Result<Client, BuildError> {
        if !(Duration::from_millis(1)..=DEADLINE_MAX).contains(&self.deadline) {
            return Err(BuildError::Deadline(self.deadline));
        }
        if !(1..=CONNECTIONS_MAX).contains(&self.connections_max) {
            return Err(BuildError::Connections(self.connections_max));
        }
        let transport = Transport::new(
            &self.server,
            self.token.as_ref().map(|token| token.0.as_str()),
            self.deadline,
            self.connections_max,
        )?;
        Ok(Client(Arc::new(Inner {
            url: transport.url(&["v1", "check"], &[]),
            transport,
            turns: Semaphore::new(self.connections_max),
            deadline: self.deadline,
            on_failure: self.on_failure,
        })))
    }
}

/// Asks one server. Cheap to clone; clones share their connections.
#[derive(Clone, Debug)]
pub struct Client(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    transport: Transport,
    url: Url,
    turns: Semaphore,
    deadline: Duration,
    on_failure: OnFailure,
}

impl Client {
    /// Settings for a client of the server at `server`, the URL of its check listener: `http://HOST:PORT`.
    pub fn builder(server: impl Into<String>) -> Builder {
        Builder {
            server: server.into(),
            token: None,
            deadline: DEADLINE,
            on_failure: OnFailure::default(),
            connections_max: CONNECTIONS,
        }
    }

    /// The address of the server, without a slash at its end.
    pub fn server(&self) -> &str {
        self.0.transport.server()
    }

    /// Asks once. Takes no longer than the deadline. Needs a tokio runtime with its timer on.
    ///
    /// A verdict is the server's, or the policy's when no server decided. Dropping the future abandons the check;
    /// it may have been charged.
    ///
    /// # Errors
    /// When the question is at fault, or the token.
    pub async fn check(&self, check: &Check) -> Result<Verdict, CheckError> {
        let deadline = self.0.deadline;
        let answered = match tokio::time::timeout(deadline, self.ask(check)).await {
            Ok(answered) => answered,
            Err(_) => Err(NoVerdict::Failed(Failure::Deadline(deadline))),
        };
        match answered {
            Ok(verdict) => Ok(verdict),
            Err(NoVerdict::Failed(failure)) => Ok(Verdict::by_policy(self.0.on_failure, failure)),
            Err(NoVerdict::Refused(error)) => Err(error),
        }
    }

    async fn ask(&self, check: &Check) -> Result<Verdict, NoVerdict> {
        let idempotency = check.idempotency_header().map_err(NoVerdict::Refused)?;
        let body = serde_json::to_vec(check)
            .map_err(|error| NoVerdict::Failed(Failure::Unreadable(error.to_string())))?;
        // Nothing ever closes the semaphore.
        let _turn = self.0.turns.acquire().await;
        let mut request = self
            .0
            .transport
            .request(Method::POST, self.0.url.clone())
            .header(CONTENT_TYPE, "application/json")
            .body(body);
        if let Some(key) = idempotency {
            request = request.header("idempotency-key", key);
        }
        let unreachable = |error: reqwest::Error| {
            // A connection that could not be made in the whole deadline is a matter of time.
            let failure = if error.is_timeout() {
                Failure::Deadline(self.0.deadline)
            } else {
                Failure::Unreachable(transport::root_cause(&error))
            };
            NoVerdict::Failed(failure)
        };
        let response = request.send().await.map_err(unreachable)?;
        let status = response.status().as_u16();
        let headers = response.headers().clone();
        let body = transport::body(response, ANSWER_BYTES_MAX).await;
        let body = body.map_err(|unread| match unread {
            Unread::TooLarge => NoVerdict::Failed(Failure::Unreadable(format!(
                "it has more than {ANSWER_BYTES_MAX} bytes"
            ))),
            Unread::Broken(error) => unreachable(error),
        })?;
        verdict::read(status, &headers, body)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refused(builder: Builder) -> BuildError {
        builder.build().expect_err("refused")
    }

    #[test]
    fn settings_out_of_range_are_refused() {
        let builder = || Client::builder("http://127.0.0.1:7110");
        assert!(builder().build().is_ok());
        for deadline in [Duration::ZERO, Duration::from_secs(61)] {
            let refusal = refused(builder().deadline(deadline));
            assert_eq!(refusal, BuildError::Deadline(deadline));
        }
        for connections in [0, 65_537] {
            let refusal = refused(builder().connections_max(connections));
            assert_eq!(refusal, BuildError::Connections(connections));
        }
        assert_eq!(refused(builder().token("a\nb")), BuildError::Token);
        assert!(matches!(
            refused(Client::builder("https://example.org")),
            BuildError::NotHttp { .. }
        ));
    }

    #[test]
    fn a_token_is_not_shown() {
        let builder = Client::builder("http://127.0.0.1:7110").token("hunter2");
        assert!(!format!("{builder:?}").contains("hunter2"));
        let client = builder.build().expect("a client");
        assert!(!format!("{client:?}").contains("hunter2"));
    }
}
