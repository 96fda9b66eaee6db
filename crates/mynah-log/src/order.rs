//! The order in which records keep the members of maps: shorter keys first, and those of one length by their bytes.

use mynah_data::Metadata;
use serde_json::Value;

/// Whether a value comes back from its record with its members in the order that they have.
///
/// ```
/// use mynah_log::is_in_order;
/// use serde_json::json;
///
/// assert!(is_in_order(&json!({"b": 1, "aa": [{"a": 2}]})));
/// assert!(!is_in_order(&json!({"aa": 1, "b": 2})));
/// ```
pub fn is_in_order(value: &Value) -> bool {
    match value {
        Value::Array(items) => items.iter().all(is_in_order),
        Value::Object(members) => is_sorted(members) && members.values().all(is_in_order),
        _ => true,
    }
}

/// Puts the members of a map, and of the maps in it, in the order in which they come back from a record: what is read from
/// it later is read like this.
///
/// ```
/// use mynah_data::Metadata;
/// use serde_json::json;
///
/// let mut members = Metadata::from_iter([("k".to_owned(), json!({"z": 1, "a": 2}))]);
/// mynah_log::put_in_order(&mut members);
/// assert_eq!(members["k"].to_string(), r#"{"a":2,"z":1}"#);
/// ```
pub fn put_in_order(members: &mut Metadata) {
    members.values_mut().for_each(order);
    if !is_sorted(members) {
        let mut sorted: Vec<(String, Value)> = std::mem::take(members).into_iter().collect();
        sorted.sort_by(|(a, _), (b, _)| (a.len(), a).cmp(&(b.len(), b)));
        members.extend(sorted);
    }
}

fn order(value: &mut Value) {
    match value {
        Value::Array(items) => items.iter_mut().for_each(order),
        Value::Object(members) => put_in_order(members),
        _ => {}
    }
}

fn is_sorted(members: &Metadata) -> bool {
    members.keys().map(|key| (key.len(), key)).is_sorted()
}
