//! HTML as text.

use html5gum::{DefaultEmitter, Token, Tokenizer};

/// The readable text of an HTML page, with its links as `text (address)`. One pass over the tags, without a tree: the time is linear
/// in the size of the page, and nesting costs nothing.
pub(super) fn text_of(html: &str) -> Page {
    let mut emitter = DefaultEmitter::default();
    emitter.naively_switch_states(true);
    let mut writer = Writer::default();
    for token in Tokenizer::new_with_emitter(html, emitter) {
        let Ok(token) = token;
        match token {
            Token::StartTag(tag) if !tag.self_closing || tag.name.as_slice() != b"svg" => {
                let link = tag.attributes.get(b"href".as_slice());
                writer.open(&tag.name, link.map(|link| String::from_utf8_lossy(link).into_owned()));
            }
            Token::EndTag(tag) => writer.close(&tag.name),
            Token::String(text) => writer.write(&String::from_utf8_lossy(&text)),
            _ => {}
        }
    }
    Page { title: writer.title.trim().to_owned(), text: writer.text.trim().to_owned() }
}

/// What a page says.
pub(super) struct Page {
    pub(super) title: String,
    pub(super) text: String,
}

#[derive(Default)]
struct Writer {
    title: String,
    text: String,
    /// The element whose text is left out, until it ends.
    hidden: Option<Vec<u8>>,
    in_title: bool,
    preformatted: u32,
    link: Option<String>,
    /// Whether white space came since the last character.
    space: bool,
}

impl Writer {
    fn open(&mut self, name: &[u8], link: Option<String>) {
        if self.hidden.is_some() {
            return;
        }
        match name {
            b"script" | b"style" | b"template" | b"noscript" | b"svg" | b"iframe" | b"object" => {
                self.hidden = Some(name.to_owned());
            }
            b"title" => self.in_title = true,
            b"a" => {
                self.link = link.filter(|link| link.starts_with("http") || link.starts_with('/'))
            }
            b"pre" => {
                self.break_lines(2);
                self.preformatted += 1;
            }
            b"br" => self.break_lines(1),
            b"li" => {
                self.break_lines(1);
                self.text.push_str("- ");
            }
            b"td" | b"th" => self.space = true,
            b"tr" | b"dt" | b"dd" | b"option" => self.break_lines(1),
            _ if is_block(name) => {
                self.break_lines(2);
                if let [b'h', level @ b'1'..=b'6'] = name {
                    self.text.extend((b'0'..*level).map(|_| '#'));
                    self.text.push(' ');
                }
            }
            _ => {}
        }
    }

    fn close(&mut self, name: &[u8]) {
        if let Some(hidden) = &self.hidden {
            if hidden == name {
                self.hidden = None;
            }
            return;
        }
        match name {
            b"title" => self.in_title = false,
            b"a" => {
                if let Some(link) = self.link.take() {
                    self.text.push_str(&format!(" ({link})"));
                }
            }
            b"pre" => {
                self.preformatted = self.preformatted.saturating_sub(1);
                self.break_lines(2);
            }
            _ if is_block(name) => self.break_lines(2),
            _ => {}
        }
    }

    fn write(&mut self, text: &str) {
        if self.hidden.is_some() {
            return;
        }
        if self.in_title {
            self.title.push_str(text);
            return;
        }
        if self.preformatted > 0 {
            self.text.push_str(text);
            return;
        }
        for c in text.chars() {
            if c.is_whitespace() {
                self.space = true;
                continue;
            }
            if std::mem::take(&mut self.space)
                && !self.text.ends_with(['\n', ' '])
                && !self.text.is_empty()
            {
                self.text.push(' ');
            }
            self.text.push(c);
        }
    }

    /// Ends the line, so that this many line feeds come before the next text.
    fn break_lines(&mut self, count: usize) {
        self.space = false;
        if self.text.is_empty() {
            return;
        }
        let present = self.text.bytes().rev().take(count).take_while(|byte| *byte == b'\n').count();
        self.text.extend((present..count).map(|_| '\n'));
    }
}

fn is_block(name: &[u8]) -> bool {
    matches!(
        name,
        b"address"
            | b"article"
            | b"aside"
            | b"blockquote"
            | b"body"
            | b"details"
            | b"div"
            | b"dl"
            | b"fieldset"
            | b"figcaption"
            | b"figure"
            | b"footer"
            | b"form"
            | b"h1"
            | b"h2"
            | b"h3"
            | b"h4"
            | b"h5"
            | b"h6"
            | b"header"
            | b"hr"
            | b"main"
            | b"nav"
            | b"ol"
            | b"p"
            | b"section"
            | b"summary"
            | b"table"
            | b"ul"
    )
}

#[cfg(test)]
mod tests {
    use super::text_of;

    #[test]
    fn a_page_becomes_its_title_and_its_readable_text() {
        let page = text_of(
            "<!doctype html><html><head><title> News &amp; more </title><style>p{}</style>\
             <script>alert('<p>no</p>')</script></head><body><h2>Today</h2><p>It   is\n<b>warm</b>.<br>Very.</p>\
             <ul><li>one</li><li><a href=\"https://a.example/x\">two</a></li></ul>\
             <pre>a\n  b</pre><table><tr><td>1</td><td>2</td></tr></table><noscript>no</noscript></body></html>",
        );
        assert_eq!(page.title, "News & more");
        let text =
            "## Today\n\nIt is warm.\nVery.\n\n- one\n- two (https://a.example/x)\n\na\n  b\n\n1 2";
        assert_eq!(page.text, text);
    }

    proptest::proptest! {
        #[test]
        fn any_text_is_read_without_a_panic(html in r"([ -~]|<[/!]?(a|b|pre|li|title|script|svg|td|h1|br)( href=/x)?/?>|&\PC{0,6};?|\PC){0,200}") {
            let page = text_of(&html);
            assert!(page.text.len() + page.title.len() <= html.len() * 3);
        }
    }

    #[test]
    fn deep_nesting_and_unclosed_tags_are_read_in_linear_time() {
        let page = text_of(&format!("{}text", "<div><ul><li>".repeat(200_000)));
        assert!(page.text.ends_with("text"));
        assert_eq!(text_of("a<script>b").text, "a");
    }
}
