//! An answer of Responses, streamed or whole.

use std::{borrow::Cow, mem::take};

use mynah_data::{AdapterReason, Error, FinishReason, Metadata, Result, Usage};
use serde_json::{Value, json, value::RawValue};

use super::items::{Items, Source, WireItem};
use crate::{
    draft::Draft,
    failure,
    format::Decoder,
    loose::{self, List, Loose, Rest, Written, members, take_count, telling, text_of, told_cost},
    sse::Frame,
};

/// Reads one answer.
#[derive(Default)]
pub(super) struct Answer {
    items: Items,
    /// The unknown members of the answer that were emitted last. Later events repeat them.
    unknown: Metadata,
}

members! {
    /// Every kind of event, for they share their members. `type` may come last.
    Event<'a> {
        kind: Loose<'a> = "type",
        item_id: Loose<'a> = "item_id",
        output_index: Loose<'a> = "output_index",
        content_index: Loose<'a> = "content_index",
        summary_index: Loose<'a> = "summary_index",
        delta: Loose<'a> = "delta",
        text: Loose<'a> = "text",
        refusal: Loose<'a> = "refusal",
        arguments: Written<'a> = "arguments",
        part: Loose<'a> = "part",
        item: Option<Box<WireItem<'a>>> = "item",
        response: Option<Box<Reply<'a>>> = "response",
        error: Loose<'a> = "error",
    } ignoring ["sequence_number", "obfuscation", "name", "input"]
}

members! {
    /// The answer itself. Most of its members only repeat the request.
    Reply<'a> {
        id: Loose<'a> = "id",
        model: Loose<'a> = "model",
        status: Loose<'a> = "status",
        output: Option<&'a RawValue> = "output",
        usage: Option<Box<Metadata>> = "usage",
        error: Loose<'a> = "error",
        incomplete_details: Loose<'a> = "incomplete_details",
        reasoning: Loose<'a> = "reasoning",
        service_tier: Loose<'a> = "service_tier",
        tool_usage: Loose<'a> = "tool_usage",
    } ignoring [
        "background", "billing", "completed_at", "conversation", "created_at", "frequency_penalty", "instructions",
        "max_output_tokens", "max_tool_calls", "metadata", "object", "output_text", "parallel_tool_calls",
        "presence_penalty", "previous_response_id", "prompt", "prompt_cache_key", "prompt_cache_options",
        "prompt_cache_retention", "safety_identifier", "store", "temperature", "text", "tool_choice", "tools", "top_logprobs", "top_p", "truncation",
        "user"
    ]
}

impl Decoder for Answer {
    fn frame(&mut self, frame: Frame<'_>, draft: &mut Draft) -> Result<()> {
        if frame.is_done() {
            return Ok(());
        }
        let mut event = Event::default();
        let extent = loose::read_part(frame.data, &mut event)?;
        let reread = || loose::read_raw(frame.data);
        let kind = match take(&mut event.kind) {
            Loose::Text(kind) => kind,
            _ if event.error.is_failure() => "error".into(),
            _ => frame.event.into(),
        };
        let unknown = take(&mut event.unknown);
        let known = match kind.as_ref() {
            "error" | "response.error" => return Err(failure::in_stream(&reread()?)),
            "keepalive" | "ping" => true,
            // The item has all of it when it is done.
            "response.custom_tool_call_input.delta" | "response.custom_tool_call_input.done" => {
                true
            }
            "response.created" | "response.queued" | "response.in_progress" => {
                if let Some(reply) = event.response {
                    draft.start(Some(reply.id.text()), Some(reply.model.text()));
                    self.tell_unknown(reply.unknown, draft);
                }
                true
            }
            "response.output_item.added" | "response.output_item.done" => {
                self.items.item(
                    *event.item.unwrap_or_default(),
                    event.output_index.number(),
                    kind.ends_with("done"),
                    draft,
                )?;
                true
            }
            "response.output_text.annotation.added" => {
                let index = event.content_index.number().unwrap_or_default();
                let (id, place) = (event.item_id.text(), event.output_index.number());
                self.items.find(Source::Text, id, place, draft)?.annotate(index);
                false
            }
            "response.completed"
            | "response.incomplete"
            | "response.failed"
            | "response.cancelled" => {
                // The event's name says how it ended where the answer itself does not.
                let ended = kind.trim_start_matches("response.");
                self.end(*event.response.unwrap_or_default(), ended, draft)?;
                true
            }
            _ => self.piece(&kind, &mut event, draft)?,
        };
        match known {
            true => {
                draft.raw_rest(&kind, unknown);
                extent.or_fail()?;
            }
            false => draft.raw(reread()?),
        }
        Ok(())
    }

    fn whole(&mut self, body: &str, draft: &mut Draft) -> Result<()> {
        let mut reply = Reply::default();
        loose::read(body, &mut reply)?;
        if reply.output.is_none() && !reply.error.is_failure() {
            return Err(failure::malformed("the answer has no output"));
        }
        self.end(reply, "completed", draft)
    }
}

impl Answer {
    /// A text of an item, in pieces or whole; false if that is not understood.
    fn piece(&mut self, kind: &str, event: &mut Event<'_>, draft: &mut Draft) -> Result<bool> {
        let Some(name) = kind.strip_prefix("response.") else { return Ok(false) };
        // The last dot is near the end: to look at each byte finds it sooner than a search made for long texts.
        let Some(dot) = name.bytes().rposition(|byte| byte == b'.') else { return Ok(false) };
        let (name, step) = (&name[..dot], &name[dot + 1..]);
        let (id, place) = (event.item_id.text(), event.output_index.number());
        let (content, summary) = (event.content_index.number(), event.summary_index.number());
        let (source, index, whole) = match name {
            "output_text" => (Source::Text, content, event.text.as_text()),
            "refusal" => (Source::Refusal, content, event.refusal.as_text()),
            "reasoning_summary_text" | "reasoning_summary" => {
                (Source::Summary, summary, event.text.as_text())
            }
            "reasoning_text" | "reasoning" => (Source::Thought, content, event.text.as_text()),
            "function_call_arguments" => {
                (Source::Arguments, None, Cow::Borrowed(&*event.arguments.0))
            }
            "content_part" | "reasoning_summary_part" | "reasoning_part" => {
                let part = take(&mut event.part).into_object().unwrap_or_default();
                let Some(source) = Source::of(&part) else { return Ok(false) };
                let index = summary.or(content).unwrap_or_default();
                self.items.find(source, id, place, draft)?.part(source, index, &part, draft);
                return Ok(true);
            }
            _ => return Ok(false),
        };
        let item = self.items.find(source, id, place, draft)?;
        let index = index.unwrap_or_default();
        match step {
            "delta" => item.tell(source, index, event.delta.take_text(), draft),
            "done" => item.tell_rest(source, index, &whole, draft),
            _ => return Ok(false),
        }
        Ok(true)
    }

    /// Ends the answer, in any way. Remaining data is emitted now.
    fn end(&mut self, reply: Reply<'_>, ended: &str, draft: &mut Draft) -> Result<()> {
        let status = if reply.status.text().is_empty() { ended } else { reply.status.text() };
        if reply.error.is_failure() {
            return Err(failure::in_stream(&json!({"error": reply.error.into_value()})));
        }
        if matches!(status, "failed" | "cancelled") {
            let why = format!("the provider gave the answer up: {status}");
            return Err(Error::adapter(AdapterReason::ProviderUnavailable).with_message(why));
        }
        draft.start(Some(reply.id.text()), Some(reply.model.text()));
        let mut output = List::default();
        if let Some(listed) = reply.output {
            loose::read(listed.get(), &mut output)?;
        }
        self.items.list(output.0, draft)?;
        let details = reply.incomplete_details.into_object().unwrap_or_default();
        finish(status, text_of(&details, "reason"), draft);
        let notes = [
            ("incomplete_details", details),
            ("reasoning", reply.reasoning.into_object().unwrap_or_default()),
        ];
        for (name, said) in notes {
            let said = telling(said);
            if !said.is_empty() {
                draft.note(name, said);
            }
        }
        if !reply.service_tier.text().is_empty() {
            draft.note("service_tier", reply.service_tier.text());
        }
        if let Some(counters) = reply.usage {
            let tools = reply.tool_usage.into_object().unwrap_or_default();
            draft.usage(usage(*counters, tools));
        }
        self.tell_unknown(reply.unknown, draft);
        draft.end();
        Ok(())
    }

    fn tell_unknown(&mut self, unknown: Rest, draft: &mut Draft) {
        let unknown = telling(unknown);
        if unknown != self.unknown {
            draft.raw_rest("response", unknown.clone());
            self.unknown = unknown;
        }
    }
}

fn finish(status: &str, reason: &str, draft: &mut Draft) {
    if status == "incomplete" {
        draft.cut_off();
    }
    match (status, reason) {
        ("completed", _) => draft.finish(FinishReason::Stop, status),
        ("incomplete", "max_output_tokens" | "max_tokens") => {
            draft.finish(FinishReason::Length, reason)
        }
        ("incomplete", "content_filter") => draft.finish(FinishReason::ContentFilter, reason),
        // The provider continues it in the background.
        ("queued" | "in_progress", _) => {}
        (_, "") => draft.finish(FinishReason::Other, status),
        _ => draft.finish(FinishReason::Other, reason),
    }
}

fn usage(mut counters: Metadata, tool_usage: Metadata) -> Usage {
    let mut count = |path: &[&str]| take_count(&mut counters, path);
    let mut usage = Usage::new(count(&["input_tokens"]), count(&["output_tokens"]));
    usage.total_tokens = count(&["total_tokens"]);
    usage.cached_input_tokens = count(&["input_tokens_details", "cached_tokens"]);
    usage.cache_write_tokens = count(&["input_tokens_details", "cache_write_tokens"]);
    usage.reasoning_tokens = count(&["output_tokens_details", "reasoning_tokens"]);
    usage.total_cost = told_cost(&counters);
    usage.tool_usage = tool_usage;
    usage.extra = telling(counters).into();
    usage
}
