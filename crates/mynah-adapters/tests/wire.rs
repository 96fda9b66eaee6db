//! Recorded traffic of real providers, where it is at hand: every body decodes, wherever it is cut, to the same answer as ever.
//!
//! The recordings lie outside the repository, in the folder that `MYNAH_WIRE` names. What they decode to is kept as a table
//! of hashes in `wire.sha256`; `MYNAH_BLESS=1` writes it anew. What is not read is listed in `NOT_READ`.

use std::{
    collections::BTreeMap,
    fs,
    path::{Path, PathBuf},
    sync::Arc,
};

use base64::{Engine as _, engine::general_purpose::STANDARD};
use mynah_adapters::{
    failure,
    format::{Delivery, Format},
    presets::Preset,
};
use mynah_data::{ErrorKind, Message, Request, Response};
use mynah_step::ModelCall;
use serde_json::{Value, json};
use sha2::{Digest, Sha256};

use crate::common::{events, folded};

/// Streams up to this size are cut at every byte.
const SMALL: usize = 1_000;

/// What is at these paths, below the version of an API, is not an adapter's business. `*` stands for a name.
const NOT_READ: [(&str, &str); 27] = [
    ("interactions", "Gemini's Interactions API: its models are asked by generateContent"),
    ("cachedContents", "prompts that are kept at Gemini"),
    ("cachedContents/*", "one of these"),
    ("models/*:countTokens", "tokens, counted before a call"),
    ("messages/count_tokens", "tokens, counted before a call"),
    ("models/*:embedContent", "one vector: the embedder asks for several"),
    ("models", "lists of models"),
    ("models/*", "a model"),
    ("models/*/*", "a model, behind its maker's name"),
    ("models/*/*/endpoints", "who serves it"),
    ("api/tags", "Ollama's list of models"),
    ("api/show", "a model of Ollama's"),
    ("props", "what a server of llama.cpp says of itself"),
    ("health", "whether a server is there"),
    ("completions", "text that is gone on with, without a conversation"),
    ("fim/completions", "text with a gap that is filled"),
    ("api/generate", "text that is gone on with, without a conversation"),
    ("rerank", "texts in a better order"),
    ("moderations", "texts that are judged"),
    ("chat/moderations", "conversations that are judged"),
    ("audio/*", "speech"),
    ("images/*", "images"),
    ("files", "files that are kept at a provider"),
    ("files/*", "one of these"),
    ("files/*/content", "what is in one of these"),
    ("model/*/invoke", "Bedrock's own call, which has a shape for each model"),
    ("model/*/invoke-with-response-stream", "Bedrock's own call, which has a shape for each model"),
];

#[test]
fn a_path_is_left_out_as_a_whole_or_read() {
    for (path, is_left_out) in [
        ("/v1/models", true),
        ("/models", true),
        ("/openai/v1/models/gpt-x", true),
        ("/v1/fine_tuning/models", false),
        ("/v1beta/models/gemini-x:countTokens", true),
        ("/v1beta/models/gemini-x:predict", false),
        ("/beta/completions", true),
        ("/v1/evals/files/f1", false),
        ("/model/amazon.titan%3A0/invoke", true),
        ("/model/amazon.titan%3A0/other/invoke", false),
    ] {
        assert_eq!(why_not_read(path).is_some(), is_left_out, "{path}");
    }
}

#[test]
fn a_recording_is_read_as_its_provider_speaks() {
    let exchange = Exchange {
        path: "/chat/completions".to_owned(),
        asked: None,
        status: 200,
        content_type: Some("text/event-stream".to_owned()),
        body: Vec::new(),
    };
    // Perplexity joins what the same author says in a row.
    for (provider, messages) in [("perplexity", 1), ("deepseek", 2), ("xai", 2)] {
        let format = exchange.format(provider).unwrap();
        let asked = Request::new([Message::user("a"), Message::user("b")]).with_model("m");
        let body = format.body(&asked, &ModelCall::default()).unwrap();
        assert_eq!(body["messages"].as_array().unwrap().len(), messages, "{provider}");
    }
}

#[test]
fn every_recorded_body_decodes_wherever_it_is_cut() {
    let Some(folder) = recordings() else {
        eprintln!("skipped: no recordings; MYNAH_WIRE names their folder");
        return;
    };
    let files = files(&folder);
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    let digests: BTreeMap<String, String> = std::thread::scope(|scope| {
        let share = |first| {
            files.iter().skip(first).step_by(threads).flat_map(|path| check_file(&folder, path))
        };
        let workers: Vec<_> = (0..threads)
            .map(|first| scope.spawn(move || share(first).collect::<Vec<_>>()))
            .collect();
        workers.into_iter().flat_map(|worker| worker.join().unwrap()).collect()
    });
    assert!(digests.len() > 100, "only {} files belong to these formats", digests.len());
    compare(&digests);
}

/// The file's name and the hash of what its answers come to, and the same of its embeddings.
fn check_file(folder: &Path, path: &Path) -> Vec<(String, String)> {
    let name = path.strip_prefix(folder).unwrap_or(path).display().to_string();
    let text = fs::read_to_string(path).unwrap();
    let mut digests: BTreeMap<String, Sha256> = BTreeMap::new();
    for (index, line) in text.lines().enumerate() {
        let exchange = Exchange::read(serde_json::from_str(line).unwrap()).unwrap();
        let place = format!("{name}:{}", index + 1);
        let provider = name.split('/').next().unwrap_or_default();
        let (name, normalized) = if let Some(format) = exchange.format(provider) {
            (name.clone(), exchange.check(format.as_ref(), &place))
        } else if let Some(adapter) = exchange.embedder() {
            (format!("{name}#embeddings"), embeddings::check(adapter, &exchange, &place))
        } else {
            let why = why_not_read(&exchange.path);
            assert!(why.is_some(), "{place}: nobody reads {}", exchange.path);
            continue;
        };
        digests.entry(name).or_default().update(normalized);
    }
    let hex = |hash: Sha256| hash.finalize().iter().map(|byte| format!("{byte:02x}")).collect();
    digests.into_iter().map(|(name, hash)| (name, hex(hash))).collect()
}

fn why_not_read(path: &str) -> Option<&'static str> {
    let is_version = |segment: &&str| {
        let number = segment.strip_prefix('v').unwrap_or_default();
        *segment == "beta" || number.starts_with(|c: char| c.is_ascii_digit())
    };
    let segments: Vec<&str> = path.trim_start_matches('/').split('/').collect();
    let below = segments.iter().rposition(is_version).map_or(0, |version| version + 1);
    let is = |segment: &str, known: &str| match known.strip_prefix('*') {
        Some(end) => {
            let name = segment.strip_suffix(end);
            name.is_some_and(|name| !name.is_empty() && !name.contains(':'))
        }
        None => segment == known,
    };
    let fits = |known: &str| {
        let known: Vec<&str> = known.split('/').collect();
        let mut pairs = segments[below..].iter().zip(&known);
        segments.len() - below == known.len() && pairs.all(|(segment, known)| is(segment, known))
    };
    NOT_READ.iter().find(|(known, _)| fits(known)).map(|(_, what)| *what)
}

struct Exchange {
    path: String,
    asked: Option<Value>,
    status: u16,
    content_type: Option<String>,
    body: Vec<u8>,
}

impl Exchange {
    fn read(value: Value) -> Option<Self> {
        let (request, response) = (&value["request"], &value["response"]);
        let headers = response["headers"].as_array()?;
        let content_type = headers.iter().find(|header| header[0] == "content-type");
        let text = response["body"].as_str()?;
        let body = match response["body_encoding"].as_str() {
            Some(_) => STANDARD.decode(text).ok()?,
            None => text.as_bytes().to_vec(),
        };
        Some(Self {
            path: request["path"].as_str()?.to_owned(),
            asked: request["body"].as_str().and_then(|body| serde_json::from_str(body).ok()),
            status: response["status"].as_u64()? as u16,
            content_type: content_type.and_then(|header| header[1].as_str()).map(str::to_owned),
            body,
        })
    }

    /// What the provider's preset speaks, where that asks at this path; else what everybody speaks there.
    fn format(&self, provider: &str) -> Option<Arc<dyn Format>> {
        const COMMON: [(&str, &str); 8] = [
            ("/chat/completions", "openai-chat"),
            (":generateContent", "gemini"),
            (":streamGenerateContent", "gemini"),
            ("/messages", "anthropic"),
            ("/responses", "openai"),
            ("/api/chat", "ollama"),
            ("/converse", "bedrock"),
            ("/converse-stream", "bedrock"),
        ];
        let (_, common) = COMMON.iter().find(|(end, _)| self.path.ends_with(end))?;
        let format_of = |name: &str| Preset::named(name).map(Preset::format);
        let path = |format: &Arc<dyn Format>| format.path(&Request::from("hi").with_model("asked"));
        let common = format_of(common)?;
        let own = format_of(provider).filter(|own| path(own) == path(&common));
        Some(own.unwrap_or(common))
    }

    /// The adapter whose embedder asks like this.
    fn embedder(&self) -> Option<&'static str> {
        let asks = [
            (":batchEmbedContents", "gemini"),
            ("/embeddings", "openai"),
            ("/api/embed", "ollama"),
        ];
        let asked = asks.into_iter().find(|(end, _)| self.path.ends_with(end));
        asked.map(|(_, adapter)| adapter)
    }

    fn is_converse(&self) -> bool {
        self.path.ends_with("/converse") || self.path.ends_with("/converse-stream")
    }

    /// What the exchange comes to, in its stable JSON form.
    fn check(&self, format: &dyn Format, name: &str) -> String {
        if self.status >= 400 {
            let error = failure::of_response(self.status, |_| None, &self.body);
            assert!(matches!(error.kind(), ErrorKind::Adapter(_)), "{name}: {error:?}");
            assert_ne!(error.reason(), "unknown", "{name}: {error:?}");
            return error.to_value().to_string();
        }
        let delivery = Delivery::of(self.content_type.as_deref());
        let (body, request) = (self.body.as_slice(), Request::from("hi").with_model("asked"));
        let whole = events(format, &request, delivery, [body]);
        assert!(whole.1.is_ok(), "{name}: {:?}", whole.1);
        let response = folded(&whole.0);
        plausible(&response, name);
        let nameless = self.is_converse() || self.path.ends_with("/api/chat");
        assert!(response.id.is_some() || nameless, "{name}: {response:?}");
        for at in cuts(name, body.len(), delivery) {
            let (first, second) = body.split_at(at);
            assert_eq!(
                events(format, &request, delivery, [first, second]),
                whole,
                "{name}: cut at {at}"
            );
        }
        if delivery == Delivery::Streamed {
            assert_eq!(
                events(format, &request, delivery, body.chunks(1)),
                whole,
                "{name}: byte by byte"
            );
            let half = events(format, &request, delivery, [&body[..body.len() / 2]]);
            assert_eq!(
                half.1.map_err(|error| error.reason()),
                Err("network_error"),
                "{name}: half of it"
            );
        }
        json!(response).to_string()
    }
}

mod embeddings {
    use mynah_adapters::{
        conformance::{Reply, TestServer},
        http::{HttpAdapter, HttpEmbedder},
        keys::Keys,
    };
    use mynah_step::RetryPolicy;

    use super::*;

    /// What the embedder makes of the exchange, for as many texts as were asked for.
    pub(super) fn check(adapter: &str, exchange: &Exchange, name: &str) -> String {
        let asked = exchange.asked.as_ref().expect("what was asked");
        let texts = asked.get("input").or(asked.get("requests")).expect("texts");
        let texts = vec!["a text"; texts.as_array().map_or(1, Vec::len)];
        let reply = Reply::json(exchange.status, exchange.body.clone());
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let embedded = runtime.block_on(async {
            let server = TestServer::start(move |_| reply.clone()).await.unwrap();
            let keys = Keys::new().with_environment(|_| Some("a-key".to_owned()));
            let adapter = HttpAdapter::named(adapter).unwrap().with_base_url(server.url()).unwrap();
            let embedder = HttpEmbedder::new(adapter.with_keys(keys), "asked");
            embedder.with_retry(RetryPolicy::never()).vectors(texts).await
        });
        match embedded {
            Ok(found) => {
                assert!(exchange.status < 400, "{name}");
                // Gemini has not always counted them.
                let is_counted = found.usage.input_tokens.is_some() || adapter == "gemini";
                assert!(is_counted, "{name}: {:?}", found.usage);
                json!([found.vectors, found.model, found.usage]).to_string()
            }
            Err(error) => {
                assert!(exchange.status >= 400, "{name}: {error:?}");
                assert_ne!(error.reason(), "unknown", "{name}: {error:?}");
                error.to_value().to_string()
            }
        }
    }
}

/// An answer says something, says why it stopped, and counts its tokens.
fn plausible(response: &Response, name: &str) {
    assert!(response.finish_reason.is_some(), "{name}: {response:?}");
    assert!(response.model.is_some(), "{name}: {response:?}");
    assert!(response.usage.input_tokens.is_some(), "{name}: {:?}", response.usage);
    assert!(response.usage.output_tokens.is_some(), "{name}: {:?}", response.usage);
    for call in response.tool_calls() {
        assert!(!call.id.is_empty() && !call.name.is_empty(), "{name}: {call:?}");
        let cut_off = response.finish_reason == Some(mynah_data::FinishReason::Length);
        assert!(!call.arguments.is_null() || cut_off, "{name}: {call:?}");
    }
}

/// Every place in a small stream; elsewhere a few that differ from file to file.
fn cuts(name: &str, length: usize, delivery: Delivery) -> Vec<usize> {
    if length <= SMALL && delivery == Delivery::Streamed {
        return (0..=length).collect();
    }
    let seed = Sha256::digest(name);
    seed.chunks(4)
        .map(|bytes| bytes.iter().fold(0, |sum, byte| sum * 256 + usize::from(*byte)) % length)
        .collect()
}

fn recordings() -> Option<PathBuf> {
    let beside = || Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../shared/wire");
    #[expect(
        clippy::disallowed_methods,
        reason = "where the recordings are is the developer's business"
    )]
    let named = std::env::var("MYNAH_WIRE").ok().map(PathBuf::from);
    Some(named.unwrap_or_else(beside)).filter(|folder| folder.is_dir())
}

fn files(folder: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    let mut folders = vec![folder.to_owned()];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                folders.push(path);
            } else if path.extension().is_some_and(|extension| extension == "jsonl") {
                found.push(path);
            }
        }
    }
    found.sort();
    found
}

/// Compares with the table. Files that it does not list are checked only as far as they decode.
fn compare(digests: &BTreeMap<String, String>) {
    let table = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/wire.sha256");
    #[expect(clippy::disallowed_methods, reason = "asked for by the developer")]
    if std::env::var("MYNAH_BLESS").is_ok() {
        let lines: String =
            digests.iter().map(|(name, hash)| format!("{hash}  {name}\n")).collect();
        fs::write(&table, lines).unwrap();
    }
    let table = fs::read_to_string(&table).unwrap();
    let known: BTreeMap<&str, &str> = table
        .lines()
        .filter_map(|line| line.split_once("  "))
        .map(|(hash, name)| (name, hash))
        .collect();
    let changed: Vec<&String> = digests
        .iter()
        .filter(|(name, hash)| known.get(name.as_str()).is_some_and(|known| known != hash))
        .map(|(name, _)| name)
        .collect();
    assert!(changed.is_empty(), "these decode to something else than before: {changed:#?}");
    let gone: Vec<_> = known.keys().filter(|name| !digests.contains_key(**name)).collect();
    assert!(gone.is_empty(), "these were there before: {gone:#?}");
}
