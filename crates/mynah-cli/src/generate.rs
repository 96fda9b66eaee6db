//! `mynah generate`: calls a model once.

use std::{
    io::{self, IsTerminal as _, Write as _},
    path::{Path, PathBuf},
    sync::Arc,
};

use clap::Args;
use futures_util::StreamExt as _;
use mynah::{
    AdapterReason, EngineReason, Error, ErrorKind, FinishReason, Generate, Image, Message, Part,
    Request, Response, RunId, StreamReason, ToolSpec,
};
use mynah_agent::answer::cut_off;
use serde::{Deserialize, de::DeserializeOwned};
use serde_json::{Value, json};

use crate::{
    Failure,
    event_printer::EventPrinter,
    form::Form,
    input,
    ledger::Ledger,
    model::{CallArgs, Tries, script},
    near, runtime,
    store::{LogLocation, shown},
    text::{for_stdout, quoted},
    unless_interrupted, written,
};

pub(crate) const EXAMPLES: &str = "API keys are read from the provider's own variable, such as ANTHROPIC_API_KEY.

Examples:
  mynah generate -m anthropic:claude-sonnet-5 'What is a mynah?'
  git diff | mynah generate -m openai-chat:gpt-4.1-mini --system 'Write a commit message.'
  cat report.txt | mynah generate -m openai-chat:gpt-4.1-mini 'Summarize this:' -
  mynah generate -m openai-chat:gpt-4.1-mini --image photo.jpg 'What is on it?'
  mynah generate -m openai-chat:gpt-4.1-mini --schema person.json --json 'Invent a person.'
  mynah generate -m llamacpp:default --base-url http://localhost:8080 --param temperature=0 hi
  mynah generate -m scripted:scenarios/chat/tool_turn.json --json --stream hi

Exit codes: 0 the model answered; an answer cut off by a token limit or filter counts, with a note on standard error; 1 the call failed, or the answer broke off or does not fit the schema; 2 wrong usage, a bad input file, or no key; 4 a server, file or log cannot be used; 130 interrupted.";

#[derive(Args)]
pub(crate) struct Arguments {
    /// Prompt, in quotes; - stands for standard input. If missing, the prompt is read from standard input.
    prompt: Vec<String>,
    /// Model to call, such as openai-chat:gpt-4.1-mini; scripted:FILE plays the scripts of a scenario.
    #[arg(long, short, value_name = "ADAPTER:MODEL", env = "MYNAH_MODEL")]
    model: Option<String>,
    #[command(flatten)]
    call: CallArgs,
    /// System prompt.
    #[arg(long, value_name = "TEXT")]
    system: Option<String>,
    /// Attach an image, by path or URL. Repeatable.
    #[arg(long = "image", value_name = "FILE|URL")]
    images: Vec<String>,
    /// Describe tools to the model: a JSON list of {"name", "description", "schema"}. They never run.
    #[arg(long, value_name = "FILE")]
    tools: Option<PathBuf>,
    /// JSON Schema that the answer must fit.
    #[arg(long, value_name = "FILE")]
    schema: Option<PathBuf>,
    /// Set an option of the call or of the provider. Repeatable. A value that is not JSON is text.
    #[arg(long = "param", value_name = "NAME=JSON", value_parser = param)]
    params: Vec<(String, Value)>,
    /// Record the call in this log: memory: or sqlite:PATH. By default nothing is recorded.
    #[arg(long, value_name = "URL")]
    log: Option<String>,
    /// With --json, print the events too. Text is always streamed.
    #[arg(long)]
    stream: bool,
    /// Print JSON, one value per line.
    #[arg(long)]
    json: bool,
}

fn param(said: &str) -> Result<(String, Value), String> {
    let (name, value) = said.split_once('=').ok_or("give a name, =, and JSON")?;
    if name == "model" {
        return Err("-m names the model".to_owned());
    }
    let value = serde_json::from_str(value).unwrap_or_else(|_| value.into());
    Ok((name.to_owned(), value))
}

/// Whether this is the provider's in a request, and would be the engine's as an option of the call.
fn is_shared(name: &str) -> bool {
    matches!(name, "tools" | "metadata")
}

pub(crate) fn main(arguments: Arguments) -> Result<(), Failure> {
    let Some(model) = arguments.model.as_deref().filter(|name| !name.is_empty()) else {
        return Err(Failure::input(
            "no model: give --model ADAPTER:MODEL, such as --model anthropic:claude-sonnet-5, or set MYNAH_MODEL",
        ));
    };
    let tries = Tries::default();
    let engine = arguments.call.engine(model, &tries)?;
    let mut options = arguments.call.options();
    let params = arguments.params.iter().filter(|(name, _)| !is_shared(name)).cloned();
    let params = params.collect();
    near::warn("--param", &params);
    options = options.overlay(mynah::Options::from_json(Value::Object(params))?);
    let known = options.to_json();
    let known = known.get("adapter_opts");
    let adapter = model.split(':').next().unwrap_or_default();
    let opts = arguments.call.adapter_opts(adapter, known);
    for (name, value) in opts.filter(|_| script(model).is_none()).into_iter().flatten() {
        options = options.adapter_option(&name, value);
    }
    let log = arguments.log.as_deref().map(|url| LogLocation::parse(url)?.open()).transpose()?;
    let log = log.map(|log| Arc::new(Ledger::new(log)));
    if let Some(log) = &log {
        options = options.record(log);
    }
    let form = arguments.schema.as_deref().map(form).transpose()?;
    let call = engine.generate(arguments.request(form.as_ref())?).options(options);
    let who = match script(model) {
        Some(file) => format!(" --agent {}", quoted(&file.to_string_lossy())),
        None => arguments.call.flags(),
    };
    let Arguments { json, stream, log: url, call: said, .. } = arguments;
    let mut printer = EventPrinter::new(json);
    let answered = runtime()?.block_on(async {
        let answered = unless_interrupted(answer(call, stream || !json, &mut printer)).await;
        if let Some(log) = &log {
            log.settle().await;
        }
        answered
    });
    let Some(answered) = answered else {
        let run = log.and_then(|log| log.written());
        let told = match (&run, url) {
            (Some(run), Some(url)) => format!(
                "interrupted; run {run} can be resumed:\n  mynah resume {}{who} --log {}",
                quoted(run),
                quoted(&shown(&url))
            ),
            _ => "interrupted; nothing of this run was kept".to_owned(),
        };
        return Err(Failure::interrupted(told, run.as_deref()));
    };
    let Answered { mut response, run_id } = answered?;
    if let Some(form) = form {
        response = response.and_then(|response| form.check(&response).map(|()| response));
    }
    if json {
        let mut line = match &response {
            Ok(response) => json!({"ok": response}),
            Err(error) => json!({"err": error}),
        };
        if let Some(run) = run_id {
            line["run_id"] = run.into();
        }
        written(printer.line(&line))?;
    }
    written(printer.end())?;
    match response {
        Ok(response) if !json => remark(&response),
        Ok(_) => Ok(()),
        Err(error) => {
            let hint = if error.is_unreachable() { "; --base-url names another" } else { "" };
            Err(failed(&said.spoken(error), tries.count()).adding(hint).told())
        }
    }
}

/// The result of a call, and the run that recorded it.
struct Answered {
    response: mynah::Result<Response>,
    run_id: Option<RunId>,
}

async fn answer(
    call: Generate,
    tells: bool,
    printer: &mut EventPrinter,
) -> Result<Answered, Failure> {
    let mut events = call.stream();
    let mut refused = None;
    while let Some(event) = events.next().await {
        match event {
            Ok(event) if tells => written(printer.print(&event))?,
            Ok(_) => {}
            Err(error) => refused = Some(error),
        }
    }
    let response = match (refused, events.last_step()) {
        (Some(error), _) => Err(error),
        (None, Some(step)) => whole(step.response.clone()),
        (None, None) => Err(Error::stream(StreamReason::Cancelled)),
    };
    Ok(Answered { response, run_id: events.run_id().cloned() })
}

impl Arguments {
    fn request(&self, form: Option<&Form>) -> Result<Request, Failure> {
        let mut parts = Vec::new();
        let text = self.text()?;
        if !text.trim().is_empty() {
            parts.push(Part::text(text));
        }
        for image in &self.images {
            parts.push(Part::image(read_image(image)?));
        }
        if parts.is_empty() {
            return Err(Failure::input("the prompt is empty"));
        }
        let system = self.system.iter().map(Message::system);
        let mut request = Request::new(system.chain([Message::user_parts(parts)]));
        if let Some(file) = &self.tools {
            let tools: Vec<Value> = parse(file)?;
            let tools = tools.into_iter().enumerate().map(|(place, tool)| {
                described(tool)
                    .map_err(|why| Failure::input(format!("{}: {place}: {why}", file.display())))
            });
            request = request.with_tools(tools.collect::<Result<Vec<_>, _>>()?);
        }
        if let Some(form) = form {
            request = request.with_response_format(form.format());
        }
        let own = self.params.iter().filter(|(name, _)| is_shared(name));
        request.options.extend(own.cloned());
        Ok(request)
    }

    fn text(&self) -> Result<String, Failure> {
        let said: Vec<&str> = self.prompt.iter().map(String::as_str).collect();
        said.iter().try_for_each(|said| self.call.check_said(said))?;
        match said[..] {
            [] if !self.images.is_empty() => Ok(String::new()),
            _ => text_of(&said, "prompt"),
        }
    }
}

/// The text of arguments in which - stands for what is piped in.
pub(crate) fn text_of(said: &[&str], what: &str) -> Result<String, Failure> {
    match *said {
        [] if io::stdin().is_terminal() => {
            Err(Failure::input(format!("no {what}: give one in quotes, or pipe it in")))
        }
        [] | ["-"] => piped(),
        [text] => Ok(text.to_owned()),
        ["-", text] if text != "-" => Ok(format!("{}\n\n{text}", piped()?)),
        [text, "-"] if text != "-" => Ok(format!("{text}\n\n{}", piped()?)),
        _ => Err(Failure::input(format!(
            "the {what} is one argument, in quotes; beside it only - may stand, for standard input"
        ))),
    }
}

/// What is piped in.
fn piped() -> Result<String, Failure> {
    let mut text = input::read(Path::new("-"))?;
    // What a shell puts at the end of a line is not meant for the model.
    text.truncate(text.trim_end_matches(['\n', '\r']).len());
    if text.trim().is_empty() {
        return Err(Failure::input(
            "standard input is empty; give the text as an argument, or pipe it in",
        ));
    }
    Ok(text)
}

/// An answer that did not break off, and is one.
fn whole(response: Response) -> mynah::Result<Response> {
    let failed = || {
        let why = response.raw_finish_reason.as_deref().unwrap_or("error");
        Error::adapter(AdapterReason::MalformedResponse)
            .with_message(format!("adapter error: malformed_response: the model stopped: {why}"))
    };
    let is_failed = response.finish_reason == Some(FinishReason::Error);
    match response.error().or_else(|| is_failed.then(failed)) {
        Some(error) => Err(error.with("partial", json!(response))),
        None => Ok(response),
    }
}

/// What the text of an answer does not say.
pub(crate) fn remark(response: &Response) -> Result<(), Failure> {
    for part in response.message.parts() {
        if let Part::Refusal { text } = part {
            written(writeln!(io::stdout(), "(refused) {}", for_stdout(text)))?;
        }
    }
    if let Some(how) = cut_off(response) {
        // Not a part of the answer.
        let _ = writeln!(io::stderr(), "mynah: the answer was cut off {how}");
    }
    Ok(())
}

/// The exit code of a failed call.
pub(crate) fn failed(error: &Error, tries: u32) -> Failure {
    match error.kind() {
        ErrorKind::Engine(EngineReason::BudgetExceeded) => Failure::finding(error.to_string()),
        ErrorKind::Engine(_) => Failure::input(error.to_string()),
        _ => Failure::of_call(error, tries),
    }
}

/// The form that a file describes.
fn form(file: &Path) -> Result<Form, Failure> {
    let stem = file.file_stem().map(|stem| stem.to_string_lossy()).unwrap_or_default();
    Form::new(parse(file)?, &stem)
        .map_err(|why| Failure::input(format!("{}: {why}", file.display())))
}

fn parse<T: DeserializeOwned>(file: &Path) -> Result<T, Failure> {
    let text = input::read_json(file)?;
    let mut json = serde_json::Deserializer::from_str(&text);
    let parsed = input::strict(&mut json);
    let parsed = parsed.and_then(|value| json.end().map(|()| value).map_err(|e| e.to_string()));
    parsed.map_err(|why| Failure::input(format!("{}: {why}", file.display())))
}

/// The specification of a tool. The names that providers give the schema are accepted too, and so
/// are their wrappers.
fn described(tool: Value) -> serde_json::Result<ToolSpec> {
    #[derive(Deserialize)]
    #[serde(deny_unknown_fields)]
    struct Described {
        name: String,
        #[serde(default)]
        description: String,
        #[serde(
            default = "nothing",
            alias = "parameters",
            alias = "input_schema",
            alias = "inputSchema"
        )]
        schema: Value,
        #[serde(default, rename = "type")]
        _type: Option<String>,
        #[serde(default)]
        strict: Option<bool>,
    }
    fn nothing() -> Value {
        json!({"type": "object", "properties": {}})
    }
    let inner = tool.get("function").cloned().unwrap_or(tool);
    let Described { name, description, schema, strict, .. } = Described::deserialize(inner)?;
    let mut tool = ToolSpec::new(name, description, schema);
    tool.metadata.extend(strict.map(|strict| ("strict".to_owned(), strict.into())));
    Ok(tool)
}

pub(crate) fn read_image(place: &str) -> Result<Image, Failure> {
    if place.starts_with("https://") || place.starts_with("http://") {
        return Ok(Image::from_url(place));
    }
    let bytes = input::bytes(Path::new(place))?;
    if bytes.is_empty() {
        return Err(Failure::input(format!("{}: it is empty", input::name(Path::new(place)))));
    }
    // What is in a file counts more than what it is called.
    let mime_type = match &*bytes {
        [0x89, b'P', b'N', b'G', ..] => Some("image/png".to_owned()),
        [0xff, 0xd8, 0xff, ..] => Some("image/jpeg".to_owned()),
        [b'G', b'I', b'F', b'8', ..] => Some("image/gif".to_owned()),
        [b'R', b'I', b'F', b'F', _, _, _, _, b'W', b'E', b'B', b'P', ..] => {
            Some("image/webp".to_owned())
        }
        _ => Image::from_file(place).mime_type,
    };
    let unknown = || Failure::input(format!("{place}: not a PNG, JPEG, GIF or WebP image"));
    Ok(Image::from_binary(bytes, mime_type.ok_or_else(unknown)?))
}
