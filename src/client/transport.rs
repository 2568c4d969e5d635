//! One server over HTTP: its address, the token that is shown to it, and the connections that are kept open.
//!
//! Carries the checks of [`Client`](super::Client) and all calls of the command line.

use std::time::Duration;

use http::HeaderValue;
use http::Method;
use http::header::AUTHORIZATION;
use reqwest::RequestBuilder;
use reqwest::Response;
use reqwest::Url;
use reqwest::redirect::Policy;

use super::error::BuildError;

/// Idle connections are closed after this; a server that is being stopped closes them earlier.
const IDLE_FOR: Duration = Duration::from_secs(60);

/// Why a body was not read to its end.
#[derive(Debug)]
pub enum Unread {
    /// It is over its bound.
    TooLarge,
    /// The connection broke, or time was up.
    Broken(reqwest::Error),
}

/// A server, and the way to it.
#[derive(Clone, Debug)]
pub struct Transport {
    http: reqwest::Client,
    server: Url,
    // Marked as sensitive, so `Debug` does not show it.
    authorization: Option<HeaderValue>,
}

impl Transport {
    /// The way to the server at `server`, which keeps at most `idle_max` connections open that nobody uses.
    ///
    /// # Errors
    /// When the address is no HTTP address, or the token is none.
    pub fn new(
        server: &str,
        token: Option<&str>,
        connect_within: Duration,
        idle_max: usize,
    ) -> Result<Self, BuildError> {
        let url = Url::parse(server).map_err(|_| BuildError::NotAUrl(server.to_owned()))?;
        if url.scheme() != "http" || url.cannot_be_a_base() {
            return Err(BuildError::NotHttp {
                server: server.to_owned(),
                scheme: url.scheme().to_owned(),
            });
        }
        // A redirect is no answer of a server: whoever gives it is not to be shown the token's check again.
        let http = reqwest::Client::builder()
            .connect_timeout(connect_within)
            .pool_idle_timeout(IDLE_FOR)
            .pool_max_idle_per_host(idle_max)
            .tcp_nodelay(true)
            .redirect(Policy::none())
            .user_agent(concat!("highwater/", env!("CARGO_PKG_VERSION")))
            .no_proxy()
            .build()
            .map_err(|error| BuildError::Http(root_cause(&error)))?;
        Ok(Self {
            http,
            server: url,
            authorization: token.map(authorization).transpose()?,
        })
    }

    /// The address of the server, for people.
    pub fn server(&self) -> &str {
        self.server.as_str().trim_end_matches('/')
    }

    /// The URL of a path. Every segment is encoded as a whole, so a tenant may be called `a/b`.
    pub fn url(&self, segments: &[&str], query: &[(&str, &str)]) -> Url {
        let mut url = self.server.clone();
        // Only URLs without a host have no path, and those were refused.
        if let Ok(mut path) = url.path_segments_mut() {
            path.pop_if_empty().extend(segments);
        }
        if !query.is_empty() {
            url.query_pairs_mut().extend_pairs(query);
        }
        url
    }

    /// A request that shows the token, not sent yet.
    pub fn request(&self, method: Method, url: Url) -> RequestBuilder {
        let request = self.http.request(method, url);
        match &self.authorization {
            Some(value) => request.header(AUTHORIZATION, value),
            None => request,
        }
    }
}

/// The whole body of an answer, of at most `bytes_max`.
///
/// # Errors
/// When it is longer, or does not come.
pub async fn body(mut response: Response, bytes_max: usize) -> Result<Vec<u8>, Unread> {
    let mut body = Vec::new();
    while let Some(piece) = response.chunk().await.map_err(Unread::Broken)? {
        if piece.len() > bytes_max - body.len() {
            return Err(Unread::TooLarge);
        }
        body.extend_from_slice(&piece);
    }
    Ok(body)
}

/// What is at the bottom of an error: "connection refused" rather than "error sending request".
pub fn root_cause(error: &dyn std::error::Error) -> String {
    let mut cause = error;
    while let Some(deeper) = cause.source() {
        cause = deeper;
    }
    cause.to_string()
}

fn authorization(token: &str) -> Result<HeaderValue, BuildError> {
    let mut value =
        HeaderValue::try_from(format!("Bearer {token}")).map_err(|_| BuildError::Token)?;
    value.set_sensitive(true);
    Ok(value)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn to(server: &str, token: Option<&str>) -> Result<Transport, BuildError> {
        Transport::new(server, token, Duration::from_secs(1), 1)
    }

    #[test]
    fn names_are_encoded_as_whole_segments() {
        let way = to("http://127.0.0.1:1/base/", None).expect("a way");
        let url = way.url(
            &["admin", "v1", "tenants", "a/b c%?#ü"],
            &[("key", "x&y=z")],
        );
        assert_eq!(
            url.as_str(),
            "http://127.0.0.1:1/base/admin/v1/tenants/a%2Fb%20c%25%3F%23%C3%BC?key=x%26y%3Dz"
        );
    }

    #[test]
    fn only_http_is_spoken_and_a_token_fits_a_header() {
        let refused = |server, token| to(server, token).expect_err("refused").to_string();
        assert!(refused("https://example.org", None).contains("HTTP only"));
        assert!(refused("ftp://example.org", None).contains("\"ftp\" is not spoken"));
        assert!(refused("localhost:7110", None).contains("\"localhost\" is not spoken"));
        assert!(refused("localhost", None).contains("is not a URL"));
        assert!(refused("http://example.org", Some("a\nb")).contains("token"));
    }

    #[test]
    fn a_token_is_not_shown() {
        let way = to("http://example.org", Some("hunter2")).expect("a way");
        assert!(!format!("{way:?}").contains("hunter2"));
    }
}
