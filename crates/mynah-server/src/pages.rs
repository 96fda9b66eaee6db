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
const STYLE: &str = "text/css; charset=utf-8";
const SCRIPT: &str = "text/javascript; charset=utf-8";

/// A file below `/ui`.
macro_rules! ui {
    ($kind:ident, $name:literal) => {
        Page {
            path: concat!("/ui/", $name),
            content_type: $kind,
            content: include_str!(concat!("../ui/", $name)),
        }
    };
}

/// Every file. A new one is a new row.
const PAGES: &[Page] = &[
    Page { path: "/", content_type: HTML, content: include_str!("../ui/index.html") },
    ui!(STYLE, "style.css"),
    ui!(SCRIPT, "actions.js"),
    ui!(SCRIPT, "api.js"),
    ui!(SCRIPT, "app.js"),
    ui!(SCRIPT, "cbor.js"),
    ui!(SCRIPT, "charts.js"),
    ui!(SCRIPT, "compare-page.js"),
    ui!(SCRIPT, "conversation.js"),
    ui!(SCRIPT, "dom.js"),
    ui!(SCRIPT, "exact.js"),
    ui!(SCRIPT, "facts.js"),
    ui!(SCRIPT, "json.js"),
    ui!(SCRIPT, "list.js"),
    ui!(SCRIPT, "markdown.js"),
    ui!(SCRIPT, "overall.js"),
    ui!(SCRIPT, "records.js"),
    ui!(SCRIPT, "run-page.js"),
    ui!(SCRIPT, "run-view.js"),
    ui!(SCRIPT, "runs-page.js"),
    ui!(SCRIPT, "session-page.js"),
    ui!(SCRIPT, "story.js"),
    ui!(SCRIPT, "timeline.js"),
    ui!(SCRIPT, "verify-page.js"),
    ui!(SCRIPT, "verify.js"),
];

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
