//! The name that was probably meant.

/// The candidate nearest to `word` by edit distance, upper and lower case alike, if any is near enough to be a likely
/// typo: some of it must be the same.
pub fn nearest<'a>(word: &str, candidates: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    candidates
        .into_iter()
        .map(|c| (edit_distance(&word.to_lowercase(), &c.to_lowercase()), c))
        .filter(|&(d, c)| d <= 1 + word.len().max(c.len()) / 3 && d < c.chars().count())
        .min_by_key(|&(d, _)| d)
        .map(|(_, c)| c)
}

/// Fewest insertions, deletions and replacements that turn `a` into `b`.
fn edit_distance(a: &str, b: &str) -> usize {
    let b: Vec<char> = b.chars().collect();
    let mut row: Vec<usize> = (0..=b.len()).collect();
    for (i, x) in a.chars().enumerate() {
        let mut diagonal = row[0];
        row[0] = i + 1;
        for (j, y) in b.iter().enumerate() {
            let substituted = diagonal + usize::from(x != *y);
            diagonal = row[j + 1];
            row[j + 1] = substituted.min(diagonal + 1).min(row[j] + 1);
        }
    }
    row[b.len()]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_nearest_name_is_a_likely_typo_or_nothing() {
        assert_eq!(nearest("itertions", ["iterations", "batch"]), Some("iterations"));
        assert_eq!(nearest("zebra", ["iterations", "batch"]), None);
        assert_eq!(nearest("k", ["p", "K"]), Some("K"));
        assert_eq!(nearest("z", ["p", "K"]), None);
    }
}
