//! One name, one meaning.

use std::{collections::HashMap, fs, io, path::Path};

#[test]
fn no_two_public_types_of_the_workspace_have_one_name() -> io::Result<()> {
    let crates = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let mut found = HashMap::<String, Vec<String>>::new();
    for name in ["mynah", "mynah-data", "mynah-log", "mynah-step", "mynah-adapters"] {
        collect(&crates.join(name).join("src"), &mut found)?;
    }
    assert!(found.contains_key("Engine") && found.contains_key("RunId"), "the sources were read");
    found.retain(|_, places| places.len() > 1);
    assert!(found.is_empty(), "{found:#?}");
    Ok(())
}

/// The types that stand as public at the beginning of a line, with their files.
fn collect(folder: &Path, found: &mut HashMap<String, Vec<String>>) -> io::Result<()> {
    for entry in fs::read_dir(folder)? {
        let path = entry?.path();
        if path.is_dir() {
            collect(&path, found)?;
            continue;
        }
        for line in fs::read_to_string(&path)?.lines() {
            let kinds = ["struct ", "enum ", "trait ", "type "];
            let item = line
                .strip_prefix("pub ")
                .and_then(|item| kinds.iter().find_map(|kind| item.strip_prefix(kind)));
            let Some(item) = item else { continue };
            let name: String = item.chars().take_while(|c| c.is_alphanumeric()).collect();
            found.entry(name).or_default().push(path.display().to_string());
        }
    }
    Ok(())
}
