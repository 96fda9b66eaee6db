//! Keys are found in their order, and never shown.

use std::fs;

use mynah_adapters::keys::Keys;

const VARIABLES: [&str; 2] = ["GEMINI_API_KEY", "GOOGLE_API_KEY"];

#[test]
fn k01_k02_k03_k07_the_first_place_that_has_a_key_wins() {
    let folder = tempfile::tempdir().unwrap();
    let dotenv = folder.path().join(".env");
    fs::write(&dotenv, "# mine\n\nexport GOOGLE_API_KEY=\"from file\"\nOTHER=1\nGEMINI_API_KEY=\n")
        .unwrap();
    let bare = Keys::new().with_environment(|_| None).with_dotenv(&dotenv);
    let full = bare
        .clone()
        .with_environment(|name| (name == "GOOGLE_API_KEY").then(|| "from environment".to_owned()));
    let variable = |name: &str| bare.variable(name);
    assert_eq!((variable("OTHER").as_deref(), variable("GEMINI_API_KEY")), (Some("1"), None));
    assert_eq!(found(&bare, None), format!("from file, GOOGLE_API_KEY in {}", dotenv.display()));
    assert_eq!(found(&full, None), "from environment, GOOGLE_API_KEY");
    full.set("gemini", "set");
    assert_eq!(found(&full, None), "set, set");
    assert_eq!(found(&full, Some("of the call")), "of the call, call");
    assert_eq!(found(&full, Some("")), "set, set", "an empty key is none");
    assert_eq!(found(&full, Some(" of the call\n")), "of the call, call");
    full.remove("gemini");
    assert_eq!(found(&full, None), "from environment, GOOGLE_API_KEY");
}

#[test]
fn k04_a_file_is_read_only_where_it_is_allowed() {
    let keys = Keys::new().with_environment(|_| None);
    let error = keys.find("gemini", &VARIABLES, None).unwrap_err();
    assert_eq!(
        error.message().into_owned(),
        "engine error: missing_key: no API key for gemini; set GEMINI_API_KEY (looked at the call, what the program set, GEMINI_API_KEY, GOOGLE_API_KEY)"
    );
}

#[test]
fn a_file_may_begin_with_a_mark_and_have_comments_behind_its_values() {
    let folder = tempfile::tempdir().unwrap();
    let dotenv = folder.path().join(".env");
    let lines = [
        "\u{feff}FIRST=one",
        "BARE=two # mine",
        "QUOTED=\"a # b\" # mine",
        "SINGLE='three'\t# mine",
        "HASH=a#b",
        "NONE= # nothing yet",
        "SPACED=a b",
    ];
    fs::write(&dotenv, lines.join("\r\n")).unwrap();
    let keys = Keys::new().with_environment(|_| None).with_dotenv(&dotenv);
    let variable = |name: &str| keys.variable(name);
    let names = ["FIRST", "BARE", "QUOTED", "SINGLE", "HASH", "SPACED"];
    let values = names.map(|name| variable(name).unwrap_or_default());
    assert_eq!(values, ["one", "two", "a # b", "three", "a#b", "a b"]);
    assert_eq!(variable("NONE"), None);
}

#[test]
fn a_file_that_is_not_there_is_named() {
    let keys = Keys::new().with_environment(|_| None).with_dotenv("no/such.env");
    let error = keys.find("groq", &["GROQ_API_KEY"], None).unwrap_err();
    let told = ", GROQ_API_KEY in no/such.env; no/such.env does not exist)";
    assert!(error.message().into_owned().ends_with(told), "{error}");
}

#[test]
fn another_variable_takes_the_place_of_the_usual_ones() {
    let keys =
        Keys::new().with_environment(|name| Some(format!("value of {name}"))).with_variable("MINE");
    assert_eq!(found(&keys, None), "value of MINE, MINE");
}

#[test]
fn a_key_is_not_shown() {
    let keys = Keys::new();
    keys.set("gemini", "sk-secret");
    let shown = format!("{keys:?} {:?}", keys.find("gemini", &[], None).unwrap());
    assert!(!shown.contains("sk-secret"), "{shown}");
}

fn found(keys: &Keys, call: Option<&str>) -> String {
    let key = keys.find("gemini", &VARIABLES, call).unwrap();
    format!("{}, {}", key.expose(), key.source())
}
