//! The three calls: each a future of its result, or a stream of how it comes about.

use mynah_data::{
    ChatResult, EngineReason, Error, ErrorKind, Event, Request, Response, Result, RunId,
    StepResult, StreamReason, Thread,
};
use mynah_log::Extent;

use crate::{
    engine::Engine,
    options::{Options, option_setters},
    prepare::Input,
    start::Start,
    stream::EventStream,
};

/// Lets a builder be awaited: it is a future of its result.
macro_rules! awaited {
    ($(#[$doc:meta])* $name:ident => $output:ty, $builder:ident => $result:expr) => {
        impl std::future::IntoFuture for $name {
            type Output = mynah_data::Result<$output>;
            type IntoFuture = mynah_step::BoxFuture<Self::Output>;

            $(#[$doc])*
            fn into_future(self) -> Self::IntoFuture {
                let $builder = self;
                Box::pin(async move { $result })
            }
        }
    };
}
pub(crate) use awaited;

/// Declares a call's builder: an engine, an input, options.
macro_rules! call {
    ($(#[$doc:meta])* $name:ident($field:ident: $input:ty) $extent:ident, $wrap:expr; $($group:ident)+) => {
        $(#[$doc])*
        #[derive(Clone, Debug)]
        #[must_use = "a call does nothing unless it is awaited or streamed"]
        pub struct $name(pub(crate) Start);

        impl $name {
            pub(crate) fn new(engine: Engine, $field: $input) -> Self {
                let (input, extent) = ($wrap($field), Extent::$extent);
                Self(Start { engine, input, options: Options::new(), extent, run_id: None })
            }

            /// Starts the run under this id, or attaches to the run that has it: the call can be made again after a crash or a
            /// timeout, and nothing that was completed is done twice. Needs [`record`](Self::record).
            ///
            /// | the run with this id | this call |
            /// |---|---|
            /// | does not exist | starts it |
            /// | has ended | returns the recorded result; if it failed, the recorded error |
            /// | failed as its provider did | continues it in a [linked run](Engine::resume) |
            /// | waits for a person or for tool results | returns the recorded result, which names what it waits for |
            /// | was cut off with its process | [resumes](Engine::resume) it |
            /// | is in use, here or in another process | fails with `leased`, about a second later, when its process gave a sign of life |
            /// | began with another input | fails with `run_exists`; `diff` in the error's metadata has the differences |
            ///
            /// The input is the conversation, the kind of call, its options and the engine's params. Functions, and the engine's
            /// adapter, model and tools, are not compared; to resume a run that was cut off, they must be the same.
            ///
            /// The stream of a run that is attached to has all its events from the beginning, each recorded delta among them. Neither
            /// the model nor a tool is called for those that are recorded.
            ///
            /// ```
            /// use mynah::{Engine, log::MemoryLog, testing::Scripted};
            /// # #[tokio::main(flavor = "current_thread")] async fn main() -> mynah::Result<()> {
            /// # let model = Scripted::says(["Paid."]);
            /// # let engine = Engine::new(model.clone());
            ///
            /// let log = MemoryLog::new();
            /// let first = engine.chat("pay invoice 17").record(&log).run_id("invoice-17").await?;
            /// let again = engine.chat("pay invoice 17").record(&log).run_id("invoice-17").await?;
            /// assert_eq!(again, first);
            /// # assert_eq!(model.model_calls().len(), 1);
            ///
            /// let other = engine.chat("pay invoice 18").record(&log).run_id("invoice-17").await;
            /// assert_eq!(other.unwrap_err().reason(), "run_exists");
            /// # Ok(()) }
            /// ```
            pub fn run_id(mut self, id: impl Into<RunId>) -> Self {
                self.0.run_id = Some(id.into());
                self
            }

            /// The call as it happens.
            pub fn stream(self) -> EventStream {
                self.0.events()
            }
        }

        option_setters!($name, self => self.0.options; options $($group)+);
    };
}

call! {
    /// One model call; see [`Engine::generate`].
    Generate(request: Request) Generate, |request| Input::Request(Box::new(request));
    prompt model call live new key record keep
}

call! {
    /// One model call and its tools; see [`Engine::step`].
    Step(thread: Thread) Step, Input::Thread;
    prompt model tools call live new data key tool_code approval record keep
}

call! {
    /// Steps until something ends or suspends the conversation; see [`Engine::chat`].
    Chat(thread: Thread) Chat, Input::Thread;
    prompt model tools chat call live new data key tool_code approval chat_code record park keep queue
}

awaited! { Generate => Response, call => {
    let mut stream = call.stream();
    let step = stream.drain(drop).await?;
    let mut response = step.ok_or_else(ended_early)?.response;
    response.run_id = stream.run_id().cloned();
    Ok(response)
} }
awaited! { Step => StepResult, call => stepped(&mut call.stream()).await }
awaited! { Chat => ChatResult, call => chatted(&mut call.stream()).await }

impl Chat {
    /// Lets this engine continue a run that began with another system prompt, other params, another model or other tools. Without it,
    /// such a run is refused.
    ///
    /// The model reads the new system prompt from then on. Completed work is not repeated, and the records note the new engine.
    /// Another message of the user is another input, which is refused as before.
    pub fn allow_changed_engine(mut self) -> Self {
        self.0.options.allow_changed = true;
        self
    }

    pub(crate) fn settings(&self) -> (Engine, Options) {
        (self.0.engine.clone(), self.0.options.clone())
    }
}

pub(crate) async fn stepped(stream: &mut EventStream) -> Result<StepResult> {
    let mut unknown_tool = None;
    let step = stream.drain(|event| match event {
        Event::Error { error } if error.kind() == ErrorKind::Engine(EngineReason::UnknownTool) => {
            unknown_tool = Some(error);
        }
        _ => {}
    });
    let mut step = step.await?.ok_or_else(ended_early)?;
    step.run_id = stream.run_id().cloned();
    unknown_tool.map_or(Ok(step), |error| Err(error.of_run(stream.run_id())))
}

pub(crate) async fn chatted(stream: &mut EventStream) -> Result<ChatResult> {
    let mut completed = None;
    let run = stream.drain(|event| {
        if let Event::ChatCompleted { result } = event {
            completed = Some(*result);
        }
    });
    run.await?;
    // For a resumed single call or step, its run has the same result.
    completed.or_else(|| stream.result()).ok_or_else(ended_early)
}

pub(crate) fn ended_early() -> Error {
    Error::stream(StreamReason::Cancelled)
}
