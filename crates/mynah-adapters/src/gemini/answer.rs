//! An answer of Gemini: a stream of partial answers, or one, or a list of them.

use std::sync::Arc;

use mynah_data::{AdapterReason, Error, FinishReason, Metadata, Result};
use serde_json::{Value, json, value::RawValue};

use super::{
    counters::Counters,
    pieces,
    request::{CONTINUATION, SIGNATURE, WITHOUT_ID},
};
use crate::{
    draft::{Block, CallKey, Draft},
    failure,
    format::Decoder,
    json::Json,
    loose::{self, Extent, List, Loose, Members, Rest, Slot, members},
    sse::Frame,
};

/// Reads one answer.
#[derive(Default)]
pub(super) struct Answer {
    /// The block that is being written.
    open: Option<Open>,
    blocks: usize,
    has_chunk: bool,
    /// The call whose arguments come in pieces.
    call: Option<OpenCall>,
    has_candidate: bool,
    /// What the next request must have where the answer stops before its end.
    continuation: String,
    counters: Counters,
    /// The unknown members of a chunk that were emitted last. Chunks repeat them.
    unknown: Rest,
    /// The same for a candidate. Its content and its `logprobsResult` are pieces.
    unknown_of_candidate: Rest,
}

struct Open {
    block: Block,
    is_thought: bool,
}

struct OpenCall {
    key: CallKey,
    /// None where a piece had no place in them.
    arguments: Option<Value>,
}

members! {
    /// One partial answer.
    Chunk<'a> {
        id: Loose<'a> = "responseId",
        model: Loose<'a> = "modelVersion",
        candidates: List<Candidate<'a>> = "candidates",
        feedback: Loose<'a> = "promptFeedback",
        error: Loose<'a> = "error",
    } ignoring ["createTime"]
}

members! {
    Candidate<'a> {
        index: Loose<'a> = "index",
        content: Option<Content<'a>> = "content",
        finish_reason: Loose<'a> = "finishReason",
        finish_message: Loose<'a> = "finishMessage",
        continuation: Loose<'a> = "continuationToken",
    } ignoring []
}

members! {
    Content<'a> {
        parts: List<Part<'a>> = "parts",
    } ignoring ["role"]
}

members! {
    Part<'a> {
        text: Option<Loose<'a>> = "text",
        thought: Loose<'a> = "thought",
        signature: Loose<'a> = "thoughtSignature",
        call: Option<Box<FunctionCall<'a>>> = "functionCall",
    } ignoring []
}

members! {
    FunctionCall<'a> {
        id: Loose<'a> = "id",
        name: Loose<'a> = "name",
        args: Option<&'a RawValue> = "args",
        pieces: Loose<'a> = "partialArgs",
        goes_on: Loose<'a> = "willContinue",
    } ignoring []
}

/// A partial answer, and the counters of the whole one: what it repeats of these is not read again.
struct Reading<'c, 'a> {
    chunk: Chunk<'a>,
    counters: &'c mut Counters,
}

impl<'a> Slot<'a> for Reading<'_, 'a> {
    fn put(&mut self, json: &mut Json<'a>) -> serde_json::Result<()> {
        if json.peek() != b'{' {
            return self.chunk.put(json);
        }
        json.object(|name, json| match &*name {
            "usageMetadata" => self.counters.put(json),
            name => self.chunk.member(name, json),
        })
    }
}

impl Decoder for Answer {
    fn frame(&mut self, frame: Frame<'_>, draft: &mut Draft) -> Result<()> {
        // Some gateways end so.
        if frame.is_done() {
            return Ok(());
        }
        self.chunk(frame.data, draft)
    }

    fn whole(&mut self, body: &str, draft: &mut Draft) -> Result<()> {
        if body.trim_start().starts_with('[') {
            let chunks: Vec<&RawValue> = serde_json::from_str(body).map_err(failure::malformed)?;
            chunks.into_iter().try_for_each(|chunk| self.chunk(chunk.get(), draft))?;
            if self.has_candidate && !draft.may_end() {
                return Err(failure::broke_off());
            }
        } else {
            self.chunk(body, draft)?;
        }
        if !self.has_candidate {
            return Err(no_candidates());
        }
        self.close(None, draft);
        draft.end();
        Ok(())
    }

    fn unfinished(&self) -> Error {
        if self.has_chunk && !self.has_candidate { no_candidates() } else { failure::broke_off() }
    }
}

fn no_candidates() -> Error {
    failure::malformed("the answer has no candidates")
}

impl Answer {
    fn chunk(&mut self, text: &str, draft: &mut Draft) -> Result<()> {
        let mut reading = Reading { chunk: Chunk::default(), counters: &mut self.counters };
        let extent = loose::read_part(text, &mut reading)?;
        let chunk = reading.chunk;
        if chunk.error.is_failure() {
            return Err(failure::in_stream(&chunk.error.into_value()));
        }
        self.has_chunk = true;
        draft.start(Some(chunk.id.text()), Some(chunk.model.text()));
        let mut unknown = chunk.unknown;
        if let Some(feedback) = chunk.feedback.into_object() {
            if let Some(reason) = feedback.get("blockReason").and_then(Value::as_str) {
                self.counters.tell(draft);
                return Err(blocked(reason, &feedback));
            }
            unknown.push("promptFeedback", feedback);
        }
        unknown.leave_told(&mut self.unknown);
        let mut others = extent == Extent::Part;
        for candidate in chunk.candidates.0 {
            // Only the first candidate is the answer; others were asked for by the caller's own options.
            if candidate.index.number().is_some_and(|index| index != 0) {
                others = true;
                continue;
            }
            extent.or_fail()?;
            let rest = self.candidate(candidate, draft);
            let grounds =
                rest.get("groundingMetadata").and_then(|said| said.get("webSearchQueries"));
            if let Some(Value::Array(queries)) = grounds {
                self.counters.searched(queries);
            }
            if !rest.is_empty() {
                unknown.add("candidates", vec![Value::from(rest)]);
            }
        }
        if others {
            draft.raw(loose::read_raw(text)?);
        }
        self.counters.tell(draft);
        if !unknown.is_empty() {
            draft.raw(unknown.into());
        }
        Ok(())
    }

    /// Reads the model's output, and returns unknown members.
    fn candidate(&mut self, candidate: Candidate<'_>, draft: &mut Draft) -> Rest {
        self.has_candidate = true;
        let mut rest = candidate.unknown;
        rest.leave_told_beside("logprobsResult", &mut self.unknown_of_candidate);
        let mut goes_on = false;
        if let Some(content) = candidate.content {
            let mut unknown = content.unknown;
            let mut parts = Vec::new();
            for part in content.parts.0 {
                // Code is followed by its result, even if the provider reports that it stopped.
                goes_on = part.unknown.get("executableCode").is_some();
                let rest = self.part(part, draft);
                parts.extend((!rest.is_empty()).then(|| Value::from(rest)));
            }
            unknown.add("parts", parts);
            rest.add("content", unknown);
        }
        if !candidate.finish_message.text().is_empty() {
            draft.note("finish_message", candidate.finish_message.text());
        }
        if !candidate.continuation.text().is_empty() {
            self.continuation = candidate.continuation.into_text();
        }
        let reason = candidate.finish_reason.text();
        if !reason.is_empty() {
            self.close(None, draft);
            if reason == "STOP" {
                self.end_call(draft);
            } else if self.call.take().is_some() {
                // What was to come of its arguments is lost.
                draft.cut_off();
            }
            self.finish(reason, draft);
            if !goes_on {
                draft.allow_end();
            }
        }
        rest
    }

    /// Reads one part, and returns its unknown members.
    fn part(&mut self, part: Part<'_>, draft: &mut Draft) -> Rest {
        let signature = Some(part.signature.into_text()).filter(|signature| !signature.is_empty());
        let mut rest = part.unknown;
        match (part.call, part.text) {
            (Some(call), _) => {
                self.close(None, draft);
                draft.forbid_end();
                rest.add("functionCall", self.call(*call, signature, draft));
            }
            // Code that the provider ran, images, and unknown parts go back unchanged.
            (None, None) if !rest.is_empty() => {
                self.close(None, draft);
                draft.forbid_end();
                rest.add("thought", part.thought.into_value());
                rest.add(SIGNATURE, signature);
                draft.opaque(&self.next_block(), json!({"part": Value::from(rest.clone())}));
            }
            (None, text) => {
                let text = text.unwrap_or_default().into_text();
                if !text.is_empty() {
                    draft.forbid_end();
                }
                match part.thought.is_true() {
                    true => self.thought(text, signature, draft),
                    false => self.text(text, signature, draft),
                }
            }
        }
        rest
    }

    /// A signature belongs to the piece that it comes with, so that piece stays separate. It is
    /// emitted before its text: it covers the thinking before it.
    fn text(&mut self, text: String, signature: Option<String>, draft: &mut Draft) {
        let is_signed = signature.is_some();
        if is_signed {
            self.close(None, draft);
            draft.close_reasoning(&self.next_block(), signature, None);
        }
        if !text.is_empty() {
            let block = self.write(false, draft);
            draft.text(&block, text);
        }
        if is_signed {
            self.close(None, draft);
        }
    }

    fn thought(&mut self, text: String, signature: Option<String>, draft: &mut Draft) {
        if text.is_empty() && signature.is_none() {
            return;
        }
        if signature.is_some() && !text.is_empty() {
            self.close(None, draft);
        }
        let block = self.write(true, draft);
        draft.reasoning(&block, text);
        if signature.is_some() {
            self.close(signature, draft);
        }
    }

    /// The block that is being written, or a new one.
    fn write(&mut self, is_thought: bool, draft: &mut Draft) -> Block {
        match &self.open {
            Some(open) if open.is_thought == is_thought => open.block.clone(),
            _ => {
                self.close(None, draft);
                let block = self.next_block();
                self.open = Some(Open { block: block.clone(), is_thought });
                block
            }
        }
    }

    fn close(&mut self, signature: Option<String>, draft: &mut Draft) {
        match self.open.take() {
            Some(Open { block, is_thought: true }) => {
                draft.close_reasoning(&block, signature, None)
            }
            Some(Open { block, is_thought: false }) => draft.close_text(&block),
            None => {}
        }
    }

    /// Reads a call or a piece of one, and returns its unknown members.
    fn call(
        &mut self,
        mut call: FunctionCall<'_>,
        signature: Option<String>,
        draft: &mut Draft,
    ) -> Rest {
        let is_new = self.call.is_none() || !call.name.text().is_empty();
        if is_new {
            self.end_call(draft);
        }
        let key = match &self.call {
            Some(open) => open.key,
            None => draft.open_call(),
        };
        let without_id = is_new && call.id.text().is_empty();
        let without_id = without_id.then(|| (WITHOUT_ID.to_owned(), true.into()));
        let signature = signature.map(|signature| (SIGNATURE.to_owned(), signature.into()));
        draft.call_metadata(key, without_id.into_iter().chain(signature).collect());
        draft.call(key, call.id.text(), call.name.text());
        let args = call.args.map(RawValue::get).filter(|args| *args != "null").unwrap_or_default();
        let goes_on = call.goes_on.is_true();
        let mut lost = Vec::new();
        let mut pieces = call.pieces.take_objects().peekable();
        if goes_on || !is_new || pieces.peek().is_some() {
            let whole = serde_json::from_str(args).unwrap_or_else(|_| json!({}));
            let open = self.call.get_or_insert(OpenCall { key, arguments: Some(whole) });
            for piece in pieces {
                let arguments = open.arguments.as_mut();
                if arguments.and_then(|arguments| pieces::put(arguments, &piece)).is_none() {
                    open.arguments = None;
                    lost.push(Value::Object(piece));
                }
            }
            if !goes_on {
                self.end_call(draft);
            }
        } else {
            // Some gateways write the object as text.
            match serde_json::from_str::<String>(args) {
                Ok(text) => draft.arguments(key, &text),
                Err(_) => draft.arguments(key, args),
            }
            draft.close_call(key);
        }
        call.unknown.add("partialArgs", lost);
        call.unknown
    }

    /// The call whose arguments came in pieces is complete.
    fn end_call(&mut self, draft: &mut Draft) {
        match self.call.take() {
            Some(OpenCall { key, arguments: Some(arguments) }) => {
                draft.arguments(key, &arguments.to_string());
                draft.close_call(key);
            }
            Some(_) => draft.cut_off(),
            None => {}
        }
    }

    fn finish(&mut self, reason: &str, draft: &mut Draft) {
        let continuation = std::mem::take(&mut self.continuation);
        match reason {
            // A request has its own limit, and the answer is not at its end.
            "CONTINUATION" if !continuation.is_empty() => {
                draft.opaque(&self.next_block(), json!({CONTINUATION: continuation}));
                draft.pause();
                draft.cut_off();
                return draft.finish(FinishReason::Other, reason);
            }
            // Only the caller can give it more tokens.
            "MAX_TOKENS" if !continuation.is_empty() => {
                draft.note("continuation_token", continuation);
            }
            _ => {}
        }
        draft.finish(finish_reason(reason), reason);
    }

    fn next_block(&mut self) -> Block {
        self.blocks += 1;
        Some(Arc::from((self.blocks - 1).to_string()))
    }
}

fn finish_reason(reason: &str) -> FinishReason {
    match reason {
        "STOP" => FinishReason::Stop,
        // The second if the provider does not report how it would continue.
        "MAX_TOKENS" | "CONTINUATION" => FinishReason::Length,
        // The provider itself says STOP.
        "FUNCTION_CALL" => FinishReason::ToolCalls,
        "SAFETY"
        | "RECITATION"
        | "LANGUAGE"
        | "BLOCKLIST"
        | "PROHIBITED_CONTENT"
        | "SPII"
        | "MODEL_ARMOR"
        | "IMAGE_SAFETY"
        | "IMAGE_PROHIBITED_CONTENT"
        | "IMAGE_RECITATION" => FinishReason::ContentFilter,
        "MALFORMED_FUNCTION_CALL"
        | "UNEXPECTED_TOOL_CALL"
        | "TOO_MANY_TOOL_CALLS"
        | "MISSING_THOUGHT_SIGNATURE"
        | "MALFORMED_RESPONSE" => FinishReason::Error,
        _ => FinishReason::Other,
    }
}

/// The error of a prompt that the provider does not answer.
fn blocked(reason: &str, feedback: &Metadata) -> Error {
    let why = feedback.get("blockReasonMessage").and_then(Value::as_str).map(str::to_owned);
    Error::adapter(AdapterReason::ContentFilter)
        .with_message(why.unwrap_or_else(|| format!("the prompt was blocked: {reason}")))
        .with("block_reason", reason)
}
