//! The order of members in maps does not change a resumed or replayed run.

use std::sync::Arc;

use mynah::{
    Engine, Message, Metadata, Options, ReplayStatus, ResponseFormat, Session, Tool, fork_run,
    log::{Log, MemoryLog},
    replay_run, restore_session,
    testing::Scripted,
};
use proptest::prelude::*;
use serde_json::{Value, json};

use crate::{
    common::{call, says, scripted},
    param::Param as _,
};

proptest! {
    #![proptest_config(ProptestConfig { cases: 32, ..ProptestConfig::default() })]

    #[test]
    fn members_in_any_order_are_the_same_live_resumed_and_replayed(said in said()) {
        runtime().block_on(async {
            let log = MemoryLog::new();
            let (engine, model) = said.engine(0);
            let live = engine.start(said.session()).options(said.options()).record(&log).await;
            let (session, result) = live.map_err(fail)?;
            let run = result.run_id.clone().unwrap_or_default();
            let asked = model.requests();
            prop_assert_eq!(said.engine(0).0.replay(&log, &*run).await.map(|replayed| replayed.status), Ok(ReplayStatus::Equal));
            prop_assert_eq!(replay_run(&log, &*run).await.map(|replayed| replayed.status), Ok(ReplayStatus::Equal));
            let restored = restore_session(&log, "s").await.map_err(fail)?;
            prop_assert_eq!(json!(restored.session).to_string(), json!(session).to_string());
            let records = log.read(&run, 1, usize::MAX).await.map_err(fail)?;
            for at in 1..records.len() - 1 {
                let fork = fork_run(&log, &*run, at as u64).await.map_err(fail)?.run_id;
                let kinds = records[..at].iter().map(|record| record.kind().as_str());
                let answered = kinds.filter(|kind| *kind == "assistant_completed").count();
                let (engine, model) = said.engine(answered);
                let mut resumed = engine.resume(&log, &*fork).await.map_err(fail)?;
                resumed.run_id.clone_from(&result.run_id);
                prop_assert_eq!(json!(resumed).to_string(), json!(result).to_string(), "cut off at {}", at);
                prop_assert_eq!(text(&model.requests()), text(&asked[answered..]), "cut off at {}", at);
            }
            Ok(())
        })?;
    }
}

#[tokio::test]
async fn a_schema_keeps_the_order_in_which_the_model_is_to_answer() -> mynah::Result<()> {
    let schema = json!({"type": "object", "properties": {"reasons": {}, "answer": {}}});
    let (log, model) = (MemoryLog::new(), scripted([says("{}")]));
    let format = ResponseFormat::json_schema("form", schema.clone());
    let chat = Engine::new(model.clone()).chat("hi").response_format(format.clone());
    let run = chat.record(&log).await?.run_id.expect("a run");
    let again = scripted([says("{}")]);
    let fork = fork_run(&log, &*run, 1).await?.run_id;
    Engine::new(again.clone()).resume(&log, &*fork).await?;
    for model in [model, again] {
        let Some(ResponseFormat::JsonSchema { schema: asked, .. }) =
            model.requests().remove(0).response_format
        else {
            panic!("no schema")
        };
        assert_eq!(asked.to_string(), schema.to_string());
    }
    Ok(())
}

/// What is said of a call, each with its members in some order.
#[derive(Clone, Debug)]
struct Said {
    context: Metadata,
    of_session: Metadata,
    metadata: Metadata,
    message: Metadata,
    schema: Metadata,
    more: Metadata,
}

impl Said {
    /// A model that continues after this many answers, with tools that report what they see.
    fn engine(&self, answered: usize) -> (Engine, Scripted) {
        let scripts = [call("c0", "sees"), call("c1", "does"), says("done")];
        let model = scripted(scripts.into_iter().skip(answered));
        let sees = Tool::new("sees", "", json!({})).idempotent(1);
        let sees =
            sees.handler(async |_, context| Value::Object(Metadata::clone(&context.context)));
        let made = Value::Object(self.more.clone());
        let does = Tool::new("does", "", json!({})).idempotent(1);
        let does = does.handler(move |_, context| {
            let made = made.clone();
            async move {
                context.side_effect("made", async { Ok::<_, std::convert::Infallible>(made) }).await
            }
        });
        let engine = Engine::new(model.clone()).tools([sees, does]);
        (engine.param("seed", Value::Object(self.more.clone())), model)
    }

    fn session(&self) -> Session {
        let message = self.message.iter().fold(Message::user("go"), |message, (name, value)| {
            message.with_metadata(name, value.clone())
        });
        let mut session = Session::from(mynah::Thread::new().with(Arc::new(message))).with_id("s");
        session = session.with_context(self.of_session.clone());
        session.metadata = self.metadata.clone();
        session
    }

    fn options(&self) -> Options {
        let form = ResponseFormat::json_schema("form", Value::Object(self.schema.clone()));
        let options = Options::new().param("provider", Value::Object(self.more.clone()));
        let options = options.param("response_format", json!(form));
        match self.context.is_empty() {
            true => options,
            false => options.param("context", Value::Object(self.context.clone())),
        }
    }
}

fn said() -> impl Strategy<Value = Said> {
    (members(), members(), members(), members(), members(), members()).prop_map(
        |(context, of_session, metadata, message, schema, more)| Said {
            context,
            of_session,
            metadata,
            message,
            schema,
            more,
        },
    )
}

/// Members in an order of their own.
fn members() -> impl Strategy<Value = Metadata> {
    let leaf = prop_oneof![any::<i32>().prop_map(Value::from), Just(json!(1.5)), Just(json!("x"))];
    let inner = leaf.prop_recursive(2, 8, 3, |inner| {
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..3).prop_map(Value::from),
            prop::collection::vec(("[a-c]{1,3}", inner), 0..4)
                .prop_map(|members| Value::Object(members.into_iter().collect())),
        ]
    });
    prop::collection::vec(("[a-c]{1,3}", inner), 0..4)
        .prop_map(|members| members.into_iter().collect())
}

fn text(requests: &[mynah::Request]) -> String {
    json!(requests).to_string()
}

fn fail(error: mynah::Error) -> TestCaseError {
    TestCaseError::fail(error.to_string())
}

fn runtime() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime")
}
