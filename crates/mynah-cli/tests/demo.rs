//! `mynah demo`: a whole story, with a real kill in it.

use std::{fs, path::Path};

use serde_json::json;

use crate::common::{feed, lines, mynah, run};

const STORY: &str = r#"An agent at work, without a key: the model plays a script, everything else is real.

1. It books a train. Every step is recorded, in FOLDER/mynah.db.

   user       A berth on tonight's train to Vienna for ada@example.org, please.
   assistant  I pay for the berth first.
   tool       charge_card {"eur":89}  ->  {"paid":"89 EUR"}
   assistant  Now the ticket.
   tool       send_ticket {"to":"ada@example.org"}  …

2. The process is killed inside that tool (signal: 9 (SIGKILL)).

   The card was charged once, and no ticket was sent. A program that starts over
   would charge it again. But 8 records are safe: they show what was done, and what was not.

3. Another process resumes the run from its records.

   tool       send_ticket {"to":"ada@example.org"}  ->  {"sent":true}
   assistant  Your berth is booked, and the ticket is in your mail.

   The model was called once more; its recorded answers were not requested again.
   charge_card did not run again: the card was charged once in all.

4. The run is replayed from its records: no model, no tools, no cost.

   15 records reproduced, each the same byte for byte.

5. Each record carries the hash of the one before, and the last one seals them all.

   verified: 15 records, fingerprint HASH

6. One byte changes in a copy of the file: 89 EUR becomes 80 EUR.

   corrupt: record 5: it is not the record that was written

Try next:

   # all of it is in a folder
   cd FOLDER
   # read the run
   mynah show last
   # see when what happened
   mynah show last --tree
   # see all of it in a browser: conversation, timeline, proof
   mynah inspect
   # find the changed byte yourself
   mynah verify --log sqlite:changed.db
   # the same agent is in a file: change it, and see what it would do differently
   mynah replay last --agent agent.json
   # fork it after the payment, and resume the fork
   mynah fork last --at 5 --agent agent.json
   # perform the file from its beginning
   mynah play agent.json
   # see what else there is
   mynah --help
"#;

#[cfg(unix)]
#[test]
fn the_demonstration_reads_as_a_story() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path().join("trip").to_str().unwrap().to_owned();
    let mut command = mynah(["demo", "--dir", &folder]);
    let program = Path::new(command.get_program()).to_owned();
    command.env("PATH", program.parent().unwrap()).env_remove("MYNAH_LOG");
    let told = feed(command, b"");
    assert_eq!((told.code, told.stderr.as_str()), (Some(0), ""));
    let (before, rest) = told.stdout.split_once("fingerprint ").unwrap();
    let (hash, after) = rest.split_at(64);
    assert!(hash.chars().all(|c| c.is_ascii_hexdigit()), "{hash}");
    let told = format!("{before}fingerprint HASH{after}").replace(&folder, "FOLDER");
    assert_eq!(told, STORY);

    // What it says is true.
    let charges = fs::read_to_string(format!("{folder}/charges.txt")).unwrap();
    assert_eq!(charges, "89 EUR\n");
    let tickets = fs::read_to_string(format!("{folder}/tickets.txt")).unwrap();
    assert_eq!(tickets, "\"ada@example.org\"\n");
    let verify = |file: &str| run(["verify", "--log", &format!("sqlite:{folder}/{file}")]).code;
    assert_eq!((verify("mynah.db"), verify("changed.db")), (Some(0), Some(1)));
    let read = |file: &str| fs::read(format!("{folder}/{file}")).unwrap();
    let (kept, changed) = (read("mynah.db"), read("changed.db"));
    assert_eq!(kept.iter().zip(&changed).filter(|(a, b)| a != b).count(), 1, "one byte");
    assert_eq!(kept.len(), changed.len());
}

#[test]
fn its_steps_are_one_value_a_line_in_json() {
    let folder = tempfile::tempdir().unwrap();
    let told = run(["demo", "--json", "--dir", folder.path().to_str().unwrap()]);
    assert_eq!((told.code, told.stderr.as_str()), (Some(0), ""));
    let told = lines(&told);
    let steps: Vec<&str> = told.iter().map(|line| line["step"].as_str().unwrap()).collect();
    assert_eq!(steps, ["begin", "kill", "resume", "replay", "verify", "tamper", "end"]);
    assert_eq!((&told[1]["model_calls"], &told[1]["charges"]), (&json!(2), &json!(1)));
    assert_eq!(told[2], json!({"step": "resume", "model_calls": 1, "charges": 1}));
    assert_eq!(told[3]["records"], told[4]["report"]["records"]);
    assert_eq!(told[5]["err"]["metadata"]["seq"], 5);
}

#[test]
fn what_it_says_to_try_next_works() {
    let folder = tempfile::tempdir().unwrap();
    let mut command = mynah(["demo", "--json", "--dir", folder.path().to_str().unwrap()]);
    let alias = format!("alias mynah={}", command.get_program().to_str().unwrap());
    command.env("PATH", "/nowhere").env_remove("MYNAH_LOG");
    let told = lines(&feed(command, b""));
    let next = told.last().unwrap()["next"].as_array().unwrap().clone();
    let mut commands = next.iter().map(|command| command.as_str().unwrap());
    assert_eq!(commands.next(), Some(&*alias), "it is not on the path");
    assert_eq!(commands.next(), Some(&*format!("cd {}", folder.path().display())));
    // A server does not end by itself; `inspector.rs` looks at such a log in a browser.
    for line in commands.filter(|line| !line.starts_with("mynah inspect")) {
        let mut command = mynah(line.split(' ').skip(1));
        command.current_dir(&folder).env_remove("MYNAH_LOG");
        let ran = feed(command, b"");
        let found_the_changed_byte = line.contains("changed.db");
        assert_eq!(ran.code, Some(i32::from(found_the_changed_byte)), "{line}: {}", ran.stderr);
    }
    let fork = mynah(["show", "last"]).current_dir(&folder).output().unwrap();
    let told = String::from_utf8(fork.stdout).unwrap();
    assert_eq!(told.matches("I pay for the berth first.").count(), 1, "{told}");
    assert!(told.ends_with("-- completed\n"), "{told}");
}

#[test]
fn what_it_says_to_try_next_acts_on_its_own_log_whatever_the_environment_names() {
    let folder = tempfile::tempdir().unwrap();
    for (other, flag) in
        [("sqlite:elsewhere.db", " --log sqlite:mynah.db"), ("sqlite:mynah.db", ""), ("", "")]
    {
        let path = folder.path().join(format!("demo{}", other.len()));
        let mut command = mynah(["demo", "--json", "--dir", path.to_str().unwrap()]);
        command.env("MYNAH_LOG", other);
        let told = lines(&feed(command, b""));
        let next = told.last().unwrap()["next"].as_array().unwrap().clone();
        let named: Vec<&str> = next
            .iter()
            .filter_map(|line| line.as_str().filter(|line| line.contains(" last")))
            .collect();
        assert_eq!(named.len(), 4);
        for line in named {
            assert!(line.ends_with(flag) && line.contains("--log") != flag.is_empty(), "{line}");
            let mut command = mynah(line.split(' ').skip(1));
            command.current_dir(&path).env("MYNAH_LOG", other);
            let ran = feed(command, b"");
            assert_eq!(ran.code, Some(0), "{line}: {}", ran.stderr);
        }
    }
}

#[test]
fn a_folder_that_cannot_be_used_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().to_str().unwrap();
    fs::write(folder.path().join("mynah.db"), "mine").unwrap();
    let refused = run(["demo", "--dir", path]);
    assert_eq!((refused.code, refused.stdout.as_str()), (Some(2), ""));
    let said = format!("mynah: {path}: there is a mynah.db in it already; give another folder\n");
    assert_eq!(refused.stderr, said);
    let refused = run(["demo", "--dir", &format!("{path}/mynah.db/inside")]);
    assert_eq!((refused.code, refused.stdout.as_str()), (Some(4), ""));
    assert!(refused.stderr.contains("mynah.db/inside: "), "{}", refused.stderr);
}
