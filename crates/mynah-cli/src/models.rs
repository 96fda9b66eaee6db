//! `mynah models`: lists the model catalog.

use std::{
    collections::BTreeSet,
    io::{self, BufWriter, Write},
};

use clap::Args;
use mynah::{Catalog, ModelInfo, Pricing};
use serde_json::{Value, json};

use crate::{
    Failure,
    model::CatalogArgs,
    text::{plain, write_columns},
    written,
};

pub(crate) const EXAMPLES: &str = "Prices are in US dollars per million tokens. ENDS is the day on which a provider shuts a model down, if it has named one.

Examples:
  mynah models                             list all models
  mynah models opus                        list those whose name contains `opus`
  mynah models google --json | jq '.pricing // empty'
  mynah models --catalog mine.json         add the models of a file";

#[derive(Args)]
pub(crate) struct Arguments {
    /// Show only models whose provider, id or alias contains this text.
    filter: Option<String>,
    #[command(flatten)]
    catalog: CatalogArgs,
    /// Print JSON, one value per line.
    #[arg(long)]
    json: bool,
}

pub(crate) fn main(arguments: Arguments) -> Result<(), Failure> {
    let catalog = arguments.catalog.catalog()?;
    let filter = arguments.filter.unwrap_or_default().to_lowercase();
    let models: Vec<&ModelInfo> = catalog.models().filter(|model| fits(model, &filter)).collect();
    let mut out = BufWriter::new(io::stdout().lock());
    written(match arguments.json {
        true => write_json(&catalog, &models, &mut out),
        false if models.is_empty() => write_none(&filter, &mut out),
        false => write_text(&catalog, &models, &mut out),
    })
}

fn fits(model: &ModelInfo, filter: &str) -> bool {
    let ids = [&model.id].into_iter().chain(&model.aliases);
    ids.map(|id| format!("{}:{id}", model.provider))
        .any(|name| name.to_lowercase().contains(filter))
}

fn write_json(catalog: &Catalog, models: &[&ModelInfo], out: &mut impl Write) -> io::Result<()> {
    for model in models {
        writeln!(out, "{}", json!(model))?;
    }
    writeln!(out, "{}", json!({"sources": catalog.sources()}))?;
    out.flush()
}

fn write_none(filter: &str, out: &mut impl Write) -> io::Result<()> {
    let more = match filter {
        "azure" | "azure-responses" | "openrouter" => {
            ": those of others, as their makers have them"
        }
        _ => "",
    };
    writeln!(out, "no models{more}")?;
    out.flush()
}

const HEADINGS: [&str; 10] = [
    "PROVIDER", "MODEL", "CAN", "CONTEXT", "OUTPUT", "$ IN", "$ OUT", "$ CACHED", "$ WRITE", "ENDS",
];

fn write_text(catalog: &Catalog, models: &[&ModelInfo], out: &mut impl Write) -> io::Result<()> {
    let rows: Vec<[String; 10]> = models.iter().map(|model| row(model)).collect();
    write_columns(HEADINGS, &rows, 3..9, out)?;
    if models.iter().any(|model| has_long_prices(model)) {
        writeln!(out, "\n* other prices for long prompts: see --json")?;
    }
    let dates: BTreeSet<&str> =
        models.iter().map(|model| model.dated.as_deref().unwrap_or("an unknown date")).collect();
    let dates = plain(&dates.into_iter().collect::<Vec<_>>().join(" and "));
    writeln!(out, "\nUS dollars for a million tokens, as of {dates}, from:")?;
    for source in catalog.sources() {
        writeln!(out, "  {}", plain(source))?;
    }
    out.flush()
}

fn row(model: &ModelInfo) -> [String; 10] {
    let or_dash = |text: Option<String>| text.unwrap_or_else(|| "-".to_owned());
    let tokens = |tokens: Option<u64>| or_dash(tokens.map(|tokens| tokens.to_string()));
    let price = |of: fn(&Pricing) -> Option<f64>| {
        or_dash(model.pricing.as_ref().and_then(of).map(|price| price.to_string()))
    };
    let input = price(|pricing| Some(pricing.input));
    [
        plain(&model.provider),
        plain(&model.id),
        plain(&abilities(model)),
        tokens(model.context_window),
        tokens(model.max_output_tokens),
        if has_long_prices(model) { format!("{input}*") } else { input },
        price(|pricing| Some(pricing.output)),
        price(|pricing| pricing.cached_input),
        price(|pricing| pricing.cache_write),
        plain(model.shutdown_date.as_deref().unwrap_or_default()),
    ]
}

fn has_long_prices(model: &ModelInfo) -> bool {
    model.pricing.is_some_and(|pricing| pricing.long_prompt.is_some())
}

/// What a model is known to be able to do.
fn abilities(model: &ModelInfo) -> String {
    let is_on = |value: &Value| value == true || value.get("enabled") == Some(&Value::Bool(true));
    let able = model.capabilities.iter().filter(|(_, value)| is_on(value));
    able.map(|(name, _)| name.as_str()).collect::<Vec<_>>().join(",")
}
