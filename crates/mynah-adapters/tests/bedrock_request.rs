//! Requests as the documentation of Converse wants them, and how they are let in.

use std::{
    collections::HashMap,
    sync::Arc,
    time::{Duration, SystemTime},
};

use mynah_adapters::{
    bedrock::Bedrock,
    conformance::{Reply, TestServer},
    format::{Format, Outgoing},
    http::HttpAdapter,
    keys::Keys,
};
use mynah_data::{
    AdapterReason, CacheRetention, EngineReason, Error, ErrorKind, Image, Message, Part, Request,
    ResponseFormat, ToolCall, ToolChoice, ToolSpec,
};
use mynah_step::{Adapter, ModelCall};
use serde_json::{Value, json};

use crate::asked::{cached, marked, search, with_blanks, with_options};

#[test]
fn a_conversation_is_written_in_turns() {
    let calls = Message::assistant_parts([
        Part::Reasoning {
            text: "because".to_owned(),
            signature: Some("sig".to_owned()),
            redacted: false,
            data: None,
        },
        Part::Reasoning {
            text: String::new(),
            signature: None,
            redacted: true,
            data: Some(json!({"redactedContent": "/wAB"})),
        },
        Part::reasoning("another provider's"),
        Part::text("let me see"),
        Part::tool_call(ToolCall::new("c1", "search", r#"{"q": "go"}"#)),
        Part::tool_call(ToolCall::new("functions.now:0", "now", "")),
    ]);
    let request = Request::new([
        Message::system("Be brief."),
        Message::user("hi"),
        calls,
        Message::tool_result("c1", "found"),
        Message::tool_result("functions.now:0", "no clock").with_metadata("is_error", true),
        Message::user("go on"),
    ]);
    let sent = body(request.with_tools([search()]).with_max_tokens(9).with_temperature(0.5));
    assert_eq!(
        sent,
        json!({
            "system": [{"text": "Be brief."}],
            "messages": [
                {"role": "user", "content": [{"text": "hi"}]},
                {"role": "assistant", "content": [
                    {"reasoningContent": {"reasoningText": {"text": "because", "signature": "sig"}}},
                    {"reasoningContent": {"redactedContent": "/wAB"}},
                    {"text": "let me see"},
                    {"toolUse": {"toolUseId": "c1", "name": "search", "input": {"q": "go"}}},
                    {"toolUse": {"toolUseId": "functions_now_0", "name": "now", "input": {}}},
                ]},
                {"role": "user", "content": [
                    {"toolResult": {"toolUseId": "c1", "content": [{"text": "found"}]}},
                    {"toolResult": {
                        "toolUseId": "functions_now_0",
                        "content": [{"text": "no clock"}],
                        "status": "error",
                    }},
                    {"text": "go on"},
                ]},
            ],
            "toolConfig": {"tools": [{"toolSpec": {
                "name": "search",
                "inputSchema": {"json": {"type": "object"}},
                "description": "finds",
            }}]},
            "inferenceConfig": {"maxTokens": 9, "temperature": 0.5},
        })
    );
}

#[test]
fn thoughts_that_later_instructions_make_invalid_are_left_away() {
    let thought = |text: &str| {
        let signature = Some("sig".to_owned());
        let thought =
            Part::Reasoning { text: text.to_owned(), signature, redacted: false, data: None };
        Message::assistant_parts([thought, Part::text("well")])
    };
    let asked = [
        Message::system("Be brief."),
        Message::user("hi"),
        thought("before"),
        Message::system("Be kind."),
        Message::user("go on"),
        thought("after"),
        Message::user("and?"),
    ];
    for (model, kept) in [
        ("us.anthropic.claude-opus-5-5", &["after"][..]),
        ("us.anthropic.claude-sonnet-4-5-20250929-v1:0", &["before", "after"]),
    ] {
        let request = Request::new(asked.clone()).with_model(model);
        let sent = Bedrock::default().body(&request, &ModelCall::default()).unwrap();
        let messages = sent["messages"].as_array().unwrap().iter();
        let blocks = messages.flat_map(|message| message["content"].as_array().unwrap());
        let thoughts =
            blocks.filter_map(|block| block["reasoningContent"]["reasoningText"]["text"].as_str());
        assert_eq!(thoughts.collect::<Vec<_>>(), kept, "{model}");
    }
}

#[test]
fn blank_text_is_left_away() {
    let sent = body(with_blanks(" "));
    assert_eq!(sent.get("system"), None);
    assert_eq!(
        sent["messages"],
        json!([
            {"role": "user", "content": [{"text": "hi"}]},
            {"role": "assistant", "content": [
                {"toolUse": {"toolUseId": "c1", "name": "search", "input": {}}},
            ]},
            {"role": "user", "content": [
                {"toolResult": {"toolUseId": "c1", "content": [{"text": "(empty)"}]}},
            ]},
        ])
    );
}

#[test]
fn a_model_is_one_segment_of_the_path() {
    let path = |model: &str| Bedrock::default().path(&Request::from("hi").with_model(model));
    assert_eq!(path("amazon.nova-lite-v1:0"), "model/amazon.nova-lite-v1%3A0/converse-stream");
    assert_eq!(path("arn:aws:x/y"), "model/arn%3Aaws%3Ax%2Fy/converse-stream");
}

#[test]
fn images_go_as_their_bytes_or_from_the_providers_own_store() {
    let images = [
        Image::from_base64("aGk=", "image/jpeg"),
        Image::from_binary(*b"hi", "image/png"),
        Image::from_url("s3://bucket/a.jpg"),
    ];
    let request = Request::new([Message::user_parts(images.map(Part::image))]);
    assert_eq!(
        body(request)["messages"][0]["content"],
        json!([
            {"image": {"format": "jpeg", "source": {"bytes": "aGk="}}},
            {"image": {"format": "png", "source": {"bytes": "aGk="}}},
            {"image": {"format": "jpeg", "source": {"s3Location": {"uri": "s3://bucket/a.jpg"}}}},
        ])
    );
    let elsewhere = Part::image(Image::from_url("https://example.com/a.png"));
    let error = refused(Request::new([Message::user_parts([elsewhere])]));
    assert_eq!(error.kind(), ErrorKind::Adapter(AdapterReason::UnsupportedFeature));
}

#[test]
fn each_choice_of_a_tool_has_its_form() {
    let asked = |choice: ToolChoice, tools: Vec<ToolSpec>| {
        Request::from("hi").with_tool_choice(choice).with_tools(tools)
    };
    let tool = || ToolChoice::Tool("search".to_owned());
    for (choice, expected) in [
        (ToolChoice::Auto, None),
        (ToolChoice::Required, Some(json!({"any": {}}))),
        (tool(), Some(json!({"tool": {"name": "search"}}))),
    ] {
        let sent = body(asked(choice, vec![search()]));
        assert_eq!(sent["toolConfig"].get("toolChoice").cloned(), expected);
    }
    assert_eq!(body(asked(ToolChoice::None, vec![search()])).get("toolConfig"), None);
    let unsupported = ErrorKind::Adapter(AdapterReason::UnsupportedFeature);
    assert_eq!(refused(asked(tool(), vec![])).kind(), unsupported);
    let own = ToolChoice::Other(json!({"any": {}}).as_object().unwrap().clone());
    for choice in [tool(), own] {
        let decides = asked(choice, vec![search()]).with_model("us.anthropic.claude-opus-5-5");
        let error = Bedrock::default().body(&decides, &ModelCall::default()).unwrap_err();
        assert_eq!(error.kind(), unsupported);
    }
    let called = Message::assistant_parts([Part::tool_call(ToolCall::new("c", "search", "{}"))]);
    let answered = Request::new([called, Message::tool_result("c", "found")]);
    let sent = body(answered.clone());
    assert_eq!(sent["toolConfig"]["tools"][0]["toolSpec"]["name"], "search", "described again");
    let mut to = ModelCall::default();
    to.former_tools = vec![search().into()];
    for (model, described) in [("us.anthropic.claude-opus-5-5", Some("finds")), ("m", None)] {
        let sent = Bedrock::default().body(&answered.clone().with_model(model), &to).unwrap();
        let tool = &sent["toolConfig"]["tools"][0]["toolSpec"];
        let description = tool.get("description").and_then(Value::as_str);
        assert_eq!(description, described, "as it was, where thinking depends on it");
    }
    let barred = answered.with_tool_choice(ToolChoice::None);
    assert_eq!(refused(barred.with_tools([search()])).kind(), unsupported);
}

#[test]
fn effort_is_told_to_each_model_in_its_own_way() {
    let sent = |model: &str, effort: &str| {
        let request = with_options(&json!({"reasoning_effort": effort})).with_model(model);
        let body = Bedrock::default().body(&request, &ModelCall::default()).unwrap();
        body["additionalModelRequestFields"].clone()
    };
    for effort in ["low", "max"] {
        let own = json!({"output_config": {"effort": effort}});
        assert_eq!(sent("us.anthropic.claude-opus-5", effort), own);
        assert_eq!(sent("openai.gpt-oss-120b-1:0", effort), json!({"reasoning_effort": effort}));
        assert_eq!(sent("amazon.nova-pro-v1:0", effort), Value::Null, "it does not reason");
    }
    for (effort, known) in [
        ("minimal", "low"),
        ("low", "low"),
        ("medium", "medium"),
        ("high", "high"),
        ("xhigh", "high"),
        ("max", "high"),
    ] {
        let own = json!({"reasoningConfig": {"type": "enabled", "maxReasoningEffort": known}});
        assert_eq!(sent("us.amazon.nova-2-lite-v1:0", effort), own);
    }
}

/// `extraneous key [top_k] is not permitted`
#[test]
fn nova_has_a_place_of_its_own_for_top_k() {
    let sent = |model: &str| {
        let request = with_options(&json!({"top_k": 5, "reasoning_effort": "none"}));
        let body = Bedrock::default().body(&request.with_model(model), &ModelCall::default());
        body.unwrap()["additionalModelRequestFields"].clone()
    };
    let place = json!({"inferenceConfig": {"topK": 5}});
    assert_eq!(sent("eu.amazon.nova-pro-v1:0"), place);
    let off = json!({"reasoningConfig": {"type": "disabled"}, "inferenceConfig": {"topK": 5}});
    assert_eq!(sent("amazon.nova-2-lite-v1:0"), off);
}

/// `extraneous key [cachePoint] is not permitted`
#[test]
fn each_model_gets_the_cache_points_that_it_takes() {
    let mark = json!({"type": "ephemeral", "ttl": "1h"});
    let result = Message::tool_result("c1", "found").with_metadata("cache_control", mark.clone());
    let call = Message::assistant_parts([Part::tool_call(ToolCall::new("c1", "search", "{}"))]);
    let asked = marked(&mark);
    let said = asked.messages.iter().map(|message| Message::clone(message));
    let mut request = Request::new(said.chain([call, result]));
    request.tools = asked.tools.clone();
    let points = |model: &str| {
        let request = request.clone().with_model(model);
        let body = Bedrock::default().body(&request, &ModelCall::default()).unwrap();
        let places = ["/system", "/messages/0/content", "/messages/2/content", "/toolConfig/tools"];
        places.map(|place| {
            let blocks = body.pointer(place).unwrap().as_array().unwrap();
            blocks.iter().find_map(|block| block.get("cachePoint").cloned())
        })
    };
    let [hour, short] =
        [json!({"type": "default", "ttl": "1h"}), json!({"type": "default"})].map(Some);
    for (model, expected) in [
        ("us.anthropic.claude-opus-5", [&hour; 4]),
        ("my-profile", [&hour; 4]),
        ("anthropic.claude-3-7-sonnet-20250219-v1:0", [&short; 4]),
        ("amazon.nova-pro-v1:0", [&short, &short, &None, &None]),
        ("meta.llama3-3-70b-instruct-v1:0", [&None; 4]),
        ("deepseek.v3.2", [&None; 4]),
    ] {
        assert_eq!(points(model).each_ref(), expected, "{model}");
    }
}

#[test]
fn the_prompt_is_cached_up_to_the_marks() {
    let mark = json!({"type": "ephemeral", "ttl": "1h"});
    let point = json!({"cachePoint": {"type": "default", "ttl": "1h"}});
    let sent = body(marked(&mark));
    assert_eq!(sent["system"], json!([{"text": "Be brief."}, point]));
    assert_eq!(
        sent["messages"][0]["content"],
        json!([{"text": "a long text"}, point, {"text": "and?"}])
    );
    assert_eq!(sent["toolConfig"]["tools"][1], point);
    let automatic = |retention| body(cached(retention))["messages"][0]["content"].clone();
    let short = json!({"cachePoint": {"type": "default"}});
    assert_eq!(automatic(CacheRetention::Short), json!([{"text": "hi"}, short]));
    assert_eq!(automatic(CacheRetention::Long), json!([{"text": "hi"}, point]));
}

#[test]
fn an_answer_may_be_asked_for_by_a_schema() {
    let schema = json!({"type": "object", "properties": {}});
    let form = ResponseFormat::json_schema("x", schema);
    let sent = body(Request::from("hi").with_response_format(form));
    assert_eq!(
        sent["outputConfig"],
        json!({"textFormat": {"type": "json_schema", "structure": {"jsonSchema": {
            "name": "x", "schema": r#"{"type":"object","properties":{},"additionalProperties":false}"#,
        }}}})
    );
}

#[test]
fn the_callers_own_params_are_passed_on_to_their_places() {
    let options = json!({
        "stop": "END", "top_p": 0.5, "top_k": 3, "thinking": {"type": "enabled"},
        "guardrail_config": {"guardrailIdentifier": "g"}, "requestMetadata": {"a": "b"},
        "additionalModelRequestFields": {"own": 1},
        "tool_config": {"tools": [{"systemTool": {"name": "grounding"}}], "toolChoice": {"any": {}}},
    });
    let sent = body(with_options(&options).with_tools([search()]));
    let tools = sent["toolConfig"]["tools"].as_array().unwrap();
    assert_eq!((&tools[0]["toolSpec"]["name"], tools.len()), (&json!("search"), 2));
    assert_eq!(tools[1], options["tool_config"]["tools"][0]);
    assert_eq!(sent["toolConfig"]["toolChoice"], json!({"any": {}}));
    assert_eq!(sent["inferenceConfig"], json!({"stopSequences": ["END"], "topP": 0.5}));
    assert_eq!(
        sent["additionalModelRequestFields"],
        json!({"own": 1, "top_k": 3, "thinking": {"type": "enabled"}})
    );
    assert_eq!(sent["guardrailConfig"], options["guardrail_config"]);
    assert_eq!(sent["requestMetadata"], options["requestMetadata"]);
}

#[test]
fn a_call_is_signed_as_the_standard_says() {
    const URL: &str = "https://bedrock-runtime.us-east-1.amazonaws.com/model/amazon.nova-lite-v1%3A0/converse-stream";
    let keys = environment(&[("AWS_ACCESS_KEY_ID", "AKIDEXAMPLE")]);
    let key = keys.find("bedrock", &["AWS_ACCESS_KEY_ID"], None).unwrap();
    let now = SystemTime::UNIX_EPOCH + Duration::from_secs(1_440_938_160);
    let call = ModelCall::default();
    let mut outgoing = Outgoing::new(&key, URL, b"{}", now, &call);
    let region = |name: &str| (name == "AWS_DEFAULT_REGION").then(|| "us-east-1".to_owned());
    outgoing.setting = &region;
    let missing = Bedrock::default().authorize(&outgoing).unwrap_err();
    assert_eq!(missing.kind(), ErrorKind::Engine(EngineReason::MissingKey));
    let secret = |name: &str| match name {
        "AWS_SECRET_ACCESS_KEY" => Some("wJalrXUtnFEMI/K7MDENG+bPxRfiCYEXAMPLEKEY".to_owned()),
        "AWS_SESSION_TOKEN" => Some("session-token".to_owned()),
        _ => None,
    };
    outgoing.secret = &secret;
    let mut headers = Bedrock::default().authorize(&outgoing).unwrap();
    headers.sort();
    let headers: Vec<(&str, &str)> =
        headers.iter().map(|(name, value)| (name.as_ref(), value.as_str())).collect();
    assert_eq!(
        headers,
        [
            (
                "authorization",
                "AWS4-HMAC-SHA256 Credential=AKIDEXAMPLE/20150830/us-east-1/bedrock/aws4_request, SignedHeaders=host;x-amz-date;x-amz-security-token, Signature=b4e6a5fc63df8f01e2a9e4f9b53f3c48500f7c095c5455a89be725025ad2b7a6"
            ),
            ("x-amz-date", "20150830T123600Z"),
            ("x-amz-security-token", "session-token"),
        ]
    );
}

#[tokio::test]
async fn what_a_call_is_signed_with_is_in_no_error() {
    let secrets = [
        ("AWS_ACCESS_KEY_ID", "AKIA-not-to-be-told"),
        ("AWS_SECRET_ACCESS_KEY", "secret-not-to-be-told"),
        ("AWS_SESSION_TOKEN", "session-not-to-be-told"),
        ("AWS_REGION", "eu-west-1"),
    ];
    let told = "no: AKIA-not-to-be-told secret-not-to-be-told session-not-to-be-told eu-west-1";
    let body = json!({"message": told}).to_string();
    let kind = "InvalidSignatureException:http://internal.amazon.com/coral/";
    let reply = Reply::json(403, body).with_header("x-amzn-errortype", kind);
    let server = TestServer::start(move |_| reply.clone()).await.unwrap();
    let adapter = adapter(&secrets).with_base_url(server.url()).unwrap();
    let error = open(adapter).await;
    assert_eq!(error.kind(), ErrorKind::Adapter(AdapterReason::AuthenticationFailed));
    assert_eq!(error.message(), "no: … … … eu-west-1");
    let received = server.received().pop().unwrap();
    let signature = received.header("authorization").unwrap();
    assert!(signature.contains("/eu-west-1/bedrock/aws4_request"), "{signature}");
    assert_eq!(received.header("x-amz-security-token"), Some("session-not-to-be-told"));
}

#[tokio::test]
async fn a_profile_has_what_the_variables_do_not_say() {
    let home = tempfile::tempdir().unwrap();
    let credentials = "# mine\n[default]\naws_access_key_id = AKIA-DEFAULT\naws_secret_access_key=s1\n\n\
        [dev]\naws_access_key_id=AKIA-DEV ; of the team\nAWS_SECRET_ACCESS_KEY = s2\naws_session_token = session-of-dev\n\
        [sso]\nsso_session = x\n";
    let config = "[default]\nregion = us-east-2\ns3 =\n  region = none\n[profile dev]\nregion = eu-west-3\n\
        [profile sso]\nregion = us-east-1\n";
    std::fs::create_dir(home.path().join(".aws")).unwrap();
    std::fs::write(home.path().join(".aws/credentials"), credentials).unwrap();
    std::fs::write(home.path().join(".aws/config"), config).unwrap();
    let home = home.path().to_str().unwrap();
    let server = TestServer::start(|_| Reply::json(404, r#"{"message": "no session-of-dev"}"#));
    let server = server.await.unwrap();
    let signed = async |variables: &[(&str, &str)]| {
        let variables = [&[("HOME", home)], variables].concat();
        let error = open(adapter(&variables).with_base_url(server.url()).unwrap()).await;
        let received = server.received().pop().unwrap();
        let signature = received.header("authorization").unwrap().to_owned();
        let session = received.header("x-amz-security-token").map(str::to_owned);
        (signature, session, error.message().into_owned())
    };
    let (signature, session, _) = signed(&[]).await;
    assert!(signature.contains("Credential=AKIA-DEFAULT/"), "{signature}");
    assert!(signature.contains("/us-east-2/"), "{signature}");
    assert_eq!(session, None);
    let (signature, session, told) = signed(&[("AWS_PROFILE", "dev")]).await;
    assert!(signature.contains("Credential=AKIA-DEV/"), "{signature}");
    assert!(signature.contains("/eu-west-3/"), "{signature}");
    assert_eq!((session.as_deref(), told.as_str()), (Some("session-of-dev"), "no …"));
    let kept = adapter(&[("HOME", home), ("AWS_PROFILE", "dev")]).environment_opts();
    assert_eq!(Value::Object(kept), json!({"region": "eu-west-3"}));
    let set = [("AWS_ACCESS_KEY_ID", "AKIA-SET"), ("AWS_SECRET_ACCESS_KEY", "s3")];
    let region = [("AWS_PROFILE", "dev"), ("AWS_DEFAULT_REGION", "ap-south-1")];
    let (signature, session, _) = signed(&[set, region].concat()).await;
    assert!(signature.contains("Credential=AKIA-SET/"), "{signature}");
    assert!(signature.contains("/ap-south-1/"), "{signature}");
    assert_eq!(session, None, "what signs a call is from one place");
    for missing in [&[("AWS_PROFILE", "sso")][..], &[("AWS_PROFILE", "nobody")], &set[..1]] {
        let error = open(adapter(&[&[("HOME", home)], missing].concat())).await;
        assert_eq!(error.kind(), ErrorKind::Engine(EngineReason::MissingKey), "{missing:?}");
    }
    let files = [("AWS_SHARED_CREDENTIALS_FILE", "/nowhere"), ("AWS_CONFIG_FILE", "/nowhere")];
    let error = open(adapter(&[&[("HOME", home)], &files[..]].concat())).await;
    assert_eq!(error.kind(), ErrorKind::Engine(EngineReason::MissingKey));
}

#[tokio::test]
async fn the_bearer_token_comes_before_what_signs_and_the_region_names_the_server() {
    let token = [("AWS_BEARER_TOKEN_BEDROCK", "token"), ("AWS_ACCESS_KEY_ID", "a")];
    let reply = Reply::json(404, r#"{"message": "no"}"#);
    let server = TestServer::start(move |_| reply.clone()).await.unwrap();
    open(adapter(&token).with_base_url(server.url()).unwrap()).await;
    let received = server.received().pop().unwrap();
    assert_eq!(received.header("authorization"), Some("Bearer token"));
    assert_eq!(received.path, "/model/m%3A0/converse-stream");
    let error = open(adapter(&token)).await;
    assert_eq!(error.metadata()["field"], "region");
    let nowhere = adapter(&[token[0], ("AWS_REGION", "evil.example/")]);
    assert!(nowhere.environment_opts().is_empty());
    assert_eq!(open(nowhere).await.metadata()["field"], "region");
    let mut call = ModelCall::default();
    call.adapter_opts.insert("region".to_owned(), "cn-north-1".into());
    assert_eq!(
        Bedrock::default().base_url(&call, &|_| None).unwrap().as_deref(),
        Some("https://bedrock-runtime.cn-north-1.amazonaws.com.cn")
    );
}

fn body(request: Request) -> Value {
    Bedrock::default().body(&request.with_model("m"), &ModelCall::default()).unwrap()
}

fn refused(request: Request) -> Error {
    Bedrock::default().body(&request.with_model("m"), &ModelCall::default()).unwrap_err()
}

fn environment(variables: &[(&str, &str)]) -> Keys {
    let owned = |(name, value): &(&str, &str)| ((*name).to_owned(), (*value).to_owned());
    let variables: HashMap<String, String> = variables.iter().map(owned).collect();
    Keys::new().with_environment(move |name| variables.get(name).cloned())
}

fn adapter(variables: &[(&str, &str)]) -> HttpAdapter {
    HttpAdapter::named("bedrock").unwrap().with_keys(environment(variables))
}

async fn open(adapter: HttpAdapter) -> Error {
    let request = Request::from("hi").with_model("bedrock:m:0");
    Arc::new(adapter).open(request, ModelCall::default()).await.err().unwrap()
}
