//! Variables in prompts.

use std::collections::BTreeMap;

/// Replaces each `{{name}}` with the value of the variable. The error is the name of one that has no value. Braces around anything but a name
/// are text.
pub(crate) fn render(text: &str, vars: &BTreeMap<String, String>) -> Result<String, String> {
    let (mut rendered, mut rest) = (String::with_capacity(text.len()), text);
    while let Some((before, after)) = rest.split_once("{{") {
        rendered.push_str(before);
        let name = after.split_once("}}").map(|(name, after)| (name.trim(), after));
        match name.filter(|(name, _)| is_name(name)) {
            Some((name, after)) => {
                rendered.push_str(vars.get(name).ok_or(name)?);
                rest = after;
            }
            None => {
                rendered.push_str("{{");
                rest = after;
            }
        }
    }
    Ok(rendered + rest)
}

pub(crate) fn is_name(name: &str) -> bool {
    !name.is_empty() && name.chars().all(|c| c.is_alphanumeric() || "_-".contains(c))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn variables_are_replaced_once_and_other_braces_are_text() {
        let vars = [("who", "Ada {{who}}"), ("what", "birds")];
        let vars = vars.map(|(name, value)| (name.to_owned(), value.to_owned())).into();
        let table = [
            ("{{who}} likes {{ what }}.", Ok("Ada {{who}} likes birds.")),
            ("{{}} {{a b}} {{ }} {x} {{who", Ok("{{}} {{a b}} {{ }} {x} {{who")),
            ("{{when}}", Err("when")),
        ];
        for (text, expected) in table {
            let expected = expected.map(str::to_owned).map_err(str::to_owned);
            assert_eq!(render(text, &vars), expected, "{text}");
        }
    }
}
