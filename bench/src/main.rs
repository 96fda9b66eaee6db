//! Mynah beside other libraries, on the same work over loopback HTTP, and its log beside plain SQLite.
//!
//! `cargo xtask bench peers` builds and runs this, and writes what it prints into `docs/benchmarks.md`.
//!
//! The model is a server in a process of its own, and each measurement is a process too: its CPU time is that of one library alone. The
//! libraries take turns, so that a machine that becomes slower does so for all.

mod log;
mod machine;
mod measure;
mod peers;
mod report;
mod server;
mod work;

use std::{env, error::Error, process::ExitCode};

type Result<T, E = Box<dyn Error + Send + Sync>> = std::result::Result<T, E>;

const USAGE: &str = "\
Usage: mynah-bench [ROUNDS]              measure everything and print it as Markdown (5 rounds, unless given)
       mynah-bench work PORT PEER WORK   one measurement, in this process
       mynah-bench log SUBJECT           one measurement of the log, in this process
       mynah-bench only PORT PEER WORK N the same work N times, for a profiler
       mynah-bench serve                 the model; prints its port
";

fn main() -> ExitCode {
    let args: Vec<String> = env::args().skip(1).collect();
    let args: Vec<&str> = args.iter().map(String::as_str).collect();
    match perform(&args) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error}");
            ExitCode::FAILURE
        }
    }
}

fn perform(args: &[&str]) -> Result<()> {
    match *args {
        [] => report::print(5),
        ["serve"] => server::serve(),
        ["work", port, peer, work] => work::measure(port.parse()?, peer, work.parse()?),
        ["only", port, peer, work, times] => {
            work::repeat(port.parse()?, peer, work.parse()?, times.parse()?)
        }
        ["log", subject] => log::measure(subject),
        ["-h" | "--help"] => {
            print!("{USAGE}");
            Ok(())
        }
        [rounds] => report::print(rounds.parse().map_err(|_| USAGE)?),
        _ => Err(USAGE.into()),
    }
}
