//! `mynah redact`: what records hold, removed.

use mynah::RunId;
use std::io::{self, BufWriter, Write};

use clap::Args;
use mynah::log::{Log, Redact, Redactable, RunFilter, RunSummary};
use serde_json::{Value, json};

use crate::{
    Failure, LogArgs, RemovalArgs,
    related::{self, RelatedRun},
    runtime, store,
    text::{count, line, quoted},
    verify::with_run,
    written,
};

pub(crate) const EXAMPLES: &str = "`mynah show RUN --records` lists the records and their kinds. A turn_started record holds a hash over the messages before it, with which a guess of their text can be checked: redact it too if they can be guessed. Forks hold copies: they are named, and --forks redacts them too.

Examples:
  mynah redact last --record 2 5 --reason \"card number\"           list what would be removed
  mynah redact last --record 2 5 --reason \"card number\" --yes     remove it
  mynah redact last --kind run_started --reason \"asked to\" --yes
  mynah redact last --all --reason \"asked to\" --yes               everything but the seal";

#[derive(Args)]
#[command(group(clap::ArgGroup::new("which").required(true)))]
pub(crate) struct Arguments {
    #[command(flatten)]
    log: LogArgs,
    /// Run id, the beginning of one, or `last`.
    run: RunId,
    /// Redact these records.
    #[arg(long, value_name = "N", num_args = 1.., group = "which")]
    record: Vec<u64>,
    /// Redact all records of this kind.
    #[arg(long, value_name = "KIND", group = "which")]
    kind: Option<String>,
    /// Redact all records but the seal.
    #[arg(long, group = "which")]
    all: bool,
    /// Redact the copies in forks of the run, and in the run it was forked from, too.
    #[arg(long)]
    forks: bool,
    #[command(flatten)]
    removal: RemovalArgs,
}

pub(crate) fn main(arguments: Arguments) -> Result<(), Failure> {
    let log = arguments.removal.open(&arguments.log.log)?;
    let runtime = runtime()?;
    let Redacted { taken, copies, stranded } = runtime.block_on(arguments.redact(log.as_ref()))?;
    let done = arguments.removal.yes;
    let then = if done { "it can no longer be resumed" } else { "it could no longer be resumed" };
    for run in stranded {
        // Not among the records, so that readers of the list need not filter it.
        let _ = writeln!(
            io::stderr(),
            "run {} has not ended, and {then}: `mynah cancel` ends it",
            line(&run)
        );
    }
    let mut out = BufWriter::new(io::stdout().lock());
    for taken in &taken {
        written(if arguments.log.json {
            write_json(taken, &copies, done, &mut out)
        } else {
            write_text(taken, arguments.kind.as_deref(), done, &mut out)
        })?;
    }
    written(out.flush())?;
    arguments.tell_of(&copies);
    arguments.removal.wipe(&runtime, log.as_ref())
}

/// What becomes of a log.
struct Redacted {
    taken: Vec<RedactedRecords>,
    /// What stays of it in other runs.
    copies: Vec<RedactedRecords>,
    /// The runs that have not ended, and could not be resumed without the removed records.
    stranded: Vec<RunId>,
}

/// Records of a run that lose what they hold.
struct RedactedRecords {
    run: RunSummary,
    found: Vec<Redactable>,
}

impl Arguments {
    async fn redact(&self, log: &dyn Log) -> Result<Redacted, Failure> {
        let run = store::find(log, &self.run).await?.run_id;
        // What is wrong with what was asked for is wrong with this run.
        self.asked(&run, u64::MAX)?.candidates(log).await?;
        // The records to remove may be the only ones that show it.
        let open = open(log).await?;
        let (mut taken, mut copies) = (Vec::new(), Vec::new());
        for RelatedRun { run: one, shared } in related::of(log, &run).await? {
            let asked = self.asked(&one.run_id, shared)?.candidates(log).await?;
            let seqs = asked.iter().map(|record| record.seq).filter(|seq| *seq <= shared);
            let seqs: Vec<u64> = seqs.collect();
            if seqs.is_empty() && one.run_id != run {
                continue;
            }
            let redact = Redact::records(&*one.run_id, seqs);
            let goes = one.run_id == run || self.forks;
            let found = match goes && self.removal.yes {
                true => redact.perform(log, &self.removal.warrant()).await?,
                false => redact.candidates(log).await?,
            };
            if goes { &mut taken } else { &mut copies }.push(RedactedRecords { run: one, found });
        }
        let strands = |needs: &RequiredRecords| {
            taken.iter().any(|taken: &RedactedRecords| needs.any_of(taken))
        };
        let stranded = open.into_iter().filter(|(_, needs)| needs.iter().any(strands));
        let stranded = stranded.map(|(run, _)| run).collect();
        Ok(Redacted { taken, copies, stranded })
    }

    /// The selected records, in a run that has the same records up to this one.
    fn asked(&self, run: &str, shared: u64) -> mynah::Result<Redact> {
        Ok(match &self.kind {
            Some(kind) => Redact::kind(run, kind.parse()?),
            None if self.record.is_empty() => Redact::all(run),
            None => Redact::records(run, self.record.iter().copied().filter(|seq| *seq <= shared)),
        })
    }

    /// Prints where else the same content is stored, and how to remove it there.
    fn tell_of(&self, copies: &[RedactedRecords]) {
        let mut told = String::new();
        for RedactedRecords { run, found } in copies {
            let seqs: String = found.iter().map(|record| format!(" {}", record.seq)).collect();
            let reason = quoted(&self.removal.reason);
            let yes = if self.removal.yes { " --yes" } else { "" };
            let rest = format!(" --record{seqs} --reason {reason}{yes}");
            let command = self.log.command("redact", &run.run_id, &rest);
            let copies = match found.len() as u64 {
                1 => "a copy of 1 record".to_owned(),
                records => format!("copies of {records} records"),
            };
            told += &format!("run {} holds {copies}: {command}\n", line(&run.run_id));
        }
        if !copies.is_empty() {
            // The output may be closed.
            let _ = writeln!(io::stderr(), "{told}--forks redacts them too");
        }
    }
}

/// Records that a run needs to be resumed.
struct RequiredRecords {
    run: RunId,
    until: u64,
}

impl RequiredRecords {
    fn any_of(&self, RedactedRecords { run, found }: &RedactedRecords) -> bool {
        *run.run_id == *self.run && found.iter().any(|record| record.seq <= self.until)
    }
}

/// The runs that have not ended, the newest first, each with what it needs: its own records, and
/// those of earlier runs of the session.
async fn open(log: &dyn Log) -> Result<Vec<(RunId, Vec<RequiredRecords>)>, Failure> {
    let (mut open, mut filter) = (Vec::new(), RunFilter::new());
    loop {
        let page = log.runs(filter.clone()).await?;
        for RunSummary { run_id, .. } in page.runs.into_iter().filter(|run| !run.status.is_ended())
        {
            let own = RequiredRecords { run: run_id.clone(), until: u64::MAX };
            // A damaged run cannot be resumed anyway.
            let before = store::all_previous(log, &run_id).await.unwrap_or_default();
            let before =
                before.into_iter().map(|it| RequiredRecords { run: it.run_id, until: it.seq });
            open.push((run_id, before.chain([own]).collect()));
        }
        let Some(next) = page.next else { return Ok(open) };
        filter = filter.after(next);
    }
}

fn write_json(
    RedactedRecords { run, found }: &RedactedRecords,
    copies: &[RedactedRecords],
    done: bool,
    out: &mut impl Write,
) -> io::Result<()> {
    for record in found {
        writeln!(out, "{}", with_run(&run.run_id, json!(record)))?;
    }
    let bytes: u64 = found.iter().map(|record| record.bytes).sum();
    let copies: Vec<Value> = copies
        .iter()
        .map(|RedactedRecords { run, found }| {
            let seqs: Vec<u64> = found.iter().map(|record| record.seq).collect();
            with_run(&run.run_id, json!({"records": seqs}))
        })
        .collect();
    let told = json!({"dry_run": !done, "records": found.len(), "bytes": bytes, "copies": copies});
    writeln!(out, "{}", with_run(&run.run_id, told))
}

fn write_text(
    RedactedRecords { run, found }: &RedactedRecords,
    kind: Option<&str>,
    done: bool,
    out: &mut impl Write,
) -> io::Result<()> {
    let run = line(&run.run_id);
    for Redactable { seq, kind, bytes, .. } in found {
        writeln!(out, "{seq:>4}  {kind:<20}  {}", count(*bytes, "byte"))?;
    }
    let told = match (found.len() as u64, done) {
        (0, _) => match kind {
            Some(kind) => format!("nothing to redact in run {run}: it has no body of kind {kind}"),
            None => format!("nothing to redact in run {run}"),
        },
        (records, true) => format!("{} of run {run} redacted", count(records, "record")),
        (records, false) => format!(
            "{} of run {run} would be redacted; nothing was changed: --yes does it",
            count(records, "record")
        ),
    };
    writeln!(out, "{told}")
}
