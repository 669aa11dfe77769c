//! The page: one file of HTML with everything in it, made of the data below and drawn by `report.js`.

mod curves;
mod data;
mod sweeps;
mod text;

pub(crate) use data::Data;

use crate::RunHistory;

const HTML: &str = include_str!("page.html");
const STYLE: &str = include_str!("report.css");
/// In the order in which they need each other.
const SCRIPTS: [&str; 4] = [
    include_str!("format.js"),
    include_str!("chart.js"),
    include_str!("timeline.js"),
    include_str!("report.js"),
];

impl RunHistory {
    /// The page as HTML, which asks for nothing from elsewhere. It stays below 2 MB, whatever the run's
    /// length: curves have fewer points than steps where there are many, and the page says so.
    ///
    /// # Errors
    /// None that a run can cause: of the serialisation to JSON.
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
            // The marks are looked for in the template only: names in the data may contain them.
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

    /// What the page is drawn from, as JSON that can stand in a `<script>`: no `<` is in it.
    ///
    /// # Errors
    /// As [`page`](Self::page).
    pub fn json(&self) -> serde_json::Result<String> {
        let json = serde_json::to_string(&Data::of(self))?;
        // `</script>` would end the element, and `<!--` change how its end is found.
        Ok(json.replace('<', "\\u003c"))
    }
}
