//! Mynah's plain data.
//!
//! Everything a caller holds, stores or sends lives here: [`Message`] and [`Thread`], [`Request`] and [`Response`],
//! [`ToolCall`] and [`ToolOutcome`], [`Event`], [`StepResult`] and [`ChatResult`], [`Session`], [`Budget`] and the [`Catalog`] of
//! prices, and the one [`Error`] type.
//! Nothing in this crate waits, reads a clock, opens a file or starts a thread, so it also builds for wasm32.
//!
//! Three promises hold for every type:
//!
//! * it has one stable JSON form, and comes back from it equal;
//! * JSON that does not fit gives a typed error, never a panic;
//! * a wrong state cannot be built where the type system can prevent it (a tool message always names its call; a session
//!   that waits for a person always has a question), and [`validate`] reports the rest with a path and a code.
//!
//! Streams of events are folded back into values by [`Collector`] (a response, a step, a chat) and [`SessionReducer`]
//! (a session).
//!
//! ```
//! # use mynah_data as mynah;
//! use mynah::{Message, Thread};
//!
//! let thread = Thread::new().with_system("Be brief.").with_user("What is a mynah?");
//! let text = serde_json::to_string(&thread)?;
//! assert_eq!(serde_json::from_str::<Thread>(&text)?, thread);
//! # Ok::<(), serde_json::Error>(())
//! ```

mod budget;
mod builder;
mod catalog;
mod collect;
pub mod decode;
mod error;
mod error_details;
mod event;
mod event_order;
mod extent;
mod halt;
mod image;
#[doc(hidden)]
pub mod json;
mod message;
mod model;
mod reason;
mod request;
mod response;
mod result;
mod run_id;
mod session;
mod session_reducer;
mod session_run;
mod setters;
mod step_thread;
mod thread;
mod tool;
pub mod validate;
mod words;

pub use budget::{Breach, BreachTime, Budget, Limit};
pub use builder::ResponseBuilder;
pub use catalog::{Catalog, ModelInfo};
pub use collect::Collector;
#[doc(hidden)]
pub use collect::{CUT_SHORT, parts_text};
pub use error::{Error, FieldError, PathSegment, Result};
pub use error_details::{Difference, Mismatch};
pub use event::Event;
pub use event_order::EventOrder;
pub use extent::{MAX_ERROR, MAX_RESULT};
#[doc(hidden)]
pub use extent::{excess, json_items};
pub use halt::HANDOFF;
#[doc(hidden)]
pub use halt::Halt;
pub use image::{Image, ImageDetail, ImageError, ImageSource};
pub use message::{Message, Part, Role};
pub use model::{LongPrompt, ModelRef, Pricing};
pub use reason::{
    AdapterReason, EngineReason, ErrorKind, LogReason, MismatchClass, SessionReason, StreamReason,
    ToolReason, ValidationReason,
};
pub use request::{CacheRetention, PromptCache, Request, ResponseFormat, ToolChoice};
#[doc(hidden)]
pub use response::unfenced;
pub use response::{FinishReason, Response, Usage};
pub use result::{ChatResult, HaltReason, StepResult, ToolMode};
pub use run_id::RunId;
pub use session::{Operation, Session, SessionState, Status};
pub use session_reducer::{SessionReducer, TurnResult};
pub use session_run::SessionRun;
pub use step_thread::StepThread;
pub use thread::{Messages, Thread};
pub use tool::{ASK_USER_SENTINEL, Approval, CONTINUE, ToolCall, ToolOutcome, ToolSpec, Wait};

/// Free-form JSON members that travel with a value, in insertion order.
pub type Metadata = serde_json::Map<String, serde_json::Value>;
