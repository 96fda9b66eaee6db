//! What an agent does, as progress of the call that started it.

use futures_util::StreamExt as _;
use mynah_data::{ChatResult, Event, Result};
use mynah_step::{BoxFuture, ToolContext, ToolProgress};

use crate::{
    call::{chatted, ended_early},
    stream::EventStream,
};

/// How many characters of a line or of arguments are shown.
const SHOWN: usize = 100;

/// After how many characters of text the line is shown again.
const STEP: usize = 24;

/// Polls the run of an agent to its end, and reports what it does as progress of the call. Progress is not recorded.
///
/// Agents are polled inside each other. This is a future of its own on the heap, so that a level needs little stack.
pub(super) fn followed(
    mut stream: EventStream,
    context: ToolContext,
) -> BoxFuture<Result<ChatResult>> {
    Box::pin(async move {
        if !context.has_listener() {
            return chatted(&mut stream).await;
        }
        let (mut activity, mut completed) = (Activity::default(), None);
        while let Some(event) = stream.next().await {
            match event? {
                Event::ChatCompleted { result } => completed = Some(*result),
                event => {
                    if let Some(doing) = activity.hear(&event) {
                        activity.reports += 1;
                        let reports = f64::from(activity.reports);
                        context.show_progress(&ToolProgress::new(reports).message(doing));
                    }
                }
            }
        }
        completed.or_else(|| stream.result()).ok_or_else(ended_early)
    })
}

/// What an agent does now.
#[derive(Default)]
struct Activity {
    /// The line that it writes.
    line: String,
    /// Characters since the line was last shown.
    unshown: usize,
    reports: u32,
}

impl Activity {
    /// Takes in an event. Returns what is shown now, if that changed.
    fn hear(&mut self, event: &Event) -> Option<String> {
        match event {
            Event::MessageStarted { .. } => {
                (self.line, self.unshown) = (String::new(), 0);
                None
            }
            Event::TextDelta { delta, .. } => self.write(delta),
            Event::MessageCompleted { .. } => self.show(),
            Event::ToolExecutionStarted { name, arguments, .. } => {
                Some(beginning(&format!("{name} {arguments}")))
            }
            // An agent of the agent, or a tool of its own.
            Event::ToolExecutionProgress { name, message: Some(doing), .. } => {
                Some(beginning(&format!("{name}: {doing}")))
            }
            _ => None,
        }
    }

    fn write(&mut self, delta: &str) -> Option<String> {
        let mut shown = None;
        for piece in delta.split_inclusive('\n') {
            self.line.push_str(piece);
            self.unshown += piece.chars().count();
            if self.unshown >= STEP || piece.ends_with('\n') {
                shown = self.show().or(shown);
            }
            if piece.ends_with('\n') {
                self.line.clear();
            }
        }
        shown
    }

    /// The end of the line, unless nothing of it is new.
    fn show(&mut self) -> Option<String> {
        let is_new = std::mem::take(&mut self.unshown) > 0;
        let line = self.line.trim();
        (is_new && !line.is_empty()).then(|| end(line))
    }
}

fn beginning(text: &str) -> String {
    match text.char_indices().nth(SHOWN) {
        Some((at, _)) => format!("{}…", &text[..at]),
        None => text.to_owned(),
    }
}

fn end(text: &str) -> String {
    let more = text.chars().count().saturating_sub(SHOWN);
    match text.char_indices().nth(more) {
        Some((at, _)) if more > 0 => format!("…{}", &text[at..]),
        _ => text.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_line_that_is_written_is_shown_now_and_then() {
        let mut activity = Activity::default();
        assert_eq!(activity.write("Mynahs "), None);
        let all = "Mynahs are birds of the starling family";
        assert_eq!(activity.write(&all[7..]), Some(all.to_owned()));
        assert_eq!(activity.write(".\nThey"), Some(format!("{all}.")));
        assert_eq!(activity.show(), Some("They".to_owned()));
        assert_eq!(activity.show(), None);
    }

    #[test]
    fn a_long_line_shows_its_end() {
        let mut activity = Activity::default();
        let shown = activity.write(&"ä".repeat(150)).unwrap_or_default();
        assert_eq!(shown, format!("…{}", "ä".repeat(SHOWN)));
    }
}
