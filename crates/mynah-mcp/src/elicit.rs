//! Questions of a server to a person.

use mynah_data::{Metadata, ToolOutcome};
use rmcp::model::ElicitRequestParams;
use serde_json::{Map, Value, json};

/// The question for the person, and hints for the program that asks it.
pub(crate) fn question(server: &str, request: &Value, problem: Option<&str>) -> (String, Metadata) {
    let text = |name: &str| request.get(name).and_then(Value::as_str).unwrap_or_default();
    let mut asked = text("message").to_owned();
    let mut opts = Metadata::from_iter([("mcp_server".to_owned(), json!(server))]);
    if let Some(url) = request.get("url") {
        opts.insert("url".to_owned(), url.clone());
        asked = format!("{asked}\n{}\nOpen this address? (yes or no)", text("url"));
    } else if let Some(schema) = request.get("requestedSchema") {
        opts.insert("schema".to_owned(), schema.clone());
    }
    if let Some(problem) = problem {
        asked = format!("{asked}\n({problem})");
    }
    (asked, opts)
}

/// The outcome of a call that asks a person, with what is needed to continue.
pub(crate) fn ask(
    server: &str,
    request: &Value,
    problem: Option<&str>,
    state: Value,
) -> ToolOutcome {
    let (question, opts) = question(server, request, problem);
    ToolOutcome::ask_and_continue(question, opts, state)
}

/// What is wrong with a request, if it must not reach a person.
pub(crate) fn refusal(request: &ElicitRequestParams) -> Option<String> {
    match request {
        ElicitRequestParams::UrlElicitationParams { url, .. } => {
            let is_web = reqwest::Url::parse(url)
                .is_ok_and(|url| matches!(url.scheme(), "http" | "https") && url.has_host());
            (!is_web).then(|| "it asks to open an address that is not http or https".to_owned())
        }
        ElicitRequestParams::FormElicitationParams { .. } => None,
        _ => Some("it asks in an unknown way".to_owned()),
    }
}

/// The result for the server, from what the person answered; or what is wrong with the answer.
///
/// An answer is `{"action": "accept", "content": {…}}` or `{"action": "decline"}`, an object with the members of the form, or, if
/// the form has one member, its value. `decline` and `cancel` are what they say. For an address it is `yes` or `no`.
pub(crate) fn answered(request: &Value, answer: &str) -> Result<Value, String> {
    let word = answer.trim();
    let action = |action: &str| Ok(json!({"action": action}));
    match word.to_ascii_lowercase().as_str() {
        "decline" => return action("decline"),
        "cancel" => return action("cancel"),
        "yes" | "accept" | "ok" if request.get("url").is_some() => return action("accept"),
        "no" if request.get("url").is_some() => return action("decline"),
        _ if request.get("url").is_some() => return Err("answer yes or no".to_owned()),
        _ => {}
    }
    let schema = request.get("requestedSchema").cloned().unwrap_or_default();
    let no_members = Map::new();
    let members = schema.get("properties").and_then(Value::as_object).unwrap_or(&no_members);
    let given = serde_json::from_str::<Value>(word).ok();
    let content = match (&given, members.iter().next()) {
        (Some(Value::Object(object)), _) => {
            let named = |name: &str| object.get(name).and_then(Value::as_str);
            match named("action").filter(|_| !members.contains_key("action")) {
                Some("accept") => object.get("content").cloned().unwrap_or_else(|| json!({})),
                Some(other @ ("decline" | "cancel")) => return action(other),
                Some(_) => return Err("action is accept, decline or cancel".to_owned()),
                None => Value::Object(object.clone()),
            }
        }
        (given, Some((name, member))) if members.len() == 1 => {
            let is_text = member.get("type").is_none_or(|kind| kind == "string");
            let value = given.clone().filter(|value| !is_text || value.is_string());
            json!({name: value.unwrap_or_else(|| json!(word))})
        }
        (_, None) => json!({}),
        _ => {
            let names: Vec<&str> = members.keys().map(String::as_str).collect();
            return Err(format!("answer with a JSON object that has {}", names.join(", ")));
        }
    };
    match jsonschema::validate(&schema, &content) {
        Ok(()) => Ok(json!({"action": "accept", "content": content})),
        Err(error) => Err(format!("{}: {error}", error.instance_path())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn form(properties: Value) -> Value {
        json!({"message": "?", "requestedSchema": {"type": "object", "properties": properties}})
    }

    #[test]
    fn a_form_with_one_member_takes_its_value() {
        let name = form(json!({"name": {"type": "string"}}));
        let accepted = |content: Value| Ok(json!({"action": "accept", "content": content}));
        assert_eq!(answered(&name, "Ada"), accepted(json!({"name": "Ada"})));
        assert_eq!(answered(&name, "12"), accepted(json!({"name": "12"})));
        assert_eq!(answered(&name, r#""12""#), accepted(json!({"name": "12"})));
        let count = form(json!({"count": {"type": "integer", "minimum": 1}}));
        assert_eq!(answered(&count, "3"), accepted(json!({"count": 3})));
        assert!(answered(&count, "0").is_err_and(|why| why.contains("/count")));
        assert!(answered(&count, "three").is_err());
    }

    #[test]
    fn a_form_with_several_members_takes_an_object() {
        let both = form(json!({"a": {"type": "string"}, "b": {"type": "boolean"}}));
        assert_eq!(answered(&both, "x"), Err("answer with a JSON object that has a, b".to_owned()));
        let whole = json!({"action": "accept", "content": {"a": "x", "b": true}});
        assert_eq!(answered(&both, r#"{"a": "x", "b": true}"#), Ok(whole.clone()));
        assert_eq!(answered(&both, &whole.to_string()), Ok(whole));
        assert_eq!(answered(&both, "decline"), Ok(json!({"action": "decline"})));
        assert_eq!(answered(&both, r#"{"action": "cancel"}"#), Ok(json!({"action": "cancel"})));
    }

    #[test]
    fn an_address_is_opened_by_consent_alone() {
        let url = json!({"message": "Sign in", "url": "https://example.com/in"});
        assert_eq!(answered(&url, "yes"), Ok(json!({"action": "accept"})));
        assert_eq!(answered(&url, "No"), Ok(json!({"action": "decline"})));
        assert!(answered(&url, "maybe").is_err());
        let asks = |url: &str| ElicitRequestParams::UrlElicitationParams {
            meta: None,
            message: String::new(),
            url: url.to_owned(),
            elicitation_id: String::new(),
        };
        assert_eq!(refusal(&asks("https://example.com/in")), None);
        for url in ["file:///etc/passwd", "javascript:alert(1)", "ssh://host", "no address"] {
            assert!(refusal(&asks(url)).is_some(), "{url}");
        }
    }
}
