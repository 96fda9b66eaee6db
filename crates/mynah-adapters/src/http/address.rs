//! Where a server is.

use std::{
    net::Ipv6Addr,
    sync::{Arc, Mutex, OnceLock, PoisonError},
};

use http::{Uri, uri::Authority};
use mynah_data::{Error, Result};

use super::Http;

/// A cache of addresses that an adapter has called: there are few, and parsing one takes longer
/// than a call may.
#[derive(Default)]
pub(super) struct Addresses(Mutex<Vec<Arc<Address>>>);

/// How many are cached.
const KEPT: usize = 16;

impl Addresses {
    /// The address of a path of the server at this base URL.
    pub(super) fn of(&self, base: &str, version: &str, path: &str) -> Arc<Address> {
        let mut kept = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(known) = kept.iter().find(|known| known.base == base && known.path == path) {
            return Arc::clone(known);
        }
        let address = Arc::new(Address {
            base: base.to_owned(),
            path: path.to_owned(),
            url: joined(base, version, path),
            way: OnceLock::new(),
        });
        kept.truncate(KEPT - 1);
        kept.insert(0, Arc::clone(&address));
        address
    }
}

/// Where a call goes.
pub(super) struct Address {
    base: String,
    path: String,
    pub(super) url: String,
    way: OnceLock<Route>,
}

/// How an address is reached.
pub(super) struct Route {
    pub(super) uri: Uri,
    /// The address for errors. Its other parts may be secret.
    server: String,
    proxy: Option<String>,
}

impl Address {
    /// How it is reached with these connections.
    pub(super) fn way(&self, http: &Http) -> Result<&Route> {
        if let Some(way) = self.way.get() {
            return Ok(way);
        }
        let uri = parsed("base_url", &self.url)?;
        let (server, proxy) = (origin(&uri), http.proxy(&uri));
        Ok(self.way.get_or_init(|| Route { uri, server, proxy }))
    }

    /// The server, for errors; empty before it was called.
    pub(super) fn server(&self) -> &str {
        self.way.get().map_or("", |way| &way.server)
    }

    /// The proxy that is used for it.
    pub(super) fn proxy(&self) -> Option<&str> {
        self.way.get()?.proxy.as_deref()
    }
}

/// The value at this place, if it is the address of a server.
#[doc(hidden)]
pub fn parsed(place: &str, url: &str) -> Result<Uri> {
    let refused = |code: &str, why: &str| {
        let message = format!("validation failed: {place}: {why}");
        Error::invalid_option(place, code).with_message(message)
    };
    let malformed = || refused("malformed", "an address begins with http:// or https://");
    let Some((_, rest)) = url.split_once("://") else { return Err(malformed()) };
    if rest.is_empty() || rest.starts_with(['/', ':', '?']) {
        return Err(refused("malformed", "empty host"));
    }
    if !url.is_ascii() {
        let why = "an address is ASCII: write other characters percent-encoded, and a name of a host in Punycode";
        return Err(refused("malformed", why));
    }
    let parsed = url.trim().parse::<Uri>();
    let uri = parsed.map_err(|error| refused("malformed", &error.to_string()))?;
    let Some(authority) = uri.authority() else { return Err(malformed()) };
    if !matches!(uri.scheme_str(), Some("http" | "https")) {
        return Err(malformed());
    }
    if authority.as_str().contains('@') {
        return Err(refused("credentials", "a password does not belong in an address"));
    }
    if !is_sound(authority) {
        return Err(refused("malformed", "invalid port number"));
    }
    Ok(uri)
}

/// Whether there is a host, and the port is a number, if there is one.
pub(super) fn is_sound(authority: &Authority) -> bool {
    let host = authority.host();
    let server = authority.as_str().rsplit('@').next().unwrap_or_default();
    let has_port = !matches!(server.strip_prefix(host), Some("" | ":"));
    !host.is_empty() && (authority.port_u16().is_some() || !has_port)
}

/// Scheme, host and port, if that is not the scheme's own.
fn origin(uri: &Uri) -> String {
    let (scheme, host) = (uri.scheme_str().unwrap_or_default(), uri.host().unwrap_or_default());
    match (scheme, uri.port_u16()) {
        (_, None) | ("http", Some(80)) | ("https", Some(443)) => format!("{scheme}://{host}"),
        (_, Some(port)) => format!("{scheme}://{host}:{port}"),
    }
}

/// The address in an environment variable. If the server has a default, the variable may be a host
/// or a port alone, and the default provides the rest. A server that listens on all interfaces is
/// called on this machine.
pub(super) fn named_by(variable: &str, value: &str, own: Option<&Uri>) -> Result<Uri> {
    let Some(own) = own else { return parsed(variable, value) };
    let value = value.trim().trim_matches(['"', '\'']);
    let url = match value.contains("://") {
        true => value.to_owned(),
        false => completed(value, own),
    };
    let uri = parsed(variable, &url)?;
    match uri.host() {
        Some(host @ ("0.0.0.0" | "[::]")) => parsed(variable, &url.replacen(host, "127.0.0.1", 1)),
        _ => Ok(uri),
    }
}

/// The address of a host or a port, with the rest of the server's own.
fn completed(value: &str, own: &Uri) -> String {
    let (authority, path) = value.split_at(value.find('/').unwrap_or(value.len()));
    let (authority, has_port) = match authority.parse::<Ipv6Addr>() {
        Ok(address) => (format!("[{address}]"), false),
        Err(_) => {
            let port = authority.rsplit_once(':').map_or("", |(_, port)| port);
            let host = own.host().filter(|_| authority.starts_with(':')).unwrap_or_default();
            (format!("{host}{authority}"), port.parse::<u16>().is_ok())
        }
    };
    let own_port = own.port_u16().filter(|_| !has_port);
    let port = own_port.map(|port| format!(":{port}")).unwrap_or_default();
    format!("{}://{authority}{port}{path}", own.scheme_str().unwrap_or("http"))
}

/// Base URL, version and path. A base that names a version or a deployment gets none, and one that ends in the path is the whole address;
/// what it asks for in its query stays.
pub(super) fn joined(base: &str, version: &str, path: &str) -> String {
    let (base, query) = base.split_once('?').unwrap_or((base, ""));
    let base = base.trim_end_matches('/');
    let (path, asked) = path.split_once('?').unwrap_or((path, ""));
    let version = missing_version(base, version);
    let is_whole = version.is_empty()
        || names_version(base)
        || query.contains("api-version=")
        || base.contains("/deployments/");
    let url = match is_whole {
        _ if base.ends_with(&format!("/{path}")) => base.to_owned(),
        true => format!("{base}/{path}"),
        false => format!("{base}/{version}/{path}"),
    };
    let queries = [asked, query].into_iter().filter(|query| !query.is_empty());
    let query = queries.collect::<Vec<_>>().join("&");
    if query.is_empty() { url } else { format!("{url}?{query}") }
}

/// What a base URL does not end in of a version such as `openai/v1`.
fn missing_version<'v>(base: &str, version: &'v str) -> &'v str {
    // After the scheme and the host.
    let path = base.splitn(4, '/').nth(3).unwrap_or_default();
    let ends_in = |begin: &str| path == begin || path.ends_with(&format!("/{begin}"));
    let begins = version.match_indices('/').map(|(at, _)| at).chain([version.len()]);
    let there = begins.rev().find(|at| ends_in(&version[..*at])).unwrap_or(0);
    version[there..].trim_start_matches('/')
}

/// Whether the path of a URL has a version. A version before the name of a provider with its own
/// version is the gateway's.
fn names_version(base: &str) -> bool {
    const OWN_FOLLOWS: [&str; 2] = ["anthropic", "google-ai-studio"];
    let is_version = |segment: &str| {
        let rest = segment.strip_prefix('v');
        rest.is_some_and(|rest| rest.starts_with(|c: char| c.is_ascii_digit()))
    };
    // After the scheme and the host.
    let mut path = base.split('/').skip(3);
    let last = base.rsplit('/').next().unwrap_or_default();
    !OWN_FOLLOWS.contains(&last) && path.any(is_version)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_variable_may_name_a_host_or_a_port_and_a_server_that_listens_everywhere() -> Result<()> {
        let own = parsed("base_url", "http://localhost:11434")?;
        for (value, expected) in [
            ("0.0.0.0", "http://127.0.0.1:11434/"),
            ("0.0.0.0:80", "http://127.0.0.1:80/"),
            ("http://0.0.0.0:11434", "http://127.0.0.1:11434/"),
            ("https://[::]:1/x", "https://127.0.0.1:1/x"),
            ("::", "http://127.0.0.1:11434/"),
            ("[::]:1", "http://127.0.0.1:1/"),
            ("::1", "http://[::1]:11434/"),
            ("[::1]", "http://[::1]:11434/"),
            ("::1/x", "http://[::1]:11434/x"),
            (":1", "http://localhost:1/"),
            ("host", "http://host:11434/"),
            ("host:80/x", "http://host:80/x"),
            ("https://host", "https://host/"),
            (" \"host\" ", "http://host:11434/"),
        ] {
            assert_eq!(named_by("V", value, Some(&own))?.to_string(), expected, "{value}");
        }
        assert!(named_by("V", "host", None).is_err());
        Ok(())
    }
}
