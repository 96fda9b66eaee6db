//! Answers as values of a Rust type.

use std::{
    future::IntoFuture,
    marker::PhantomData,
    pin::Pin,
    task::{Context, Poll, ready},
};

use futures_util::{Stream, StreamExt as _};
use mynah_data::{
    AdapterReason, ChatResult, EngineReason, Error, ErrorKind, Event, Message, ResponseFormat,
    Result, RunId,
};
#[cfg(feature = "json-schema")]
use mynah_step::misfits;
use mynah_step::{BoxFuture, schema_of, schemars::JsonSchema};
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

use crate::{CancelHandle, Run, call::Chat, prepare::Input, stream::EventStream};

impl Chat {
    /// The answer as a value of a type. The model is asked for JSON that fits the type's schema,
    /// and its answer is validated.
    ///
    /// ```
    /// use mynah::{Engine, testing::Scripted};
    /// use serde_json::json;
    /// use mynah::schemars::{self, JsonSchema};
    ///
    /// #[derive(serde::Deserialize, JsonSchema)]
    /// struct Bird {
    ///     name: String,
    ///     /// Wingspan in centimetres.
    ///     wingspan: u32,
    /// }
    ///
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> mynah::Result<()> {
    /// # let answer = json!({"name": "common mynah", "wingspan": 43}).to_string();
    /// # let engine = Engine::new(Scripted::new([json!([{"text": answer}, {"finish": "stop"}])])?);
    /// let bird = engine.chat("Tell me about the mynah.").answer_as::<Bird>().await?;
    /// assert_eq!(bird.wingspan, 43);
    /// # Ok(()) }
    /// ```
    ///
    /// Awaited, it returns the value alone. [`AnswerStream::result`] has the run id of a recorded call, and its usage.
    ///
    /// Set the call's options before it. It replaces the response format. A type that is not an
    /// object, such as a `Vec` or an enum, is requested as the member `answer` of one, because
    /// providers accept only objects.
    ///
    /// # Errors
    /// `malformed_response` if the answer is not JSON or does not fit. The message names each
    /// place, and `response` in its metadata is the answer. Also those of
    /// [`ChatResult::into_json`].
    pub fn answer_as<T: DeserializeOwned + JsonSchema>(self) -> Answer<T> {
        Answer { chat: self, repairs: 0, of: PhantomData }
    }
}

/// A chat whose answer is read as a type; see [`Chat::answer_as`].
#[must_use = "a call does nothing unless it is awaited or streamed"]
pub struct Answer<T> {
    chat: Chat,
    repairs: u32,
    of: PhantomData<fn() -> T>,
}

impl<T: DeserializeOwned + JsonSchema> Answer<T> {
    /// How often the model is asked to repair an answer that is not JSON or does not fit. By
    /// default never.
    ///
    /// The model gets its answer back, and what is wrong with it. This is a call of its own with the same options: it has its own budget and,
    /// if the call is recorded, its own run. With a [`run_id`](Chat::run_id) the first one has that id with `-repair-1` after it.
    pub fn repair(mut self, attempts: u32) -> Self {
        self.repairs = attempts;
        self
    }

    /// The call as it happens. After the last event, [`AnswerStream::answer`] returns the value.
    pub fn stream(self) -> AnswerStream<T> {
        let form = Form::of::<T>();
        let (repairs, answer) = (0..self.repairs, None);
        let chat = self.chat.response_format(form.format());
        let first = chat.0.run_id.clone();
        let events = chat.clone().stream();
        AnswerStream { chat, first, form, events, repairs, result: None, answer, of: PhantomData }
    }

    /// Starts the run or continues it, as [`Chat::start_or_resume`] does, up to where it ends or waits for a decision. Once it has
    /// ended, the same call returns the value: it attaches to the run.
    ///
    /// ```
    /// use mynah::{Engine, Decision, Tool, log::MemoryLog, schemars::{self, JsonSchema}, testing::{Script, Scripted}};
    /// use serde_json::json;
    ///
    /// #[derive(serde::Deserialize, JsonSchema)]
    /// struct Receipt {
    ///     number: u32,
    /// }
    ///
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> mynah::Result<()> {
    /// # let pay = Tool::new("pay", "Pays.", json!({})).manual().handler(|_, _| async { "paid" });
    /// # let pays = Script::new().tool_call("c0", "pay", json!({})).call_tools();
    /// # let engine = Engine::new(Scripted::play([pays, Script::new().text(r#"{"number": 17}"#).stop()])).tool(pay);
    /// let log = MemoryLog::new();
    /// let receipt = || engine.chat("Pay.").record(&log).run_id("invoice-17").answer_as::<Receipt>();
    ///
    /// let mut run = receipt().start_or_resume().await?;
    /// while run.waiting().is_some() {
    ///     run = run.decide(|_call| Decision::Approve).await?; // ask a person first
    /// }
    /// assert_eq!(receipt().await?.number, 17);
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    /// Those of [`Chat::start_or_resume`].
    pub async fn start_or_resume(self) -> Result<Run> {
        self.chat.response_format(Form::of::<T>().format()).start_or_resume().await
    }
}

impl<T: DeserializeOwned + JsonSchema + 'static> IntoFuture for Answer<T> {
    type Output = Result<T>;
    type IntoFuture = BoxFuture<Self::Output>;

    fn into_future(self) -> Self::IntoFuture {
        let mut stream = self.stream();
        Box::pin(async move {
            while stream.next().await.is_some() {}
            stream.answer()
        })
    }
}

/// The events of a chat whose answer is read as a type. Those of a repair follow those of the answer that did not fit.
#[must_use = "a stream does nothing unless it is polled"]
pub struct AnswerStream<T> {
    chat: Chat,
    /// The run id that the caller chose.
    first: Option<RunId>,
    form: Form,
    events: EventStream,
    repairs: std::ops::Range<u32>,
    /// The result of the last chat that ended.
    result: Option<ChatResult>,
    answer: Option<Result<Value>>,
    of: PhantomData<fn() -> T>,
}

mynah_data::partial_debug! { Answer<T> { chat } AnswerStream<T> { events } }

impl<T: DeserializeOwned> AnswerStream<T> {
    /// The answer, once all events were polled.
    ///
    /// # Errors
    /// Those of [`Chat::answer_as`]; `halted` if events are left.
    pub fn answer(self) -> Result<T> {
        let unfinished = || Err(Error::engine(EngineReason::Halted));
        let value = self.answer.unwrap_or_else(unfinished)?;
        T::deserialize(value).map_err(|error| unfit(self.result.as_ref(), &error.to_string()))
    }

    /// The result of the last chat that ended: its thread, usage and run id.
    pub fn result(&self) -> Option<&ChatResult> {
        self.result.as_ref()
    }

    /// A handle that ends the run and lets the stream come to its end.
    pub fn cancel_handle(&mut self) -> CancelHandle {
        self.events.cancel_handle()
    }

    /// The id of the run, if it is recorded and has begun. An answer that is repaired has a run of its own.
    pub fn run_id(&self) -> Option<&RunId> {
        self.events.run_id()
    }

    /// Why the call was refused before it began; see [`EventStream::refusal`].
    pub fn refusal(&self) -> Option<&Error> {
        self.events.refusal()
    }

    /// The value of an answer, if it is JSON, fits the schema and can be read as the type.
    fn judge(&self) -> Result<Value> {
        let result = self.result.as_ref();
        let value: Value = result.cloned().unwrap_or_default().into_json()?;
        let value = self.form.check(value).map_err(|why| unfit(result, &why))?;
        T::deserialize(&value).map_err(|error| unfit(result, &error.to_string()))?;
        Ok(value)
    }
}

fn unfit(result: Option<&ChatResult>, why: &str) -> Error {
    let reason = AdapterReason::MalformedResponse;
    let error = Error::adapter(reason)
        .with_message(format!("adapter error: {reason}: the answer does not fit its type: {why}"));
    let error = error.of_run(result.and_then(|result| result.run_id.as_ref()));
    match result.and_then(|result| result.final_response.as_ref()) {
        Some(response) => error.with("response", json!(response)),
        None => error,
    }
}

impl<T: DeserializeOwned> Stream for AnswerStream<T> {
    type Item = Result<Event>;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        loop {
            match ready!(self.events.poll_next_unpin(cx)) {
                Some(Ok(event)) => {
                    if let Event::ChatCompleted { result } = &event {
                        self.result = Some((**result).clone());
                    }
                    return Poll::Ready(Some(Ok(event)));
                }
                Some(Err(error)) => {
                    self.answer = Some(Err(error.clone()));
                    return Poll::Ready(Some(Err(error)));
                }
                None if self.answer.is_some() => return Poll::Ready(None),
                None => match self.judge() {
                    Err(error) if is_unfit(&error) && !self.repairs.is_empty() => {
                        self.ask_again(&error);
                    }
                    judged => self.answer = Some(judged),
                },
            }
        }
    }
}

fn is_unfit(error: &Error) -> bool {
    error.kind() == ErrorKind::Adapter(AdapterReason::MalformedResponse)
}

impl<T> AnswerStream<T> {
    fn ask_again(&mut self, error: &Error) {
        let number = self.repairs.next().unwrap_or_default() + 1;
        let why = error.to_string();
        let mut chat = self.chat.clone();
        let mut thread = self.result.take().map(|result| result.thread).unwrap_or_default();
        thread.messages.push(Message::user(format!(
            "{why}\nAnswer again, with nothing but JSON that fits the schema."
        )));
        chat.0.input = Input::Thread(thread);
        chat.0.run_id = self.first.as_ref().map(|first| format!("{first}-repair-{number}").into());
        self.events = chat.stream();
    }
}

/// The form of an answer.
struct Form {
    /// The name of the type, in the characters that providers take.
    name: String,
    /// The schema for the model.
    schema: Value,
    /// Whether the answer is a member of what the model writes, because it is not an object itself.
    is_wrapped: bool,
}

/// The member that has the answer, where it is not an object itself.
const MEMBER: &str = "answer";

impl Form {
    fn of<T: JsonSchema>() -> Self {
        let fits = |c: char| if c.is_ascii_alphanumeric() || c == '-' { c } else { '_' };
        let name = T::schema_name().chars().map(fits).take(64).collect();
        let mut schema = schema_of::<T>();
        let is_wrapped = schema["type"] != "object";
        if is_wrapped {
            let definitions = schema.as_object_mut().and_then(|inner| inner.shift_remove("$defs"));
            schema = json!({
                "type": "object", "properties": {MEMBER: schema}, "required": [MEMBER], "additionalProperties": false
            });
            if let Some(definitions) = definitions {
                schema["$defs"] = definitions;
            }
        }
        Self { name, schema, is_wrapped }
    }

    fn format(&self) -> ResponseFormat {
        ResponseFormat::json_schema(&self.name, self.schema.clone())
    }

    /// The value of an answer, or why it does not fit.
    fn check(&self, answer: Value) -> std::result::Result<Value, String> {
        #[cfg(feature = "json-schema")]
        if let Some(why) = misfits(&self.schema, &answer, "the answer") {
            return Err(why);
        }
        match answer {
            Value::Object(mut members) if self.is_wrapped => {
                Ok(members.shift_remove(MEMBER).unwrap_or_default())
            }
            answer => Ok(answer),
        }
    }
}
