//! Who may make which request.

use std::net::IpAddr;

use axum::{
    extract::{Request, State},
    http::{HeaderMap, Method, StatusCode, header, uri::Authority},
    middleware::Next,
    response::{IntoResponse as _, Response},
};
use subtle::ConstantTimeEq as _;

use crate::{
    App, pages,
    problem::{Problem, Result},
};

/// The header that a page sends with a request that changes something. A page of another site cannot.
const REQUEST: &str = "mynah-request";

/// The cookie that holds the token.
pub(crate) const COOKIE: &str = "mynah_token";

/// Paths that need no token.
const OPEN: [&str; 3] = ["/healthz", "/readyz", "/v1/login"];

/// Who may reach the server.
#[derive(Debug, Default)]
pub(crate) struct Guard {
    pub(crate) token: Option<String>,
    /// Names of the server besides `localhost`.
    pub(crate) hosts: Vec<String>,
}

/// How a request showed that it may be made.
#[derive(PartialEq, Eq)]
enum Shown {
    Bearer,
    Cookie,
    Nothing,
}

/// Refuses what may not be asked, before anything else looks at it.
pub(crate) async fn guard(State(app): State<App>, request: Request, next: Next) -> Response {
    let mut response = match app.guard.admit(&request) {
        Ok(()) => next.run(request).await,
        Err(problem) => problem.into_response(),
    };
    app.metrics.answered(response.status());
    let headers = response.headers_mut();
    for (name, value) in [
        (header::X_CONTENT_TYPE_OPTIONS, "nosniff"),
        (header::REFERRER_POLICY, "no-referrer"),
        (header::CACHE_CONTROL, "no-store"),
    ] {
        headers.entry(name).or_insert(header::HeaderValue::from_static(value));
    }
    response
}

impl Guard {
    fn admit(&self, request: &Request) -> Result<()> {
        let (headers, path) = (request.headers(), request.uri().path());
        let host = self.host(request)?;
        check_origin(headers, &host)?;
        let shown = self.shown(headers)?;
        if self.token.is_some()
            && shown == Shown::Nothing
            && !OPEN.contains(&path)
            && !pages::is_page(path)
        {
            let detail = "this server needs a token; send `Authorization: Bearer TOKEN`";
            return Err(Problem::new(StatusCode::UNAUTHORIZED, "token_required", detail));
        }
        let changes = ![Method::GET, Method::HEAD, Method::OPTIONS].contains(request.method());
        if changes && shown != Shown::Bearer && !headers.contains_key(REQUEST) {
            let detail = "a request that changes something needs a bearer token or the header `Mynah-Request: 1`";
            return Err(Problem::forbidden("request_header_required", detail));
        }
        Ok(())
    }

    /// The server's name in the request. A page of another site can give its own name to this server's address.
    fn host(&self, request: &Request) -> Result<Authority> {
        let named = request.headers().get(header::HOST).and_then(|host| host.to_str().ok());
        let host = named.and_then(|host| host.parse::<Authority>().ok());
        let host = host.or_else(|| request.uri().authority().cloned());
        let host = host.ok_or_else(|| Problem::bad("the Host header is missing or malformed"))?;
        let name = host.host();
        let address = name.trim_start_matches('[').trim_end_matches(']');
        let is_known = name.eq_ignore_ascii_case("localhost")
            || address.parse::<IpAddr>().is_ok()
            || self.hosts.iter().any(|known| known.eq_ignore_ascii_case(name));
        if is_known {
            return Ok(host);
        }
        let detail =
            format!("Host {name}: not a name of this server; start it with `--host {name}`");
        Err(Problem::forbidden("host_refused", detail))
    }

    /// What the request shows. Without a token, any will do: no page of another site can send one.
    fn shown(&self, headers: &HeaderMap) -> Result<Shown> {
        let wrong = || Problem::new(StatusCode::UNAUTHORIZED, "token_wrong", "the token is wrong");
        if let Some(given) = headers.get(header::AUTHORIZATION) {
            let (scheme, token) =
                given.to_str().ok().and_then(|given| given.split_once(' ')).unzip();
            let is_bearer =
                scheme.is_some_and(|scheme: &str| scheme.eq_ignore_ascii_case("bearer"));
            let token = token.filter(|_| is_bearer);
            let is_right = |token| self.token.is_none() || self.is_token(token);
            return match token.is_some_and(is_right) {
                true => Ok(Shown::Bearer),
                false => Err(wrong()),
            };
        }
        let cookies =
            headers.get_all(header::COOKIE).iter().filter_map(|value| value.to_str().ok());
        let mut cookies = cookies.flat_map(|value| value.split(';'));
        let token = cookies.find_map(|cookie| {
            let (name, value) = cookie.trim().split_once('=')?;
            (name == COOKIE).then_some(value)
        });
        // A cookie may be of another server on this host.
        let is_right = token.is_some_and(|token| self.is_token(token));
        Ok(if is_right { Shown::Cookie } else { Shown::Nothing })
    }

    /// Whether this is the token. The time that this takes depends on the length alone.
    pub(crate) fn is_token(&self, given: &str) -> bool {
        let token = self.token.as_ref();
        token.is_some_and(|token| token.as_bytes().ct_eq(given.as_bytes()).into())
    }
}

/// Refuses what a page of another site asks for.
fn check_origin(headers: &HeaderMap, host: &Authority) -> Result<()> {
    let refused = |origin: &str| {
        let detail = format!("Origin {origin}: only this server's own pages may make requests");
        Err(Problem::forbidden("origin_refused", detail))
    };
    let text = |name: &str| headers.get(name).map(|value| value.to_str().unwrap_or_default());
    if let Some(origin) = text("origin") {
        let authority = origin.strip_prefix("http://").or(origin.strip_prefix("https://"));
        let is_own = authority.is_some_and(|own| own.eq_ignore_ascii_case(host.as_str()));
        return if is_own { Ok(()) } else { refused(origin) };
    }
    match (text("sec-fetch-site"), text("sec-fetch-mode")) {
        // A link on another site may lead here.
        (Some("cross-site"), mode) if mode != Some("navigate") => refused("of another site"),
        _ => Ok(()),
    }
}
