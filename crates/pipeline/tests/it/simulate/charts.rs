//! Gantt charts.

use loraloom_pipeline::{
    schedule::{PipelineShape, Schedule},
    simulate::{Links, PassCosts, ScheduleCosts, gantt_svg, gantt_text, simulate},
};

use crate::simulate::support::{passes, run_uniform};

#[test]
fn nothing_takes_no_time() {
    let none = simulate(
        &[],
        &ScheduleCosts::new(Vec::new()).unwrap(),
        &Links::instant(0, 0),
    )
    .unwrap();
    assert_eq!((none.makespan, none.steps_per_second()), (0.0, 0.0));
    assert!(gantt_svg(&none).ends_with("</svg>\n"));
    assert_eq!(gantt_text(&none, 1.0), "");
}

/// The figure in the documentation of `schedule`.
#[test]
fn the_documented_figure_is_what_is_simulated() {
    let shape = PipelineShape::new(4, 4, 1, 3);
    let simulation = run_uniform(Schedule::LoraPp, &shape, passes(1.0, 1.0));
    let text = gantt_text(&simulation, 1.0);
    println!("{text}");
    let source = include_str!("../../../src/schedule/mod.rs");
    for line in text.lines() {
        assert!(source.contains(&format!("//! {line}\n")), "{line}");
    }
}

#[test]
fn the_chart_shows_every_operation() {
    let shape = PipelineShape::new(4, 4, 2, 2);
    let costs = PassCosts {
        step: 0.25,
        ..passes(1.0, 1.5)
    };
    let simulation = run_uniform(Schedule::LoraPp, &shape, costs);
    let svg = gantt_svg(&simulation);
    let operations = simulation.stages.iter().flat_map(|stage| &stage.intervals);
    assert_eq!(
        svg.matches(r#"<g class="bar">"#).count(),
        operations.clone().count()
    );
    for interval in operations {
        assert!(svg.contains(&format!("<title>{}: ", interval.operation)));
    }
    for tag in ["svg", "g", "text", "title", "style"] {
        let opened =
            svg.matches(&format!("<{tag} ")).count() + svg.matches(&format!("<{tag}>")).count();
        assert_eq!(opened, svg.matches(&format!("</{tag}>")).count(), "{tag}");
    }
    if let Ok(path) = std::env::var("LORALOOM_GANTT") {
        std::fs::write(path, svg).unwrap();
    }
}
