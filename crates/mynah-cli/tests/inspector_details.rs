//! What the inspector says of addresses that name nothing, and other details, in a real browser.

use crate::{
    chromium::Browser,
    common::{self, RUNS, Store},
    served::Served,
};

/// The id of the run that is complete.
fn completed(store: &Store) -> String {
    let runs = store.json(&["runs"]);
    common::text(runs.iter().find(|run| run["status"] == "completed").unwrap(), "run_id")
}

#[test]
fn an_address_that_names_no_record_or_run_says_so() {
    let Some(browser) = Browser::start() else { return };
    let store = Store::with(RUNS);
    let run = completed(&store);
    let served = Served::inspect(&store);
    browser.open(&served.page(&[("run", &run), ("record", "999")]));
    browser.wait(
        "document.querySelector('.banner.warn')?.innerText.includes('There is no record 999')",
    );
    browser.gives("return document.querySelectorAll('.selected').length", 0);
    browser.open(&served.page(&[("run", &run), ("record", "2")]));
    browser.wait("document.querySelector('.record-detail') !== null");
    browser.gives("return document.querySelectorAll('.banner.warn').length", 0);
    // A run that does not exist is not damaged, and the error is in words for people.
    browser.open(&served.page(&[("verify", "nope")]));
    let told = browser.text("main .empty");
    assert!(told.contains("Not found") && !told.contains("log error"), "{told}");
    assert_eq!(told.matches("nope").count(), 1, "{told}");
    browser.gives("return document.querySelectorAll('.banner, .step').length", 0);
    browser.open(&served.page(&[("compare", &run)]));
    let told = browser.text("main .empty");
    assert!(told.contains("The address lacks “with”") && !told.contains("null"), "{told}");
}

#[test]
fn a_parameter_that_no_page_knows_is_named() {
    let Some(browser) = Browser::start() else { return };
    let store = Store::with(RUNS);
    let served = Served::inspect(&store);
    browser.open(&served.page(&[("min_cost", "0.05")]));
    browser.wait("document.querySelector('.unknown-names')?.innerText.includes('min_cost')");
    browser.open(&served.page(&[("min_cost", "0.05"), ("max_cost", "1")]));
    browser
        .wait("document.querySelector('.unknown-names')?.innerText.includes('They are ignored')");
    browser.open(&served.page(&[("cost", "0"), ("list", "runs")]));
    browser.wait("document.querySelector('tr[data-run]') !== null");
    browser.gives("return document.querySelector('.unknown-names').innerText", "");
}

#[test]
fn an_image_in_a_text_is_shown_and_one_of_another_type_is_named() {
    let Some(browser) = Browser::start() else { return };
    let png = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg==";
    let svg = "A".repeat(5000);
    let text =
        format!("![a dot](data:image/png;base64,{png}) ![odd](data:image/svg+xml;base64,{svg}) ![titled](DATA:IMAGE/PNG;base64,{png} 'a title') [linked](data:text/html;base64,{svg})")
            .replace('\'', "\\\"");
    let play = r#"{"engine": {"model": "m"}, "scripts": [[{"text": "TEXT"}, {"finish": "stop"}]], "tools": [],
        "ops": [{"op": "chat", "messages": [{"role": "user", "content": "Draw."}]}]}"#;
    let store = Store::with(&play.replace("TEXT", &text));
    let served = Served::inspect(&store);
    let run = common::text(&store.json(&["runs"])[0], "run_id");
    browser.open(&served.page(&[("run", &run)]));
    browser.wait("document.querySelector('.markdown img[alt=\"a dot\"]')?.naturalWidth === 1");
    browser.wait("document.querySelector('.markdown img[alt=titled]')?.naturalWidth === 1");
    let told = browser.text(".role-assistant .markdown");
    assert!(told.contains("linked"), "{told}");
    assert!(told.contains("image, not shown: odd") && !told.contains(&svg[..100]), "{told}");
    assert_eq!(browser.errors(), Vec::<String>::new());
}

#[test]
fn only_a_long_pause_is_shortened_and_every_tick_says_another_time() {
    let Some(browser) = Browser::start() else { return };
    let store = Store::with(RUNS);
    let served = Served::inspect(&store);
    browser.open(&served.page(&[]));
    browser.wait("document.querySelector('tr[data-run]') !== null");
    // A tool, a pause of so many milliseconds, and another tool.
    let axis = |pause: u32| {
        let script = format!(
            "return Promise.all([import('/ui/timeline.js'), import('/ui/story.js')]).then(([{{ Timeline }}, {{ Story }}]) => {{ \
            const crossed = (axis) => {{ const rooms = [...axis.querySelectorAll('.tick, .break')].map((one) => one.getBoundingClientRect()).sort((one, other) => one.left - other.left); \
            return rooms.filter((room, place) => place > 0 && room.left < rooms[place - 1].right || room.height > 24).length; }}; \
            const story = new Story(); const end = 1600 + {pause}; \
            const span = (kind, from, to) => ({{ kind, label: kind, from, to, seq: 1, last: 1, depth: 0, state: 'ok' }}); \
            story.records = [{{ seq: 1, ts: 0 }}, {{ seq: 2, ts: end }}]; \
            story.spans = [span('tool', 0, 100), span('crash', 100, 100 + {pause}), span('tool', 100 + {pause}, end)]; \
            const view = new Timeline(story, {{ select: () => {{}} }}); \
            document.getElementById('main').replaceChildren(view.element); view.refresh(); \
            const words = [...view.element.querySelectorAll('.tick')].map((one) => one.innerText); \
            return [view.toggle.hidden, view.element.querySelectorAll('.break').length, words.length, new Set(words).size, words.join(), crossed(view.element)]; }})"
        );
        browser.run(&script)
    };
    let short = axis(900);
    assert_eq!((&short[0], &short[1]), (&true.into(), &0.into()), "{short}");
    let long = axis(60_000);
    assert_eq!((&long[0], &long[1], &long[2]), (&false.into(), &1.into(), &long[3]), "{long}");
    // Round times, with the digits that tell them apart.
    assert!(long[4].as_str().unwrap().contains("1 min 0.4 s,1 min 0.6 s"), "{long}");
    // The pause ends at a tick, and no words are over others.
    assert!(long[4].as_str().unwrap().contains("1 min 0.1 s"), "{long}");
    assert_eq!(long[5], 0, "{long}");
    browser.look(320, 900, false);
    let narrow = axis(60_000);
    assert!(narrow[4].as_str().unwrap().starts_with('0'), "{narrow}");
    assert_eq!(narrow[5], 0, "{narrow}");
}
