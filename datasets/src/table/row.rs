//! One row of a table, and rows one after another.

use serde_json::{Map, Value};

use crate::error::Result;

/// A row of a table: column names and values.
pub type Row = Map<String, Value>;

/// An iterator over rows with their numbers, in file order. It continues after a row that cannot be read.
pub(super) type Rows = Box<dyn Iterator<Item = Result<(usize, Row)>> + Send>;
