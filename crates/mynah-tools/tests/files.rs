//! The tools for files, in normal use.

use std::{fs, path::Path};

use mynah_step::Tool;
use mynah_tools::{Files, files};
use serde_json::{Value, json};

use crate::common::{call, named};

fn folder(content: &[(&str, &str)]) -> (tempfile::TempDir, Files) {
    let dir = tempfile::tempdir().unwrap();
    for (path, text) in content {
        let path = dir.path().join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    }
    let files = files(dir.path()).unwrap();
    (dir, files)
}

async fn run(files: &Files, tool: &str, arguments: Value) -> Result<Value, String> {
    call(&named(&files.read_write(), tool), arguments).await
}

fn temporary_files(dir: &Path) -> usize {
    let entries = fs::read_dir(dir).unwrap();
    entries
        .filter(|entry| entry.as_ref().unwrap().path().extension().is_some_and(|e| e == "tmp"))
        .count()
}

#[tokio::test]
async fn a_file_is_read_whole_or_by_lines() {
    let (_dir, files) = folder(&[("a/b.txt", "one\ntwo\nthree\n"), ("empty", "")]);
    let whole = run(&files, "read_file", json!({"path": "a/b.txt"})).await.unwrap();
    assert_eq!(whole, json!({"path": "a/b.txt", "text": "one\ntwo\nthree\n"}));
    let part = json!({"path": "./a//b.txt", "first_line": 2, "max_lines": 1});
    assert_eq!(run(&files, "read_file", part).await.unwrap()["text"], "two\n");
    assert_eq!(run(&files, "read_file", json!({"path": "empty"})).await.unwrap()["text"], "");
}

#[tokio::test]
async fn a_long_file_is_truncated_between_lines_and_can_be_read_on() {
    let lines: String = (1..=100).map(|number| format!("line {number}\n")).collect();
    let (_dir, files) = folder(&[("long", &lines)]);
    let files = files.max_text(50);
    let (mut whole, mut first) = (String::new(), 1);
    loop {
        let read =
            run(&files, "read_file", json!({"path": "long", "first_line": first})).await.unwrap();
        let text = read["text"].as_str().unwrap();
        assert!(text.len() <= 50);
        (whole, first) = (whole + text, first + text.lines().count());
        match read["truncated"].as_str() {
            Some(told) => assert!(told.ends_with(&format!("first_line {first}")), "{told}"),
            None => break,
        }
    }
    assert_eq!(whole, lines);
}

#[tokio::test]
async fn a_folder_is_listed_by_name_and_says_when_it_has_more() {
    let (dir, files) = folder(&[("b", "12"), ("a/x", ""), ("c", "")]);
    #[cfg(unix)]
    std::os::unix::fs::symlink("b", dir.path().join("d")).unwrap();
    let listed = run(&files, "list_dir", json!({})).await.unwrap();
    assert_eq!(listed["entries"][0], json!({"name": "a", "type": "folder"}));
    assert_eq!(listed["entries"][1], json!({"name": "b", "type": "file", "bytes": 2}));
    #[cfg(unix)]
    assert_eq!(listed["entries"][3], json!({"name": "d", "type": "symbolic link"}));
    let few = files.max_results(1);
    let listed = run(&few, "list_dir", json!({"path": "."})).await.unwrap();
    assert_eq!(listed["entries"].as_array().unwrap().len(), 1);
    assert!(listed["truncated"].as_str().unwrap().contains("entries; these are the first by name"));
    drop(dir);
}

#[tokio::test]
async fn files_are_searched_by_line_and_by_name() {
    let (dir, files) = folder(&[
        ("src/lib.rs", "fn a() {}\n// TODO one\n"),
        ("src/deep/b.rs", "TODO two"),
        ("notes.md", "TODO three\n"),
        ("target/out.rs", "TODO skipped"),
    ]);
    fs::write(dir.path().join("src/binary.rs"), b"TODO\0").unwrap();
    let search = json!({"pattern": "TODO \\w+", "glob": "**/*.rs"});
    let found = run(&files, "search_files", search).await.unwrap();
    assert_eq!(
        found,
        json!({"matches": [
            {"path": "src/lib.rs", "line": 2, "text": "// TODO one"},
            {"path": "src/deep/b.rs", "line": 1, "text": "TODO two"},
        ]})
    );
    let names = run(&files, "search_files", json!({"glob": "*.rs", "path": "src"})).await.unwrap();
    assert_eq!(names["matches"], json!([{"path": "src/binary.rs"}, {"path": "src/lib.rs"}]));
    // What is an option for a search program is only a pattern here.
    let option = json!({"pattern": "--pre=cat", "glob": "--files"});
    assert_eq!(run(&files, "search_files", option).await.unwrap(), json!({"matches": []}));
}

#[tokio::test]
async fn a_long_path_is_found_whole_so_that_it_can_be_read() {
    let path = format!("{}/{}/file", "d".repeat(200), "e".repeat(200));
    let (_dir, files) = folder(&[(&path, "hit")]);
    let found = run(&files, "search_files", json!({"pattern": "hit"})).await.unwrap();
    assert_eq!(found["matches"][0]["path"], path);
    assert_eq!(run(&files, "read_file", json!({"path": path})).await.unwrap()["path"], path);
}

#[tokio::test]
async fn a_search_that_finds_too_much_or_takes_too_long_says_so() {
    let (_dir, files) = folder(&[("a", &"hit\n".repeat(50))]);
    let few = files.clone().max_results(3);
    let found = run(&few, "search_files", json!({"pattern": "hit"})).await.unwrap();
    assert_eq!(found["matches"].as_array().unwrap().len(), 3);
    assert!(found["truncated"].as_str().unwrap().contains("more matches"));
    let short = files.clone().max_text(10);
    let found = run(&short, "search_files", json!({"pattern": "hit"})).await.unwrap();
    assert_eq!(found["matches"].as_array().unwrap().len(), 2);
    let hasty = files.search_time(std::time::Duration::ZERO);
    let found = run(&hasty, "search_files", json!({"pattern": "hit"})).await.unwrap();
    assert!(found["truncated"].as_str().unwrap().contains("longer than 0 ms"));
}

#[tokio::test]
async fn a_file_is_written_with_its_folders_and_replaced_with_its_permissions() {
    let (dir, files) = folder(&[("old", "before")]);
    let new = json!({"path": "x/y/new", "content": "text"});
    let written = run(&files, "write_file", new).await.unwrap();
    assert_eq!(written, json!({"path": "x/y/new", "bytes": 4, "created": true}));
    assert_eq!(fs::read_to_string(dir.path().join("x/y/new")).unwrap(), "text");
    #[cfg(unix)]
    {
        use std::os::unix::fs::PermissionsExt as _;
        let old = dir.path().join("old");
        fs::set_permissions(&old, fs::Permissions::from_mode(0o751)).unwrap();
        let written = run(&files, "write_file", json!({"path": "old", "content": "after"})).await;
        assert_eq!(written.unwrap()["created"], false);
        assert_eq!(fs::read_to_string(&old).unwrap(), "after");
        assert_eq!(fs::metadata(&old).unwrap().permissions().mode() & 0o777, 0o751);
    }
    assert_eq!(temporary_files(dir.path()), 0);
}

#[tokio::test]
async fn text_is_replaced_where_it_occurs_as_often_as_expected() {
    let (dir, files) = folder(&[("a", "x = 1\ny = 1\n")]);
    let edit = json!({"path": "a", "old": "x = 1", "new": "x = 2"});
    run(&files, "edit_file", edit).await.unwrap();
    let both = json!({"path": "a", "old": " = ", "new": ": ", "count": 2});
    run(&files, "edit_file", both).await.unwrap();
    assert_eq!(fs::read_to_string(dir.path().join("a")).unwrap(), "x: 2\ny: 1\n");
}

#[tokio::test(flavor = "multi_thread")]
async fn edits_of_one_file_side_by_side_lose_nothing() {
    let lines: String = (0..40).map(|number| format!("<{number}>\n")).collect();
    let (dir, files) = folder(&[("a", &lines)]);
    let edits = (0..40).map(|number| {
        let files = files.clone();
        tokio::spawn(async move {
            let edit = json!({"path": "a", "old": format!("<{number}>"), "new": "done"});
            run(&files, "edit_file", edit).await.unwrap();
        })
    });
    for edit in edits.collect::<Vec<_>>() {
        edit.await.unwrap();
    }
    assert_eq!(fs::read_to_string(dir.path().join("a")).unwrap(), "done\n".repeat(40));
}

#[cfg(unix)]
#[tokio::test]
async fn links_inside_of_the_folder_are_followed_and_hard_links_are_not_written_through() {
    let (dir, files) = folder(&[("a/real", "inside")]);
    std::os::unix::fs::symlink("a/real", dir.path().join("link")).unwrap();
    assert_eq!(run(&files, "read_file", json!({"path": "link"})).await.unwrap()["text"], "inside");
    let outside = tempfile::NamedTempFile::new_in(dir.path().parent().unwrap()).unwrap();
    fs::write(&outside, "outside").unwrap();
    fs::hard_link(&outside, dir.path().join("hard")).unwrap();
    run(&files, "write_file", json!({"path": "hard", "content": "mine"})).await.unwrap();
    assert_eq!(fs::read_to_string(&outside).unwrap(), "outside");
}

#[test]
fn a_folder_that_is_missing_is_refused_with_its_name() {
    let error = files("/no/such/folder").unwrap_err().to_string();
    assert!(error.contains("/no/such/folder cannot be opened"), "{error}");
}

#[test]
fn reading_may_be_repeated_and_writing_may_not() {
    let (_dir, files) = folder(&[]);
    for tool in files.read_write() {
        let writes = matches!(tool.name(), "write_file" | "edit_file");
        assert_eq!(tool.spec().idempotent, !writes, "{}", tool.name());
        assert!(tool.is_recorded());
        assert_eq!(tool.schema_error(), None);
    }
    let names: Vec<_> = files.read_only().iter().map(Tool::name).map(str::to_owned).collect();
    assert_eq!(names, ["read_file", "list_dir", "search_files"]);
}

#[tokio::test]
async fn a_database_and_what_stands_beside_it_are_not_replaced_by_text() {
    let (dir, files) = folder(&[("log.db", "SQLite format 3\0rest"), ("log.db-wal", "pages")]);
    for path in ["log.db", "log.db-wal", "log.db-shm"] {
        let told = run(&files, "write_file", json!({"path": path, "content": "gone"})).await;
        assert!(told.as_ref().unwrap_err().contains("is a SQLite database"), "{told:?}");
    }
    let edit = json!({"path": "log.db", "old": "rest", "new": "gone"});
    assert!(run(&files, "edit_file", edit).await.is_err());
    assert_eq!(fs::read(dir.path().join("log.db")).unwrap(), b"SQLite format 3\0rest");
    assert!(!dir.path().join("log.db-shm").exists());
    // A name alone is no database.
    for path in ["notes.db", "notes-wal"] {
        run(&files, "write_file", json!({"path": path, "content": "text"})).await.unwrap();
    }
}
