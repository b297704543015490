//! Checks the Thrift structures of a Parquet file before the Parquet crate reads them.
//!
//! The Parquet crate skips an unknown field by skipping as many elements as the field announces, and a
//! boolean inside a list takes no byte there. A footer of 800 bytes can therefore keep it busy for minutes.
//! The crate also reads a known field without checking its type. This module requires every known field to
//! have the type that `parquet.thrift` gives it (github.com/apache/parquet-format), and it rejects a list
//! that announces more elements than there are bytes left. It also bounds the footer, the number of columns
//! and how deep they are nested, because the crate builds the tree of columns by recursion. It validates
//! only; it stores nothing that it reads, except the sizes of a page and the columns of groups that are open.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;

use parquet::file::metadata::{ParquetMetaData, RowGroupMetaData};

use super::limits::COLUMNS;

/// Size of the file tail in bytes: the length of the footer (four bytes) and "PAR1".
const TAIL: u64 = 8;
/// Maximum size of the footer in bytes. Decoded, it takes up to 35 times as much.
const FOOTER_BYTES: u64 = 32 << 20;
/// Maximum nesting depth of columns. A list takes two levels and a structure one.
const GROUPS: usize = 64;
/// Maximum nesting depth of structures. Parquet's own structures nest 6 deep.
const DEPTH: usize = 16;
/// Number of bytes read at first for a page header. Most headers have fewer than 100.
const PAGE_HEADER: u64 = 4096;

/// The type of a field in `parquet.thrift`.
enum Kind {
    Bool,
    Byte,
    /// `i16`, `i32`, `i64` and enumerations, which all have a variable length.
    Integer,
    Double,
    /// Binary data and strings.
    Binary,
    List(&'static Self),
    Struct(&'static [Field]),
}

/// The number of a field and its type.
type Field = (i16, Kind);

use Kind::{Binary, Bool, Byte, Double, Integer, List, Struct};

/// A structure without fields, such as the variants of a union.
const EMPTY: Kind = Struct(&[]);
const FILE: &[Field] = &[
    (1, Integer),
    (2, List(&Struct(SCHEMA_ELEMENT))),
    (3, Integer),
    (4, List(&Struct(ROW_GROUP))),
    (5, List(&Struct(KEY_VALUE))),
    (6, Binary),
    (7, List(&Struct(&[(1, EMPTY), (2, EMPTY)]))),
    (8, EMPTY),
    (9, Binary),
];
const KEY_VALUE: &[Field] = &[(1, Binary), (2, Binary)];
const SCHEMA_ELEMENT: &[Field] = &[
    (1, Integer),
    (2, Integer),
    (3, Integer),
    (4, Binary),
    (5, Integer),
    (6, Integer),
    (7, Integer),
    (8, Integer),
    (9, Integer),
    (10, Struct(LOGICAL_TYPE)),
];
const LOGICAL_TYPE: &[Field] = &[
    (1, EMPTY),
    (2, EMPTY),
    (3, EMPTY),
    (4, EMPTY),
    (5, Struct(&[(1, Integer), (2, Integer)])),
    (6, EMPTY),
    (7, Struct(TIME)),
    (8, Struct(TIME)),
    (10, Struct(&[(1, Byte), (2, Bool)])),
    (11, EMPTY),
    (12, EMPTY),
    (13, EMPTY),
    (14, EMPTY),
    (15, EMPTY),
    (16, Struct(&[(1, Byte)])),
    (17, Struct(&[(1, Binary)])),
    (18, Struct(&[(1, Binary), (2, Integer)])),
];
const TIME: &[Field] = &[(1, Bool), (2, Struct(&[(1, EMPTY), (2, EMPTY), (3, EMPTY)]))];
const ROW_GROUP: &[Field] = &[
    (1, List(&Struct(COLUMN_CHUNK))),
    (2, Integer),
    (3, Integer),
    (4, List(&Struct(&[(1, Integer), (2, Bool), (3, Bool)]))),
    (5, Integer),
    (6, Integer),
    (7, Integer),
];
const COLUMN_CHUNK: &[Field] = &[
    (1, Binary),
    (2, Integer),
    (3, Struct(COLUMN)),
    (4, Integer),
    (5, Integer),
    (6, Integer),
    (7, Integer),
    (8, EMPTY),
    (9, Binary),
];
const COLUMN: &[Field] = &[
    (1, Integer),
    (2, List(&Integer)),
    (3, List(&Binary)),
    (4, Integer),
    (5, Integer),
    (6, Integer),
    (7, Integer),
    (8, List(&Struct(KEY_VALUE))),
    (9, Integer),
    (10, Integer),
    (11, Integer),
    (12, Struct(STATISTICS)),
    (13, List(&Struct(&[(1, Integer), (2, Integer), (3, Integer)]))),
    (14, Integer),
    (15, Integer),
    (16, Struct(&[(1, Integer), (2, List(&Integer)), (3, List(&Integer))])),
    (17, Struct(&[(1, Struct(BOX)), (2, List(&Integer))])),
];
const STATISTICS: &[Field] = &[
    (1, Binary),
    (2, Binary),
    (3, Integer),
    (4, Integer),
    (5, Binary),
    (6, Binary),
    (7, Bool),
    (8, Bool),
    (9, Integer),
];
const BOX: &[Field] =
    &[(1, Double), (2, Double), (3, Double), (4, Double), (5, Double), (6, Double), (7, Double), (8, Double)];
/// The page header. Field 3 is the size of the page that follows.
const PAGE: &[Field] = &[
    (1, Integer),
    (2, Integer),
    (3, Integer),
    (4, Integer),
    (5, Struct(&[(1, Integer), (2, Integer), (3, Integer), (4, Integer), (5, Struct(STATISTICS))])),
    (6, EMPTY),
    (7, Struct(&[(1, Integer), (2, Integer), (3, Bool)])),
    (8, Struct(PAGE_V2)),
];
const PAGE_V2: &[Field] = &[
    (1, Integer),
    (2, Integer),
    (3, Integer),
    (4, Integer),
    (5, Integer),
    (6, Integer),
    (7, Bool),
    (8, Struct(STATISTICS)),
];

/// The reason why a structure is rejected.
#[derive(Debug, PartialEq)]
enum Fault {
    /// The bytes end inside the structure.
    Ends,
    /// The footer or a page header is invalid.
    Wrong(String),
}

/// Checks the footer of a file. A file without a footer passes, because the Parquet crate reports it.
pub(super) fn check(file: &File) -> io::Result<()> {
    let Some(end) = file.metadata()?.len().checked_sub(TAIL) else { return Ok(()) };
    let mut tail = [0; TAIL as usize];
    file.read_exact_at(&mut tail, end)?;
    let length = u64::from(u32::from_le_bytes([tail[0], tail[1], tail[2], tail[3]]));
    let Some(start) = end.checked_sub(length).filter(|_| tail.ends_with(b"PAR1")) else { return Ok(()) };

    if length > FOOTER_BYTES {
        let why = format!("it has {} MiB, more than {}", length >> 20, FOOTER_BYTES >> 20);
        return Err(wrong("footer", Fault::Wrong(why)));
    }
    let mut bytes = vec![0; length as usize];
    file.read_exact_at(&mut bytes, start)?;
    Reader::new(&bytes).structure(FILE, 0).map_err(|fault| wrong("footer", fault))?;
    Ok(())
}

/// Checks the headers of all pages of a file, and returns the unpacked size of the largest page of each
/// column. The footer must have been checked before.
pub(super) fn check_pages(file: &File, metadata: &ParquetMetaData) -> io::Result<Vec<u64>> {
    let end_of_file = file.metadata()?.len();
    let columns = || metadata.row_groups().iter().flat_map(RowGroupMetaData::columns);
    let bytes = columns().map(|column| u128::try_from(column.compressed_size()).unwrap_or(0));
    // Overlapping columns would make this check read the same bytes again and again.
    if bytes.sum::<u128>() > u128::from(end_of_file) {
        return Err(wrong("footer", Fault::Wrong("its columns are larger than the file".to_owned())));
    }
    let mut largest = vec![0; metadata.file_metadata().schema_descr().num_columns()];
    let leaves = metadata.row_groups().iter().flat_map(|group| group.columns().iter().enumerate());
    for (leaf, column) in leaves {
        // Some writers set the page offsets of a row group without rows to 0.
        let offsets = [column.dictionary_page_offset(), Some(column.data_page_offset())];
        let Some(first) = offsets.into_iter().flatten().filter(|&offset| offset > 0).min() else { continue };
        let mut at = first as u64;
        let length = u64::try_from(column.compressed_size()).unwrap_or(0);
        let end = at.saturating_add(length).min(end_of_file);
        while let Some((next, unpacked)) = page(file, at, end)? {
            at = next;
            if let Some(largest) = largest.get_mut(leaf) {
                *largest = unpacked.max(*largest);
            }
        }
    }
    Ok(largest)
}

/// Returns the offset of the page after the one at `at`, and the unpacked size of the page. Returns `None`
/// after the last page, and where the Parquet crate will itself stop with an error.
fn page(file: &File, at: u64, end: u64) -> io::Result<Option<(u64, u64)>> {
    let left = end.saturating_sub(at);
    if left == 0 {
        return Ok(None);
    }
    let mut length = PAGE_HEADER;
    loop {
        let mut bytes = vec![0; length.min(left) as usize];
        file.read_exact_at(&mut bytes, at)?;
        let mut reader = Reader::new(&bytes);
        match reader.structure(PAGE, 0) {
            Ok(()) => {
                let header = (bytes.len() - reader.bytes.len()) as u64;
                return Ok(reader.page_size.map(|size| (at + header + size, reader.unpacked_size)));
            }
            Err(Fault::Ends) if length < left => length *= 16,
            Err(Fault::Ends) => return Ok(None),
            Err(fault) => return Err(wrong("header of a page", fault)),
        }
    }
}

fn wrong(what: &str, fault: Fault) -> io::Error {
    let why = match fault {
        Fault::Ends => "its bytes end in the middle of a value".to_owned(),
        Fault::Wrong(why) => why,
    };
    io::Error::new(io::ErrorKind::InvalidData, format!("the {what} is damaged: {why}"))
}

/// A reader of Thrift's compact protocol (github.com/apache/thrift, doc/specs/thrift-compact-protocol.md).
struct Reader<'a> {
    bytes: &'a [u8],
    /// Field 3 of the outermost structure. In a page header it is the size of the page.
    page_size: Option<u64>,
    /// Field 2 of the outermost structure. In a page header it is the size of the unpacked page.
    unpacked_size: u64,
    /// Field 5 of the structure inside of the outermost one that was read last. In an element of the schema
    /// it is the number of its children.
    children: u64,
    columns: Columns,
}

/// The tree of columns, whose elements come parents first.
#[derive(Default)]
struct Columns {
    /// The children that are still to come, of each group that is open.
    open: Vec<u64>,
    leaves: usize,
}

impl Columns {
    fn add(&mut self, children: u64) -> Result<(), Fault> {
        while self.open.pop_if(|left| *left == 0).is_some() {}
        if let Some(left) = self.open.last_mut() {
            *left -= 1;
        }
        if children == 0 {
            self.leaves += 1;
        } else {
            self.open.push(children);
        }
        if self.open.len() > GROUPS {
            return Err(Fault::Wrong(format!("its columns are more than {GROUPS} groups deep")));
        }
        if self.leaves > COLUMNS {
            return Err(Fault::Wrong(format!("it has more than {COLUMNS} columns")));
        }
        Ok(())
    }
}

impl<'a> Reader<'a> {
    fn new(bytes: &'a [u8]) -> Self {
        Self { bytes, page_size: None, unpacked_size: 0, children: 0, columns: Columns::default() }
    }

    fn take(&mut self, count: u64) -> Result<&'a [u8], Fault> {
        let count = usize::try_from(count).map_err(|_| Fault::Ends)?;
        let (head, rest) = self.bytes.split_at_checked(count).ok_or(Fault::Ends)?;
        self.bytes = rest;
        Ok(head)
    }

    fn byte(&mut self) -> Result<u8, Fault> {
        Ok(self.take(1)?[0])
    }

    fn unsigned(&mut self) -> Result<u64, Fault> {
        let mut value = 0;
        for shift in (0..64).step_by(7) {
            let byte = self.byte()?;
            value |= u64::from(byte & 0x7f) << shift;
            if byte & 0x80 == 0 {
                return Ok(value);
            }
        }
        Err(Fault::Wrong("a number has more than ten bytes".to_owned()))
    }

    /// Reads a structure at nesting depth `depth`. `fields` lists its known fields.
    fn structure(&mut self, fields: &[Field], depth: usize) -> Result<(), Fault> {
        if depth == DEPTH {
            return Err(Fault::Wrong(format!("it is more than {DEPTH} structures deep")));
        }

        let mut number = 0;
        loop {
            let head = self.byte()?;
            if head == 0 {
                return Ok(());
            }
            // The long form of a field number is for steps above 15, which do not occur in Parquet.
            let (step, code) = (head >> 4, head & 0xf);
            if step == 0 || code == 0 {
                return Err(Fault::Wrong("a field has no number".to_owned()));
            }

            number += i16::from(step);
            let kind = fields.iter().find(|field| field.0 == number).map(|field| &field.1);
            let is_integer = matches!(kind, None | Some(Integer)) && (4..=6).contains(&code);
            if is_integer && matches!((depth, number), (0, 2 | 3) | (1, 5)) {
                let zigzag = self.unsigned()?;
                let natural = (zigzag % 2 == 0).then_some(zigzag / 2);
                match number {
                    2 => self.unpacked_size = natural.unwrap_or(0),
                    3 => self.page_size = natural,
                    _ => self.children = natural.unwrap_or(0),
                }
            } else {
                self.value(code, kind, number, depth)?;
            }
        }
    }

    /// Reads a value with the type code `code`. `kind` is the expected type, or `None` for an unknown field.
    fn value(&mut self, code: u8, kind: Option<&Kind>, number: i16, depth: usize) -> Result<(), Fault> {
        let agrees = match kind {
            None => true,
            Some(Bool) => matches!(code, 1 | 2),
            Some(Byte) => code == 3,
            Some(Integer) => matches!(code, 4..=6),
            Some(Double) => code == 7,
            Some(Binary) => code == 8,
            Some(List(_)) => code == 9,
            Some(Struct(_)) => code == 12,
        };
        if !agrees {
            return Err(Fault::Wrong(format!("field {number} is of another type than Parquet's")));
        }

        match code {
            1 | 2 => {}
            3 => drop(self.byte()?),
            4..=6 => drop(self.unsigned()?),
            7 => drop(self.take(8)?),
            8 => {
                let length = self.unsigned()?;
                self.take(length)?;
            }
            9 => self.list(if let Some(List(kind)) = kind { Some(*kind) } else { None }, number, depth)?,
            12 => {
                let fields = if let Some(Struct(fields)) = kind { fields } else { [].as_slice() };
                self.structure(fields, depth + 1)?;
            }
            _ => return Err(Fault::Wrong(format!("field {number} is of a type that Parquet does not use"))),
        }
        Ok(())
    }

    /// Reads a list whose elements have the type `kind`.
    fn list(&mut self, kind: Option<&Kind>, number: i16, depth: usize) -> Result<(), Fault> {
        let head = self.byte()?;
        let (count, code) = (u64::from(head >> 4), head & 0xf);
        let count = if count == 15 { self.unsigned()? } else { count };
        if count == 0 {
            return Ok(());
        }

        // A boolean in a list takes no byte in the Parquet crate, so the bytes left do not bound their
        // number.
        if matches!(code, 1 | 2) {
            return Err(Fault::Wrong(format!("field {number} lists truth values, which Parquet does not")));
        }
        // Every other element takes at least one byte.
        if count > self.bytes.len() as u64 {
            return Err(Fault::Ends);
        }

        let is_schema = depth == 0 && number == 2;
        for _ in 0..count {
            if is_schema {
                self.children = 0;
            }
            // A list in a list counts as one level deeper, so that empty lists cannot nest without limit.
            let depth = if code == 9 { depth + 1 } else { depth };
            if depth == DEPTH {
                return Err(Fault::Wrong(format!("it is more than {DEPTH} structures deep")));
            }
            self.value(code, kind, number, depth)?;
            if is_schema {
                self.columns.add(self.children)?;
            }
        }
        Ok(())
    }
}
