//! The page: one self-contained HTML file with the data below, drawn by `report.js`.

mod curves;
mod data;
mod sweeps;
mod text;

pub(crate) use data::Data;

use crate::RunHistory;

const HTML: &str = include_str!("page.html");
const STYLE: &str = include_str!("report.css");
/// In the order of their dependencies.
const SCRIPTS: [&str; 4] = [
    include_str!("format.js"),
    include_str!("chart.js"),
    include_str!("timeline.js"),
    include_str!("report.js"),
];

impl RunHistory {
    /// The page as HTML without external resources. It stays below 2 MB for any length of run: long curves have fewer
    /// points than steps, and the page shows that.
    ///
    /// # Errors
    /// Errors of the serialisation to JSON, which no run causes.
    pub fn page(&self) -> serde_json::Result<String> {
        let colours = loraloom_chart::css_variables();
        let data = self.json()?;
        let mut page = String::with_capacity(HTML.len() + STYLE.len() + data.len() + 65_536);
        let mut rest = HTML;
        for (mark, parts) in [
            ("{{title}}", vec![loraloom_chart::escape(&self.name)]),
            ("{{style}}", vec![colours, STYLE.to_owned()]),
            ("{{data}}", vec![data]),
            ("{{script}}", SCRIPTS.map(str::to_owned).to_vec()),
        ] {
            // Marks are searched in the template only, since names in the data may contain them.
            let Some((before, after)) = rest.split_once(mark) else {
                continue;
            };
            page.push_str(before);
            page.extend(parts);
            rest = after;
        }
        page.push_str(rest);
        Ok(page)
    }

    /// The data of the page as JSON that is safe inside a `<script>`: it has no `<`.
    ///
    /// # Errors
    /// As [`page`](Self::page).
    pub fn json(&self) -> serde_json::Result<String> {
        let json = serde_json::to_string(&Data::of(self))?;
        // `</script>` would end the element, and `<!--` changes how its end is found.
        Ok(json.replace('<', "\\u003c"))
    }
}
