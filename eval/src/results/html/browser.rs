//! The controls of the browser of samples. The script shows them, and fills in the rest.

use std::fmt::Write as _;

use super::samples::Embedded;
use super::section::Section;
use crate::evaluation::{Evaluation, ModelRun};
use crate::page::number::count;
use crate::page::{escape_html, isolated, note};

/// The controls, and the places for samples.
pub(super) fn section(embedded: &Embedded, evaluation: &Evaluation, runs: &[ModelRun]) -> Section {
    let mut body = String::new();
    let left_out: usize = embedded.counts.iter().map(|(shown, all)| all - shown).sum();
    let shown: usize = embedded.counts.iter().map(|(shown, _)| shown).sum();
    if left_out > 0 {
        body.push_str(&note(&format!(
            "{} are in this page, and {left_out} are not: those on which models differ come first, then those that \
             are not right. The protocols above say how many there are of each task. All samples are in the folder \
             <code>samples</code> beside this page.",
            count(shown, "sample", "samples"),
        )));
    }

    let pages = |label: &str| {
        format!(
            "<nav class=\"pages\" aria-label=\"pages of samples, {label}\" hidden>\
             <button type=\"button\" data-step=\"-1\">← earlier</button> <span class=\"page\"></span> \
             <button type=\"button\" data-step=\"1\">later →</button></nav>\n"
        )
    };
    let _ = write!(
        body,
        "<p class=\"no-script\">The browser of samples needs scripts, and they are off. All samples are in the \
         folder <code>samples</code> beside this page.</p>\n{}<p class=\"shown\" role=\"status\"></p>\n\
         {}<div class=\"list\"></div>\n{}",
        controls(embedded, evaluation, runs),
        pages("above"),
        pages("below")
    );
    Section { id: "samples", heading: "Samples", body }
}

fn controls(embedded: &Embedded, evaluation: &Evaluation, runs: &[ModelRun]) -> String {
    let mut tasks = String::new();
    for (index, (prepared, filters)) in evaluation.tasks.iter().zip(&embedded.filters).enumerate() {
        let task = escape_html(&prepared.task.task);
        for (filter, name) in filters.iter().enumerate() {
            let name = if filters.len() > 1 { format!(", {}", escape_html(name)) } else { String::new() };
            let _ = write!(tasks, "<option value=\"{index}:{filter}\">{task}{name}</option>");
        }
    }
    let model = |(index, run): (usize, &ModelRun)| {
        format!("<option value=\"{index}\" dir=\"auto\">{}</option>", escape_html(&run.name))
    };
    let models: String = runs.iter().enumerate().map(model).collect();

    let mut kinds = ["all", "right", "wrong", "unparsed", "failed"].map(|kind| (kind, kind)).to_vec();
    let mut remark = String::new();
    if let [first, _, ..] = runs {
        kinds.extend([("lost", "right → wrong"), ("gained", "wrong → right")]);
        remark = note(&format!(
            "Unparsed replies are among the wrong ones. → is from {} to the model above. All tasks: each by its first \
             filter.",
            isolated(&first.name)
        ));
    }
    let button = |(kind, label): (&str, &str)| {
        let checked = if kind == "all" { " checked" } else { "" };
        format!(
            "<label><input type=\"radio\" name=\"kind\" value=\"{kind}\"{checked}> {label} \
             <span class=\"count\" data-kind=\"{kind}\"></span></label>\n"
        )
    };
    let buttons: String = kinds.into_iter().map(button).collect();
    format!(
        "<form class=\"filters\" hidden>\n\
         <label>task <select name=\"task\"><option value=\"\">all tasks</option>{tasks}</select></label>\n\
         <label>model <select name=\"model\"><option value=\"\">any model</option>{models}</select></label>\n\
         <label class=\"search\">text <input type=\"search\" name=\"text\" dir=\"auto\" autocomplete=\"off\" \
         placeholder=\"in prompts, choices and replies\"></label>\n\
         <fieldset>\n<legend>show</legend>\n{buttons}</fieldset>\n{remark}</form>\n"
    )
}
