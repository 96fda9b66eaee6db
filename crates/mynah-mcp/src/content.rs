//! What a server answers, as the model sees it.

use mynah_data::{Image, Part, ToolOutcome};
use rmcp::model::{CallToolResult, ContentBlock, ResourceContents};

use crate::{ListedTool, McpError, ServerLimits};

/// The outcome of a call that the server completed.
pub(crate) fn outcome(
    server: &str,
    tool: &ListedTool,
    limits: &ServerLimits,
    result: CallToolResult,
) -> ToolOutcome {
    if result.is_error == Some(true) {
        let text = joined(&read(result.content, limits));
        return ToolOutcome::error(capped(text, limits.output_bytes));
    }
    if let Some(structured) = result.structured_content {
        if let Some(schema) = &tool.output_schema
            && let Err(error) = jsonschema::validate(schema, &structured)
        {
            let why =
                format!("the result of {:?} does not fit its output schema: {error}", tool.name);
            return McpError::Protocol {
                server: server.to_owned(),
                why: crate::error::cut(&why, 2000),
            }
            .into();
        }
        let only_text = |block: &ContentBlock| matches!(block, ContentBlock::Text(_));
        // Its text says the same in words; images do not.
        if result.content.iter().all(only_text) {
            let text = structured.to_string();
            return match text.len() <= limits.output_bytes {
                true => ToolOutcome::Ok(structured),
                false => capped(text, limits.output_bytes).into(),
            };
        }
    } else if tool.output_schema.is_some() {
        let why = format!("the result of {:?} lacks its structured content", tool.name);
        return McpError::Protocol { server: server.to_owned(), why }.into();
    }
    let mut parts = read(result.content, limits);
    if parts.iter().all(|part| matches!(part, Part::Text { .. })) {
        return capped(joined(&parts), limits.output_bytes).into();
    }
    let mut left = limits.output_bytes;
    for part in &mut parts {
        if let Part::Text { text, .. } = part {
            *text = capped(std::mem::take(text), left);
            left = left.saturating_sub(text.len());
        }
    }
    parts.into()
}

fn joined(parts: &[Part]) -> String {
    let texts = parts.iter().filter_map(|part| match part {
        Part::Text { text, .. } => Some(text.as_str()),
        _ => None,
    });
    texts.collect::<Vec<_>>().join("\n")
}

/// The text, or its beginning and how much is missing.
fn capped(text: String, most: usize) -> String {
    if text.len() <= most {
        return text;
    }
    let shown = text.floor_char_boundary(most);
    format!("{}\n[truncated: {shown} of {} bytes shown]", &text[..shown], text.len())
}

fn read(content: Vec<ContentBlock>, limits: &ServerLimits) -> Vec<Part> {
    let blob = |kind: &str, mime: Option<&str>, base64: &str| {
        let bytes = base64.len() / 4 * 3;
        Part::text(format!("[{kind} {}, about {bytes} bytes, not shown]", mime.unwrap_or("data")))
    };
    let image = |data: String, mime: String| match data.len() <= limits.image_bytes {
        true => Part::image(Image::from_base64(data, mime)),
        false => blob("image", Some(&mime), &data),
    };
    let parts = content.into_iter().map(|block| match block {
        ContentBlock::Text(text) => Part::text(text.text),
        ContentBlock::Image(found) => image(found.data, found.mime_type),
        ContentBlock::Audio(audio) => blob("audio", Some(&audio.mime_type), &audio.data),
        ContentBlock::Resource(embedded) => match embedded.resource {
            ResourceContents::TextResourceContents { uri, text, .. } => {
                Part::text(format!("{uri}:\n{text}"))
            }
            ResourceContents::BlobResourceContents { mime_type: Some(mime), blob, .. }
                if mime.starts_with("image/") =>
            {
                image(blob, mime)
            }
            ResourceContents::BlobResourceContents { uri, mime_type, blob: data, .. } => {
                blob(&uri, mime_type.as_deref(), &data)
            }
            _ => Part::text("[a resource of an unknown kind]"),
        },
        ContentBlock::ResourceLink(link) => Part::text(format!("{}: {}", link.name, link.uri)),
        _ => Part::text("[content of an unknown kind]"),
    });
    parts.collect()
}
