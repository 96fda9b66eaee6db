//! Images as message parts: where the bytes are, never fetched or read before they are needed.

use std::{fmt, io, path::Path};

use base64::{Engine as _, engine::general_purpose::STANDARD};
use serde::{Deserialize, Serialize};

use crate::Metadata;

/// An image: its source and its properties.
///
/// ```
/// # use mynah_data as mynah;
/// use mynah::Image;
/// let image = Image::from_base64("aGk=", "image/png");
/// assert_eq!(image.to_data_uri(|path| std::fs::read(path)).unwrap(), "data:image/png;base64,aGk=");
/// ```
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Image {
    /// Where the bytes are.
    pub source: ImageSource,
    /// The media type, such as `image/png`.
    #[serde(default)]
    pub mime_type: Option<String>,
    /// Width in pixels.
    #[serde(default)]
    pub width: Option<u32>,
    /// Height in pixels.
    #[serde(default)]
    pub height: Option<u32>,
    /// Anything else.
    #[serde(default, with = "crate::json::members")]
    pub metadata: Metadata,
}

/// Where an image's bytes are.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "type", content = "value", rename_all = "snake_case", deny_unknown_fields)]
#[non_exhaustive]
pub enum ImageSource {
    /// The bytes themselves; base64 in JSON.
    Binary(#[serde(with = "base64_bytes")] Vec<u8>),
    /// Base64 text, passed on as it is.
    Base64(String),
    /// An address that the provider fetches. Mynah never does.
    Url(String),
    /// A file, read when its bytes are needed.
    File(std::path::PathBuf),
}

crate::words! {
    /// How closely a provider should look at an image.
    #[derive(Default)]
    #[non_exhaustive]
    pub enum ImageDetail {
        /// The provider decides.
        #[default]
        Auto => "auto",
        /// A small version is enough.
        Low => "low",
        /// At full resolution.
        High => "high",
    }
}

/// Why an image's bytes could not be given.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum ImageError {
    /// The image is an address, and Mynah does not fetch.
    RemoteSource,
    /// The media type is needed and not known.
    MissingMimeType,
    /// The text is not base64.
    InvalidBase64,
    /// The file could not be read, or is empty.
    Unreadable(String),
}

impl fmt::Display for ImageError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::RemoteSource => f.write_str("remote_source: the image is an address, not bytes"),
            Self::MissingMimeType => f.write_str("missing_mime_type: the media type is not known"),
            Self::InvalidBase64 => f.write_str("invalid_base64: the text is not base64"),
            Self::Unreadable(why) => write!(f, "unresolvable_image: {why}"),
        }
    }
}

impl std::error::Error for ImageError {}

impl Image {
    fn new(source: ImageSource, mime_type: Option<String>) -> Self {
        Self { source, mime_type, width: None, height: None, metadata: Metadata::new() }
    }

    /// An image file; its media type comes from the extension, and the file is not opened.
    pub fn from_file(path: impl Into<std::path::PathBuf>) -> Self {
        let path = path.into();
        let extension = path.extension().and_then(|e| e.to_str()).unwrap_or_default();
        let mime = match extension.to_ascii_lowercase().as_str() {
            "png" => Some("image/png"),
            "jpg" | "jpeg" => Some("image/jpeg"),
            "webp" => Some("image/webp"),
            "gif" => Some("image/gif"),
            _ => None,
        };
        Self::new(ImageSource::File(path), mime.map(str::to_owned))
    }

    /// An image from its bytes.
    pub fn from_binary(bytes: impl Into<Vec<u8>>, mime_type: impl Into<String>) -> Self {
        Self::new(ImageSource::Binary(bytes.into()), Some(mime_type.into()))
    }

    /// An image from base64 text.
    pub fn from_base64(text: impl Into<String>, mime_type: impl Into<String>) -> Self {
        Self::new(ImageSource::Base64(text.into()), Some(mime_type.into()))
    }

    /// An image that the provider fetches from an address.
    pub fn from_url(url: impl Into<String>) -> Self {
        Self::new(ImageSource::Url(url.into()), None)
    }

    /// An image from `data:<mime>;base64,<text>`; `None` if the text has another form.
    pub fn from_data_uri(uri: &str) -> Option<Self> {
        let (mime, text) = uri.strip_prefix("data:")?.split_once(";base64,")?;
        Some(Self::from_base64(text, mime))
    }

    /// The bytes. This crate does no I/O: a file is read by `read`, usually by `std::fs::read`.
    ///
    /// # Errors
    /// [`ImageError::RemoteSource`] for an address, [`ImageError::InvalidBase64`], [`ImageError::Unreadable`].
    pub fn to_binary(
        &self,
        read: impl FnOnce(&Path) -> io::Result<Vec<u8>>,
    ) -> Result<Vec<u8>, ImageError> {
        match &self.source {
            ImageSource::Binary(bytes) => Ok(bytes.clone()),
            ImageSource::Base64(text) => {
                STANDARD.decode(text).map_err(|_| ImageError::InvalidBase64)
            }
            ImageSource::Url(_) => Err(ImageError::RemoteSource),
            ImageSource::File(path) => {
                let unreadable =
                    |why: &str| ImageError::Unreadable(format!("{}: {why}", path.display()));
                match read(path) {
                    Ok(bytes) if bytes.is_empty() => Err(unreadable("it is empty")),
                    read => read.map_err(|error| unreadable(&error.to_string())),
                }
            }
        }
    }

    /// The image as a `data:` address. Base64 text is passed on as it is.
    ///
    /// # Errors
    /// As [`Image::to_binary`], and [`ImageError::MissingMimeType`].
    pub fn to_data_uri(
        &self,
        read: impl FnOnce(&Path) -> io::Result<Vec<u8>>,
    ) -> Result<String, ImageError> {
        if let ImageSource::Url(_) = self.source {
            return Err(ImageError::RemoteSource);
        }
        let mime = self.mime_type.as_deref().ok_or(ImageError::MissingMimeType)?;
        match &self.source {
            ImageSource::Base64(text) => Ok(format!("data:{mime};base64,{text}")),
            _ => Ok(format!("data:{mime};base64,{}", STANDARD.encode(self.to_binary(read)?))),
        }
    }
}

mod base64_bytes {
    use base64::{Engine as _, engine::general_purpose::STANDARD};
    use serde::{Deserialize, Deserializer, Serializer};

    pub(super) fn serialize<S: Serializer>(bytes: &[u8], serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(&STANDARD.encode(bytes))
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(d: D) -> Result<Vec<u8>, D::Error> {
        let text = String::deserialize(d)?;
        STANDARD.decode(text).map_err(|_| serde::de::Error::custom("invalid_base64"))
    }
}
