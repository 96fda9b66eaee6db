//! What stands in the parentheses of `#[tool(…)]`.

use proc_macro2::{Span, TokenStream};
use quote::quote;
use syn::{
    Error, Ident, Lit, LitInt, LitStr, Path, Result, Token,
    ext::IdentExt as _,
    parse::{Parse, ParseStream},
    parse_quote,
};

/// The options of a tool.
#[derive(Default)]
pub(crate) struct Options {
    pub(crate) name: Option<LitStr>,
    pub(crate) crate_path: CratePath,
    manual: bool,
    approval: Option<Ident>,
    idempotent: bool,
    retries: Option<LitInt>,
    timeout_ms: Option<u64>,
    recorded: bool,
    strict: bool,
}

const KNOWN: &str = "`name`, `manual`, `approval`, `idempotent`, `retries`, `timeout`, `replay`, `strict` and `crate`";

impl Parse for Options {
    fn parse(input: ParseStream<'_>) -> Result<Self> {
        let (mut options, mut seen) = (Self::default(), Vec::new());
        while !input.is_empty() {
            let option = input.call(Ident::parse_any)?;
            if seen.contains(&option) {
                return Err(Error::new(option.span(), format!("`{option}` is set twice")));
            }
            options.read(&option, input)?;
            seen.push(option);
            if !input.is_empty() {
                input.parse::<Token![,]>()?;
            }
        }
        match &options.retries {
            Some(retries) if !options.idempotent => Err(Error::new(
                retries.span(),
                "`retries` needs `idempotent`: only a tool that may run twice is run again",
            )),
            _ => Ok(options),
        }
    }
}

impl Options {
    fn read(&mut self, option: &Ident, input: ParseStream<'_>) -> Result<()> {
        match option.to_string().as_str() {
            "manual" => self.manual = true,
            "approval" => self.approval = Some(approval(option, input)?),
            "idempotent" => self.idempotent = true,
            "strict" => self.strict = true,
            "retries" => {
                let retries: LitInt = value(input)?;
                retries.base10_parse::<u16>()?;
                self.retries = Some(retries);
            }
            "timeout" => {
                let given: Lit = value(input)?;
                let limit = match &given {
                    Lit::Str(text) => millis(&text.value()),
                    _ => None,
                };
                self.timeout_ms = Some(limit.ok_or_else(|| {
                    let example = match &given {
                        Lit::Int(number) => format!("; write `timeout = \"{number}s\"` for seconds"),
                        _ => String::new(),
                    };
                    let why = "not a time limit: expected a whole number from 1 and a unit, as \"500ms\", \"10s\", \"2m\" or \"1h\"";
                    Error::new(given.span(), format!("{why}{example}"))
                })?);
            }
            "replay" => {
                let how: LitStr = value(input)?;
                if how.value() != "recorded" {
                    let why = "expected \"recorded\": a replay that runs tools again takes the recorded outcome of this one";
                    return Err(Error::new(how.span(), why));
                }
                self.recorded = true;
            }
            "name" => {
                let name: LitStr = value(input)?;
                check_name(&name.value(), name.span())?;
                self.name = Some(name);
            }
            "crate" => self.crate_path = CratePath(value(input)?),
            _ => {
                let why = format!("unknown option `{option}`; a tool has {KNOWN}");
                return Err(Error::new(option.span(), why));
            }
        }
        Ok(())
    }

    /// The calls that give a tool these options.
    pub(crate) fn setters(&self) -> TokenStream {
        let krate = &self.crate_path.0;
        let mut setters = TokenStream::new();
        if self.manual {
            setters.extend(quote!(.manual()));
        }
        if let Some(approval) = &self.approval {
            setters.extend(quote!(.approval(#krate::Approval::#approval)));
        }
        if self.idempotent {
            let retries = self.retries.as_ref().map_or_else(|| quote!(0u32), |n| quote!(#n as u32));
            setters.extend(quote!(.idempotent(1 + #retries)));
        }
        if let Some(limit) = self.timeout_ms {
            setters.extend(quote!(.timeout(#krate::__private::Duration::from_millis(#limit))));
        }
        if self.recorded {
            setters.extend(quote!(.recorded()));
        }
        if self.strict {
            setters.extend(quote!(.strict()));
        }
        setters
    }
}

/// The variant of `Approval` that `approval` or `approval = "…"` stands for.
fn approval(option: &Ident, input: ParseStream<'_>) -> Result<Ident> {
    let variant = |name: &str| Ident::new(name, option.span());
    if !input.peek(Token![=]) {
        return Ok(variant("Ask"));
    }
    let how: LitStr = value(input)?;
    match how.value().as_str() {
        "ask" => Ok(variant("Ask")),
        "deny" => Ok(variant("Deny")),
        "never" => Ok(variant("Never")),
        _ => Err(Error::new(how.span(), "expected \"ask\", \"deny\" or \"never\"")),
    }
}

/// The path of the crate `mynah`.
#[derive(Clone)]
pub(crate) struct CratePath(pub(crate) Path);

impl Default for CratePath {
    fn default() -> Self {
        Self(parse_quote!(::mynah))
    }
}

impl Parse for CratePath {
    fn parse(input: ParseStream<'_>) -> Result<Self> {
        if input.is_empty() {
            return Ok(Self::default());
        }
        let option = input.call(Ident::parse_any)?;
        if option == "crate" {
            return Ok(Self(value(input)?));
        }
        let why = format!("unknown option `{option}`; options of a tool belong to its method");
        Err(Error::new(option.span(), why))
    }
}

fn value<T: Parse>(input: ParseStream<'_>) -> Result<T> {
    input.parse::<Token![=]>()?;
    input.parse()
}

/// Refuses a name that providers do not take.
pub(crate) fn check_name(name: &str, span: Span) -> Result<()> {
    let fits = |c: char| c.is_ascii_alphanumeric() || c == '_' || c == '-';
    if (1..=64).contains(&name.len()) && name.chars().all(fits) {
        return Ok(());
    }
    let why = "a tool's name has 1 to 64 characters: letters of the English alphabet, digits, `_` and `-`";
    Err(Error::new(span, why))
}

fn millis(text: &str) -> Option<u64> {
    let (number, unit) = text.split_at(text.find(|c: char| !c.is_ascii_digit())?);
    let unit = match unit {
        "ms" => 1,
        "s" => 1_000,
        "m" => 60_000,
        "h" => 3_600_000,
        _ => return None,
    };
    number.parse::<u64>().ok()?.checked_mul(unit).filter(|millis| *millis > 0)
}
