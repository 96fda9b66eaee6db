//! Commands, expressions, questions and times.

use std::time::Duration;

use mynah_data::ToolOutcome;
use mynah_tools::{ask_user, calculator, now, shell};
use serde_json::json;

use super::{ARGUMENTS, Table};
use crate::common::{call, outcome};

pub(super) async fn commands(table: &mut Table) {
    let dir = tempfile::tempdir().unwrap();
    let tool = shell().dir(dir.path()).timeout(Duration::from_millis(400)).max_output(200).tool();
    table.section(
        "shell",
        "A person has allowed the command. The limits are 400 ms and 200 bytes of each output.",
    );
    let killed = "did not end within 400 ms and was killed";
    let long = "a".repeat((64 << 10) + 1);
    let rows = [
        ("", "nothing", "the command is empty"),
        (" \n\t", "white space", "the command is empty"),
        ("echo a\0b", "a NUL", "contains a NUL character"),
        (long.as_str(), "a command of 65,537 bytes", "too long"),
        ("sleep 60", "a command that does not end", killed),
        ("sleep 60 | sleep 60", "processes that do not end", killed),
        ("sleep 60 & wait", "a process in the background", killed),
        ("(sleep 60; touch late) & wait", "a process in the background that would go on", killed),
        ("trap '' TERM INT HUP; while :; do :; done", "a command that ignores signals", killed),
        ("exec >&- 2>&-; sleep 60", "a command that closes its output", killed),
        ("yes", "output without end", killed),
        ("yes >&2", "errors without end", killed),
        ("cat /dev/zero", "zeros without end", killed),
        ("kill -STOP $$", "a command that stops itself", killed),
    ];
    table.rows(&tool, "command", &rows).await;
    let objects = [
        (
            json!({"command": "env", "env": {"LD_PRELOAD": "x.so"}}),
            "variables of its own",
            ARGUMENTS,
        ),
        (json!({"command": "pwd", "dir": "/"}), "a folder of its own", ARGUMENTS),
        (json!({"command": "sleep 60", "timeout": 3600}), "a time limit of its own", ARGUMENTS),
        (json!({"command": ["rm", "-rf", "/"]}), "a list", ARGUMENTS),
    ];
    table.objects(&tool, &objects).await;
    let nowhere = shell().dir("/no/such/folder").tool();
    let found = call(&nowhere, json!({"command": "true"})).await;
    table.row("true", "a folder that is missing", found, "the command cannot be run");

    let tool = shell().dir(dir.path()).tool();
    // What begins with a dash is a command and no option of the shell; input is empty; nothing is inherited.
    let option = call(&tool, json!({"command": "-s"})).await.unwrap();
    assert_eq!(option["exit_code"], 127);
    assert_eq!(call(&tool, json!({"command": "cat"})).await.unwrap()["stdout"], "");
    let env = call(&tool, json!({"command": "env | cut -d= -f1 | sort"})).await.unwrap();
    assert_eq!(env["stdout"], "LANG\nPATH\nPWD\n");
    // A process in the background does not outlive its command, and does not hold the call.
    let left =
        call(&tool, json!({"command": "(sleep 0.3; touch late) & echo done"})).await.unwrap();
    assert_eq!(left["stdout"], "done\n");
    tokio::time::sleep(Duration::from_millis(600)).await;
    assert!(!dir.path().join("late").exists());
}

pub(super) async fn small(table: &mut Table) {
    table.section(
        "calculator",
        "Length, nesting and numbers are bounded, and there is nothing but arithmetic.",
    );
    let nested = "(".repeat(900);
    let signs = format!("{}1", "-".repeat(900));
    let powers = format!("{}2", "2^".repeat(400));
    let digits = "9".repeat(1_001);
    let calls = format!("{}1{}", "abs(".repeat(100), ")".repeat(100));
    let too_large = "too large or too small";
    let rows = [
        (nested.as_str(), "900 parentheses", "nests deeper than 64 levels"),
        (signs.as_str(), "900 signs", "nests deeper than 64 levels"),
        (powers.as_str(), "400 powers", "nests deeper than 64 levels"),
        (calls.as_str(), "100 functions", "nests deeper than 64 levels"),
        (digits.as_str(), "1,001 digits", "at most 1000 are allowed"),
        ("9^9^9^9", "a tower of powers", too_large),
        ("2^4097", "a number of 4,098 bits", too_large),
        ("10^-5000", "a number close to zero", too_large),
        ("1e999999999", "a huge literal", too_large),
        ("1e-999999999", "a tiny literal", too_large),
        ("1e99999999999999999999", "an exponent beyond any", "is not a number"),
        ("exp(1000)", "a function that overflows", too_large),
        ("1/0", "a division by zero", "division by zero"),
        ("5 % (1 - 1)", "a remainder of zero", "division by zero"),
        ("0^-1", "a power of zero", "division by zero"),
        ("sqrt(-1)", "a number that is not real", "not a real number"),
        ("(-8)^0.5", "a number that is not real", "not a real number"),
        ("ln(0)", "infinity", too_large),
        ("round(1.5, 1e9)", "a billion decimals", "round takes 0 to 100 decimals"),
        ("max()", "a function without arguments", "expected a number"),
        ("sin(1, 2)", "too many arguments", "does not take 2 arguments"),
        ("__import__('os')", "a program", "expected a number"),
        ("system(1)", "a function that is none", "there is no function or constant \"system\""),
        ("a = 1", "a variable", "there is no function or constant \"a\""),
        ("1; 2", "two expressions", "expected an operator or the end"),
        ("1 2", "two numbers", "expected an operator or the end"),
        ("1,000", "a thousands separator", "expected an operator or the end"),
        ("(1", "a parenthesis that is not closed", "expected \")\", found the end"),
        ("1 +", "a missing number", "expected a number, found the end"),
        ("", "nothing", "expected a number, found the end"),
        (".", "a point alone", "is not a number"),
        ("１+１", "full-width digits", "expected a number"),
        ("1\0", "a NUL", "expected an operator or the end"),
    ];
    table.rows(&calculator(), "expression", &rows).await;

    table.section("ask_user", "The question is shown in a terminal.");
    let long = "a".repeat(4_001);
    let control = "contains the control character";
    let many: Vec<_> = (0..21).map(|number| number.to_string()).collect();
    let objects = [
        (json!({"question": " "}), "nothing", "the question is empty"),
        (json!({"question": "\u{1b}[2J\u{1b}[HPassword:"}), "a cleared screen", control),
        (json!({"question": "\u{9b}2JPassword:"}), "a cleared screen, in one character", control),
        (json!({"question": "a\u{7}"}), "a bell", control),
        (json!({"question": "pay \u{202e}001"}), "text that is shown backwards", control),
        (json!({"question": "ok\rno"}), "a line that is overwritten", control),
        (
            json!({"question": "a?", "choices": ["\u{1b}]0;x\u{7}"]}),
            "a title of the window",
            control,
        ),
        (json!({"question": long}), "a question of 4,001 bytes", "too long for a question"),
        (json!({"question": "a?", "choices": many}), "21 choices", "are too many"),
    ];
    let asked = |found| match found {
        Ok(ToolOutcome::Error { error, .. }) => Err(error.as_str().unwrap_or_default().to_owned()),
        other => Ok(json!(format!("{other:?}"))),
    };
    for (arguments, attempt, error) in &objects {
        let found = asked(outcome(&ask_user(), arguments.clone()).await);
        table.row(&arguments.to_string(), attempt, found, error);
    }

    table.section("now", "Time zones are built in.");
    let long = "a".repeat(100_000);
    let no_zone = "there is no time zone";
    let rows = [
        ("../../etc/passwd", "a file", no_zone),
        ("/etc/localtime", "a file", no_zone),
        ("Mars/Phobos", "a zone that is none", no_zone),
        ("", "nothing", no_zone),
        ("UTC\0", "a NUL", no_zone),
        (long.as_str(), "a name of 100,000 bytes", no_zone),
    ];
    table.rows(&now(), "time_zone", &rows).await;
}
