//! The public types of the crates that a program reaches through `mynah`: one name, one meaning, and room to grow.

use std::{collections::BTreeMap, fs, io, path::Path};

const CRATES: [&str; 8] = [
    "mynah",
    "mynah-adapters",
    "mynah-data",
    "mynah-log",
    "mynah-mcp",
    "mynah-sqlite",
    "mynah-step",
    "mynah-tools",
];

#[test]
fn no_two_public_types_have_one_name() -> io::Result<()> {
    let mut places = BTreeMap::<String, Vec<String>>::new();
    for PublicType { name, file, .. } in public_types()? {
        places.entry(name).or_default().push(file);
    }
    assert!(places.contains_key("Engine") && places.contains_key("RunId"), "the sources were read");
    places.retain(|_, files| files.len() > 1);
    assert!(places.is_empty(), "{places:#?}");
    Ok(())
}

#[test]
fn what_may_grow_is_not_exhaustive() -> io::Result<()> {
    let decision =
        format!("{}/../../docs/decisions/014-what-may-grow.md", env!("CARGO_MANIFEST_DIR"));
    let decision = fs::read_to_string(decision)?;
    let rows = decision.lines().filter(|line| line.starts_with("| `"));
    let names = rows.filter_map(|row| row.split('|').nth(1));
    let reasoned: Vec<&str> = names.flat_map(|cell| cell.split('`').skip(1).step_by(2)).collect();
    let is_open = |of: &PublicType| of.is_built_whole && !of.is_non_exhaustive;
    let mut open = public_types()?;
    open.retain(|of| is_open(of));
    let names: Vec<&str> = open.iter().map(|of| of.name.as_str()).collect();
    let unreasoned: Vec<_> = open.iter().filter(|of| !reasoned.contains(&&*of.name)).collect();
    assert!(unreasoned.is_empty(), "make them non_exhaustive, or write why not: {unreasoned:#?}");
    let gone: Vec<_> = reasoned.iter().filter(|name| !names.contains(name)).collect();
    assert!(gone.is_empty(), "the decision gives reasons for what is not exhaustive: {gone:?}");
    Ok(())
}

#[derive(Debug)]
struct PublicType {
    name: String,
    file: String,
    is_non_exhaustive: bool,
    /// Whether other crates can build or match it whole: an enum, or a struct without private fields.
    is_built_whole: bool,
}

/// The types that stand as public at the beginning of a line.
fn public_types() -> io::Result<Vec<PublicType>> {
    let crates = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let mut found = Vec::new();
    for name in CRATES {
        collect(&crates.join(name).join("src"), &mut found)?;
    }
    Ok(found)
}

fn collect(folder: &Path, found: &mut Vec<PublicType>) -> io::Result<()> {
    for entry in fs::read_dir(folder)? {
        let path = entry?.path();
        if path.is_dir() {
            collect(&path, found)?;
            continue;
        }
        let text = fs::read_to_string(&path)?;
        let (mut is_non_exhaustive, mut in_macro) = (false, false);
        let mut lines = text.lines();
        while let Some(line) = lines.next() {
            // A macro declares enums whose variants have names.
            in_macro = line.ends_with("words! {") || in_macro && line != "}";
            let line = if in_macro { line.strip_prefix("    ").unwrap_or(line) } else { line };
            let Some(item) = line.strip_prefix("pub ") else {
                let is_attribute = line.starts_with("#[") || line.starts_with("///");
                is_non_exhaustive =
                    is_attribute && (is_non_exhaustive || line == "#[non_exhaustive]");
                continue;
            };
            let kinds = ["struct ", "enum ", "trait ", "type "];
            let named = kinds.iter().find_map(|kind| Some((*kind, item.strip_prefix(kind)?)));
            if let Some((kind, item)) = named {
                let name = item.chars().take_while(|c| c.is_alphanumeric()).collect();
                let is_built_whole = match kind {
                    "enum " => true,
                    "struct " => has_no_private_field(item, lines.clone()),
                    _ => false,
                };
                let file = path.display().to_string();
                found.push(PublicType { name, file, is_non_exhaustive, is_built_whole });
            }
            is_non_exhaustive = false;
        }
    }
    Ok(())
}

/// Whether all fields of a struct are public, given its first line and those after it. A struct without fields has none to add to.
fn has_no_private_field<'a>(first: &str, rest: impl Iterator<Item = &'a str>) -> bool {
    if let Some((_, fields)) = first.split_once('(') {
        return fields.split(", ").all(|field| field.starts_with("pub "));
    }
    let is_field = |line: &&str| {
        line.starts_with("    ") && !line.trim_start().starts_with(['/', '#', ')', ']', '}', ' '])
    };
    let fields = rest.take_while(|line| *line != "}").filter(is_field);
    first.ends_with('{')
        && fields.filter(|line| !line.starts_with("     ")).all(|line| line.starts_with("    pub "))
}
