//! The tests of pages in a browser. They wait more than they compute, so they are a program of their own that runs beside the others.

#![allow(clippy::panic, clippy::unwrap_used, reason = "helpers fail as tests do")]

mod chromium;
mod common;
mod exported_page;
mod hostile_text;
mod inspector;
mod inspector_details;
mod inspector_hidden;
mod inspector_runs;
mod inspector_views;
mod served;
