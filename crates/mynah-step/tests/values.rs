//! What side effects give: the same live and again.

use std::sync::Arc;

use mynah_data::HaltReason;
use mynah_log::{End, Fact, MemoryLog};
use mynah_step::{Context, SystemWorld, ToolContext};
use serde_json::{Value, json};

use crate::common::*;

#[tokio::test]
async fn an_effect_gives_what_its_record_gives() {
    let (given, _) = twice(plain, async |context| {
        let unit = context.side_effect("unit", async { Ok::<_, String>(Some(())) }).await;
        let nested = context.side_effect("nested", async { Ok::<_, String>(Some(None::<u8>)) });
        let number = context.side_effect("number", async { Ok::<_, String>((0.1_f32, -0.0_f64)) });
        (unit, nested.await, number.await)
    })
    .await;
    assert_eq!(given, (Ok(None), Ok(None), Ok((0.1, -0.0))));
}

#[tokio::test]
async fn a_value_that_does_not_come_back_from_its_record_is_a_failed_effect() {
    let (failed, _) = twice(plain, async |context| {
        let nan = context.side_effect("nan", async { Ok::<_, String>(f64::NAN) }).await;
        nan.map_err(|error| error.to_string())
    })
    .await;
    let why = "invalid type: null, expected f64";
    assert_eq!(failed, Err(format!("its value does not come back from its record: {why}")));
}

#[tokio::test]
async fn a_value_of_any_json_keeps_its_numbers() {
    let value: Value =
        serde_json::from_str("[18446744073709551615, -1, 1e300, 1.0]").expect("JSON");
    let (given, _) = twice(plain, async |context| {
        context.side_effect("numbers", async { Ok::<_, String>(value.clone()) }).await
    })
    .await;
    assert_eq!(given, Ok(value));
}

#[tokio::test]
async fn nothing_of_the_run_can_be_had_inside_a_side_effect() {
    let nests = |context: ToolContext| async move {
        let nested = context.side_effect("outer", async { context.random().await }).await;
        json!(nested.map_err(|error| error.to_string()))
    };
    let config = |log: &Arc<MemoryLog>| {
        plain(log).adapter(plays([says(&["hi"])])).tools([tool("nests", nests)])
    };
    let (refused, facts) = twice(config, async |context| {
        let now = context.side_effect("outer", async { context.now().await.map(|_| 1) });
        let model =
            context.side_effect("outer", async { context.call_model(ask("hi")).await.map(|_| 1) });
        let tool = context
            .side_effect("outer", async { context.call_tool(call("c0", "t")).await.map(|_| 1) });
        let emit = context.side_effect("outer", async { end(context).await.map(|()| 1) });
        let said = [now.await, model.await, tool.await, emit.await];
        let inside = context.call_tool(call("c1", "nests")).await;
        (said.map(|said| said.map_err(|error| error.to_string())), inside)
    })
    .await;
    let why = "validation failed: side_effect: something of the run is asked for inside a side effect, which a replay does not do";
    assert_eq!(refused.0, [(); 4].map(|()| Err(why.to_owned())));
    assert_eq!(refused.1, Ok(json!({"Err": why}).into()));
    let expected = ["side_effect"; 4].into_iter().chain(["tool_scheduled", "side_effect"]);
    assert_eq!(kinds(&facts)[1..7], expected.collect::<Vec<_>>());
}

#[tokio::test]
async fn a_run_inside_a_side_effect_of_another_is_its_own() {
    let (drawn, _) = twice(plain, async |context| {
        let other = async {
            let other = Context::new(plain(&Arc::new(MemoryLog::new())))?;
            begin(&other).await?;
            other.side_effect("inner", async { Ok::<_, String>(7) }).await
        };
        (context.side_effect("outer", other).await, context.random().await)
    })
    .await;
    assert_eq!(drawn.0, Ok(7));
    assert!(drawn.1.is_ok());
}

#[tokio::test]
async fn a_side_effect_holds_its_future_once() {
    const MINE: usize = 4_096;
    let large = async || {
        let bytes = [0_u8; 100_000];
        tokio::task::yield_now().await;
        Ok::<_, String>(bytes.len())
    };
    let context = Context::new(plain(&Arc::new(MemoryLog::new()))).expect("a run");
    let inside = ToolContext::new(call("c0", "t"), Arc::new(SystemWorld));
    let most = size_of_val(&large()) + MINE;
    assert!(size_of_val(&context.side_effect("large", large())) < most);
    assert!(size_of_val(&inside.side_effect("large", large())) < most);
    assert_eq!(inside.side_effect("large", large()).await, Ok(100_000));
}

#[tokio::test]
async fn a_null_where_nothing_was_is_a_difference_with_a_place() {
    let suspended = |metadata: &Value| {
        let metadata = metadata.as_object().cloned().unwrap_or_default();
        Fact::Suspended(End::new(HaltReason::AskUser, metadata))
    };
    let places = [
        (json!({"a": null}), json!({}), json!({"path": "metadata.a", "recorded": null})),
        (
            json!({"a": {}}),
            json!({"a": {"x": null}}),
            json!({"path": "metadata.a.x", "produced": null}),
        ),
        (
            json!({"a": [1, null]}),
            json!({"a": [1]}),
            json!({"path": "metadata.a.1", "recorded": null}),
        ),
        (
            json!({"a": 1}),
            json!({}),
            json!({"path": "metadata.a", "recorded": 1, "produced": null}),
        ),
    ];
    for (recorded, produced, place) in places {
        let error = mismatch(
            async |context| context.emit(suspended(&recorded)).await,
            async |context| context.emit(suspended(&produced)).await,
        )
        .await;
        assert_eq!(error.metadata()["diff"], json!([place]), "{error}");
        let told = format!("suspended differs at {}", place["path"].as_str().unwrap_or_default());
        assert!(error.to_string().ends_with(&told), "{error}");
    }
}
