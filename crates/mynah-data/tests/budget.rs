//! Budgets and prices as data.

use mynah_data::{
    Breach, BreachTime, Budget, CacheRetention, Catalog, ChatResult, EngineReason, Error,
    ErrorKind, HaltReason, Limit, Message, ModelInfo, ModelRef, Pricing, Response, Thread, Usage,
};
use serde_json::{Value, json};

#[test]
fn a_chat_without_an_answer_names_the_limit_that_it_came_to() {
    let breach = json!(Breach::new(Limit::OutputTokens, 5, 7, BreachTime::MidStream));
    let mut result = ChatResult::new(Thread::new(), HaltReason::BudgetExceeded);
    result.metadata.insert("budget".to_owned(), breach.clone());
    let error = result.clone().into_text().unwrap_err();
    let told = error.to_string();
    assert!(told.contains(": budget_exceeded: output_tokens: 7, of at most 5; "), "{told}");
    assert_eq!(error.metadata()["budget"], breach);
    assert_eq!(result.into_json::<Value>(), Err(error));
}

#[test]
fn a_limit_of_time_is_told_with_its_unit() {
    let breach = Breach::new(Limit::WallClock, 3000, 3001, BreachTime::PreCall);
    assert_eq!(breach.to_string(), "wall_clock: 3001 ms, of at most 3000 ms");
    // The turn was not made.
    let breach = Breach::new(Limit::Turns, 30, 31, BreachTime::PreCall);
    assert_eq!(breach.to_string(), "turns would be 31, of at most 30");
}

#[test]
fn dollars_are_rounded_unless_they_would_look_allowed() {
    let told = |cap, actual| Breach::usd(cap, actual, BreachTime::PreCall).to_string();
    assert_eq!(told(0.5, 0.741_000_000_000_000_1), "usd would be 0.741, of at most 0.5");
    assert_eq!(told(0.5, 0.500_000_01), "usd would be 0.50000001, of at most 0.5");
}

#[test]
fn a_budget_comes_back_from_its_json_equal() {
    let budget = Budget::new()
        .max_input_tokens(1)
        .max_output_tokens(2)
        .max_total_tokens(3)
        .max_usd(0.4)
        .max_wall_clock_ms(5)
        .max_turns(6)
        .max_tool_calls(7)
        .allow_unknown_price();
    let text = serde_json::to_string(&budget).unwrap();
    assert_eq!(serde_json::from_str::<Budget>(&text).unwrap(), budget);
    assert_eq!(json!(Budget::new()), json!({}));
    assert_eq!(Budget::from_json(&json!({"max_turns": null})), Ok(Budget::new()));
}

#[test]
fn what_does_not_fit_is_named() {
    let refused = |value: Value| -> Vec<String> {
        Budget::from_json(&value).unwrap_err().iter().map(ToString::to_string).collect()
    };
    assert_eq!(refused(json!({"max_tokens": 1})), ["max_tokens: unknown_field"]);
    assert_eq!(refused(json!({"max_turns": 1.5})), ["max_turns: out_of_range"]);
    assert_eq!(refused(json!({"max_usd": -0.01})), ["max_usd: out_of_range"]);
    assert_eq!(
        refused(json!({"max_input_tokens": "8", "allow_unknown_price": 1})),
        ["max_input_tokens: invalid_shape", "allow_unknown_price: not_a_boolean"]
    );
    assert!(serde_json::from_str::<Budget>(r#"{"max_turn": 1}"#).is_err());
    assert!(serde_json::from_str::<Budget>("[]").is_err());
}

#[test]
fn a_limit_that_is_not_a_number_does_not_pass_for_none() {
    for amount in [f64::NAN, f64::INFINITY] {
        let said = json!(Budget::new().max_usd(amount));
        assert_eq!(Budget::from_json(&said).unwrap_err()[0].to_string(), "max_usd: invalid_shape");
    }
}

#[test]
fn limits_stand_in_the_order_in_which_they_are_told() {
    let order = [
        Limit::InputTokens,
        Limit::OutputTokens,
        Limit::TotalTokens,
        Limit::Usd,
        Limit::Turns,
        Limit::ToolCalls,
        Limit::WallClock,
    ];
    assert!(order.is_sorted());
    for limit in order {
        assert_eq!(json!(limit), json!(limit.as_str()));
    }
}

#[test]
fn a_breach_is_a_typed_error_with_what_was_said_until_then() {
    let breach = Breach::usd(0.5, 0.75, BreachTime::MidStream);
    let partial = Response::new(Message::assistant("so far"));
    let error = Error::budget_exceeded(&breach, Some(&partial));
    assert_eq!(error.kind(), ErrorKind::Engine(EngineReason::BudgetExceeded));
    assert_eq!(
        error.metadata()["budget"],
        json!({"limit": "usd", "cap": 0.5, "actual": 0.75, "where": "mid_stream"})
    );
    assert_eq!(error.metadata()["partial"]["output_text"], "so far");
    let again: Breach = serde_json::from_value(error.metadata()["budget"].clone()).unwrap();
    assert_eq!(again, breach);
}

#[test]
fn a_list_of_messages_knows_its_size_as_it_grows() {
    let call = mynah_data::ToolCall::new("c", "t", r#"{"ä":1}"#);
    let asked = Message::assistant_parts([mynah_data::Part::tool_call(call)]);
    let mut thread = Thread::from("grüß").with(asked);
    // Characters of text, and bytes of arguments.
    assert_eq!(thread.messages.size(), 4 + 8);
    let before = thread.clone();
    thread.messages.repair("x");
    assert_eq!(thread.messages.size(), 4 + 8 + r#"{"error":"x"}"#.len() as u64);
    assert_eq!(before.messages.size(), 12);
    let text = serde_json::to_string(&thread).unwrap();
    let again: Thread = serde_json::from_str(&text).unwrap();
    assert_eq!(again.messages.size(), thread.messages.size());
}

#[test]
fn cache_tokens_are_priced_as_the_parts_of_the_prompt_that_they_are() {
    let mut usage = Usage::new(1_000_000, 0);
    usage.cached_input_tokens = Some(600_000);
    usage.cache_write_tokens = Some(300_000);
    let cost = |pricing: Pricing| {
        let mut usage = usage.clone();
        pricing.apply(&mut usage);
        usage.total_cost.unwrap()
    };
    let mut pricing = Pricing::new(3.0, 15.0).with_cached_input(0.3).with_cache_write(3.75);
    pricing.cache_write_1h = Some(6.0);
    let close = |a: f64, b: f64| assert!((a - b).abs() < 1e-9, "{a} is not {b}");
    close(cost(pricing), 0.1 * 3.0 + 0.6 * 0.3 + 0.3 * 3.75);
    close(cost(pricing.for_retention(CacheRetention::Long)), 0.1 * 3.0 + 0.6 * 0.3 + 0.3 * 6.0);
    for told in [
        json!({"cache_creation": {"ephemeral_5m_input_tokens": 100_000, "ephemeral_1h_input_tokens": 200_000}}),
        json!({"cacheDetails": [{"ttl": "1h", "inputTokens": 200_000}, {"ttl": "5m", "inputTokens": 100_000}]}),
    ] {
        for retention in [CacheRetention::Short, CacheRetention::Long] {
            let extra = told.as_object().unwrap().clone().into();
            let mut usage = usage.clone();
            usage.extra = extra;
            pricing.for_retention(retention).apply(&mut usage);
            let expected = 0.1 * 3.0 + 0.6 * 0.3 + 0.1 * 3.75 + 0.2 * 6.0;
            close(usage.total_cost.unwrap(), expected);
        }
    }
}

#[test]
fn a_long_prompt_has_the_prices_of_long_prompts_for_all_its_tokens() {
    let catalog = Catalog::built_in();
    let pricing = catalog.get("gemini-3.1-pro-preview").unwrap().pricing.unwrap();
    let cost = |input: u64| {
        let mut usage = Usage::new(input, 1_000_000);
        pricing.apply(&mut usage);
        (usage.input_cost.unwrap(), usage.output_cost.unwrap())
    };
    assert_eq!(cost(200_000), (0.4, 12.0));
    assert_eq!(cost(200_001), (200_001.0 * 4.0 / 1e6, 18.0));
    // For any server.
    for model in ["claude-haiku-5-5", "anthropic.claude-haiku-5-5", "us.anthropic.claude-haiku-5-5"]
    {
        let pricing = catalog.get(model).unwrap().pricing.unwrap();
        let long = pricing.long_prompt.unwrap();
        assert_eq!(long.above, 100_000, "{model}");
        assert_eq!(
            [long.input, long.output],
            [pricing.input, pricing.output].map(|price| price * 5.0)
        );
    }
}

#[test]
fn what_is_not_served_at_list_prices_has_no_costs() {
    let cost = |said: serde_json::Value| {
        let extra = said.as_object().unwrap().clone().into();
        let tokens = Some(1_000_000);
        let mut usage = Usage::new(tokens, tokens);
        usage.extra = extra;
        Pricing::new(5.0, 25.0).apply(&mut usage);
        usage.total_cost
    };
    for listed in [
        json!({"service_tier": "standard", "speed": "standard", "inference_geo": "global"}),
        json!({"service_tier": null, "inference_geo": "not_available"}),
        json!({"serviceTier": "STANDARD"}),
    ] {
        assert_eq!(cost(listed.clone()), Some(30.0), "{listed}");
    }
    for unlisted in [
        json!({"service_tier": "standard", "speed": "fast"}),
        json!({"service_tier": "flex"}),
        json!({"serviceTier": {"type": "priority"}}),
        json!({"inference_geo": "us"}),
    ] {
        assert_eq!(cost(unlisted.clone()), None, "{unlisted}");
    }
}

#[test]
fn no_cost_is_negative_or_not_a_number() {
    for price in [f64::NAN, -1.0, f64::NEG_INFINITY] {
        let mut usage = Usage::new(9, 0);
        Pricing::new(price, price).apply(&mut usage);
        assert!(usage.total_cost.is_some_and(|cost| cost >= 0.0), "{price}: {usage:?}");
        assert_eq!(Pricing::new(price, 1.0).errors()[0].to_string(), "input: out_of_range");
    }
    let mut usage = Usage::new(1_000_000, 0);
    usage.input_cost = Some(-5.0);
    Pricing::new(1.0, 1.0).apply(&mut usage);
    assert_eq!(usage.total_cost, Some(1.0));
}

#[test]
fn the_built_in_catalog_knows_the_models_of_the_providers_and_its_date() {
    let catalog = Catalog::built_in();
    assert!(catalog.models().all(|model| model.dated.is_some()) && !catalog.sources().is_empty());
    for (provider, least) in [
        ("openai", 6),
        ("anthropic", 6),
        ("google", 6),
        ("bedrock", 12),
        ("deepseek", 2),
        ("fireworks", 6),
        ("groq", 2),
        ("mistral", 4),
        ("perplexity", 3),
        ("together", 6),
        ("xai", 4),
    ] {
        let models = catalog.models().filter(|model| model.provider == provider);
        assert!(models.count() >= least, "{provider}");
    }
    for model in catalog.models() {
        let limits = model.context_window.zip(model.max_output_tokens);
        let named = ["anthropic", "google", "openai"].contains(&model.provider.as_str());
        assert!(limits.is_some() || !named, "{}", model.id);
        // Tokens are not all that an answer of this provider costs.
        let Some(pricing) = model.pricing else {
            assert_eq!(model.provider, "perplexity", "{}", model.id);
            continue;
        };
        assert!(pricing.errors().is_empty(), "{}", model.id);
        // Whose providers name no price for what they had cached.
        let uncached = ["-pro", "qwen3.8-27b", "deepseek.v3.2", "-instruct", "-instruct-v1:0"];
        let uncached = uncached.iter().any(|end| model.id.ends_with(end));
        assert!(pricing.cached_input.is_some() || uncached, "{}", model.id);
        let written = pricing.cache_write.is_some() && pricing.cache_write_1h.is_some();
        assert!(written || model.provider != "anthropic", "{}", model.id);
    }
}

#[test]
fn the_built_in_catalog_says_what_a_model_cannot_do() {
    let catalog = Catalog::built_in();
    let capability = |name: &str, place: &str| {
        let capabilities = json!(catalog.get(name).unwrap().capabilities);
        capabilities.pointer(place).cloned()
    };
    for text_only in ["groq:openai/gpt-oss-120b", "amazon.nova-micro-v1:0", "deepseek-v4-pro"] {
        assert_eq!(capability(text_only, "/vision"), Some(json!(false)), "{text_only}");
    }
    assert_eq!(capability("perplexity:sonar", "/tools/enabled"), Some(json!(false)));
    assert_eq!(capability("deepseek-flash", "/json_native"), Some(json!(false)));
    assert_eq!(capability("claude-fable-5-2", "/vision"), Some(json!(true)));
}

#[test]
fn what_a_makers_server_cannot_do_another_may() {
    let catalog = Catalog::built_in();
    let own = catalog.inform("deepseek:deepseek-v4-pro".into());
    let routed = catalog.inform("openrouter:deepseek/deepseek-v4-pro".into());
    assert_eq!(own.capabilities["json_native"], false);
    for lacking in ["json_native", "vision"] {
        assert_eq!(routed.capabilities.get(lacking), None, "{lacking}");
    }
    assert_eq!(routed.capabilities["tools"], own.capabilities["tools"]);
    assert!(own.pricing.is_some() && !own.limits.is_empty());
    assert_eq!((routed.pricing, &routed.limits), (own.pricing, &own.limits));
    let searching = catalog.inform("openrouter:perplexity/sonar".into());
    assert_eq!(searching.capabilities.get("tools"), None);

    let mut said = ModelInfo::new("openrouter", "deepseek/deepseek-v4-pro");
    said.capabilities.insert("json_native".to_owned(), false.into());
    let catalog = catalog.with_model(said).unwrap();
    let routed = catalog.inform("openrouter:deepseek/deepseek-v4-pro".into());
    assert_eq!(routed.capabilities["json_native"], false);
}

#[test]
fn a_model_is_found_by_its_id_its_alias_its_provider_and_its_date() {
    let catalog = Catalog::built_in()
        .with_model(ModelInfo::new("local", "tiny").with_alias("tiny-latest"))
        .unwrap();
    let id = |name: &str| catalog.get(name).map(|model| model.id.as_str());
    assert_eq!(id("claude-sonnet-4-5-20250929"), Some("claude-sonnet-4-5"));
    assert_eq!(id("openai:gpt-4.1-mini-2025-04-14"), Some("gpt-4.1-mini"));
    assert_eq!(id("gpt-5.6"), Some("gpt-5.6-sol"));
    assert_eq!(id("tiny-latest"), Some("tiny"));
    assert_eq!(id("local:tiny-2026-01-01"), Some("tiny"));
    for unknown in ["gpt-4.1-mini-2025", "gpt-4.1-mini-x0250414", "google:gpt-4.1", "", "-20250929"]
    {
        assert_eq!(id(unknown), None, "{unknown}");
    }
    let of = |model: ModelRef| catalog.find(&model).map(|model| model.provider.as_str());
    assert_eq!(of(("openai", "gpt-4.1").into()), Some("openai"));
    assert_eq!(of(("openai-chat", "gpt-4.1").into()), Some("openai"));
    assert_eq!(of("openai-chat:gpt-4.1-2025-04-14".into()), Some("openai"));
    assert_eq!(of("gemini:gemini-2.5-flash".into()), Some("google"));
    assert_eq!(of("elsewhere:gpt-4.1".into()), None);
    assert_eq!(of(("gemini", "gemini-2.5-pro").into()), Some("google"));
    assert_eq!(of(("azure", "gpt-4.1").into()), Some("openai"));
    assert_eq!(of(("azure", "ours").into()), None, "a deployment is called as its user likes");
    for (routed, provider) in [
        ("openrouter:openai/gpt-4.1", Some("openai")),
        ("openrouter:anthropic/claude-opus-4.5", Some("anthropic")),
        ("openrouter:google/gemini-4-argon", Some("google")),
        ("openrouter:x-ai/grok-4.7", Some("xai")),
        ("openrouter:mistralai/mistral-large-4", Some("mistral")),
        ("openrouter:openai/gpt-4.1:free", None),
        ("openrouter:auto", None),
    ] {
        assert_eq!(of(routed.into()), provider, "{routed}");
    }
    assert_eq!(id("bedrock:global.anthropic.claude-sonnet-5"), Some("anthropic.claude-sonnet-5"));
    assert_eq!(of("gpt-4.1".into()), Some("openai"));
}

#[test]
fn later_entries_win() {
    let file = r#"{"dated": "2030-01-01", "models": [
        {"id": "gpt-4.1", "provider": "openai", "pricing": {"input": 9, "output": 9}},
        {"id": "gpt-4.1", "provider": "openai", "pricing": {"input": 7, "output": 7}},
        {"id": "tiny", "provider": "local", "dated": "2029-12-31"}]}"#;
    let catalog = Catalog::built_in().with_json(file).unwrap();
    let known: Vec<_> = catalog.models().filter(|model| model.id == "gpt-4.1").collect();
    assert_eq!(known.len(), 1);
    assert_eq!(known[0].pricing, Some(Pricing::new(7.0, 7.0)));
    assert_eq!(catalog.get("gpt-4.1"), Some(known[0]));
    let date = |name: &str| catalog.get(name).and_then(|model| model.dated.as_deref());
    assert_eq!((date("gpt-4.1"), date("tiny")), (Some("2030-01-01"), Some("2029-12-31")));
    let built_in = Catalog::built_in();
    assert_eq!(date("gpt-4o"), built_in.get("gpt-4o").and_then(|model| model.dated.as_deref()));
    assert_ne!(Catalog::built_in().get("gpt-4.1"), Some(known[0]));
}

#[test]
fn a_catalog_that_does_not_fit_is_refused_by_the_place() {
    let refused = |text: &str| Catalog::new().with_json(text).unwrap_err();
    let negative = r#"{"models": [{"id": "m", "provider": "p", "pricing": {"input": 1, "output": 1}},
        {"id": "n", "provider": "p", "pricing": {"input": -1, "output": 1}}]}"#;
    assert_eq!(refused(negative).metadata()["field"], "models.1.pricing.input");
    assert_eq!(refused(r#"{"models": [{"id": "", "provider": ""}]}"#).field_errors().len(), 2);
    assert_eq!(refused(r#"{"models": [], "euro": 1}"#).reason(), "invalid_json");
    assert_eq!(refused("[").reason(), "invalid_json");
}
