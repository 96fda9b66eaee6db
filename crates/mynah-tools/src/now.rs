//! The date and time.

use jiff::{Timestamp, tz::TimeZone};
use mynah_data::ToolOutcome;
use mynah_step::{Tool, ToolContext};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::{
    text::prefix,
    typed::{Outcome, refused, typed},
};

#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct Args {
    /// Name of an IANA time zone, such as `Europe/Berlin`. UTC if not set.
    time_zone: Option<String>,
}

#[derive(Serialize)]
struct Now {
    time: String,
    weekday: String,
    time_zone: String,
    unix_seconds: i64,
}

/// A tool that returns the current date and time: `now`.
///
/// The time is that of the run's clock ([`ToolContext::now`]): it is recorded, and a replay returns the same. Time zones come
/// from the database that is built into the crate, so no file is read.
///
/// ```
/// use std::{sync::Arc, time::{Duration, SystemTime}};
/// use mynah_data::{ToolCall, ToolOutcome};
/// use mynah_step::{ToolContext, World};
/// use serde_json::json;
///
/// struct Frozen;
/// impl World for Frozen {
///     fn now(&self) -> SystemTime {
///         SystemTime::UNIX_EPOCH + Duration::from_secs(1_800_000_000)
///     }
///     fn random(&self) -> u64 {
///         7
///     }
/// }
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() {
/// let arguments = json!({"time_zone": "Asia/Tokyo"});
/// let call = ToolCall::from_value("c0", "now", arguments.clone());
/// let context = ToolContext::new(call, Arc::new(Frozen));
/// let tool = mynah_tools::now();
/// let handler = tool.get_handler().expect("a handler");
/// let ToolOutcome::Ok(now) = handler.call(arguments, context).await else { panic!("an error") };
/// assert_eq!(now["time"], "2027-01-15T17:00:00+09:00");
/// assert_eq!(now["weekday"], "Friday");
/// # }
/// ```
pub fn now() -> Tool {
    let description = "The current date, time and weekday, in UTC or in a time zone.";
    typed("now", description, read).idempotent(1)
}

async fn read(args: Args, context: ToolContext) -> Outcome<Now> {
    let name = args.time_zone.as_deref().unwrap_or("UTC");
    let Ok(zone) = TimeZone::get(name) else {
        let name = prefix(name, 100);
        return refused(format!(
            "there is no time zone {name:?}; use an IANA name such as Europe/Berlin"
        ));
    };
    let time = context.now().await.map_err(|error| ToolOutcome::error(error.to_string()))?;
    let time = Timestamp::try_from(time)
        .map_err(|error| ToolOutcome::error(format!("the clock is out of range: {error}")))?;
    let zoned = time.to_zoned(zone);
    Ok(Now {
        time: zoned.strftime("%Y-%m-%dT%H:%M:%S%:z").to_string(),
        weekday: zoned.strftime("%A").to_string(),
        time_zone: name.to_owned(),
        unix_seconds: time.as_second(),
    })
}
