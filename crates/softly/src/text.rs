//! Numbers as text that people read.

/// A table of text: columns as wide as their widest cell, two spaces apart; the first `left` columns are flush left.
pub fn text_table(rows: &[Vec<String>], left: usize) -> String {
    let columns = rows.iter().map(Vec::len).max().unwrap_or(0);
    let width = |c: usize| rows.iter().filter_map(|r| r.get(c)).map(|t| t.chars().count()).max().unwrap_or(0);
    let widths: Vec<usize> = (0..columns).map(width).collect();
    let line = |row: &Vec<String>| {
        let cell = |(c, (text, width)): (usize, (&String, &usize))| {
            if c < left { format!("{text:width$}") } else { format!("{text:>width$}") }
        };
        row.iter().zip(&widths).enumerate().map(cell).collect::<Vec<_>>().join("  ").trim_end().to_string()
    };
    rows.iter().map(line).collect::<Vec<_>>().join("\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_are_as_wide_as_their_widest_cell() {
        let rows = [vec!["σ".into(), "x".into()], vec!["name".into(), "12.5".into()]];
        assert_eq!(text_table(&rows, 1), "σ        x\nname  12.5");
    }
}
