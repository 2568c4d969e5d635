//! What can go wrong: with the client's settings, with a question, with a server.

use std::time::Duration;

use thiserror::Error;

/// Why a client cannot be made.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
#[non_exhaustive]
pub enum BuildError {
    /// The address is no URL.
    #[error("\"{0}\" is not a URL, as in http://127.0.0.1:7110")]
    NotAUrl(String),
    /// The address is of another protocol.
    #[error(
        "{server}: \"{scheme}\" is not spoken, HTTP only, as in http://127.0.0.1:7110; reach a server behind TLS through a tunnel or a proxy"
    )]
    NotHttp {
        /// The address.
        server: String,
        /// Its scheme.
        scheme: String,
    },
    /// The token has characters that no header carries.
    #[error("the token has characters that a token cannot have")]
    Token,
    /// The deadline is no time, or out of range.
    #[error("a deadline is 1 ms to 60 s, not {0:?}")]
    Deadline(Duration),
    /// The number of connections is out of range.
    #[error("there can be 1 to 65536 connections, not {0}")]
    Connections(usize),
    /// The HTTP client cannot be set up.
    #[error("the HTTP client cannot be set up: {0}")]
    Http(String),
}

/// A question that no server can answer: the fault is the caller's, so no policy decides.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
#[non_exhaustive]
pub enum CheckError {
    /// The server refused the question: unknown tenant or limit, a key too many or too few, no token, or the
    /// same `Idempotency-Key` with another question. Nothing was charged by this call.
    #[error("the check cannot be answered: {detail} (HTTP {status}{})", code.as_ref().map(|code| format!(", {code}")).unwrap_or_default())]
    Refused {
        /// The HTTP status, 400 to 499.
        status: u16,
        /// What is wrong, for programs, as in `unknown_limit`; none when something other than a Highwater
        /// server answered.
        code: Option<String>,
        /// What is wrong, for people.
        detail: String,
    },
    /// The `Idempotency-Key` is empty, longer than 255 bytes, or not printable ASCII.
    #[error("an Idempotency-Key is 1 to 255 printable ASCII characters")]
    IdempotencyKey,
}

/// Why no server decided, and [`OnFailure`](super::OnFailure) did. The question may have been charged all the
/// same where the connection broke or the deadline passed after it was sent.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
#[non_exhaustive]
pub enum Failure {
    /// No connection, or it broke.
    #[error("the server cannot be reached: {0}")]
    Unreachable(String),
    /// No whole answer within the deadline, the wait for a free connection included.
    #[error("no answer within {0:?}")]
    Deadline(Duration),
    /// A status that is no decision, as a server that stops or a proxy before it gives.
    #[error("the server answered {0}, which is no decision")]
    Status(u16),
    /// An answer that cannot be understood, or is too long.
    #[error("the answer cannot be read: {0}")]
    Unreadable(String),
}
