//! The OpenAPI document of the admin listener.

use std::collections::BTreeSet;

use serde_json::Value;

use super::Server;

/// Every route that the admin listener promises, as `METHOD path`.
const ROUTES: [&str; 45] = [
    "get /admin/v1/catalogue",
    "put /admin/v1/catalogue",
    "patch /admin/v1/catalogue",
    "get /admin/v1/limits",
    "get /admin/v1/limits/{limit}",
    "put /admin/v1/limits/{limit}",
    "delete /admin/v1/limits/{limit}",
    "get /admin/v1/plans",
    "get /admin/v1/plans/{plan}",
    "put /admin/v1/plans/{plan}",
    "delete /admin/v1/plans/{plan}",
    "get /admin/v1/tenants",
    "get /admin/v1/tenants/{tenant}",
    "put /admin/v1/tenants/{tenant}",
    "delete /admin/v1/tenants/{tenant}",
    "get /admin/v1/tenants/{tenant}/limits",
    "get /admin/v1/tenants/{tenant}/limits/{limit}",
    "put /admin/v1/tenants/{tenant}/limits/{limit}",
    "delete /admin/v1/tenants/{tenant}/limits/{limit}",
    "get /admin/v1/tenants/{tenant}/limits/{limit}/override",
    "put /admin/v1/tenants/{tenant}/limits/{limit}/override",
    "delete /admin/v1/tenants/{tenant}/limits/{limit}/override",
    "post /admin/v1/tenants/{tenant}/limits/{limit}/reset",
    "get /admin/v1/rejections",
    "get /admin/v1/audit",
    "get /admin/v1/cluster",
    "get /admin/v1/tokens",
    "post /admin/v1/tokens",
    "delete /admin/v1/tokens/{id}",
    "post /admin/v1/cluster/drain",
    "post /admin/v1/cluster/resume",
    "post /admin/v1/cluster/leader",
    "put /admin/v1/cluster/leader-preference",
    "put /admin/v1/cluster/regions/{region}",
    "delete /admin/v1/cluster/regions/{region}",
    "get /admin/v1/tenants/{tenant}/limits/{limit}/ledger",
    "get /admin/v1/faults",
    "post /admin/v1/faults",
    "delete /admin/v1/faults/{id}",
    "put /admin/v1/clock",
    "get /admin/v1/backup",
    "get /metrics",
    "post /v1/check",
    "get /livez",
    "get /readyz",
];

async fn document() -> Value {
    Server::start()
        .await
        .send(axum::http::Method::GET, "/openapi.json", &[], String::new())
        .await
        .ok()
}

#[tokio::test]
async fn every_route_is_described_once() {
    let document = document().await;
    let paths = document["paths"].as_object().expect("paths");
    let mut routes = BTreeSet::new();
    let mut ids = BTreeSet::new();
    for (path, operations) in paths {
        for (method, operation) in operations.as_object().expect("operations") {
            routes.insert(format!("{method} {path}"));
            let id = operation["operationId"].as_str().expect("an id");
            assert!(ids.insert(id.to_owned()), "two operations are called {id}");
            assert!(
                operation["summary"].is_string() || operation["description"].is_string(),
                "{method} {path}"
            );
        }
    }
    for route in ROUTES {
        assert!(routes.contains(route), "{route} is not described");
    }
}

#[tokio::test]
async fn every_reference_leads_somewhere() {
    let document = document().await;
    let mut references = BTreeSet::new();
    collect(&document, &mut references);
    assert!(!references.is_empty());
    for reference in references {
        let pointer = reference.strip_prefix('#').expect("a local reference");
        assert!(document.pointer(pointer).is_some(), "{reference}");
    }
    assert!(
        document
            .pointer("/components/securitySchemes/bearer")
            .is_some()
    );
}

/// What answers hold must be what the document allows: a page's items have the fields of an item and a name.
#[tokio::test]
async fn fields_of_one_struct_among_those_of_another_are_described_together() {
    let document = document().await;
    assert!(!document.to_string().contains("allOf"));
    let schema = |name: &str| {
        document
            .pointer(&format!("/components/schemas/{name}"))
            .cloned()
            .expect(name)
    };
    let limit = schema("TenantLimit");
    for field in ["quota", "window", "keys", "own"] {
        assert!(limit["properties"][field].is_object(), "{field}");
    }
    assert_eq!(limit["additionalProperties"], false);
    let catalogue = schema("CatalogueDocument");
    assert!(
        catalogue["properties"]["version"].is_object()
            && catalogue["properties"]["plans"].is_object()
    );
    let page = schema("ItemPage_Named_LimitSpec");
    let item = &page["properties"]["items"]["items"];
    assert!(
        item["properties"]["name"].is_object() && item["properties"]["quota"].is_object(),
        "{page}"
    );
    assert_eq!(item["required"], serde_json::json!(["name"]));
}

fn collect(value: &Value, references: &mut BTreeSet<String>) {
    match value {
        Value::Object(fields) => {
            if let Some(reference) = fields.get("$ref").and_then(Value::as_str) {
                references.insert(reference.to_owned());
            }
            fields.values().for_each(|value| collect(value, references));
        }
        Value::Array(values) => values.iter().for_each(|value| collect(value, references)),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => {}
    }
}
