//! The errors that people meet most often, as text. Each must say what failed, with what, and what to do.
//!
//! `MYNAH_BLESS=1 cargo test -p mynah --features sqlite --test all error_texts::` writes the file that they are compared with.

use std::{env, fmt::Write as _, fs, io::Cursor, time::Duration};

use mynah::{
    AdapterReason,
    adapters::{http::HttpAdapter, keys::Keys},
    log::bundle,
    prelude::*,
    schemars::{self, JsonSchema},
    testing::{Script, Scripted},
};
use serde_json::{Value, json};

const FILE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/error_texts.txt");

#[tokio::test]
async fn the_most_frequent_errors_say_what_failed_and_what_to_do() {
    let mut texts = String::new();
    for (when, text) in [models().await, tools().await, ends().await, runs().await].concat() {
        writeln!(texts, "{when}\n    {}\n", without_names(&without_ids(&text))).unwrap();
    }
    if env::var_os("MYNAH_BLESS").is_some() {
        fs::write(FILE, &texts).unwrap();
    }
    let kept = fs::read_to_string(FILE).unwrap();
    let differs = kept.lines().zip(texts.lines()).find(|(kept, text)| kept != text);
    assert!(kept == texts, "{FILE} differs: {differs:?}\n{texts}");
}

/// The ids of runs differ each time.
fn without_ids(text: &str) -> String {
    let is_id = |word: &str| word.len() == 26 && word.starts_with("01");
    text.split(' ').map(|word| if is_id(word) { "ID" } else { word }).collect::<Vec<_>>().join(" ")
}

/// A new provider is one more name in a list.
fn without_names(text: &str) -> String {
    match text.split_once(" are openai, openai-chat, ") {
        Some((before, _)) => format!("{before} are openai, openai-chat, …"),
        None => text.to_owned(),
    }
}

type Texts = Vec<(&'static str, String)>;

fn text<T>(done: Result<T>) -> String {
    match done {
        Ok(_) => "no error".to_owned(),
        Err(error) => error.to_string(),
    }
}

fn engine(scripts: impl IntoIterator<Item = Script>) -> Engine {
    Engine::new(Scripted::play(scripts))
}

fn says(words: &str) -> Script {
    Script::new().text(words).stop()
}

fn calls(name: &str, arguments: Value) -> Script {
    Script::new().tool_call("c0", name, arguments).call_tools()
}

fn tool(name: &str) -> Tool {
    let schema = json!({
        "type": "object", "properties": {"count": {"type": "integer", "minimum": 1}}, "required": ["count"]
    });
    Tool::new(name, "Orders soup", schema).handler(async |_, _| "ordered")
}

async fn models() -> Texts {
    let without = |name: &str| {
        let keys = Keys::new().with_environment(|_| None);
        HttpAdapter::named(name).unwrap().with_keys(keys)
    };
    let keyless = Engine::new(without("anthropic"));
    let neither = mynah::Fallback::new(without("anthropic")).or(without("openai"), "gpt-5.4-mini");
    let neither = Engine::new(neither).model("claude-sonnet-5");
    let nowhere = Engine::named("ollama:llama3.2").unwrap().base_url("http://localhost:9");
    let nowhere = nowhere.retry(mynah::RetryPolicy::never());
    let limited = Error::adapter(AdapterReason::RateLimited).with_message("Slow down");
    let limited = engine([Script::new().fail(limited)]).retry(mynah::RetryPolicy::never());
    vec![
        ("an unknown provider", text(Engine::named("antropic:claude-sonnet-5"))),
        ("a model without its provider", text(Engine::named("claude-sonnet-5"))),
        ("no key", text(keyless.model("claude-sonnet-5").generate("hi").await)),
        ("no key, nor one for the fallback", text(neither.generate("hi").await)),
        ("a server that is not there", text(nowhere.generate("hi").await)),
        ("a provider that limits calls", text(limited.generate("hi").await)),
        (
            "an option in the wrong place",
            text(engine([]).provider_option("max_turns", 3).chat("hi").await),
        ),
        (
            "a conversation among the options",
            text(
                Engine::named("ollama:llama3.2")
                    .unwrap()
                    .provider_option("messages", json!([]))
                    .chat("hi")
                    .await,
            ),
        ),
    ]
}

async fn tools() -> Texts {
    let asked = |engine: Engine| async move {
        let chat = engine.chat("Soup, please.").await;
        match chat {
            Ok(result) => {
                let messages: Vec<_> =
                    result.thread.messages.iter().map(|m| m.text().into_owned()).collect();
                messages.get(2).cloned().unwrap_or_else(|| text(result.into_text()))
            }
            Err(error) => error.to_string(),
        }
    };
    let misfit = engine([calls("order", json!({"count": 0})), says("Sorry.")]).tool(tool("order"));
    let unknown = engine([calls("ordr", json!({"count": 1})), says("Sorry.")]).tool(tool("order"));
    let failing = tool("order").handler(async |_, _| Err::<Value, _>("the kitchen is closed"));
    let failing = engine([calls("order", json!({"count": 1})), says("Sorry.")]).tool(failing);
    let slow = tool("order").handler(async |_, _| std::future::pending::<Value>().await);
    let slow = engine([calls("order", json!({"count": 1})), says("Sorry.")])
        .tool(slow)
        .tool_timeout(Duration::from_millis(10));
    let twice = engine([]).tool(tool("order")).tool(tool("order"));
    let broken = Tool::new("order", "Orders", json!({"type": "objekt"})).handler(async |_, _| "");
    vec![
        ("arguments that do not fit", asked(misfit).await),
        ("a call of a tool that does not exist", asked(unknown).await),
        ("a tool that fails", asked(failing).await),
        ("a tool that takes too long", asked(slow).await),
        ("two tools of one name", text(twice.chat("hi").await)),
        ("a schema that is none", text(engine([]).tool(broken).chat("hi").await)),
    ]
}

#[derive(Debug, serde::Deserialize, JsonSchema)]
#[expect(dead_code, reason = "only read")]
struct Bird {
    wingspan: u32,
}

async fn ends() -> Texts {
    let ended = |chat: mynah::Chat| async move { text(chat.await.unwrap().into_text()) };
    let again = || vec![calls("order", json!({"count": 1})); 9];
    let loops = engine(again()).tool(tool("order"));
    let asks = tool("order").handler(async |_, _| ToolOutcome::ask("How many?"));
    let asks = engine(again()).tool(asks);
    let manual = engine(again()).tool(tool("order").manual());
    let bird = engine([says(r#"{"wingspan": "43 cm"}"#)]).chat("A bird?").answer_as::<Bird>().await;
    let (session, _) = engine(again()).tool(tool("order").manual()).start("Soup.").await.unwrap();
    vec![
        ("a chat that came to its last turn", ended(loops.chat("Soup.").max_turns(2)).await),
        (
            "a chat that spent its budget",
            ended(loops.chat("Soup.").budget(Budget::new().max_tool_calls(0))).await,
        ),
        ("a chat that waits for an answer", ended(asks.chat("Soup.")).await),
        ("a chat that waits for tools", ended(manual.chat("Soup.")).await),
        ("an answer that does not fit its type", text(bird)),
        ("a reply to a session that waits for tools", text(engine([]).reply(&session, "hi").await)),
        (
            "tool results for a session that waits for none",
            text(Session::from("hi").with_id("s-1").submit_tool_result("c0", "soup")),
        ),
    ]
}

async fn runs() -> Texts {
    let log = MemoryLog::new();
    let hello = || engine([says("Hello.")]);
    hello().chat("hi").record(&log).run_id("run-1").await.unwrap();
    let waits = engine([calls("order", json!({"count": 1}))]).tool(tool("order").manual());
    waits.chat("Soup.").record(&log).run_id("run-2").await.unwrap();
    let held = hello().chat("hi").record(&log).run_id("run-3").stream();
    let mut held = Box::pin(held);
    held.next().await.unwrap().unwrap();
    let hangs = tool("order").handler(async |_, _| std::future::pending::<Value>().await);
    let hangs = engine(vec![calls("order", json!({"count": 1}))]).tool(hangs);
    let mut dies = hangs.chat("Soup.").record(&log).run_id("run-4").stream();
    while !matches!(dies.next().await, Some(Ok(Event::ToolExecutionStarted { .. }))) {}
    drop(dies);
    hangs.resume(&log, "run-4").await.unwrap();
    let session = Session::from("hi").with_id("s-1");
    let (session, _) = hello().start(session).record(&log).await.unwrap();
    hello().reply(&session, "one").record(&log).await.unwrap();
    let mut file = Vec::new();
    bundle::export(&log, "run-1", &mut file).await.unwrap();
    let changed =
        String::from_utf8(file).unwrap().replacen("\"payload\":\"a", "\"payload\":\"b", 1);
    let imported = bundle::import(&MemoryLog::new(), Cursor::new(changed)).await;
    let other = engine([]).tool(tool("pay"));
    let moved = text(hello().reply(&session, "two").record(&log).await);
    vec![
        ("a run that does not exist", text(hello().resume(&log, "run-9").await)),
        ("a run that has ended", text(hello().resume(&log, "run-1").answer("yes").await)),
        (
            "another input under the id of a run",
            text(hello().chat("ho").record(&log).run_id("run-1").await),
        ),
        (
            "a run that waits for tools, resumed without them",
            text(waits.resume(&log, "run-2").await),
        ),
        (
            "a run whose process died in a tool, resumed without a decision",
            text(hangs.resume(&log, "run-4").await),
        ),
        ("another agent than the run's", text(other.resume(&log, "run-2").approve("c0").await)),
        ("a replay by another agent", text(other.replay(&log, "run-1").await)),
        ("a session that another turn continued", moved),
        ("a record that was changed", text(imported)),
    ]
}
