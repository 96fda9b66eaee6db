//! The integration tests, as one program: it is compiled and linked once.

#![allow(
    clippy::expect_used,
    clippy::panic,
    clippy::unwrap_used,
    reason = "helpers fail as tests do"
)]

#[cfg(feature = "typed")]
mod answer;
mod approval;
mod budget;
mod cancellation;
mod code;
mod common;
mod context_policy;
mod continuation;
mod contract_chat;
mod contract_chat_model;
mod contract_engine;
mod contract_events;
mod contract_finalize;
mod contract_retry;
mod contract_session;
mod contract_session_matrix;
mod contract_step;
mod contract_tools;
mod contract_tools_run;
mod crash_everywhere;
mod crashed_runs;
mod cut_off;
mod defaults;
mod effects;
mod engine_settings;
#[cfg(feature = "http")]
mod error_texts;
mod fallback;
mod follow;
mod handover;
mod hardening;
mod idempotency;
mod kept;
#[cfg(feature = "sqlite")]
mod killed;
mod killed_approval;
mod layered;
mod leases;
mod linear;
mod linked_runs;
#[cfg(feature = "typed")]
mod member_order;
mod messages;
mod metrics;
mod outlived;
mod outside;
#[cfg(feature = "http")]
mod own_format;
#[path = "common/param.rs"]
mod param;
mod paused_consumers;
mod plans;
mod preflight;
mod prelude;
mod progress;
mod properties;
mod public_names;
mod record;
mod record_contract;
mod redacted;
mod resumed_calls;
mod resuming;
mod run_errors;
mod run_ids;
mod session_moved;
mod session_runs;
mod sessions;
mod single_calls;
mod start_or_resume;
mod streams;
mod subagents;
mod tampered;
mod timers;
mod unavailable_log;
mod workers;
