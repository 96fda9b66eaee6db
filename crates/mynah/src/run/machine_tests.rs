//! The machine, without a runtime, a clock or a provider: inputs in; facts, events and the next action out.

use std::{collections::VecDeque, sync::Arc};

use mynah_adapters::scripted::Scripted;
use mynah_data::{
    AdapterReason, Approval, Breach, BreachTime, Budget, Error, Event, FinishReason, HaltReason,
    Limit, Message, Metadata, Part, Response, ResponseFormat, Thread, ToolCall, ToolOutcome, Wait,
};
use mynah_log::{Effect, End, Extent, Fact, Inside};
use mynah_step::{Settled, Tool};
use serde_json::json;

use super::{decide::Action, input::Input, machine::Machine, state::RunState};
use crate::{
    ContextPolicy, Engine, Options,
    prepare::{CallOrigin, CallPlan},
};

/// A machine, and what it did.
struct Bench(Machine);

impl Bench {
    /// A chat whose model is called.
    fn calling() -> Self {
        Self::calling_with(|_| {}, Options::new())
    }

    /// The same, with a tool `pay` and options like these.
    fn calling_with(tool: impl FnOnce(&mut Tool), options: Options) -> Self {
        let mut bench = Self::new(tool, options);
        assert_eq!(bench.perform(), (vec!["turn_started"], vec![]));
        assert_eq!(bench.0.decide(), Action::CallModel);
        bench.0.begin_hearing();
        bench
    }

    /// A chat of many messages whose model is asked for a summary of them.
    fn summarising() -> Self {
        let long = (0..60).fold(Thread::new(), |thread, day| {
            thread.with_user(format!("Day {day}: {}", "rain ".repeat(40))).with_assistant("Noted.")
        });
        let policy = ContextPolicy::new(1_500).keep_turns(1).summarise(true);
        let options = Options::new().context_policy(policy);
        let mut bench = Self::of(long.with_user("go"), |_| {}, options);
        assert!(matches!(bench.0.decide(), Action::StartSummary(_)));
        assert_eq!(bench.perform(), (vec!["side_effect"], vec![]));
        assert!(matches!(bench.0.decide(), Action::Summarise(_)));
        bench
    }

    fn new(change: impl FnOnce(&mut Tool), options: Options) -> Self {
        Self::of(Thread::from("go"), change, options)
    }

    fn of(thread: Thread, change: impl FnOnce(&mut Tool), options: Options) -> Self {
        let mut pay = Tool::new("pay", "", json!({})).handler(async |_, _| "paid");
        change(&mut pay);
        let engine = Engine::new(Scripted::default()).tool(pay);
        let asked = CallPlan {
            engine: &engine,
            conversation: thread.clone(),
            given: None,
            options,
            extent: Extent::Chat,
            past: CallOrigin::New {
                session: None,
                request_id: Some("r".to_owned()),
                is_kept: true,
            },
        };
        let part = asked.prepare().expect("a call that can be made");
        let mut state = RunState::default();
        state.evolve(Fact::RunStarted { thread, extent: Extent::Chat, about: part.about });
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
        let kinds = facts.iter().map(|fact| fact.kind().as_str()).collect();
        facts.into_iter().for_each(|fact| self.0.take_in(fact));
        (kinds, self.0.events.drain(..).map(|event| event.type_name()).collect())
    }

    /// The model begins its answer with this text.
    fn say(&mut self, text: &str) -> (Vec<&'static str>, Vec<&'static str>) {
        self.handle(Input::ModelEvent(Event::message_started()));
        self.handle(Input::ModelEvent(Event::text_delta(text)))
    }

    fn call(&mut self, ids: &[&str]) {
        let calls = ids.iter().map(|id| Part::tool_call(ToolCall::new(*id, "pay", "{}")));
        let answered = self.answer(calls.collect(), FinishReason::ToolCalls);
        assert_eq!(answered, ["assistant_completed"]);
    }

    /// The call that comes next is announced and run, and has this outcome.
    fn settle(&mut self, outcome: ToolOutcome) -> Vec<&'static str> {
        assert_eq!(self.perform().0, ["tool_scheduled"]);
        let call = self.0.next_to_start().expect("a call to start");
        self.0.started(&call, true);
        let settled = Settled::new(Ok(outcome), self.0.state.attempt_of(&call.id).number);
        self.handle(Input::ToolFinished { call, settled }).0
    }

    fn finishes(&self) -> Option<HaltReason> {
        match self.0.decide() {
            Action::Finish(end) => Some(end.reason),
            _ => None,
        }
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
    assert_eq!(bench.handle(Input::Resumed(Box::new(Fact::SEAM))).0, ["resumed"]);
    assert_eq!(bench.0.decide(), Action::LoseTurn);
    assert_eq!(bench.perform().0, ["turn_lost"]);
    assert_eq!(bench.0.decide(), Action::StartTurn);
    assert_eq!(bench.handle(Input::Said(Arc::new(Message::user("again")))).0, ["user_message"]);
    assert_eq!(bench.perform().0, ["turn_started"]);
}

/// The fact that continues a run which waits.
fn resumed(
    change: impl FnOnce(&mut Vec<String>, &mut Vec<(String, String)>, &mut Option<Arc<Message>>),
) -> Fact {
    let mut fact = Fact::SEAM;
    if let Fact::Resumed { approved, edited, message, .. } = &mut fact {
        change(approved, edited, message);
    }
    fact
}

#[test]
fn a_call_that_needs_approval_waits_and_runs_with_the_edited_arguments() {
    let ask = |tool: &mut Tool| *tool = tool.clone().approval(Approval::Ask);
    let mut bench = Bench::calling_with(ask, Options::new());
    bench.call(&["c0"]);
    assert_eq!(bench.finishes(), Some(HaltReason::ManualToolCalls));
    assert_eq!(bench.perform().0, ["suspended"]);
    assert_eq!(bench.0.decide(), Action::Stop);
    let approved = resumed(|approved, edited, _| {
        approved.push("c0".to_owned());
        edited.push(("c0".to_owned(), r#"{"eur":8}"#.to_owned()));
    });
    assert_eq!(bench.handle(Input::Resumed(Box::new(approved))).0, ["resumed"]);
    let call = bench.0.state.call("c0").map(|call| call.raw_arguments.clone());
    assert_eq!(call.as_deref(), Some(r#"{"eur":8}"#));
    assert_eq!(bench.settle(ToolOutcome::from("paid")), ["tool_completed"]);
    assert_eq!(bench.0.decide(), Action::StartTurn);
}

#[test]
fn a_tool_that_asks_and_continues_is_announced_again_with_the_answer() {
    let mut bench = Bench::calling();
    bench.call(&["c0"]);
    let asks = ToolOutcome::ask_and_continue("Which card?", Metadata::new(), json!({"step": 2}));
    assert_eq!(bench.settle(asks), ["tool_completed"]);
    assert_eq!(bench.finishes(), Some(HaltReason::AskUser));
    assert_eq!(bench.perform().0, ["suspended"]);
    let answer = resumed(|_, _, message| *message = Some(Arc::new(Message::user("The blue one."))));
    assert_eq!(bench.handle(Input::Resumed(Box::new(answer))).0, ["resumed"]);
    assert_eq!(bench.0.decide(), Action::Announce { call_id: "c0".to_owned(), attempt: 2 });
    let continued = bench.0.state.continuation_of("c0").expect("it continues");
    assert_eq!(
        (&continued.state, continued.answer.as_deref()),
        (&json!({"step": 2}), Some("The blue one."))
    );
}

#[test]
fn a_call_that_was_in_flight_when_the_process_died_waits_for_a_decision() {
    let mut bench = Bench::calling();
    bench.call(&["c0", "c1"]);
    assert_eq!(bench.perform().0, ["tool_scheduled"]);
    assert_eq!(bench.perform().0, ["tool_scheduled"]);
    for id in ["c0", "c1"] {
        let call = bench.0.next_to_start().expect("a call to start");
        assert_eq!(call.id, id);
        bench.0.started(&call, true);
    }
    let call = bench.0.state.call("c1").cloned().expect("it is planned");
    let settled = Settled::new(Ok(ToolOutcome::from("paid")), 1);
    assert_eq!(bench.handle(Input::ToolFinished { call, settled }).0, ["tool_completed"]);
    assert_eq!(bench.handle(Input::Resumed(Box::new(Fact::SEAM))).0, ["resumed"]);
    assert_eq!(bench.finishes(), Some(HaltReason::UncertainTools));
    let lost: Vec<_> =
        bench.0.state.left_open().into_iter().map(|(call, _)| call.id.clone()).collect();
    assert_eq!(lost, ["c0"]);
}

#[test]
fn a_budget_that_an_answer_passes_ends_the_run_with_what_was_said() {
    let budget = Budget::new().max_output_tokens(2);
    let mut bench = Bench::calling_with(|_| {}, Options::new().budget(budget));
    let (facts, events) = bench.say("far more words than the budget allows for an answer");
    assert_eq!((facts, events), (vec!["budget_exceeded"], vec!["text_delta"]));
    assert_eq!(bench.perform().0, ["failed"]);
    assert!(bench.0.result(None).text().starts_with("far more words"));
}

#[test]
fn a_finalizing_call_gives_the_answer_its_form_and_its_failure_ends_the_chat_as_it_was() {
    let schema = ResponseFormat::json_schema("p", json!({"type": "object"}));
    let options = || Options::new().response_format(schema.clone()).structured_finalize(true);
    for fails in [false, true] {
        let mut bench = Bench::calling_with(|_| {}, options());
        bench.answer(vec![Part::text("It is blue.")], FinishReason::Stop);
        assert_eq!(bench.perform().0, ["finalize_started"]);
        assert_eq!(bench.perform().0, ["turn_started"]);
        assert_eq!(bench.0.decide(), Action::CallModel);
        bench.0.begin_hearing();
        if fails {
            let down = Error::adapter(AdapterReason::Overloaded);
            assert_eq!(bench.handle(Input::ModelEnded(Err(down))).0, ["finalize_failed"]);
        } else {
            assert_eq!(
                bench.answer(vec![Part::text("{}")], FinishReason::Stop),
                ["assistant_completed"]
            );
        }
        assert_eq!(bench.finishes(), Some(HaltReason::Completed));
        bench.perform();
        assert_eq!(bench.0.result(None).text(), if fails { "It is blue." } else { "{}" });
    }
}

#[test]
fn a_recorded_fact_is_folded_and_makes_no_other() {
    let mut bench = Bench::calling();
    bench.call(&["c0"]);
    assert_eq!(bench.perform().0, ["tool_scheduled"]);
    let inside = Some(Inside { call_id: "c0".to_owned(), attempt: 1 });
    let effect = Effect::Done(json!(7));
    let drawn = Fact::SideEffect { inside, name: "random".to_owned(), ahead: 0, effect };
    assert_eq!(bench.handle(Input::Recorded(Box::new(drawn))), (vec![], vec![]));
    assert_eq!(bench.0.decide(), Action::RunTools);
}

#[test]
fn a_call_that_waits_for_a_time_is_announced_again_when_it_has_come() {
    let mut bench = Bench::calling();
    bench.call(&["c0"]);
    let later = ToolOutcome::Later { wait: Wait::UntilMs(5), state: None };
    assert_eq!(bench.settle(later), ["tool_completed"]);
    assert_eq!(bench.0.decide(), Action::Sleep(5));
    let woke = Input::Woke(vec!["c0".to_owned()]);
    assert_eq!(bench.handle(woke), (vec!["tool_scheduled"], vec![]));
    assert_eq!(bench.0.decide(), Action::RunTools);
    assert_eq!(bench.0.state.attempt_of("c0").number, 2);
    assert_eq!(bench.0.next_to_start().map(|call| call.id.clone()).as_deref(), Some("c0"));
}

#[test]
fn a_run_that_is_parked_ends_by_a_decision_and_continues_where_it_was() {
    let mut asleep = Bench::calling();
    asleep.call(&["c0"]);
    asleep.settle(ToolOutcome::Later { wait: Wait::UntilMs(5), state: None });
    // A model call that is made again later waits too.
    for mut bench in [asleep, Bench::calling()] {
        let before = bench.0.decide();
        let end = End::sleeping(5);
        assert_eq!(bench.handle(Input::Parked(end.clone())), (vec![], vec![]));
        assert!(bench.0.is_over() && !bench.0.is_hearing());
        assert_eq!(bench.0.decide(), Action::Finish(end));
        assert_eq!(bench.perform(), (vec!["suspended"], vec![]));
        assert_eq!(bench.0.decide(), Action::Stop);
        assert_eq!(bench.handle(Input::Resumed(Box::new(Fact::SEAM))).0, ["resumed"]);
        assert_eq!(bench.0.decide(), before);
    }
}

#[test]
fn a_summary_shortens_the_conversation_and_its_failure_does_too() {
    for fails in [false, true] {
        let mut bench = Bench::summarising();
        let Action::Summarise(view) = bench.0.decide() else { panic!("a summary is awaited") };
        let mut summary = Response::new(Message::assistant("It rained."));
        if fails {
            let down = Error::adapter(AdapterReason::Overloaded);
            summary.metadata.insert("error".to_owned(), down.to_value());
        }
        let summary = Some(Box::new(summary));
        let handled = bench.handle(Input::Summarised { view: view.clone(), summary });
        assert_eq!(handled, (vec!["context_truncated"], vec![]));
        let shown = bench.0.state.view.of(&bench.0.state.thread.messages);
        assert_eq!(shown.iter().any(|message| message.text().contains("It rained.")), !fails);
        assert_eq!(bench.0.state.view.dropped, view.dropped);
        assert_eq!(bench.0.decide(), Action::StartTurn);
    }
}

#[test]
fn a_summary_that_is_lost_is_counted_and_asked_for_again() {
    let mut bench = Bench::summarising();
    assert_eq!(bench.handle(Input::SummaryLost), (vec!["turn_lost"], vec![]));
    assert!(matches!(bench.0.decide(), Action::StartSummary(_)));
    assert_eq!(bench.handle(Input::SummaryLost), (vec![], vec![]));
}

#[test]
fn the_end_of_the_records_changes_nothing() {
    let mut bench = Bench::calling();
    bench.say("So");
    assert_eq!(bench.handle(Input::RecordsEnded), (vec![], vec![]));
    assert_eq!(bench.0.decide(), Action::CallModel);
    assert!(bench.0.is_hearing() && !bench.0.is_over());
}
