//! The check API: what gateways and services talk to.
//!
//! ```text
//! bytes ──► body (parse, borrowed) ──► region::decide ──► answer (JSON, headers) ──► bytes
//! ```
//!
//! [`body`] turns bytes into requests or a problem; [`answer`] turns outcomes into bodies and headers;
//! [`problem`] is the one shape of every refusal and error; [`check`], [`holds`], [`settle`], [`refund`] and [`usage`] are the
//! handlers, [`gateway`] that of gateways which hold a request back; [`listener`] accepts connections, bounds slow senders and drains.
//!
//! Nothing here decides: a handler parses, asks the region, and writes down what it said.

pub mod accept;
pub mod access;
pub mod answer;
pub mod ask;
pub mod body;
pub mod check;
pub mod gateway;
pub mod holds;
pub mod input;
pub mod keyed;
pub mod listener;
pub mod problem;
pub mod refund;
pub mod resolve;
pub mod routes;
pub mod schema;
pub mod settle;
pub mod strict;
pub mod usage;

use axum::body::Body;
use axum::http::HeaderValue;
use axum::http::Response;
use axum::http::StatusCode;
use axum::http::header;

/// A JSON answer.
pub fn json(status: u16, body: Vec<u8>) -> Response<Body> {
    let mut response = Response::new(Body::from(body));
    *response.status_mut() =
        StatusCode::from_u16(status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
    let headers = response.headers_mut();
    headers.insert(
        header::CONTENT_TYPE,
        HeaderValue::from_static("application/json"),
    );
    headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-store"));
    response
}
