//! Redacts keys that a server repeats.

use http::HeaderMap;
use memchr::memmem;
use mynah_data::{Error, Event};
use secrecy::{ExposeSecret, SecretString};
use serde_json::Value;

/// Headers that hold a key and nothing else.
const KEY_HEADERS: [&str; 14] = [
    "api-key",
    "authorization",
    "cf-aig-authorization",
    "helicone-auth",
    "ocp-apim-subscription-key",
    "proxy-authorization",
    "x-access-token",
    "x-amz-security-token",
    "x-api-key",
    "x-auth-token",
    "x-gateway-key",
    "x-goog-api-key",
    "x-litellm-api-key",
    "x-portkey-api-key",
];

/// What headers are called that may hold one.
const TELLING: [&str; 9] =
    ["auth", "config", "cookie", "credential", "gateway", "key", "pass", "secret", "token"];

/// What was sent with a call and is for its server alone.
#[derive(Default)]
pub(super) struct Secrets {
    keys: Vec<SecretString>,
    /// What may be one, or the name of a model: no error needs it, and answers do.
    suspects: Vec<SecretString>,
}

impl Secrets {
    pub(super) fn add(&mut self, keys: impl IntoIterator<Item = SecretString>) {
        // A short word is not a key: it is a placeholder for servers that need none.
        let is_word =
            |text: &str| text.len() < 8 && text.bytes().all(|byte| byte.is_ascii_alphabetic());
        let keys = keys.into_iter().filter(|key| !is_word(key.expose_secret()));
        self.keys.extend(keys);
    }

    /// Adds the secrets in the caller's own headers.
    pub(super) fn add_those_of(&mut self, headers: &HeaderMap) {
        for (name, value) in headers {
            let name = name.as_str();
            let list = match KEY_HEADERS.contains(&name) {
                true => &mut self.keys,
                false if TELLING.iter().any(|part| name.contains(part)) => &mut self.suspects,
                false => continue,
            };
            // A scheme and a number are none.
            let words = value.to_str().unwrap_or_default().split([' ', ';', ',', '=', ':', '"']);
            list.extend(words.filter(|word| word.len() >= 8).map(SecretString::from));
        }
    }

    fn all(&self) -> impl Iterator<Item = &str> + Clone {
        self.keys.iter().chain(&self.suspects).map(ExposeSecret::expose_secret)
    }

    /// The keys that do not occur by chance. A key such as `lm-studio` must not redact the model's
    /// text.
    fn unmistakable(&self) -> impl Iterator<Item = &str> + Clone {
        let has_digit = |text: &str| text.bytes().any(|byte| byte.is_ascii_digit());
        let keys = self.keys.iter().map(ExposeSecret::expose_secret);
        keys.filter(move |text| text.len() >= 16 && has_digit(text))
    }

    /// The same text without them.
    pub(super) fn out_of(&self, text: &str) -> String {
        let mut text = text.to_owned();
        take_out_of_text(&mut text, self.all());
        text
    }

    /// The same text of an answer without those that are unmistakable.
    pub(super) fn out_of_answer(&self, mut text: String) -> String {
        take_out_of_text(&mut text, self.unmistakable());
        text
    }

    /// The same event without those that are unmistakable.
    pub(super) fn out_of_event(&self, event: Event) -> Event {
        let clean = serde_json::to_value(&event).map(|mut told| {
            take_out(&mut told, &self.unmistakable());
            told
        });
        clean.and_then(serde_json::from_value).unwrap_or(event)
    }

    /// The same error without them.
    pub(super) fn out_of_error(&self, error: Error) -> Error {
        let mut told = error.to_value();
        for member in ["message", "metadata"] {
            take_out(&mut told[member], &self.all());
        }
        let Ok(told) = serde_json::from_value::<Error>(told) else { return error };
        // What a cause says cannot be changed.
        let is_clean = |cause: &(dyn std::error::Error + 'static)| {
            let text = format!("{cause:?}");
            !self.all().any(|secret| text.contains(secret))
        };
        if std::error::Error::source(&error).is_some_and(is_clean) {
            told.with_cause_of(&error)
        } else {
            told
        }
    }
}

fn take_out<'s>(value: &mut Value, secrets: &(impl Iterator<Item = &'s str> + Clone)) {
    match value {
        Value::String(text) => take_out_of_text(text, secrets.clone()),
        Value::Array(list) => list.iter_mut().for_each(|value| take_out(value, secrets)),
        Value::Object(map) => {
            let members = std::mem::take(map).into_iter();
            map.extend(members.map(|(mut name, mut value)| {
                take_out_of_text(&mut name, secrets.clone());
                take_out(&mut value, secrets);
                (name, value)
            }));
        }
        _ => {}
    }
}

fn take_out_of_text<'s>(text: &mut String, secrets: impl Iterator<Item = &'s str>) {
    for secret in secrets {
        if text.contains(secret) {
            *text = text.replace(secret, "…");
        }
    }
}

/// Looks for secrets in the body of an answer as it comes in.
#[derive(Default)]
pub(super) struct Watch {
    /// The end of the received text, in which a key may have begun.
    end: Vec<u8>,
    /// Whether there was one.
    pub(super) has_seen: bool,
}

impl Watch {
    pub(super) fn look(&mut self, bytes: &[u8], secrets: &Secrets) {
        let longest = secrets.unmistakable().map(str::len).max().unwrap_or(0);
        if self.has_seen || longest == 0 {
            return;
        }
        let over_the_edge = longest - 1;
        self.end.extend_from_slice(&bytes[..bytes.len().min(over_the_edge)]);
        self.has_seen = secrets.unmistakable().any(|secret| {
            let secret = memmem::Finder::new(secret);
            secret.find(&self.end).or_else(|| secret.find(bytes)).is_some()
        });
        if bytes.len() > over_the_edge {
            self.end.clear();
            self.end.extend_from_slice(&bytes[bytes.len() - over_the_edge..]);
        } else {
            self.end.drain(..self.end.len().saturating_sub(over_the_edge));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_secret_is_seen_however_the_bytes_come() {
        let mut secrets = Secrets::default();
        let keys = ["sk-0123456789abcdef", "another-0123456789abcdef", "lm-studio"];
        secrets.add(keys.map(SecretString::from));
        let seen = |pieces: &[&[u8]]| {
            let mut watch = Watch::default();
            pieces.iter().for_each(|piece| watch.look(piece, &secrets));
            watch.has_seen
        };
        for key in &keys[..2] {
            let body = format!("{}{key}!", "x".repeat(100)).into_bytes();
            assert!(seen(&[&body]));
            for size in 1..=body.len() {
                assert!(seen(&body.chunks(size).collect::<Vec<_>>()), "{key} in pieces of {size}");
            }
            let without_end = &body[..body.len() - 2];
            assert!(!seen(&without_end.chunks(7).collect::<Vec<_>>()));
        }
        assert!(!seen(&[b"lm-studio"]), "somebody may speak of it");
    }
}
