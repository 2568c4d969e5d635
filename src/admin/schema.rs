//! The OpenAPI document of the admin listener: what any request may be told, and how it is served.

use serde_json::Map;
use serde_json::Value;
use serde_json::json;
use utoipa::IntoResponses;
use utoipa::openapi::OpenApi;

use crate::http::problem::Problem;

/// The problems of the admin API.
#[derive(IntoResponses)]
pub enum AdminProblems {
    /// The request is not of the wanted form.
    #[response(status = 400, content_type = "application/problem+json")]
    Malformed(#[to_schema] Problem),
    /// No token, or a wrong one.
    #[response(status = 401, content_type = "application/problem+json")]
    Unauthorized(#[to_schema] Problem),
    /// The token may not do this.
    #[response(status = 403, content_type = "application/problem+json")]
    Forbidden(#[to_schema] Problem),
    /// There is nothing here.
    #[response(status = 404, content_type = "application/problem+json")]
    NotFound(#[to_schema] Problem),
    /// The body did not arrive in time.
    #[response(status = 408, content_type = "application/problem+json")]
    Timeout(#[to_schema] Problem),
    /// Something else still uses it.
    #[response(status = 409, content_type = "application/problem+json")]
    InUse(#[to_schema] Problem),
    /// The catalogue is at another version than `If-Match` says.
    #[response(status = 412, content_type = "application/problem+json")]
    VersionMismatch(#[to_schema] Problem),
    /// The body is over its bound.
    #[response(status = 413, content_type = "application/problem+json")]
    TooLarge(#[to_schema] Problem),
    /// It cannot be as asked; `errors` names the fields.
    #[response(status = 422, content_type = "application/problem+json")]
    Invalid(#[to_schema] Problem),
    /// Not now, or the outcome is unknown.
    #[response(status = 503, content_type = "application/problem+json")]
    Unavailable(#[to_schema] Problem),
}

/// The document as it is served.
///
/// A struct whose fields stand among those of another is described as "all of" both. Where one of them
/// allows no other fields, that would allow nothing at all; such parts are made one object.
pub fn served(document: &OpenApi) -> Vec<u8> {
    let document = serde_json::to_value(document).unwrap_or_default();
    let merged = merged(&document, &document);
    serde_json::to_vec(&merged).unwrap_or_default()
}

fn merged(value: &Value, document: &Value) -> Value {
    match value {
        Value::Object(fields) => match fields.get("allOf").and_then(Value::as_array) {
            Some(parts) => one_object(fields, parts, document),
            None => fields
                .iter()
                .map(|(name, value)| (name.clone(), merged(value, document)))
                .collect::<Map<String, Value>>()
                .into(),
        },
        Value::Array(values) => values.iter().map(|value| merged(value, document)).collect(),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => value.clone(),
    }
}

fn one_object(outer: &Map<String, Value>, parts: &[Value], document: &Value) -> Value {
    let mut object = json!({ "type": "object" });
    let mut properties = Map::new();
    let mut required = Vec::new();
    for part in parts {
        let part = merged(resolved(part, document), document);
        let named = part.get("properties").and_then(Value::as_object);
        properties.extend(
            named
                .into_iter()
                .flatten()
                .map(|(name, value)| (name.clone(), value.clone())),
        );
        required.extend(
            part.get("required")
                .and_then(Value::as_array)
                .into_iter()
                .flatten()
                .cloned(),
        );
        if part.get("additionalProperties") == Some(&Value::Bool(false)) {
            object["additionalProperties"] = Value::Bool(false);
        }
    }
    object["properties"] = Value::Object(properties);
    if !required.is_empty() {
        object["required"] = Value::Array(required);
    }
    if let Some(description) = outer.get("description") {
        object["description"] = description.clone();
    }
    object
}

fn resolved<'d>(part: &'d Value, document: &'d Value) -> &'d Value {
    let reference = part.get("$ref").and_then(Value::as_str);
    let pointer = reference.and_then(|reference| reference.strip_prefix('#'));
    pointer
        .and_then(|pointer| document.pointer(pointer))
        .unwrap_or(part)
}
