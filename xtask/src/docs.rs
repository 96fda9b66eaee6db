//! The documentation: its links, the book and the API pages.

use std::{
    fs,
    path::{Path, PathBuf},
};

use crate::{is_installed, run, run_with, skip};

/// The API documentation. Warnings, such as links that lead nowhere and items without a text, are errors.
pub(crate) fn api() -> Result<(), String> {
    let line = "cargo doc --workspace --all-features --no-deps";
    run_with("RUSTDOCFLAGS", "-D warnings", line)
}

/// The book, in `target/book`.
pub(crate) fn book() -> Result<(), String> {
    if !is_installed("mdbook") {
        skip("book", "`mdbook` is missing: cargo install mdbook --locked");
        return Ok(());
    }
    run("mdbook build")
}

/// Every link in a Markdown file that leads to a file of the repository must find it, and its heading. Every page of `docs` is in the
/// book, and every include of a page finds its file and anchor.
pub(crate) fn links() -> Result<(), String> {
    let mut pages = Vec::new();
    for folder in [".", "docs", "docs/decisions", "examples"] {
        pages.extend(markdown_in(Path::new(folder))?);
    }
    let mut problems = Vec::new();
    for page in &pages {
        let text = read(page)?;
        let folder = page.parent().unwrap_or(Path::new("."));
        for target in links_of(&text) {
            problems.extend(check_link(page, folder, &target)?);
        }
        for include in text.split("{{#").skip(1) {
            problems.extend(check_include(page, folder, include)?);
        }
    }
    problems.extend(not_in_book(&pages)?);
    if problems.is_empty() {
        println!("    the links of {} pages lead somewhere", pages.len());
        return Ok(());
    }
    Err(problems.join("\n"))
}

fn read(path: &Path) -> Result<String, String> {
    fs::read_to_string(path).map_err(|e| format!("{}: {e}", path.display()))
}

fn markdown_in(folder: &Path) -> Result<Vec<PathBuf>, String> {
    if !folder.exists() {
        return Ok(Vec::new());
    }
    let failed = |e| format!("cannot list {}: {e}", folder.display());
    let entries = fs::read_dir(folder).map_err(failed)?.flatten().map(|entry| entry.path());
    let mut pages: Vec<_> = entries
        .filter(|path| path.extension().is_some_and(|extension| extension == "md"))
        .collect();
    pages.sort();
    Ok(pages)
}

/// The targets of `[text](target)` outside code.
fn links_of(text: &str) -> Vec<String> {
    let mut targets = Vec::new();
    for line in prose_of(text) {
        // Every second piece is code.
        let words: String = line.split('`').step_by(2).collect::<Vec<_>>().join("code");
        for rest in words.split("](").skip(1) {
            targets.extend(rest.split(')').next().map(String::from));
        }
    }
    targets
}

/// The lines outside fenced code.
fn prose_of(text: &str) -> impl Iterator<Item = &str> {
    let mut fenced = false;
    text.lines().filter(move |line| {
        let fence = line.trim_start().starts_with("```");
        fenced ^= fence;
        !fenced && !fence
    })
}

fn check_link(page: &Path, folder: &Path, target: &str) -> Result<Option<String>, String> {
    if target.contains("://") || target.starts_with("mailto:") {
        return Ok(None);
    }
    let (path, heading) = target.split_once('#').unwrap_or((target, ""));
    let found = if path.is_empty() { page.to_owned() } else { folder.join(path) };
    if !found.exists() {
        return Ok(Some(format!("{}: there is no {target}", page.display())));
    }
    let is_page = found.extension().is_some_and(|extension| extension == "md");
    if heading.is_empty() || !is_page || slugs(&read(&found)?).iter().any(|slug| slug == heading) {
        return Ok(None);
    }
    Ok(Some(format!("{}: {target} names no heading of that page", page.display())))
}

/// The anchors of a page's headings, as mdBook and GitHub make them.
fn slugs(text: &str) -> Vec<String> {
    let headings = prose_of(text).filter(|line| line.starts_with('#'));
    let slug = |line: &str| {
        let title = line.trim_start_matches('#').trim().to_lowercase().replace(' ', "-");
        title.chars().filter(|c| c.is_alphanumeric() || matches!(c, '-' | '_')).collect()
    };
    headings.map(slug).collect()
}

/// Checks what follows `{{#`, as in `{{#include ../examples/01_hello.rs:main}}`.
fn check_include(page: &Path, folder: &Path, include: &str) -> Result<Option<String>, String> {
    let Some(words) = include.strip_prefix("include ").and_then(|rest| rest.split("}}").next())
    else {
        return Ok(None);
    };
    let (path, anchor) = words.trim().split_once(':').unwrap_or((words.trim(), ""));
    let file = folder.join(path);
    if !file.exists() {
        return Ok(Some(format!("{}: there is no {path} to include", page.display())));
    }
    let is_line = |part: &str| part.is_empty() || part.parse::<u32>().is_ok();
    if anchor.split(':').all(is_line) || read(&file)?.contains(&format!("ANCHOR: {anchor}\n")) {
        return Ok(None);
    }
    Ok(Some(format!("{}: {path} has no anchor {anchor}", page.display())))
}

/// The pages of `docs` that the table of contents does not name.
fn not_in_book(pages: &[PathBuf]) -> Result<Vec<String>, String> {
    let summary = Path::new("docs/SUMMARY.md");
    let listed: Vec<PathBuf> =
        links_of(&read(summary)?).iter().map(|target| Path::new("docs").join(target)).collect();
    let of_book = pages.iter().filter(|page| page.starts_with("docs") && *page != summary);
    let missing = of_book.filter(|page| !listed.contains(page));
    Ok(missing.map(|page| format!("{}: not in docs/SUMMARY.md", page.display())).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn links_are_found_in_prose_alone() {
        let text = "[a](a.md) `[b](b.md)` and [`c`](c.md#d)\n```\n[e](e.md)\n```\n";
        assert_eq!(links_of(text), ["a.md", "c.md#d"]);
    }

    #[test]
    fn a_heading_has_the_anchor_that_browsers_find() {
        assert_eq!(slugs("# Exit codes\n## `mynah show`\n"), ["exit-codes", "mynah-show"]);
    }

    #[test]
    fn a_link_that_leads_nowhere_is_named() {
        let page = Path::new(env!("CARGO_MANIFEST_DIR")).join("../README.md");
        let folder = page.parent().unwrap();
        assert!(check_link(&page, folder, "gone.md").unwrap().unwrap().ends_with("no gone.md"));
        assert!(check_link(&page, folder, "README.md#gone").unwrap().is_some());
        assert_eq!(check_link(&page, folder, "README.md#mynah"), Ok(None));
    }
}
