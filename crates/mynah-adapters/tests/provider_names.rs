//! The page that lists the providers.

use std::{env, fmt::Write as _, fs};

use mynah_adapters::presets::{PRESETS, Preset};

const PAGE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/docs/provider-names.md");

#[test]
fn the_page_of_providers_lists_every_preset() {
    let mut page = "| name | server | key |\n|---|---|---|\n".to_owned();
    for preset in PRESETS {
        let (name, keys) = (preset.name, keys(preset));
        writeln!(page, "| `{name}` | {} | {keys} |", server(preset)).unwrap();
    }
    if env::var_os("MYNAH_BLESS").is_some() {
        fs::write(PAGE, &page).unwrap();
    }
    assert!(
        fs::read_to_string(PAGE).unwrap() == page,
        "the page is not that of the presets; write it with \
         MYNAH_BLESS=1 cargo test -p mynah-adapters --all-features --test all provider_names::"
    );
}

fn server(preset: &Preset) -> String {
    let variable = preset.url_variable().map(|name| format!("`{name}`"));
    match (preset.base_url, variable) {
        (None, Some(variable)) => format!("{variable} or `base_url`"),
        (None, None) => "of the AWS region".to_owned(),
        (Some(url), Some(variable)) => format!("{variable}, else `{url}`"),
        (Some(url), None) => format!("`{url}`"),
    }
}

fn keys(preset: &Preset) -> String {
    let names: Vec<String> = preset.key_variables.iter().map(|name| format!("`{name}`")).collect();
    let optional = if preset.needs_key() { "" } else { ", optional" };
    format!("{}{optional}", names.join(" or "))
}
