//! One loop, and it is a stream: on random scripts, tools and options the folded stream is the result.
//!
//! `PROPTEST_CASES` sets the number of cases; `cargo xtask nightly` runs 10,000.

mod plans;

use futures_util::StreamExt as _;
use mynah::{
    Collector, Event, HaltReason, Options, Session, SessionReducer, Status, Thread, TurnResult,
};
use plans::{cases, plan, runtime};
use proptest::prelude::*;

proptest! {
    #![proptest_config(ProptestConfig { cases: cases(500), ..ProptestConfig::default() })]

    #[test]
    fn a_chat_is_the_fold_of_its_stream(plan in plan()) {
        runtime().block_on(async {
            let awaited = plan.engine().chat("go").options(plan.options()).await;
            let folded = fold(plan.engine().chat("go").options(plan.options()).stream()).await;
            match (awaited, folded) {
                (Ok(awaited), Ok(folded)) => prop_assert_eq!(awaited, folded.chat_result()),
                (Err(awaited), Err(folded)) => prop_assert_eq!(awaited, folded),
                (awaited, folded) => prop_assert!(false, "{awaited:?} against {folded:?}"),
            }
            Ok(())
        })?;
    }

    #[test]
    fn the_collector_and_the_loop_agree_on_every_step(plan in plan()) {
        runtime().block_on(async {
            if let Ok(folded) = fold(plan.engine().chat("go").options(plan.options()).stream()).await {
                let result = folded.chat_result();
                prop_assert_eq!(folded.steps(), &result.steps[..]);
            }
            Ok(())
        })?;
    }

    #[test]
    fn a_step_is_the_fold_of_its_stream(plan in plan()) {
        runtime().block_on(async {
            let awaited = plan.engine().step("go").options(plan.options()).await;
            let folded = fold(plan.engine().step("go").options(plan.options()).stream()).await;
            match (awaited, folded) {
                (Ok(awaited), Ok(folded)) => prop_assert_eq!(awaited, folded.step_result()),
                (Err(awaited), Err(folded)) => prop_assert_eq!(awaited, folded),
                // What a step refuses as a whole, its stream tells as an event.
                (Err(awaited), Ok(folded)) => {
                    prop_assert_eq!(awaited.reason(), "unknown_tool");
                    prop_assert_eq!(Some(&awaited), folded.error());
                }
                (awaited, folded) => prop_assert!(false, "{awaited:?} against {folded:?}"),
            }
            Ok(())
        })?;
    }

    #[test]
    fn a_generated_response_is_the_fold_of_its_stream(plan in plan()) {
        runtime().block_on(async {
            let awaited = plan.engine().generate("go").options(plan.options()).await;
            let folded = fold(plan.engine().generate("go").options(plan.options()).stream()).await;
            prop_assert_eq!(awaited, folded.map(|collector| collector.response()));
            Ok(())
        })?;
    }

    #[test]
    fn any_prefix_of_a_stream_folds_into_a_sensible_result(plan in plan(), share in 0.0..1.0f64) {
        runtime().block_on(async {
            let Ok(events) = mynah::testing::collect(plan.engine().chat("go").options(plan.options()).stream()).await
            else { return Ok(()) };
            let cut = (events.len() as f64 * share) as usize;
            let mut collector = Collector::new(Thread::from("go"));
            events[..cut].iter().for_each(|event| collector.apply(event));
            let result = collector.chat_result();
            let ended_early = matches!(result.halted_reason, HaltReason::Cancelled | HaltReason::Error);
            prop_assert!(ended_early || cut == events.len(), "{:?}", result.halted_reason);
            prop_assert!(result.thread.messages.unanswered().is_empty());
            prop_assert!(mynah::validate::thread(&result.thread).is_ok());
            Ok(())
        })?;
    }

    #[test]
    fn filters_change_nothing_but_what_is_seen(plan in plan()) {
        runtime().block_on(async {
            let quiet = Options::new().emit_text_deltas(false).emit_tool_deltas(false);
            let awaited = plan.engine().chat("go").options(plan.options()).await;
            let filtered = fold(plan.engine().chat("go").options(plan.options().overlay(quiet)).stream()).await;
            match (awaited, filtered) {
                (Ok(awaited), Ok(filtered)) => prop_assert_eq!(awaited, filtered.chat_result()),
                (awaited, filtered) => prop_assert_eq!(awaited.err(), filtered.err()),
            }
            Ok(())
        })?;
    }

    #[test]
    fn a_session_is_the_same_awaited_streamed_and_stored(plan in plan()) {
        runtime().block_on(async {
            let awaited = plan.engine().start("go").options(plan.options()).await;
            let mut stream = plan.engine().start("go").options(plan.options()).stream();
            let mut reducer = SessionReducer::chat(Session::from("go"), None);
            let mut refused = None;
            while let Some(event) = stream.next().await {
                match event {
                    Ok(event) => reducer.apply(&event),
                    Err(error) => refused = Some(error),
                }
            }
            match awaited {
                Err(error) => prop_assert_eq!(Some(error), refused),
                Ok((session, result)) => {
                    let (streamed, turn) = stream.finish();
                    prop_assert_eq!(&session, &streamed);
                    prop_assert_eq!(&session, &reducer.finalize().0);
                    prop_assert_eq!(turn, TurnResult::Chat(Box::new(result)));
                    let stored = serde_json::to_string(&session).map_err(|e| TestCaseError::fail(e.to_string()))?;
                    prop_assert_eq!(mynah::decode::session(&stored), Ok(session.clone()));
                    let ready = session.recover();
                    prop_assert_eq!(ready.status(), Status::Idle);
                    prop_assert!(mynah::validate::thread(&ready.thread).is_ok());
                }
            }
            Ok(())
        })?;
    }

    #[test]
    fn cancelling_anywhere_keeps_the_conversation_fit_to_go_on(plan in plan(), after in 0usize..40) {
        runtime().block_on(async {
            let mut stream = plan.engine().chat("go").options(plan.options()).stream();
            let cancel = stream.cancel_handle();
            let (mut seen, mut collector) = (0, Collector::new(Thread::from("go")));
            while let Some(event) = stream.next().await {
                let Ok(event) = event else { return Ok(()) };
                collector.apply(&event);
                seen += 1;
                if seen == after {
                    cancel.cancel();
                }
            }
            let result = collector.chat_result();
            if result.halted_reason != HaltReason::ManualToolCalls {
                prop_assert!(mynah::validate::thread(&result.thread).is_ok());
            }
            Ok(())
        })?;
    }
}

async fn fold(mut stream: mynah::EventStream) -> mynah::Result<Collector> {
    let mut collector = Collector::new(Thread::from("go"));
    while let Some(event) = stream.next().await {
        collector.apply(&event?);
    }
    Ok(collector)
}

/// The events of a stream are those of the contract, whatever the script.
#[test]
fn event_is_small_enough_to_move() {
    assert!(size_of::<Event>() <= 176, "{} bytes", size_of::<Event>());
}
