//! The operator's own profiles.

use std::path::PathBuf;

use super::Context;
use crate::profiles::Catalog;
use crate::raw::read::At;

/// Reads the files. Their problems are told at the line that names the file, with file, line and rule.
pub(super) fn profiles(raw: Option<&At<Vec<At<PathBuf>>>>, cx: &mut Context<'_>) -> Catalog {
    let listed: Vec<_> = raw.iter().flat_map(|list| &list.value).collect();
    let files: Vec<_> = listed.iter().map(|file| cx.path(&file.value)).collect();
    match Catalog::read(&files) {
        Ok(catalog) => catalog,
        Err(all) => {
            for problems in all {
                let at = files.iter().position(|file| file.display().to_string() == problems.origin);
                let place = at.and_then(|at| listed.get(at)).map(|file| &file.place);
                let Some(place) = place.or(raw.map(|list| &list.place)) else { continue };
                for problem in &problems.all {
                    let (line, column) = (problem.line.unwrap_or(1), problem.column.unwrap_or(1));
                    let path = if problem.path.is_empty() { "the file" } else { &problem.path };
                    let cause = format!("{}:{line}:{column}: {path}: {}", problems.origin, problem.cause);
                    cx.found.error(place, cause, problem.cure.clone());
                }
            }
            Catalog::default()
        }
    }
}
