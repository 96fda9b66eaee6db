//! What every adapter must do: one suite over all of them, on a real socket.
//!
//! Who writes an adapter says, as a [`Subject`], how its provider would write a few given answers. [`run`] serves them from a
//! local [`TestServer`], calls the adapter, and looks at what comes out. It panics at the first thing that is not right.
//! [`embed`] does the same for embedders.

#![allow(
    clippy::expect_used,
    clippy::panic,
    reason = "a test suite says what is wrong by panicking"
)]

mod answers;
pub mod embed;
mod failures;
mod server;
mod waits;

use std::sync::Arc;

use futures_util::StreamExt as _;
use mynah_data::{AdapterReason, Error, Event, Request, Response, ResponseBuilder, Result};
use mynah_step::{Adapter, ModelCall, ModelStream};

pub use server::{Received, Reply, TestServer};

/// An adapter, and how its provider writes.
pub trait Subject: Sync {
    /// The adapter, calling this server.
    fn adapter(&self, base_url: &str) -> Arc<dyn Adapter>;

    /// How the provider writes this answer, piece by piece; the last piece is its end mark. None if it has no such answer.
    fn answer(&self, scenario: Scenario) -> Option<Vec<String>>;

    /// How many of the last pieces may be missing from a whole answer.
    fn may_lack(&self) -> usize {
        0
    }

    /// How a piece stands in the body, where that is not as text.
    fn frame(&self, piece: &str) -> Vec<u8> {
        piece.as_bytes().to_vec()
    }

    /// How it writes an error with this message, and the word for it where it has one.
    fn error(&self, message: &str) -> String;

    /// How it reports that the prompt is too long: status and body.
    fn too_long(&self) -> (u16, String);

    /// How it writes that what was asked may not be answered: status and body. None where it never says so.
    fn filtered(&self) -> Option<(u16, String)>;

    /// A request that its format cannot express; none if there is none.
    fn unsupported(&self) -> Option<Request>;

    /// Whether it can report in mid-answer how long to wait.
    fn asks_to_wait(&self) -> bool {
        true
    }

    /// The id of its answers; none where the provider gives them none.
    fn answer_id(&self) -> Option<&str> {
        Some("answer-1")
    }

    /// The content type of its streams.
    fn content_type(&self) -> &str {
        "text/event-stream"
    }
}

/// The answers that a [`Subject`] must be able to write.
///
/// Each is the answer `answer-1` of the model `model-1`, for 11 tokens of input and 7 of output.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Scenario {
    /// The text `Hello`, then ` wörld 🐦`.
    Text,
    /// A call `call-1` of the tool `search` with the arguments `{"q": "go", "n": 1.0}`, in several pieces.
    ToolCall,
    /// A call `call-1` of `search` with `{"q":"a"}` and a call `call-2` of `lookup` with `{"k":[1,2]}`; their pieces come in
    /// turn where the format allows it.
    ParallelCalls,
    /// The reasoning `because` with the signature `sig-1`, then a call `call-1` of `search` with `{}`.
    Reasoning,
    /// The text `Hel`, then the news that the provider is overloaded.
    Overloaded,
    /// The text `Hel`, then the error of a rate limit, with a wait of two seconds if the provider
    /// can express it.
    RateLimited,
    /// The text `Hel`, where the provider stops the model for what it says.
    Filtered,
    /// The beginning of a call `call-1` of `search`, `{"q": "g`, cut off by the token limit.
    CutOff,
    /// The text `Hello`, and something unknown, in an event or a member of its own: `{"novelty":
    /// true}`.
    Novelty,
    /// The answer to who asks by a JSON schema for an object with the text `bird`: `{"bird": "mynah"}`, in several pieces where
    /// the format allows it. None where the adapter cannot ask for a form.
    Form,
}

/// The key that calls are made with.
const KEY: &str = "sk-conformance-0123456789";

/// The provider's id of every request.
const REQUEST_ID: &str = "req-1";

/// Runs the whole suite.
///
/// # Panics
/// At the first thing that is not right.
pub async fn run(subject: &dyn Subject) {
    answers::text_comes_whole_in_order_and_counted(subject).await;
    answers::bytes_may_come_one_by_one(subject).await;
    answers::a_call_keeps_its_arguments_to_the_byte(subject).await;
    answers::calls_that_come_in_turn_are_told_apart(subject).await;
    answers::reasoning_goes_back_with_its_signature(subject).await;
    answers::a_call_that_was_cut_off_says_so(subject).await;
    answers::what_nobody_knows_is_passed_on(subject).await;
    answers::a_form_is_asked_for_and_the_answer_is_its_text(subject).await;
    answers::streams_side_by_side_do_not_mix(subject).await;
    answers::what_is_filtered_says_so(subject).await;
    failures::each_status_has_its_reason(subject).await;
    failures::a_pause_that_is_asked_for_is_told(subject).await;
    failures::a_prompt_that_is_too_long_is_told_apart(subject).await;
    failures::a_filter_is_told_apart(subject).await;
    failures::what_cannot_be_said_is_not_sent(subject).await;
    failures::a_stream_without_its_end_is_an_error(subject).await;
    failures::a_stream_that_ends_after_its_reason_is_complete(subject).await;
    failures::an_end_without_a_reason_is_an_error(subject).await;
    failures::a_connection_that_breaks_is_an_error(subject).await;
    failures::a_failure_in_the_middle_is_an_error(subject).await;
    failures::a_limit_in_the_middle_is_an_error(subject).await;
    failures::a_failure_before_the_first_word_is_tried_again(subject).await;
    failures::nonsense_is_an_error(subject).await;
    failures::a_server_that_is_not_there_is_an_error(subject).await;
    failures::a_key_is_never_repeated(subject).await;
    waits::a_silent_server_is_not_waited_for(subject).await;
    waits::limits_that_are_not_reached_change_nothing(subject).await;
    waits::a_dropped_call_closes_its_connection(subject).await;
    waits::a_dropped_stream_closes_its_connection(subject).await;
}

/// A reply with this answer; none if the provider has no such answer.
fn reply(subject: &dyn Subject, scenario: Scenario) -> Option<Reply> {
    let pieces = subject.answer(scenario)?;
    Some(stream(subject, &pieces).with_header("x-request-id", REQUEST_ID))
}

/// A reply in these pieces.
fn stream(subject: &dyn Subject, pieces: &[String]) -> Reply {
    Reply::stream(subject.content_type(), pieces.iter().map(|piece| subject.frame(piece)))
}

async fn serving(reply: Reply) -> TestServer {
    TestServer::start(move |_| reply.clone()).await.expect("a port")
}

/// What an adapter made of a reply.
struct Heard {
    events: Vec<Event>,
    response: Response,
    error: Option<Error>,
}

/// Calls the adapter, and reads its whole answer.
async fn hear(subject: &dyn Subject, server: &TestServer, request: Request) -> Heard {
    hear_out(open(subject, server.url(), request).await).await
}

async fn hear_out(opened: Result<ModelStream>) -> Heard {
    let (mut events, mut error) = (Vec::new(), None);
    match opened {
        Ok(mut stream) => {
            while let Some(event) = stream.next().await {
                match event {
                    Ok(event) => events.push(event),
                    Err(failure) => error = Some(failure),
                }
            }
        }
        Err(failure) => error = Some(failure),
    }
    let mut answer = ResponseBuilder::new();
    events.iter().for_each(|event| answer.apply(event));
    Heard { events, response: answer.into_response(), error }
}

/// As [`hear`], for an answer that must be complete.
async fn hear_whole(subject: &dyn Subject, server: &TestServer, request: Request) -> Heard {
    let heard = hear(subject, server, request).await;
    assert_eq!(heard.error, None, "the answer is whole");
    heard
}

async fn open(subject: &dyn Subject, url: &str, request: Request) -> Result<ModelStream> {
    subject.adapter(url).open(request, call()).await
}

/// What each status of a refusal means.
const STATUSES: [(u16, AdapterReason); 15] = {
    use AdapterReason::*;
    [
        (302, Unknown),
        (400, InvalidRequest),
        (401, AuthenticationFailed),
        (403, PermissionDenied),
        (404, NotFound),
        (408, Timeout),
        (413, InvalidRequest),
        (422, InvalidRequest),
        (429, RateLimited),
        (500, ProviderUnavailable),
        (501, UnsupportedFeature),
        (502, ProviderUnavailable),
        (503, ProviderUnavailable),
        (504, ProviderUnavailable),
        (529, Overloaded),
    ]
};

fn call() -> ModelCall {
    ModelCall::default().with_api_key(KEY)
}

fn request() -> Request {
    Request::from("hi").with_model("model-1")
}
