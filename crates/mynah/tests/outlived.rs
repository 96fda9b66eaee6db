//! Tools that outlive their call: threads that cannot be stopped, and detached tasks.

use std::{
    sync::{Arc, Mutex, mpsc},
    time::Duration,
};

use futures_util::StreamExt as _;
use mynah::{
    CancelHandle, Engine, Error, Event, OnUncertain, Tool, ToolContext,
    log::{Append, Log as _, MemoryLog},
    replay_run,
    testing::Scripted,
};
use serde_json::{Value, json};
use tokio::{
    runtime::Builder,
    sync::{
        Semaphore,
        mpsc::{UnboundedReceiver, unbounded_channel},
    },
};

#[test]
fn a_thread_that_outlives_its_chat_is_told_that_its_call_is_over() -> mynah::Result<()> {
    for how in ["timed out", "dropped", "cancelled"] {
        let runtime = Builder::new_multi_thread().enable_all().build().expect("a runtime");
        let told = runtime.block_on(async {
            let (mut tool, mut thread) = lingering();
            if how == "timed out" {
                tool = tool.timeout(BEGINS_WITHIN);
            }
            let log = Arc::new(MemoryLog::new());
            let cancel = CancelHandle::new();
            let chat = Engine::new(calls(&["lingering"])?).tool(tool).chat("go").record(&log);
            let chat = tokio::spawn(chat.cancel_handle(&cancel).into_future());
            thread.began.recv().await;
            match how {
                "dropped" => chat.abort(),
                "cancelled" => cancel.cancel(),
                _ => {}
            }
            assert_eq!(chat.await.is_err(), how == "dropped", "{how}");
            assert!(thread.go_on.send(()).is_ok(), "{how}");
            Ok::<_, Error>(tokio::time::timeout(ANSWERED, thread.told.recv()).await)
        })?;
        // A detached thread does not keep the process from ending either.
        runtime.shutdown_timeout(ANSWERED);
        assert_eq!(told, Ok(Some(Err("cancelled"))), "{how}");
    }
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn what_a_tool_asks_for_after_its_outcome_leaves_no_record_beside_its_siblings()
-> mynah::Result<()> {
    let (tool, mut thread) = lingering();
    let may_end = Arc::new(Semaphore::new(0));
    let waits = Arc::clone(&may_end);
    let sibling = Tool::new("sibling", "", json!({})).handler(move |_, _| {
        let waits = Arc::clone(&waits);
        async move { json!(waits.acquire().await.is_err()) }
    });
    let tool = tool.timeout(BEGINS_WITHIN);
    let engine = Engine::new(calls(&["lingering", "sibling"])?).tool(tool).tool(sibling);
    let log = Arc::new(MemoryLog::new());
    let mut chat = engine.chat("go").record(&log).stream();
    let told = tokio::spawn(async move {
        let told = thread.told.recv().await;
        may_end.close();
        told
    });
    let mut result = None;
    while let Some(event) = chat.next().await {
        match event? {
            // The sibling still runs, so the caller that asks is served.
            Event::ToolExecutionCompleted { id, .. } if id == "c0" => {
                assert!(thread.go_on.send(()).is_ok());
            }
            Event::ChatCompleted { result: told } => result = Some(told),
            _ => {}
        }
    }
    assert_eq!(told.await.ok().flatten(), Some(Err("cancelled")));
    let run = result.and_then(|result| result.run_id).unwrap_or_default();
    let records = log.read(&run, 1, 100).await?;
    assert!(records.iter().all(|record| record.kind().as_str() != "side_effect"));
    assert_eq!(engine.replay(&log, &*run).await?.status, "equal");
    assert_eq!(engine.replay(&log, &*run).await?.status, "equal");
    assert_eq!(replay_run(&log, &*run).await?.status, "equal");
    drop(thread.go_on);
    for kept in 5..records.len() - 1 {
        let log = Arc::new(MemoryLog::new());
        log.append(Append::new(&*run, None, records[..kept].to_vec())).await?;
        let resumed = engine.resume(&log, &*run).on_uncertain(OnUncertain::Rerun).await;
        assert!(resumed.is_ok(), "after {kept}: {resumed:?}");
    }
    Ok(())
}

/// Longer than any answer takes.
const ANSWERED: Duration = Duration::from_secs(60);

/// A timeout that passes while the thread of a tool runs, also on a busy machine.
const BEGINS_WITHIN: Duration = Duration::from_secs(1);

/// A thread that cannot be stopped.
struct Lingering {
    began: UnboundedReceiver<()>,
    go_on: mpsc::Sender<()>,
    /// What it got when it continued.
    told: UnboundedReceiver<Result<(), &'static str>>,
}

/// A tool that waits on a thread until it may continue, and then asks for the time.
fn lingering() -> (Tool, Lingering) {
    let (begin, began) = unbounded_channel();
    let (go_on, may_go_on) = mpsc::channel();
    let (tell, told) = unbounded_channel();
    let may_go_on = Mutex::new(may_go_on);
    let tool = Tool::new("lingering", "", json!({})).blocking(move |_, context: ToolContext| {
        // The receiver may be gone.
        let _ = begin.send(());
        drop(may_go_on.lock().map(|may_go_on| may_go_on.recv()));
        let asked = tokio::runtime::Handle::current().block_on(context.now());
        let _ = tell.send(asked.map(drop).map_err(|error| error.reason()));
        json!(1)
    });
    (tool, Lingering { began, go_on, told })
}

/// A model that calls these tools and then says that it is done.
fn calls(names: &[&str]) -> mynah::Result<Scripted> {
    let calls = names.iter().enumerate();
    let calls = calls.map(|(n, name)| json!({"tool_call": {"id": format!("c{n}"), "name": name}}));
    let turn = Value::from_iter(calls.chain([json!({"finish": "tool_calls"})]));
    let last = json!([{"text": "done"}, {"finish": "stop"}]);
    Scripted::new([
        turn,
        last.clone(),
        last.clone(),
        last.clone(),
        last.clone(),
        last.clone(),
        last,
    ])
}
