//! What side effects give: the same live and again.

mod common;

use std::sync::Arc;

use common::*;
use mynah_log::MemoryLog;
use mynah_step::{Context, SystemWorld, ToolContext};
use serde_json::Value;

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
