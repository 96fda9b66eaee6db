//! The integration tests, as one program: it is compiled and linked once.

#![allow(
    clippy::expect_used,
    clippy::panic,
    clippy::unwrap_used,
    reason = "helpers fail as tests do"
)]
#![allow(clippy::duplicate_mod, reason = "the fuzzer has the targets alone")]

mod anthropic_answer;
mod anthropic_request;
#[path = "common/asked.rs"]
mod asked;
mod bedrock_answer;
mod bedrock_form;
mod bedrock_request;
mod common;
mod conformance;
mod contract_scripted;
mod embed;
mod failure;
mod fit;
mod fit_properties;
#[path = "common/frames.rs"]
mod frames;
mod gemini_answer;
mod gemini_request;
mod hostile;
mod http;
mod keys;
mod network;
mod ollama;
mod openai_chat_answer;
mod openai_chat_calls;
mod openai_chat_request;
mod openai_chat_usage;
mod openai_responses_answer;
mod openai_responses_items;
mod openai_responses_request;
mod provider_names;
mod requests;
mod round_trip;
mod sse;
#[path = "common/subjects.rs"]
mod subjects;
mod switch;
mod targets;
mod unknown;
mod variants;
#[path = "common/vectors.rs"]
mod vectors;
mod wire;
