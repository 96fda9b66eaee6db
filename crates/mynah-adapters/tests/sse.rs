//! Framing is right wherever the bytes are cut.

use mynah_adapters::sse::{Frame, Framer, LineFramer, SseFramer};
use mynah_data::{AdapterReason, ErrorKind, Result};
use proptest::{collection::vec, prelude::*};
use sse_stream::SseStream;

type Told = Vec<(String, String)>;

#[test]
fn q02_q05_lines_end_with_lf_cr_or_crlf() {
    let expected = told([("a", "1\n2"), ("", "3")]);
    for end in ["\n", "\r", "\r\n"] {
        let body = ["event: a", "data: 1", "data: 2", "", "data:3", "", ""].join(end);
        assert_eq!(whole(&body), expected, "{end:?}");
        assert_eq!(pieces(body.as_bytes().chunks(1)), expected, "{end:?} byte by byte");
    }
}

#[test]
fn a_byte_order_mark_is_skipped_at_the_beginning_alone() {
    assert_eq!(whole("\u{feff}data: x\n\n"), told([("", "x")]));
    assert_eq!(whole("data: \u{feff}\n\n\u{feff}data: x\n\n"), told([("", "\u{feff}")]));
}

#[test]
fn q04_comments_and_unknown_fields_are_skipped() {
    let body = ": keepalive\n\nid: 7\nretry: 10\nmood: odd\ndata\n\nevent: only a name\n\ndata: [DONE]\n\n";
    assert_eq!(whole(body), told([("", ""), ("", "[DONE]")]));
}

#[test]
fn a_field_that_is_called_an_error_is_an_event_of_that_name() {
    assert_eq!(whole("error: {}\n\ndata: x\n\n"), told([("error", "{}"), ("", "x")]));
}

#[test]
fn one_space_after_the_colon_is_not_part_of_the_value() {
    assert_eq!(whole("data:  x \n\n"), told([("", " x ")]));
    assert_eq!(whole("event:a\ndata:{}\n\n"), told([("a", "{}")]));
}

#[test]
fn q06_an_event_without_its_blank_line_is_handed_out_at_the_end() {
    assert_eq!(whole("data: 1\n\nevent: e\ndata: 2\n"), told([("", "1"), ("e", "2")]));
    assert_eq!(whole("data: 1\n\ndata: 2"), told([("", "1"), ("", "2")]));
    assert_eq!(whole("data: 1\n\nevent: e"), told([("", "1")]));
}

#[test]
fn bytes_that_are_no_text_are_replaced() {
    assert_eq!(pieces([&b"data: a\xffb\n\n"[..]]), told([("", "a\u{fffd}b")]));
}

#[test]
fn an_event_beyond_the_limit_is_refused_however_it_comes() {
    let body = format!("data: {}\n\n", "x".repeat(100));
    for size in [1, 7, 64] {
        let mut framer = SseFramer::with_limit(64);
        let refused =
            body.as_bytes().chunks(size).try_for_each(|bytes| framer.push(bytes, &mut |_| Ok(())));
        let error = refused.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Adapter(AdapterReason::MalformedResponse));
        assert_eq!(error.metadata()["limit"], 64);
    }
    // Comments are nothing that would have to be kept.
    let mut framer = SseFramer::with_limit(64);
    let comments = ": still here\n".repeat(100);
    assert!(framer.push(comments.as_bytes(), &mut |_| Ok(())).is_ok());
}

#[test]
fn lines_of_json_need_no_end_at_the_end() {
    let pieces = [&b"{\"a\":1}\r\n\n{\"b\""[..], b":2}\n", b"{\"c\":3}"];
    let expected = told([("", r#"{"a":1}"#), ("", r#"{"b":2}"#), ("", r#"{"c":3}"#)]);
    assert_eq!(frames(&mut LineFramer::new(), pieces), expected);
}

proptest! {
    #[test]
    fn q01_any_cut_gives_the_same_events(body in body(), cuts in vec(any::<prop::sample::Index>(), 0..6)) {
        let mut places: Vec<usize> = cuts.iter().map(|cut| cut.index(body.len() + 1)).collect();
        places.extend([0, body.len()]);
        places.sort_unstable();
        let cut = places.windows(2).map(|ends| &body[ends[0]..ends[1]]);
        let expected = pieces([&body[..]]);
        prop_assert_eq!(&pieces(cut), &expected);
        prop_assert_eq!(&pieces(body.chunks(1)), &expected);
    }

    #[test]
    fn whole_events_are_those_that_another_decoder_finds(body in body()) {
        // What the standard leaves out at the end is left out here too.
        let body = [&body[..], b"\n\n"].concat();
        prop_assert_eq!(pieces([&body[..]]), oracle(&body));
    }

    #[test]
    fn no_bytes_are_too_odd(bytes in vec(any::<u8>(), 0..200), size in 1..9usize) {
        pieces(bytes.chunks(size));
    }
}

fn body() -> impl Strategy<Value = Vec<u8>> {
    let end = || prop_oneof![3 => Just("\n"), 1 => Just("\r"), 2 => Just("\r\n")];
    let line = prop_oneof![
        4 => "data: ?[ -~é🐦]{0,6}",
        2 => "event:[a-z]{0,3}",
        1 => "[:a-z]{0,6}",
        3 => Just(String::new()),
    ];
    let lines = vec((line, end()), 0..14);
    (any::<bool>(), lines).prop_map(|(marked, lines)| {
        let mark = if marked { "\u{feff}" } else { "" };
        let lines: String = lines.into_iter().map(|(line, end)| line + end).collect();
        format!("{mark}{lines}").into_bytes()
    })
}

fn oracle(body: &[u8]) -> Told {
    use futures_util::{FutureExt as _, StreamExt as _, stream};
    let bytes = stream::iter([Ok::<_, std::io::Error>(bytes::Bytes::copy_from_slice(body))]);
    let events = SseStream::from_bytes_stream(bytes).collect::<Vec<_>>();
    let events = events.now_or_never().expect("the bytes are there");
    let told = events.into_iter().filter_map(|event| {
        let event = event.ok()?;
        Some((event.event.unwrap_or_default(), event.data?))
    });
    told.collect()
}

fn whole(body: &str) -> Told {
    pieces([body.as_bytes()])
}

fn pieces<'b>(pieces: impl IntoIterator<Item = &'b [u8]>) -> Told {
    frames(&mut SseFramer::new(), pieces)
}

fn frames<'b>(framer: &mut dyn Framer, pieces: impl IntoIterator<Item = &'b [u8]>) -> Told {
    let mut heard = Told::new();
    let mut sink = |frame: Frame<'_>| -> Result<()> {
        heard.push((frame.event.to_owned(), frame.data.to_owned()));
        Ok(())
    };
    for bytes in pieces {
        framer.push(bytes, &mut sink).unwrap();
    }
    framer.finish(&mut sink).unwrap();
    heard
}

fn told<const N: usize>(events: [(&str, &str); N]) -> Told {
    events.map(|(event, data)| (event.to_owned(), data.to_owned())).to_vec()
}
