//! Runs to fill logs with.

use std::sync::Arc;

use mynah_data::{HaltReason, Message, Metadata, Response, RunId, Thread, ToolOutcome};
use serde_json::json;

use crate::{
    About, Append, Chain, End, Extent, Fact, Head, Parent, Plan, Record, Seal, SessionLink, Totals,
};

/// A run as it grows, record by record, with made-up times and salts.
#[derive(Clone, Debug)]
pub struct Sample {
    chain: Chain,
    totals: Totals,
    time: i64,
    new: Vec<Record>,
    /// Where the records end that were handed out.
    given: Option<Head>,
}

impl Sample {
    /// A run that began at this time, with its first record.
    pub fn new(run: impl Into<RunId>, started: i64) -> Self {
        Self::about(run, started, None)
    }

    /// A run that is a turn of this session, or a branch of one.
    pub fn of_session(
        run: impl Into<RunId>,
        started: i64,
        session: &str,
        parent: Option<Parent>,
    ) -> Self {
        let link = SessionLink { id: Some(session.to_owned()), ..SessionLink::default() };
        let about = About { session: Some(link), parent, ..About::default() };
        Self::about(run, started, Some(Box::new(about)))
    }

    pub(crate) fn about(run: impl Into<RunId>, time: i64, about: Option<Box<About>>) -> Self {
        let (chain, totals) = (Chain::new(run), Totals::default());
        let sample = Self { chain, totals, time, new: Vec::new(), given: None };
        let thread = Thread::from("hi");
        sample.with(Fact::RunStarted { thread, extent: Extent::Chat, about })
    }

    /// The run's id.
    pub fn run_id(&self) -> &str {
        self.chain.run_id()
    }

    /// Where the run ends, with what was not handed out yet.
    ///
    /// # Panics
    /// Never: a sample has at least one record.
    pub fn head(&self) -> Head {
        self.chain.head().expect("a run with records")
    }

    /// What the facts add up to.
    pub fn totals(&self) -> &Totals {
        &self.totals
    }

    /// When the last record was made.
    pub fn time(&self) -> i64 {
        self.time - 1
    }

    /// One more record.
    ///
    /// # Panics
    /// On a fact that cannot be encoded.
    pub fn with(mut self, fact: Fact) -> Self {
        let salt = self.time.unsigned_abs().to_be_bytes().repeat(2).try_into().unwrap_or([7; 16]);
        let record = self.chain.append(self.time, salt, &fact).expect("a fact that can be encoded");
        self.totals.add(record.adds());
        self.time += 1;
        self.new.push(record);
        self
    }

    /// One more record: an answer of this model.
    pub(crate) fn answered_by(self, model: &str) -> Self {
        let mut response = Response::new(Message::assistant("hi"));
        response.model = Some(model.to_owned());
        self.with(Fact::AssistantCompleted {
            response: Box::new(response),
            plan: Plan::Nothing,
            cuts: Vec::new(),
            duration_ms: None,
            first_token_ms: None,
        })
    }

    /// Five more records: the model asks for a tool, and gets what it gave.
    pub fn tool_turn(self) -> Self {
        let id = format!("c{}", self.head().seq);
        let mut response = Response::new(Message::assistant(format!("I ask {id}")));
        response.model = Some("gpt-4.1-mini".to_owned());
        response.usage.input_tokens = Some(100);
        response.usage.output_tokens = Some(10);
        response.usage.total_cost = Some(0.1);
        let plan = Plan::Tools { run: vec![id.clone()], manual: Vec::new(), denied: Vec::new() };
        let outcome = ToolOutcome::Ok(json!({"t": 21}));
        let content = r#"{"t":21}"#.to_owned();
        self.with(Fact::TurnStarted { turn: 1, prompt: None, input_tokens: 0 })
            .with(Fact::AssistantCompleted {
                response: Box::new(response),
                plan,
                cuts: Vec::new(),
                duration_ms: None,
                first_token_ms: None,
            })
            .with(Fact::ToolScheduled { call_id: id.clone(), attempt: 1, call: None })
            .with(Fact::ToolCompleted {
                call_id: id,
                attempt: 1,
                outcome,
                content,
                duration_ms: None,
            })
            .user("go on")
    }

    /// One more record: a message from outside.
    pub fn user(self, text: &str) -> Self {
        self.with(Fact::UserMessage { message: Arc::new(Message::user(text)) })
    }

    /// One more record: the run stops so.
    pub fn stopped(self, reason: HaltReason) -> Self {
        self.with(End::new(reason, Metadata::new()).into_fact())
    }

    /// Two more records: the run is completed and gets its seal.
    pub fn sealed(self) -> Self {
        self.stopped(HaltReason::Completed).seal()
    }

    /// One more record: the seal.
    pub fn seal(self) -> Self {
        let seal = Seal::new(self.chain.root(), self.totals.clone());
        self.with(Fact::Sealed(seal))
    }

    /// The records since the last time.
    pub fn take(&mut self) -> Vec<Record> {
        self.given = self.chain.head();
        std::mem::take(&mut self.new)
    }

    /// The records since the last time, after those handed out before.
    pub fn batch(&mut self) -> Append {
        let expected = self.given;
        let run = self.chain.run_id().clone();
        Append::new(run, expected, self.take())
    }
}
