//! Undocumented variants of answers are read as far as possible.

use mynah_adapters::{
    conformance::{Scenario, Subject},
    format::Delivery,
    presets::Preset,
};
use mynah_data::{Request, Response, Result};
use serde_json::{Value, json};

use crate::{
    common::{events, folded},
    subjects::subjects,
};

const SCENARIOS: [Scenario; 6] = [
    Scenario::Text,
    Scenario::ToolCall,
    Scenario::ParallelCalls,
    Scenario::Reasoning,
    Scenario::CutOff,
    Scenario::Novelty,
];

#[test]
fn a_member_of_another_type_or_none_at_all_fails_no_call() {
    let others = [
        json!(null),
        json!(""),
        json!("7"),
        json!("text"),
        json!(7),
        json!(-1),
        json!(1.5),
        json!(true),
        json!([]),
        json!({}),
        json!([null]),
        json!(["text", 7]),
        json!({"type": "surprise"}),
    ];
    each_piece(|name, subject, pieces, at, (before, said, after)| {
        for place in places(&said) {
            let mut changed: Vec<Value> = others
                .iter()
                .map(|other| {
                    let mut said = said.clone();
                    *said.pointer_mut(&place).unwrap() = other.clone();
                    said
                })
                .collect();
            changed.extend(without(&said, &place));
            for said in changed {
                let mut pieces = pieces.to_vec();
                pieces[at] = format!("{before}{said}{after}");
                if let Err(error) = read(name, subject, &pieces) {
                    assert_ne!(error.reason(), "malformed_response", "{name}: {error:?}\n{said}");
                }
            }
        }
    });
}

#[test]
fn numbers_may_be_written_as_text() {
    each_piece(|name, subject, pieces, at, (before, said, after)| {
        let mut rewritten = pieces.to_vec();
        rewritten[at] = format!("{before}{said}{after}");
        let expected = read(name, subject, &rewritten).unwrap();
        for place in places(&said) {
            let Some(Value::Number(number)) = said.pointer(&place) else { continue };
            // What a tool is called with is the tool's, and what goes back is the server's.
            let others = ["/args/", "/arguments/", "/reasoning_details/"];
            if others.iter().any(|other| place.contains(other)) {
                continue;
            }
            let mut changed = said.clone();
            *changed.pointer_mut(&place).unwrap() = number.to_string().into();
            let mut pieces = pieces.to_vec();
            pieces[at] = format!("{before}{changed}{after}");
            let answer = read(name, subject, &pieces).unwrap();
            assert_eq!(answer.message, expected.message, "{name}: {place} of {said}");
            assert_eq!(answer.usage.output_tokens, expected.usage.output_tokens, "{name}: {place}");
        }
    });
}

#[test]
fn numbers_that_json_does_not_have_say_nothing() {
    each_piece(|name, subject, pieces, at, (before, said, after)| {
        let said = said.to_string();
        let read_with = |odd: &str| {
            let mut pieces = pieces.to_vec();
            pieces[at] = format!("{before}{}{after}", said.replacen('{', odd, 1));
            read(name, subject, &pieces).map(|answer| (answer.message, answer.usage))
        };
        let expected = read_with("{").unwrap();
        let odd = r#"{"odd": [NaN, -Infinity, 1e999, "NaN \" 1e999"], "#;
        assert_eq!(read_with(odd).unwrap(), expected, "{name}: {said}");
    });
}

#[test]
fn what_keeps_a_connection_alive_says_nothing() {
    for (name, subject) in subjects() {
        let alive: &[&str] = match name {
            "ollama" => &["\n", "\r\n", " \n"],
            "bedrock" => continue,
            _ => &[
                ": keepalive\n\n",
                ":\r\n\r\n",
                "\n",
                "data:\n\n",
                "data: \r\n\r\n",
                "event: ping\ndata: {\"type\": \"ping\"}\n\n",
                "id: 7\nretry: 10\n\n",
            ],
        };
        for scenario in SCENARIOS {
            let Some(pieces) = subject.answer(scenario) else { continue };
            let expected = read(name, &*subject, &pieces).unwrap();
            for mark in alive {
                let apart: Vec<String> =
                    pieces.iter().flat_map(|piece| [mark.to_string(), piece.clone()]).collect();
                let answer = read(name, &*subject, &apart).unwrap();
                assert_eq!(answer, expected, "{name}, {scenario:?}: {mark:?}");
            }
        }
    }
}

#[test]
fn an_event_that_is_called_an_error_is_one() {
    for (name, subject) in subjects() {
        if matches!(name, "ollama" | "bedrock") {
            continue;
        }
        for said in ["no capacity", r#"{"message": "no capacity"}"#, r#"{"error": "no capacity"}"#]
        {
            // Old servers of llama.cpp write the second.
            for written in ["event: error\ndata", "error"] {
                let mut pieces = subject.answer(Scenario::Text).unwrap();
                pieces.insert(1, format!("{written}: {said}\n\n"));
                let error = read(name, &*subject, &pieces).unwrap_err();
                assert_eq!(error.message(), "no capacity", "{name}");
            }
        }
    }
}

#[test]
fn a_stream_is_known_whatever_it_is_labelled() {
    for (name, subject) in subjects() {
        if name == "bedrock" {
            continue;
        }
        let pieces = subject.answer(Scenario::Text).unwrap();
        let streamed = read(name, &*subject, &pieces).unwrap();
        let body = pieces.concat();
        let labelled_json = decode(name, Delivery::Whole, body.as_bytes()).unwrap();
        assert_eq!(labelled_json, streamed, "{name}");
        if name != "ollama" {
            let with_pause = format!("retry: 3000\n\n{body}");
            let labelled_json = decode(name, Delivery::Whole, with_pause.as_bytes()).unwrap();
            assert_eq!(labelled_json, streamed, "{name}");
        }
        let error = decode(name, Delivery::Streamed, b" {\"error\": {\"message\": \"no\"}}\n");
        assert_eq!(error.unwrap_err().message(), "no", "{name}");
    }
}

/// Calls the check with every piece of every answer: what stands before its JSON, its JSON, and what stands after it.
fn each_piece(check: impl Fn(&str, &dyn Subject, &[String], usize, (&str, Value, &str))) {
    for (name, subject) in subjects() {
        for scenario in SCENARIOS {
            let Some(pieces) = subject.answer(scenario) else { continue };
            for (at, piece) in pieces.iter().enumerate() {
                let Some(begin) = piece.find('{') else { continue };
                let end = begin + piece[begin..].find(['\r', '\n']).unwrap_or(piece.len() - begin);
                let said = serde_json::from_str(&piece[begin..end]).unwrap();
                check(name, &*subject, &pieces, at, (&piece[..begin], said, &piece[end..]));
            }
        }
    }
}

fn read(name: &str, subject: &dyn Subject, pieces: &[String]) -> Result<Response> {
    let body: Vec<u8> = pieces.iter().flat_map(|piece| subject.frame(piece)).collect();
    decode(name, Delivery::Streamed, &body)
}

fn decode(name: &str, delivery: Delivery, body: &[u8]) -> Result<Response> {
    let format = Preset::named(name).unwrap().format();
    let request = Request::from("hi").with_model("model-1");
    let (events, read) = events(&*format, &request, delivery, [body]);
    read.map(|()| folded(&events))
}

/// Every place inside of a value.
fn places(value: &Value) -> Vec<String> {
    let inner: Vec<(String, &Value)> = match value {
        Value::Object(map) => map.iter().map(|(name, value)| (name.clone(), value)).collect(),
        Value::Array(list) => {
            list.iter().enumerate().map(|(at, value)| (at.to_string(), value)).collect()
        }
        _ => return Vec::new(),
    };
    let deeper = |(name, value): (String, &Value)| {
        let below = places(value).into_iter().map(|place| format!("/{name}{place}"));
        [format!("/{name}")].into_iter().chain(below).collect::<Vec<_>>()
    };
    inner.into_iter().flat_map(deeper).collect()
}

fn without(value: &Value, place: &str) -> Option<Value> {
    let mut value = value.clone();
    let (holder, name) = place.rsplit_once('/')?;
    value.pointer_mut(holder)?.as_object_mut()?.shift_remove(name)?;
    Some(value)
}
