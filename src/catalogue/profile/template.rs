//! Where one value of a request is found.

/// The longest value that stands for itself, and the longest name of a header or parameter.
const TEXT_BYTES_MAX: usize = 512;
/// Bits of an IPv6 address.
const BITS: u8 = 128;

/// See the module.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Template {
    /// The text itself.
    Literal(String),
    /// The value of the header of this name, in small letters.
    Header(String),
    /// The value of the parameter of this name.
    Query(String),
    /// The path without the query.
    Path,
    /// The method.
    Method,
    /// The client's address; an IPv6 address cut to so many bits.
    ClientIp(u8),
}

impl Template {
    /// Reads a template.
    ///
    /// # Errors
    /// What is wrong with it.
    pub fn parse(text: &str) -> Result<Self, String> {
        if text.is_empty() {
            return Err(
                "must be given: header:NAME, query:NAME, path, method, client_ip or a text"
                    .to_owned(),
            );
        }
        if text.len() > TEXT_BYTES_MAX {
            return Err(format!("must have at most {TEXT_BYTES_MAX} bytes"));
        }
        if let Some(literal) = text.strip_prefix("literal:") {
            return Ok(Self::Literal(literal.to_owned()));
        }
        if let Some(name) = text.strip_prefix("header:") {
            let is_token = |b: u8| b.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&b);
            if name.is_empty() || !name.bytes().all(is_token) {
                return Err(format!("{name:?} is not the name of a header"));
            }
            return Ok(Self::Header(name.to_ascii_lowercase()));
        }
        if let Some(name) = text.strip_prefix("query:") {
            if name.is_empty() {
                return Err("name the parameter, as in \"query:user\"".to_owned());
            }
            return Ok(Self::Query(name.to_owned()));
        }
        if let Some(bits) = text.strip_prefix("client_ip/") {
            return match bits.parse() {
                Ok(bits @ 1..=BITS) => Ok(Self::ClientIp(bits)),
                _ => Err(format!("{bits:?} is not 1 to {BITS} bits of an address")),
            };
        }
        Ok(match text {
            "path" => Self::Path,
            "method" => Self::Method,
            "client_ip" => Self::ClientIp(BITS),
            other => Self::Literal(other.to_owned()),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_and_texts_are_told_apart() {
        let parse = |text: &str| Template::parse(text).expect("a template");
        assert_eq!(parse("path"), Template::Path);
        assert_eq!(parse("literal:path"), Template::Literal("path".to_owned()));
        assert_eq!(parse("paths"), Template::Literal("paths".to_owned()));
        assert_eq!(parse("method"), Template::Method);
        assert_eq!(parse("client_ip"), Template::ClientIp(128));
        assert_eq!(parse("client_ip/64"), Template::ClientIp(64));
        assert_eq!(
            parse("header:X-User"),
            Template::Header("x-user".to_owned())
        );
        assert_eq!(parse("query:User"), Template::Query("User".to_owned()));
        for bad in [
            "",
            "header:",
            "header:a:b",
            "query:",
            "client_ip/0",
            "client_ip/x",
            &"x".repeat(513),
        ] {
            assert!(Template::parse(bad).is_err(), "{bad}");
        }
    }
}
