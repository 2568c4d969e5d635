//! JSON documents of any shape, read strictly: a field that stands twice is refused, not overlooked.

use std::fmt;

use serde::Deserialize;
use serde::Deserializer;
use serde::de::Error;
use serde::de::MapAccess;
use serde::de::SeqAccess;
use serde::de::Visitor;
use serde_json::Map;
use serde_json::Number;
use serde_json::Value;

use crate::http::problem::Problem;

/// Reads a document.
///
/// # Errors
/// 400 when it is not JSON, or a field stands twice.
pub fn document(bytes: &[u8]) -> Result<Value, Problem> {
    serde_json::from_slice::<Strict>(bytes)
        .map(|strict| strict.0)
        .map_err(|error| {
            Problem::malformed(format!("the body is not the JSON that is wanted: {error}"))
        })
}

/// A value in which no field stands twice.
struct Strict(Value);

impl<'de> Deserialize<'de> for Strict {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct AnyVisitor;

        impl<'de> Visitor<'de> for AnyVisitor {
            type Value = Strict;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a JSON value")
            }

            fn visit_unit<E: Error>(self) -> Result<Strict, E> {
                Ok(Strict(Value::Null))
            }

            fn visit_bool<E: Error>(self, value: bool) -> Result<Strict, E> {
                Ok(Strict(Value::Bool(value)))
            }

            fn visit_u64<E: Error>(self, value: u64) -> Result<Strict, E> {
                Ok(Strict(Value::from(value)))
            }

            fn visit_i64<E: Error>(self, value: i64) -> Result<Strict, E> {
                Ok(Strict(Value::from(value)))
            }

            fn visit_f64<E: Error>(self, value: f64) -> Result<Strict, E> {
                Number::from_f64(value)
                    .map(|number| Strict(Value::Number(number)))
                    .ok_or_else(|| E::custom("not a number"))
            }

            fn visit_str<E: Error>(self, value: &str) -> Result<Strict, E> {
                Ok(Strict(Value::from(value)))
            }

            fn visit_string<E: Error>(self, value: String) -> Result<Strict, E> {
                Ok(Strict(Value::String(value)))
            }

            fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Strict, A::Error> {
                let mut values = Vec::new();
                while let Some(Strict(value)) = list.next_element()? {
                    values.push(value);
                }
                Ok(Strict(Value::Array(values)))
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Strict, A::Error> {
                let mut fields = Map::new();
                while let Some((name, Strict(value))) = map.next_entry::<String, Strict>()? {
                    if fields.contains_key(&name) {
                        return Err(A::Error::custom(format_args!(
                            "duplicate field {}",
                            Value::from(name)
                        )));
                    }
                    fields.insert(name, value);
                }
                Ok(Strict(Value::Object(fields)))
            }
        }

        deserializer.deserialize_any(AnyVisitor)
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn documents_are_read_as_they_are() {
        let text = br#"{"a":[1,-2,0.5,null,true,"\u00e4"],"b":{"c":18446744073709551615}}"#;
        let value = json!({ "a": [1, -2, 0.5, null, true, "ä"], "b": { "c": u64::MAX } });
        assert_eq!(document(text).map_err(|problem| problem.detail), Ok(value));
    }

    #[test]
    fn what_is_not_json_or_stands_twice_is_refused() {
        let deep = "[".repeat(100_000);
        for text in [
            "",
            "{",
            "{\"a\":1,\"a\":1}",
            "[{\"b\":{\"a\":1,\"a\":2}}]",
            "1e400",
            "{} {}",
            "nul",
            &deep,
        ] {
            let problem = document(text.as_bytes()).expect_err(text);
            assert_eq!(problem.status, 400);
        }
        assert!(
            document(b"{\"q\":1,\"q\":2}")
                .expect_err("twice")
                .detail
                .contains("duplicate field \"q\"")
        );
    }
}
