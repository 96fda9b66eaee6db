//! Hostile inputs: each is refused with an error that the model can read, and listed in `docs/tools-hostile.md`.
//!
//! `MYNAH_BLESS=1` rewrites the list.
#![cfg(unix)]

mod fetch;
mod files;
mod others;

use std::{fmt::Write as _, fs, path::Path};

use mynah_step::Tool;
use serde_json::{Value, json};

use crate::common::call;

/// The list, and what was found wrong while it was made.
#[derive(Default)]
struct Table {
    text: String,
    count: usize,
    wrong: Vec<String>,
}

impl Table {
    fn section(&mut self, title: &str, words: &str) {
        let _ = write!(
            self.text,
            "\n## {title}\n\n{words}\n\n| input | what it attempts | error contains |\n|---|---|---|\n"
        );
    }

    fn row(&mut self, input: &str, attempt: &str, found: Result<Value, String>, error: &str) {
        self.count += 1;
        let input: String = match input.chars().count() > 80 {
            true => input.chars().take(60).chain("…".chars()).collect(),
            false => input.to_owned(),
        };
        let input = input.escape_debug().to_string().replace("\\\"", "\"").replace('|', "\\|");
        let shown = error.replace('|', "\\|");
        let _ = writeln!(self.text, "| `{input}` | {attempt} | {shown} |");
        match found {
            Err(told) if told.contains(error) && told.len() < 1_000 => {}
            found => self.wrong.push(format!("{input} ({attempt}): {found:?}")),
        }
    }

    /// Calls a tool with one argument in many spellings.
    async fn rows(&mut self, tool: &Tool, argument: &str, rows: &[(&str, &str, &str)]) {
        for (input, attempt, error) in rows {
            let found = call(tool, json!({argument: input})).await;
            self.row(input, attempt, found, error);
        }
    }

    /// Calls a tool with whole objects of arguments.
    async fn objects(&mut self, tool: &Tool, rows: &[(Value, &str, &str)]) {
        for (arguments, attempt, error) in rows {
            let found = call(tool, arguments.clone()).await;
            self.row(&arguments.to_string(), attempt, found, error);
        }
    }
}

const HEAD: &str = "# Hostile inputs of the ready-made tools

COUNT inputs that a model may pass to the tools of `mynah-tools`, by mistake or because a page that it read told it to, and the error that it gets for each. \
Each row is a call in `crates/mynah-tools/tests/hostile`, which writes this page (`MYNAH_BLESS=1`).

`PORT` is the port of a test server on loopback that was allowed with `allow_address`.
";

#[tokio::test(flavor = "multi_thread")]
async fn every_hostile_input_is_refused_and_listed() {
    let mut table = Table::default();
    fetch::urls(&mut table).await;
    fetch::names(&mut table).await;
    fetch::servers(&mut table).await;
    files::paths(&mut table).await;
    files::writes(&mut table).await;
    files::searches(&mut table).await;
    files::races(&mut table).await;
    others::commands(&mut table).await;
    others::small(&mut table).await;
    assert!(table.wrong.is_empty(), "\n{}", table.wrong.join("\n"));
    assert!(table.count >= 100, "only {} inputs", table.count);

    let text = HEAD.replace("COUNT", &table.count.to_string()) + &table.text;
    let list = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/tools-hostile.md");
    if std::env::var_os("MYNAH_BLESS").is_some() {
        fs::write(&list, &text).unwrap();
    }
    let listed = fs::read_to_string(&list).unwrap_or_default();
    assert!(listed == text, "docs/tools-hostile.md is not this list; MYNAH_BLESS=1 writes it");
}

/// What the loop reports of arguments that do not fit the schema.
const ARGUMENTS: &str = "invalid_arguments";
