//! Servers that die, hang, flood and lie: each is survived and reported.

use std::time::Duration;

use futures_util::StreamExt as _;
use mynah::log::Log as _;
use mynah_data::{Event, Part, ToolOutcome};
use mynah_mcp::{Approval, Listing, McpError, Protocol, Server};
use mynah_step::{
    Tool,
    layers::{OutputCap, RedactOutput, Timeout},
};
use serde_json::{Value, json};
use tempfile::NamedTempFile;
use tokio::time::{Instant, sleep, timeout};
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::TcpListener,
};

use crate::common::{asked, call, failed, hostile, ok, proceed};

type Tested = Result<(), McpError>;

fn short(server: Server) -> Server {
    server.connect_timeout(Duration::from_secs(3)).limits(|limits| {
        limits.reconnect_delay = Duration::from_millis(10);
    })
}

#[tokio::test]
async fn a_server_that_dies_at_its_start_is_reported_with_what_it_wrote() {
    let error = hostile("dies_at_start", None).connect().await.unwrap_err();
    assert_eq!(error.kind(), "connect");
    let text = error.to_string();
    assert!(text.contains("exit status: 2") && text.contains("licence file"), "{text}");
}

#[tokio::test]
async fn a_command_that_does_not_exist_is_named() {
    let error = Server::stdio(["no-such-program", "--x"]).connect().await.unwrap_err();
    assert_eq!(error.kind(), "start");
    assert!(error.to_string().contains("no-such-program --x"), "{error}");
    let error = Server::http("ftp://example.com").connect().await.unwrap_err();
    assert_eq!(error.kind(), "settings");
}

#[tokio::test]
async fn a_server_that_never_answers_is_given_up_in_time() {
    let server = hostile("hangs_at_start", None).connect_timeout(Duration::from_millis(700));
    let error = timeout(Duration::from_secs(5), server.connect()).await.unwrap().unwrap_err();
    assert_eq!(error.kind(), "timeout");
    let server = hostile("hangs_in_list", None).connect_timeout(Duration::from_secs(2));
    let error = timeout(Duration::from_secs(8), server.connect()).await.unwrap().unwrap_err();
    assert!(error.to_string().contains("tools/list"), "{error}");
}

#[tokio::test]
async fn lists_without_end_and_lists_too_large_are_refused() {
    for (mode, told) in [
        ("pages", "the number of pages is more than 100"),
        ("same_page", "gives a page twice"),
        ("many_tools", "the number of tools is more than 500"),
        ("deep_tools", "the depth of a message is more than 120"),
        ("large_tools", "the size of the tools is more than 4194304"),
    ] {
        let error = hostile(mode, None).connect().await.unwrap_err();
        assert!(error.to_string().contains(told), "{mode}: {error}");
    }
}

#[tokio::test]
async fn a_tool_that_cannot_be_used_is_refused_and_the_others_stay() -> Tested {
    let connection = hostile("bad_tools", None).connect().await?;
    let names: Vec<String> = connection.tools().iter().map(|tool| tool.name().to_owned()).collect();
    assert_eq!(names, ["good", "same", "a_b"]);
    let refused: Vec<String> = connection.refused().iter().map(McpError::to_string).collect();
    for (tool, why) in [
        ("deep", "levels"),
        ("wide", "values"),
        ("invalid", "schema cannot be used"),
        ("remote", "schema cannot be used"),
        ("list", "does not describe an object"),
        ("talkative", "description"),
        ("bad name", "name"),
        ("same", "listed twice"),
        ("a/b", "another tool has its name"),
    ] {
        let is_told = |text: &&String| text.contains(&format!("{tool:?}")) && text.contains(why);
        assert!(refused.iter().any(|text| is_told(&text)), "{tool}: {refused:#?}");
    }
    assert_eq!(refused.len(), 9);
    Ok(())
}

#[tokio::test]
async fn tools_are_included_excluded_and_prefixed() -> Tested {
    let names = async |server: Server| -> Result<Vec<String>, McpError> {
        let tools = server.connect().await?.tools();
        Ok(tools.iter().map(|tool| tool.name().to_owned()).collect())
    };
    let hints = || hostile("hints", None);
    assert_eq!(names(hints().include(["sets", "reads"])).await?, ["reads", "sets"]);
    assert_eq!(names(hints().exclude(["reads"]).prefix("my.")).await?, ["my_sets", "my_plain"]);
    let long = names(hints().include(["reads"]).prefix("p".repeat(80))).await?;
    assert_eq!(long[0].len(), 64);
    for (server, told) in [
        (hints().name("h").prefix("h_").include(["h_sets"]), r#"include names the tool "h_sets""#),
        (hints().exclude(["plane"]), r#"exclude names the tool "plane""#),
    ] {
        let error = server.connect().await.unwrap_err();
        assert_eq!(error.kind(), "unknown_tool");
        let text = error.to_string();
        assert!(text.starts_with(told) && text.contains("it has reads, sets, plain"), "{text}");
    }
    Ok(())
}

#[tokio::test]
async fn hints_count_for_trusted_servers_alone() -> Tested {
    let specs = async |server: Server| -> Result<Vec<(bool, bool)>, McpError> {
        let tools = server.connect().await?.tools();
        assert!(tools.iter().all(|tool| tool.is_recorded()));
        let spec = |tool: &Tool| (tool.spec().approval == Approval::Ask, tool.spec().idempotent);
        Ok(tools.iter().map(spec).collect())
    };
    let hints = || hostile("hints", None).approval(Approval::Ask);
    assert_eq!(specs(hints()).await?, [(true, false); 3]);
    let trusted = specs(hints().trusted(true)).await?;
    assert_eq!(trusted, [(false, true), (true, true), (true, false)]);
    Ok(())
}

#[tokio::test]
async fn a_server_that_dies_in_a_call_is_reported_and_started_again() -> Tested {
    let notes = NamedTempFile::new().unwrap();
    let server = short(hostile("dies_once", Some(notes.path())));
    let tools = server.connect().await?.tools();
    let (kind, message) = failed(call(&tools[0], json!({})).await);
    assert_eq!(kind, "closed");
    assert!(message.contains("exit status: 3") && message.contains("out of memory"), "{message}");
    assert_eq!(ok(call(&tools[0], json!({"a": 1})).await), r#"dies_once done {"a": 1}"#);
    Ok(())
}

#[tokio::test]
async fn a_server_that_always_dies_is_given_up() -> Tested {
    let server = short(hostile("dies", None)).limits(|limits| limits.reconnects = 2);
    let tools = server.connect().await?.tools();
    let mut kinds = Vec::new();
    for _ in 0..5 {
        kinds.push(failed(call(&tools[0], json!({})).await).0);
    }
    assert_eq!(kinds, ["closed", "closed", "closed", "given_up", "given_up"]);
    Ok(())
}

/// A moment that the clock of the test does not count.
#[expect(clippy::disallowed_methods, reason = "the paused clock must not count it")]
async fn moment() {
    let moment = || std::thread::sleep(Duration::from_millis(50));
    tokio::task::spawn_blocking(moment).await.unwrap();
}

#[tokio::test]
async fn a_server_that_died_is_connected_to_after_a_pause_that_doubles_up_to_a_limit() -> Tested {
    // While a thread is busy, a clock that is paused moves only as it is told.
    let (_stop, busy) = std::sync::mpsc::channel::<()>();
    tokio::task::spawn_blocking(move || busy.recv());
    let notes = NamedTempFile::new().unwrap();
    let calls = || std::fs::read_to_string(notes.path()).unwrap().matches("call").count();
    let server = hostile("dies", Some(notes.path())).limits(|limits| {
        limits.reconnect_delay = Duration::from_millis(200);
        limits.max_reconnect_delay = Duration::from_millis(500);
    });
    let tools = server.connect().await?.tools();
    assert_eq!(failed(call(&tools[0], json!({})).await).0, "closed");
    for (times, pause) in [(2, 200), (3, 400), (4, 500)] {
        tokio::time::pause();
        let tool = tools[0].clone();
        let next = tokio::spawn(async move { call(&tool, json!({})).await });
        for _ in 0..6 {
            moment().await;
        }
        tokio::time::advance(Duration::from_millis(pause - 2)).await;
        for _ in 0..6 {
            moment().await;
        }
        assert_eq!(calls(), times - 1, "after less than {pause} ms");
        tokio::time::advance(Duration::from_millis(4)).await;
        for _ in 0..1200 {
            if calls() == times {
                break;
            }
            moment().await;
        }
        assert_eq!(calls(), times, "after {pause} ms");
        tokio::time::resume();
        assert_eq!(failed(next.await.unwrap()).0, "closed");
    }
    Ok(())
}

#[tokio::test]
async fn layers_work_on_the_tools_of_a_server() -> Tested {
    let tool = async |mode: &str| {
        Ok::<_, McpError>(hostile(mode, None).connect().await?.tools().remove(0))
    };
    let capped = tool("large").await?.layer(OutputCap::new(4));
    let expected = "yyyy\n[truncated: the first 4 of ";
    assert!(ok(call(&capped, json!({})).await).starts_with(expected));
    let redacted = tool("echo").await?.layer(RedactOutput::words(["k-17"]));
    let said = ok(call(&redacted, json!({"key": "k-17"})).await);
    assert_eq!(said, r#"echo done {"key": "[redacted]"}"#);
    let hurried = tool("hangs").await?.layer(Timeout::new(Duration::from_millis(50)));
    let late = ToolOutcome::transient("no result after 50 ms");
    assert_eq!(call(&hurried, json!({})).await, late);
    Ok(())
}

#[tokio::test]
async fn a_call_that_hangs_times_out_and_the_server_is_told() -> Tested {
    let notes = NamedTempFile::new().unwrap();
    let server = hostile("hangs", Some(notes.path())).timeout(Duration::from_millis(300));
    let connection = server.connect().await?;
    let (kind, message) = failed(call(&connection.tools()[0], json!({})).await);
    assert_eq!(kind, "timeout");
    assert!(message.contains("did not answer tools/call within 300 ms"), "{message}");
    await_note(&notes, "cancelled", 1).await;

    // Dropping the call does the same.
    let tools = connection.tools();
    let _ = timeout(Duration::from_millis(100), call(&tools[0], json!({}))).await;
    await_note(&notes, "cancelled", 2).await;
    Ok(())
}

async fn await_note(notes: &NamedTempFile, word: &str, times: usize) {
    for _ in 0..100 {
        if std::fs::read_to_string(notes.path()).unwrap().matches(word).count() >= times {
            return;
        }
        sleep(Duration::from_millis(50)).await;
    }
    panic!("{word} was not noted {times} times");
}

#[tokio::test]
async fn progress_puts_a_timeout_off() -> Tested {
    let server = hostile("progress", None).timeout(Duration::from_millis(1500));
    let tools = server.connect().await?.tools();
    assert_eq!(ok(call(&tools[0], json!({})).await), "done");
    Ok(())
}

/// As in a program whose `main` returns it.
#[tokio::test]
async fn an_error_becomes_one_of_mynah() {
    async fn connected(server: Server) -> mynah::Result<()> {
        server.connect().await?;
        Ok(())
    }
    let error = connected(Server::stdio(["/nowhere/at/all"]).name("none")).await.unwrap_err();
    let cause = std::error::Error::source(&error).and_then(|cause| cause.downcast_ref());
    assert!(matches!(cause, Some(McpError::Start { .. })), "{error:#?}");
    assert_eq!((error.reason(), &error.metadata()["mcp"]), ("failed", &json!("start")));
    assert!(error.to_string().starts_with("MCP server \"none\" cannot be started"), "{error}");
    let error = connected(Server::http("nowhere").name("none")).await.unwrap_err();
    assert!(error.is_validation(), "{error:#?}");
}

#[tokio::test]
async fn progress_is_an_event_of_the_run_and_no_record() -> Result<(), Box<dyn std::error::Error>> {
    let tools = hostile("progress", None).approval(Approval::Never).connect().await?;
    let script = [
        json!([{"tool_call": {"id": "c0", "name": "work", "arguments": {}}}, {"finish": "tool_calls"}]),
        json!([{"text": "There."}, {"finish": "stop"}]),
    ];
    let engine = mynah::Engine::new(mynah::testing::Scripted::new(script)?).tools(tools);
    let log = mynah::log::MemoryLog::new();
    let mut chat = engine.chat("Go far.").record(&log).stream();
    let (mut miles, mut result) = (Vec::new(), None);
    while let Some(event) = chat.next().await {
        match event? {
            Event::ToolExecutionProgress { id, total, message, .. } => {
                assert_eq!((&*id, total), ("c0", Some(8.0)));
                miles.extend(message);
            }
            Event::ChatCompleted { result: completed } => result = Some(completed),
            _ => {}
        }
    }
    assert!(miles.contains(&"mile 4".to_owned()), "{miles:?}");
    let result = result.unwrap();
    assert_eq!(result.text(), "There.");
    let run = result.run_id.unwrap();
    let records = log.read(&run, 1, 100).await?;
    let facts: Vec<_> = records.iter().map(|record| record.fact()).collect();
    assert!(!format!("{facts:?}").contains("mile"));
    assert_eq!(engine.replay(&log, &run).await?.status, "equal");
    Ok(())
}

#[tokio::test]
async fn progress_without_end_reaches_the_maximum() -> Tested {
    let server = hostile("chatters", None)
        .timeout(Duration::from_millis(300))
        .max_timeout(Duration::from_millis(800));
    let tools = server.connect().await?.tools();
    let began = Instant::now();
    let (kind, message) = failed(call(&tools[0], json!({})).await);
    assert_eq!(kind, "timeout");
    assert!(message.contains("800 ms"), "{message}");
    assert!(began.elapsed() < Duration::from_secs(10));
    Ok(())
}

#[tokio::test]
async fn a_message_without_end_is_cut_off() -> Tested {
    let server = short(hostile("floods", None)).limits(|limits| limits.message_bytes = 1 << 20);
    let tools = server.connect().await?.tools();
    let (kind, message) = failed(call(&tools[0], json!({})).await);
    assert_eq!(kind, "limit", "{message}");
    assert!(message.contains("the size of a message is more than 1048576"), "{message}");
    Ok(())
}

#[tokio::test]
async fn noise_between_messages_is_passed_over() -> Tested {
    let tools = hostile("babbles", None).connect().await?.tools();
    assert_eq!(ok(call(&tools[0], json!({})).await), "done");
    Ok(())
}

#[tokio::test]
async fn a_result_that_does_not_fit_its_schema_is_an_error() -> Tested {
    let tools = hostile("lies", None).connect().await?.tools();
    let (kind, message) = failed(call(&tools[0], json!({})).await);
    assert_eq!(kind, "protocol");
    assert!(message.contains("does not fit its output schema"), "{message}");
    Ok(())
}

#[tokio::test]
async fn a_large_result_is_cut_and_the_model_is_told() -> Tested {
    let tools =
        hostile("large", None).limits(|limits| limits.output_bytes = 1000).connect().await?.tools();
    let text = ok(call(&tools[0], json!({})).await);
    assert!(text.ends_with("[truncated: 1000 of 1000000 bytes shown]") && text.len() < 1100);
    Ok(())
}

#[tokio::test]
async fn images_are_parts_of_the_result() -> Tested {
    let tools = hostile("images", None).connect().await?.tools();
    let ToolOutcome::Parts(parts) = call(&tools[0], json!({})).await else { panic!("no parts") };
    let [Part::Text { text, .. }, Part::Image { image, .. }, Part::Text { text: audio, .. }] =
        &parts[..]
    else {
        panic!("{parts:?}")
    };
    assert_eq!(text, "a pixel");
    assert_eq!(image.mime_type.as_deref(), Some("image/png"));
    assert_eq!(audio, "[audio audio/wav, about 3 bytes, not shown]");
    Ok(())
}

#[tokio::test]
async fn a_description_that_changes_after_it_was_offered_is_not_called() -> Tested {
    let connection = hostile("legacy_rug_pull", None).connect().await?;
    let tools = connection.tools();
    assert_eq!(ok(call(&tools[0], json!({})).await), "done");
    timeout(Duration::from_secs(5), connection.changed()).await.unwrap();
    let (kind, message) = failed(call(&tools[0], json!({})).await);
    assert_eq!(kind, "changed", "{message}");
    let now = connection.refresh().await?;
    assert!(now.listing().tools[0].description.contains("evil"));

    // One that was pinned is not even offered.
    let pinned = hostile("legacy_rug_pull", None).pin(now.listing().digests()).connect().await?;
    assert!(pinned.tools().is_empty());
    assert_eq!(pinned.refused()[0].kind(), "changed");
    let pinned =
        hostile("legacy_rug_pull", None).pin(connection.listing().digests()).connect().await?;
    assert_eq!(pinned.tools().len(), 1);
    Ok(())
}

#[tokio::test]
async fn a_server_that_is_another_after_a_restart_is_noticed() -> Tested {
    let notes = NamedTempFile::new().unwrap();
    let server = || short(hostile("other_after_restart", Some(notes.path())));
    let stored = server().connect().await?;
    assert_eq!(ok(call(&stored.tools()[0], json!({})).await), "other_after_restart done {}");
    let later = server().with_listing(stored.listing().clone())?;
    assert_eq!(failed(call(&later.tools()[0], json!({})).await).0, "changed");
    Ok(())
}

#[tokio::test]
async fn a_setting_that_would_have_no_effect_is_refused() {
    let command = || Server::stdio(["true"]).name("s");
    let address = || Server::http("http://127.0.0.1:9/mcp").name("s");
    for (server, setting, kind) in [
        (command().token("t"), "token", "an address"),
        (command().header("x", "y"), "header", "an address"),
        (address().env("A", "b"), "env", "a command"),
        (address().inherit_env("A"), "inherit_env", "a command"),
        (address().current_dir("/"), "current_dir", "a command"),
    ] {
        let expected = format!(
            "the settings of MCP server \"s\" are invalid: {setting} applies only to a server that is {kind}"
        );
        assert_eq!(server.clone().connect().await.unwrap_err().to_string(), expected);
        assert_eq!(server.with_listing(Listing::default()).unwrap_err().to_string(), expected);
    }
}

#[tokio::test]
async fn a_server_gets_the_variables_that_it_is_given_and_no_others() -> Tested {
    let server = hostile("environment", None).inherit_env("CARGO_PKG_NAME").env("ANSWER", "42");
    let tools = server.connect().await?.tools();
    let text = ok(call(&tools[0], json!({})).await);
    let variables: Value = serde_json::from_str(&text).unwrap();
    assert_eq!(variables["ANSWER"], "42");
    assert_eq!(variables["CARGO_PKG_NAME"], "mynah-mcp");
    assert!(variables.get("PATH").is_some());
    assert_eq!(variables.get("CARGO_MANIFEST_DIR"), None, "it was not named");
    Ok(())
}

#[cfg(unix)]
#[tokio::test]
async fn a_server_that_is_dropped_ends_with_all_that_it_started() -> Tested {
    let connection = hostile("family", None).connect().await?;
    let tools = connection.tools();
    let pids = ok(call(&tools[0], json!({})).await);
    let lives = |pid: &str| {
        // A process that ended and was not waited for is still there by name.
        let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
        !stat.is_empty() && !stat.contains(") Z ")
    };
    assert!(pids.split(' ').all(lives), "{pids}");
    drop((connection, tools));
    for _ in 0..100 {
        if !pids.split(' ').any(lives) {
            return Ok(());
        }
        sleep(Duration::from_millis(50)).await;
    }
    panic!("{pids} still run");
}

#[tokio::test]
async fn a_server_that_ends_when_it_is_asked_for_its_era_is_asked_as_before() -> Tested {
    let tools = hostile("legacy_strict", None).connect().await?.tools();
    assert_eq!(ok(call(&tools[0], json!({})).await), "legacy_strict done {}");
    Ok(())
}

#[tokio::test]
async fn questions_are_asked_one_by_one_and_answered_together() -> Tested {
    let tools = hostile("asks", None).connect().await?.tools();
    let (question, first) = asked(call(&tools[0], json!({})).await, "two");
    // They come in the order of their names.
    assert_eq!(question, "How many?");
    let (again, first) = asked(proceed(&tools[0], json!({}), Some(first)).await, "2");
    assert!(again.starts_with("How many?\n("), "{again}");
    let (question, second) = asked(proceed(&tools[0], json!({}), Some(first)).await, "Ada");
    assert_eq!(question, "Who?");
    // Another connection, as of another process, continues with the state alone.
    let later = hostile("asks", None).connect().await?.tools();
    let done: Value =
        serde_json::from_str(&ok(proceed(&later[0], json!({}), Some(second)).await)).unwrap();
    let accept = |content: Value| json!({"action": "accept", "content": content});
    let answers =
        json!({"many": accept(json!({"count": 2})), "who": accept(json!({"name": "Ada"}))});
    assert_eq!(done, json!({"answers": answers, "state": "s-1"}));
    Ok(())
}

#[tokio::test]
async fn a_server_with_a_session_that_asks_while_it_works_is_answered_in_another_call() -> Tested {
    let tools = hostile("legacy_asks", None).connect().await?.tools();
    let (question, answer) = asked(call(&tools[0], json!({})).await, "Ada");
    assert_eq!(question, "Who?");
    let done: Value =
        serde_json::from_str(&ok(proceed(&tools[0], json!({}), Some(answer)).await)).unwrap();
    assert_eq!(done, json!({"action": "accept", "content": {"name": "Ada"}}));
    Ok(())
}

/// The question arrives while the call is still being sent, if the machine has several threads.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_question_that_comes_at_once_finds_its_call() -> Tested {
    let tools = hostile("legacy_asks", None).connect().await?.tools();
    for round in 0..100 {
        let (_, answer) = asked(call(&tools[0], json!({})).await, "Ada");
        let done = ok(proceed(&tools[0], json!({}), Some(answer)).await);
        assert_eq!(done, r#"{"action": "accept", "content": {"name": "Ada"}}"#, "round {round}");
    }
    Ok(())
}

/// The older protocol does not name the call of a question on standard input and output.
#[tokio::test]
async fn questions_of_calls_side_by_side_find_their_calls() -> Tested {
    let tools = hostile("legacy_asks", None).connect().await?.tools();
    let (a, b) = (json!({"for": "a"}), json!({"for": "b"}));
    let both = tokio::join!(call(&tools[0], a.clone()), call(&tools[0], b.clone()));
    let (question, for_a) = asked(both.0, "Ada");
    assert_eq!(question, "Who? a");
    let (question, for_b) = asked(both.1, "Bob");
    assert_eq!(question, "Who? b");
    let both = tokio::join!(proceed(&tools[0], a, Some(for_a)), proceed(&tools[0], b, Some(for_b)));
    let told = |outcome| serde_json::from_str::<Value>(&ok(outcome)).unwrap();
    let expected =
        |of: &str, name: &str| json!({"for": of, "action": "accept", "content": {"name": name}});
    assert_eq!(told(both.0), expected("a", "Ada"));
    assert_eq!(told(both.1), expected("b", "Bob"));

    let works = call(&tools[0], json!({"works": "long"}));
    let (worked, outcome) = tokio::join!(works, call(&tools[0], json!({"for": "c"})));
    assert_eq!(ok(worked), "worked");
    assert_eq!(asked(outcome, "").0, "Who? c");
    Ok(())
}

#[tokio::test]
async fn questions_without_end_and_requests_that_were_not_offered_are_refused() -> Tested {
    let tools = hostile("asks_for_ever", None).connect().await?.tools();
    let mut outcome = call(&tools[0], json!({})).await;
    for _ in 0..10 {
        let (_, answer) = asked(outcome, "Ada");
        outcome = proceed(&tools[0], json!({}), Some(answer)).await;
    }
    assert_eq!(failed(outcome).0, "limit");
    for (mode, told) in [
        ("never_ready", "the number of questions is more than 3"),
        ("wants_a_model", "sampling or roots"),
        ("wants_a_file", "not http or https"),
    ] {
        let server = hostile(mode, None).limits(|limits| limits.questions = 3);
        let tools = server.connect().await?.tools();
        let (_, message) = failed(call(&tools[0], json!({})).await);
        assert!(message.contains(told), "{mode}: {message}");
    }
    Ok(())
}

#[tokio::test]
async fn a_task_is_followed_to_its_end() -> Tested {
    let notes = NamedTempFile::new().unwrap();
    let tools = hostile("task", Some(notes.path())).connect().await?.tools();
    let finish = async {
        sleep(Duration::from_millis(200)).await;
        std::fs::write(notes.path(), "begun\nfinish\n").unwrap();
    };
    let (outcome, ()) = tokio::join!(call(&tools[0], json!({})), finish);
    assert_eq!(ok(outcome), "begun 1 times");
    Ok(())
}

#[tokio::test]
async fn a_task_that_takes_long_is_found_again_by_another_process() -> Tested {
    let notes = NamedTempFile::new().unwrap();
    let server = || hostile("task", Some(notes.path())).task_wait(Duration::ZERO);
    let tools = server().connect().await?.tools();
    let (question, later) = asked(call(&tools[0], json!({})).await, "");
    assert!(question.contains("t-1"), "{question}");
    drop(tools);
    let tools = server().connect().await?.tools();
    let (_, later) = asked(proceed(&tools[0], json!({}), Some(later)).await, "");
    std::fs::write(notes.path(), "begun\nfinish\n").unwrap();
    assert_eq!(ok(proceed(&tools[0], json!({}), Some(later)).await), "begun 1 times");
    Ok(())
}

#[tokio::test]
async fn a_task_that_asks_is_answered() -> Tested {
    let notes = NamedTempFile::new().unwrap();
    let tools = hostile("task_asks", Some(notes.path())).connect().await?.tools();
    let (question, answer) = asked(call(&tools[0], json!({})).await, "Ada");
    assert_eq!(question, "Who?");
    assert_eq!(ok(proceed(&tools[0], json!({}), Some(answer)).await), "begun 1 times");
    let noted = std::fs::read_to_string(notes.path()).unwrap();
    assert!(noted.contains(r#""content": {"name": "Ada"}"#), "{noted}");
    Ok(())
}

/// A server over HTTP that answers everything with this head and a body without end.
async fn endless(kind: &'static str, piece: &'static str) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}/mcp", listener.local_addr().unwrap());
    tokio::spawn(async move {
        while let Ok((mut stream, _)) = listener.accept().await {
            tokio::spawn(async move {
                let _ = stream.read(&mut [0; 8192]).await;
                let head = format!("HTTP/1.1 200 OK\r\ncontent-type: {kind}\r\n\r\n");
                let _ = stream.write_all(head.as_bytes()).await;
                let piece = piece.repeat(8192);
                while stream.write_all(piece.as_bytes()).await.is_ok() {}
            });
        }
    });
    url
}

#[tokio::test]
async fn an_answer_without_end_over_http_is_cut_off() {
    for (kind, piece, told) in [
        ("application/json", "[", "an answer has more than 1048576 bytes"),
        ("text/event-stream", "data: x", ""),
    ] {
        let url = endless(kind, piece).await;
        let server = Server::http(url)
            .connect_timeout(Duration::from_secs(10))
            .limits(|limits| limits.message_bytes = 1 << 20);
        let error = timeout(Duration::from_secs(20), server.connect()).await.unwrap().unwrap_err();
        assert!(error.to_string().contains(told), "{kind}: {error}");
    }
}

/// The address of a server over HTTP that answers everything with this status, header and text.
async fn refusing(status: u16, challenge: &'static str, text: &'static str) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}/mcp", listener.local_addr().unwrap());
    let status = http::StatusCode::from_u16(status).unwrap();
    let answer = async move || (status, [("www-authenticate", challenge)], text);
    let server = axum::serve(listener, axum::Router::new().fallback(answer));
    tokio::spawn(server.into_future());
    url
}

#[tokio::test]
async fn errors_over_http_have_the_address_and_the_status_and_no_names_of_types() {
    let gone = TcpListener::bind("127.0.0.1:0").await.unwrap().local_addr().unwrap();
    let table = [
        (format!("http://{gone}/mcp"), "refused"),
        (refusing(404, "", "no such page").await, ": HTTP 404 Not Found: no such page"),
        (refusing(405, "", "").await, ": HTTP 405 Method Not Allowed"),
        (refusing(503, "", "").await, " answered HTTP 503 Service Unavailable"),
        (refusing(401, "Bearer", "").await, " requires authorization (Bearer); check the token"),
        (refusing(200, "", "Welcome!").await, " answered with text/plain; charset=utf-8 instead"),
    ];
    for (url, told) in &table {
        for protocol in [Protocol::Auto, Protocol::Stateful] {
            let secret = format!("{url}?key=k-17");
            let error =
                Server::http(secret).name("h").protocol(protocol).connect().await.unwrap_err();
            let text = error.to_string();
            assert!(
                text.starts_with(r#"no connection to MCP server "h": "#),
                "{protocol:?}: {text}"
            );
            assert!(text.contains(url) && text.contains(told), "{protocol:?}, {told}: {text}");
            for internal in ["rmcp", "Transport", "::", "k-17"] {
                assert!(!text.contains(internal), "{protocol:?}, {internal}: {text}");
            }
        }
    }
}

#[tokio::test]
async fn the_model_reads_which_address_died() -> Tested {
    for protocol in [Protocol::Stateless, Protocol::Stateful] {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}/mcp", listener.local_addr().unwrap());
        let tool = Tool::new("work", "Works", json!({})).handler(async |_, _| "done");
        let running = tokio::spawn(mynah_mcp::serve([tool]).http(listener));
        let server =
            short(Server::http(&url).name("h").protocol(protocol)).approval(Approval::Never);
        let tools = server.connect().await?.tools();
        assert_eq!(ok(call(&tools[0], json!({})).await), "done");
        running.abort();
        assert!(running.await.is_err());
        for _ in 0..3 {
            let (kind, message) = failed(call(&tools[0], json!({})).await);
            assert!(["closed", "connect"].contains(&&*kind), "{protocol:?}: {kind}: {message}");
            let is_told = message.contains(&url) && message.contains("refused");
            assert!(is_told && !message.contains("ransport"), "{protocol:?}: {message}");
        }
    }
    Ok(())
}
