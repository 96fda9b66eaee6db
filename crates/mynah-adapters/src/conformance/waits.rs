//! Calls that the caller or the server abandons.

use std::{pin::pin, time::Duration};

use futures_util::{
    StreamExt as _,
    future::{Either, select},
};
use mynah_data::{AdapterReason, ErrorKind, Event};

use super::{
    Reply, Scenario, Subject, TestServer, call, hear_out, open, reply, request, serving, stream,
};

/// Longer than any answer of the server here takes.
const STREAM_TIMEOUT: Duration = Duration::from_secs(1);

/// An adapter that is still waiting after this time waits for ever.
const FOR_EVER: Duration = Duration::from_secs(30);

/// Before its status, after it, and in mid-answer.
pub(super) async fn a_silent_server_is_not_waited_for(subject: &dyn Subject) {
    let nothing: [&[u8]; 0] = [];
    let head = Reply::stream(subject.content_type(), nothing).then_hang();
    let middle = without_end(subject);
    for (reply, text) in [(Reply::silence(), ""), (head, ""), (middle, "Hello wörld 🐦")] {
        let server = serving(reply).await;
        let mut call = call();
        call.stream_timeout = Some(STREAM_TIMEOUT);
        let heard =
            async { hear_out(subject.adapter(server.url()).open(request(), call).await).await };
        let heard = tokio::time::timeout(FOR_EVER, heard).await;
        let heard = heard.unwrap_or_else(|_| panic!("stream_timeout is not kept after {text:?}"));
        let error = heard.error.expect("a silent server is an error");
        assert_eq!(error.kind(), ErrorKind::Adapter(AdapterReason::Timeout), "{error:?}");
        assert_eq!(error.metadata()["provider"], subject.adapter(server.url()).name());
        assert!(error.is_retryable());
        assert_eq!(heard.response.text(), text, "what was said before stays");
        assert_leaves(&server).await;
    }
}

pub(super) async fn limits_that_are_not_reached_change_nothing(subject: &dyn Subject) {
    let server = serving(reply(subject, Scenario::Text).expect("text")).await;
    let limit = Some(FOR_EVER);
    let mut limited = call();
    limited.request_timeout = limit;
    limited.stream_timeout = limit;
    let mut heard = Vec::new();
    for call in [limited, call()] {
        heard.push(hear_out(subject.adapter(server.url()).open(request(), call).await).await);
    }
    assert_eq!(heard[0].error, None);
    assert_eq!(heard[0].events, heard[1].events);
    let sent: Vec<_> = server.received().into_iter().map(|asked| asked.body).collect();
    assert_eq!(sent[0], sent[1], "a time limit is not for the provider");
}

/// The caller enforces `request_timeout` by dropping the call.
pub(super) async fn a_dropped_call_closes_its_connection(subject: &dyn Subject) {
    let server = serving(Reply::silence()).await;
    let opened = Box::pin(open(subject, server.url(), request()));
    match select(opened, pin!(server.is_asked())).await {
        Either::Left(_) => panic!("an answer of a silent server"),
        Either::Right(_) => {}
    }
    assert_leaves(&server).await;
}

pub(super) async fn a_dropped_stream_closes_its_connection(subject: &dyn Subject) {
    let server = serving(without_end(subject)).await;
    let mut stream = open(subject, server.url(), request()).await.expect("a stream");
    let first = stream.next().await;
    assert!(matches!(first, Some(Ok(Event::MessageStarted { .. }))), "{first:?}");
    drop(stream);
    assert_leaves(&server).await;
}

/// All that [`Scenario::Text`] says, and then nothing.
fn without_end(subject: &dyn Subject) -> Reply {
    let mut pieces = subject.answer(Scenario::Text).expect("text");
    pieces.pop();
    stream(subject, &pieces).then_hang()
}

pub(super) async fn assert_leaves(server: &TestServer) {
    let leaves = server.client_leaves(Duration::from_millis(500)).await;
    assert!(leaves, "the connection is still there");
}
