//! The same run with each library, as its documentation shows.

mod async_openai;
mod genai;
mod mynah;
mod raw;
mod rig;

use serde::Deserialize;
use serde_json::{Value, json};

use crate::{
    Result,
    work::{Visitor, Work},
};

/// The names of all, as [`with`] takes them, and for the table. The first is what the others are compared with.
pub const ALL: [(&str, &str); 6] = [
    ("raw", "reqwest and serde_json, no library"),
    ("mynah", "**Mynah**"),
    ("recorded", "**Mynah, recorded, every commit synced**"),
    ("async-openai", "async-openai"),
    ("genai", "genai"),
    ("rig", "rig"),
];

/// Makes a library ready.
pub fn with(name: &str, port: u16, work: Work, visitor: impl Visitor) -> Result<()> {
    let url = format!("http://127.0.0.1:{port}/v1");
    match name {
        "raw" => visitor.visit(raw::Raw::new(&url)?, work),
        "mynah" => visitor.visit(mynah::Mynah::new(&url, work, None)?, work),
        "recorded" => {
            let folder = crate::log::folder()?;
            let log = ::mynah::log::SqliteLog::open(folder.path().join("log.db"))?;
            visitor.visit(mynah::Mynah::new(&url, work, Some(log))?, work)
        }
        "async-openai" => visitor.visit(async_openai::AsyncOpenAi::new(&url), work),
        "genai" => visitor.visit(genai::GenAi::new(&url)?, work),
        "rig" => visitor.visit(rig::Rig::new(&url, work), work),
        _ => Err(format!("no library `{name}`").into()),
    }
}

/// The arguments of the tool.
#[derive(Deserialize)]
struct Item {
    item: i64,
}

fn price(Item { item }: Item) -> Value {
    json!({"item": item, "price": 100 + item})
}

fn schema() -> Value {
    json!({"type": "object", "properties": {"item": {"type": "integer"}}, "required": ["item"]})
}
