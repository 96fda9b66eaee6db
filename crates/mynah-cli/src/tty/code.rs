//! Colours for code.

use super::rows::{Row, styled};

/// Colours the lines of one block of code.
pub(crate) struct Highlighter(#[cfg(feature = "highlight")] imp::Highlighter);

impl Highlighter {
    /// For the language that a code block names.
    #[cfg(feature = "highlight")]
    pub(crate) fn new(language: &str) -> Self {
        Self(imp::Highlighter::new(language))
    }

    /// For the language that a code block names.
    #[cfg(not(feature = "highlight"))]
    pub(crate) fn new(_: &str) -> Self {
        Self()
    }

    /// The next line, without its end.
    pub(crate) fn line(&mut self, line: &str) -> Row {
        let line = line.replace('\t', "    ");
        #[cfg(feature = "highlight")]
        if let Some(row) = self.0.line(&line) {
            return row;
        }
        styled(&line, anstyle::AnsiColor::Cyan.on_default()).collect()
    }
}

#[cfg(feature = "highlight")]
mod imp {
    use std::sync::LazyLock;

    use anstyle::{AnsiColor, Style};
    use syntect::parsing::{ParseState, Scope, ScopeStack, SyntaxSet};

    use crate::tty::rows::{Row, styled};

    static SYNTAXES: LazyLock<SyntaxSet> = LazyLock::new(SyntaxSet::load_defaults_newlines);

    /// Styles of scopes, the first that fits. Terminals choose the colours themselves, so that any background is readable.
    static STYLES: LazyLock<Vec<(Scope, Style)>> = LazyLock::new(|| {
        let colour = |colour: AnsiColor| colour.on_default();
        let table = [
            ("comment", Style::new().dimmed()),
            ("string", colour(AnsiColor::Green)),
            ("constant", colour(AnsiColor::Magenta)),
            ("keyword", colour(AnsiColor::Blue).bold()),
            ("storage", colour(AnsiColor::Blue)),
            ("entity.name.function", colour(AnsiColor::Yellow)),
            ("entity.name", colour(AnsiColor::Cyan)),
            ("support", colour(AnsiColor::Cyan)),
            ("markup.inserted", colour(AnsiColor::Green)),
            ("markup.deleted", colour(AnsiColor::Red)),
        ];
        let table = table.into_iter();
        table.filter_map(|(scope, style)| Some((Scope::new(scope).ok()?, style))).collect()
    });

    pub(crate) struct Highlighter(Option<(ParseState, ScopeStack)>);

    impl Highlighter {
        pub(crate) fn new(language: &str) -> Self {
            let syntax = SYNTAXES.find_syntax_by_token(language);
            Self(syntax.map(|syntax| (ParseState::new(syntax), ScopeStack::new())))
        }

        pub(crate) fn line(&mut self, line: &str) -> Option<Row> {
            let (state, scopes) = self.0.as_mut()?;
            let whole = format!("{line}\n");
            let changes = state.parse_line(&whole, &SYNTAXES).ok()?;
            let (mut row, mut from) = (Row::new(), 0);
            for (place, change) in changes {
                row.extend(styled(&whole[from..place], style(scopes)));
                from = place;
                scopes.apply(&change).ok()?;
            }
            row.extend(styled(&whole[from..], style(scopes)));
            row.retain(|(c, _)| *c != '\n');
            Some(row)
        }
    }

    fn style(scopes: &ScopeStack) -> Style {
        let of = |scope: &Scope| {
            STYLES.iter().find(|(prefix, _)| prefix.is_prefix_of(*scope)).map(|(_, style)| *style)
        };
        scopes.scopes.iter().rev().find_map(of).unwrap_or_default()
    }
}
