//! Adapters: one module for each wire format.
//!
//! ```text
//! request ──► Format::body ──► http ──► provider ──► bytes ──► Framer ──► Decoder ──► Draft ──► events
//!             a format         keys                            sse        a format
//!                              presets
//! ```
//!
//! | module | holds |
//! |---|---|
//! | [`mod@format`] | [`Format`](format::Format): what a wire format is, two mappings; [`Reader`](format::Reader): bytes of a body into events |
//! | [`sse`] | server-sent events and JSON lines, cut anywhere |
//! | [`draft`] | the answer in the making: what a decoder says becomes events that keep their rules |
//! | [`failure`] | what providers say when a call fails, and which of our reasons that is |
//! | [`openai_responses`], [`openai_chat`], [`anthropic`], [`gemini`], [`ollama`] | the formats |
//! | `bedrock` | one more format, with signed calls and frames of its own. Feature `bedrock` |
//! | [`embed`] | [`Embedder`](embed::Embedder): texts into vectors; `http::HttpEmbedder` over HTTP |
//! | [`fit`] | schemas of tools and answers as each provider takes them |
//! | [`keys`] | where API keys come from |
//! | `http` | `HttpAdapter`: a format, an address and a key make an adapter. Feature `http` |
//! | `presets` | the servers that are known by name. Feature `http` |
//! | [`scripted`] | a model that plays scripts, for tests, demonstrations and scenario files |
//! | `conformance` | what every adapter must do, on a real socket. Feature `conformance` |
//!
//! A new format is a module with a [`Format`](format::Format) and a [`Decoder`](format::Decoder),
//! and a line in `presets`. Formats neither send nor wait, so they work without the feature `http`
//! on bytes from elsewhere.

#![cfg_attr(docsrs, feature(doc_cfg))]

pub mod anthropic;
#[cfg(feature = "bedrock")]
pub mod bedrock;
mod claude;
#[cfg(feature = "conformance")]
pub mod conformance;
pub mod draft;
pub mod embed;
pub mod failure;
pub mod fit;
mod form;
pub mod format;
pub mod gemini;
#[cfg(feature = "http")]
pub mod http;
mod json;
pub mod keys;
mod loose;
pub mod ollama;
mod openai;
pub mod openai_chat;
pub mod openai_responses;
#[cfg(feature = "http")]
pub mod presets;
mod request;
pub mod scripted;
pub mod sse;
