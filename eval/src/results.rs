//! The results of an evaluation: scores, groups and paired comparisons, as JSON, CSV, Markdown, an HTML page
//! and in the shape of lm-evaluation-harness.
//!
//! Nothing here depends on the time or the machine: an evaluation that was broken off and continued writes
//! the same files as one that was not.

mod comparison;
mod definition;
mod export;
mod html;
mod lm_eval;
pub mod requirement;
mod samples;

pub use comparison::{Comparison, compare};
pub use definition::{FORMAT, ModelResults, Results, TaskInfo};
pub use export::{contamination_table, interval_or_empty};
pub use html::{Notes, html};
pub(crate) use html::{main_figures, scores_and_differences};
pub use samples::sample_rows;

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::aggregate::Aggregated;
    use crate::evaluation::Score;

    fn score(value: f64) -> Score {
        Score {
            task: "bbq_ambig".to_owned(),
            metric: "accuracy_disamb".to_owned(),
            filter: "none".to_owned(),
            aggregated: Aggregated { value, standard_error: None, interval: None },
            higher_is_better: true,
            n: 2,
            unparsed: 0,
            failed: 0,
            cut: 0,
        }
    }

    fn results(scores: Vec<Score>) -> Results {
        let (name, digest, groups) = ("sft".to_owned(), "0123".to_owned(), Vec::new());
        Results {
            format: FORMAT,
            program: "p".to_owned(),
            settings: json!({}),
            tasks: Vec::new(),
            models: vec![ModelResults { name, digest, scores, groups }],
            comparisons: Vec::new(),
            contamination: Vec::new(),
        }
    }

    #[test]
    fn a_score_without_a_number_is_read_back_and_shown_as_a_dash() {
        let results = results(vec![score(f64::NAN), score(0.25), score(f64::INFINITY)]);
        let text = serde_json::to_string(&results).unwrap();
        assert!(text.contains(r#""value":null"#), "{text}");
        let read: Results = serde_json::from_str(&text).unwrap();
        let values: Vec<f64> = read.models[0].scores.iter().map(|score| score.aggregated.value).collect();
        assert!(values[0].is_nan() && values[1] == 0.25 && values[2].is_nan(), "{values:?}");
        assert_eq!(serde_json::to_string(&read).unwrap(), text);

        let markdown = results.markdown();
        assert!(markdown.contains("| ↑ | – | ± | N/A |") && !markdown.contains("NaN"), "{markdown}");
        assert!(results.csv().contains(",true,,,,,2,0,0\n"), "{}", results.csv());
        // A value that is missing altogether is an error.
        assert!(serde_json::from_str::<Results>(&text.replace(r#""value":null,"#, "")).is_err());
    }

    #[test]
    fn names_keep_to_their_cell_in_csv_and_markdown() {
        // The metric of BBQ holds the category of a row, and a task file can name a task anything.
        let hostile = "=1,\"a\"|b\n[x](http://y) www.z.com";
        let mut results = results(vec![Score {
            task: hostile.to_owned(),
            metric: hostile.to_owned(),
            filter: hostile.to_owned(),
            ..score(0.5)
        }]);
        results.models[0].name = hostile.to_owned();
        let csv = results.csv();
        let cell = "\"'=1,\"\"a\"\"|b\n[x](http://y) www.z.com\"";
        assert_eq!(csv.matches(cell).count(), 4, "{csv}");
        assert_eq!(csv.replace(cell, "").lines().last(), Some(",,,,,,true,0.5,,,,2,0,0"), "{csv}");

        let markdown = results.markdown();
        let row = markdown.lines().find(|line| line.contains("0.5000")).unwrap();
        // 13 cells have 14 lines between them.
        assert_eq!(row.replace("\\|", "").matches('|').count(), 14, "{row}");
        for part in ["[x](", "http:", "www.z"] {
            assert!(!markdown.contains(part), "{markdown}");
        }
    }
}
