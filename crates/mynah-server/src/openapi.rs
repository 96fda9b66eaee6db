//! The description of the API (OpenAPI 3.1), made from the table of routes.

use axum::response::Response;
use serde_json::{Map, Value, json};

use crate::{
    problem::Result,
    reply,
    routes::{self, Described, Route},
};

/// The description.
pub(crate) async fn document() -> Result {
    Ok(respond())
}

fn respond() -> Response {
    reply::ok(&describe(&routes::all()))
}

fn describe(routes: &[Route]) -> Value {
    let paths: Map<String, Value> =
        routes.iter().map(|route| (route.path.to_owned(), path(route))).collect();
    json!({
        "openapi": "3.1.0",
        "info": {"title": "Mynah", "version": env!("CARGO_PKG_VERSION")},
        "paths": paths,
        "components": {
            "securitySchemes": {"token": {"type": "http", "scheme": "bearer"}},
            "schemas": {"Message": message(), "Problem": {
                "type": "object",
                "required": ["type", "title", "status", "code", "detail"],
                "properties": {
                    "type": {"type": "string"},
                    "title": {"type": "string"},
                    "status": {"type": "integer"},
                    "code": {"type": "string"},
                    "detail": {"type": "string"},
                    "metadata": {"type": "object"}
                }
            }}
        },
        "security": [{}, {"token": []}]
    })
}

/// A message that a run begins with.
fn message() -> Value {
    let text = json!({
        "type": "object",
        "required": ["type", "text"],
        "properties": {"type": {"const": "text"}, "text": {"type": "string"}}
    });
    let source = json!({
        "type": "object",
        "required": ["type", "value"],
        "properties": {
            "type": {"enum": ["base64", "url"]},
            "value": {"type": "string", "description": "the bytes in base64, or an address"}
        }
    });
    let image = json!({
        "type": "object",
        "required": ["type", "image"],
        "properties": {"type": {"const": "image"}, "image": {
            "type": "object",
            "required": ["source"],
            "properties": {
                "source": source,
                "mime_type": {"type": "string", "examples": ["image/png"]}
            }
        }}
    });
    json!({
        "type": "object",
        "required": ["role", "content"],
        "properties": {
            "role": {"enum": ["system", "user", "assistant", "tool"]},
            "content": {"oneOf": [
                {"type": "string"},
                {"type": "array", "items": {"anyOf": [text, image, {"type": "object"}]}}
            ]}
        }
    })
}

fn path(route: &Route) -> Value {
    let names = route.path.split('/').filter_map(|segment| {
        segment.strip_prefix('{').and_then(|segment| segment.strip_suffix('}'))
    });
    let names: Vec<&str> = names.collect();
    let methods =
        route.methods.iter().map(|method| (method.method.to_owned(), operation(&names, method)));
    Value::Object(methods.collect())
}

fn operation(names: &[&str], described: &Described) -> Value {
    let parameter = |name: &str, place: &str, required: bool, what: &str| {
        // Of a list, it says whether inputs are shown.
        let schema = match (place, name) {
            ("query", "input") => json!({"type": "boolean"}),
            _ => schema_of(name),
        };
        json!({"name": name, "in": place, "required": required, "description": what, "schema": schema})
    };
    let in_path = names.iter().map(|name| parameter(name, "path", true, "percent-encoded"));
    let in_query = described.query.iter().map(|(name, what)| parameter(name, "query", false, what));
    let parameters: Vec<Value> = in_path.chain(in_query).collect();
    let mut content = json!({"application/json": {}});
    match described.also {
        Some("text/plain") => content = json!({"text/plain": {}}),
        Some("application/x-ndjson") => content = json!({"application/x-ndjson": {}}),
        Some(kind) => content[kind] = json!({}),
        None => {}
    }
    let problem =
        json!({"application/problem+json": {"schema": {"$ref": "#/components/schemas/Problem"}}});
    let mut operation = json!({
        "summary": described.summary,
        "parameters": parameters,
        "responses": {
            "2XX": {"description": described.summary, "content": content},
            "default": {"description": "Why it was refused or failed", "content": problem}
        }
    });
    if !described.body.is_empty() {
        let members = described.body.iter();
        let members = members.map(|(name, what)| {
            let mut schema = schema_of(name);
            schema["description"] = Value::from(*what);
            ((*name).to_owned(), schema)
        });
        let names = described.body.iter().map(|(name, _)| *name);
        let schema = json!({
            "type": "object",
            "required": names.filter(|name| REQUIRED.contains(name)).collect::<Vec<_>>(),
            "properties": members.collect::<Map<_, _>>(),
            "additionalProperties": false
        });
        operation["requestBody"] = json!({"content": {"application/json": {"schema": schema}}});
    }
    operation
}

/// The members that a body must have where it can have them.
const REQUIRED: [&str; 4] = ["input", "text", "at", "token"];

/// What a parameter or a member of a body may be. A name means the same everywhere.
fn schema_of(name: &str) -> Value {
    let texts = |values: &[&str]| json!({"type": "string", "enum": values});
    match name {
        "input" => json!({"oneOf": [
            {"type": "string"},
            {"type": "array", "items": {"$ref": "#/components/schemas/Message"}, "minItems": 1}
        ]}),
        "cancel" | "resume" | "raw" | "rerun_tools" | "allow_changed_agent" => {
            json!({"type": "boolean"})
        }
        "at" | "from" => json!({"type": "integer", "minimum": 1}),
        "limit" | "buckets" => json!({"type": "integer", "minimum": 1, "maximum": 1000}),
        "wait" => json!({"type": "integer", "minimum": 0, "maximum": 600}),
        "since" | "before" => json!({"type": "integer", "format": "int64"}),
        "approve" => json!({"type": "array", "items": {"type": "string"}}),
        "approve_with" | "results" => json!({"type": "object"}),
        "approve_digest" | "reject" => {
            json!({"type": "object", "additionalProperties": {"type": "string"}})
        }
        "on_uncertain" => texts(&["suspend", "rerun", "fail"]),
        "order" => texts(&["newest", "oldest"]),
        "format" => texts(&["bundle", "html"]),
        "status" => texts(&[
            "running",
            "suspended",
            "completed",
            "failed",
            "cancelled",
            "abandoned",
            "queued",
            "sleeping",
        ]),
        _ => json!({"type": "string"}),
    }
}
