//! Runs that ask a model again, while the records of another run answer for its tools and for people.

use futures_util::{Stream, StreamExt as _, stream};
use mynah::{
    CancelHandle, ChatResult, Event, EventStream, RecordedTools, Result as MynahResult, Resume,
    RunId, log::Queue,
};

use crate::{
    App, Room,
    actions::{QUEUE, in_time},
    agents::Agent,
    problem::Result,
    runs,
};

/// Performs such a run until it ends, or asks a person what the other run does not answer.
pub(crate) async fn perform(
    app: &App,
    agent: &Agent,
    resume: Resume,
    recorded: RecordedTools,
    room: Room,
) -> Result<()> {
    let cancel = CancelHandle::new();
    let trial = Trial { app: App::clone(app), agent: agent.clone(), recorded, cancel };
    let events = in_time(trial.watched(resume).stream().started()).await?;
    let id = events.run_id().cloned().unwrap_or_default();
    let cancel = trial.cancel.clone();
    let events = trial.events(id.clone(), events);
    app.live.perform(&app.metrics, id, (cancel, room), events);
    Ok(())
}

struct Trial {
    app: App,
    agent: Agent,
    recorded: RecordedTools,
    cancel: CancelHandle,
}

impl Trial {
    fn watched(&self, resume: Resume) -> Resume {
        let resume = resume.tool_executor(self.recorded.clone()).queue(Queue::new(QUEUE));
        resume.in_flight(&self.app.live.in_flight).cancel_handle(&self.cancel)
    }

    /// The events of the run, also after what was decided as in the other run.
    fn events(
        self,
        run: RunId,
        events: EventStream,
    ) -> impl Stream<Item = MynahResult<Event>> + Send + use<> {
        stream::unfold((self, events, None), move |(trial, mut events, mut result)| {
            let run = run.clone();
            async move {
                loop {
                    if let Some(event) = events.next().await {
                        if let Ok(Event::ChatCompleted { result: completed }) = &event {
                            result = Some(completed.clone());
                        }
                        return Some((event, (trial, events, result)));
                    }
                    match trial.continued(&run, &*result.take()?).await {
                        Ok(resumed) => events = resumed?,
                        Err(error) => return Some((Err(error), (trial, events, None))),
                    }
                }
            }
        })
    }

    /// The run after what it waited for; none if it has ended, or if a person must answer.
    async fn continued(&self, run: &str, result: &ChatResult) -> MynahResult<Option<EventStream>> {
        let log = runs::log(&self.app);
        let engine = self.agent.engine(&log, Some(run)).await?;
        let resume = self.watched(engine.resume(&log, run));
        Ok(self.recorded.decide(result, resume).ok().flatten().map(Resume::stream))
    }
}
