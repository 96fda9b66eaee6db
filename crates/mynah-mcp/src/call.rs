//! One call of a server's tool, from its first request to its result.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use mynah_data::ToolOutcome;
use mynah_step::{BoxFuture, ToolContext, ToolProgress};
use rmcp::{
    Peer, RoleClient, ServiceError,
    model::{
        CallToolRequest, CallToolRequestParams, CallToolResult, CancelTaskParams, ClientRequest,
        DetailedTask, ElicitResult, GetTaskParams, InputRequest, InputRequests, ServerResult,
        TaskPayload, UpdateTaskParams,
    },
    service::PeerRequestOptions,
};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use tokio::time::{Instant, sleep};

use crate::{ListedTool, McpError, client::Client, content, elicit, flight::Note};

/// The handler of a tool.
pub(crate) fn handler(
    client: &Arc<Client>,
    tool: &ListedTool,
) -> impl Fn(Value, ToolContext) -> BoxFuture<ToolOutcome> + Send + Sync + 'static {
    let (client, tool) = (Arc::clone(client), Arc::new(tool.clone()));
    move |arguments, context| {
        let call =
            Call { client: Arc::clone(&client), tool: Arc::clone(&tool), arguments, context };
        Box::pin(async move {
            match call.run().await {
                Ok(outcome) => outcome,
                Err(error) => call.client.explain(error).await.into(),
            }
        })
    }
}

/// The state with which a call continues after a question or a task. It is in the run's record.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
struct Pending {
    /// The questions that are not answered yet, each under the server's name for it.
    questions: Vec<(String, Value)>,
    answers: BTreeMap<String, Value>,
    #[serde(skip_serializing_if = "Option::is_none")]
    request_state: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    task: Option<String>,
    /// The answers that a server with a session gets when it asks while it works, in the order of its questions.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    in_order: Vec<Value>,
    /// Whether the call must be made while no other one is in flight.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    alone: bool,
    asked: u32,
}

/// The key of a question that a server with a session asks while it works.
const WHILE_IT_WORKS: &str = "";

struct Call {
    client: Arc<Client>,
    tool: Arc<ListedTool>,
    arguments: Value,
    context: ToolContext,
}

#[expect(clippy::large_enum_variant, reason = "it is taken apart at once")]
enum Answer {
    Result(ServerResult),
    /// The server asks a person while it works. The call is abandoned: it is made again with the answer.
    Question(Value),
    /// The server asks for several calls at once. The call is abandoned: it is made again alone.
    Again,
}

impl Call {
    async fn run(&self) -> Result<ToolOutcome, McpError> {
        let mut pending = Pending::default();
        if let Some(continued) = self.context.continuation() {
            pending = serde_json::from_value(continued.state.clone()).map_err(|error| {
                self.broken(format!("the state of the call is unreadable: {error}"))
            })?;
            if let Some(asked) = self.take_answer(&mut pending, continued.answer.as_deref()) {
                return Ok(asked);
            }
        }
        let peer = self.client.peer(&self.tool).await?;
        let outcome = match pending.task.clone() {
            None => self.request(&peer, pending).await?,
            Some(task) => {
                if !pending.answers.is_empty() {
                    let answers = std::mem::take(&mut pending.answers);
                    let update = peer.update_task(UpdateTaskParams::new(&*task, answers));
                    self.in_time("tasks/update", update).await?;
                }
                self.follow(&peer, task, Duration::ZERO, pending).await?
            }
        };
        self.client.answered().await;
        Ok(outcome)
    }

    /// Takes in what the person answered to the first question. Returns the next one, or the same if the answer is none.
    fn take_answer(&self, pending: &mut Pending, answer: Option<&str>) -> Option<ToolOutcome> {
        let (key, question) = pending.questions.first()?.clone();
        let problem = match answer.map(|answer| elicit::answered(&question, answer)) {
            Some(Ok(result)) => {
                pending.questions.remove(0);
                match key.as_str() {
                    WHILE_IT_WORKS => pending.in_order.push(result),
                    _ => _ = pending.answers.insert(key, result),
                }
                pending.questions.first()?;
                None
            }
            Some(Err(problem)) => Some(problem),
            None => None,
        };
        Some(self.ask(pending, problem.as_deref()))
    }

    fn ask(&self, pending: &Pending, problem: Option<&str>) -> ToolOutcome {
        let question = pending.questions.first().map(|(_, question)| question.clone());
        let state = serde_json::json!(pending);
        elicit::ask(&self.client.server.name, &question.unwrap_or_default(), problem, state)
    }

    /// Requests the call, with the answers that are there.
    async fn request(
        &self,
        peer: &Peer<RoleClient>,
        mut pending: Pending,
    ) -> Result<ToolOutcome, McpError> {
        loop {
            let mut params = CallToolRequestParams::new(self.tool.name.clone());
            params.arguments = self.arguments.as_object().cloned();
            params.request_state = pending.request_state.take();
            let answers = std::mem::take(&mut pending.answers);
            params.input_responses = (!answers.is_empty()).then_some(answers);
            match self.answer(peer, params, &pending).await? {
                Answer::Again => pending.alone = true,
                Answer::Question(question) => {
                    pending.questions = vec![(WHILE_IT_WORKS.to_owned(), question)];
                    self.count(&mut pending, 1)?;
                    return Ok(self.ask(&pending, None));
                }
                Answer::Result(ServerResult::CallToolResult(result)) => {
                    return Ok(self.outcome(result));
                }
                Answer::Result(ServerResult::InputRequiredResult(required)) => {
                    pending.request_state = required.request_state;
                    let requests = required.input_requests.unwrap_or_default();
                    self.count(&mut pending, requests.len().max(1))?;
                    if !requests.is_empty() {
                        pending.questions = self.questions(requests)?;
                        return Ok(self.ask(&pending, None));
                    }
                    // It wants to be asked again, with its state and nothing else.
                    sleep(Duration::from_millis(100 << pending.asked.min(6))).await;
                }
                Answer::Result(ServerResult::CreateTaskResult(created)) => {
                    let pause = pause_of(created.task.poll_interval_ms);
                    let task = created.task.task_id;
                    pending.task = Some(task.clone());
                    return self.follow(peer, task, pause, pending).await;
                }
                Answer::Result(_) => {
                    return Err(
                        self.broken("the answer to tools/call is something else".to_owned())
                    );
                }
            }
        }
    }

    /// Counts questions, which a server may not ask for ever.
    fn count(&self, pending: &mut Pending, questions: usize) -> Result<(), McpError> {
        let limit = self.client.server.limits.questions;
        pending.asked = pending.asked.saturating_add(u32::try_from(questions).unwrap_or(u32::MAX));
        let (server, what) = (self.client.server.name.clone(), "the number of questions");
        (pending.asked <= limit).then_some(()).ok_or(McpError::Limit {
            server,
            what,
            limit: limit as usize,
        })
    }

    fn questions(&self, requests: InputRequests) -> Result<Vec<(String, Value)>, McpError> {
        let read = |(key, request): (String, InputRequest)| match request {
            InputRequest::Elicitation(request) => match elicit::refusal(&request.params) {
                Some(why) => Err(self.broken(why)),
                None if key == WHILE_IT_WORKS => Err(self.broken("a question has no name".into())),
                None => Ok((key, serde_json::json!(request.params))),
            },
            _ => Err(self.broken("it asks for what it was not offered: sampling or roots".into())),
        };
        requests.into_iter().map(read).collect()
    }

    /// Follows a task until it ends, asks a person, or has taken too long to be waited for.
    async fn follow(
        &self,
        peer: &Peer<RoleClient>,
        task: String,
        mut pause: Duration,
        mut pending: Pending,
    ) -> Result<ToolOutcome, McpError> {
        let wait = self.client.server.task_wait.unwrap_or(self.client.server.timeout);
        let end = Instant::now() + wait;
        let mut following = Following(Some((peer.clone(), task.clone())));
        let outcome = self.poll(peer, &task, (wait, end), &mut pause, &mut pending).await;
        following.0 = None;
        outcome
    }

    async fn poll(
        &self,
        peer: &Peer<RoleClient>,
        task: &str,
        (wait, end): (Duration, Instant),
        pause: &mut Duration,
        pending: &mut Pending,
    ) -> Result<ToolOutcome, McpError> {
        loop {
            if !pause.is_zero() && (wait.is_zero() || Instant::now() + *pause > end) {
                let question = serde_json::json!({"message": format!(
                    "The task {task} of {} is not done yet; answer anything to look again.",
                    self.tool.name
                )});
                let state = serde_json::json!(pending);
                return Ok(elicit::ask(&self.client.server.name, &question, None, state));
            }
            sleep(*pause).await;
            let polled = self.in_time("tasks/get", peer.get_task(GetTaskParams::new(task))).await?;
            let DetailedTask { task: now, payload, .. } = polled.task;
            match payload {
                TaskPayload::Completed { result } => {
                    let result = serde_json::from_value::<CallToolResult>(Value::Object(result));
                    let result =
                        result.map_err(|error| self.broken(format!("its task: {error}")))?;
                    return Ok(self.outcome(result));
                }
                TaskPayload::InputRequired { input_requests } => {
                    self.count(pending, input_requests.len().max(1))?;
                    pending.questions = self.questions(input_requests)?;
                    return Ok(self.ask(pending, None));
                }
                TaskPayload::Failed { error } => {
                    let told = serde_json::json!({"mcp": "task_failed", "error": error});
                    return Ok(ToolOutcome::error(told));
                }
                TaskPayload::Cancelled => {
                    let told = serde_json::json!({"mcp": "task_cancelled", "task": task});
                    return Ok(ToolOutcome::error(told));
                }
                _ => {}
            }
            *pause = pause_of(now.poll_interval_ms);
        }
    }

    fn outcome(&self, result: CallToolResult) -> ToolOutcome {
        let server = &self.client.server;
        content::outcome(&server.name, &self.tool, &server.limits, result)
    }

    fn broken(&self, why: String) -> McpError {
        McpError::Protocol { server: self.client.server.name.clone(), why }
    }

    async fn in_time<T>(
        &self,
        method: &'static str,
        request: impl Future<Output = Result<T, ServiceError>>,
    ) -> Result<T, McpError> {
        let limit = self.client.server.timeout;
        match tokio::time::timeout(limit, request).await {
            Ok(answer) => {
                answer.map_err(|error| McpError::of_request(&self.client.server, method, error))
            }
            Err(_) => Err(self.client.late(method, limit)),
        }
    }

    /// One request, and what the server says until it answers.
    async fn answer(
        &self,
        peer: &Peer<RoleClient>,
        params: CallToolRequestParams,
        pending: &Pending,
    ) -> Result<Answer, McpError> {
        let server = &self.client.server;
        let failed = |error| McpError::of_request(server, "tools/call", error);
        let request = CallToolRequest::new(params);
        let request = ClientRequest::CallToolRequest(request);
        let calls = &self.client.calls;
        let send = peer.send_cancellable_request(request, PeerRequestOptions::no_options());
        let begun = calls.begin(pending.alone, peer, send).await;
        let (mut handle, mut notes, mut flight) = begun.map_err(failed)?;
        let began = Instant::now();
        let (last, mut idle) = (began + server.max_timeout, began + server.timeout);
        let mut answers = pending.in_order.iter();
        loop {
            tokio::select! {
                biased;
                answer = &mut handle.rx => {
                    flight.answered();
                    let answer = answer.unwrap_or(Err(ServiceError::TransportClosed));
                    return answer.map(Answer::Result).map_err(failed);
                }
                note = notes.recv() => {
                    match note {
                        Some(Note::Progress(progress)) => self.report(progress),
                        Some(Note::Elicit(request, reply)) => {
                            if let Some(why) = elicit::refusal(&request) {
                                return Err(self.broken(why));
                            }
                            let given = answers.next().cloned();
                            match given.and_then(|given| serde_json::from_value::<ElicitResult>(given).ok()) {
                                // This fails only if the server has withdrawn the question.
                                Some(given) => _ = reply.send(given),
                                None => return Ok(Answer::Question(serde_json::json!(request))),
                            }
                        }
                        Some(Note::Again) => return Ok(Answer::Again),
                        None => return Err(failed(ServiceError::TransportClosed)),
                    }
                    idle = Instant::now() + server.timeout;
                }
                () = tokio::time::sleep_until(idle.min(last)) => {
                    // It may be this call that asks, and its question waits for other calls.
                    if idle < last && calls.is_holding() {
                        idle = Instant::now() + server.timeout;
                        continue;
                    }
                    let after = if idle < last { server.timeout } else { server.max_timeout };
                    return Err(self.client.late("tools/call", after));
                }
            }
        }
    }

    fn report(&self, progress: rmcp::model::ProgressNotificationParam) {
        let mut report = ToolProgress::new(progress.progress).total(progress.total);
        report.message = progress.message.map(|text| crate::error::cut(&text, 2000));
        self.context.progress(report);
    }
}

/// How long a task is left alone.
fn pause_of(asked: Option<u64>) -> Duration {
    Duration::from_millis(asked.unwrap_or(500).clamp(10, 60_000))
}

/// A task that is followed. Dropping it cancels the task at the server.
struct Following(Option<(Peer<RoleClient>, String)>);

impl Drop for Following {
    fn drop(&mut self) {
        if let (Some((peer, task)), Ok(runtime)) =
            (self.0.take(), tokio::runtime::Handle::try_current())
        {
            runtime.spawn(async move { peer.cancel_task(CancelTaskParams::new(task)).await });
        }
    }
}
