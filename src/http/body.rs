//! Requests of the check API, parsed strictly and without copying.
//!
//! Unknown fields, doubled fields, nulls, fractions, negative numbers and anything beyond 2^53 − 1 are
//! errors; a field is either absent or right.

use std::borrow::Cow;
use std::fmt;
use std::marker::PhantomData;
use std::ops::Deref;

use serde::Deserialize;
use serde::Deserializer;
use serde::de::Error;
use serde::de::MapAccess;
use serde::de::Unexpected;
use serde::de::Visitor;
use serde::de::value::MapAccessDeserializer;
use sha2::Digest;
use sha2::Sha256;

use crate::domain::duration;
use crate::domain::limit::AMOUNT_MAX;
use crate::domain::time::Span;
use crate::http::problem::Code;
use crate::http::problem::Problem;

/// The largest body of a single request.
pub const BODY_BYTES_MAX: usize = 64 * 1024;
/// The largest body of a batch.
pub const BATCH_BYTES_MAX: usize = 1024 * 1024;
/// Checks in one request.
pub const CHECKS_MAX: usize = 16;
/// Items in one batch.
pub const ITEMS_MAX: usize = 1000;

/// A text that borrows from the body unless it had escapes.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Text<'a>(pub Cow<'a, str>);

impl Text<'_> {
    /// The text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl<'de: 'a, 'a> Deserialize<'de> for Text<'a> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct TextVisitor;

        impl<'de> Visitor<'de> for TextVisitor {
            type Value = Text<'de>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a text")
            }

            fn visit_borrowed_str<E: Error>(self, text: &'de str) -> Result<Self::Value, E> {
                Ok(Text(Cow::Borrowed(text)))
            }

            fn visit_str<E: Error>(self, text: &str) -> Result<Self::Value, E> {
                Ok(Text(Cow::Owned(text.to_owned())))
            }
        }

        deserializer.deserialize_str(TextVisitor)
    }
}

/// An amount of units: an integer from 0 to 2^53 − 1.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Amount(pub u64);

impl<'de> Deserialize<'de> for Amount {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct AmountVisitor;

        impl Visitor<'_> for AmountVisitor {
            type Value = Amount;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an integer from 0 to 9007199254740991")
            }

            fn visit_u64<E: Error>(self, value: u64) -> Result<Self::Value, E> {
                if value <= AMOUNT_MAX {
                    Ok(Amount(value))
                } else {
                    Err(E::invalid_value(Unexpected::Unsigned(value), &self))
                }
            }
        }

        deserializer.deserialize_u64(AmountVisitor)
    }
}

/// A field that is absent or right, but never null.
fn present<'de, D: Deserializer<'de>, T: Deserialize<'de>>(
    deserializer: D,
) -> Result<Option<T>, D::Error> {
    T::deserialize(deserializer).map(Some)
}

fn present_span<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<Span>, D::Error> {
    let text = Text::deserialize(deserializer)?;
    duration::parse(text.as_str())
        .map(Some)
        .map_err(D::Error::custom)
}

/// A JSON object, and nothing else: the library would take an array of the fields' values too.
#[derive(Debug)]
pub struct Object<T>(pub T);

impl<T> Deref for Object<T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.0
    }
}

impl<'de, T: Deserialize<'de>> Deserialize<'de> for Object<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct ObjectVisitor<T>(PhantomData<T>);

        impl<'de, T: Deserialize<'de>> Visitor<'de> for ObjectVisitor<T> {
            type Value = Object<T>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object")
            }

            fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<Self::Value, A::Error> {
                T::deserialize(MapAccessDeserializer::new(map)).map(Object)
            }
        }

        deserializer.deserialize_map(ObjectVisitor(PhantomData))
    }
}

/// A list that stops being read at its bound.
#[derive(Debug)]
pub struct Bounded<T, const MAX: usize>(pub Vec<T>);

impl<'de, T: Deserialize<'de>, const MAX: usize> Deserialize<'de> for Bounded<T, MAX> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct ListVisitor<T, const MAX: usize>(PhantomData<T>);

        impl<'de, T: Deserialize<'de>, const MAX: usize> Visitor<'de> for ListVisitor<T, MAX> {
            type Value = Bounded<T, MAX>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, "a list of 1 to {MAX}")
            }

            fn visit_seq<A: serde::de::SeqAccess<'de>>(
                self,
                mut list: A,
            ) -> Result<Self::Value, A::Error> {
                let mut items = Vec::new();
                while let Some(item) = list.next_element()? {
                    if items.len() == MAX {
                        return Err(A::Error::invalid_length(MAX + 1, &self));
                    }
                    items.push(item);
                }
                if items.is_empty() {
                    return Err(A::Error::invalid_length(0, &self));
                }
                Ok(Bounded(items))
            }
        }

        deserializer.deserialize_seq(ListVisitor(PhantomData))
    }
}

/// Keys by kind (`{"ip": "203.0.113.9"}`), each kind once.
#[derive(Debug, Default)]
pub struct Keys<'a>(pub Vec<(Text<'a>, Text<'a>)>);

impl Keys<'_> {
    /// The key of a kind.
    pub fn get(&self, kind: &str) -> Option<&str> {
        self.0
            .iter()
            .find(|(known, _)| known.as_str() == kind)
            .map(|(_, key)| key.as_str())
    }
}

impl<'de: 'a, 'a> Deserialize<'de> for Keys<'a> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct KeysVisitor;

        impl<'de> Visitor<'de> for KeysVisitor {
            type Value = Keys<'de>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object of at most 64 keys by kind")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
                let mut keys: Vec<(Text<'de>, Text<'de>)> = Vec::new();
                while let Some((kind, key)) = map.next_entry::<Text<'de>, Text<'de>>()? {
                    if keys.iter().any(|(known, _)| *known == kind) {
                        return Err(A::Error::custom(format_args!(
                            "duplicate field `{}`",
                            kind.as_str()
                        )));
                    }
                    if keys.len() == 64 {
                        return Err(A::Error::invalid_length(65, &self));
                    }
                    keys.push((kind, key));
                }
                Ok(Keys(keys))
            }
        }

        deserializer.deserialize_map(KeysVisitor)
    }
}

/// One limit of `checks`.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CheckItem<'a> {
    /// The limit's name.
    #[serde(borrow)]
    pub limit: Text<'a>,
    /// The key, if the limit has one.
    #[serde(borrow, default, deserialize_with = "present")]
    pub key: Option<Text<'a>>,
    /// Units; 1 when absent.
    #[serde(default, deserialize_with = "present")]
    pub cost: Option<Amount>,
}

/// The body of `POST /v1/check`, of `POST /v1/holds` (with `ttl`) and of one batch item (with
/// `idempotency_key`).
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CheckBody<'a> {
    /// Who asks.
    #[serde(borrow)]
    pub tenant: Text<'a>,
    /// First form: the limit's name.
    #[serde(borrow, default, deserialize_with = "present")]
    pub limit: Option<Text<'a>>,
    /// First form: the key.
    #[serde(borrow, default, deserialize_with = "present")]
    pub key: Option<Text<'a>>,
    /// First and third form: units; 1 when absent.
    #[serde(default, deserialize_with = "present")]
    pub cost: Option<Amount>,
    /// Second form: 1 to 16 limits.
    #[serde(borrow, default, deserialize_with = "present")]
    pub checks: Option<Bounded<Object<CheckItem<'a>>, CHECKS_MAX>>,
    /// Third form: the action.
    #[serde(borrow, default, deserialize_with = "present")]
    pub action: Option<Text<'a>>,
    /// Third form: keys by kind.
    #[serde(borrow, default, deserialize_with = "present")]
    pub keys: Option<Keys<'a>>,
    /// A label for metrics and logs.
    #[serde(borrow, default, deserialize_with = "present")]
    pub endpoint: Option<Text<'a>>,
    /// A label for logs.
    #[serde(borrow, default, deserialize_with = "present")]
    pub ip: Option<Text<'a>>,
    /// The longest wait for a leader; no check of this build waits for one.
    #[serde(default, deserialize_with = "present")]
    pub max_wait_ms: Option<Amount>,
    /// Holds: how long.
    #[serde(default, deserialize_with = "present_span")]
    pub ttl: Option<Span>,
    /// Batch items: the item's own key.
    #[serde(borrow, default, deserialize_with = "present")]
    pub idempotency_key: Option<Text<'a>>,
}

/// Which limits a check names.
#[derive(Debug)]
pub enum Form<'b, 'a> {
    /// One limit.
    One(&'b Text<'a>, Option<&'b Text<'a>>, u64),
    /// Several.
    Several(&'b [Object<CheckItem<'a>>]),
    /// All limits of an action.
    Action(&'b Text<'a>, Option<&'b Keys<'a>>, u64),
}

impl<'a> CheckBody<'a> {
    /// What tells this request from others under the same `Idempotency-Key`: everything it asks for, the
    /// key itself apart, however it is written down and whether it stands alone or in a batch.
    pub fn fingerprint(&self) -> u128 {
        let mut digest = Sha256::new();
        let mut text = |text: Option<&Text<'_>>| {
            let bytes = text.map_or(&[][..], |text| text.as_str().as_bytes());
            digest.update([u8::from(text.is_some())]);
            digest.update(u64::try_from(bytes.len()).unwrap_or(u64::MAX).to_be_bytes());
            digest.update(bytes);
        };
        text(Some(&self.tenant));
        for field in [
            &self.limit,
            &self.key,
            &self.action,
            &self.endpoint,
            &self.ip,
        ] {
            text(field.as_ref());
        }
        for (kind, key) in self.keys.iter().flat_map(|keys| &keys.0) {
            text(Some(kind));
            text(Some(key));
        }
        for check in self.checks.iter().flat_map(|checks| &checks.0) {
            text(Some(&check.limit));
            text(check.key.as_ref());
        }
        let costs = self
            .checks
            .iter()
            .flat_map(|checks| &checks.0)
            .map(|check| check.cost);
        for cost in std::iter::once(self.cost).chain(costs) {
            digest.update(cost.map_or(u64::MAX, |cost| cost.0).to_be_bytes());
        }
        digest.update(self.ttl.map_or(u64::MAX, Span::as_nanos).to_be_bytes());
        digest
            .finalize()
            .iter()
            .take(16)
            .fold(0, |sum, byte| sum << 8 | u128::from(*byte))
    }

    /// Which of the three forms it is.
    ///
    /// # Errors
    /// When it is none of them, or more than one.
    pub fn form(&self) -> Result<Form<'_, 'a>, Problem> {
        let cost = self.cost.map_or(1, |cost| cost.0);
        match (&self.limit, &self.checks, &self.action) {
            (Some(limit), None, None) if self.keys.is_none() => {
                Ok(Form::One(limit, self.key.as_ref(), cost))
            }
            (None, Some(checks), None)
                if self.keys.is_none() && self.key.is_none() && self.cost.is_none() =>
            {
                Ok(Form::Several(&checks.0))
            }
            (None, None, Some(action)) if self.key.is_none() => {
                Ok(Form::Action(action, self.keys.as_ref(), cost))
            }
            _ => Err(Problem::malformed(
                "a check names one limit (limit, key, cost), several (checks), or an action (action, keys, cost); \
                 these fields do not go together",
            )),
        }
    }
}

/// The body of a batch, its items not looked at yet: a bad one fails alone.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct BatchBody<'a> {
    /// 1 to 1000 checks.
    #[serde(borrow)]
    pub items: Bounded<&'a serde_json::value::RawValue, ITEMS_MAX>,
}

/// One limit of a settle.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SettleItem<'a> {
    /// The limit's name.
    #[serde(borrow)]
    pub limit: Text<'a>,
    /// The key, if the limit has one.
    #[serde(borrow, default, deserialize_with = "present")]
    pub key: Option<Text<'a>>,
    /// Units that were used in the end.
    pub cost: Amount,
}

/// The body of `POST /v1/holds/{id}/settle`.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SettleBody<'a> {
    /// The whole hold's cost, when it holds one limit.
    #[serde(default, deserialize_with = "present")]
    pub cost: Option<Amount>,
    /// Costs by limit; limits that are not named keep what was taken.
    #[serde(borrow, default, deserialize_with = "present")]
    pub checks: Option<Bounded<Object<SettleItem<'a>>, CHECKS_MAX>>,
}

/// The body of `POST /v1/holds/{id}/renew`.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RenewBody {
    /// How long from now.
    #[serde(default, deserialize_with = "present_span")]
    pub ttl: Option<Span>,
}

/// The body of `POST /v1/refund`.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RefundBody<'a> {
    /// Whose.
    #[serde(borrow)]
    pub tenant: Text<'a>,
    /// The limit's name.
    #[serde(borrow)]
    pub limit: Text<'a>,
    /// The key, if the limit has one.
    #[serde(borrow, default, deserialize_with = "present")]
    pub key: Option<Text<'a>>,
    /// Units; 1 when absent.
    #[serde(default, deserialize_with = "present")]
    pub cost: Option<Amount>,
}

/// Reads a body of `T`.
///
/// # Errors
/// A 400 that says where the body is wrong and how.
pub fn parse<'a, T: Deserialize<'a>>(bytes: &'a [u8]) -> Result<T, Problem> {
    serde_json::from_slice::<Object<T>>(bytes)
        .map(|object| object.0)
        .map_err(|error| problem_of(&error))
}

fn problem_of(error: &serde_json::Error) -> Problem {
    let text = error.to_string();
    if text.starts_with("unknown field") {
        return Problem::new(400, Code::UnknownField, text);
    }
    Problem::malformed(format!("the body is not the JSON that is wanted: {text}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn code(body: &str) -> Code {
        match parse::<CheckBody<'_>>(body.as_bytes()).and_then(|body| body.form().map(|_| ())) {
            Ok(()) => panic!("{body} was taken"),
            Err(problem) => problem.code,
        }
    }

    #[test]
    fn plain_texts_are_borrowed_and_escaped_ones_are_not() {
        let body: CheckBody<'_> = parse(br#"{"tenant":"a","limit":"l","key":"\u00e4"}"#).unwrap();
        assert!(matches!(body.tenant.0, Cow::Borrowed("a")));
        assert_eq!(body.key.unwrap().as_str(), "ä");
    }

    #[test]
    fn a_cost_is_an_integer_up_to_2_53_less_1_and_never_null() {
        for cost in ["0", "1", "9007199254740991"] {
            let body = format!(r#"{{"tenant":"a","limit":"l","cost":{cost}}}"#);
            assert!(parse::<CheckBody<'_>>(body.as_bytes()).is_ok(), "{cost}");
        }
        for cost in [
            "9007199254740992",
            "18446744073709551616",
            "1e400",
            "1.0",
            "0.5",
            "-1",
            "\"1\"",
            "true",
            "null",
            "NaN",
            "[]",
        ] {
            let body = format!(r#"{{"tenant":"a","limit":"l","cost":{cost}}}"#);
            assert_eq!(code(&body), Code::Malformed, "{cost}");
        }
    }

    #[test]
    fn forms_do_not_mix() {
        for body in [
            r#"{"tenant":"a"}"#,
            r#"{"tenant":"a","limit":"l","action":"x"}"#,
            r#"{"tenant":"a","limit":"l","keys":{}}"#,
            r#"{"tenant":"a","checks":[{"limit":"l"}],"cost":1}"#,
            r#"{"tenant":"a","checks":[]}"#,
            r#"{"tenant":"a","tenant":"b","limit":"l"}"#,
            r#"{"tenant":"a","action":"x","keys":{"ip":"1","ip":"2"}}"#,
        ] {
            assert_eq!(code(body), Code::Malformed, "{body}");
        }
        assert_eq!(
            code(r#"{"tenant":"a","limit":"l","kei":"x"}"#),
            Code::UnknownField
        );
        let many = vec![r#"{"limit":"l"}"#; 17].join(",");
        assert_eq!(
            code(&format!(r#"{{"tenant":"a","checks":[{many}]}}"#)),
            Code::Malformed
        );
    }
}
