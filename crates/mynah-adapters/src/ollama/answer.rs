//! An answer of Ollama, streamed or whole.

use std::sync::Arc;

use mynah_data::{FinishReason, Metadata, Result, Usage};
use serde_json::{Deserializer, Value, value::RawValue};

use crate::{
    draft::{Block, Draft},
    failure,
    format::Decoder,
    loose::{self, Extent, List, Loose, Rest, Written, members, take_count, telling},
    sse::Frame,
};

/// Reads one answer.
pub(super) struct Answer {
    thinking: Block,
}

impl Default for Answer {
    fn default() -> Self {
        Self { thinking: Some(Arc::from("thinking")) }
    }
}

members! {
    Chunk<'a> {
        model: Loose<'a> = "model",
        message: Option<Box<Said<'a>>> = "message",
        done: Loose<'a> = "done",
        done_reason: Loose<'a> = "done_reason",
        error: Loose<'a> = "error",
    } ignoring ["created_at"]
}

members! {
    Said<'a> {
        content: Loose<'a> = "content",
        thinking: Loose<'a> = "thinking",
        tool_calls: List<Call<'a>> = "tool_calls",
    } ignoring ["role"]
}

members! {
    Call<'a> {
        id: Loose<'a> = "id",
        function: Option<Function<'a>> = "function",
    } ignoring []
}

members! {
    Function<'a> {
        name: Loose<'a> = "name",
        arguments: Written<'a> = "arguments",
    } ignoring ["index"]
}

impl Decoder for Answer {
    fn frame(&mut self, frame: Frame<'_>, draft: &mut Draft) -> Result<()> {
        let chunk = read(frame.data)?;
        let is_last = chunk.done.is_true();
        self.chunk(chunk, draft);
        if is_last {
            draft.end();
        }
        Ok(())
    }

    fn whole(&mut self, body: &str, draft: &mut Draft) -> Result<()> {
        let mut lines = Deserializer::from_str(body).into_iter::<&RawValue>().peekable();
        let first = lines.next().transpose().map_err(failure::malformed)?;
        let body = first.map_or("", RawValue::get);
        if lines.peek().is_some() {
            // A stream under another name.
            self.frame(Frame { event: "", data: body }, draft)?;
            for line in lines {
                let data = line.map_err(failure::malformed)?.get();
                self.frame(Frame { event: "", data }, draft)?;
            }
            return if draft.has_ended() { Ok(()) } else { Err(failure::broke_off()) };
        }
        let chunk = read(body)?;
        if chunk.message.is_none() {
            return Err(failure::malformed("the answer has no message"));
        }
        // One line of a stream says that it is not the last.
        let is_last = chunk.done != Loose::Flag(false);
        self.chunk(Chunk { done: Loose::Flag(is_last), ..chunk }, draft);
        if !is_last {
            return Err(failure::broke_off());
        }
        draft.end();
        Ok(())
    }
}

fn read(text: &str) -> Result<Chunk<'_>> {
    let mut chunk = Chunk::default();
    let extent = loose::read_part(text, &mut chunk)?;
    if chunk.error.is_failure() {
        return Err(failure::in_stream(&loose::read_raw(text)?));
    }
    if chunk.message.is_some() || chunk.done.is_true() {
        extent.or_fail()?;
    } else if extent == Extent::Part {
        chunk.unknown = loose::read_object(text)?.into_iter().collect();
    }
    Ok(chunk)
}

impl Answer {
    fn chunk(&mut self, chunk: Chunk<'_>, draft: &mut Draft) {
        draft.start(None, Some(chunk.model.text()));
        let mut rest = chunk.unknown;
        if let Some(said) = chunk.message {
            rest.add("message", self.message(*said, draft));
        }
        if chunk.done.is_true() {
            draft.close_reasoning(&self.thinking, None, None);
            finish(chunk.done_reason.text(), draft);
            let mut counters = rest.into_iter().collect();
            draft.usage(usage(&mut counters));
            rest = counters.into_iter().collect();
        }
        if !rest.is_empty() {
            draft.raw(rest.into());
        }
    }

    /// Reads the model's output, and returns unknown members.
    fn message(&mut self, said: Said<'_>, draft: &mut Draft) -> Rest {
        draft.reasoning(&self.thinking, said.thinking.into_text());
        let content = said.content.into_text();
        if !content.is_empty() {
            draft.close_reasoning(&self.thinking, None, None);
            draft.text(&None, content);
        }
        let mut unknown = Vec::new();
        for call in said.tool_calls.0 {
            draft.close_reasoning(&self.thinking, None, None);
            let mut rest = call.unknown;
            let Some(function) = call.function else {
                rest.add("id", call.id.into_value());
                unknown.extend((!rest.is_empty()).then(|| Value::from(rest)));
                continue;
            };
            let key = draft.open_call();
            draft.call(key, call.id.text(), function.name.text());
            draft.arguments(key, &function.arguments.0);
            draft.close_call(key);
            rest.extend(function.unknown);
            unknown.extend((!rest.is_empty()).then(|| Value::from(rest)));
        }
        let mut rest = said.unknown;
        rest.add("tool_calls", unknown);
        rest
    }
}

/// Why the model stopped. It reports `stop` for calls too, and older servers report nothing.
fn finish(reason: &str, draft: &mut Draft) {
    let why = match reason {
        "stop" | "" => FinishReason::Stop,
        "length" => FinishReason::Length,
        _ => FinishReason::Other,
    };
    draft.finish(why, reason);
}

fn usage(counters: &mut Metadata) -> Usage {
    const DURATIONS: [&str; 4] =
        ["total_duration", "load_duration", "prompt_eval_duration", "eval_duration"];
    let mut count = |name: &str| take_count(counters, &[name]);
    let (input_tokens, output_tokens) = (count("prompt_eval_count"), count("eval_count"));
    let cached_input_tokens = count("prompt_eval_cached_count");
    let durations = DURATIONS
        .iter()
        .filter_map(|name| Some(((*name).to_owned(), counters.shift_remove(*name)?)));
    let mut usage = Usage::new(input_tokens, output_tokens);
    usage.cached_input_tokens = cached_input_tokens;
    usage.extra = telling(durations).into();
    usage
}
