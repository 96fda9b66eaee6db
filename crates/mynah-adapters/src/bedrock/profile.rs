//! What Amazon's own tools keep in files: sections of `name = value`, one for each profile.

use std::{fs, path::PathBuf};

use super::sign::{ACCESS_KEY, SECRET_KEY, SESSION_TOKEN};
use crate::format::Setting;

/// What a variable would hold, by the profile that the environment names. The file of the keys counts more than that of the
/// settings.
pub(super) fn value(variable: &str, environment: Setting<'_>) -> Option<String> {
    let name = match variable {
        ACCESS_KEY => "aws_access_key_id",
        SECRET_KEY => "aws_secret_access_key",
        SESSION_TOKEN => "aws_session_token",
        "AWS_DEFAULT_REGION" => "region",
        _ => return None,
    };
    let profile = environment("AWS_PROFILE").unwrap_or_else(|| "default".to_owned());
    let read = |variable: &str, file: &str| {
        let home = || environment("HOME").or_else(|| environment("USERPROFILE"));
        let named = environment(variable).map(PathBuf::from);
        let path = named.or_else(|| Some(PathBuf::from(home()?).join(".aws").join(file)))?;
        find(&fs::read_to_string(path).ok()?, &profile, name)
    };
    read("AWS_SHARED_CREDENTIALS_FILE", "credentials").or_else(|| read("AWS_CONFIG_FILE", "config"))
}

/// The value of a name in the section of a profile. Of several the last counts; what is indented belongs to the line before.
fn find(text: &str, profile: &str, name: &str) -> Option<String> {
    let mut is_ours = false;
    let mut found = None;
    for line in text.lines().filter(|line| !line.starts_with([' ', '\t', '#', ';'])) {
        let line = line.split([' ', '\t']).take_while(|word| !word.starts_with(['#', ';']));
        let line = line.collect::<Vec<_>>().join(" ");
        if let Some(section) = line.strip_prefix('[') {
            let section = section.split(']').next().unwrap_or_default().trim();
            // One of the files says `profile` before the name.
            is_ours = section.strip_prefix("profile ").map_or(section, str::trim) == profile;
        } else if let (true, Some((key, value))) = (is_ours, line.split_once('='))
            && key.trim().eq_ignore_ascii_case(name)
            && !value.trim().is_empty()
        {
            found = Some(value.trim().to_owned());
        }
    }
    found
}
