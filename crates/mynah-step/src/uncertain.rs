//! Calls whose outcome is unknown because the process died while they ran, and others that are not run again.

use mynah_data::{Error, ErrorKind, ToolCall, ToolReason};
use mynah_log::{Fact, OnUncertain};

use crate::Tool;

/// Whether a call that may have run in a process that died is run again. A tool that is not there any more may have been
/// anything.
pub fn reruns_lost(tool: Option<&Tool>, on_uncertain: OnUncertain) -> bool {
    on_uncertain == OnUncertain::Rerun || tool.is_some_and(|tool| tool.spec().idempotent)
}

/// Marks the error of a call whose outcome is unknown.
const UNCERTAIN: &str = "uncertain";

/// The error of a call whose outcome is unknown.
pub fn uncertain(call: &ToolCall) -> Error {
    Error::unknown_outcome(call).with(UNCERTAIN, true)
}

/// Marks the error of a call that was stopped before it began.
const NOT_BEGUN: &str = "not_begun";

/// The error of a call that was announced and certainly has not run.
pub(crate) fn not_begun(error: Error) -> Error {
    error.with(NOT_BEGUN, true)
}

/// Whether an error is that of a call that was announced and certainly has not run.
pub(crate) fn is_not_begun(error: &Error) -> bool {
    error.metadata().contains_key(NOT_BEGUN)
}

/// Whether a failure is answered from its record even if tools run again: a timeout is not waited
/// for twice, and an unknown outcome stays unknown.
pub fn is_not_rerun(fact: &Fact) -> bool {
    const BROKE: [ToolReason; 3] =
        [ToolReason::Timeout, ToolReason::HandlerRaised, ToolReason::Cancelled];
    let Fact::ToolFailed { error, .. } = fact else { return false };
    let broke = matches!(error.kind(), ErrorKind::Tool(reason) if BROKE.contains(&reason));
    broke || is_uncertain(error)
}

/// Whether an error is that of a call whose outcome is unknown.
pub(crate) fn is_uncertain(error: &Error) -> bool {
    error.metadata().contains_key(UNCERTAIN)
}
