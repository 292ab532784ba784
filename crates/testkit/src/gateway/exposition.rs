//! The text exposition format of metrics, as far as sums need it.

/// The sum of the series of this name that have at least these labels.
pub(super) fn sum(text: &str, name: &str, labels: &[(&str, &str)]) -> f64 {
    text.lines()
        .filter(|line| !line.starts_with('#'))
        .filter_map(series)
        .filter(|series| series.name == name && labels.iter().all(|label| series.has(label)))
        .map(|series| series.value)
        .sum()
}

/// A line of the text.
struct Series<'a> {
    name: &'a str,
    labels: Vec<(String, String)>,
    value: f64,
}

impl Series<'_> {
    fn has(&self, (key, value): &(&str, &str)) -> bool {
        self.labels.iter().any(|(k, v)| k == key && v == value)
    }
}

fn series(line: &str) -> Option<Series<'_>> {
    let end = line.find(['{', ' '])?;
    let (name, mut rest) = line.split_at(end);
    let mut labels = Vec::new();
    if let Some(inner) = rest.strip_prefix('{') {
        rest = inner;
        while !rest.starts_with('}') {
            let (key, after) = rest.split_once("=\"")?;
            let (value, after) = quoted(after)?;
            labels.push((key.trim_start_matches([',', ' ']).to_owned(), value));
            rest = after;
        }
        rest = &rest[1..];
    }
    // A timestamp or an exemplar may follow the value.
    let value = rest.split_whitespace().next()?.parse().ok()?;
    Some(Series { name, labels, value })
}

/// A label value up to its closing quote, unescaped, and what follows.
fn quoted(text: &str) -> Option<(String, &str)> {
    let mut value = String::new();
    let mut chars = text.char_indices();
    while let Some((at, char)) = chars.next() {
        match char {
            '"' => return Some((value, &text[at + 1..])),
            '\\' => match chars.next()?.1 {
                'n' => value.push('\n'),
                escaped => value.push(escaped),
            },
            plain => value.push(plain),
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = "# TYPE hits counter\n\
        hits_total{upstream=\"a\",status=\"400\"} 3\n\
        hits_total{upstream=\"b, \\\"}\",status=\"400\"} 4 1700000000\n\
        hits_total_more 9\n\
        entries 7\n\
        # EOF\n";

    #[test]
    fn sums_by_name_and_labels() {
        for (name, labels, expected) in [
            ("hits_total", &[][..], 7.0),
            ("hits_total", &[("upstream", "a")][..], 3.0),
            ("hits_total", &[("upstream", "b, \"}"), ("status", "400")][..], 4.0),
            ("hits_total", &[("status", "413")][..], 0.0),
            ("entries", &[][..], 7.0),
            ("absent", &[][..], 0.0),
        ] {
            assert!((sum(TEXT, name, labels) - expected).abs() < 1e-9, "{name} {labels:?}");
        }
    }
}
