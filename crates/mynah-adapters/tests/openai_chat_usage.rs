//! What Chat Completions count, as the servers in the field write it.

use mynah_adapters::openai_chat::OpenAiChat;
use mynah_data::{Event, Usage};
use serde_json::{Value, json};

use crate::common::{folded, messages::body, streamed};

#[test]
fn o20_usage_counts_the_whole_prompt_and_the_whole_output() {
    let usage = json!({
        "prompt_tokens": 10, "completion_tokens": 5, "total_tokens": 15, "cost": 0.25, "queue_time": 0.1,
        "prompt_tokens_details": {"cached_tokens": 4, "cache_write_tokens": 2},
        "completion_tokens_details": {"reasoning_tokens": 3},
    });
    let mut expected = Usage::new(10, 5);
    expected.total_tokens = Some(15);
    expected.cached_input_tokens = Some(4);
    expected.cache_write_tokens = Some(2);
    expected.reasoning_tokens = Some(3);
    expected.total_cost = Some(0.25);
    expected.extra = json!({"cost": 0.25, "queue_time": 0.1}).as_object().unwrap().clone().into();
    let finish =
        json!({"choices": [{"index": 0, "delta": {"content": "x"}, "finish_reason": "stop"}]});
    let mut with_finish = finish.clone();
    with_finish["usage"] = usage.clone();
    // On a chunk of its own, on the finishing chunk, and on both.
    for chunks in [
        vec![finish.clone(), json!({"choices": [], "usage": usage})],
        vec![with_finish.clone()],
        vec![with_finish, json!({"choices": [], "usage": usage})],
    ] {
        let events = answer(&chunks);
        assert_eq!(folded(&events).usage, expected);
        assert_eq!(events.iter().filter(|event| matches!(event, Event::Usage { .. })).count(), 1);
    }
}

#[test]
fn usage_may_stand_among_a_servers_own_members() {
    let chunks = [
        json!({"choices": [{"index": 0, "delta": {"content": "hi"}}], "x_groq": {"id": "req_1"}}),
        json!({
            "choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}],
            "x_groq": {"id": "req_1", "usage": {"prompt_tokens": 3, "completion_tokens": 2, "total_tokens": 5}},
        }),
    ];
    let usage = read(&chunks);
    assert_eq!(
        (usage.input_tokens, usage.output_tokens, usage.total_tokens),
        (Some(3), Some(2), Some(5))
    );
}

#[test]
fn usage_may_stand_in_the_choice_and_its_details_beside_the_other_counters() {
    let usage = json!({"prompt_tokens": 19, "completion_tokens": 13, "cached_tokens": 12, "reasoning_tokens": 7});
    let choice =
        json!({"index": 0, "delta": {"content": "hi"}, "finish_reason": "stop", "usage": usage});
    let mut expected = Usage::new(19, 13);
    expected.cached_input_tokens = Some(12);
    expected.reasoning_tokens = Some(7);
    expected.total_tokens = Some(32);
    assert_eq!(read(&[json!({"choices": [choice]})]), expected);
}

#[test]
fn what_the_cache_held_and_what_the_call_costs_may_stand_under_other_names() {
    let usage = json!({"prompt_cache_hit_tokens": 12, "cost": {"input_tokens_cost": 0.5, "total_cost": 0.75}});
    let choice = json!({"index": 0, "delta": {"content": "hi"}, "finish_reason": "stop"});
    let usage = read(&[json!({"choices": [choice], "usage": usage})]);
    assert_eq!((usage.cached_input_tokens, usage.total_cost), (Some(12), Some(0.75)));
}

#[test]
fn reasoning_is_a_part_of_the_output_and_sound_of_the_prompt() {
    let counted = |usage: Value| {
        let choice = json!({"index": 0, "delta": {"content": "hi"}, "finish_reason": "stop"});
        let usage = read(&[json!({"choices": [choice], "usage": usage})]);
        [usage.input_tokens, usage.output_tokens, usage.total_tokens].map(Option::unwrap)
    };
    let reasoning = |tokens: u64| json!({"reasoning_tokens": tokens});
    for (usage, expected) in [
        (
            json!({"prompt_tokens": 10, "completion_tokens": 105, "total_tokens": 115, "completion_tokens_details": reasoning(100)}),
            [10, 105, 115],
        ),
        (
            json!({"prompt_tokens": 10, "completion_tokens": 5, "total_tokens": 115, "completion_tokens_details": reasoning(100)}),
            [10, 105, 115],
        ),
        (
            json!({"prompt_tokens": 10, "completion_tokens": 200, "total_tokens": 310, "completion_tokens_details": reasoning(100)}),
            [10, 300, 310],
        ),
        (json!({"prompt_tokens": 7, "completion_tokens": 9, "total_tokens": 537}), [7, 530, 537]),
        (
            json!({"prompt_tokens": 33, "completion_tokens": 7163, "total_tokens": 7196, "reasoning_tokens": 73997}),
            [33, 81160, 81193],
        ),
        (
            json!({"prompt_tokens": 11, "completion_tokens": 15, "total_tokens": 401, "prompt_tokens_details": {"audio_tokens": 375}}),
            [386, 15, 401],
        ),
    ] {
        assert_eq!(counted(usage.clone()), expected, "{usage}");
    }
}

fn read(chunks: &[Value]) -> Usage {
    folded(&answer(chunks)).usage
}

fn answer(chunks: &[Value]) -> Vec<Event> {
    streamed(&OpenAiChat::default(), &(body(chunks) + "data: [DONE]\n\n"))
}
