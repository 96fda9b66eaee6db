//! The integration tests but for those of pages, as one program: it is compiled and linked once.

#![allow(
    clippy::expect_used,
    clippy::panic,
    clippy::unwrap_used,
    reason = "helpers fail as tests do"
)]

mod agent;
mod agent_files;
mod bad_input;
mod cancel;
mod cast;
mod cli;
mod common;
mod continued;
mod conversation;
mod conversation_pipes;
mod crash;
#[cfg(feature = "postgres")]
mod database;
mod demo;
mod doctor;
mod error_texts;
mod fork;
mod full_disk;
mod generate;
mod go_on;
mod golden;
mod json;
mod killed_server;
mod log;
mod models;
#[cfg(feature = "postgres")]
#[path = "../../mynah-postgres/tests/server/mod.rs"]
mod postgres;
#[path = "common/pty.rs"]
mod pty;
mod reference;
mod replay;
mod resume;
mod retention;
mod run_ends;
mod scenarios;
mod serve;
mod served;
mod subagents;
mod terminal;
mod unread;
mod verbs;
