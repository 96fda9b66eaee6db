//! The loop's decisions, without a runtime, a clock or a provider: facts in, action out.

use std::sync::Arc;

use mynah_data::{
    Breach, BreachTime, Budget, FinishReason, HaltReason, Limit, Message, Part, Pricing, Response,
    ResponseBuilder, Thread, ToolCall, ToolMode, ToolOutcome, Wait,
};
use mynah_log::{About, End, Extent, Fact, Interruption, OnUncertain, Plan};
use mynah_step::Tool;
use serde_json::{Value, json};

use super::{OnUnknownTool, Policy, decide::Action, state::RunState};
use crate::context_policy::Token;

#[test]
fn all_calls_are_announced_before_any_runs() {
    let mut run = Run::chat();
    run.answer("", &["echo", "echo"], Some(FinishReason::ToolCalls));
    run.announce("c0", 1);
    run.announce("c1", 1);
    assert_eq!(run.next(), Action::RunTools);
}

#[test]
fn a_process_that_dies_between_two_announcements_has_run_nothing() {
    let mut run = Run::chat();
    run.answer("", &["once", "once"], Some(FinishReason::ToolCalls));
    run.announce("c0", 1);
    run.state.evolve(Fact::SEAM);
    run.announce("c1", 1);
    assert_eq!(run.next(), Action::RunTools);
}

#[test]
fn a_call_that_may_have_run_is_run_again_only_if_that_is_harmless_or_wanted() {
    let lost = |tool: &str, on_uncertain: OnUncertain| {
        let mut run = Run::chat();
        run.answer("", &[tool], Some(FinishReason::ToolCalls));
        run.announce("c0", 1);
        let mut seam = Fact::SEAM;
        if let Fact::Resumed { on_uncertain: told, .. } = &mut seam {
            *told = on_uncertain;
        }
        run.state.evolve(seam);
        run
    };
    let again = Action::Announce { call_id: "c0".to_owned(), attempt: 2 };
    assert_eq!(lost("echo", OnUncertain::Suspend).next(), again);
    assert_eq!(lost("once", OnUncertain::Rerun).next(), again);
    assert!(matches!(lost("once", OnUncertain::Fail).next(), Action::GiveUp(_)));
    let waiting = lost("once", OnUncertain::Suspend);
    assert_eq!(
        waiting.finish(),
        ("uncertain_tools".to_owned(), json!({"uncertain_tool_calls": ["c0"]}))
    );
}

#[test]
fn calls_that_are_in_flight_come_out_before_the_run_waits_for_lost_ones() {
    let mut run = Run::chat();
    run.answer("", &["once", "echo"], Some(FinishReason::ToolCalls));
    run.announce("c0", 1);
    run.announce("c1", 1);
    run.state.evolve(Fact::SEAM);
    run.announce("c1", 2);
    assert_eq!(run.next(), Action::RunTools);
    run.tool("c1", ToolOutcome::Ok(json!(1)));
    assert_eq!(run.finish().0, "uncertain_tools");
}

#[test]
fn a_lost_turn_is_started_again_and_counted() {
    let mut run = Run::chat();
    run.policy.budget = Some(Budget::new().max_turns(2));
    run.state.evolve(Fact::TurnStarted { turn: 1, prompt: None, input_tokens: 5 });
    assert_eq!(run.next(), Action::CallModel);
    run.state.evolve(Fact::SEAM);
    assert_eq!(run.next(), Action::LoseTurn);
    let lost = run.state.spent.lost(1);
    assert_eq!(lost, Fact::TurnLost { turn: 1, input_tokens: 5, cost: None, given_up: false });
    run.state.evolve(lost);
    assert_eq!(run.next(), Action::StartTurn);
    run.state.evolve(Fact::TurnStarted { turn: 1, prompt: None, input_tokens: 5 });
    run.state.evolve(Fact::SEAM);
    run.state.evolve(run.state.spent.lost(1));
    assert_eq!(run.next(), Action::Exceed(Breach::new(Limit::Turns, 2, 3, PRE)));
}

#[test]
fn a_run_whose_process_dies_again_and_again_is_suspended_until_it_is_resumed() {
    let mut run = Run::chat();
    run.policy.max_crashes = 2;
    for _ in 0..3 {
        assert_eq!(run.next(), Action::StartTurn);
        run.state.evolve(Fact::SEAM);
    }
    assert_eq!(run.finish(), ("crash_loop".to_owned(), json!({"crashes": 3})));
    run.end();
    run.state.evolve(Fact::SEAM);
    assert_eq!(run.next(), Action::StartTurn);
}

#[test]
fn a_run_that_was_given_back_or_branched_off_did_not_crash() {
    let mut run = Run::chat();
    run.policy.max_crashes = 1;
    for (after, next) in
        [(Interruption::Release, Action::LoseTurn), (Interruption::Branch, Action::CallModel)]
    {
        for _ in 0..3 {
            run.state.evolve(Fact::TurnStarted { turn: 1, prompt: None, input_tokens: 0 });
            let mut seam = Fact::SEAM;
            if let Fact::Resumed { after: told, .. } = &mut seam {
                *told = after;
            }
            run.state.evolve(seam);
            assert_eq!(run.next(), next);
        }
        run.state.evolve(run.state.spent.lost(1));
    }
}

#[test]
fn progress_forgives_crashes() {
    let mut run = Run::chat();
    run.policy.max_crashes = 1;
    run.state.evolve(Fact::SEAM);
    run.answer("", &["echo"], Some(FinishReason::ToolCalls));
    run.tool("c0", ToolOutcome::Ok(json!(1)));
    run.state.evolve(Fact::SEAM);
    assert_eq!(run.next(), Action::StartTurn);
}

#[test]
fn a_wish_for_tools_without_calls_asks_the_model_again() {
    let mut run = Run::chat();
    run.answer("", &[], Some(FinishReason::ToolCalls));
    assert_eq!(run.next(), Action::StartTurn);
}

#[test]
fn a_step_ends_after_its_tools_and_a_single_call_before_them() {
    let mut run = Run::with(Extent::Step);
    run.answer("", &["echo"], Some(FinishReason::ToolCalls));
    run.tool("c0", ToolOutcome::Ok(json!(1)));
    assert_eq!(run.finish(), ("completed".to_owned(), json!({})));
    let mut run = Run::with(Extent::Generate);
    run.answer("", &["echo"], Some(FinishReason::ToolCalls));
    assert_eq!(run.finish(), ("completed".to_owned(), json!({})));
}

#[test]
fn a_call_that_would_pass_a_limit_is_not_made() {
    // The prompt is "go", 7 bytes of schemas and 2 more: 3 tokens, at a dollar each.
    for (budget, breach) in [
        (Budget::new().max_input_tokens(2), Some(Breach::new(Limit::InputTokens, 2, 3, PRE))),
        (Budget::new().max_total_tokens(2), Some(Breach::new(Limit::TotalTokens, 2, 3, PRE))),
        (Budget::new().max_usd(2.5), Some(Breach::usd(2.5, 3.0, PRE))),
        (Budget::new().max_turns(0), Some(Breach::new(Limit::Turns, 0, 1, PRE))),
        (Budget::new().max_input_tokens(3).max_total_tokens(3).max_usd(3.0).max_turns(1), None),
    ] {
        let mut run = Run::priced(Pricing::new(1e6, 1e6));
        run.policy.schema_size = 7;
        run.policy.budget = Some(budget);
        assert_eq!(run.next(), breach.map_or(Action::StartTurn, Action::Exceed));
    }
}

#[test]
fn what_was_spent_is_a_fold_of_the_facts() {
    let mut run = Run::chat();
    run.policy.budget = Some(Budget::new().max_output_tokens(5));
    run.state.evolve(Fact::TurnStarted { turn: 1, prompt: None, input_tokens: 0 });
    // Nothing was reported: 16 characters and 2 bytes of arguments.
    run.answer("sixteen letters.", &["echo"], Some(FinishReason::ToolCalls));
    run.tool("c0", ToolOutcome::Ok(json!(1)));
    assert_eq!(run.next(), Action::Exceed(Breach::new(Limit::OutputTokens, 5, 6, PRE)));
    run.policy.budget = Some(Budget::new().max_turns(1).max_output_tokens(6));
    assert_eq!(run.next(), Action::Exceed(Breach::new(Limit::Turns, 1, 2, PRE)));
}

#[test]
fn a_call_is_spent_once_however_often_it_is_announced() {
    let mut run = Run::chat();
    run.policy.budget = Some(Budget::new().max_tool_calls(1));
    run.answer("", &["echo", "echo"], Some(FinishReason::ToolCalls));
    assert_eq!(run.next(), Action::Exceed(Breach::new(Limit::ToolCalls, 1, 2, PRE)));
    run.policy.budget = Some(Budget::new().max_tool_calls(2));
    run.announce("c0", 1);
    run.announce("c1", 1);
    run.state.evolve(Fact::SEAM);
    run.announce("c0", 2);
    run.announce("c1", 2);
    assert_eq!(run.next(), Action::RunTools);
}

#[test]
fn a_run_that_is_over_is_not_over_its_budget() {
    let mut run = Run::chat();
    run.policy.budget = Some(Budget::new().max_turns(0).max_output_tokens(0));
    run.answer("all that was asked", &[], Some(FinishReason::Stop));
    assert_eq!(run.finish().0, "completed");
}

#[test]
fn the_finalizing_call_is_asked_for_with_its_nudge() {
    let mut run = Run::chat();
    run.policy.finalize = Some("now".to_owned());
    run.answer("hi", &[], Some(FinishReason::Stop));
    // "go", "hi", "now" and 2 more.
    run.policy.budget = Some(Budget::new().max_input_tokens(3));
    assert!(matches!(run.next(), Action::Finalize { .. }));
    run.policy.budget = Some(Budget::new().max_input_tokens(2));
    assert_eq!(run.next(), Action::Exceed(Breach::new(Limit::InputTokens, 2, 3, PRE)));
}

#[test]
fn what_was_cut_off_stays_in_the_conversation_and_is_not_a_step() {
    let mut run = Run::chat();
    run.answer("", &["echo", "echo"], Some(FinishReason::ToolCalls));
    run.tool("c1", ToolOutcome::Ok(json!(1)));
    let breach = Breach::new(Limit::WallClock, 1, 2, BreachTime::MidStream);
    run.state.evolve(Fact::BudgetExceeded { breach, partial: None, cuts: Vec::new() });
    run.state.evolve(End::new(HaltReason::BudgetExceeded, Default::default()).into_fact());
    let result = run.state.chat_result();
    assert!(result.steps.is_empty());
    assert_eq!(result.final_response.map(|response| response.tool_calls().count()), Some(2));
    assert_eq!(result.metadata["repaired_tool_calls"], json!(["c0"]));
    assert_eq!(result.thread.messages.len(), 4);
}

/// A run is ended from outside though parts of it were removed.
#[test]
fn facts_of_which_any_are_missing_can_be_folded() {
    let answer = |ids: &[&str], plan: Plan| {
        let calls = ids.iter().map(|id| Part::tool_call(ToolCall::new(*id, "echo", "{}")));
        let mut response: Response = ResponseBuilder::new().response();
        response.message = Arc::new(Message::assistant_parts(calls));
        let (response, cuts) = (Box::new(response), Vec::new());
        Fact::AssistantCompleted { response, plan, cuts, duration_ms: None, first_token_ms: None }
    };
    let planned = |run: &[&str], manual: &[&str]| {
        let ids = |ids: &[&str]| ids.iter().map(|id| (*id).to_owned()).collect();
        Plan::Tools { run: ids(run), manual: ids(manual), denied: Vec::new() }
    };
    let scheduled = |id: &str, attempt| {
        let call_id = id.to_owned();
        Fact::ToolScheduled { call_id, attempt, call: None }
    };
    let completed = |id: &str, outcome: ToolOutcome| {
        let (call_id, content) = (id.to_owned(), "x".to_owned());
        Fact::ToolCompleted { call_id, attempt: 1, outcome, content, duration_ms: None }
    };
    let resumed = |text: Option<&str>, approve: &[&str]| {
        let mut fact = Fact::SEAM;
        if let Fact::Resumed { message, approved, .. } = &mut fact {
            *message = text.map(|text| Arc::new(Message::user(text)));
            approved.extend(approve.iter().map(|id| (*id).to_owned()));
        }
        fact
    };
    let waits = |reason| Fact::Suspended(End::new(reason, Default::default()));
    let breach = Breach::new(Limit::Turns, 1, 2, PRE);
    let asks = ToolOutcome::ask_and_continue("Which?", Default::default(), json!(1));
    let later = ToolOutcome::Later { wait: Wait::UntilMs(5), state: None };
    let facts = [
        answer(&["c0", "c1", "c2"], planned(&["c0", "c1"], &["c2"])),
        scheduled("c0", 1),
        scheduled("c1", 1),
        completed("c0", later),
        scheduled("c0", 2),
        completed("c0", asks),
        Fact::SEAM,
        completed("c1", ToolOutcome::Ok(json!(1))),
        waits(HaltReason::AskUser),
        resumed(Some("This."), &[]),
        completed("c0", ToolOutcome::Ok(json!(1))),
        waits(HaltReason::ManualToolCalls),
        resumed(None, &["c2"]),
        Fact::BudgetExceeded { breach, partial: None, cuts: Vec::new() },
        answer(&["c0"], Plan::Continue),
    ];
    for present in 0..1_u32 << facts.len() {
        let mut run = Run::chat();
        let of = facts.iter().enumerate().filter(|(place, _)| present & 1 << place != 0);
        of.for_each(|(_, fact)| run.state.evolve(fact.clone()));
        let open = run.state.left_open();
        assert!(open.len() <= 3, "{present:b}");
    }
}

const PRE: BreachTime = BreachTime::PreCall;

/// A run without a driver.
struct Run {
    state: RunState,
    policy: Policy,
}

impl Run {
    fn chat() -> Self {
        Self::with(Extent::Chat)
    }

    fn priced(pricing: Pricing) -> Self {
        Self::about(Extent::Chat, Some(Box::new(About::of_price(pricing))))
    }

    fn with(extent: Extent) -> Self {
        Self::about(extent, None)
    }

    fn about(extent: Extent, about: Option<Box<About>>) -> Self {
        let mut state = RunState::default();
        state.evolve(Fact::RunStarted { thread: Thread::from("go"), extent, about });
        let policy = Policy {
            mode: ToolMode::Auto,
            max_turns: 8,
            budget: None,
            halt_when: None,
            finalize: None,
            on_unknown_tool: OnUnknownTool::Fail,
            context: None,
            token: Token::of(""),
            budget_note: false,
            approval: None,
            max_crashes: 10,
            tools: [
                Tool::new("echo", "", json!({})).idempotent(1),
                Tool::new("once", "", json!({})),
            ]
            .into(),
            schema_size: 0,
        };
        Self { state, policy }
    }

    /// Announces an attempt, which is what comes next.
    fn announce(&mut self, id: &str, attempt: u32) {
        let call_id = id.to_owned();
        assert_eq!(self.next(), Action::Announce { call_id: call_id.clone(), attempt });
        self.state.evolve(Fact::ToolScheduled { call_id, attempt, call: None });
    }

    fn next(&self) -> Action {
        self.state.decide(&self.policy)
    }

    /// The reason and metadata of the end that comes next.
    fn finish(&self) -> (String, Value) {
        match self.next() {
            Action::Finish(end) => (end.reason.as_str().to_owned(), Value::Object(end.metadata)),
            other => panic!("expected the end, got {other:?}"),
        }
    }

    fn end(&mut self) {
        match self.next() {
            Action::Finish(end) => self.state.evolve(end.into_fact()),
            other => panic!("expected the end, got {other:?}"),
        }
    }

    fn answer(&mut self, text: &str, calls: &[&str], finish_reason: Option<FinishReason>) {
        let calls = calls
            .iter()
            .enumerate()
            .map(|(n, name)| Part::tool_call(ToolCall::new(format!("c{n}"), *name, "{}")));
        let message = Message::assistant_parts([Part::text(text)].into_iter().chain(calls));
        let mut response: Response = ResponseBuilder::new().response();
        response.message = Arc::new(message);
        response.finish_reason = finish_reason;
        let plan = self.policy.plan(&self.state, &response, false);
        self.state.evolve(Fact::AssistantCompleted {
            response: Box::new(response),
            plan,
            cuts: Vec::new(),
            duration_ms: None,
            first_token_ms: None,
        });
    }

    fn tool(&mut self, id: &str, outcome: ToolOutcome) {
        let call_id = id.to_owned();
        self.state.evolve(Fact::ToolCompleted {
            call_id,
            attempt: 1,
            outcome,
            content: "x".to_owned(),
            duration_ms: None,
        });
    }
}
