//! The HTTP client: connections, TLS, proxies.

use std::{fmt, sync::Arc, time::Duration};

use bytes::Bytes;
use http::{
    HeaderValue, Request, Response, Uri,
    header::{ACCEPT, PROXY_AUTHORIZATION, USER_AGENT},
    uri::Scheme,
};
use http_body_util::Full;
use mynah_data::{AdapterReason, Error, Result};
use rustls::{
    ClientConfig,
    crypto::ring,
    pki_types::{CertificateDer, pem::PemObject},
};
use rustls_platform_verifier::Verifier;

use super::{
    address,
    connection::{AnswerBody, Pool, SendError},
    connector::{Connector, Proxies},
};

/// An HTTP client with a pool of connections. Clones share the pool, which belongs to the runtime that uses it first.
///
/// It speaks HTTP/1.1, where an abandoned answer closes only its own connection. It follows no
/// redirects, so that a key goes only to the given address. It trusts the system's certificates.
/// Proxies come from `HTTPS_PROXY` and similar variables unless one is set here; those are not used
/// for a server on this machine.
///
/// ```
/// # mod mynah { pub use mynah_adapters as adapters; }
/// use std::time::Duration;
/// use mynah::adapters::http::Http;
///
/// let http = Http::builder().connect_timeout(Duration::from_secs(3)).proxy("http://proxy.example:3128").build()?;
/// # Ok::<(), mynah_data::Error>(())
/// ```
#[derive(Clone)]
pub struct Http {
    pool: Arc<Pool>,
    connector: Connector,
}

impl Http {
    /// A client with the defaults.
    ///
    /// # Errors
    /// A system whose trusted certificates cannot be read.
    pub fn new() -> Result<Self> {
        Self::builder().build()
    }

    /// A client with other settings.
    pub fn builder() -> HttpBuilder {
        HttpBuilder { connect_timeout: Duration::from_secs(10), proxy: None, roots: Vec::new() }
    }

    /// The proxy for this server, without its secrets.
    pub(super) fn proxy(&self, server: &Uri) -> Option<String> {
        let proxy = self.connector.proxies.of(server)?;
        let (scheme, host) = (proxy.uri().scheme_str()?, proxy.uri().host()?);
        let port = proxy.uri().port_u16().map(|port| format!(":{port}")).unwrap_or_default();
        Some(format!("{scheme}://{host}{port}"))
    }

    /// Sends a request, and waits for the head of its answer.
    #[doc(hidden)]
    pub fn send(
        &self,
        mut request: Request<Full<Bytes>>,
    ) -> impl Future<Output = Result<Response<AnswerBody>, SendError>> + use<> {
        const AGENT: &str = concat!("mynah/", env!("CARGO_PKG_VERSION"));
        // To a server with TLS, the connector opens a tunnel.
        let is_read_by_proxy = request.uri().scheme() == Some(&Scheme::HTTP);
        let proxy = is_read_by_proxy.then(|| self.connector.proxies.of(request.uri())).flatten();
        let headers = request.headers_mut();
        headers.entry(USER_AGENT).or_insert(HeaderValue::from_static(AGENT));
        headers.entry(ACCEPT).or_insert(HeaderValue::from_static("*/*"));
        if let Some(auth) = proxy.as_ref().and_then(|proxy| proxy.basic_auth()) {
            headers.insert(PROXY_AUTHORIZATION, auth.clone());
        }
        Arc::clone(&self.pool).send(self.connector.clone(), request)
    }
}

impl fmt::Debug for Http {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Http").finish_non_exhaustive()
    }
}

/// The settings of an [`Http`].
#[derive(Clone)]
#[must_use]
pub struct HttpBuilder {
    connect_timeout: Duration,
    proxy: Option<String>,
    roots: Vec<u8>,
}

impl fmt::Debug for HttpBuilder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("HttpBuilder")
            .field("connect_timeout", &self.connect_timeout)
            .field("proxy", &self.proxy.as_ref().map(|_| "…"))
            .finish_non_exhaustive()
    }
}

impl HttpBuilder {
    /// The time limit to connect, TLS included. By default 10 seconds.
    pub fn connect_timeout(mut self, limit: Duration) -> Self {
        self.connect_timeout = limit;
        self
    }

    /// Uses this proxy, HTTP or SOCKS, instead of the environment's. `NO_PROXY` still applies.
    pub fn proxy(mut self, url: impl Into<String>) -> Self {
        self.proxy = Some(url.into());
        self
    }

    /// Trusts these certificates too: the text of a PEM file.
    pub fn root_certificates(mut self, pem: impl AsRef<[u8]>) -> Self {
        self.roots.extend_from_slice(pem.as_ref());
        self.roots.push(b'\n');
        self
    }

    /// The client.
    ///
    /// # Errors
    /// Certificates that are none, a proxy that is no URL, a system whose trusted certificates cannot be read.
    pub fn build(self) -> Result<Http> {
        let proxies = Arc::new(match &self.proxy {
            Some(url) => {
                let malformed = || Error::invalid_option("proxy", "malformed");
                Proxies::all(&proxy_address(url).ok_or_else(malformed)?, &no_proxy())
            }
            None => Proxies::of_system(),
        });
        let (tls, limit) = (Arc::new(self.tls()?), self.connect_timeout);
        Ok(Http { pool: Arc::default(), connector: Connector { tls, proxies, limit } })
    }

    fn tls(&self) -> Result<ClientConfig> {
        let provider = Arc::new(ring::default_provider());
        let roots = CertificateDer::pem_slice_iter(&self.roots)
            .collect::<Result<Vec<_>, _>>()
            .map_err(|_| Error::invalid_option("root_certificates", "malformed"))?;
        if roots.is_empty() && !self.roots.is_empty() {
            return Err(Error::invalid_option("root_certificates", "empty"));
        }
        let verifier =
            Verifier::new_with_extra_roots(roots, Arc::clone(&provider)).map_err(unusable)?;
        let config = ClientConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .map_err(unusable)?;
        Ok(config
            .dangerous()
            .with_custom_certificate_verifier(Arc::new(verifier))
            .with_no_client_auth())
    }
}

/// The address of a proxy, which may leave out that it speaks HTTP. An `@` in its password is escaped.
fn proxy_address(url: &str) -> Option<String> {
    const SCHEMES: [&str; 6] = ["http", "https", "socks4", "socks4a", "socks5", "socks5h"];
    let (scheme, rest) = url.split_once("://").unwrap_or(("http", url));
    let (user, host) =
        rest.rsplit_once('@').map_or((None, rest), |(user, host)| (Some(user), host));
    let user = user.map(|user| user.replace('@', "%40") + "@").unwrap_or_default();
    let url = format!("{scheme}://{user}{host}");
    let uri: Uri = url.parse().ok()?;
    let is_sound = uri.authority().is_some_and(address::is_sound);
    (is_sound && SCHEMES.contains(&uri.scheme_str()?)).then_some(url)
}

/// The servers that are called without a proxy.
fn no_proxy() -> String {
    #[expect(clippy::disallowed_methods, reason = "as for the proxies of the environment")]
    let named = ["NO_PROXY", "no_proxy"].iter().find_map(|name| std::env::var(name).ok());
    named.unwrap_or_default()
}

fn unusable(why: impl std::error::Error + Send + Sync + 'static) -> Error {
    Error::adapter(AdapterReason::NetworkError)
        .with_message(format!("adapter error: network_error: no HTTP client can be made: {why}"))
        .caused_by(why)
}
