//! What stands in the page.

use std::{fmt::Write, fs, time::Instant};

use loraloom_report::RunHistory;
use serde_json::json;

use crate::support::{Log, data};

/// Names that would end the element they stand in, or be taken for marks of the template.
#[test]
fn names_cannot_become_elements() {
    let names = [
        "</script><script>alert(1)</script>",
        "<!--<script>",
        "\"' onload=alert(1) &lt;",
        "{{data}} {{script}}",
        "ünï·日本語 \u{202e}rtl \u{2028}",
    ];
    let mut log = Log::of(&names);
    log.step(1, names[0], 1, 1.0);
    log.write(json!({"event": "warning", "message": names[0]}));
    fs::write(log.path().join("config.resolved.yaml"), names.join("\n")).unwrap();
    let page = log.history().page().unwrap();
    let plain = Log::of(&["a"]).history().page().unwrap();
    for tag in ["<script", "</script", "<!--", "alert(1)"] {
        let count = |page: &str| page.matches(tag).count();
        if tag == "alert(1)" {
            // As text in the data only.
            let (_, rest) = page.split_once(r#"id="data">"#).unwrap();
            let (json, after) = rest.split_once("</script>").unwrap();
            assert_eq!(count(&page), count(json));
            assert!(!json.contains('<') && !after.contains(tag));
        } else {
            assert_eq!(count(&page), count(&plain), "{tag}");
        }
    }
    let data = data(&page);
    let found = data["adapters"].as_array().unwrap().iter();
    let found: Vec<_> = found.map(|adapter| &adapter["name"]).collect();
    assert_eq!(found, names);
    assert_eq!(data["warnings"]["shown"][0], names[0]);

    // The name of the directory is a part of the page itself.
    let directory = log.path().join("<b>\"run\" & {{data}}");
    fs::create_dir(&directory).unwrap();
    fs::copy(
        log.path().join("events.jsonl"),
        directory.join("events.jsonl"),
    )
    .unwrap();
    let page = RunHistory::read(&directory).unwrap().page().unwrap();
    assert!(page.contains("<title>&lt;b&gt;&quot;run&quot; &amp; {{data}} · loraloom</title>"));
}

#[test]
fn nothing_is_asked_for_from_elsewhere() {
    let page = Log::of(&["a"]).history().page().unwrap();
    assert!(page.contains(
        r#"content="default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'""#
    ));
    let mut places = page.match_indices("://");
    assert!(
        places.all(|(at, _)| page[at - 4..].starts_with("http://www.w3.org/2000/svg'")),
        "an address"
    );
    for word in ["innerHTML", "@import", "url(", "fetch(", "<link", "src=\""] {
        assert!(!page.contains(word), "{word}");
    }
    assert!(!page.contains("{{"), "a mark is left");
}

/// A pseudo-random number from 0 to 1.
fn noise(state: &mut u64) -> f64 {
    *state = state
        .wrapping_mul(6_364_136_223_846_793_005)
        .wrapping_add(1);
    (*state >> 33) as f64 / f64::from(u32::MAX >> 1)
}

/// 32 adapters of 10,000 steps each: 90 MB of events.
#[test]
fn long_runs_have_small_pages_with_numbers_of_their_events() {
    const ADAPTERS: usize = 32;
    const STEPS: usize = 10_000;
    let mut log = Log::of(&[]);
    let mut state = 1;
    let mut losses = vec![Vec::new(); ADAPTERS];
    let mut lowest = vec![(0, f64::INFINITY); ADAPTERS];
    let mut text = String::new();
    for step in 1..=STEPS {
        for (adapter, losses) in losses.iter_mut().enumerate() {
            let loss = 1.0 + 2.0 / step as f64 + noise(&mut state) / 3.0;
            let norm = noise(&mut state);
            losses.push(loss);
            let _ = writeln!(
                text,
                r#"{{"v":1,"event":"step","iteration":{step},"adapter":"adapter-number-{adapter}","step":{step},"total_steps":{STEPS},"loss":{loss},"target_tokens":812,"tokens":4096,"grad_norm":{norm},"learning_rate":0.000299999,"group":0}}"#
            );
            if step % 100 == 0 {
                let _ = writeln!(
                    text,
                    r#"{{"v":1,"event":"eval","adapter":"adapter-number-{adapter}","step":{step},"loss":{norm},"best":false}}"#
                );
                if norm < lowest[adapter].1 {
                    lowest[adapter] = (step, norm);
                }
            }
        }
        let seconds = 0.5 + noise(&mut state);
        let _ = writeln!(
            text,
            r#"{{"v":1,"event":"iteration","iteration":{step},"seconds":{seconds},"tokens":131072,"tokens_per_second":{},"bubble_ratio":0.0,"transfer_seconds":null,"transfer_overlap":null,"bytes_reserved":{},"bytes_predicted":70000000000,"groups":[],"parts":{{}}}}"#,
            131_072.0 / seconds,
            60_000_000_000_u64 + step as u64
        );
    }
    log.raw(&text);
    drop(text);
    let path = log.path().to_owned();
    drop(log.history());
    let begun = Instant::now();
    let page = RunHistory::read(&path).unwrap().page().unwrap();
    println!("{} bytes in {:?}", page.len(), begun.elapsed());
    assert!(page.len() < 2_000_000, "{} bytes", page.len());

    let data = data(&page);
    assert_eq!(data["iterations"]["count"], STEPS);
    assert_eq!(data["run"]["tokens"], 131_072 * STEPS);
    for (index, losses) in losses.iter().enumerate() {
        let adapter = &data["adapters"][index];
        assert_eq!(adapter["name"], format!("adapter-number-{index}"));
        assert_eq!(
            (&adapter["steps"], &adapter["tokens"]),
            (&json!(STEPS), &json!(4096 * STEPS))
        );
        for (value, expected) in [
            (&adapter["first_loss"], losses[0]),
            (&adapter["last_loss"], losses[STEPS - 1]),
            (&adapter["best"]["loss"], lowest[index].1),
        ] {
            // serde_json reads numbers to the last bit but one.
            let off = (value.as_f64().unwrap() / expected - 1.0).abs();
            assert!(off < 1e-15, "{value} {expected}");
        }
        assert_eq!(adapter["best"]["step"], lowest[index].0);
        let steps = adapter["curve"]["step"].as_array().unwrap();
        let shown = adapter["curve"]["loss"].as_array().unwrap();
        assert!((500..=1000).contains(&steps.len()), "{} rows", steps.len());
        // Digits of 32-bit numbers.
        let shown = shown
            .iter()
            .map(|shown| shown.to_string().parse::<f32>().unwrap());
        let shown: Vec<f32> = shown.collect();
        for (step, shown) in steps.iter().zip(&shown) {
            let loss = losses[step.as_u64().unwrap() as usize - 1] as f32;
            assert_eq!(shown.to_bits(), loss.to_bits(), "step {step}");
        }
        let highest = losses.iter().copied().fold(0.0, f64::max) as f32;
        assert!(shown.contains(&highest), "the highest loss is lost");
    }
    // The page says that it shows less than there is.
    assert!(data["thinned"]["rows"].as_u64().unwrap() < 1000);
    assert_eq!(data["thinned"]["smoothed_over"], 401);
}
