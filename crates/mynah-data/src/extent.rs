//! How large a value may be that is kept.

use serde::Serialize;
use serde_json::Value;

const MAX_DEPTH: usize = 96;
const MAX_ITEMS: usize = 1 << 19;

/// How a value exceeds its bounds, if it does: it is nested deeper than 96 levels, or has more than
/// [`MAX_RESULT`] bytes of JSON. Such a value would make a session that cannot be loaded again, or
/// a record that cannot be written.
///
/// ```
/// use mynah_data::excess;
/// use serde_json::json;
///
/// let deep = |levels| (0..levels).fold(json!(1), |value, _| json!([value]));
/// assert_eq!(excess(&deep(96)), None);
/// assert_eq!(excess(&deep(97)).as_deref(), Some("nested deeper than 96 levels"));
/// let long = json!("x".repeat(mynah_data::MAX_RESULT));
/// assert_eq!(excess(&long).as_deref(), Some("larger than 15728640 bytes of JSON"));
/// ```
pub fn excess(value: &Value) -> Option<String> {
    if is_deeper(value, MAX_DEPTH) {
        return Some(format!("nested deeper than {MAX_DEPTH} levels"));
    }
    oversize(value, MAX_RESULT)
}

/// The size limit that a value exceeds as JSON, in words.
pub(crate) fn oversize(value: &impl Serialize, limit: usize) -> Option<String> {
    let fits = serde_json::to_writer(Room(limit), value).is_ok();
    (!fits).then(|| format!("larger than {limit} bytes of JSON"))
}

/// The most bytes of JSON that the result of a tool or the value of a side effect may have, and the most bytes of the text that
/// an encoder makes of a result. A result that is larger becomes the error `result_too_large` of a call that has finished. The
/// question and the hints of [`ToolOutcome::AskUser`](crate::ToolOutcome::AskUser) count together. Errors have a limit of their
/// own, [`MAX_ERROR`].
pub const MAX_RESULT: usize = 15 << 20;

/// The most bytes of JSON that the error of a tool may have, and the most bytes of the error text of a side effect. Records hold an
/// error several times: in its message, in its metadata and in the text for the model.
pub const MAX_ERROR: usize = 1 << 20;

/// The bytes that still fit.
struct Room(usize);

impl std::io::Write for Room {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        let left = self.0.checked_sub(bytes.len());
        self.0 = left.ok_or(std::io::ErrorKind::StorageFull)?;
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
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

fn is_deeper(value: &Value, levels: usize) -> bool {
    match value {
        Value::Array(_) | Value::Object(_) if levels == 0 => true,
        Value::Array(items) => items.iter().any(|item| is_deeper(item, levels - 1)),
        Value::Object(members) => members.values().any(|member| is_deeper(member, levels - 1)),
        _ => false,
    }
}

fn too_many() -> String {
    format!("made of more than {MAX_ITEMS} items")
}
