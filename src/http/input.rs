//! What handlers read from a request besides its body's meaning.

use axum::body::Body;
use axum::body::Bytes;
use axum::http::HeaderMap;
use axum::http::header;
use http_body_util::BodyExt;
use serde::de::DeserializeOwned;

use crate::domain::time::Span;
use crate::domain::time::Timestamp;
use crate::http::problem::Code;
use crate::http::problem::Problem;

/// A body must have arrived this long after its head.
pub const BODY_DEADLINE: Span = Span::from_seconds(10);
/// Bytes of a body over its bound that are read and thrown away so that the caller sees the answer.
const DISCARDED_BYTES_MAX: usize = 8 * 1024 * 1024;
/// The longest `Idempotency-Key`.
pub const IDEMPOTENCY_KEY_BYTES_MAX: usize = 255;

/// Reads a whole body of at most `bytes_max`.
///
/// # Errors
/// 413 over the bound, 408 when it does not arrive in time, 400 when the connection breaks in the middle.
pub async fn body(headers: &HeaderMap, body: Body, bytes_max: usize) -> Result<Bytes, Problem> {
    let announced = headers
        .get(header::CONTENT_LENGTH)
        .and_then(|v| v.to_str().ok())
        .and_then(|v| v.parse::<u64>().ok());
    let fits =
        announced.is_none_or(|length| length <= u64::try_from(bytes_max).unwrap_or(u64::MAX));
    match tokio::time::timeout(
        BODY_DEADLINE.to_std(),
        collect(body, if fits { bytes_max } else { 0 }),
    )
    .await
    {
        Ok(Ok(Some(bytes))) => Ok(bytes),
        Ok(Ok(None)) => Err(Problem::new(
            413,
            Code::BodyTooLarge,
            format!("the body may have at most {bytes_max} bytes; send less at a time"),
        )),
        Ok(Err(error)) => Err(Problem::malformed(format!(
            "the body could not be read: {error}"
        ))),
        Err(_) => Err(Problem::new(
            408,
            Code::RequestTimeout,
            format!("the body did not arrive within {BODY_DEADLINE}"),
        )),
    }
}

/// Collects a body of at most `bytes_max`. A larger one is read on for a while and thrown away, since a
/// caller that is still sending would not see the answer; then `None`.
async fn collect(mut body: Body, bytes_max: usize) -> Result<Option<Bytes>, axum::Error> {
    let mut first: Option<Bytes> = None;
    let mut rest: Vec<u8> = Vec::new();
    let mut length = 0_usize;
    while let Some(frame) = body.frame().await {
        let Ok(data) = frame?.into_data() else {
            continue;
        };
        length = length.saturating_add(data.len());
        if length > bytes_max {
            if length > DISCARDED_BYTES_MAX {
                return Ok(None);
            }
            (first, rest) = (None, Vec::new());
        } else if first.is_none() && rest.is_empty() {
            // Nearly every body is one piece, which need not be copied.
            first = Some(data);
        } else {
            if let Some(first) = first.take() {
                rest.extend_from_slice(&first);
            }
            rest.extend_from_slice(&data);
        }
    }
    if length > bytes_max {
        return Ok(None);
    }
    Ok(Some(first.unwrap_or_else(|| Bytes::from(rest))))
}

/// The `Idempotency-Key`, quoted (a structured field's string) or not.
///
/// # Errors
/// 400 when it is empty, longer than 255 bytes, doubled, or not printable ASCII.
pub fn idempotency_key(headers: &HeaderMap) -> Result<Option<String>, Problem> {
    let mut values = headers.get_all("idempotency-key").iter();
    let Some(value) = values.next() else {
        return Ok(None);
    };
    if values.next().is_some() {
        return Err(Problem::malformed("Idempotency-Key: give it once"));
    }
    let text = value
        .to_str()
        .map_err(|_| Problem::malformed("Idempotency-Key: use printable ASCII"))?;
    plain_key(text).map(Some)
}

/// The key inside `text`, which may be quoted.
///
/// # Errors
/// As [`idempotency_key`].
pub fn plain_key(text: &str) -> Result<String, Problem> {
    let text = text.trim();
    let key = match text.strip_prefix('"').map(|rest| rest.strip_suffix('"')) {
        None => text.to_owned(),
        Some(None) => {
            return Err(Problem::malformed(
                "Idempotency-Key: the closing quote is missing",
            ));
        }
        Some(Some(quoted)) => unescaped(quoted)?,
    };
    if key.is_empty()
        || key.len() > IDEMPOTENCY_KEY_BYTES_MAX
        || !key.bytes().all(|b| (0x20..0x7f).contains(&b))
    {
        return Err(Problem::malformed(
            "Idempotency-Key: give 1 to 255 printable ASCII characters",
        ));
    }
    Ok(key)
}

fn unescaped(quoted: &str) -> Result<String, Problem> {
    let mut key = String::with_capacity(quoted.len());
    let mut characters = quoted.chars();
    while let Some(character) = characters.next() {
        match character {
            '\\' => match characters.next() {
                Some(escaped @ ('"' | '\\')) => key.push(escaped),
                _ => {
                    return Err(Problem::malformed(
                        "Idempotency-Key: only \\\" and \\\\ are escapes",
                    ));
                }
            },
            '"' => {
                return Err(Problem::malformed(
                    "Idempotency-Key: a quote inside must be escaped",
                ));
            }
            other => key.push(other),
        }
    }
    Ok(key)
}

/// Reads a query strictly.
///
/// # Errors
/// 400 when a parameter is unknown or of the wrong form.
pub fn query<T: DeserializeOwned>(raw: Option<&str>) -> Result<T, Problem> {
    let raw = raw.unwrap_or_default();
    if !is_text(raw) {
        return Err(Problem::malformed("the query is not UTF-8"));
    }
    let uri = format!("http://region/?{raw}")
        .parse()
        .map_err(|_| Problem::malformed("the query is not of the form name=value&…"))?;
    axum::extract::Query::try_from_uri(&uri)
        .map(|axum::extract::Query(query)| query)
        .map_err(|error| {
            let text = error.to_string();
            let code = if text.contains("unknown field") {
                Code::UnknownField
            } else {
                Code::Malformed
            };
            Problem::new(400, code, text)
        })
}

/// Whether a query is UTF-8 once its escapes are resolved; the library would replace what is not.
fn is_text(query: &str) -> bool {
    let digit = |byte: Option<&u8>| byte.and_then(|byte| char::from(*byte).to_digit(16));
    let mut decoded = Vec::with_capacity(query.len());
    let mut rest = query.as_bytes();
    while let Some((byte, after)) = rest.split_first() {
        rest = after;
        match (*byte, digit(after.first()), digit(after.get(1))) {
            (b'%', Some(high), Some(low)) => {
                decoded.push(u8::try_from(high * 16 + low).unwrap_or(0));
                rest = after.get(2..).unwrap_or_default();
            }
            (byte, ..) => decoded.push(byte),
        }
    }
    std::str::from_utf8(&decoded).is_ok()
}

/// The bearer token of a request.
pub fn bearer(headers: &HeaderMap) -> Option<&str> {
    let value = headers.get(header::AUTHORIZATION)?.to_str().ok()?;
    let (scheme, token) = value.split_once(' ')?;
    scheme
        .eq_ignore_ascii_case("bearer")
        .then_some(token.trim())
}

/// An instant as Unix milliseconds or RFC 3339.
///
/// # Errors
/// When it is neither.
pub fn instant(text: &str) -> Result<Timestamp, Problem> {
    if let Ok(ms) = text.parse::<i64>() {
        return Ok(Timestamp::from_unix_ms(ms));
    }
    let wrong =
        || Problem::malformed("at: give Unix milliseconds or a time like 2027-02-28T12:00:00Z");
    let instant: jiff::Timestamp = text.parse().map_err(|_| wrong())?;
    i64::try_from(instant.as_nanosecond())
        .map(Timestamp::from_nanos)
        .map_err(|_| wrong())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_query_must_be_text_once_decoded() {
        for good in ["", "a=b", "a=%C3%A4", "a=%", "a=%zz", "a=ä", "a=%00"] {
            assert!(is_text(good), "{good}");
        }
        for bad in ["a=%FF", "a=%C3", "a=%C3%28"] {
            assert!(!is_text(bad), "{bad}");
        }
    }

    #[test]
    fn an_idempotency_key_may_be_quoted_or_not() {
        assert_eq!(plain_key("8e03978e-40d5").unwrap(), "8e03978e-40d5");
        assert_eq!(plain_key("\"8e03978e-40d5\"").unwrap(), "8e03978e-40d5");
        assert_eq!(plain_key(r#""a\"b\\c""#).unwrap(), r#"a"b\c"#);
        for bad in [
            "",
            "\"\"",
            "\"a",
            "\"a\"b\"",
            "\"a\\n\"",
            "ä",
            &"x".repeat(256),
        ] {
            assert!(plain_key(bad).is_err(), "{bad}");
        }
    }
}
