//! What comes out of a call that fails.

use std::time::Duration;

use std::sync::{
    Arc,
    atomic::{AtomicBool, Ordering},
};

use mynah_data::{AdapterReason, Error, ErrorKind, Event};
use mynah_step::{RetryPolicy, SystemWorld, open_model};

use super::{
    Heard, KEY, REQUEST_ID, Reply, STATUSES, Scenario, Subject, TestServer, call, hear, hear_out,
    open, reply, request, serving, stream,
};

pub(super) async fn each_status_has_its_reason(subject: &dyn Subject) {
    for (status, reason) in STATUSES {
        let reply = Reply::json(status, subject.error("not like this"))
            .with_header("x-request-id", REQUEST_ID);
        let server = serving(reply).await;
        let error = refused(subject, &server).await;
        assert_eq!(error.kind(), ErrorKind::Adapter(reason), "status {status}: {error:?}");
        assert_eq!(error.message(), "not like this", "the message is the provider's own");
        assert_eq!(error.metadata()["status"], status);
        assert_eq!(error.metadata()["request_id"], REQUEST_ID);
        assert_eq!(error.metadata()["provider"], subject.adapter(server.url()).name());
    }
}

pub(super) async fn a_pause_that_is_asked_for_is_told(subject: &dyn Subject) {
    let seconds = [("retry-after", "2")];
    let date = [
        ("date", "Sun, 06 Nov 1994 08:49:37 GMT"),
        ("retry-after", "Sun, 06 Nov 1994 08:49:39 GMT"),
    ];
    for headers in [&seconds[..], &date[..]] {
        let reply = Reply::json(429, subject.error("slow down"));
        let reply =
            headers.iter().fold(reply, |reply, (name, value)| reply.with_header(name, value));
        assert_eq!(
            refused(subject, &serving(reply).await).await.retry_after(),
            Some(Duration::from_secs(2)),
            "{headers:?}"
        );
    }
    let error =
        refused(subject, &serving(Reply::json(429, subject.error("slow down"))).await).await;
    assert_eq!(error.retry_after(), None);
}

pub(super) async fn a_prompt_that_is_too_long_is_told_apart(subject: &dyn Subject) {
    let (status, body) = subject.too_long();
    let error = refused(subject, &serving(Reply::json(status, body)).await).await;
    assert_eq!(error.kind(), ErrorKind::Adapter(AdapterReason::ContextLengthExceeded), "{error:?}");
}

pub(super) async fn a_filter_is_told_apart(subject: &dyn Subject) {
    let Some((status, body)) = subject.filtered() else { return };
    let heard = hear(subject, &serving(Reply::json(status, body)).await, request()).await;
    let error = heard.error.expect("what is filtered is no answer");
    assert_eq!(error.kind(), ErrorKind::Adapter(AdapterReason::ContentFilter), "{error:?}");
}

pub(super) async fn what_cannot_be_said_is_not_sent(subject: &dyn Subject) {
    let Some(request) = subject.unsupported() else { return };
    let server = serving(reply(subject, Scenario::Text).expect("text")).await;
    let error =
        open(subject, server.url(), request.clone()).await.err().expect("it cannot be said");
    assert_eq!(error.kind(), ErrorKind::Adapter(AdapterReason::UnsupportedFeature), "{error:?}");
    assert_eq!(error.metadata()["provider"], subject.adapter(server.url()).name());
    let told = subject.adapter(server.url()).preflight(&request, &call());
    assert_eq!(told, Err(error), "it is known before the call");
    assert_eq!(server.received().len(), 0, "nobody is asked what cannot be said");
}

/// All pieces are emitted before the error, whether the last of them is closed or not.
pub(super) async fn a_stream_without_its_end_is_an_error(subject: &dyn Subject) {
    for scenario in [Scenario::Text, Scenario::ToolCall, Scenario::Reasoning] {
        let Some(pieces) = subject.answer(scenario) else { continue };
        for kept in 0..pieces.len() - subject.may_lack() {
            let said = &pieces[..kept];
            let apart = hear(subject, &serving(stream(subject, said)).await, request()).await;
            let at_once = serving(at_once(subject, said)).await;
            let at_once = hear(subject, &at_once, request()).await;
            let mut open = said.to_vec();
            if let Some(last) = open.last_mut() {
                last.truncate(last.trim_end().len());
            }
            let open = hear(subject, &serving(stream(subject, &open)).await, request()).await;
            let told = format!("{scenario:?} after {kept} of {} pieces", pieces.len());
            for heard in [&apart, &at_once, &open] {
                assert_broke_off(heard, &told);
                assert_eq!(heard.events, apart.events, "{told}");
            }
            if scenario == Scenario::Text {
                assert_eq!(apart.response.text(), text_of(said), "{told}");
            }
        }
    }
}

/// Some servers leave out what follows the reason to stop.
pub(super) async fn a_stream_that_ends_after_its_reason_is_complete(subject: &dyn Subject) {
    for scenario in [Scenario::Text, Scenario::ToolCall, Scenario::Reasoning] {
        let Some(pieces) = subject.answer(scenario) else { continue };
        let whole = hear(subject, &serving(stream(subject, &pieces)).await, request()).await;
        for kept in pieces.len() - subject.may_lack()..pieces.len() {
            let reply = stream(subject, &pieces[..kept]);
            let heard = hear(subject, &serving(reply).await, request()).await;
            assert_eq!(heard.error, None, "{scenario:?} after {kept} of {} pieces", pieces.len());
            assert_eq!(heard.response.message, whole.response.message, "{scenario:?}");
            assert_eq!(heard.response.finish_reason, whole.response.finish_reason, "{scenario:?}");
        }
    }
}

/// An end mark that does not say why the model stopped itself is only good after the news of that.
pub(super) async fn an_end_without_a_reason_is_an_error(subject: &dyn Subject) {
    let pieces = subject.answer(Scenario::Text).expect("text");
    let Some((end, said)) = pieces.split_last() else { return };
    for kept in 0..said.len() {
        let cut = [&said[..kept], std::slice::from_ref(end)].concat();
        let heard = hear(subject, &serving(stream(subject, &cut)).await, request()).await;
        if heard.error.is_some() || heard.response.finish_reason.is_none() {
            assert_broke_off(&heard, &format!("{kept} of {} pieces and the end", said.len()));
            assert_eq!(heard.response.text(), text_of(&cut));
        }
    }
}

pub(super) async fn a_connection_that_breaks_is_an_error(subject: &dyn Subject) {
    let mut pieces = subject.answer(Scenario::Text).expect("text");
    pieces.pop();
    let reply = stream(subject, &pieces).then_break();
    let heard = hear(subject, &serving(reply).await, request()).await;
    let error = heard.error.expect("a broken connection is an error");
    assert_eq!(error.kind(), ErrorKind::Adapter(AdapterReason::NetworkError), "{error:?}");
    assert_eq!(heard.response.text(), "Hello wörld 🐦", "what was said before stays");
}

pub(super) async fn a_failure_in_the_middle_is_an_error(subject: &dyn Subject) {
    let Some(pieces) = subject.answer(Scenario::Overloaded) else { return };
    for reply in [stream(subject, &pieces), at_once(subject, &pieces)] {
        let reply = reply.with_header("x-request-id", REQUEST_ID);
        let heard = hear(subject, &serving(reply).await, request()).await;
        let error = heard.error.expect("the provider says that it failed");
        assert_eq!(error.kind(), ErrorKind::Adapter(AdapterReason::Overloaded), "{error:?}");
        assert_eq!(error.metadata()["request_id"], REQUEST_ID);
        assert_eq!(heard.response.text(), "Hel", "what was said before stays");
    }
}

pub(super) async fn a_limit_in_the_middle_is_an_error(subject: &dyn Subject) {
    let Some(pieces) = subject.answer(Scenario::RateLimited) else { return };
    let heard = hear(subject, &serving(stream(subject, &pieces)).await, request()).await;
    let error = heard.error.expect("the provider says that there were too many calls");
    assert_eq!(error.kind(), ErrorKind::Adapter(AdapterReason::RateLimited), "{error:?}");
    assert_eq!(
        error.retry_after(),
        subject.asks_to_wait().then_some(Duration::from_secs(2)),
        "{error:?}"
    );
    assert_eq!(heard.response.text(), "Hel", "what was said before stays");
}

/// A provider that accepts a call may still fail before the model's first output. The consumer has
/// seen nothing yet, so the call is retried like a refused one, and nothing of the first attempt
/// remains.
pub(super) async fn a_failure_before_the_first_word_is_tried_again(subject: &dyn Subject) {
    let (Some(pieces), Some(whole)) =
        (subject.answer(Scenario::Overloaded), reply(subject, Scenario::Text))
    else {
        return;
    };
    let expected = hear(subject, &serving(whole.clone()).await, request()).await;
    let beginning: Vec<String> =
        pieces.iter().filter(|piece| !piece.contains("Hel")).cloned().collect();
    let failure = &pieces[pieces.len() - 1..];
    for (said, tries) in [(&beginning[..], 2), (failure, 2), (&pieces[..], 1)] {
        let (failed, whole) = (stream(subject, said), whole.clone());
        let is_first = AtomicBool::new(true);
        let server = TestServer::start(move |_| match is_first.swap(false, Ordering::Relaxed) {
            true => failed.clone(),
            false => whole.clone(),
        });
        let server = server.await.expect("a port");
        let mut policy = RetryPolicy::attempts(2);
        (policy.base_delay_ms, policy.jitter_ms) = (0, 0);
        let (adapter, world) = (subject.adapter(server.url()), Arc::new(SystemWorld));
        let opened = open_model(adapter, request(), call(), Arc::new(policy), world).await;
        let heard = hear_out(opened).await;
        assert_eq!(server.received().len(), tries, "after {said:?}");
        match tries {
            1 => assert_eq!(heard.response.text(), "Hel", "what was said stays"),
            _ => assert_eq!(heard.events, expected.events, "after {said:?}"),
        }
    }
}

pub(super) async fn nonsense_is_an_error(subject: &dyn Subject) {
    for reply in [
        Reply::stream(subject.content_type(), ["data: {\"choices\": [}\n\n", "data: nonsense\n\n"]),
        Reply::json(200, "nonsense"),
        Reply::json(200, "{}"),
        Reply::stream("text/html", ["<!doctype html>\n<title>Sign in</title>\n"]),
        Reply::stream(subject.content_type(), ["\n<html>\n\n</html>\n\n"]),
    ] {
        let error = hear(subject, &serving(reply.clone()).await, request()).await.error;
        let error = error.unwrap_or_else(|| panic!("{reply:?} is taken for an answer"));
        assert_eq!(error.kind(), ErrorKind::Adapter(AdapterReason::MalformedResponse), "{error:?}");
    }
}

pub(super) async fn a_server_that_is_not_there_is_an_error(subject: &dyn Subject) {
    let url = serving(Reply::json(200, "{}")).await.url().to_owned();
    // The port is free again once the server is dropped; its task may need a moment.
    tokio::task::yield_now().await;
    let error = open(subject, &url, request()).await.err().expect("nobody is there");
    assert_eq!(error.kind(), ErrorKind::Adapter(AdapterReason::NetworkError), "{error:?}");
    assert!(error.is_retryable());
}

/// A key is in no error, even if the provider repeats it.
pub(super) async fn a_key_is_never_repeated(subject: &dyn Subject) {
    let repeated = format!("incorrect API key provided: {KEY}.");
    let refusal = Reply::json(401, subject.error(&repeated)).with_header("x-request-id", KEY);
    let in_the_middle = subject.answer(Scenario::Overloaded).map(|mut pieces| {
        let members = ["\"message\":\"", "\"message\": \""];
        for piece in &mut pieces {
            for member in members {
                *piece = piece.replace(member, &format!("{member}{repeated} "));
            }
        }
        stream(subject, &pieces)
    });
    let plain = Reply::json(500, repeated.clone());
    let nonsense = Reply::json(200, format!("{{\"{repeated}\""));
    let replies = [Some(plain), Some(nonsense), in_the_middle, Some(refusal)];
    let mut last = None;
    for reply in replies.into_iter().flatten() {
        let server = serving(reply).await;
        let heard = hear(subject, &server, request()).await;
        let error = heard.error.expect("the call fails");
        let adapter = subject.adapter(server.url());
        let told =
            format!("{error} {error:?} {} {:?} {}", error.to_value(), heard.events, adapter.name());
        assert!(!told.contains(KEY), "{told}");
        last = Some(server);
    }
    // In an answer that does not fail, too.
    let member = format!("{{\"echoed\": \"{KEY}\", \"of {KEY}\": 1, ");
    let pieces = subject.answer(Scenario::Text).expect("text");
    let pieces: Vec<String> = pieces.iter().map(|piece| piece.replacen('{', &member, 1)).collect();
    let server = serving(stream(subject, &pieces).with_header("x-request-id", KEY)).await;
    let heard = hear(subject, &server, request()).await;
    assert_eq!(heard.error, None);
    assert_eq!(heard.response.text(), "Hello wörld 🐦");
    let told = format!("{:?} {:?}", heard.events, heard.response);
    assert!(!told.contains(KEY), "{told}");
    let received = last.and_then(|server| server.received().pop()).expect("a call");
    assert!(
        !received.path.contains(KEY) && !received.body.to_string().contains(KEY),
        "{received:?}"
    );
    assert!(
        received.headers.iter().any(|(_, value)| value.contains(KEY)),
        "the key goes in a header"
    );
}

/// A reply with all of these pieces in one.
fn at_once(subject: &dyn Subject, pieces: &[String]) -> Reply {
    let body: Vec<u8> = pieces.iter().flat_map(|piece| subject.frame(piece)).collect();
    Reply::stream(subject.content_type(), [body])
}

/// What these pieces of [`Scenario::Text`] say.
fn text_of(pieces: &[String]) -> String {
    let is_said = |text: &&str| pieces.iter().any(|piece| piece.contains(text));
    ["Hello", " wörld 🐦"].into_iter().filter(is_said).collect()
}

fn assert_broke_off(heard: &Heard, told: &str) {
    let Some(error) = &heard.error else { panic!("{told} is taken for whole") };
    assert_eq!(error.kind(), ErrorKind::Adapter(AdapterReason::NetworkError), "{told}: {error:?}");
    let ends = |event: &Event| matches!(event, Event::MessageCompleted { .. });
    assert!(!heard.events.iter().any(ends), "{told}");
}

/// The error of a call that never becomes a stream.
async fn refused(subject: &dyn Subject, server: &TestServer) -> Error {
    open(subject, server.url(), request())
        .await
        .err()
        .expect("the call is refused before there is a stream")
}
