//! The machine, without a runtime, a clock or a provider: inputs in; facts, events and the next action out.

use std::{collections::VecDeque, sync::Arc};

use mynah_adapters::scripted::Scripted;
use mynah_data::{
    AdapterReason, Breach, BreachTime, Error, Event, FinishReason, HaltReason, Limit, Message,
    Part, Thread, ToolCall, ToolOutcome,
};
use mynah_log::{Extent, Fact};
use mynah_step::{Settled, Tool};
use serde_json::json;

use super::{decide::Action, input::Input, machine::Machine, state::RunState};
use crate::{
    Engine, Options,
    prepare::{CallOrigin, CallPlan},
};

/// A machine, and what it did.
struct Bench(Machine);

impl Bench {
    /// A chat whose model is called.
    fn calling() -> Self {
        let mut bench = Self::new();
        assert_eq!(bench.perform(), (vec!["turn_started"], vec![]));
        assert_eq!(bench.0.decide(), Action::CallModel);
        bench.0.begin_hearing();
        bench
    }

    fn new() -> Self {
        let pay = Tool::new("pay", "", json!({})).handler(async |_, _| "paid");
        let engine = Engine::new(Scripted::default()).tool(pay);
        let asked = CallPlan {
            engine: &engine,
            conversation: Thread::from("go"),
            given: None,
            options: Options::new(),
            extent: Extent::Chat,
            past: CallOrigin::New {
                session: None,
                request_id: Some("r".to_owned()),
                is_kept: true,
            },
        };
        let part = asked.prepare().expect("a call that can be made");
        let mut state = RunState::default();
        let (thread, extent) = (Thread::from("go"), Extent::Chat);
        state.evolve(Fact::RunStarted { thread, extent, about: part.about });
        Self(Machine::new(part.setup, VecDeque::new(), 0, state, true))
    }

    /// Performs the next action: the kinds of its facts, and the events that they cause.
    fn perform(&mut self) -> (Vec<&'static str>, Vec<&'static str>) {
        let action = self.0.decide();
        let facts = self.0.perform(action);
        self.take_in(facts)
    }

    /// Takes in an input: the kinds of the facts that it makes, and the events that they cause.
    fn handle(&mut self, input: Input) -> (Vec<&'static str>, Vec<&'static str>) {
        let facts = self.0.handle(input);
        self.take_in(facts)
    }

    fn take_in(&mut self, facts: Vec<Fact>) -> (Vec<&'static str>, Vec<&'static str>) {
        let kinds = facts.iter().map(Fact::kind).collect();
        facts.into_iter().for_each(|fact| self.0.take_in(fact));
        (kinds, self.0.events.drain(..).map(|event| event.type_name()).collect())
    }

    /// The model begins its answer with this text.
    fn say(&mut self, text: &str) -> (Vec<&'static str>, Vec<&'static str>) {
        self.handle(Input::ModelEvent(Event::message_started()));
        self.handle(Input::ModelEvent(Event::text_delta(text)))
    }

    /// The model answers so, and its stream ends.
    fn answer(&mut self, parts: Vec<Part>, finish: FinishReason) -> Vec<&'static str> {
        let mut completed = Event::message_completed(Some(finish));
        if let Event::MessageCompleted { message, .. } = &mut completed {
            *message = Arc::new(Message::assistant_parts(parts));
        }
        assert_eq!(self.handle(Input::ModelEvent(completed)).0, [] as [&str; 0]);
        self.handle(Input::ModelEnded(Ok(()))).0
    }
}

#[test]
fn an_answer_is_a_fact_a_step_and_the_end() {
    let mut bench = Bench::calling();
    assert_eq!(bench.say("hi"), (vec![], vec!["text_delta"]));
    assert_eq!(bench.answer(vec![Part::text("hi")], FinishReason::Stop), ["assistant_completed"]);
    assert!(matches!(bench.0.decide(), Action::Finish(end) if end.reason == HaltReason::Completed));
    assert_eq!(bench.perform().0, ["completed"]);
    assert_eq!(bench.0.decide(), Action::Stop);
}

#[test]
fn a_call_is_announced_run_and_settled_before_the_model_is_called_again() {
    let mut bench = Bench::calling();
    let call = Part::tool_call(ToolCall::new("c0", "pay", "{}"));
    assert_eq!(bench.answer(vec![call], FinishReason::ToolCalls), ["assistant_completed"]);
    assert_eq!(bench.0.decide(), Action::Announce { call_id: "c0".to_owned(), attempt: 1 });
    assert_eq!(bench.perform().0, ["tool_scheduled"]);
    assert_eq!(bench.0.decide(), Action::RunTools);
    let call = Arc::new(ToolCall::new("c0", "pay", "{}"));
    bench.0.started(&call, true);
    assert!(bench.0.is_running());
    let settled = Settled::new(Ok(ToolOutcome::from("paid")), 1);
    let (facts, events) = bench.handle(Input::ToolFinished { call, settled });
    assert_eq!(facts, ["tool_completed"]);
    let place = |name: &str| events.iter().position(|event| *event == name);
    let order = ["tool_execution_started", "tool_execution_completed", "step_completed"].map(place);
    assert!(order.iter().all(Option::is_some) && order.is_sorted(), "{events:?}");
    assert!(!bench.0.is_running());
    assert_eq!(bench.0.decide(), Action::StartTurn);
}

#[test]
fn a_model_that_cannot_be_reached_ends_the_run_with_the_error_of_the_call() {
    let mut bench = Bench::calling();
    let down = Error::adapter(AdapterReason::Overloaded);
    assert_eq!(bench.handle(Input::ModelEnded(Err(down.clone()))), (vec![], vec![]));
    let refused = bench.0.decide();
    assert!(matches!(&refused, Action::Refuse(_, error) if *error == down), "{refused:?}");
    assert_eq!(bench.perform().0, ["failed"]);
    assert_eq!(bench.0.decide(), Action::Stop);
}

#[test]
fn an_answer_that_breaks_off_is_an_answer_with_an_error() {
    let mut bench = Bench::calling();
    bench.say("So");
    let down = Error::adapter(AdapterReason::Overloaded);
    let (facts, events) = bench.handle(Input::ModelEnded(Err(down)));
    assert_eq!((facts, events.contains(&"error")), (vec!["assistant_completed"], true));
    assert!(matches!(bench.0.decide(), Action::Finish(end) if end.reason == HaltReason::Error));
}

#[test]
fn a_stopped_run_keeps_what_was_said() {
    for limit in [false, true] {
        let mut bench = Bench::calling();
        bench.say("So");
        if limit {
            let breach = Breach::new(Limit::WallClock, 5u64, 6u64, BreachTime::MidStream);
            assert_eq!(bench.handle(Input::LimitReached(breach)).0, ["budget_exceeded"]);
            assert_eq!(bench.perform().0, ["failed"]);
        } else {
            let stopped = Input::Interrupted { reason: HaltReason::Cancelled, end: None };
            assert_eq!(bench.handle(stopped).0, [] as [&str; 0]);
            assert!(matches!(bench.0.decide(), Action::Cancel(_)));
            assert_eq!(bench.perform().0, ["cancelled"]);
        }
        assert_eq!(bench.0.decide(), Action::Stop);
        assert_eq!(bench.0.result(None).text(), "So");
    }
}

#[test]
fn a_call_that_was_in_flight_is_lost_with_its_process_and_made_again() {
    let mut bench = Bench::calling();
    assert_eq!(bench.handle(Input::Resumed(Fact::SEAM)).0, ["resumed"]);
    assert_eq!(bench.0.decide(), Action::LoseTurn);
    assert_eq!(bench.perform().0, ["turn_lost"]);
    assert_eq!(bench.0.decide(), Action::StartTurn);
    assert_eq!(bench.handle(Input::Said(Arc::new(Message::user("again")))).0, ["user_message"]);
    assert_eq!(bench.perform().0, ["turn_started"]);
}
