//! What LoRAPP is for: more steps a second than the baselines, and on more stages.

use loraloom_pipeline::{
    schedule::{PipelineShape, Schedule},
    simulate::{Link, Links},
};

use crate::simulate::support::{ALL, passes, run, run_uniform};

#[test]
fn lorapp_beats_the_baselines() {
    let shape = PipelineShape::new(4, 4, 1, 10);
    let [lorapp, one_f_one_b, gpipe] = ALL.map(|schedule| {
        let simulation = run_uniform(schedule, &shape, passes(1.0, 1.0));
        let whole = simulation.steps_per_second();
        (simulation.steady_steps_per_second().unwrap(), whole)
    });
    println!("steps/s steady, whole: {lorapp:?}, {one_f_one_b:?}, {gpipe:?}");
    for baseline in [one_f_one_b, gpipe] {
        assert!(lorapp.0 >= 1.25 * baseline.0 && lorapp.1 >= 1.25 * baseline.1);
        // Full against three quarters idle.
        assert_eq!(lorapp.0, 4.0 * baseline.0);
    }
}

/// Two to eight stages of one backbone: 8 × 512 tokens through 6.7 billion weights are 55 TFLOP a
/// pass, 0.55 s at 100 TFLOP/s. A hop of the paper's 33.6 MB takes 2.1 ms at 16 GB/s.
#[test]
fn stages_scale() {
    let link = Link {
        bytes_per_second: 16e9,
        latency: 0.0,
    };
    let rate = |stages: usize, groups: usize, link: Link| {
        let pass = 0.55 / stages as f64;
        let shape = PipelineShape::new(stages, groups, 1, 24);
        let links = Links::new(vec![link; stages - 1], vec![33.6e6; groups]).unwrap();
        let rates = [0, 1].map(|extra_warmup| {
            let shape = shape.with_extra_warmup(extra_warmup);
            let simulation = run(Schedule::LoraPp, &shape, passes(pass, pass), &links);
            simulation.steady_steps_per_second().unwrap()
        });
        rates[0].max(rates[1])
    };
    let linear = |groups: fn(usize) -> usize, link| {
        rate(8, groups(8), link) / rate(2, groups(2), link) / 4.0
    };
    let free = linear(|stages| stages, Link::INSTANT);
    let linked = linear(|stages| stages, link);
    let more_groups = linear(|stages| 2 * stages, link);
    println!("2 to 8 stages, of linear: {free}; with links {linked}, L = 2D {more_groups}");
    assert!(free >= 0.999);
    // A step of one group takes 2D passes and 2(D − 1) hops; with only D groups the hops show.
    let expected = (2.0 * 0.55 + 2.0 * 0.0021) / (2.0 * 0.55 + 14.0 * 0.0021);
    assert!((linked - expected).abs() < 1e-9);
    assert!(linked >= 0.95);
    assert!(more_groups >= 0.999);
}

/// Transfers as long as passes are hidden by one more group and a longer warm-up.
#[test]
fn transfers_overlap_compute() {
    let link = Link {
        bytes_per_second: 1.0,
        latency: 0.0,
    };
    let seconds_per_step = |extra_warmup| {
        let shape = PipelineShape::new(2, 3, 1, 10).with_extra_warmup(extra_warmup);
        let links = Links::new(vec![link], vec![1.0; 3]).unwrap();
        let simulation = run(Schedule::LoraPp, &shape, passes(1.0, 1.0), &links);
        assert!(simulation.stages[0].most_in_flight() <= 2 + extra_warmup);
        1.0 / simulation.steady_steps_per_second().unwrap()
    };
    assert_eq!(seconds_per_step(1), 2.0);
    assert!(seconds_per_step(0) > 2.2);
}
