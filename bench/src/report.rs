//! Measures everything, and prints it as Markdown.

use std::{
    env,
    io::{BufRead as _, BufReader},
    process::{Child, Command, Stdio},
};

use crate::{Result, log, machine, peers, work::Work};

/// Measures everything this many times, and prints medians.
pub fn print(rounds: usize) -> Result<()> {
    let server = Server::start()?;
    let mut behind = Vec::new();
    let mut tables = String::new();
    for work in [Work::OneByOne, Work::AtOnce, Work::Deltas] {
        let rows = measure(&server, work, rounds.max(1))?;
        tables += &table(work, &rows);
        behind.extend(ahead_of_mynah(work, &rows));
    }
    drop(server);
    tables += &of_the_log(rounds.max(1))?;
    println!("{}\n{tables}\n## Where Mynah is not first\n", machine::describe()?);
    match behind.is_empty() {
        true => println!("It is first of the libraries in every row above."),
        false => behind.iter().for_each(|line| println!("- {line}")),
    }
    Ok(())
}

/// The server, which ends with this.
struct Server(Child, String);

impl Server {
    fn start() -> Result<Self> {
        let mut child = itself(&["serve"])?.stdout(Stdio::piped()).spawn()?;
        let mut port = String::new();
        let stdout = child.stdout.take().ok_or("no output")?;
        BufReader::new(stdout).read_line(&mut port)?;
        Ok(Self(child, port.trim().to_owned()))
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn itself(args: &[&str]) -> Result<Command> {
    let mut command = Command::new(env::current_exe()?);
    command.args(args);
    Ok(command)
}

/// The figures that a process of this program prints.
fn figures(args: &[&str]) -> Result<Vec<f64>> {
    eprintln!("{}", args.join(" "));
    let output = itself(args)?.stderr(Stdio::inherit()).output()?;
    if !output.status.success() {
        return Err(format!("`{}` failed: {}", args.join(" "), output.status).into());
    }
    let words = String::from_utf8(output.stdout)?;
    Ok(words.split_whitespace().map(str::parse).collect::<Result<_, _>>()?)
}

/// The median of each figure.
fn medians(rounds: &[Vec<f64>]) -> Vec<f64> {
    let median = |column| {
        let mut values: Vec<f64> = rounds.iter().map(|round| round[column]).collect();
        values.sort_by(f64::total_cmp);
        values[values.len() / 2]
    };
    (0..rounds[0].len()).map(median).collect()
}

/// One library: milliseconds, milliseconds of CPU, and commits of one run.
struct Row {
    name: &'static str,
    label: &'static str,
    time: f64,
    cpu: f64,
    commits: f64,
}

fn measure(server: &Server, work: Work, rounds: usize) -> Result<Vec<Row>> {
    // A long answer is one record: nothing that a table of deltas could show.
    let peers = peers::ALL.iter().filter(|(name, _)| work != Work::Deltas || *name != "recorded");
    let peers: Vec<_> = peers.collect();
    let mut seen = vec![Vec::new(); peers.len()];
    for _ in 0..rounds {
        for ((name, _), seen) in peers.iter().zip(&mut seen) {
            seen.push(figures(&["work", &server.1, name, work.name()])?);
        }
    }
    let row = |(&&(name, label), seen): (_, &Vec<_>)| match medians(seen)[..] {
        [time, cpu, commits] => Ok(Row { name, label, time, cpu, commits }),
        _ => Err(format!("{name}: not three figures").into()),
    };
    peers.iter().zip(&seen).map(row).collect()
}

fn title(work: Work) -> &'static str {
    match work {
        Work::OneByOne => "Ten tool calls, one run at a time",
        Work::AtOnce => "Ten tool calls, 64 runs at once",
        Work::Deltas => "One answer of 100,000 deltas",
    }
}

fn table(work: Work, rows: &[Row]) -> String {
    let what = if work == Work::Deltas { "answer" } else { "run" };
    let mut text = format!("### {}\n\n", title(work));
    text += &format!(
        "| | ms per {what} | of raw | CPU ms per {what} | of raw |\n|---|---:|---:|---:|---:|\n"
    );
    let raw = &rows[0];
    for row in rows {
        text += &format!(
            "| {} | {:.2} | {:.2} | {:.2} | {:.2} |\n",
            row.label,
            row.time,
            row.time / raw.time,
            row.cpu,
            row.cpu / raw.cpu
        );
    }
    if let Some(row) = rows.iter().find(|row| row.commits > 0.0) {
        text += &format!("\nA recorded run made {:.1} commits.\n", row.commits);
    }
    text + "\n"
}

/// Sentences about libraries that take less than Mynah for the same.
fn ahead_of_mynah(work: Work, rows: &[Row]) -> Vec<String> {
    let Some(mynah) = rows.iter().find(|row| row.name == "mynah") else { return Vec::new() };
    let others = rows.iter().filter(|row| !matches!(row.name, "mynah" | "recorded"));
    let better = others.filter(|row| row.time < mynah.time || row.cpu < mynah.cpu);
    let sentence = |row: &Row| {
        let (time, cpu) = (row.time / mynah.time, row.cpu / mynah.cpu);
        format!(
            "{}: {} takes {time:.2} of its time and {cpu:.2} of its CPU time",
            title(work),
            row.label
        )
    };
    better.map(sentence).collect()
}

/// What needs no other library.
fn of_the_log(rounds: usize) -> Result<String> {
    let of = |subject: &str| -> Result<Vec<f64>> {
        let rounds = (0..rounds).map(|_| figures(&["log", subject]));
        Ok(medians(&rounds.collect::<Result<Vec<_>>>()?))
    };
    let (plain, append) = (of("append-rusqlite")?, of("append")?);
    let micros = |ms: f64| ms * 1e3;
    let mut text = "### The log\n\n| | | |\n|---|---:|---|\n".to_owned();
    let mut row = |what: &str, value: String, note: &str| {
        text += &format!("| {what} | {value} | {note} |\n");
    };
    let note = format!(
        "plain rusqlite: {:.1} µs, CPU {:.1} µs; Mynah {:.2} times that, CPU {:.2} times",
        micros(plain[0]),
        micros(plain[1]),
        append[0] / plain[0],
        append[1] / plain[1]
    );
    let value = format!("{:.1} µs, CPU {:.1} µs", micros(append[0]), micros(append[1]));
    row("one append to SQLite, `synchronous=NORMAL`", value, &note);
    for turns in [100, 1_000] {
        let ratio = of(&format!("disk-{turns}"))?[0];
        let what = format!("bytes on disk for each byte of payload, {turns} turns of 1 KB");
        row(&what, format!("{ratio:.2}"), "the file after it was closed");
    }
    let restored = of("session")?;
    let what = format!("restoring a session of {} turns", log::TURNS);
    row(&what, format!("{:.0} ms, CPU {:.0} ms", restored[0], restored[1]), "each turn is a run");
    let kib = |bytes: f64| format!("{:.1} KiB", bytes / 1024.0);
    row("memory of a run that waits for its model", kib(of("idle-model")?[0]), "of 10,000");
    row("memory of a recorded run that waits in a tool", kib(of("idle-tool")?[0]), "of 1,000");
    text += "\n### Crates\n\n| a program with | crates |\n|---|---:|\n";
    for (label, count) in machine::crates()? {
        text += &format!("| {label} | {count} |\n");
    }
    Ok(text)
}
