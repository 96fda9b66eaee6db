//! Calls that are signed instead of carrying a key.

use std::borrow::Cow;

use aws_credential_types::Credentials;
use aws_sigv4::{
    http_request::{SignableBody, SignableRequest, SigningSettings, sign},
    sign::v4,
};
use mynah_data::{AdapterReason, EngineReason, Error, Result};

use crate::format::Outgoing;

/// The variable with the name of the key that signs.
pub(super) const ACCESS_KEY: &str = "AWS_ACCESS_KEY_ID";

pub(super) const SECRET_KEY: &str = "AWS_SECRET_ACCESS_KEY";

pub(super) const SESSION_TOKEN: &str = "AWS_SESSION_TOKEN";

/// The headers that sign this call: its address, its time and its body.
pub(super) fn headers(
    outgoing: &Outgoing<'_>,
    region: &str,
) -> Result<Vec<(Cow<'static, str>, String)>> {
    let secret = (outgoing.secret)(SECRET_KEY).ok_or_else(|| {
        Error::engine(EngineReason::MissingKey)
            .with_message(format!(
                "engine error: missing_key: {ACCESS_KEY} is set, {SECRET_KEY} is not"
            ))
            .with("checked", [SECRET_KEY])
    })?;
    let session = (outgoing.secret)(SESSION_TOKEN);
    let identity =
        Credentials::new(outgoing.key.expose(), secret, session, None, "environment").into();
    let params = v4::SigningParams::builder()
        .identity(&identity)
        .region(region)
        .name("bedrock")
        .time(outgoing.now)
        .settings(SigningSettings::default())
        .build()
        .map_err(|_| unsignable())?;
    let body = SignableBody::Bytes(outgoing.body);
    let request = SignableRequest::new("POST", outgoing.url, std::iter::empty(), body)
        .map_err(|_| unsignable())?;
    let signed = sign(request, &params.into()).map_err(|_| unsignable())?;
    let (instructions, _) = signed.into_parts();
    let (headers, _) = instructions.into_parts();
    Ok(headers
        .iter()
        .map(|header| (Cow::Borrowed(header.name()), header.value().to_owned()))
        .collect())
}

/// Omits the reason, which might contain a secret.
fn unsignable() -> Error {
    Error::adapter(AdapterReason::InvalidRequest)
        .with_message("adapter error: invalid_request: the call cannot be signed")
}
