//! A run as one page that needs no network: its records, the inspector's views of them, and a verifier.

use std::io::{self, Write};

use base64::{Engine as _, engine::general_purpose::STANDARD};
use serde_json::{Map, Value};
use sha2::{Digest as _, Sha256};

/// The modules of the page, each after those that it imports.
const MODULES: &[(&str, &str)] = &[
    ("dom", include_str!("../ui/dom.js")),
    ("cbor", include_str!("../ui/cbor.js")),
    ("exact", include_str!("../ui/exact.js")),
    ("verify", include_str!("../ui/verify.js")),
    ("facts", include_str!("../ui/facts.js")),
    ("json", include_str!("../ui/json.js")),
    ("markdown", include_str!("../ui/markdown.js")),
    ("list", include_str!("../ui/list.js")),
    ("story", include_str!("../ui/story.js")),
    ("conversation", include_str!("../ui/conversation.js")),
    ("timeline", include_str!("../ui/timeline.js")),
    ("records", include_str!("../ui/records.js")),
    ("overall", include_str!("../ui/overall.js")),
    ("run-view", include_str!("../ui/run-view.js")),
    ("exported", include_str!("../ui/exported.js")),
];

const STYLE: &str = include_str!("../ui/style.css");

/// Writes the part of the page before the bundle.
///
/// # Errors
/// An output that cannot be written to.
pub fn write_head(run: &str, out: &mut impl Write) -> io::Result<()> {
    let title = run.replace('&', "&amp;").replace('<', "&lt;");
    let (script, style) = (source_hash(&script()), source_hash(STYLE));
    // The last script replaces the warning. It stands before everything long, so that a file that was cut off has it.
    write!(
        out,
        "<!doctype html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n\
         <title>Run {title}</title>\n\
         <meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; script-src {script}; \
         style-src {style}; img-src data:; form-action 'none'; base-uri 'none'\">\n\
         <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n\
         <meta name=\"referrer\" content=\"no-referrer\">\n<link rel=\"icon\" href=\"data:,\">\n\
         </head>\n<body>\n<div id=\"app\"><main class=\"banner bad incomplete\">\
         <h1>This file is incomplete or was changed</h1><p>The script at its end, which shows run {title}, did not run. \
         Get the file again: a mail or a download may have cut it off.</p></main></div>\n<style>{STYLE}</style>\n\
         <noscript>This page shows a recorded run. It needs JavaScript, and no network.</noscript>\n\
         <script type=\"application/x-ndjson\" id=\"bundle\">\n"
    )
}

/// Writes what stands after the bundle in the page.
///
/// # Errors
/// An output that cannot be written to.
pub fn write_tail(out: &mut impl Write) -> io::Result<()> {
    write!(out, "</script>\n<script>{}</script>\n</body>\n</html>\n", script())
}

/// The modules as one script: files are not allowed to import others where there is no server.
fn script() -> String {
    let mut script = String::from("\"use strict\";\nconst modules = {};\n");
    for (name, source) in MODULES {
        let mut exports = Vec::new();
        script += &format!("modules[\"{name}\"] = (() => {{\n");
        for line in source.lines() {
            if let Some(import) = line.strip_prefix("import ") {
                let import =
                    import.replace(" from \"./", " = modules[\"").replace(".js\";", "\"];");
                script += &format!("const {import}\n");
            } else if let Some(rest) = line.strip_prefix("export ") {
                let mut words = rest.split(|c: char| !c.is_alphanumeric() && c != '_');
                let name =
                    words.find(|word| !matches!(*word, "async" | "function" | "class" | "const"));
                exports.extend(name);
                script += &format!("{rest}\n");
            } else {
                script += &format!("{line}\n");
            }
        }
        script += &format!("return {{ {} }};\n}})();\n", exports.join(", "));
    }
    script
}

fn source_hash(source: &str) -> String {
    format!("'sha256-{}'", STANDARD.encode(Sha256::digest(source)))
}

/// Writes the lines of a bundle for a page: without the readable facts, which the page decodes from
/// the bytes, and with nothing that could end the element around them.
#[derive(Debug)]
pub struct BundleLines<W> {
    out: W,
    line: Vec<u8>,
}

impl<W: Write> BundleLines<W> {
    /// Writes to this.
    pub fn new(out: W) -> Self {
        Self { out, line: Vec::new() }
    }

    fn write_line(&mut self) -> io::Result<()> {
        let mut line: Map<String, Value> = serde_json::from_slice(&self.line)?;
        self.line.clear();
        for entry in line.values_mut().filter_map(Value::as_object_mut) {
            entry.remove("fact");
        }
        let text = serde_json::to_string(&line)?.replace('<', "\\u003c");
        self.out.write_all(text.as_bytes())?;
        self.out.write_all(b"\n")
    }
}

impl<W: Write> Write for BundleLines<W> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        for piece in bytes.split_inclusive(|byte| *byte == b'\n') {
            self.line.extend_from_slice(piece);
            if piece.ends_with(b"\n") {
                self.write_line()?;
            }
        }
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        self.out.flush()
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "tests")]
mod tests {
    use super::*;

    #[test]
    fn nothing_of_a_module_is_left_that_a_script_cannot_hold() {
        for line in script().lines() {
            assert!(!line.starts_with("import ") && !line.starts_with("export "), "{line}");
        }
        assert!(!script().contains("</script"));
        assert!(!STYLE.contains("</style"));
    }

    #[test]
    fn both_verifiers_know_the_same_members_of_facts() {
        let table = |source: &str| {
            let (_, rest) = source.split_once("FACTS = {\n").unwrap();
            let (rows, _) = rest.split_once("\n}").unwrap();
            rows.replace('"', "").lines().map(|row| row.trim().to_owned()).collect::<Vec<_>>()
        };
        let page = table(include_str!("../ui/verify.js"));
        assert_eq!(page, table(include_str!("../../../tools/verify.py")));
        assert!(page.len() > 15);
    }

    #[test]
    fn a_run_id_cannot_leave_its_place_in_the_page() {
        let mut page = Vec::new();
        let run = "</script><script>alert(1)</script>&amp;";
        write_head(run, &mut page).unwrap();
        let mut lines = BundleLines::new(&mut page);
        let header = serde_json::json!({"bundle": {"version": 1, "run_id": run}});
        writeln!(lines, "{header}").unwrap();
        let page = String::from_utf8(page).unwrap();
        assert!(!page.contains("<script>alert"), "{page}");
        let line = page.lines().last().unwrap();
        assert_eq!(serde_json::from_str::<Value>(line).unwrap(), header);
    }
}
