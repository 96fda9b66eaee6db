//! A text delta is one event and one `push_str`: collecting it allocates nothing of its own.

use mynah_data::{Collector, Event, Thread};

#[test]
fn collecting_text_allocates_only_as_the_text_grows() {
    let events: Vec<Event> = (0..100_000).map(|n| Event::text_delta(format!("word{n} "))).collect();
    let mut collector = Collector::new(Thread::new());
    let counted = allocation_counter::measure(|| {
        events.iter().for_each(|event| collector.apply(event));
    });
    assert!(counted.count_total < 64, "{} allocations for 100,000 deltas", counted.count_total);
    assert_eq!(collector.response().text().len(), events.iter().map(delta_len).sum::<usize>());
}

fn delta_len(event: &Event) -> usize {
    match event {
        Event::TextDelta { delta, .. } => delta.len(),
        _ => 0,
    }
}
