//! `mynah models`: the catalog.

use serde_json::{Value, json};

use crate::common::{feed, file, lines, mynah, run};

#[test]
fn models_are_listed_with_limits_prices_and_sources() {
    let told = run(["models", "anthropic:claude-OPUS-4-5"]);
    assert_eq!((told.code, &*told.stderr), (Some(0), ""));
    let rows: Vec<&str> = told.stdout.lines().collect();
    assert!(
        rows[0].starts_with("PROVIDER   MODEL            CAN           CONTEXT  OUTPUT"),
        "{}",
        rows[0]
    );
    assert_eq!(
        rows[1].split_whitespace().collect::<Vec<_>>(),
        [
            "anthropic",
            "claude-opus-4-5",
            "tools,vision",
            "200000",
            "64000",
            "5",
            "25",
            "0.5",
            "6.25"
        ]
    );
    assert!(rows[3].contains("as of 2026-"), "{}", rows[3]);
    assert!(rows[4].contains("https://"), "{}", rows[4]);
    assert_eq!(run(["models", "no such model"]).stdout, "no models\n");
    let others = run(["models", "openrouter"]).stdout;
    assert_eq!(others, "no models: those of others, as their makers have them\n");
    let long = run(["models", "claude-haiku-5-5"]).stdout;
    assert!(
        long.contains(" 0.1* ") && long.contains("\n* other prices for long prompts"),
        "{long}"
    );
    assert!(!told.stdout.contains('*'));
    let ends = run(["models", "openai:gpt-4o-mini"]).stdout;
    assert!(ends.lines().any(|row| row.ends_with("  2027-01-14")), "{ends}");
}

#[test]
fn a_file_adds_and_replaces_models() {
    let own = json!({"dated": "2030-01-02", "sources": ["a guess"], "models": [
        {"id": "tiny", "provider": "local", "pricing": {"input": 0, "output": 0}},
        {"id": "gpt-4.1", "provider": "openai", "context_window": 7},
    ]});
    let own = file("models_own.json", own.to_string());
    let told = lines(&run(["models", "--json", "--catalog", &own]));
    let of = |id: &str| -> Vec<&Value> { told.iter().filter(|line| line["id"] == id).collect() };
    assert_eq!(
        of("tiny"),
        [
            &json!({"id": "tiny", "provider": "local", "pricing": {"input": 0.0, "output": 0.0}, "dated": "2030-01-02"})
        ]
    );
    assert_eq!(
        of("gpt-4.1"),
        [
            &json!({"id": "gpt-4.1", "provider": "openai", "context_window": 7, "dated": "2030-01-02"})
        ]
    );
    let others = told.iter().filter(|line| line["id"] == "gpt-4o");
    assert!(others.into_iter().all(|line| line["dated"].as_str().unwrap() < "2030"));
    let end = told.last().unwrap();
    assert_eq!(end["sources"].as_array().unwrap().last().unwrap(), "a guess");
    assert!(told.len() > 20);
    let told = run(["models", "gpt-4", "--catalog", &own]).stdout;
    assert!(told.contains(" and 2030-01-02, from:"), "{told}");
}

#[test]
fn a_catalog_that_is_none_is_exit_code_2() {
    let wrong = file("models_wrong.json", r#"{"models": [{"id": "", "provider": "x"}]}"#);
    let told = run(["models", "--catalog", &wrong]);
    assert_eq!(told.code, Some(2));
    assert!(
        told.stderr.contains("models_wrong.json") && told.stderr.contains("models.0.id: empty"),
        "{}",
        told.stderr
    );
    assert_eq!(run(["models", "--catalog", "no/such.json"]).code, Some(4));
}

#[test]
fn models_have_their_price_under_the_names_of_their_adapters() {
    for name in ["gemini:gemini-2.5-flash", "openai-chat:gpt-4.1-mini", "gpt-4.1-mini"] {
        let scenario = json!({
            "engine": {"model": name},
            "scripts": [[{"text": "hi"}, {"usage": {"input_tokens": 10, "output_tokens": 1}}, {"finish": "stop"}]],
            "ops": [{"op": "chat", "messages": [{"role": "user", "content": "hi"}], "options": {"budget": {"max_usd": 1}}}],
        });
        let played = feed(mynah(["play", "-"]), scenario.to_string().as_bytes());
        let cost = &lines(&played)[0]["ok"]["final_response"]["usage"]["total_cost"];
        assert!(cost.as_f64() > Some(0.0), "{name}: {}", played.stdout);
    }
}
