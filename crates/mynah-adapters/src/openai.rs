//! What OpenAI's models take, by their names: its own formats ask, and those who serve its models.

/// What OpenAI calls a model: without the provider's name, which gateways put before it, and without the mark of those that users
/// trained, which are called after what they were trained from.
fn own_name(model: &str) -> String {
    let name = model.to_ascii_lowercase();
    let name = name.rsplit('/').next().unwrap_or_default();
    name.strip_prefix("ft:").unwrap_or(name).to_owned()
}

/// The version in a name: (5, 6) of `gpt-5.6-sol`, (5, 0) of `gpt-5-2025-08-07`.
fn version(name: &str) -> Option<(u32, u32)> {
    let rest = name.strip_prefix("gpt-")?;
    let end = rest.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(rest.len());
    let (version, after) = rest.split_at(end);
    let mut numbers = version.split('.').map(|number| number.parse().ok());
    match numbers.next()?? {
        // As Azure writes it.
        35 => Some((3, 5)),
        // As users write 4.1, who name their deployments.
        30.. => None,
        // A size.
        10.. if after.starts_with(|c: char| c.is_ascii_alphabetic()) => None,
        major => Some((major, numbers.next().flatten().unwrap_or(0))),
    }
}

fn is_o_series(name: &str) -> bool {
    name.strip_prefix('o').is_some_and(|rest| rest.starts_with(|c: char| c.is_ascii_digit()))
}

/// Whether this is one of OpenAI's models that know no `max_completion_tokens`.
pub(crate) fn is_oldest(model: &str) -> bool {
    let name = own_name(model);
    version(&name).is_some_and(|version| version < (4, 1)) && !name.starts_with("gpt-4o")
}

/// Whether this is one of OpenAI's models that do: those that reason refuse `max_tokens`.
pub(crate) fn is_newer(model: &str) -> bool {
    let name = own_name(model);
    let is_gpt = ["gpt-", "chatgpt-"].iter().any(|gpt| name.starts_with(gpt));
    is_o_series(&name) || (is_gpt && !is_oldest(model))
}

/// Whether this is a reasoning model of OpenAI; none if its name does not show it.
pub(crate) fn reasons(model: &str) -> Option<bool> {
    const REASONING: [&str; 2] = ["codex-", "computer-use-"];
    const ANSWERING: [&str; 2] = ["chatgpt-4o", "gpt-5-chat"];
    let name = own_name(model);
    let is_one = |of: &[&str]| of.iter().any(|prefix| name.starts_with(prefix));
    if is_o_series(&name) || is_one(&REASONING) {
        return Some(true);
    }
    match version(&name) {
        _ if is_one(&ANSWERING) => Some(false),
        Some(version) if version < (5, 0) => Some(false),
        // Those that came after gpt-5-chat decide themselves.
        Some(_) if !name.contains("-chat") => Some(true),
        _ => None,
    }
}

/// Whether Chat Completions accepts tools for this model of OpenAI only without reasoning: gpt-5.6,
/// and all later models. They reason by default.
pub(crate) fn reasons_or_calls(model: &str) -> bool {
    version(&own_name(model)).is_some_and(|version| version >= (5, 6))
}

/// Whether reasoning cannot be switched off for this model of OpenAI.
pub(crate) fn always_reasons(model: &str) -> bool {
    let name = own_name(model);
    ["gpt-6-astra", "gpt-6.1-sol"].iter().any(|always| name.starts_with(always))
}

/// Whether this is a model of OpenAI whose prompts are cached up to breakpoints: gpt-5.6, and all that came after it.
pub(crate) fn takes_breakpoints(model: &str) -> bool {
    version(&own_name(model)).is_some_and(|version| version >= (5, 6))
}

#[cfg(test)]
mod tests {
    use super::version;

    #[test]
    fn a_name_tells_its_version_and_neither_a_date_nor_a_size_is_one() {
        for (name, expected) in [
            ("gpt-35-turbo", Some((3, 5))),
            ("gpt-3.5-turbo-0125", Some((3, 5))),
            ("gpt-4-0613", Some((4, 0))),
            ("gpt-4o", Some((4, 0))),
            ("gpt-4.1-mini", Some((4, 1))),
            ("gpt-5-2025-08-07", Some((5, 0))),
            ("gpt-5.6-sol", Some((5, 6))),
            ("gpt-6", Some((6, 0))),
            ("gpt-6.1-sol-2026-10-12", Some((6, 1))),
            ("gpt-10", Some((10, 0))),
            ("gpt-12.1-mini", Some((12, 1))),
            ("gpt-10:free", Some((10, 0))),
            ("gpt-41", None),
            ("gpt-41-mini", None),
            ("gpt-20b", None),
            ("gpt-oss-120b", None),
            ("o3", None),
        ] {
            assert_eq!(version(name), expected, "{name}");
        }
    }
}
