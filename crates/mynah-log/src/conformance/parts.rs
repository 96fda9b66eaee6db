//! Answers in flight.

use mynah_data::LogReason;

use super::{HOUR, Sample, begin, refused};
use crate::{AnswerPart, Lease, Log};

pub(super) async fn parts_of_an_answer_are_kept_until_the_next_append(log: &dyn Log) {
    let mut run = Sample::new("run", 0);
    let mut early = log.parts("run", 1, 0);
    assert_eq!(begin(&mut early).await, None, "the run is not there yet");
    log.append(run.batch().held("ann/x", HOUR)).await.expect("a new run");
    assert_eq!(begin(&mut early).await, None, "it has no parts yet");
    let lease = Lease::new("run", "ann/x", 1, 0);
    let [ab, c, cd] = [(0, 2, "ab"), (2, 1, "c"), (2, 2, "cd")]
        .map(|(first, count, payload)| AnswerPart::new(1, first, count, payload));
    let keep = async |lease: &Lease, part: &AnswerPart| {
        log.keep_part(lease, part.clone()).await.expect("a log that can be written");
    };
    let parts = async |first| log.parts("run", 1, first).await.expect("a log that can be read");

    keep(&lease, &ab).await;
    assert_eq!(early.await, Ok(vec![ab.clone()]), "whoever waits gets it");
    assert_eq!(parts(1).await, std::slice::from_ref(&ab), "it has the second event");
    let mut next = log.parts("run", 1, 2);
    assert_eq!(begin(&mut next).await, None, "there is no third event");
    keep(&lease, &c).await;
    assert_eq!(next.await, Ok(vec![c.clone()]));
    assert_eq!(parts(0).await, [ab.clone(), c], "in order");
    keep(&lease, &cd).await;
    assert_eq!(parts(3).await, std::slice::from_ref(&cd), "the later one replaces the earlier");

    // What comes too late or from another is not kept.
    for lease in [Lease::new("run", "ann/x", 2, 0), Lease::new("run", "bob/x", 1, 0)] {
        keep(&lease, &AnswerPart::new(1, 4, 1, "e")).await;
    }
    keep(&Lease::new("none", "ann/x", 1, 0), &AnswerPart::new(1, 4, 1, "e")).await;
    keep(&lease, &AnswerPart::new(0, 4, 1, "e")).await;
    keep(&lease, &AnswerPart::new(2, 4, 1, "e")).await;
    assert_eq!(parts(0).await, [ab, cd]);
    assert_eq!(log.read("run", 1, 9).await.map(|records| records.len()), Ok(1), "no records");

    let mut late = log.parts("run", 1, 4);
    assert_eq!(begin(&mut late).await, None);
    run = run.user("two");
    log.append(run.batch().fenced(&lease)).await.expect("the next record");
    assert_eq!(late.await, Ok(Vec::new()), "there are records instead");
    assert_eq!(parts(0).await, []);
    keep(&lease, &AnswerPart::new(1, 4, 1, "e")).await;
    let mut gone = log.parts("run", 2, 0);
    assert_eq!(begin(&mut gone).await, None, "nothing of the answer before is left");
    keep(&lease, &AnswerPart::new(2, 0, 1, "f")).await;
    assert_eq!(gone.await, Ok(vec![AnswerPart::new(2, 0, 1, "f")]));

    // A part and the append that ends it, without a pause between them.
    run = run.sealed();
    let (mut part, mut end) = (
        log.keep_part(&lease, AnswerPart::new(2, 1, 1, "g")),
        log.append(run.batch().fenced(&lease)),
    );
    let (kept, ended) = (begin(&mut part).await, begin(&mut end).await);
    if kept.is_none() {
        part.await.expect("a log that can be written");
    }
    if ended.is_none() {
        end.await.expect("the end");
    }
    assert_eq!(log.parts("run", 2, 0).await, Ok(Vec::new()));
    let last = run.head().seq;
    assert_eq!(refused(log.parts("run", last, 0).await), LogReason::Sealed);
    log.check().await.expect("nothing is left behind");
}
