//! What an engine sets for all its calls: system prompt, sampling, endpoint, fallback.

use mynah::{
    Engine, Message, Options, ResponseFormat, Result, Role, ToolChoice, log::MemoryLog,
    testing::Scripted,
};
use serde_json::{Value, json};

fn says(text: &str) -> Value {
    json!([{"text": text}, {"finish": "stop"}])
}

fn texts(model: &Scripted) -> Vec<Vec<String>> {
    let texts = |request: mynah::Request| {
        request.messages.iter().map(|message| message.text().into_owned()).collect()
    };
    model.requests().into_iter().map(texts).collect()
}

#[tokio::test]
async fn a_system_prompt_of_the_engine_is_the_first_message_of_conversations_without_one()
-> Result<()> {
    let model = Scripted::new([says("a"), says("b"), says("c"), says("d")])?;
    let engine = Engine::new(model.clone()).system("Be brief.").temperature(0.1);
    let result = engine.chat("hi").await?;
    assert_eq!(result.thread.messages.iter().next().map(|m| m.role()), Some(Role::System));

    let own = mynah::Thread::from_iter([Message::system("Be verbose."), Message::user("hi")]);
    engine.chat(own).await?;
    engine.chat("hi").system("Be polite.").await?;
    engine.generate("hi").await?;
    let asked = texts(&model);
    assert_eq!(asked[0], ["Be brief.", "hi"]);
    assert_eq!(asked[1], ["Be verbose.", "hi"]);
    assert_eq!(asked[2], ["Be polite.", "hi"]);
    assert_eq!(asked[3], ["Be brief.", "hi"]);
    assert!(model.requests().iter().all(|request| request.temperature == Some(0.1)));
    Ok(())
}

#[tokio::test]
async fn a_session_has_the_system_prompt_once() -> Result<()> {
    let model = Scripted::new([says("a"), says("b")])?;
    let engine = Engine::new(model.clone()).system("Be brief.");
    let log = MemoryLog::new();
    let (session, _) = engine.start("hi").record(&log).await?;
    engine.reply(&session, "again").record(&log).await?;
    assert_eq!(texts(&model)[1], ["Be brief.", "hi", "a", "again"]);
    Ok(())
}

#[tokio::test]
async fn a_replay_with_another_system_prompt_differs() -> Result<()> {
    let model = Scripted::new([says("a")])?;
    let engine = Engine::new(model).system("Be brief.");
    let log = MemoryLog::new();
    let run = engine.chat("hi").record(&log).await?.run_id.unwrap_or_default();
    engine.replay(&log, &*run).await?;
    let other = engine.system("Be verbose.").replay(&log, &*run).await.unwrap_err();
    assert_eq!(other.metadata()["diff"][0]["path"], "about.params.system");
    Ok(())
}

#[tokio::test]
async fn an_option_of_mynah_is_refused_among_those_of_the_provider() -> Result<()> {
    let model = Scripted::new([says("a")])?;
    let engine = Engine::new(model.clone());
    for name in ["temperature", "api_key", "halt_when", "model"] {
        let refused = engine.chat("hi").provider_option(name, 1).await.unwrap_err();
        assert_eq!(refused.field_errors()[0].to_string(), format!("{name}: known_option"));
    }
    let refused = engine.chat("hi").adapter_option("api_key", "sk-1").await.unwrap_err();
    assert_eq!(refused.field_errors()[0].to_string(), "api_key: known_option");
    assert!(!refused.to_string().contains("sk-1"), "{refused}");
    engine.chat("hi").provider_option("metadata", json!({"user": 1})).await?;
    assert_eq!(model.requests()[0].options["metadata"], json!({"user": 1}));
    Ok(())
}

#[tokio::test]
async fn options_are_read_and_written_as_json() -> Result<()> {
    let written = json!({"temperature": 0.5, "max_turns": 3, "tool_timeout": 250, "seed": 7});
    let options: Options = serde_json::from_value(written.clone())?;
    assert_eq!(serde_json::to_value(&options)?, written_in_order());
    assert_eq!(options.provider_options().keys().collect::<Vec<_>>(), ["seed"]);
    let refused = serde_json::from_value::<Options>(json!({"max_turns": 0, "mode": "x"}));
    let refused = refused.unwrap_err().to_string();
    assert!(refused.contains("mode: unknown") && refused.contains("max_turns"), "{refused}");
    Ok(())
}

#[test]
fn a_value_that_does_not_fit_is_named_with_what_is_expected() {
    for (options, why) in [
        (
            json!({"max_turns": "four"}),
            "max_turns: invalid type: string \"four\", expected a positive whole number",
        ),
        (
            json!({"temperature": "hot"}),
            "temperature: invalid type: string \"hot\", expected a number",
        ),
        (json!({"tool_timeout": "10s"}), "expected a positive whole number of milliseconds"),
        (json!({"mode": "sometimes"}), "unknown variant `sometimes`, expected `auto` or `manual`"),
        (json!({"on_tool_error": "stop"}), "expected `continue` or `halt`"),
    ] {
        let refused = serde_json::from_value::<Options>(options).unwrap_err().to_string();
        assert!(refused.contains(why), "{refused}");
    }
    let refused = serde_json::from_value::<mynah::Session>(json!("s")).unwrap_err().to_string();
    assert!(refused.contains("expected a session"), "{refused}");
    let busy = mynah::Error::adapter(mynah::AdapterReason::RateLimited);
    let busy = busy.with("retry_after_ms", 600_000).to_string();
    assert!(busy.contains("retry after 600 s)"), "{busy}");
}

#[tokio::test]
async fn a_form_that_is_no_schema_and_a_call_of_no_tool_are_refused() -> Result<()> {
    let model = Scripted::new([says("{}")])?;
    let engine = Engine::new(model.clone());
    for (schema, code) in [
        (json!([]), "not_a_map"),
        (json!(null), "not_a_map"),
        (json!({"type": "objekt"}), "not_json_schema"),
    ] {
        let format = ResponseFormat::json_schema("person", schema);
        for refused in [
            engine.chat("hi").response_format(format.clone()).await.unwrap_err(),
            engine.generate("hi").response_format(format).await.unwrap_err(),
        ] {
            let found = refused.field_errors()[0].to_string();
            assert_eq!(found, format!("response_format.schema: {code}"));
        }
    }
    let refused = engine.chat("hi").tool_choice(ToolChoice::Required).await.unwrap_err();
    assert!(refused.to_string().ends_with("there are no tools"), "{refused}");
    assert_eq!(model.calls(), 0);
    Ok(())
}

fn written_in_order() -> Value {
    json!({"max_turns": 3, "temperature": 0.5, "tool_timeout": 250, "seed": 7})
}

#[cfg(feature = "http")]
#[tokio::test]
async fn an_address_on_this_machine_needs_no_key_and_a_fallback_is_asked_next() -> Result<()> {
    // Nothing listens on the port of a listener that is gone.
    let gone = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let engine = Engine::named("openai:gpt-5.4-mini")?
        .base_url(format!("http://{gone}"))
        .retry(mynah::RetryPolicy::never());
    let error = engine.chat("hi").await.unwrap_err();
    assert_eq!(error.reason(), "network_error", "{error}");

    let error = engine.or("anthropic:claude-sonnet-5")?.chat("hi").api_key("unused").await;
    let error = error.unwrap_err();
    assert_eq!(error.reason(), "network_error", "{error}");
    assert!(error.to_string().contains("anthropic:claude-sonnet-5: missing_key"), "{error}");
    Ok(())
}
