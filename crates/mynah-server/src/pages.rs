//! The inspector's files, embedded in the binary.

use axum::{
    Router,
    http::{HeaderValue, header},
    response::{IntoResponse as _, Response},
    routing::get,
};

use crate::App;

/// A file of the inspector.
struct Page {
    /// The path under which it is served.
    path: &'static str,
    content_type: &'static str,
    content: &'static str,
}

const HTML: &str = "text/html; charset=utf-8";

/// Every file. A new one is a new row.
const PAGES: &[Page] =
    &[Page { path: "/", content_type: HTML, content: include_str!("../ui/index.html") }];

/// What a page may load: its own scripts and styles, and nothing from elsewhere.
const POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; \
     connect-src 'self'; frame-ancestors 'none'; base-uri 'none'; form-action 'self'";

/// The paths of the inspector's files, which need no token: they hold no data.
pub(crate) fn is_page(path: &str) -> bool {
    PAGES.iter().any(|page| page.path == path)
}

pub(crate) fn routes() -> Router<App> {
    PAGES.iter().fold(Router::new(), |router, page| {
        router.route(page.path, get(async move || page.response()))
    })
}

impl Page {
    fn response(&self) -> Response {
        let headers = [
            (header::CONTENT_TYPE, HeaderValue::from_static(self.content_type)),
            (header::CONTENT_SECURITY_POLICY, HeaderValue::from_static(POLICY)),
        ];
        (headers, self.content).into_response()
    }
}
