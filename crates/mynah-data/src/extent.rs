//! How large a value may be that is kept.

use serde_json::Value;

const MAX_DEPTH: usize = 96;
const MAX_ITEMS: usize = 1 << 19;

/// What is too much about a value, if anything is: one nested deeper than 96 levels, or of more than 524,288 items, which are
/// values and keys. Values stand several levels down in what holds them, and others beside them: larger ones would make a
/// session that cannot be loaded again, or a record that cannot be written.
///
/// ```
/// use mynah_data::excess;
/// use serde_json::json;
///
/// let deep = |levels| (0..levels).fold(json!(1), |value, _| json!([value]));
/// assert_eq!(excess(&deep(96)), None);
/// assert_eq!(excess(&deep(97)).as_deref(), Some("nested deeper than 96 levels"));
/// let long = json!(vec![0; 1 << 19]);
/// assert_eq!(excess(&long).as_deref(), Some("made of more than 524288 items"));
/// ```
pub fn excess(value: &Value) -> Option<String> {
    excess_of_all([value])
}

/// The same of several values that are kept together.
pub(crate) fn excess_of_all<'a>(values: impl IntoIterator<Item = &'a Value>) -> Option<String> {
    let mut room = MAX_ITEMS;
    values.into_iter().find_map(|value| exceeds(value, MAX_DEPTH, &mut room))
}

/// The value that JSON text stands for. Text that holds too much is refused before memory is taken for it.
pub(crate) fn parse(text: &str) -> serde_json::Result<Value> {
    let refused = |why| Err(serde::de::Error::custom(why));
    // An item takes a byte at least.
    if text.len() > MAX_ITEMS && json_items(text) > MAX_ITEMS {
        return refused(too_many());
    }
    let value = serde_json::from_str(text)?;
    excess(&value).map_or(Ok(value), refused)
}

/// How many items JSON text has, values and keys, found without reading them: text that is not JSON has any number.
///
/// ```
/// assert_eq!(mynah_data::json_items(r#"{"a": [1, "2, [3]"], "b": {}}"#), 7);
/// ```
pub fn json_items(text: &str) -> usize {
    let (mut items, mut in_text, mut escaped, mut opened) = (1_usize, false, false, false);
    for byte in text.bytes().filter(|byte| !byte.is_ascii_whitespace()) {
        match byte {
            _ if escaped => escaped = false,
            b'\\' => escaped = in_text,
            b'"' => in_text = !in_text,
            b'[' | b'{' | b',' | b':' if !in_text => items += 1,
            // What was opened had no first item.
            b']' | b'}' if opened => items -= 1,
            _ => {}
        }
        opened = !in_text && matches!(byte, b'[' | b'{');
    }
    items
}

fn exceeds(value: &Value, levels: usize, room: &mut usize) -> Option<String> {
    let taken = match value {
        Value::Object(members) => 1 + members.len(),
        _ => 1,
    };
    let Some(left) = room.checked_sub(taken) else { return Some(too_many()) };
    *room = left;
    let within = |value| exceeds(value, levels - 1, room);
    match value {
        Value::Array(_) | Value::Object(_) if levels == 0 => {
            Some(format!("nested deeper than {MAX_DEPTH} levels"))
        }
        Value::Array(items) => items.iter().find_map(within),
        Value::Object(members) => members.values().find_map(within),
        _ => None,
    }
}

fn too_many() -> String {
    format!("made of more than {MAX_ITEMS} items")
}
