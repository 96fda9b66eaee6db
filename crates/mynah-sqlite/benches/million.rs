//! A million records in a file, checked in memory that does not grow with them.
//!
//! `cargo xtask bench million`. Prints the most memory that the process ever had, before the check and after it.

use std::{fs, time::Instant};

use mynah_log::{Append, Chain, Durability, Extent, Fact, Log as _, verify_run};
use mynah_sqlite::SqliteLog;

type Failure = Box<dyn std::error::Error>;

const RECORDS: u64 = 1_000_000;
const BATCH: u64 = 5_000;

fn main() -> Result<(), Failure> {
    let runtime = tokio::runtime::Builder::new_current_thread().build()?;
    let folder = tempfile::tempdir_in(".")?;
    let path = folder.path().join("million.db");
    runtime.block_on(async {
        let start = now();
        // Dropped before the check, with all that it remembers.
        write(&SqliteLog::open_with(&path, Durability::Relaxed)?).await?;
        let size = fs::metadata(&path)?.len() >> 20;
        println!("{RECORDS} records written: {size} MB in {:.1?}", start.elapsed());
        let (start, before) = (now(), peak()?);
        let report = verify_run(&SqliteLog::open_read_only(&path)?, "run").await?;
        println!("{} records verified in {:.1?}", report.records, start.elapsed());
        println!("most memory before the check: {before} KB, after it: {} KB", peak()?);
        Ok(())
    })
}

async fn write(log: &SqliteLog) -> Result<(), Failure> {
    let mut chain = Chain::new("run");
    let started = Fact::RunStarted { thread: "hi".into(), extent: Extent::Chat, about: None };
    for first in (0..RECORDS).step_by(usize::try_from(BATCH)?) {
        let expected = chain.head();
        let mut records = Vec::new();
        for n in first..first + BATCH {
            let call_id = format!("call_{n}");
            let scheduled = Fact::ToolScheduled { call_id, attempt: 1, call: None };
            let fact = if n == 0 { &started } else { &scheduled };
            records.push(chain.append(n.cast_signed(), [7; 16], fact)?);
        }
        log.append(Append::new("run", expected, records)).await?;
    }
    Ok(())
}

/// The most memory that the process ever had, in KB.
fn peak() -> Result<u64, Failure> {
    let status = fs::read_to_string("/proc/self/status")?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
    let line = line.ok_or("this system does not tell the most memory that a process had")?;
    Ok(line.trim_end_matches("kB").trim().parse()?)
}

#[expect(clippy::disallowed_methods, reason = "measures time")]
fn now() -> Instant {
    Instant::now()
}
