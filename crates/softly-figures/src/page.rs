//! Pages that show results: one HTML file without scripts or other files, for light and dark screens and for paper.

use std::fmt::{self, Display};
use std::time::Duration;

use maud::{DOCTYPE, Markup, PreEscaped, html};

use crate::svg::Svg;

/// A page.
#[derive(Clone, Debug, Default)]
pub struct Page {
    /// Heading of the page and name of the window.
    pub title: String,
    /// The result in one paragraph.
    pub lead: String,
    /// The rest.
    pub sections: Vec<Section>,
}

/// A part of a page with its own heading.
#[derive(Clone, Debug, Default)]
pub struct Section {
    /// The heading.
    pub heading: String,
    /// Paragraphs under the heading.
    pub text: Vec<String>,
    /// What follows them.
    pub blocks: Vec<Block>,
}

/// A part of a section.
#[derive(Clone, Debug)]
pub enum Block {
    /// Numbers in rows and columns.
    Table(Table),
    /// One figure.
    Figure {
        /// The figure.
        svg: Svg,
        /// What it shows.
        caption: String,
    },
    /// Charts side by side as far as there is room, each with its caption.
    Figures(Vec<(Svg, String)>),
    /// Small figures in rows and columns.
    PanelGrid(PanelGrid),
    /// Text as it stands, such as command lines.
    Preformatted(String),
    /// A paragraph.
    Text(String),
    /// The sentence a reader should remember.
    Verdict(String),
}

/// Numbers in rows and columns.
#[derive(Clone, Debug, Default)]
pub struct Table {
    /// What the table shows.
    pub caption: String,
    /// Names of the columns.
    pub header: Vec<String>,
    /// The rows; a first cell of text names its row.
    pub rows: Vec<Vec<Cell>>,
    /// Where the numbers come from.
    pub origin: Option<Origin>,
}

/// What stands in a table.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Cell {
    text: String,
    number: bool,
    strong: bool,
}

impl Cell {
    /// Words, aligned to the left.
    pub fn text(text: impl Into<String>) -> Self {
        Cell { text: text.into(), ..Cell::default() }
    }

    /// A number already in digits, such as `0.21 ± 0.03`, aligned to the right.
    pub fn number(digits: impl Into<String>) -> Self {
        Cell { text: digits.into(), number: true, ..Cell::default() }
    }

    /// The same, emphasised: the best of its column.
    #[must_use]
    pub fn strong(self) -> Self {
        Cell { strong: true, ..self }
    }
}

/// How to make the same numbers again.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Origin {
    /// The command line.
    pub command: String,
    /// Seeds of the repetitions.
    pub seeds: Vec<u64>,
    /// Commit of the program.
    pub commit: String,
    /// How long its parts took, added up; parts that ran side by side count each.
    pub time: Duration,
}

impl Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let seeds: Vec<String> = self.seeds.iter().map(u64::to_string).collect();
        let name = if seeds.len() == 1 { "seed" } else { "seeds" };
        let time = readable(self.time);
        write!(f, "{name} {}; commit {}; {time} over all runs", seeds.join(", "), self.commit)
    }
}

/// The duration of `seconds` from a file, which may hold any number; zero for numbers that are no duration.
pub fn duration(seconds: f64) -> Duration {
    Duration::try_from_secs_f64(seconds).unwrap_or_default()
}

/// A duration with the two units that matter: `4.2 s`, `3 min 12 s`, `5 h 07 min`.
pub fn readable(time: Duration) -> String {
    match time.as_secs() {
        0..60 => format!("{:.1} s", time.as_secs_f64()),
        seconds @ 60..3600 => format!("{} min {:02} s", seconds / 60, seconds % 60),
        seconds => format!("{} h {:02} min", seconds / 3600, seconds % 3600 / 60),
    }
}

/// Small figures in rows and columns, such as methods × data sets.
#[derive(Clone, Debug, Default)]
pub struct PanelGrid {
    /// What the grid shows.
    pub caption: String,
    /// Names of the columns.
    pub columns: Vec<String>,
    /// Each row's name and its panels.
    pub rows: Vec<(String, Vec<Svg>)>,
}

/// Screens may be dark; paper never is.
const STYLE: &str = "
:root{color-scheme:light;--text:#1a1a1a;--page:#fff;--soft:#666;--line:#ccc;--tint:#f4f5f7;--accent:#0072b2}
@media screen and (prefers-color-scheme:dark){
:root{color-scheme:dark;--text:#e6e6e6;--page:#16181b;--soft:#a0a4aa;--line:#3d4147;--tint:#22252a;--accent:#56b4e9}}
body{margin:0 auto;max-width:64rem;padding:1.5rem;background:var(--page);color:var(--text);
font:1rem/1.55 system-ui,sans-serif}
h1{font-size:1.9rem;line-height:1.2;margin:1rem 0 .75rem}
h2{font-size:1.35rem;line-height:1.3;margin:2.75rem 0 .5rem}
p,.verdict{max-width:46rem}
.lead{font-size:1.15rem}
a{color:var(--accent)}
nav{border:1px solid var(--line);border-radius:.4rem;padding:.75rem 1.25rem;width:fit-content}
nav ol{margin:0;padding-left:1.25rem}
figure{margin:1.5rem 0}
figcaption,caption{color:var(--soft);font-size:.9rem;text-align:left;max-width:46rem}
figcaption{margin-top:.5rem}
caption{padding-bottom:.5rem}
svg{display:block;max-width:100%;height:auto}
.figures{display:grid;grid-template-columns:repeat(auto-fit,minmax(min(26rem,100%),1fr));gap:0 1.5rem}
.figures figure{margin:.75rem 0}
.wide{overflow-x:auto}
table{border-collapse:collapse;font-size:.95rem}
th,td{padding:.3rem .9rem .3rem 0;text-align:left;vertical-align:baseline}
th{font-weight:600}
tbody th{font-weight:400;min-width:11rem}
thead tr{border-top:2px solid;border-bottom:1px solid}
tbody{border-bottom:2px solid}
.number{text-align:right;font-variant-numeric:tabular-nums;white-space:nowrap;padding:.3rem .9rem}
.origin{color:var(--soft);font-size:.8rem;margin:.4rem 0 0;max-width:none}
pre,code{font-family:ui-monospace,monospace}
pre{background:var(--tint);border-radius:.4rem;padding:.8rem 1rem;overflow-x:auto;font-size:.875rem}
.verdict{border-left:.3rem solid var(--accent);background:var(--tint);padding:.7rem 1rem;font-weight:600}
.panels{display:grid;gap:.25rem .5rem;align-items:center;width:fit-content;max-width:100%}
.panels svg{width:100%}
.panels .column{font-weight:600;text-align:center;font-size:.9rem;align-self:end}
.panels .row{grid-column:1;font-weight:600;font-size:.9rem;text-align:right;padding-right:.25rem}
@media print{body{max-width:none;padding:0;font-size:10pt}
figure,table,.verdict,pre{break-inside:avoid}h2{break-after:avoid}
.wide,pre{overflow:visible}pre{white-space:pre-wrap}
table,.verdict,pre{print-color-adjust:exact}}
";

/// The page as a complete HTML document. All text is escaped.
pub fn render(page: &Page) -> String {
    html! {
        (DOCTYPE)
        html lang="en" {
            head {
                meta charset="utf-8";
                meta name="viewport" content="width=device-width, initial-scale=1";
                title { (page.title) }
                style { (PreEscaped(STYLE)) }
            }
            body {
                header {
                    h1 { (page.title) }
                    @if !page.lead.is_empty() { p.lead { (page.lead) } }
                }
                @if page.sections.len() > 3 {
                    nav aria-label="Contents" {
                        ol {
                            @for (k, section) in page.sections.iter().enumerate() {
                                li { a href=(format!("#section-{}", k + 1)) { (section.heading) } }
                            }
                        }
                    }
                }
                main {
                    @for (k, section) in page.sections.iter().enumerate() {
                        section id=(format!("section-{}", k + 1)) {
                            h2 { (section.heading) }
                            @for paragraph in &section.text { p { (paragraph) } }
                            @for block in &section.blocks { (block_markup(block)) }
                        }
                    }
                }
            }
        }
    }
    .into_string()
}

fn block_markup(block: &Block) -> Markup {
    match block {
        Block::Table(table) => table_markup(table),
        Block::Figure { svg, caption } => html! { figure { (svg) (caption_markup(caption)) } },
        Block::Figures(figures) => html! {
            div.figures {
                @for (svg, caption) in figures { figure { (svg) (caption_markup(caption)) } }
            }
        },
        Block::PanelGrid(grid) => grid_markup(grid),
        Block::Preformatted(text) => html! { pre { code { (text) } } },
        Block::Text(text) => html! { p { (text) } },
        Block::Verdict(sentence) => html! { p.verdict { (sentence) } },
    }
}

fn caption_markup(caption: &str) -> Markup {
    html! { @if !caption.is_empty() { figcaption { (caption) } } }
}

fn table_markup(table: &Table) -> Markup {
    // A column's name is aligned like its first cell.
    let numeric = |column: usize| table.rows.first().and_then(|row| row.get(column)).is_some_and(|cell| cell.number);
    html! {
        figure {
            div.wide {
                table {
                    @if !table.caption.is_empty() { caption { (table.caption) } }
                    thead {
                        tr {
                            @for (k, name) in table.header.iter().enumerate() {
                                th class=[numeric(k).then_some("number")] scope="col" { (name) }
                            }
                        }
                    }
                    tbody {
                        @for row in &table.rows {
                            tr {
                                @for (k, cell) in row.iter().enumerate() {
                                    @if k == 0 && !cell.number { th scope="row" { (cell_markup(cell)) } }
                                    @else { td class=[cell.number.then_some("number")] { (cell_markup(cell)) } }
                                }
                            }
                        }
                    }
                }
            }
            @if let Some(origin) = &table.origin {
                p.origin { code { (origin.command) } "; " (origin.to_string()) }
            }
        }
    }
}

fn cell_markup(cell: &Cell) -> Markup {
    html! { @if cell.strong { strong { (cell.text) } } @else { (cell.text) } }
}

fn grid_markup(grid: &PanelGrid) -> Markup {
    let width = grid.rows.iter().map(|(_, panels)| panels.len()).max().unwrap_or(0).max(grid.columns.len());
    let column = |k: usize| grid.columns.get(k).map_or("", String::as_str);
    let tracks = format!("grid-template-columns:auto repeat({},minmax(6rem,14rem))", width.max(1));
    html! {
        figure {
            div.wide {
                div.panels style=(tracks) {
                    div {}
                    @for k in 0..width { div.column { (column(k)) } }
                    @for (name, panels) in &grid.rows {
                        div.row { (name) }
                        @for (k, panel) in panels.iter().enumerate() {
                            div role="group" aria-label=(format!("{name}, {}", column(k))) style=(format!("grid-column:{}", k + 2)) {
                                (panel)
                            }
                        }
                    }
                }
            }
            (caption_markup(&grid.caption))
        }
    }
}

#[cfg(test)]
mod tests {
    use roxmltree::{Document, Node};

    use super::*;
    use crate::scatter::Scatter;

    fn panel(title: &str) -> Svg {
        Scatter { title, points: &[[0.0, 0.0]], curve: &[], range: [-1.0, 1.0], colour: 0 }.svg()
    }

    fn page(sections: usize) -> Page {
        let nasty = "<script>alert(\"1\")</script> & more".to_owned();
        let table = Table {
            caption: nasty.clone(),
            header: vec!["method".to_owned(), "error".to_owned()],
            rows: vec![vec![Cell::text(nasty.clone()), Cell::number("0.1").strong()]],
            origin: Some(Origin {
                command: nasty.clone(),
                seeds: vec![1, 2],
                commit: "abc".to_owned(),
                time: Duration::from_secs(192),
            }),
        };
        let grid = PanelGrid {
            caption: nasty.clone(),
            columns: vec!["left".to_owned(), nasty.clone()],
            rows: vec![(nasty.clone(), vec![panel(&nasty)]), ("b".to_owned(), vec![panel("x"), panel("y")])],
        };
        let blocks = vec![
            Block::Table(table),
            Block::PanelGrid(grid),
            Block::Figure { svg: panel("z"), caption: nasty.clone() },
            Block::Figures(vec![(panel("u"), nasty.clone()), (panel("v"), String::new())]),
            Block::Preformatted(nasty.clone()),
            Block::Text(nasty.clone()),
            Block::Verdict(nasty.clone()),
        ];
        let section = Section { heading: nasty.clone(), text: vec![nasty.clone()], blocks };
        Page { title: nasty.clone(), lead: nasty, sections: vec![section; sections] }
    }

    /// Looks at the body, which has no void elements and is therefore XML as well.
    fn body<T>(html: &str, look: impl Fn(&Document) -> T) -> T {
        let body = &html[html.find("<body>").unwrap()..html.find("</html>").unwrap()];
        look(&Document::parse(body).unwrap())
    }

    fn all<'a>(document: &'a Document, tag: &str) -> Vec<Node<'a, 'a>> {
        document.descendants().filter(|n| n.tag_name().name() == tag).collect()
    }

    #[test]
    fn a_page_is_well_formed_and_escapes_all_text() {
        let html = render(&page(1));
        assert!(html.starts_with("<!DOCTYPE html><html lang=\"en\"><head><meta charset=\"utf-8\">"), "{html}");
        assert!(!html.contains("<script"));
        body(&html, |document| {
            assert_eq!(all(document, "h2")[0].text(), Some("<script>alert(\"1\")</script> & more"));
            assert!(all(document, "svg").iter().filter(|n| n.attribute("role") == Some("img")).count() == 6);
            assert_eq!(all(document, "figcaption").len(), 3);
        });
    }

    #[test]
    fn nothing_is_fetched_and_nothing_runs() {
        let html = render(&page(5));
        let fetched = |word: &str| html.contains(word);
        assert!(!["<link", "<iframe", "@import", "url(", " src=", "onload"].into_iter().any(fetched));
        // The only address is the name of the SVG language.
        assert_eq!(html.matches("http").count(), html.matches("http://www.w3.org/2000/svg").count());
    }

    #[test]
    fn contents_are_listed_from_four_sections_on_and_lead_to_them() {
        assert!(!render(&page(3)).contains("<nav"));
        body(&render(&page(4)), |document| {
            let links: Vec<_> =
                all(document, "a").iter().map(|n| n.attribute("href").unwrap()[1..].to_owned()).collect();
            let ids: Vec<_> = all(document, "section").iter().map(|n| n.attribute("id").unwrap().to_owned()).collect();
            assert_eq!(links, ids);
            assert_eq!(ids.len(), 4);
        });
    }

    #[test]
    fn numbers_align_right_under_their_name_and_rows_have_headers() {
        body(&render(&page(1)), |document| {
            let cell = all(document, "td")[0];
            assert_eq!(cell.attribute("class"), Some("number"));
            assert!(cell.first_child().unwrap().has_tag_name("strong"));
            let headers: Vec<_> =
                all(document, "th").iter().map(|n| (n.attribute("scope"), n.attribute("class"))).collect();
            assert_eq!(headers, [(Some("col"), None), (Some("col"), Some("number")), (Some("row"), None)]);
        });
    }

    #[test]
    fn a_table_says_where_its_numbers_come_from() {
        assert!(render(&page(1)).contains("</code>; seeds 1, 2; commit abc; 3 min 12 s over all runs"));
        let times = [4.23, 59.99, 60.0, 18_421.0].map(|s| readable(Duration::from_secs_f64(s)));
        assert_eq!(times, ["4.2 s", "60.0 s", "1 min 00 s", "5 h 07 min"]);
    }

    #[test]
    fn panels_are_named_after_row_and_column() {
        body(&render(&page(1)), |document| {
            let names: Vec<_> = document.descendants().filter(|n| n.attribute("role") == Some("group")).collect();
            assert_eq!(names[1].attribute("aria-label"), Some("b, left"));
            assert_eq!(names[2].attribute("style"), Some("grid-column:3"));
        });
    }

    #[test]
    fn an_empty_page_is_a_page() {
        body(&render(&Page::default()), |document| assert_eq!(all(document, "h1").len(), 1));
    }
}
