//! Finds the values of a profile in a request.
//!
//! Whoever can write a header can choose what it says, so what a header says of the original request or of the
//! client's address counts only when the hop that sent it is trusted, and of a list of addresses only the part
//! that trusted hops have written: it is read from its end. A header or parameter that a profile names and that
//! stands twice is refused: which of them the service behind the gateway reads is not known here, and a caller
//! could choose its counter with the other.

use core::net::IpAddr;
use core::net::SocketAddr;
use std::borrow::Cow;

use smallvec::SmallVec;

use crate::catalogue::profile::Gateway;
use crate::catalogue::profile::Original;
use crate::catalogue::profile::Units;
use crate::catalogue::profile::network;
use crate::catalogue::profile::template::Template;
use crate::domain::limit::AMOUNT_MAX;
use crate::domain::name::KEY_BYTES_MAX;

/// A request as it came in.
#[derive(Clone, Copy, Debug)]
pub struct Incoming<'r> {
    /// Who sent it.
    pub hop: Option<IpAddr>,
    /// Its method.
    pub method: &'r str,
    /// Its path below the profile's, empty at the profile itself.
    pub below: &'r str,
    /// Its query.
    pub query: Option<&'r str>,
    /// All lines of its headers, names in small letters.
    pub headers: &'r [(&'r str, &'r [u8])],
}

impl<'r> Incoming<'r> {
    /// The values of all lines of one header.
    fn lines(&self, name: &str) -> SmallVec<[&'r [u8]; 2]> {
        let lines = self.headers.iter().filter(|(known, _)| *known == name);
        lines.map(|(_, value)| *value).collect()
    }
}

/// The check that a request means.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Wanted<'g> {
    /// Whose limits.
    pub tenant: String,
    /// Which of them.
    pub action: String,
    /// The keys that are there, by label.
    pub keys: SmallVec<[(&'g str, String); 4]>,
    /// Units.
    pub cost: u64,
    /// The client's address.
    pub client_ip: Option<IpAddr>,
}

/// Why a request means no check, in a sentence.
pub type Fault = String;

/// The request that the gateway holds back.
struct Held<'r> {
    method: Cow<'r, str>,
    path: Cow<'r, str>,
    query: Option<Cow<'r, str>>,
    client_ip: Option<IpAddr>,
}

impl Gateway {
    /// The check that `incoming` means.
    ///
    /// # Errors
    /// When it cannot be told, or not without a doubt.
    pub fn wanted<'g>(&'g self, incoming: &Incoming<'_>) -> Result<Wanted<'g>, Fault> {
        let held = self.held(incoming)?;
        let value = |template: &Template| value(template, &held, incoming);
        let needed = |name: &str, template: &Template| {
            value(template)?
                .ok_or_else(|| format!("the request has no {name} where the profile looks for it"))
        };
        let mut keys = SmallVec::new();
        for (label, template) in &self.keys {
            if let Some(key) = value(template)? {
                keys.push((label.as_str(), key));
            }
        }
        let cost = match &self.cost {
            Units::Fixed(units) => *units,
            Units::From(template) => match value(template)? {
                None => 1,
                Some(text) => units(&text)?,
            },
        };
        Ok(Wanted {
            tenant: needed("tenant", &self.tenant)?,
            action: needed("action", &self.action)?,
            keys,
            cost,
            client_ip: held.client_ip,
        })
    }

    fn trusts(&self, hop: IpAddr) -> bool {
        self.trusted_hops
            .iter()
            .any(|network| network.contains(hop))
    }

    fn held<'r>(&self, incoming: &Incoming<'r>) -> Result<Held<'r>, Fault> {
        let client_ip = self.client_ip(incoming);
        let itself = Held {
            method: incoming.method.into(),
            path: if incoming.below.is_empty() {
                "/".into()
            } else {
                incoming.below.into()
            },
            query: incoming.query.map(Into::into),
            client_ip,
        };
        if !incoming.hop.is_some_and(|hop| self.trusts(hop)) {
            return Ok(itself);
        }
        let told = |family: Family| told(incoming, family);
        let found = match self.original {
            Original::Request => None,
            Original::XForwarded => told(FORWARDED)?,
            Original::XOriginal => told(ORIGINAL)?,
            Original::Auto if !incoming.below.is_empty() => None,
            Original::Auto => match (told(FORWARDED)?, told(ORIGINAL)?) {
                (Some(_), Some(_)) => {
                    return Err("the request has X-Forwarded-* and X-Original-* headers, and one of them is the \
                                client's: let the profile say which, as in original = \"x-original\""
                        .to_owned());
                }
                (forwarded, original) => forwarded.or(original),
            },
        };
        let Some((method, target)) = found else {
            return Ok(itself);
        };
        let (path, query) = match target {
            Some(target) => split(target),
            None => (itself.path, itself.query),
        };
        Ok(Held {
            method: method.map_or(itself.method, Into::into),
            path,
            query,
            client_ip,
        })
    }

    /// The nearest address that no trusted hop has, by what trusted hops have written.
    fn client_ip(&self, incoming: &Incoming<'_>) -> Option<IpAddr> {
        let mut client = incoming.hop?.to_canonical();
        let lines = incoming.lines("x-forwarded-for");
        let mut told = lines
            .iter()
            .rev()
            .flat_map(|line| line.rsplit(|byte| *byte == b','));
        while self.trusts(client) {
            let Some(before) = told.next().and_then(address) else {
                break;
            };
            client = before;
        }
        Some(client)
    }
}

/// Names of the headers that tell of the original request: its method, and its target in either of two.
type Family = (&'static str, [&'static str; 2]);
const FORWARDED: Family = ("x-forwarded-method", ["x-forwarded-uri", "x-forwarded-uri"]);
const ORIGINAL: Family = ("x-original-method", ["x-original-uri", "x-original-url"]);

type Told<'r> = Option<(Option<&'r str>, Option<&'r str>)>;

/// Method and target by one family of headers; `None` when it is not there.
fn told<'r>(incoming: &Incoming<'r>, (method, targets): Family) -> Result<Told<'r>, Fault> {
    let method = single(incoming, method)?;
    let target = match single(incoming, targets[0])? {
        None if targets[1] != targets[0] => single(incoming, targets[1])?,
        target => target,
    };
    Ok((method.is_some() || target.is_some()).then_some((method, target)))
}

/// The value of a header that may stand once; an empty one is as none.
fn single<'r>(incoming: &Incoming<'r>, name: &str) -> Result<Option<&'r str>, Fault> {
    let lines = incoming.lines(name);
    let value = match lines.as_slice() {
        [] => return Ok(None),
        [value] => std::str::from_utf8(value)
            .map_err(|_| format!("the header {name} is not UTF-8"))?
            .trim(),
        _ => return Err(format!("the header {name} stands more than once")),
    };
    Ok((!value.is_empty()).then_some(value))
}

/// Path and query of a target, which may be a whole URL.
fn split(target: &str) -> (Cow<'_, str>, Option<Cow<'_, str>>) {
    let target = target.split('#').next().unwrap_or(target);
    let rest = match target.split_once("://") {
        Some((_, rest)) if !target.starts_with('/') => {
            let from = rest.find(['/', '?']).unwrap_or(rest.len());
            rest.split_at(from).1
        }
        _ => target,
    };
    let (path, query) = match rest.split_once('?') {
        Some((path, query)) => (path, Some(query.into())),
        None => (rest, None),
    };
    (
        if path.is_empty() {
            "/".into()
        } else {
            path.into()
        },
        query,
    )
}

/// One element of a list of addresses, with or without a port.
fn address(text: &[u8]) -> Option<IpAddr> {
    let text = std::str::from_utf8(text).ok()?.trim();
    let bare = text
        .strip_prefix('[')
        .and_then(|text| text.strip_suffix(']'))
        .unwrap_or(text);
    let address: Option<IpAddr> = bare.parse().ok();
    let with_port = || text.parse::<SocketAddr>().ok().map(|socket| socket.ip());
    address.or_else(with_port).map(|ip| ip.to_canonical())
}

/// The value at `template`; `None` when it is not there.
fn value(
    template: &Template,
    held: &Held<'_>,
    incoming: &Incoming<'_>,
) -> Result<Option<String>, Fault> {
    let found = match template {
        Template::Literal(text) => Some(text.clone()),
        Template::Header(name) => single(incoming, name)?.map(str::to_owned),
        Template::Query(name) => parameter(held.query.as_deref().unwrap_or_default(), name)?,
        // Longer ones share a counter: a path may be long for good reasons, and a shared counter lets nobody pass.
        Template::Path => Some(beginning(&held.path, KEY_BYTES_MAX).to_owned()),
        Template::Method => Some(held.method.clone().into_owned()),
        Template::ClientIp(bits) => held.client_ip.map(|ip| network::cut(ip, *bits)),
    };
    let found = found.filter(|value| !value.is_empty());
    if found
        .as_ref()
        .is_some_and(|value| value.len() > KEY_BYTES_MAX)
    {
        let place = match template {
            Template::Header(name) => format!("the header {name}"),
            Template::Query(name) => format!("the parameter {name:?}"),
            _ => "a value".to_owned(),
        };
        return Err(format!("{place} has more than {KEY_BYTES_MAX} bytes"));
    }
    Ok(found)
}

/// The first bytes of `text`, at most `most`, that are whole characters.
fn beginning(text: &str, most: usize) -> &str {
    let mut end = most.min(text.len());
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    text.get(..end).unwrap_or_default()
}

/// The value of the parameter `name`, decoded.
fn parameter(query: &str, name: &str) -> Result<Option<String>, Fault> {
    let mut found = None;
    for pair in query.split('&') {
        let (key, value) = pair.split_once('=').unwrap_or((pair, ""));
        if decoded(key).as_deref() != Some(name.as_bytes()) {
            continue;
        }
        if found.is_some() {
            return Err(format!("the parameter {name:?} stands more than once"));
        }
        let text = decoded(value).and_then(|bytes| String::from_utf8(bytes).ok());
        found = Some(text.ok_or_else(|| format!("the parameter {name:?} is not UTF-8"))?);
    }
    Ok(found)
}

/// A part of a query without its escapes. An escape that is none stands for itself.
fn decoded(text: &str) -> Option<Vec<u8>> {
    let digit = |byte: Option<&u8>| byte.and_then(|byte| char::from(*byte).to_digit(16));
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let Some((byte, after)) = rest.split_first() {
        rest = after;
        match (*byte, digit(after.first()), digit(after.get(1))) {
            (b'%', Some(high), Some(low)) => {
                bytes.push(u8::try_from(high * 16 + low).ok()?);
                rest = after.get(2..).unwrap_or_default();
            }
            (b'+', ..) => bytes.push(b' '),
            (byte, ..) => bytes.push(byte),
        }
    }
    Some(bytes)
}

fn units(text: &str) -> Result<u64, Fault> {
    let digits = text.bytes().all(|byte| byte.is_ascii_digit());
    text.parse()
        .ok()
        .filter(|units| digits && *units <= AMOUNT_MAX)
        .ok_or_else(|| format!("the cost is not a whole number of 0 to {AMOUNT_MAX}"))
}

#[cfg(test)]
mod tests;
