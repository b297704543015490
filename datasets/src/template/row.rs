//! Templates over the columns of a row, for the tasks of an evaluation.
//!
//! Protocol (lm-evaluation-harness): nothing is trimmed, a trailing newline stays, and a column that is
//! missing is an error. A template that is exactly one expression, such as `{{ choices.text }}`, also has a
//! value of another type than text. The limits are those of chat templates. This module knows no tasks.

use minijinja::machinery::{ast, parse};
use minijinja::syntax::{SyntaxConfig, SyntaxConfigBuilder};
use minijinja::value::Serde;
use minijinja::{Environment, ErrorKind, UndefinedBehavior, Value};

use super::{Program, describe, environment, limits};
use crate::error::{Error, Result};
use crate::record::Row;

/// A filter from text to text, or why there is no result.
pub type TextFilter = fn(&str) -> std::result::Result<String, String>;

/// What the harness does with white space around blocks.
fn row_syntax() -> SyntaxConfigBuilder {
    let mut syntax = SyntaxConfig::builder();
    syntax.keep_trailing_newline(true);
    syntax
}

/// A compiled template over a row.
#[derive(Debug)]
pub struct RowTemplate {
    text: Program,
    /// For a template that is one expression: the same expression, printed as JSON.
    value: Option<Program>,
    name: String,
    /// The columns that the template reads.
    columns: Vec<String>,
}

/// The columns of a row, ready for several templates.
#[derive(Clone, Debug)]
pub struct TemplateRow {
    root: Value,
    size: usize,
}

impl TemplateRow {
    /// The columns of `row`.
    pub fn new(row: &Row) -> Self {
        let root = Value::from(Serde(row));
        let size = limits::size(&root);
        Self { root, size }
    }
}

impl RowTemplate {
    /// Compiles Jinja `source` with filters in addition to Jinja's own. `name` is for error messages.
    pub fn new(
        name: impl Into<String>,
        source: &str,
        filters: &[(&'static str, TextFilter)],
    ) -> Result<Self> {
        let name = name.into();
        let wrong = |reason: String| Error::RowTemplate { name: name.clone(), reason, missing: Vec::new() };
        if source.len() > limits::SOURCE_BYTES {
            return Err(wrong(format!("it has {} bytes, more than {}", source.len(), limits::SOURCE_BYTES)));
        }
        let compile = |source: String| {
            Program::new(source, &row_syntax(), row_environment(filters))
                .map_err(|error| wrong(describe(&error)))
        };
        let text = compile(source.to_owned())?;
        let mut columns: Vec<String> = row_environment(filters).template_from_str(source).map_or_else(
            |_| Vec::new(),
            |template| template.undeclared_variables(false).into_iter().collect(),
        );
        columns.sort();
        let value = expression(source)
            .map(|inner| compile(format!("{{{{ ({inner}) | given | tojson }}}}")))
            .transpose()?;
        Ok(Self { text, value, name, columns })
    }

    /// Whether the template is one expression, so that its value may be a number or a list.
    pub fn is_expression(&self) -> bool {
        self.value.is_some()
    }

    /// The rendered text.
    pub fn text(&self, row: &TemplateRow) -> Result<String> {
        self.run(&self.text, row)
    }

    /// The value of a template that is one expression, otherwise the rendered text.
    pub fn value(&self, row: &TemplateRow) -> Result<serde_json::Value> {
        let Some(program) = &self.value else { return Ok(serde_json::Value::String(self.text(row)?)) };
        let json = self.run(program, row)?;
        serde_json::from_str(&json)
            .map_err(|error| self.failed(format!("its value cannot be written as JSON: {error}"), row))
    }

    fn run(&self, program: &Program, row: &TemplateRow) -> Result<String> {
        program.run(row.root.clone(), row.size).map_err(|error| self.failed(describe(&error), row))
    }

    fn failed(&self, reason: String, row: &TemplateRow) -> Error {
        let is_missing = |column: &&String| row.root.get_attr(column).is_ok_and(|value| value.is_undefined());
        let missing = self.columns.iter().filter(is_missing).cloned().collect();
        Error::RowTemplate { name: self.name.clone(), reason, missing }
    }
}

/// The expression that is the whole template, without its braces.
fn expression(source: &str) -> Option<&str> {
    let inner = source.strip_prefix("{{")?.strip_suffix("}}")?;
    let tree = row_syntax().build().and_then(|syntax| parse(source, "row", syntax)).ok()?;
    let ast::Stmt::Template(template) = &tree else { return None };
    let alone = matches!(template.children.as_slice(), [ast::Stmt::EmitExpr(_)]);
    alone.then(|| inner.trim_start_matches('-').trim_end_matches('-').trim())
}

fn row_environment(filters: &[(&'static str, TextFilter)]) -> Environment<'static> {
    let mut environment = environment();
    environment.set_undefined_behavior(UndefinedBehavior::Strict);
    environment.add_filter("given", given);
    environment.add_filter("index", index);
    environment.add_filter("indices", indices);
    for &(name, filter) in filters {
        environment.add_filter(name, move |text: &str| {
            filter(text).map_err(|problem| minijinja::Error::new(ErrorKind::InvalidOperation, problem))
        });
    }
    environment
}

/// Refuses the value of a missing column, which `tojson` would write as null.
fn given(value: Value) -> std::result::Result<Value, minijinja::Error> {
    if value.is_undefined() {
        return Err(minijinja::Error::new(ErrorKind::UndefinedError, "a column is missing"));
    }
    Ok(value)
}

/// The place of an item in a list; Python's `list.index`.
#[expect(clippy::needless_pass_by_value, reason = "the engine calls filters with owned values")]
fn index(list: Value, item: Value) -> std::result::Result<usize, minijinja::Error> {
    let missing = || {
        let problem = format!("{item} is not among {list}");
        minijinja::Error::new(ErrorKind::InvalidOperation, problem)
    };
    list.try_iter()?.position(|other| other == item).ok_or_else(missing)
}

/// The places of all items of a list that equal `item`.
#[expect(clippy::needless_pass_by_value, reason = "the engine calls filters with owned values")]
fn indices(list: Value, item: Value) -> std::result::Result<Vec<usize>, minijinja::Error> {
    let places = list.try_iter()?.enumerate().filter(|(_, other)| *other == item);
    Ok(places.map(|(place, _)| place).collect())
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn row(value: &Value) -> TemplateRow {
        TemplateRow::new(value.as_object().unwrap())
    }

    fn value(source: &str, columns: &Value) -> std::result::Result<Value, String> {
        let template = RowTemplate::new("doc_to_text", source, &[("twice", |text| Ok(text.repeat(2)))]);
        template.and_then(|template| template.value(&row(columns))).map_err(|error| error.to_string())
    }

    #[test]
    fn one_expression_has_a_value_and_anything_else_is_text() {
        let columns = json!({
            "question": " why? ", "label": "2", "answerKey": "C", "sentence": "a _ b _ c", "none": null,
            "choices": {"text": ["x", "y}}"], "label": ["A", "C"]},
        });
        for (source, wanted) in [
            ("{{ choices.text }}", json!(["x", "y}}"])),
            ("{{choices.label | index(answerKey)}}", json!(1)),
            ("{{ [0, 1, 1] | indices(1) }}", json!([1, 2])),
            ("{{ label | int - 1 }}", json!(1)),
            ("{{ label }}", json!("2")),
            ("{{ none }}", json!(null)),
            ("{{ question.strip() ~ '}}' }}", json!("why?}}")),
            ("{{ question }}{{ label }}", json!(" why? 2")),
            ("Q: {{ question.strip() | twice }}\n", json!("Q: why?why?\n")),
            ("{% if label == '2' %}\n two\n{% endif %}", json!("\n two\n")),
            ("{{ 'ABC deF' | capitalize }}", json!("Abc def")),
            ("{{ sentence.split('_', 1)[1] }}", json!(" b _ c")),
            ("{{ sentence.split(' ')[:-1] | join(' ') }}", json!("a _ b _")),
            ("{{ ['A', 'B'] + choices.label }}", json!(["A", "B", "A", "C"])),
            ("plain", json!("plain")),
            ("", json!("")),
        ] {
            assert_eq!(value(source, &columns).unwrap(), wanted, "{source}");
        }
    }

    #[test]
    fn a_missing_column_is_an_error_that_names_the_template() {
        for source in ["{{ question }}", "Q: {{ question }}", "{{ choices.text }}", "{{ [1] | index(2) }}"] {
            let error = value(source, &json!({})).unwrap_err();
            assert!(error.contains("doc_to_text"), "{source}: {error}");
        }
        let error = value("{{ towns }} {{ label }}", &json!({"label": 1})).unwrap_err();
        assert!(error.contains("the row has no column towns;"), "{error}");
        assert!(value("{{ question", &json!({})).is_err());
        assert!(value("{% include 'x' %}", &json!({})).is_err());
        assert!(value("{{ 'x' * 10000000000 }}", &json!({})).is_err());
    }
}
