//! `mynah export`: one run as a file that can be checked without the log, or as JSON that can be read.

use mynah::RunId;
use std::{
    fs::{self, File},
    io::{self, BufWriter, Cursor, Write},
    path::{Path, PathBuf},
    sync::Arc,
};

use clap::Args;
use mynah::log::{
    Log, MemoryLog, Redact, Warrant,
    bundle::{self, Bundle},
    sub_runs,
};
use serde_json::{Value, json};

use crate::{
    Failure, LogArgs, runtime, show,
    store::{self, LogLocation},
    text::{count, line, plain},
    verify::described,
    written,
};

pub(crate) const EXAMPLES: &str = "Examples:
  mynah export last -o run.ndjson          write the newest run, and the runs of its agents, to a file
  mynah verify run.ndjson                  verify the file, without the log
  tools/verify.py run.ndjson               verify it without this program
  mynah export last | gzip > run.gz        write to standard output
  mynah export last --html -o run.html     write a page that shows and verifies them offline
  mynah export last --html -o run.html --redact run_started --redact 5
                                           leave out the content of these records
  mynah export last --records | jq .fact   print the records as JSON, for reading only
  mynah export log:maintenance             export the record of removals";

#[derive(Args)]
pub(crate) struct Arguments {
    #[command(flatten)]
    log: LogArgs,
    /// Run id, the beginning of one, or `last`.
    run: String,
    /// Write to this file instead of standard output. It appears when it is complete.
    #[arg(short, long, value_name = "FILE")]
    output: Option<PathBuf>,
    /// Print the records as JSON, one per line. The output cannot be verified.
    #[arg(long, conflicts_with = "output")]
    records: bool,
    /// Write one page that shows the run and verifies it in a browser, without a network.
    #[cfg(feature = "serve")]
    #[arg(long, conflicts_with = "records")]
    html: bool,
    /// Leave out the content of these records: a number, or a kind. The log is not changed, and the file still verifies.
    #[arg(long, value_name = "SEQ|KIND", conflicts_with = "records")]
    redact: Vec<String>,
    /// Overwrite an existing file.
    #[arg(long, requires = "output")]
    force: bool,
}

pub(crate) fn main(arguments: Arguments) -> Result<(), Failure> {
    #[cfg(feature = "serve")]
    let html = arguments.html;
    #[cfg(not(feature = "serve"))]
    let html = false;
    let Arguments { log: LogArgs { log, json }, run, output, records, redact, force, .. } =
        arguments;
    let output = output.filter(|path| path != Path::new("-"));
    if let Some(path) = output.as_ref().filter(|path| path.is_dir()) {
        let why = format!("{}: it is a folder; give the name of a file in it", path.display());
        return Err(Failure::input(why));
    }
    if let Some(path) = output.as_ref().filter(|path| !force && path.symlink_metadata().is_ok()) {
        return Err(Failure::input(format!(
            "{}: it is there already; --force writes over it",
            path.display()
        )));
    }
    let log = LogLocation::parse(&log)?.open_to_read()?;
    let runtime = runtime()?;
    let run = runtime.block_on(store::find(log.as_ref(), &run))?.run_id;
    if records {
        let mut out = BufWriter::new(io::stdout().lock());
        return runtime.block_on(show::write_records(log.as_ref(), &run, &mut out));
    }
    // If the run cannot be read, its export says why.
    let agents = runtime.block_on(sub_runs(log.as_ref(), &run)).unwrap_or_default();
    let needed = runtime.block_on(store::needed(log.as_ref(), &run))?;
    if !needed.is_empty() {
        // Not on standard output, which may be the file.
        let _ = writeln!(
            io::stderr(),
            "run {} continues earlier runs of its session; to restore its conversation, export them too: {}",
            line(&run),
            listed(&needed)
        );
    }
    let file = Exported { log, run: &run, agents: &agents, redact: &redact, html };
    let Some(path) = output else {
        let mut out = Noted::new(BufWriter::new(io::stdout().lock()));
        let done = runtime.block_on(file.write(&mut out));
        return match out.failed {
            Some(error) => written(Err(error)),
            None => done.map(drop),
        };
    };
    let bundle = runtime.block_on(file.to_file(&path))?;
    let mut out = io::stdout().lock();
    written(if json {
        let report = bundle.report;
        let mut told = json!({"run_id": run, "file": path, "report": report, "needs": needed});
        if !agents.is_empty() {
            told["agents"] = json!(agents);
        }
        writeln!(out, "{told}")
    } else {
        let Bundle { report, .. } = bundle;
        let more = match agents.len() as u64 {
            0 => String::new(),
            agents => format!("  with {} of agents", count(agents, "run")),
        };
        writeln!(out, "{}: {}  {}{more}", path.display(), line(&run), described(&report))
    })
}

/// The first of some ids, and how many there are.
fn listed(ids: &[RunId]) -> String {
    const SHOWN: usize = 5;
    let shown = ids.iter().take(SHOWN).map(|id| plain(id)).collect::<Vec<_>>().join(", ");
    if ids.len() > SHOWN { format!("{shown}, … ({} in all)", ids.len()) } else { shown }
}

/// A run, and how it is written.
struct Exported<'a> {
    log: Arc<dyn Log>,
    run: &'a RunId,
    /// The runs of its agents, which follow it.
    agents: &'a [RunId],
    redact: &'a [String],
    html: bool,
}

impl Exported<'_> {
    /// Writes it beside the file first, so that what has the file's name is whole. A link is followed, and what is no file, as a
    /// device, is written to as it is.
    async fn to_file(&self, path: &Path) -> Result<Bundle, Failure> {
        let failed = |error: io::Error| Failure::file(format!("{}: {error}", path.display()));
        let path = &path.canonicalize().unwrap_or_else(|_| path.to_owned());
        if path.metadata().is_ok_and(|there| !there.is_file()) {
            return self.to_open(File::options().write(true).open(path), failed).await;
        }
        let mut name = path.as_os_str().to_owned();
        name.push(".part");
        let part = PathBuf::from(name);
        match self.to_open(File::create(&part), failed).await {
            Ok(bundle) => {
                fs::rename(&part, path).map_err(failed)?;
                Ok(bundle)
            }
            Err(failure) => {
                // The failure has more detail than this.
                let _ = fs::remove_file(&part);
                Err(failure)
            }
        }
    }

    /// Writes it to a file that was opened, if it could be.
    async fn to_open(
        &self,
        file: io::Result<File>,
        failed: impl Fn(io::Error) -> Failure,
    ) -> Result<Bundle, Failure> {
        let mut out = Noted::new(BufWriter::new(file.map_err(&failed)?));
        let done = self.write(&mut out).await;
        match out.failed {
            Some(error) => Err(failed(error)),
            None => done,
        }
    }

    async fn write(&self, out: &mut impl Write) -> Result<Bundle, Failure> {
        if self.html {
            return self.write_page(out).await;
        }
        let bundle = self.write_bundle(self.run, out).await?;
        for run in self.agents {
            self.write_bundle(run, out).await?;
        }
        Ok(bundle)
    }

    #[cfg(feature = "serve")]
    async fn write_page(&self, out: &mut impl Write) -> Result<Bundle, Failure> {
        use mynah_server::page::{BundleLines, write_head, write_tail};
        // The output keeps its own errors.
        let unwritten = |error: io::Error| Failure::file(error.to_string());
        write_head(self.run, out).map_err(unwritten)?;
        let bundle = self.write_bundle(self.run, &mut BundleLines::new(&mut *out)).await?;
        for run in self.agents {
            self.write_bundle(run, &mut BundleLines::new(&mut *out)).await?;
        }
        write_tail(out).and_then(|()| out.flush()).map_err(unwritten)?;
        Ok(bundle)
    }

    #[cfg(not(feature = "serve"))]
    async fn write_page(&self, out: &mut impl Write) -> Result<Bundle, Failure> {
        self.write_bundle(self.run, out).await
    }

    async fn write_bundle(&self, run: &RunId, out: &mut impl Write) -> Result<Bundle, Failure> {
        // A number means a record of the run that was named; a kind means those of all.
        let rules =
            self.redact.iter().filter(|rule| run == self.run || rule.parse::<u64>().is_err());
        let rules: Vec<&String> = rules.collect();
        if rules.is_empty() {
            return Ok(bundle::export(self.log.as_ref(), run, out).await?);
        }
        // What is left out has a tombstone, which takes a log: a copy of the run in memory.
        let mut whole = Vec::new();
        let original = bundle::export(self.log.as_ref(), run, &mut whole).await?;
        let copy = MemoryLog::new();
        bundle::import(&copy, Cursor::new(whole)).await?;
        let warrant = Warrant::new("mynah export", "left out of this file", crate::now());
        for rule in rules {
            let redact = match rule.parse() {
                Ok(seq) => Redact::records(&**run, [seq]),
                Err(_) => Redact::kind(&**run, rule.parse()?),
            };
            redact.perform(&copy, &warrant).await?;
        }
        let mut lines = Vec::new();
        let mut redacted = bundle::export(&copy, run, &mut lines).await?;
        redacted.inclusion = original.inclusion;
        write_with_proof(&lines, &redacted, out)
            .map_err(|error| Failure::file(error.to_string()))?;
        Ok(redacted)
    }
}

/// Writes a bundle, with the proof that the seal is in the tree of the log that the run came from.
fn write_with_proof(lines: &[u8], bundle: &Bundle, out: &mut impl Write) -> io::Result<()> {
    for line in lines.split_inclusive(|byte| *byte == b'\n') {
        if line.starts_with(b"{\"end\":") {
            let mut end: Value = serde_json::from_slice(line)?;
            end["end"]["inclusion"] = json!(bundle.inclusion);
            writeln!(out, "{end}")?;
        } else {
            out.write_all(line)?;
        }
    }
    out.flush()
}

/// What a run is written to, and why that failed: not every error of an export is the log's.
struct Noted<W> {
    out: W,
    failed: Option<io::Error>,
}

impl<W: Write> Noted<W> {
    fn new(out: W) -> Self {
        Self { out, failed: None }
    }

    fn note<T>(&mut self, done: io::Result<T>) -> io::Result<T> {
        done.inspect_err(|error| {
            self.failed.get_or_insert_with(|| io::Error::new(error.kind(), error.to_string()));
        })
    }
}

impl<W: Write> Write for Noted<W> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let done = self.out.write(bytes);
        self.note(done)
    }

    fn flush(&mut self) -> io::Result<()> {
        let done = self.out.flush();
        self.note(done)
    }
}
