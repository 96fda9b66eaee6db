//! `mynah reference`, and the page of the documentation that it writes.

use std::{env, fs};

use crate::common::run;

const PAGE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/cli.md");

#[test]
fn the_reference_in_the_documentation_is_that_of_the_command() {
    let folder = written("reference");
    let produced = fs::read_to_string(folder.path().join("cli.md")).unwrap();
    if env::var_os("MYNAH_BLESS").is_some() {
        fs::write(PAGE, &produced).unwrap();
    }
    let kept = fs::read_to_string(PAGE).unwrap();
    let differs = kept.lines().zip(produced.lines()).find(|(kept, produced)| kept != produced);
    assert!(
        kept == produced,
        "docs/cli.md is not what the command documents; write it with \
         MYNAH_BLESS=1 cargo test -p mynah-cli --test all reference::\nfirst difference: {differs:?}"
    );
}

#[test]
fn every_verb_has_a_man_page_and_every_shell_its_completions() {
    let folder = written("man");
    let page = fs::read_to_string(folder.path().join("cli.md")).unwrap();
    let verbs: Vec<&str> = page
        .lines()
        .filter_map(|line| line.strip_prefix("## `mynah ")?.strip_suffix('`'))
        .collect();
    assert!(verbs.contains(&"resume"), "{verbs:?}");
    for verb in verbs {
        let file = folder.path().join(format!("man/mynah-{}.1", verb.replace(' ', "-")));
        let man = fs::read_to_string(&file).unwrap();
        assert!(man.contains(".SH SYNOPSIS"), "{}: {man}", file.display());
    }
    let completions = fs::read_dir(folder.path().join("completions")).unwrap().count();
    assert_eq!(completions, 5);
}

#[test]
fn a_reference_that_cannot_be_written_names_its_folder() {
    let ran = run(["reference", "/dev/null/out"]);
    assert_eq!(ran.code, Some(4), "{}", ran.stderr);
    assert!(ran.stderr.contains("/dev/null/out"), "{}", ran.stderr);
}

fn written(name: &str) -> tempfile::TempDir {
    let folder =
        tempfile::Builder::new().prefix(name).tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let ran = run(["reference", folder.path().to_str().unwrap()]);
    assert_eq!((ran.code, ran.stderr.as_str()), (Some(0), ""));
    folder
}
