//! The report as one page.

use super::Report;

/// The page.
pub fn page(report: &Report) -> String {
    report.title.clone()
}
