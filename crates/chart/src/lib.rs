//! Shared by all charts: colours for light and dark pages, fonts, and the marks of axes.
//!
//! The report of a run takes them as [CSS variables](css_variables); an SVG file, which viewers without
//! variables open too, as [classes](svg_style).

mod axis;
mod text;
mod theme;

pub use axis::{Axis, round_up};
pub use text::{escape, text_width};
pub use theme::{COLOURS, DASHES, css_variables, svg_style};
