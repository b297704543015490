//! Limits of a template: its steps, and the bytes of text and lists that it creates.
//!
//! A template is a program that comes with a model, so it may be hostile. The engine counts its steps. All
//! operations that can create something large in one step are done by the functions here, which `guard.rs`
//! inserts into the template. Each function charges the size of its result to a budget before it creates the
//! result. The budget grows with the conversation. Lists are created at once and never lazily, so the cost of
//! a list is its length. This module knows no messages.

use std::cell::Cell;

use minijinja::value::{Kwargs, Rest, Tuple, ValueKind, ValueOrKwargs};
use minijinja::{Environment, Error, ErrorKind, Output, State, Value};

use super::python;

/// The longest source of a template, in bytes.
pub(super) const SOURCE_BYTES: usize = 256 << 10;
/// Steps of one rendering of a short conversation.
pub(super) const STEPS: u64 = 5_000_000;
/// Bytes that a rendering may create, in addition to [`PER_INPUT_BYTE`] times the bytes of the conversation.
const BYTES: i64 = 256 << 20;
const PER_INPUT_BYTE: i64 = 16;
/// The cost of an entry of a list or dictionary, in bytes.
const ENTRY: i64 = 32;
/// The largest nesting depth of lists and dictionaries.
const DEPTH: usize = 150;
type Result<T> = std::result::Result<T, Error>;

thread_local! {
    /// The bytes that the rendering on this thread may still create.
    static LEFT: Cell<i64> = const { Cell::new(0) };
}

/// Renders a conversation of `input` bytes with the budget for that size.
pub(super) fn with_budget<T>(input: usize, render: impl FnOnce() -> T) -> T {
    LEFT.set((input as i64).saturating_mul(PER_INPUT_BYTE).saturating_add(BYTES));
    render()
}

/// The step limit for a conversation of `input` bytes.
pub(super) fn steps(input: usize) -> u64 {
    STEPS + 4 * input as u64
}

/// Charges `bytes` to the budget, and returns an error if the budget is used up.
fn charge(bytes: i64) -> Result<()> {
    let left = LEFT.get().saturating_sub(bytes);
    LEFT.set(left);
    if left >= 0 {
        return Ok(());
    }
    let limit = format!("it makes more than {} MiB of text and lists", BYTES >> 20);
    Err(Error::new(ErrorKind::InvalidOperation, limit))
}

/// Adds the functions and the limits to an environment.
pub(super) fn install(environment: &mut Environment<'static>) {
    environment.set_fuel(Some(STEPS));
    environment.set_formatter(print);

    // These create lazy lists, or reveal internals of the engine.
    environment.remove_filter("chain");
    environment.remove_filter("pprint");
    environment.remove_global("debug");

    environment.add_filter("map", map);
    environment.add_function(" keep", keep);
    environment.add_function(" add", add);
    environment.add_function(" multiply", multiply);
    environment.add_function(" concatenate", concatenate);
    environment.add_function(" slice", slice);
    environment.add_function(" in", contains);

    // Comparisons can take long on large values, so they are charged as well.
    environment.add_function(" ==", |left: Value, right: Value| {
        charge_comparison(&left, &right).map(|()| left == right)
    });
    environment.add_function(" !=", |left: Value, right: Value| {
        charge_comparison(&left, &right).map(|()| left != right)
    });
    environment.add_function(" <", |left: Value, right: Value| {
        charge_comparison(&left, &right).map(|()| left < right)
    });
    environment.add_function(" <=", |left: Value, right: Value| {
        charge_comparison(&left, &right).map(|()| left <= right)
    });
    environment.add_function(" >", |left: Value, right: Value| {
        charge_comparison(&left, &right).map(|()| left > right)
    });
    environment.add_function(" >=", |left: Value, right: Value| {
        charge_comparison(&left, &right).map(|()| left >= right)
    });

    environment.add_function(
        " filter",
        |state: &mut State, value: Value, name: String, args: Rest<ValueOrKwargs>| {
            filter(state, &name, value, args.into_values())
        },
    );
    environment.add_function(
        " test",
        |state: &mut State, value: Value, name: String, args: Rest<ValueOrKwargs>| {
            let args: Vec<Value> = std::iter::once(value).chain(args.into_values()).collect();
            // Tests of the type, such as `string`, do not read the contents of a value.
            if args.len() > 1 || matches!(name.as_str(), "lower" | "upper") {
                charge(costs(&args)?)?;
            }
            state.perform_test(&name, &args)
        },
    );
    environment.add_function(
        " method",
        |state: &mut State, value: Value, name: String, args: Rest<ValueOrKwargs>| {
            method(state, &value, &name, &args.into_values())
        },
    );
}

/// Prints a value like Python's `str`. Undefined values print as nothing.
fn print(out: &mut Output, _: &mut State, value: &Value) -> Result<()> {
    let failed = |_| Error::new(ErrorKind::WriteFailure, "cannot write to a string");
    if let Some(text) = value.as_str() {
        charge(text.len() as i64 + 1)?;
        return out.write_str(text).map_err(failed);
    }
    charge(cost(value)?)?;
    out.write_str(&python::text(value)).map_err(failed)
}

/// An upper estimate of the bytes of a value as text, including its lists.
fn cost(value: &Value) -> Result<i64> {
    let mut total = 0;
    measure(value, 0, LEFT.get(), true, &mut total)?;
    Ok(total)
}

fn costs(values: &[Value]) -> Result<i64> {
    values.iter().try_fold(0_i64, |sum, value| Ok(sum.saturating_add(cost(value)?)))
}

/// The size of a value in bytes without a limit, for the conversation itself.
pub(super) fn size(value: &Value) -> usize {
    let mut total = 0;
    // Values that are nested too deeply fail later, when the template uses them.
    let _ = measure(value, 0, i64::MAX, true, &mut total);
    usize::try_from(total).unwrap_or(usize::MAX)
}

/// Adds up the size of a value and its contents, and stops when `limit` is passed: a list may contain another
/// list many times.
fn measure(value: &Value, depth: usize, limit: i64, texts: bool, total: &mut i64) -> Result<()> {
    if depth > DEPTH {
        let problem = format!("lists and dictionaries are nested more than {DEPTH} deep");
        return Err(Error::new(ErrorKind::InvalidOperation, problem));
    }
    *total += ENTRY;
    if *total > limit {
        return Ok(());
    }

    match value.kind() {
        ValueKind::String => {
            *total += if texts { value.as_str().map_or(0, str::len) as i64 } else { 0 };
            Ok(())
        }
        ValueKind::Seq | ValueKind::Iterable => {
            value.try_iter()?.try_for_each(|item| measure(&item, depth + 1, limit, texts, total))
        }
        ValueKind::Map => value.try_iter()?.try_for_each(|key| {
            measure(&key, depth + 1, limit, texts, total)?;
            measure(&value.get_item(&key)?, depth + 1, limit, texts, total)
        }),
        _ => Ok(()),
    }
}

/// Charges a value to the budget, and turns a lazy list into a real one.
fn keep(value: Value) -> Result<Value> {
    match value.kind() {
        ValueKind::String => {
            charge(value.as_str().map_or(0, str::len) as i64)?;
            Ok(value)
        }
        ValueKind::Iterable | ValueKind::Seq | ValueKind::Map => {
            let mut total = 0;
            measure(&value, 0, LEFT.get(), false, &mut total)?;
            charge(total)?;
            if value.kind() == ValueKind::Iterable {
                return Ok(value.try_iter()?.collect::<Vec<Value>>().into());
            }
            Ok(value)
        }
        _ => Ok(value),
    }
}

fn charge_comparison(left: &Value, right: &Value) -> Result<()> {
    if let (Some(left), Some(right)) = (left.as_str(), right.as_str()) {
        return charge(left.len().min(right.len()) as i64);
    }
    let holds = |value: &Value| matches!(value.kind(), ValueKind::Seq | ValueKind::Iterable | ValueKind::Map);
    if holds(left) && holds(right) {
        return charge(cost(left)?.saturating_add(cost(right)?));
    }
    Ok(())
}

fn contains(state: &mut State, needle: &Value, container: &Value) -> Result<bool> {
    match container.kind() {
        ValueKind::Map | ValueKind::Undefined => {}
        ValueKind::String | ValueKind::Seq | ValueKind::Iterable => {
            charge(cost(container)?.saturating_add(cost(needle)?))?;
        }
        other => {
            let problem = format!("cannot look for something in a value of type {other}");
            return Err(Error::new(ErrorKind::InvalidOperation, problem));
        }
    }
    state.perform_test("in", &[needle.clone(), container.clone()])
}

fn add(left: &Value, right: &Value) -> Result<Value> {
    if let (Some(head), Some(tail)) = (left.as_str(), right.as_str()) {
        charge((head.len() + tail.len()) as i64)?;
        return Ok(Value::from([head, tail].concat()));
    }
    if is_list(left) && is_list(right) {
        charge((length(left) + length(right)).saturating_mul(ENTRY))?;
        return Ok(list_like(left, left.try_iter()?.chain(right.try_iter()?).collect()));
    }
    calculate("+", left, right, i128::checked_add, |left, right| left + right)
}

fn multiply(left: &Value, right: &Value) -> Result<Value> {
    let (repeated, count) =
        if left.as_str().is_some() || is_list(left) { (left, right) } else { (right, left) };

    let times = || -> Result<i64> {
        let problem = || {
            Error::new(
                ErrorKind::InvalidOperation,
                "a text or list can only be repeated a whole number of times",
            )
        };
        Ok(i64::try_from(count.clone()).map_err(|_| problem())?.max(0))
    };

    if let Some(text) = repeated.as_str() {
        let times = times()?;
        charge(times.saturating_mul(text.len().max(1) as i64))?;
        return Ok(Value::from(text.repeat(times as usize)));
    }

    if is_list(repeated) {
        let times = times()?;
        charge(times.saturating_mul(length(repeated).max(1)).saturating_mul(ENTRY))?;
        let items: Vec<Value> = repeated.try_iter()?.collect();
        let all = items.iter().cloned().cycle().take(items.len() * times as usize);
        return Ok(list_like(repeated, all.collect()));
    }

    calculate("*", left, right, i128::checked_mul, |left, right| left * right)
}

fn concatenate(left: &Value, right: &Value) -> Result<Value> {
    charge(cost(left)?.saturating_add(cost(right)?))?;
    let mut text = python::text(left);
    text.push_str(&python::text(right));
    Ok(Value::from(text))
}

/// Calculates with two numbers: in integers where possible, otherwise in floats.
fn calculate(
    sign: &str,
    left: &Value,
    right: &Value,
    whole: impl Fn(i128, i128) -> Option<i128>,
    float: impl Fn(f64, f64) -> f64,
) -> Result<Value> {
    let failed = || {
        let problem = format!("cannot calculate {} {sign} {}", left.kind(), right.kind());
        Error::new(ErrorKind::InvalidOperation, problem)
    };
    if let (Ok(left), Ok(right)) = (i128::try_from(left.clone()), i128::try_from(right.clone())) {
        let value = whole(left, right).ok_or_else(failed)?;
        return Ok(i64::try_from(value).map_or_else(|_| Value::from(value), Value::from));
    }
    let number = |value: &Value| f64::try_from(value.clone()).map_err(|_| failed());
    Ok(Value::from(float(number(left)?, number(right)?)))
}

/// Python's `value[start:stop:step]`.
fn slice(value: &Value, start: &Value, stop: &Value, step: &Value) -> Result<Value> {
    let bound = |bound: &Value| -> Result<Option<i64>> {
        if bound.is_none() || bound.is_undefined() {
            Ok(None)
        } else {
            i64::try_from(bound.clone()).map(Some)
        }
    };
    let (start, stop, step) = (bound(start)?, bound(stop)?, bound(step)?.unwrap_or(1));

    if step == 0 {
        return Err(Error::new(ErrorKind::InvalidOperation, "cannot slice in steps of 0"));
    }

    if let Some(text) = value.as_str() {
        charge(4 * text.len() as i64)?;
        let letters: Vec<char> = text.chars().collect();
        let taken: String = places(letters.len(), start, stop, step).map(|place| letters[place]).collect();
        return Ok(Value::from(taken));
    }

    if value.is_none() || value.is_undefined() {
        return Ok(Value::from(Vec::<Value>::new()));
    }
    if !is_list(value) {
        let problem = format!("a value of type {} cannot be sliced", value.kind());
        return Err(Error::new(ErrorKind::InvalidOperation, problem));
    }

    charge(length(value).saturating_mul(ENTRY))?;
    let items: Vec<Value> = value.try_iter()?.collect();
    let taken = places(items.len(), start, stop, step).map(|place| items[place].clone()).collect();
    Ok(list_like(value, taken))
}

/// The indices that Python's `slice(start, stop, step).indices(length)` produces.
fn places(length: usize, start: Option<i64>, stop: Option<i64>, step: i64) -> impl Iterator<Item = usize> {
    let length = length as i64;
    let (low, high) = if step > 0 { (0, length) } else { (-1, length - 1) };
    let place = |bound: i64| (if bound < 0 { bound.saturating_add(length) } else { bound }).clamp(low, high);
    let first = start.map_or(if step > 0 { low } else { high }, place);
    let last = stop.map_or(if step > 0 { high } else { low }, place);
    let inside = move |&place: &i64| if step > 0 { place < last } else { place > last };
    std::iter::successors(Some(first), move |place| place.checked_add(step))
        .take_while(inside)
        .map(|place| place as usize)
}

fn filter(state: &mut State, name: &str, value: Value, args: Vec<Value>) -> Result<Value> {
    let cheap = matches!(
        name,
        "length"
            | "count"
            | "first"
            | "last"
            | "default"
            | "d"
            | "attr"
            | "abs"
            | "int"
            | "float"
            | "bool"
            | "safe"
            | "items"
    );

    if !cheap {
        charge(cost_of_call(name, &value, &args)?)?;
    }

    let args: Vec<Value> = std::iter::once(value).chain(args).collect();
    keep(state.apply_filter(name, &args)?)
}

fn method(state: &mut State, value: &Value, name: &str, args: &[Value]) -> Result<Value> {
    if value.kind() != ValueKind::Map {
        charge(cost_of_call(name, value, args)?)?;
    }
    keep(value.call_method(state, name, args)?)
}

/// The `map` filter. Like any other filter, the inner filter is charged.
fn map(state: &mut State, value: Value, args: Rest<ValueOrKwargs>) -> Result<Value> {
    if args.0.first().is_none_or(|first| first.as_str().is_none()) {
        return minijinja::filters::map(state, value, args).map(Value::from);
    }
    let mut args = args.into_values();
    let name = args.remove(0).to_string();
    let made = value.try_iter()?.map(|item| filter(state, &name, item, args.clone()));
    made.collect::<Result<Vec<Value>>>().map(Value::from)
}

/// A rough upper bound of the bytes that a filter or method can create.
fn cost_of_call(name: &str, value: &Value, args: &[Value]) -> Result<i64> {
    let own = cost(value)?;
    let given = costs(args)?;
    // A width, for example, applies to every line or entry.
    let pieces = value.as_str().map_or(own / ENTRY, |text| text.matches('\n').count() as i64 + 1);
    let numbers = args.iter().map(number_in).fold(0_i64, i64::saturating_add);
    let mut total = own.saturating_add(given).saturating_add(pieces.saturating_mul(numbers));

    let text = |index: usize| args.get(index).and_then(Value::as_str).map_or(0, |text| text.len() as i64);

    match name {
        "replace" => {
            let places = own / text(0).max(1) + 1;
            total = total.saturating_add(places.saturating_mul(text(1)));
        }
        "join" if value.as_str().is_none() => total = total.saturating_add(pieces.saturating_mul(text(0))),
        "join" => {
            let entries = args.first().map_or(0, length);
            total = total.saturating_add(entries.saturating_mul(own));
        }
        "select" | "reject" | "selectattr" | "rejectattr" => {
            total = total.saturating_add(pieces.saturating_mul(given));
        }
        "sort" | "unique" | "groupby" | "dictsort" => total = total.saturating_mul(8),
        "sum" if value.try_iter().is_ok_and(|mut items| items.any(|item| !item.is_number())) => {
            return Err(Error::new(ErrorKind::InvalidOperation, "sum takes numbers"));
        }
        // Widths inside the format string.
        "format" => total = total.saturating_add(widths(value.as_str().unwrap_or_default())),
        _ => {}
    }

    Ok(total)
}

/// The largest number in an argument, or in keyword arguments.
fn number_in(arg: &Value) -> i64 {
    if arg.is_kwargs() {
        let kwargs = Kwargs::try_from(arg.clone()).ok();
        let numbers = kwargs.iter().flat_map(|kwargs| {
            kwargs
                .args()
                .filter_map(|name| kwargs.peek::<Value>(name).ok())
                .map(|value| number_in(&value))
                .collect::<Vec<_>>()
        });
        return numbers.max().unwrap_or(0);
    }
    i64::try_from(arg.clone()).map_or(0, i64::saturating_abs)
}

/// The sum of the numbers in a format string.
fn widths(format: &str) -> i64 {
    let runs = format.split(|letter: char| !letter.is_ascii_digit()).filter(|run| !run.is_empty());
    runs.map(|run| run.parse::<i64>().unwrap_or(i64::MAX)).fold(0, i64::saturating_add)
}

fn is_list(value: &Value) -> bool {
    matches!(value.kind(), ValueKind::Seq | ValueKind::Iterable)
}

/// A tuple of `items` if `model` is a tuple, otherwise a list of them.
fn list_like(model: &Value, items: Vec<Value>) -> Value {
    if python::is_tuple(model) { Tuple::from(items).into() } else { items.into() }
}

fn length(value: &Value) -> i64 {
    value.len().map_or(0, |length| length as i64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slices_are_those_of_python() {
        // list(range(5))[a:b:c] in Python.
        type Case<'a> = (Option<i64>, Option<i64>, i64, &'a [usize]);
        let cases: [Case<'_>; 8] = [
            (None, None, 1, &[0, 1, 2, 3, 4]),
            (Some(1), None, 1, &[1, 2, 3, 4]),
            (None, None, -1, &[4, 3, 2, 1, 0]),
            (Some(-2), None, 1, &[3, 4]),
            (Some(3), Some(0), -2, &[3, 1]),
            (None, Some(-1), 2, &[0, 2]),
            (Some(9), None, 1, &[]),
            (Some(i64::MIN), Some(i64::MAX), i64::MAX, &[0]),
        ];
        for (start, stop, step, wanted) in cases {
            assert_eq!(places(5, start, stop, step).collect::<Vec<_>>(), wanted, "{start:?} {stop:?} {step}");
        }
    }

    #[test]
    fn widths_in_a_format_are_added() {
        assert_eq!(widths("%0999d and {:>12}"), 1011);
        assert_eq!(widths("%99999999999999999999d"), i64::MAX);
    }
}
