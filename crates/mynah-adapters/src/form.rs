//! Output formats that the provider does not enforce: the model gets a tool of that format, and the
//! tool's input is the text of the answer. Anthropic and Bedrock both work this way.

use mynah_data::{Error, FinishReason, Request, ResponseFormat, Result, ToolSpec};
use serde_json::{Value, json};

use crate::{
    claude,
    draft::{Block, Draft},
    fit::{self, Dialect, Target, fit},
    request::{model_name, plain_id, unsupported, unsupported_form},
};

/// The forms that a model's answers can be given.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Forms {
    /// The provider holds the model to a schema that names all members of its objects.
    pub(crate) enforced: bool,
    /// A tool asks it for objects with members of any name.
    pub(crate) open: bool,
}

impl Forms {
    /// The schema that the provider holds the model to. What it does not name it lets no object have.
    pub(crate) fn enforced_schema(self, request: &Request) -> Option<Value> {
        match request.response_format.as_ref()? {
            ResponseFormat::JsonSchema { schema, .. } if self.enforced => closed(schema),
            _ => None,
        }
    }

    /// The tool that the model must call, if the provider does not enforce the format of its
    /// answer.
    pub(crate) fn tool(self, request: &Request) -> Option<ToolSpec> {
        const WHY: &str = "Gives the answer. Its input is the answer itself.";
        /// What all models take for a tool's name.
        const MAX_NAME: usize = 64;
        let (name, schema) = match request.response_format.as_ref()? {
            _ if self.enforced_schema(request).is_some() => return None,
            ResponseFormat::JsonSchema { name, schema, .. } if self.asks_for(schema) => {
                (name.as_str(), schema.clone())
            }
            ResponseFormat::JsonObject if self.open => ("object", json!({"type": "object"})),
            _ => return None,
        };
        let mut name = format!("respond_with_json_{}", plain_id(name));
        name.truncate(MAX_NAME);
        // A model that has answered must not answer again.
        let mut calls = request.messages.iter().flat_map(|message| message.tool_calls());
        (!calls.any(|call| call.name == name)).then(|| ToolSpec::new(name, WHY, schema))
    }

    /// Whether a tool can ask the model for this form.
    fn asks_for(self, schema: &Value) -> bool {
        self.open || (!self.enforced && fit::is_closable(schema))
    }

    /// Rejects a format that the model cannot produce. `thinking` is the option for thinking.
    pub(crate) fn check(self, request: &Request, thinking: Option<&Value>) -> Result<()> {
        match &request.response_format {
            Some(ResponseFormat::JsonObject) if !self.open => {
                return Err(unsupported_form("this model wants a JSON schema"));
            }
            Some(ResponseFormat::JsonSchema { name, schema, .. }) => {
                fit::answer(name, schema, Dialect::Anthropic, true)?;
                if self.enforced_schema(request).is_none() && !self.asks_for(schema) {
                    return Err(open_form());
                }
            }
            _ => {}
        }
        let Some(tool) = self.tool(request) else { return Ok(()) };
        if is_without_tools(request) {
            return Err(unsupported_form("this model has no tools, and no other way to this form"));
        }
        if tool.schema.get("type").is_some_and(|kind| kind != "object") {
            return Err(unsupported("this model answers in the form of an object alone"));
        }
        let thinks =
            thinking.and_then(|how| how["type"].as_str()).is_some_and(|how| how != "disabled");
        if thinks && !claude::thinks_when_forced(model_name(request)) {
            return Err(unsupported_form(
                "this model cannot think in a call that holds it to this form: leave `thinking` away",
            ));
        }
        Ok(())
    }
}

/// A schema that the provider can hold the model to, if it is one.
fn closed(schema: &Value) -> Option<Value> {
    let target = Target::answer(Dialect::Anthropic).strict(Some(true));
    fit(schema, target).ok().filter(|fitted| fitted.strict).map(|fitted| fitted.schema)
}

/// Refuses a form that no schema can hold this model to.
fn open_form() -> Error {
    unsupported_form(
        "objects of this model's answers have no members but those that the schema names, and it cannot refer to itself: name all members, or ask for a list of them",
    )
}

/// Whether the model is known to have no tools.
fn is_without_tools(request: &Request) -> bool {
    let tools = request.model.as_ref().and_then(|model| model.capabilities.get("tools"));
    tools.is_some_and(|tools| *tools == false || tools["enabled"] == false)
}

/// An answer that may be asked for by a tool, while it is read.
pub(crate) struct Form {
    /// The tool; none where the answer is in the model's words.
    tool: Option<String>,
    progress: Progress,
    /// The call that is the answer. A model may call the tool again.
    answer: Option<Block>,
    /// The model's text beside the requested answer.
    beside: Vec<(Block, String)>,
}

/// How far the call came that is the answer.
#[derive(Clone, Copy, PartialEq)]
enum Progress {
    NotCalled,
    Empty,
    Told,
}

impl Form {
    pub(crate) fn new(tool: Option<ToolSpec>) -> Self {
        let tool = tool.map(|tool| tool.name);
        Self { tool, progress: Progress::NotCalled, answer: None, beside: Vec::new() }
    }

    /// Whether a call will be the answer. Texts [wait](Self::set_aside) for it.
    pub(crate) fn is_wanted(&self) -> bool {
        self.tool.is_some()
    }

    /// A tool is called. True if that is the answer.
    pub(crate) fn begins(&mut self, tool: &str) -> bool {
        let begins = self.tool.as_deref() == Some(tool);
        if begins && self.progress == Progress::NotCalled {
            self.progress = Progress::Empty;
        }
        begins
    }

    /// A piece of the call's input. The first call that has one is the answer.
    pub(crate) fn write(&mut self, block: &Block, input: impl Into<String>, draft: &mut Draft) {
        let input = input.into();
        if input.is_empty() {
            return;
        }
        self.progress = Progress::Told;
        match self.answer.get_or_insert_with(|| block.clone()) == block {
            true => draft.text(block, input),
            false => draft.raw(json!({"type": "tool_use", "input": input})),
        }
    }

    /// A text that the answer takes the place of, if it comes.
    pub(crate) fn set_aside(&mut self, block: Block, text: String) {
        self.beside.push((block, text));
    }

    /// Why the model stopped. A call of the format's tool counts as an answer.
    pub(crate) fn finish(&self, why: FinishReason, raw: &str, draft: &mut Draft) {
        let is_alone = !draft.has_calls();
        let called = why == FinishReason::ToolCalls;
        let is_answer = called && self.is_wanted() && is_alone;
        draft.finish(if is_answer { FinishReason::Stop } else { why }, raw);
        if self.progress != Progress::NotCalled && is_alone {
            draft.note("structured_output_tool", true);
        }
        if self.progress == Progress::Empty && called {
            draft.text(&None, "{}");
        }
    }

    /// Emits the texts that were set aside: they are the answer if no other came.
    pub(crate) fn tell_beside(&mut self, draft: &mut Draft) {
        for (block, text) in std::mem::take(&mut self.beside) {
            if self.progress == Progress::NotCalled {
                draft.text(&block, text);
                draft.close_text(&block);
            } else if !text.is_empty() {
                draft.raw(json!({"type": "text", "text": text}));
            }
        }
    }
}
