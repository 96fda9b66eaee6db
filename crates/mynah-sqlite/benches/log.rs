//! What keeping records costs: each figure beside a limit or a peer taken in the same run.
//!
//! `cargo xtask bench log`. Ratios are what to look at; the times depend on the machine. Both sides
//! take turns, and of each the least time counts, or where disks are waited for the lower quartile, so that
//! a busy machine disturbs both alike.

use std::{
    fs,
    future::Future,
    hint::black_box,
    io::Write as _,
    path::Path,
    sync::Arc,
    time::{Duration, Instant},
};

use mynah_data::{Message, Response, Result, ToolOutcome};
use mynah_log::{
    Append, Body, Chain, Durability, Extent, Fact, Log, MemoryLog, Plan, Record, Verifier,
};
use mynah_sqlite::SqliteLog;
use rusqlite::{Connection, params};
use serde_json::json;
use sha2::{Digest as _, Sha256};

type Failure = Box<dyn std::error::Error>;

fn main() -> Result<(), Failure> {
    let runtime = tokio::runtime::Builder::new_current_thread().build()?;
    let folder = tempfile::tempdir_in(".")?;
    println!("{:<58} {:>11} {:>11} {:>8}  goal", "", "mynah", "beside", "ratio");
    runtime.block_on(memory())?;
    runtime.block_on(one_run(folder.path()))?;
    runtime.block_on(many_runs(folder.path()))?;
    verification()?;
    runtime.block_on(disk(folder.path()))?;
    Ok(())
}

/// Appending to memory, against hashing and copying the same bytes. Both keep what they made until the clock is read: a copy
/// that is dropped at once lies where the one before lay, and costs a fraction of memory that is new.
async fn memory() -> Result<(), Failure> {
    const TURNS: usize = 200;
    let (mut kept, mut made, mut hashed) = (Vec::new(), Vec::new(), Vec::new());
    let facts = turn();
    for _ in 0..60 {
        let mut chain = begun("run")?;
        let batches: Vec<Append> =
            (0..TURNS).map(|_| batch(&mut chain, &facts)).collect::<Result<_>>()?;
        let bytes: Vec<Vec<u8>> =
            batches.iter().flat_map(|batch| &batch.records).map(stored).collect();
        let log = MemoryLog::new();
        log.append(first("run")?).await?;
        kept.push(timed(async { append_all(&log, batches).await }).await?);

        let log = MemoryLog::new();
        log.append(first("run")?).await?;
        let mut chain = begun("run")?;
        let work = async {
            for _ in 0..TURNS {
                log.append(batch(&mut chain, &facts)?).await?;
            }
            Ok(())
        };
        made.push(timed(work).await?);

        let mut copies = Vec::new();
        let start = now();
        for bytes in &bytes {
            black_box(Sha256::digest(bytes));
            copies.push(bytes.clone());
        }
        hashed.push(start.elapsed());
        drop(black_box(copies));
    }
    let (kept, made, hashed) = (least(kept), least(made), least(hashed));
    let per = |time| per(time, TURNS * 5);
    report(
        "1 KB record kept in memory, against SHA-256 + memcpy",
        per(kept),
        per(hashed),
        "under 2x",
    );
    report("  the same, made from its fact before", per(made), per(hashed), "under 2x");
    Ok(())
}

/// A turn of five records durably in SQLite, against SQLite alone, with the same settings and as it
/// comes.
async fn one_run(folder: &Path) -> Result<(), Failure> {
    let log = SqliteLog::open(folder.join("one.db"))?;
    let same = raw_sqlite(&folder.join("same.db"), 1024)?;
    let large = raw_sqlite(&folder.join("large.db"), 16384)?;
    let facts = turn();
    let mut chain = begun("run")?;
    log.append(first("run")?).await?;
    let (mut ours, mut same_times, mut large_times) = (Vec::new(), Vec::new(), Vec::new());
    for _ in 0..1_500 {
        let batch = batch(&mut chain, &facts)?;
        let records = batch.records.clone();
        ours.push(timed(async { log.append(batch).await }).await?);
        same_times.push(insert(&same, &records)?);
        large_times.push(insert(&large, &records)?);
    }
    let (ours, same, large) = (quartile(ours), quartile(same_times), quartile(large_times));
    report("5 records durable in SQLite, against rusqlite, same pages", ours, same, "under 1.25x");
    report("  the same, against rusqlite with pages of 16 KiB", ours, large, "");
    Ok(())
}

/// Sixty-four runs at once, against writing as many bytes to a file, and against one run alone.
async fn many_runs(folder: &Path) -> Result<(), Failure> {
    const RUNS: usize = 64;
    const ROUNDS: usize = 8;
    let log = SqliteLog::open(folder.join("many.db"))?;
    let mut file = fs::File::create(folder.join("raw.bin"))?;
    let fact = turn().remove(1);
    let mut chains = Vec::new();
    for n in 0..RUNS {
        let run = format!("01JABCDEFGHJKMNPQRSTVWXY{n:02}");
        log.append(first(&run)?).await?;
        chains.push(begun(&run)?);
    }
    let (mut ours, mut written, mut alone) = (Vec::new(), Vec::new(), Vec::new());
    let (mut commits, mut records) = (0, 0);
    for _ in 0..40 {
        let mut batches: Vec<Vec<Append>> = Vec::new();
        for chain in &mut chains {
            let mut batch = || batch(chain, std::slice::from_ref(&fact));
            batches.push((0..ROUNDS).map(|_| batch()).collect::<Result<_>>()?);
        }
        let bytes: Vec<u8> =
            batches.iter().flatten().flat_map(|batch| &batch.records).flat_map(stored).collect();
        let before = log.commits();
        let local = tokio::task::LocalSet::new();
        let start = now();
        let tasks = batches.into_iter().map(|batches| {
            let log = log.clone();
            local.spawn_local(async move { append_all(&log, batches).await })
        });
        let tasks: Vec<_> = tasks.collect();
        local
            .run_until(async {
                for task in tasks {
                    task.await??;
                }
                Ok::<(), Failure>(())
            })
            .await?;
        ours.push(start.elapsed());
        commits += log.commits() - before;
        records += RUNS * ROUNDS;

        let start = now();
        for portion in bytes.chunks(bytes.len() / ROUNDS) {
            file.write_all(portion)?;
            file.sync_data()?;
        }
        written.push(start.elapsed());

        let batches = (0..ROUNDS).map(|_| batch(&mut chains[0], std::slice::from_ref(&fact)));
        let batches = batches.collect::<Result<Vec<_>>>()?;
        alone.push(timed(append_all(&log, batches)).await?);
    }
    let per_record = |time| per(time, RUNS * ROUNDS);
    let (ours, written) = (per_record(quartile(ours)), per_record(quartile(written)));
    let alone = per(quartile(alone), ROUNDS);
    report(
        "64 runs at once, against write + fdatasync of 64 records",
        ours,
        written,
        "under 1.67x",
    );
    report("64 runs at once, against one commit a record", ours, alone, "under 0.033x");
    println!("{:<58} {:>11.1}", "  records in a commit", records as f64 / commits as f64);
    Ok(())
}

/// Checking records from their bytes, against hashing the bytes.
fn verification() -> Result<(), Failure> {
    const TURNS: usize = 400;
    let mut chain = begun("run")?;
    let facts = turn();
    let mut records = first("run")?.records;
    for _ in 0..TURNS {
        records.extend(batch(&mut chain, &facts)?.records);
    }
    let parts = |record: &Record| (record.envelope_bytes().clone(), record.body().cloned());
    let parts: Vec<(Arc<[u8]>, Option<Body>)> = records.iter().map(parts).collect();
    let bytes: Vec<Vec<u8>> = records.iter().map(stored).collect();
    let (mut verified, mut read, mut hashed) = (Vec::new(), Vec::new(), Vec::new());
    for _ in 0..60 {
        // An import also checks that every fact can be decoded.
        for (reads, times) in [(false, &mut verified), (true, &mut read)] {
            let parts = parts.clone();
            let start = now();
            let mut verifier = Verifier::new("run");
            for (envelope, body) in parts {
                let record = Record::from_parts(envelope, body)?;
                verifier.check(&record).map_err(|e| e.to_string())?;
                black_box(if reads { record.fact()? } else { None });
            }
            black_box(verifier.report());
            times.push(start.elapsed());
        }
        let start = now();
        for bytes in &bytes {
            black_box(Sha256::digest(bytes));
        }
        hashed.push(start.elapsed());
    }
    let [verified, read, hashed] =
        [verified, read, hashed].map(|times| per(least(times), records.len()));
    report("1 KB record verified, against SHA-256", verified, hashed, "under 2x");
    report("  and its fact read", read, hashed, "");
    Ok(())
}

/// The bytes of a file, against the bytes of the payloads in it: of ten megabytes, in which the dozen pages that an empty file has
/// no longer count.
async fn disk(folder: &Path) -> Result<(), Failure> {
    let path = folder.join("disk.db");
    let log = SqliteLog::open(&path)?;
    let mut payload = 0;
    for n in 0..100 {
        let run = format!("01JABCDEFGHJKMNPQRSTVWXY{n:02}");
        log.append(first(&run)?).await?;
        let mut chain = begun(&run)?;
        for _ in 0..20 {
            let batch = batch(&mut chain, &turn())?.durability(Durability::Relaxed);
            let sizes =
                batch.records.iter().filter_map(Record::body).map(|body| body.payload.len());
            payload += sizes.sum::<usize>();
            log.append(batch).await?;
        }
    }
    drop(log);
    let size = fs::metadata(&path)?.len();
    let ratio = size as f64 / payload as f64;
    println!(
        "{:<58} {size:>11} {payload:>11} {ratio:>7.2}x  under 1.3x",
        "bytes on disk, against bytes of payloads"
    );
    Ok(())
}

/// Facts of a turn, each with a payload of 1 KB.
fn turn() -> Vec<Fact> {
    let text = "It is 21 degrees in Paris, and the sun is out. ".repeat(22);
    let mut response = Response::new(Message::assistant(&text[..840]));
    response.model = Some("gpt-4.1-mini".to_owned());
    response.usage.input_tokens = Some(1_000);
    response.usage.output_tokens = Some(100);
    let plan =
        Plan::Tools { run: vec!["call_1".to_owned()], manual: Vec::new(), denied: Vec::new() };
    let mut facts = vec![Fact::AssistantCompleted {
        response: Box::new(response),
        plan,
        cuts: Vec::new(),
        duration_ms: None,
        first_token_ms: None,
    }];
    facts.extend((0..4).map(|_| Fact::ToolCompleted {
        call_id: "call_1".to_owned(),
        attempt: 1,
        outcome: ToolOutcome::Ok(json!({"t": 21})),
        content: text[..950].to_owned(),
        duration_ms: None,
    }));
    facts
}

fn first(run: &str) -> Result<Append> {
    let mut chain = Chain::new(run);
    let fact = Fact::RunStarted { thread: "hi".into(), extent: Extent::Chat, about: None };
    Ok(Append::new(run, None, vec![chain.append(0, [7; 16], &fact)?]))
}

/// The chain of a run that has its first record.
fn begun(run: &str) -> Result<Chain> {
    let mut chain = Chain::new(run);
    for record in &first(run)?.records {
        let _ = chain.follow(record);
    }
    Ok(chain)
}

fn batch(chain: &mut Chain, facts: &[Fact]) -> Result<Append> {
    let expected = chain.head();
    let records = facts.iter().map(|fact| chain.append(1_700_000_000_000_000_000, [7; 16], fact));
    let records = records.collect::<Result<_>>()?;
    Ok(Append::new(chain.run_id().clone(), expected, records))
}

async fn append_all(log: &dyn Log, batches: Vec<Append>) -> Result<()> {
    for batch in batches {
        log.append(batch).await?;
    }
    Ok(())
}

/// Everything that is kept of a record.
fn stored(record: &Record) -> Vec<u8> {
    let mut bytes = record.envelope_bytes().to_vec();
    if let Some(body) = record.body() {
        bytes.extend(body.salt);
        bytes.extend_from_slice(&body.payload);
    }
    bytes
}

/// What a person would write who only wants to insert rows.
fn raw_sqlite(path: &Path, page: u32) -> Result<Connection, Failure> {
    let connection = Connection::open(path)?;
    connection.pragma_update(None, "page_size", page)?;
    connection.execute_batch(
        "PRAGMA journal_mode = wal; PRAGMA synchronous = full;
         CREATE TABLE records (run TEXT, seq INTEGER, envelope BLOB, salt BLOB, payload BLOB,
             UNIQUE (run, seq));",
    )?;
    Ok(connection)
}

fn insert(connection: &Connection, records: &[Record]) -> Result<Duration, Failure> {
    let start = now();
    let transaction = connection.unchecked_transaction()?;
    let insert = "INSERT INTO records VALUES (?1, ?2, ?3, ?4, ?5)";
    for record in records {
        let (run, seq) = (&*record.envelope().run_id, record.seq() as i64);
        let body = record.body().ok_or("a body")?;
        let (envelope, payload) = (&record.envelope_bytes()[..], &body.payload[..]);
        let row = params![run, seq, envelope, body.salt, payload];
        transaction.prepare_cached(insert)?.execute(row)?;
    }
    transaction.commit()?;
    Ok(start.elapsed())
}

#[expect(clippy::disallowed_methods, reason = "measures time")]
fn now() -> Instant {
    Instant::now()
}

async fn timed<T>(work: impl Future<Output = Result<T>>) -> Result<Duration, Failure> {
    let start = now();
    black_box(work.await?);
    Ok(start.elapsed())
}

fn per(time: Duration, count: usize) -> Duration {
    time / u32::try_from(count).unwrap_or(u32::MAX)
}

fn quartile(mut times: Vec<Duration>) -> Duration {
    times.sort();
    times[times.len() / 4]
}

/// Work that waits for nothing takes the same time each time, unless something else disturbs it.
fn least(times: Vec<Duration>) -> Duration {
    times.into_iter().min().unwrap_or_default()
}

fn report(what: &str, ours: Duration, beside: Duration, goal: &str) {
    let ratio = ours.as_secs_f64() / beside.as_secs_f64();
    println!(
        "{what:<58} {:>11} {:>11} {ratio:>7.3}x  {goal}",
        format!("{ours:.1?}"),
        format!("{beside:.1?}")
    );
}
