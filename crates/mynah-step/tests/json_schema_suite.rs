//! The official JSON Schema test suite, if it is present: `MYNAH_JSON_SCHEMA_SUITE` names its folder.
//!
//! Schemas that refer to other documents are left out: nothing is loaded for a tool's schema.
#![cfg(feature = "json-schema")]
#![allow(clippy::expect_used, clippy::disallowed_methods, reason = "helpers fail as tests do")]

use std::{env, fs, path::Path};

use mynah_step::misfits;
use serde_json::Value;

const DRAFTS: [&str; 2] = ["draft2020-12", "draft7"];

/// Whether a schema stands alone. Other documents are not loaded.
fn is_claimed(schema: &Value) -> bool {
    !schema.to_string().contains("http://localhost:1234")
}

#[test]
fn arguments_are_checked_as_the_official_suite_says() {
    let Some(suite) = env::var_os("MYNAH_JSON_SCHEMA_SUITE") else { return };
    let (mut run, mut left_out, mut failed) = (0, 0, Vec::new());
    for draft in DRAFTS {
        let folder = Path::new(&suite).join("tests").join(draft);
        let files = fs::read_dir(&folder).expect("the folder of a draft");
        for file in files.map(|file| file.expect("a file").path()).filter(|path| path.is_file()) {
            let text = fs::read_to_string(&file).expect("a file of tests");
            let groups: Vec<Value> = serde_json::from_str(&text).expect("a list of groups");
            for group in groups {
                let mut schema = group["schema"].clone();
                if let (Value::Object(schema), "draft7") = (&mut schema, draft) {
                    schema
                        .entry("$schema")
                        .or_insert("http://json-schema.org/draft-07/schema#".into());
                }
                for test in group["tests"].as_array().expect("tests") {
                    if !is_claimed(&schema) {
                        left_out += 1;
                        continue;
                    }
                    run += 1;
                    let why = misfits(&schema, &test["data"], "the value");
                    if why.is_none() != test["valid"] {
                        failed.push(format!(
                            "{}: {}: {}: {why:?}",
                            file.display(),
                            group["description"],
                            test["description"]
                        ));
                    }
                }
            }
        }
    }
    assert!(run > 1000, "only {run} tests in {}", suite.display());
    assert!(
        failed.is_empty(),
        "{} of {run} failed ({left_out} left out):\n{}",
        failed.len(),
        failed.join("\n")
    );
}
