//! An answer of Chat Completions, streamed or whole.

use std::{
    mem::{replace, take},
    sync::Arc,
};

use mynah_data::{AdapterReason, Error, FinishReason, Metadata, Result, Usage};
use serde_json::{Value, json};

use super::request::{CUSTOM, INPUT};
use crate::{
    draft::{Block, CallKey, Draft},
    failure,
    format::Decoder,
    loose::{
        self, Extent, List, Loose, Rest, Written, members, take_count, telling, tells, told_cost,
    },
    sse::Frame,
};

/// Reads one answer.
pub(super) struct Answer {
    /// Whether a stream has emitted something. A `message` after that repeats all of it.
    has_said: bool,
    /// Reasoning is one string in this format, wherever its pieces come: one block.
    reasoning: Block,
    is_reasoning: bool,
    /// `reasoning_details`, put together from their pieces.
    details: Vec<Metadata>,
    calls: Vec<Call>,
    /// A call and its name, which may continue until something else comes.
    naming: Option<(CallKey, String)>,
    /// The unknown members of a chunk that were emitted last. Some servers repeat them in every
    /// one.
    unknown: Rest,
    /// The same for a choice. Its delta and its `logprobs` are pieces.
    unknown_of_choice: Rest,
}

/// How far back a piece of a detail is matched with earlier ones.
const MAX_OPEN_DETAILS: usize = 100;

struct Call {
    key: CallKey,
    index: Option<u64>,
    /// The id as the server wrote it.
    id: String,
    /// The server repeats the name with each piece.
    in_pieces: bool,
    arguments: Braces,
    /// Its input is text: that of the only argument.
    is_custom: bool,
}

/// How far the text of an object came, by its braces.
#[derive(Default)]
struct Braces {
    has_begun: bool,
    open: usize,
    in_string: bool,
    is_escaped: bool,
}

impl Braces {
    fn read(&mut self, piece: &str) {
        for byte in piece.bytes() {
            match byte {
                _ if take(&mut self.is_escaped) => {}
                b'\\' => self.is_escaped = self.in_string,
                b'"' => self.in_string = !self.in_string,
                b'{' if !self.in_string => {
                    self.has_begun = true;
                    self.open += 1;
                }
                b'}' if !self.in_string => self.open = self.open.saturating_sub(1),
                _ => {}
            }
        }
    }

    fn are_whole(&self) -> bool {
        self.has_begun && self.open == 0
    }
}

members! {
    Chunk<'a> {
        id: Loose<'a> = "id",
        model: Loose<'a> = "model",
        object: Loose<'a> = "object",
        choices: Option<List<Choice<'a>>> = "choices",
        usage: Option<Box<Metadata>> = "usage",
        error: Loose<'a> = "error",
        service_tier: Loose<'a> = "service_tier",
        /// Who answered behind a gateway.
        provider: Loose<'a> = "provider",
    } ignoring ["created", "system_fingerprint", "obfuscation", "p"]
}

members! {
    Choice<'a> {
        index: Loose<'a> = "index",
        delta: Option<Delta<'a>> = "delta",
        message: Option<Box<Delta<'a>>> = "message",
        finish_reason: Loose<'a> = "finish_reason",
        native_finish_reason: Loose<'a> = "native_finish_reason",
        /// A gateway's report of a provider that failed.
        error: Loose<'a> = "error",
        /// Moonshot counts here.
        usage: Option<Box<Metadata>> = "usage",
    } ignoring []
}

members! {
    Delta<'a> {
        content: Loose<'a> = "content",
        refusal: Loose<'a> = "refusal",
        reasoning_content: Loose<'a> = "reasoning_content",
        reasoning: Loose<'a> = "reasoning",
        reasoning_details: Loose<'a> = "reasoning_details",
        tool_calls: List<CallDelta<'a>> = "tool_calls",
        /// How the only call was written before there could be several.
        function_call: Option<Box<FunctionDelta<'a>>> = "function_call",
    } ignoring ["role"]
}

members! {
    CallDelta<'a> {
        index: Loose<'a> = "index",
        id: Loose<'a> = "id",
        function: Option<FunctionDelta<'a>> = "function",
        custom: Option<Box<CustomDelta<'a>>> = "custom",
        extra_content: Option<Value> = "extra_content",
    } ignoring ["type"]
}

members! {
    FunctionDelta<'a> {
        name: Loose<'a> = "name",
        arguments: Written<'a> = "arguments",
    } ignoring []
}

members! {
    /// Of a tool that takes text instead of arguments.
    CustomDelta<'a> {
        name: Loose<'a> = "name",
        input: Loose<'a> = "input",
    } ignoring []
}

impl Decoder for Answer {
    fn frame(&mut self, frame: Frame<'_>, draft: &mut Draft) -> Result<()> {
        if frame.data.trim() == "[DONE]" {
            // Gateways say so even where what they pass on broke off.
            if !draft.has_finished() {
                return Err(failure::broke_off());
            }
            self.close(draft);
            draft.end();
            return Ok(());
        }
        self.chunk(frame.data, false, draft)
    }

    fn whole(&mut self, body: &str, draft: &mut Draft) -> Result<()> {
        self.chunk(body, true, draft)?;
        self.close(draft);
        draft.end();
        Ok(())
    }

    fn ended(&mut self, draft: &mut Draft) {
        self.close(draft);
    }
}

impl Answer {
    pub(super) fn new() -> Self {
        Self {
            has_said: false,
            reasoning: Some(Arc::from("reasoning")),
            is_reasoning: false,
            details: Vec::new(),
            calls: Vec::new(),
            naming: None,
            unknown: Rest::default(),
            unknown_of_choice: Rest::default(),
        }
    }

    fn chunk(&mut self, text: &str, whole: bool, draft: &mut Draft) -> Result<()> {
        let mut chunk = Chunk::default();
        let extent = loose::read_part(text, &mut chunk)?;
        if chunk.error.is_failure() || chunk.object.text() == "error" {
            return Err(failure::in_stream(&loose::read_raw(text)?));
        }
        if whole && chunk.choices.as_ref().is_none_or(|list| list.0.is_empty()) {
            return Err(failure::malformed("the answer has no choices"));
        }
        draft.start(Some(chunk.id.text()), Some(chunk.model.text()));
        for (name, said) in [("service_tier", &chunk.service_tier), ("provider", &chunk.provider)] {
            if !said.text().is_empty() && draft.noted(name) != Some(said.text()) {
                draft.note(name, said.text());
            }
        }
        let (mut unknown, mut pieces) = (chunk.unknown, Rest::default());
        let mut others = extent == Extent::Part;
        for choice in chunk.choices.iter_mut().flat_map(|list| &mut list.0) {
            // Only the first choice is the answer; others were asked for by the caller's own options.
            if choice.index.number().is_some_and(|index| index != 0) {
                others = true;
                continue;
            }
            extent.or_fail()?;
            if chunk.usage.is_none() {
                chunk.usage = choice.usage.take();
            }
            let mut rest = take(&mut choice.unknown);
            rest.leave_told_beside("logprobs", &mut self.unknown_of_choice);
            let (delta, message) = (choice.delta.as_mut(), choice.message.as_deref_mut());
            let mut message = message.filter(|_| !self.has_said);
            // In a whole message each is a separate call, with any numbers.
            for (place, call) in
                message.iter_mut().flat_map(|said| &mut said.tool_calls.0).enumerate()
            {
                call.index = Loose::Number(place.into());
            }
            let said = if whole { message.or(delta) } else { delta.or(message) };
            if let Some(said) = said {
                rest.add("delta", self.delta(said, draft));
            }
            if choice.error.is_failure() {
                return Err(failure::in_stream(&take(&mut choice.error).into_value()));
            }
            self.finish(choice.finish_reason.text(), choice.native_finish_reason.text(), draft)?;
            if !rest.is_empty() {
                pieces.add("choices", vec![Value::from(rest)]);
            }
        }
        if others {
            draft.raw(loose::read_raw(text)?);
        }
        // Groq may say it among its own members alone, and there it says that an answer failed which ends as others do.
        let own = |name: &str| unknown.get("x_groq").and_then(|own| own.get(name));
        let counted = || own("usage").and_then(Value::as_object).cloned().map(Box::new);
        if let Some(counters) = chunk.usage.or_else(counted) {
            draft.usage(usage(*counters));
        }
        if let Some(error) = own("error").filter(|error| tells(error)) {
            return Err(failure::in_stream(&json!({"error": error})));
        }
        unknown.leave_told(&mut self.unknown);
        unknown.extend(pieces);
        if !unknown.is_empty() {
            draft.raw(unknown.into());
        }
        Ok(())
    }

    /// Reads the model's output, and returns unknown members.
    fn delta(&mut self, delta: &mut Delta<'_>, draft: &mut Draft) -> Rest {
        let mut reasoning = delta.reasoning_content.take_text();
        if reasoning.is_empty() {
            reasoning = delta.reasoning.take_text();
        }
        for detail in delta.reasoning_details.take_objects() {
            let told = ["text", "summary"].iter().find_map(|name| detail.get(*name)?.as_str());
            if let (true, Some(told)) = (reasoning.is_empty(), told) {
                told.clone_into(&mut reasoning);
            }
            self.is_reasoning = true;
            self.detail(detail);
        }
        self.reason(reasoning, draft);
        match &mut delta.content {
            Loose::Text(text) if text.is_empty() => {}
            text @ Loose::Text(_) => self.text(text.take_text(), draft),
            parts => parts.take_objects().for_each(|part| self.part(part, draft)),
        }
        draft.refusal(delta.refusal.text());
        let mut rest = take(&mut delta.unknown);
        let only = delta.function_call.take().map(|function| CallDelta {
            index: Loose::Number(0.into()),
            function: Some(*function),
            ..CallDelta::default()
        });
        let mut unknown = Vec::new();
        for call in take(&mut delta.tool_calls.0).into_iter().chain(only) {
            self.interrupt_reasoning(draft);
            let rest = self.call(call, draft);
            unknown.extend((!rest.is_empty()).then(|| Value::from(rest)));
        }
        rest.add("tool_calls", unknown);
        rest
    }

    /// A part of content that is a list.
    fn part(&mut self, part: Metadata, draft: &mut Draft) {
        let text =
            |part: Option<&Value>| part.and_then(Value::as_str).unwrap_or_default().to_owned();
        match part.get("type").and_then(Value::as_str) {
            Some("text" | "output_text") => {
                self.text(text(part.get("text")), draft);
            }
            Some("thinking") => match part.get("thinking") {
                Some(Value::Array(pieces)) => {
                    for piece in pieces {
                        self.reason(text(piece.get("text")), draft);
                    }
                }
                said => self.reason(text(said), draft),
            },
            _ => draft.raw(Value::Object(part)),
        }
    }

    fn text(&mut self, text: String, draft: &mut Draft) {
        self.has_said = true;
        self.end_name(draft);
        self.interrupt_reasoning(draft);
        draft.text(&None, text);
    }

    fn reason(&mut self, text: String, draft: &mut Draft) {
        if !text.is_empty() {
            self.end_name(draft);
            self.has_said = true;
            self.is_reasoning = true;
            draft.reasoning(&self.reasoning, text);
        }
    }

    /// Merges pieces of details: those with the same place and type are one. Encrypted data is
    /// never split.
    fn detail(&mut self, piece: Metadata) {
        let said = |detail: &Metadata, name: &str| detail.get(name).cloned().filter(tells);
        let same = |known: &&mut Metadata| {
            ["index", "type"].iter().all(|name| known.get(*name) == piece.get(*name))
                && known.get("index").is_some()
                && ["id", "data"].iter().all(|name| {
                    let (known, new) = (said(known, name), said(&piece, name));
                    known.is_none() || new.is_none() || known == new
                })
        };
        let Some(known) = self.details.iter_mut().rev().take(MAX_OPEN_DETAILS).find(same) else {
            self.details.push(piece);
            return;
        };
        for (name, value) in piece {
            match (known.get_mut(&name), value) {
                (_, Value::Null) => {}
                (Some(Value::String(text)), Value::String(more))
                    if matches!(name.as_str(), "text" | "summary") =>
                {
                    text.push_str(&more);
                }
                (_, value) => drop(known.insert(name, value)),
            }
        }
    }

    /// The model continues with something else. Details may still follow, with the signature among
    /// them.
    fn interrupt_reasoning(&mut self, draft: &mut Draft) {
        if self.details.is_empty() {
            self.close_reasoning(draft);
        }
    }

    /// Ends the output.
    fn close(&mut self, draft: &mut Draft) {
        self.end_name(draft);
        for call in &mut self.calls {
            if take(&mut call.is_custom) && !draft.is_cut_off() {
                draft.arguments(call.key, "\"}");
            }
        }
        self.close_reasoning(draft);
    }

    fn close_reasoning(&mut self, draft: &mut Draft) {
        if !take(&mut self.is_reasoning) {
            return;
        }
        let details = take(&mut self.details);
        let signature = details.iter().find_map(|detail| detail.get("signature")?.as_str());
        let signature = signature.map(str::to_owned);
        let data = (!details.is_empty()).then(|| json!({"reasoning_details": details}));
        draft.close_reasoning(&self.reasoning, signature, data);
    }

    /// Takes a piece of a call that has text for its input.
    fn custom(
        &mut self,
        mut delta: CallDelta<'_>,
        custom: CustomDelta<'_>,
        draft: &mut Draft,
    ) -> Rest {
        let (index, id, name) = (delta.index.number(), delta.id.text(), custom.name.text());
        let key = self.call_key(index, id, name, "", draft);
        self.has_said = true;
        draft.call(key, delta.id.text(), custom.name.text());
        let call = self.calls.iter_mut().find(|call| call.key == key);
        if !call.is_none_or(|call| replace(&mut call.is_custom, true)) {
            draft.call_metadata(key, Metadata::from_iter([(CUSTOM.to_owned(), true.into())]));
            draft.arguments(key, &format!("{{\"{INPUT}\":\""));
        }
        let text = Value::from(custom.input.into_text()).to_string();
        draft.arguments(key, &text[1..text.len() - 1]);
        delta.unknown.extend(custom.unknown);
        delta.unknown
    }

    /// Reads a piece of a call, and returns its unknown members.
    fn call(&mut self, mut delta: CallDelta<'_>, draft: &mut Draft) -> Rest {
        if let Some(custom) = delta.custom.take() {
            return self.custom(delta, *custom, draft);
        }
        let function = delta.function.unwrap_or_default();
        let (index, id, name) = (delta.index.number(), delta.id.text(), function.name.text());
        let arguments = function.arguments.0;
        let key = self.call_key(index, id, name, &arguments, draft);
        self.has_said = true;
        draft.call(key, id, "");
        self.name(key, name, draft);
        // Some servers end a call with all of its arguments again.
        if !arguments.is_empty() && !draft.has_all_of(key, &arguments) {
            self.end_name(draft);
            draft.arguments(key, &arguments);
        }
        if let Some(extra) = delta.extra_content {
            draft.call_metadata(key, Metadata::from_iter([("extra_content".to_owned(), extra)]));
        }
        delta.unknown.extend(function.unknown);
        delta.unknown
    }

    /// Some servers write a name in pieces, others repeat it with each piece of the arguments.
    fn name(&mut self, key: CallKey, piece: &str, draft: &mut Draft) {
        if self.naming.as_ref().is_some_and(|(named, _)| *named != key) {
            self.end_name(draft);
        }
        if !piece.is_empty() {
            let (_, name) = self.naming.get_or_insert_with(|| (key, String::new()));
            match piece.starts_with(name.as_str()) {
                true => piece.clone_into(name),
                false => name.push_str(piece),
            }
        }
    }

    fn end_name(&mut self, draft: &mut Draft) {
        if let Some((key, name)) = self.naming.take() {
            draft.call(key, "", &name);
        }
    }

    /// The call that a piece belongs to: that of its index. Some servers omit the index, or use the
    /// same one for several calls. They distinguish calls by id, and begin each with its name. If
    /// the call so far is complete, another name begins a new call, and so does the same name with
    /// other arguments, even under the same id. Repeated arguments are a new call if nothing
    /// identifies them as the same one. A piece without a name continues a call, even under an id
    /// of its own, because some servers give each piece an id.
    fn call_key(
        &mut self,
        index: Option<u64>,
        id: &str,
        name: &str,
        arguments: &str,
        draft: &mut Draft,
    ) -> CallKey {
        let named = !name.is_empty();
        let is_here = |call: &&mut Call| index.is_none() || call.index == index;
        let found = match index {
            _ if !named => {
                let calls = self.calls.iter_mut().filter(is_here);
                calls.max_by_key(|call| !id.is_empty() && call.id == id)
            }
            Some(_) => self.calls.iter_mut().rfind(is_here),
            None => self.calls.last_mut().filter(|call| !id.is_empty() && call.id == id),
        };
        let goes_on = |call: &mut Call| {
            let (known, so_far) = draft.call_so_far(call.key);
            if !named || known.is_empty() || so_far.is_empty() {
                return true;
            }
            if !call.arguments.are_whole() {
                call.in_pieces = true;
                return true;
            }
            let is_same = call.in_pieces || (!id.is_empty() && call.id == id);
            let repeats = is_same && so_far == arguments;
            known == name && (repeats || !arguments.trim_start().starts_with('{'))
        };
        let found = found.and_then(|call| goes_on(call).then_some(call));
        match found {
            Some(call) if !named || id.is_empty() || call.id.is_empty() || call.id == id => {
                if call.id.is_empty() {
                    id.clone_into(&mut call.id);
                }
                call.arguments.read(arguments);
                call.key
            }
            _ => {
                let key = draft.open_call();
                let (id, mut braces) = (id.to_owned(), Braces::default());
                braces.read(arguments);
                let arguments = braces;
                self.calls.push(Call {
                    key,
                    index,
                    id,
                    in_pieces: false,
                    arguments,
                    is_custom: false,
                });
                key
            }
        }
    }

    fn finish(&mut self, reason: &str, native: &str, draft: &mut Draft) -> Result<()> {
        if reason.is_empty() {
            return Ok(());
        }
        let fail = |why: AdapterReason| {
            Err(Error::adapter(why).with_message(format!("the model stopped: {reason}")))
        };
        let why = match reason.to_ascii_lowercase().as_str() {
            "insufficient_system_resource" => return fail(AdapterReason::Overloaded),
            "error" => return fail(AdapterReason::ProviderUnavailable),
            // Some gateways say something else of a call that was cut off, and pass other providers' words on.
            reason if is_limit(reason) || is_limit(native) => FinishReason::Length,
            "stop" | "eos" => FinishReason::Stop,
            "tool_calls" | "tool_call" | "tool_use" | "function_call" => FinishReason::ToolCalls,
            "content_filter" | "refusal" => FinishReason::ContentFilter,
            _ => FinishReason::Other,
        };
        draft.finish(why, if native.is_empty() { reason } else { native });
        // Not every server ends its stream with `[DONE]`.
        draft.allow_end();
        Ok(())
    }
}

fn is_limit(word: &str) -> bool {
    ["length", "max_tokens", "max_output_tokens", "model_length"]
        .iter()
        .any(|limit| word.eq_ignore_ascii_case(limit))
}

/// Some providers count reasoning beside the output, and sound beside the prompt. We count them as parts: what is larger than
/// the whole, or is in the total alone, is not in it yet.
fn usage(mut counters: Metadata) -> Usage {
    let mut count = |path: &[&str]| take_count(&mut counters, path);
    let mut usage = Usage::new(count(&["prompt_tokens"]), count(&["completion_tokens"]));
    usage.total_tokens = count(&["total_tokens"]);
    usage.cache_write_tokens = count(&["prompt_tokens_details", "cache_write_tokens"]);
    // Some write these beside the others.
    let cached = count(&["prompt_tokens_details", "cached_tokens"]);
    let hit = cached.or_else(|| count(&["prompt_cache_hit_tokens"]));
    usage.cached_input_tokens = hit.or_else(|| count(&["cached_tokens"]));
    let reasoning = count(&["completion_tokens_details", "reasoning_tokens"]);
    usage.reasoning_tokens = reasoning.or_else(|| count(&["reasoning_tokens"]));
    let sound = counters.get("prompt_tokens_details").and_then(|list| list.get("audio_tokens"));
    add_part(&mut usage.input_tokens, sound.and_then(Value::as_u64));
    let beside = add_part(&mut usage.output_tokens, usage.reasoning_tokens);
    if let (Some(input), Some(output), Some(total)) =
        (usage.input_tokens, &mut usage.output_tokens, &mut usage.total_tokens)
    {
        let counted = input.saturating_add(*output);
        if beside && *total < counted {
            *total = counted;
        }
        *output = output.saturating_add(total.saturating_sub(counted));
    }
    usage.total_cost = told_cost(&counters);
    usage.extra = telling(counters).into();
    usage
}

/// Adds a part to the whole that it is not in; false if it is.
fn add_part(whole: &mut Option<u64>, part: Option<u64>) -> bool {
    match (whole, part) {
        (Some(whole), Some(part)) if part > *whole => {
            *whole = whole.saturating_add(part);
            true
        }
        _ => false,
    }
}
