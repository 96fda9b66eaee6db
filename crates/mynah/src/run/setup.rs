//! What a run is made of.

use std::{sync::Arc, time::Duration};

use mynah_data::{Event, Message, Messages, Request, RunId, Thread};
use mynah_log::{About, Extent, Fact};
use mynah_step::{
    Adapter, MetricsSink, ModelCall, RetryPolicy, ToolContext, ToolExecutor, ToolLimits,
    ToolResultEncoder, World,
};

use super::{OnToolError, Policy};
use crate::{in_flight::InFlight, mailbox::Reader, replay::Rerun, stream::Filter};

/// Sees every event of the model, regardless of filters.
pub(crate) type Observer = Arc<dyn Fn(&Event) + Send + Sync>;

/// Everything a run needs that does not change while one engine has it.
pub(crate) struct Setup {
    pub(crate) policy: Policy,
    pub(crate) adapter: Arc<dyn Adapter>,
    /// The request without its messages, as all model calls share it.
    pub(crate) asked: Arc<(Request, ModelCall)>,
    /// The same for the call that formats the answer.
    pub(crate) asked_last: Option<Arc<(Request, ModelCall)>>,
    pub(crate) retry: Arc<RetryPolicy>,
    pub(crate) world: Arc<dyn World>,
    pub(crate) executor: Arc<dyn ToolExecutor>,
    pub(crate) encoder: Arc<dyn ToolResultEncoder>,
    pub(crate) on_tool_error: OnToolError,
    /// What every tool gets; each with its own call.
    pub(crate) tool_context: ToolContext,
    pub(crate) tool_limits: ToolLimits,
    pub(crate) max_concurrency: usize,
    pub(crate) deadline: Option<Duration>,
    /// How long a recorded chat waits in its process for a time.
    pub(crate) park_after: Duration,
    pub(crate) filter: Filter,
    pub(crate) on_event: Option<Observer>,
    /// Where the answers in flight are shared.
    pub(crate) in_flight: Option<InFlight>,
    /// Whether they are kept in the log.
    pub(crate) durable_events: bool,
    pub(crate) metrics: Option<Arc<dyn MetricsSink>>,
    /// The tools that a replay runs again.
    pub(crate) rerun: Rerun,
    pub(crate) require_raw_response_hash: bool,
}

impl Setup {
    pub(crate) fn request(&self) -> &Request {
        &self.asked.0
    }

    pub(crate) fn call(&self) -> &ModelCall {
        &self.asked.1
    }

    pub(crate) fn set_request_id(&mut self, id: &str) {
        self.tool_context.request_id = Arc::from(id);
        self.change_calls(|call| id.clone_into(&mut call.request_id));
    }

    /// The run is recorded under this id.
    pub(crate) fn set_run_id(&mut self, id: &RunId) {
        self.change_calls(|call| call.run_id = Some(id.clone()));
    }

    fn change_calls(&mut self, change: impl Fn(&mut ModelCall)) {
        let asked = [Some(&mut self.asked), self.asked_last.as_mut()];
        asked.into_iter().flatten().for_each(|asked| change(&mut Arc::make_mut(asked).1));
    }
}

/// How a run begins.
pub(crate) struct RunStart {
    /// The conversation that earlier runs hold.
    pub(crate) before: Messages,
    /// The new messages.
    pub(crate) thread: Thread,
    /// How far it goes.
    pub(crate) extent: Extent,
    /// What it begins with; none if it is not recorded.
    pub(crate) about: Option<Box<About>>,
}

/// How a run continues.
#[derive(Default)]
pub(crate) struct Resumption {
    /// The `resumed` fact with which it continues; none if its end is recorded already.
    pub(crate) fact: Option<Box<Fact>>,
    /// What the user says to a run that does not wait.
    pub(crate) message: Option<Arc<Message>>,
    /// How long earlier processes of the run were active.
    pub(crate) active: Duration,
    /// Messages that arrive while the run is performed.
    pub(crate) mailbox: Option<Reader>,
    /// Whether the time that the run waited for has come, even if its own clock is behind.
    pub(crate) woken: bool,
}
