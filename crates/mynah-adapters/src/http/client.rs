//! The HTTP client: connections, TLS, proxies.

use std::{net::IpAddr, sync::Arc, time::Duration};

use mynah_data::{AdapterReason, Error, Result};
use reqwest::{Client, NoProxy, Proxy, Url, redirect::Policy};
use rustls::{
    ClientConfig,
    crypto::ring,
    pki_types::{CertificateDer, pem::PemObject},
};
use rustls_platform_verifier::Verifier;

/// An HTTP client with a pool of connections. Clones share the pool, which belongs to the runtime that uses it first.
///
/// It speaks HTTP/1.1, where an answer that is abandoned closes its connection and nothing else; it follows no redirects, so
/// that a key goes nowhere but to the address that was given; and it trusts what the system trusts. Proxies come from
/// `HTTPS_PROXY` and its like unless one is named here; those of the environment are not asked for a server on this machine.
///
/// ```
/// use std::time::Duration;
/// use mynah_adapters::http::Http;
///
/// let http = Http::builder().connect_timeout(Duration::from_secs(3)).proxy("http://proxy.example:3128").build()?;
/// # Ok::<(), mynah_data::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct Http {
    client: Client,
    /// For servers on this machine, where the proxy is the environment's.
    direct: Option<Client>,
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

    /// The client for this address.
    pub(super) fn client(&self, url: &str) -> &Client {
        self.direct.as_ref().filter(|_| is_local(url)).unwrap_or(&self.client)
    }
}

/// The settings of an [`Http`].
#[derive(Clone, Debug)]
#[must_use]
pub struct HttpBuilder {
    connect_timeout: Duration,
    proxy: Option<String>,
    roots: Vec<u8>,
}

impl HttpBuilder {
    /// How long a connection may take to come about, TLS included; 10 seconds unless told otherwise.
    pub fn connect_timeout(mut self, limit: Duration) -> Self {
        self.connect_timeout = limit;
        self
    }

    /// Calls through this proxy, whatever the environment says. `NO_PROXY` still counts.
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
        let tls = self.tls()?;
        let builder = || {
            Client::builder()
                .tls_backend_preconfigured(tls.clone())
                .connect_timeout(self.connect_timeout)
                .redirect(Policy::none())
                .tcp_nodelay(true)
                .user_agent(concat!("mynah/", env!("CARGO_PKG_VERSION")))
        };
        let (client, direct) = match &self.proxy {
            Some(url) => {
                let proxy =
                    Proxy::all(url).map_err(|_| Error::invalid_option("proxy", "malformed"))?;
                (builder().proxy(proxy.no_proxy(NoProxy::from_env())).build(), None)
            }
            None => (builder().build(), Some(builder().no_proxy().build())),
        };
        let made = |client: reqwest::Result<Client>| client.map_err(|error| unusable(&error));
        Ok(Http { client: made(client)?, direct: direct.map(made).transpose()? })
    }

    fn tls(&self) -> Result<ClientConfig> {
        let provider = Arc::new(ring::default_provider());
        let roots = CertificateDer::pem_slice_iter(&self.roots)
            .collect::<Result<Vec<_>, _>>()
            .map_err(|_| Error::invalid_option("root_certificates", "malformed"))?;
        if roots.is_empty() && !self.roots.is_empty() {
            return Err(Error::invalid_option("root_certificates", "empty"));
        }
        let verifier = Verifier::new_with_extra_roots(roots, Arc::clone(&provider))
            .map_err(|error| unusable(&error))?;
        let config = ClientConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .map_err(|error| unusable(&error))?;
        Ok(config
            .dangerous()
            .with_custom_certificate_verifier(Arc::new(verifier))
            .with_no_client_auth())
    }
}

/// Whether a server is on this machine.
fn is_local(url: &str) -> bool {
    let url = Url::parse(url).ok();
    let host = url.as_ref().and_then(Url::host_str).unwrap_or_default();
    let address = host.trim_matches(['[', ']']).parse::<IpAddr>();
    host == "localhost" || address.is_ok_and(|address| address.is_loopback())
}

fn unusable(why: &dyn std::error::Error) -> Error {
    Error::adapter(AdapterReason::NetworkError)
        .with_message(format!("adapter error: network_error: no HTTP client can be made: {why}"))
}
