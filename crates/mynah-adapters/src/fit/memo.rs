//! A cache of fitted schemas: a tool is sent with every call and its schema does not change.

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex, PoisonError, Weak},
};

use mynah_data::{Result, ToolSpec};
use serde::{Serialize, Serializer};
use serde_json::value::{RawValue, to_raw_value};

use super::{Dialect, Fitted};
use crate::request::unwritable;

/// The schema of a tool as a provider takes it, and its JSON. It is serialised as the schema alone.
pub(crate) struct FittedTool {
    pub(crate) fitted: Fitted,
    json: Box<RawValue>,
}

impl Serialize for FittedTool {
    fn serialize<S: Serializer>(&self, serializer: S) -> std::result::Result<S::Ok, S::Error> {
        self.json.serialize(serializer)
    }
}

/// The largest number of cached schemas.
const MAX_KEPT: usize = 1024;

/// What was fitted, by the address of the tool.
static KEPT: Mutex<BTreeMap<(usize, Dialect), Entry>> = Mutex::new(BTreeMap::new());

struct Entry {
    /// Keeps the address from being used again, and the tool from being changed in place.
    tool: Weak<ToolSpec>,
    fitted: Arc<FittedTool>,
}

/// The cached schema of a tool, or what `fit` returns.
pub(super) fn kept(
    tool: &Arc<ToolSpec>,
    dialect: Dialect,
    fit: impl FnOnce() -> Result<Fitted>,
) -> Result<Arc<FittedTool>> {
    let key = (Arc::as_ptr(tool).addr(), dialect);
    let lock = || KEPT.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(entry) = lock().get(&key) {
        return Ok(Arc::clone(&entry.fitted));
    }
    let fitted = fit()?;
    let json = to_raw_value(&fitted.schema).map_err(unwritable)?;
    let fitted = Arc::new(FittedTool { fitted, json });
    let mut kept = lock();
    if kept.len() >= MAX_KEPT {
        kept.retain(|_, entry| entry.tool.strong_count() > 0);
    }
    if kept.len() < MAX_KEPT {
        kept.insert(key, Entry { tool: Arc::downgrade(tool), fitted: Arc::clone(&fitted) });
    }
    Ok(fitted)
}
