//! Messages: an author and an ordered list of parts.

use std::{borrow::Cow, fmt, sync::Arc};

use serde::{Deserialize, Serialize, de};
use serde_json::Value;

use crate::{
    Image, ImageDetail, Metadata, ToolCall,
    json::{self, Json},
};

crate::words! {
    /// Who a message is from.
    pub enum Role {
        /// Instructions.
        System => "system",
        /// A person.
        User => "user",
        /// The model.
        Assistant => "assistant",
        /// A tool's result.
        Tool => "tool",
    }
}

/// One piece of a message. Their order is the order in which the model wrote them.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(tag = "type", rename_all = "snake_case")]
#[non_exhaustive]
pub enum Part {
    /// Text.
    Text {
        /// The text.
        text: String,
        /// Anything else.
        #[serde(skip_serializing_if = "Metadata::is_empty", with = "json::members")]
        metadata: Metadata,
    },
    /// An image.
    Image {
        /// The image.
        image: Image,
        /// How closely to look.
        detail: ImageDetail,
        /// Anything else.
        #[serde(skip_serializing_if = "Metadata::is_empty", with = "json::members")]
        metadata: Metadata,
    },
    /// The model's reasoning, to be given back to providers that want it.
    Reasoning {
        /// What is readable of it.
        text: String,
        /// The provider's signature over it.
        #[serde(skip_serializing_if = "Option::is_none")]
        signature: Option<String>,
        /// Whether the provider withheld the text.
        #[serde(skip_serializing_if = "is_false")]
        redacted: bool,
        /// What the provider must get back, as it came: ids, encrypted content. Adapters write beside it whose it is.
        #[serde(skip_serializing_if = "Option::is_none", with = "json::option")]
        data: Option<Value>,
    },
    /// A tool call.
    ToolCall(Arc<ToolCall>),
    /// The model's refusal; not part of the output text.
    Refusal {
        /// How it said no.
        text: String,
    },
}

fn is_false(flag: &bool) -> bool {
    !flag
}

impl Part {
    /// Plain text.
    pub fn text(text: impl Into<String>) -> Self {
        Self::Text { text: text.into(), metadata: Metadata::new() }
    }

    /// An image, looked at as the provider decides.
    pub fn image(image: Image) -> Self {
        Self::Image { image, detail: ImageDetail::Auto, metadata: Metadata::new() }
    }

    /// A tool call.
    pub fn tool_call(call: impl Into<Arc<ToolCall>>) -> Self {
        Self::ToolCall(call.into())
    }

    /// Readable reasoning without a signature.
    pub fn reasoning(text: impl Into<String>) -> Self {
        Self::Reasoning { text: text.into(), signature: None, redacted: false, data: None }
    }
}

impl From<&str> for Part {
    fn from(text: &str) -> Self {
        Self::text(text)
    }
}

impl From<Image> for Part {
    fn from(image: Image) -> Self {
        Self::image(image)
    }
}

/// One message of a conversation.
///
/// Its JSON has `role`, `content` (text, or a list of parts where the message holds more than text), `name`,
/// `tool_call_id` and `metadata`. A tool message always names its call: another one cannot be built.
///
/// ```
/// # use mynah_data as mynah;
/// use mynah::{Message, Role};
/// let message = Message::user("hi");
/// assert_eq!(message.role(), Role::User);
/// assert_eq!(message.text(), "hi");
/// let json = r#"{"role":"user","content":"hi","name":null,"tool_call_id":null,"metadata":{}}"#;
/// assert_eq!(serde_json::to_string(&message)?, json);
/// # Ok::<(), serde_json::Error>(())
/// ```
#[derive(Clone, Debug, PartialEq)]
pub struct Message {
    role: Role,
    parts: Vec<Part>,
    name: Option<String>,
    tool_call_id: Option<String>,
    metadata: Metadata,
}

impl Message {
    /// Instructions to the model.
    pub fn system(text: impl Into<String>) -> Self {
        Self::with_parts(Role::System, vec![Part::text(text)])
    }

    /// Something a person says.
    pub fn user(text: impl Into<String>) -> Self {
        Self::with_parts(Role::User, vec![Part::text(text)])
    }

    /// Something a person says with more than text.
    pub fn user_parts(parts: impl IntoIterator<Item = Part>) -> Self {
        Self::with_parts(Role::User, parts.into_iter().collect())
    }

    /// Something the model said.
    pub fn assistant(text: impl Into<String>) -> Self {
        Self::with_parts(Role::Assistant, vec![Part::text(text)])
    }

    /// Something the model said, part by part.
    pub fn assistant_parts(parts: impl IntoIterator<Item = Part>) -> Self {
        Self::with_parts(Role::Assistant, parts.into_iter().collect())
    }

    /// The result of a tool call. Text stands as it is; any other value becomes its JSON.
    pub fn tool_result(tool_call_id: impl Into<String>, content: impl Into<Value>) -> Self {
        let text = match content.into() {
            Value::String(text) => text,
            value => value.to_string(),
        };
        Self::tool_parts(tool_call_id, [Part::text(text)])
    }

    /// The result of a failed tool call, with `is_error` in its metadata for providers that use it.
    pub fn tool_error(tool_call_id: impl Into<String>, content: impl Into<Value>) -> Self {
        Self::tool_result(tool_call_id, content).with_metadata("is_error", true)
    }

    /// The result of a tool call with more than text.
    pub fn tool_parts(
        tool_call_id: impl Into<String>,
        parts: impl IntoIterator<Item = Part>,
    ) -> Self {
        let mut message = Self::with_parts(Role::Tool, parts.into_iter().collect());
        message.tool_call_id = Some(tool_call_id.into());
        message
    }

    fn with_parts(role: Role, mut parts: Vec<Part>) -> Self {
        // No text and one empty text are the same message, and have the same JSON.
        if let [Part::Text { text, metadata }] = parts.as_slice()
            && text.is_empty()
            && metadata.is_empty()
        {
            parts.clear();
        }
        Self { role, parts, name: None, tool_call_id: None, metadata: Metadata::new() }
    }

    /// The same message with the author's name.
    pub fn with_name(mut self, name: impl Into<String>) -> Self {
        self.name = Some(name.into());
        self
    }

    /// The same message with one more metadata member.
    pub fn with_metadata(mut self, key: &str, value: impl Into<Value>) -> Self {
        if self.metadata.is_empty() {
            // Most have one member. They live as long as the conversation.
            self.metadata = Metadata::with_capacity(1);
        }
        self.metadata.insert(key.to_owned(), value.into());
        self
    }

    /// Who it is from.
    pub fn role(&self) -> Role {
        self.role
    }

    /// Characters of its text and bytes of its tool arguments. A third of it is about what it takes in tokens.
    ///
    /// ```
    /// # use mynah_data as mynah;
    /// use mynah::Message;
    /// assert_eq!(Message::user("grüß").size(), 4);
    /// ```
    pub fn size(&self) -> u64 {
        let size = |part: &Part| match part {
            Part::Text { text, .. } | Part::Reasoning { text, .. } | Part::Refusal { text } => {
                text.chars().count()
            }
            Part::ToolCall(call) => call.raw_arguments.len(),
            Part::Image { .. } => 0,
        };
        self.parts.iter().map(|part| size(part) as u64).sum()
    }

    /// What it holds, in order.
    pub fn parts(&self) -> &[Part] {
        &self.parts
    }

    /// The author's name.
    pub fn name(&self) -> Option<&str> {
        self.name.as_deref()
    }

    /// The call that a tool message answers; always there on a tool message.
    pub fn tool_call_id(&self) -> Option<&str> {
        self.tool_call_id.as_deref()
    }

    /// Anything else.
    pub fn metadata(&self) -> &Metadata {
        &self.metadata
    }

    /// The text parts, joined.
    pub fn text(&self) -> Cow<'_, str> {
        let mut texts = self.parts.iter().filter_map(|part| match part {
            Part::Text { text, .. } => Some(text.as_str()),
            _ => None,
        });
        match (texts.next(), texts.next()) {
            (None, _) => Cow::Borrowed(""),
            (Some(only), None) => Cow::Borrowed(only),
            (Some(first), Some(second)) => {
                let mut joined = String::from(first);
                joined.push_str(second);
                texts.for_each(|text| joined.push_str(text));
                Cow::Owned(joined)
            }
        }
    }

    /// The tool calls, in order.
    pub fn tool_calls(&self) -> impl Iterator<Item = &ToolCall> {
        self.shared_tool_calls().map(Arc::as_ref)
    }

    /// The tool calls, in order, to be shared.
    #[doc(hidden)]
    pub fn shared_tool_calls(&self) -> impl Iterator<Item = &Arc<ToolCall>> {
        self.parts.iter().filter_map(|part| match part {
            Part::ToolCall(call) => Some(call),
            _ => None,
        })
    }
}

impl Message {
    /// Its text and the calls in it, on one line unless the text has several.
    pub fn summary(&self) -> String {
        let text = self.text();
        let calls = self.tool_calls().map(|call| format!("> {} {}", call.name, call.arguments));
        let text = (!text.is_empty()).then(|| text.into_owned());
        text.into_iter().chain(calls).collect::<Vec<_>>().join(" ")
    }
}

/// For people: who said what, and which tools were called.
impl fmt::Display for Message {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.role.as_str(), self.text())?;
        self.tool_calls().try_for_each(|call| write!(f, " [{}({})]", call.name, call.raw_arguments))
    }
}

impl Serialize for Message {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        use serde::ser::SerializeStruct;
        /// Text alone, or a list of parts.
        #[derive(Serialize)]
        #[serde(untagged)]
        enum Content<'a> {
            Text(&'a str),
            Parts(&'a [Part]),
        }
        let content = match self.parts.as_slice() {
            [] => Content::Text(""),
            [Part::Text { text, metadata }] if metadata.is_empty() => Content::Text(text),
            parts => Content::Parts(parts),
        };
        let is_read = serializer.is_human_readable();
        let mut fields = serializer.serialize_struct("Message", 5)?;
        if is_read {
            fields.serialize_field("role", &self.role)?;
            fields.serialize_field("content", &content)?;
            fields.serialize_field("name", &self.name)?;
            fields.serialize_field("tool_call_id", &self.tool_call_id)?;
            fields.serialize_field("metadata", &self.metadata)?;
        } else {
            // The order of deterministic CBOR.
            fields.serialize_field("name", &self.name)?;
            fields.serialize_field("role", &self.role)?;
            fields.serialize_field("content", &content)?;
            if !self.metadata.is_empty() {
                fields.serialize_field("metadata", &Json(&self.metadata))?;
            }
            fields.serialize_field("tool_call_id", &self.tool_call_id)?;
        }
        fields.end()
    }
}

impl<'de> Deserialize<'de> for Message {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        /// `tool_calls` is read for the sake of hand-written files; Mynah itself writes calls as parts.
        #[derive(Deserialize)]
        #[serde(expecting = "a message")]
        struct Wire {
            role: Role,
            content: Content,
            #[serde(default)]
            name: Option<String>,
            #[serde(default)]
            tool_call_id: Option<String>,
            #[serde(default)]
            tool_calls: Vec<ToolCall>,
            #[serde(default, deserialize_with = "json::deserialize")]
            metadata: Metadata,
        }
        let wire = Wire::deserialize(deserializer)?;
        if wire.role == Role::Tool && wire.tool_call_id.is_none() {
            return Err(de::Error::custom("a tool message needs a tool_call_id"));
        }
        let mut parts = wire.content.0;
        if !wire.tool_calls.is_empty() {
            parts.retain(|part| !matches!(part, Part::Text { text, .. } if text.is_empty()));
            parts.extend(wire.tool_calls.into_iter().map(Part::tool_call));
        }
        let message = Self::with_parts(wire.role, parts);
        Ok(Self {
            name: wire.name,
            tool_call_id: wire.tool_call_id,
            metadata: wire.metadata,
            ..message
        })
    }
}

impl<'de> Deserialize<'de> for Part {
    /// Reads the members of every kind at once: `type` need not stand first, and what stood before it would be read twice.
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        #[derive(Deserialize)]
        #[serde(rename_all = "snake_case")]
        enum Kind {
            Text,
            Image,
            Reasoning,
            ToolCall,
            Refusal,
        }
        #[derive(Deserialize)]
        #[serde(expecting = "a part of a message")]
        struct Wire {
            r#type: Kind,
            text: Option<String>,
            #[serde(default, deserialize_with = "json::option::deserialize")]
            metadata: Option<Metadata>,
            image: Option<Image>,
            detail: Option<ImageDetail>,
            signature: Option<String>,
            redacted: Option<bool>,
            #[serde(default, deserialize_with = "json::option::deserialize")]
            data: Option<Value>,
            id: Option<String>,
            name: Option<String>,
            #[serde(default, deserialize_with = "json::present")]
            arguments: Option<Value>,
            raw_arguments: Option<String>,
        }
        let mut wire = Wire::deserialize(deserializer)?;
        let text = |text: Option<String>| text.ok_or_else(|| de::Error::missing_field("text"));
        let part = match wire.r#type {
            Kind::Text => Self::Text {
                text: text(wire.text.take())?,
                metadata: wire.metadata.take().unwrap_or_default(),
            },
            Kind::Image => Self::Image {
                image: wire.image.take().ok_or_else(|| de::Error::missing_field("image"))?,
                detail: wire.detail.take().unwrap_or_default(),
                metadata: wire.metadata.take().unwrap_or_default(),
            },
            Kind::Reasoning => Self::Reasoning {
                text: text(wire.text.take())?,
                signature: wire.signature.take(),
                redacted: wire.redacted.take().unwrap_or_default(),
                data: wire.data.take(),
            },
            Kind::ToolCall => {
                let id = wire.id.take().ok_or_else(|| de::Error::missing_field("id"))?;
                let name = wire.name.take().ok_or_else(|| de::Error::missing_field("name"))?;
                let (arguments, raw) = (wire.arguments.take(), wire.raw_arguments.take());
                let mut call = ToolCall::read(id, name, arguments, raw);
                call.metadata = wire.metadata.take().unwrap_or_default();
                Self::tool_call(call)
            }
            Kind::Refusal => Self::Refusal { text: text(wire.text.take())? },
        };
        match wire {
            Wire {
                r#type: _,
                text: None,
                metadata: None,
                image: None,
                detail: None,
                signature: None,
                redacted: None,
                data: None,
                id: None,
                name: None,
                arguments: None,
                raw_arguments: None,
            } => Ok(part),
            _ => Err(de::Error::custom("a part with members of another kind of part")),
        }
    }
}

/// Text, or a list of parts.
struct Content(Vec<Part>);

impl<'de> Deserialize<'de> for Content {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct ContentVisitor;
        impl<'de> de::Visitor<'de> for ContentVisitor {
            type Value = Content;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("text or a list of parts")
            }

            fn visit_str<E: de::Error>(self, text: &str) -> Result<Content, E> {
                Ok(Content(vec![Part::text(text)]))
            }

            fn visit_unit<E: de::Error>(self) -> Result<Content, E> {
                Ok(Content(Vec::new()))
            }

            fn visit_seq<A: de::SeqAccess<'de>>(self, mut list: A) -> Result<Content, A::Error> {
                let mut parts = Vec::new();
                while let Some(part) = list.next_element()? {
                    parts.push(part);
                }
                Ok(Content(parts))
            }
        }
        deserializer.deserialize_any(ContentVisitor)
    }
}
