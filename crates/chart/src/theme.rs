use std::fmt::Write;

/// Colours on one kind of page.
struct Theme {
    page: &'static str,
    ink: &'static str,
    muted: &'static str,
    line: &'static str,
    fill: &'static str,
    good: &'static str,
    bad: &'static str,
    series: [&'static str; COLOURS],
}

/// Series with different colours. Further ones repeat the colours with other [`DASHES`].
pub const COLOURS: usize = 8;

/// Dashes of lines: solid for the first series, and so on for as many as there are colours.
pub const DASHES: [&str; 4] = ["none", "7 3", "2 3", "9 3 2 3"];

/// Every series and text have a contrast of at least 4.5 to the page: text in the page's colour stands on bars.
const LIGHT: Theme = Theme {
    page: "#fcfcfa",
    ink: "#1f2328",
    muted: "#5d6570",
    line: "#e2e3df",
    fill: "#f2f3ef",
    good: "#2b7a4b",
    bad: "#b3372f",
    series: [
        "#3566b8", "#b25c24", "#2b8074", "#b4446a", "#7257b0", "#6d7a2a", "#1f7a9f", "#8a6048",
    ],
};

const DARK: Theme = Theme {
    page: "#15171a",
    ink: "#e6e6e2",
    muted: "#9aa1aa",
    line: "#2c3036",
    fill: "#1d2024",
    good: "#7cc79a",
    bad: "#ec8b80",
    series: [
        "#7fa8ee", "#e3a069", "#62c0b2", "#e2849f", "#ae98e6", "#b1be63", "#82c5e4", "#c99f84",
    ],
};

const FONT: &str = "system-ui,-apple-system,\"Segoe UI\",Roboto,\"Helvetica Neue\",\"Noto Sans\",\
    \"Liberation Sans\",Arial,sans-serif";

/// Printed pages are light.
const WHERE_DARK: &str = "@media screen and (prefers-color-scheme:dark)";

impl Theme {
    fn named(&self) -> [(&'static str, &'static str); 7] {
        [
            ("page", self.page),
            ("ink", self.ink),
            ("muted", self.muted),
            ("line", self.line),
            ("fill", self.fill),
            ("good", self.good),
            ("bad", self.bad),
        ]
    }

    fn variables(&self) -> String {
        let mut css = String::new();
        for (name, colour) in self.named() {
            let _ = write!(css, "--{name}:{colour};");
        }
        for (index, colour) in self.series.iter().enumerate() {
            let _ = write!(css, "--series-{index}:{colour};");
        }
        css
    }

    /// `ink` and its like fill; `line` strokes, and `edge` in the page's colour; `s0` strokes a line, `f0` fills an area.
    fn classes(&self) -> String {
        let mut css = format!(".edge{{stroke:{}}}", self.page);
        for (name, colour) in self.named() {
            let property = if name == "line" { "stroke" } else { "fill" };
            let _ = write!(css, ".{name}{{{property}:{colour}}}");
        }
        for (index, colour) in self.series.iter().enumerate() {
            let _ = write!(
                css,
                ".s{index}{{stroke:{colour}}}.f{index}{{fill:{colour}}}"
            );
        }
        css
    }
}

/// The variables `--page`, `--ink`, `--muted`, `--line`, `--fill`, `--good`, `--bad`, `--series-0` and so on,
/// `--dash-0` and so on, and `--font`, for light and dark screens.
pub fn css_variables() -> String {
    let mut constant = format!("--font:{FONT};");
    for (index, dash) in DASHES.iter().enumerate() {
        let _ = write!(constant, "--dash-{index}:{dash};");
    }
    format!(
        ":root{{color-scheme:light dark;{constant}{}}}\n{WHERE_DARK}{{:root{{{}}}}}\n",
        LIGHT.variables(),
        DARK.variables()
    )
}

/// A `<style>` element: text in the font of the report, and a class for every colour: `page`, `ink`, `muted`, `line`
/// and so on, `s0` for the stroke and `f0` for the fill of the first series, `d1` for its dashes when the colours
/// repeat.
pub fn svg_style() -> String {
    let mut css = format!("text{{font:12px {FONT};font-variant-numeric:tabular-nums}}");
    css.push_str("path{fill:none;stroke-width:1}.title{font-size:13px;font-weight:600}");
    css.push_str(&LIGHT.classes());
    for (index, dash) in DASHES.iter().enumerate().skip(1) {
        let _ = write!(css, ".d{index}{{stroke-dasharray:{dash}}}");
    }
    let dark = DARK.classes();
    format!("<style>{css}{WHERE_DARK}{{{dark}}}</style>")
}

#[cfg(test)]
mod tests {
    use super::{DARK, LIGHT, Theme};

    /// Relative luminance, as WCAG defines it.
    fn luminance(colour: &str) -> f64 {
        let part = |at: usize| {
            let part = f64::from(u8::from_str_radix(&colour[at..at + 2], 16).unwrap()) / 255.0;
            if part <= 0.03928 {
                part / 12.92
            } else {
                ((part + 0.055) / 1.055).powf(2.4)
            }
        };
        0.2126 * part(1) + 0.7152 * part(3) + 0.0722 * part(5)
    }

    fn contrast(one: &str, other: &str) -> f64 {
        let (one, other) = (luminance(one) + 0.05, luminance(other) + 0.05);
        (one / other).max(other / one)
    }

    #[test]
    fn what_is_drawn_stands_out_from_the_page() {
        let check = |theme: &Theme| {
            for colour in theme.series {
                let seen = contrast(colour, theme.page);
                assert!(seen >= 4.5, "{colour}: {seen}");
            }
            for text in [theme.ink, theme.muted, theme.good, theme.bad] {
                for ground in [theme.page, theme.fill] {
                    let seen = contrast(text, ground);
                    assert!(seen >= 4.5, "{text} on {ground}: {seen}");
                }
            }
        };
        check(&LIGHT);
        check(&DARK);
    }
}
