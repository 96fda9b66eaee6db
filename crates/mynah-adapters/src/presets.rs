//! The servers that are known by name.
//!
//! The name comes before the colon, as in `groq:llama-3.3-70b-versatile`. The key is read from the
//! environment, or from [`Keys`](crate::keys::Keys).
//!
#![doc = include_str!("../docs/provider-names.md")]

use std::sync::Arc;

#[cfg(feature = "bedrock")]
use crate::bedrock::Bedrock;
use crate::{
    anthropic::Anthropic,
    fit,
    format::Format,
    gemini::Gemini,
    ollama::Ollama,
    openai_chat::{
        ChatDialect, CompletionTokens, JsonSchemas, OpenAiChat, PromptCaching, ReasoningBack,
    },
    openai_responses::{self, OpenAiResponses},
};

/// A server: where it is, what it speaks, where its key is found.
///
/// ```
/// # mod mynah { pub use mynah_adapters as adapters; }
/// use mynah::adapters::presets::Preset;
/// let groq = Preset::named("groq").unwrap();
/// assert_eq!(groq.key_variables, ["GROQ_API_KEY"]);
/// ```
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct Preset {
    /// The name before the colon of `groq:llama-3.3-70b-versatile`.
    pub name: &'static str,
    /// Where it is, without the version segment; none where only the user can know.
    pub base_url: Option<&'static str>,
    /// What stands between the base URL and the format's own path, such as `v1`.
    pub version: &'static str,
    /// The environment variables that may hold its key.
    pub key_variables: &'static [&'static str],
    format: fn() -> Arc<dyn Format>,
}

impl Preset {
    /// The preset of this name.
    pub fn named(name: &str) -> Option<&'static Self> {
        PRESETS.iter().find(|preset| preset.name == name)
    }

    /// Whether a key is required. Servers on this machine need one only if they were started with
    /// one.
    pub fn needs_key(&self) -> bool {
        !self.base_url.is_some_and(|url| url.starts_with("http://localhost:"))
    }

    /// The environment variable that says where it is, if the caller does not.
    pub fn url_variable(&self) -> Option<&'static str> {
        match self.name {
            "azure" | "azure-responses" => Some("AZURE_OPENAI_ENDPOINT"),
            "ollama" => Some("OLLAMA_HOST"),
            _ => None,
        }
    }

    /// What it speaks.
    pub fn format(&self) -> Arc<dyn Format> {
        (self.format)()
    }
}

macro_rules! responses {
    ($($member:ident : $value:expr),*) => {
        || {
            let dialect = openai_responses::ResponsesDialect::OPENAI;
            Arc::new(OpenAiResponses::new(openai_responses::ResponsesDialect { $($member: $value,)* ..dialect }))
        }
    };
}

macro_rules! chat {
    ($($member:ident : $value:expr),*) => {
        || Arc::new(OpenAiChat::new(ChatDialect { $($member: $value,)* ..ChatDialect::COMPATIBLE }))
    };
}

/// Every preset.
pub const PRESETS: &[Preset] = &[
    Preset {
        name: "openai",
        base_url: Some("https://api.openai.com"),
        version: "v1",
        key_variables: &["OPENAI_API_KEY"],
        format: responses!(),
    },
    Preset {
        name: "openai-chat",
        base_url: Some("https://api.openai.com"),
        version: "v1",
        key_variables: &["OPENAI_API_KEY"],
        format: || Arc::new(OpenAiChat::new(ChatDialect::OPENAI)),
    },
    Preset {
        name: "anthropic",
        base_url: Some("https://api.anthropic.com"),
        version: "v1",
        key_variables: &["ANTHROPIC_API_KEY"],
        format: || Arc::new(Anthropic),
    },
    Preset {
        name: "gemini",
        base_url: Some("https://generativelanguage.googleapis.com"),
        version: "v1beta",
        key_variables: &["GEMINI_API_KEY", "GOOGLE_API_KEY"],
        format: || Arc::new(Gemini),
    },
    Preset {
        name: "azure",
        base_url: None,
        version: "openai/v1",
        key_variables: &["AZURE_OPENAI_API_KEY"],
        format: || {
            Arc::new(OpenAiChat::new(ChatDialect {
                max_completion_tokens: CompletionTokens::NotTheOldest,
                deployments: true,
                key_header: Some("api-key"),
                ..ChatDialect::OPENAI
            }))
        },
    },
    #[cfg(feature = "bedrock")]
    Preset {
        name: "bedrock",
        base_url: None,
        version: "",
        key_variables: &["AWS_BEARER_TOKEN_BEDROCK", "AWS_ACCESS_KEY_ID"],
        format: || Arc::new(Bedrock),
    },
    Preset {
        name: "azure-responses",
        base_url: None,
        version: "openai/v1",
        key_variables: &["AZURE_OPENAI_API_KEY"],
        format: responses!(deployments: true, key_header: Some("api-key")),
    },
    Preset {
        name: "deepseek",
        base_url: Some("https://api.deepseek.com"),
        version: "",
        key_variables: &["DEEPSEEK_API_KEY"],
        format: chat!(
            json_schema: JsonSchemas::Never,
            schemas: fit::Dialect::DeepSeek,
            reasoning_back: ReasoningBack::Field("reasoning_content")
        ),
    },
    Preset {
        name: "fireworks",
        base_url: Some("https://api.fireworks.ai/inference"),
        version: "v1",
        key_variables: &["FIREWORKS_API_KEY"],
        format: chat!(reasoning_back: ReasoningBack::Field("reasoning_content")),
    },
    Preset {
        name: "groq",
        base_url: Some("https://api.groq.com/openai"),
        version: "v1",
        key_variables: &["GROQ_API_KEY"],
        format: chat!(
            json_schema: JsonSchemas::Alone,
            reasoning_back: ReasoningBack::FieldOfReasoners("reasoning")
        ),
    },
    Preset {
        name: "llamacpp",
        base_url: Some("http://localhost:8080"),
        version: "v1",
        key_variables: &["LLAMA_API_KEY"],
        format: chat!(reasoning_back: ReasoningBack::Field("reasoning_content")),
    },
    Preset {
        name: "lmstudio",
        base_url: Some("http://localhost:1234"),
        version: "v1",
        key_variables: &["LM_API_TOKEN"],
        format: chat!(),
    },
    Preset {
        name: "mistral",
        base_url: Some("https://api.mistral.ai"),
        version: "v1",
        key_variables: &["MISTRAL_API_KEY"],
        format: chat!(
            usage_on_request: false,
            short_call_ids: true,
            reasoning_back: ReasoningBack::Thinking
        ),
    },
    Preset {
        name: "ollama",
        base_url: Some("http://localhost:11434"),
        version: "api",
        key_variables: &["OLLAMA_API_KEY"],
        format: || Arc::new(Ollama),
    },
    Preset {
        name: "openrouter",
        base_url: Some("https://openrouter.ai/api"),
        version: "v1",
        key_variables: &["OPENROUTER_API_KEY"],
        format: chat!(
            usage_on_request: false,
            prompt_cache: PromptCaching::CacheControl,
            names: true,
            reasoning_back: ReasoningBack::Details
        ),
    },
    Preset {
        name: "perplexity",
        base_url: Some("https://api.perplexity.ai"),
        version: "",
        key_variables: &["PERPLEXITY_API_KEY"],
        format: chat!(usage_on_request: false, turns: true),
    },
    Preset {
        name: "together",
        base_url: Some("https://api.together.xyz"),
        version: "v1",
        key_variables: &["TOGETHER_API_KEY"],
        format: chat!(),
    },
    Preset {
        name: "vllm",
        base_url: Some("http://localhost:8000"),
        version: "v1",
        key_variables: &["VLLM_API_KEY"],
        format: chat!(reasoning_back: ReasoningBack::Field("reasoning")),
    },
    Preset {
        name: "xai",
        base_url: Some("https://api.x.ai"),
        version: "v1",
        key_variables: &["XAI_API_KEY"],
        format: responses!(always_encrypted: true, cache_retention: false, schemas: fit::Dialect::Plain),
    },
];
