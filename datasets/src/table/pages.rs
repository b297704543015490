//! Bounds the memory that the pages of a Parquet file take while a batch is decoded.
//!
//! A page may unpack to a thousand times its size, a list of any length takes a few bytes in a page, and
//! `DELTA_BYTE_ARRAY` writes a text as a part of the text before it. Therefore each page is charged to the
//! batch, with what its values take, before they are decoded. A page stays charged until the next page of its
//! column has come and the batch is over. The values of a column without lists are not charged: a batch takes
//! one of them per row, as a view, a number or a truth value.

use std::fs::File;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use parquet::arrow::arrow_reader::RowGroups;
use parquet::basic::Encoding;
use parquet::column::page::{Page, PageIterator, PageMetadata, PageReader};
use parquet::errors::{ParquetError, Result};
use parquet::file::metadata::{ParquetMetaData, RowGroupMetaData};
use parquet::file::serialized_reader::SerializedPageReader;
use parquet::schema::types::ColumnDescPtr;

use super::delta;
use super::limits::RECORD_BYTES;

/// The most bytes of the pages of a batch and of what they hold.
const BATCH_BYTES: u64 = 768 << 20;
/// The bytes of an entry of a list: its value or view, its levels, and its place in the list.
const ENTRY: u64 = 32;
/// The bytes of an entry of a dictionary.
const VIEW: u64 = 16;

/// Refuses a page of the column that unpacks to more than a row may have.
pub(super) fn check_size(column: &str, bytes: u64) -> Result<()> {
    if bytes <= RECORD_BYTES as u64 {
        return Ok(());
    }
    Err(ParquetError::General(format!(
        "a page of the column {} unpacks to {} MiB, more than {}: write the file with smaller pages",
        column.escape_debug(),
        bytes >> 20,
        RECORD_BYTES >> 20
    )))
}

/// The bytes that the pages of all columns take.
#[derive(Clone, Debug, Default)]
pub(super) struct Meter {
    held: Arc<AtomicU64>,
    /// The part of `held` that the next batch does not need.
    replaced: Arc<AtomicU64>,
}

impl Meter {
    /// Stops to count the pages that only the batches before needed.
    pub(super) fn begin_batch(&self) {
        self.held.fetch_sub(self.replaced.swap(0, Ordering::Relaxed), Ordering::Relaxed);
    }

    /// Replaces the page of a column, which has `before` bytes.
    fn replace(&self, before: u64, bytes: u64, column: &str) -> Result<()> {
        self.replaced.fetch_add(before, Ordering::Relaxed);
        let held = self.held.fetch_add(bytes, Ordering::Relaxed).saturating_add(bytes);
        if held <= BATCH_BYTES {
            return Ok(());
        }
        Err(ParquetError::General(format!(
            "its next rows take more than {} MiB with the column {}: write the file with smaller pages and shorter lists",
            BATCH_BYTES >> 20,
            column.escape_debug()
        )))
    }
}

/// The row groups of a file, whose pages are charged to a meter.
pub(super) struct MeteredRowGroups {
    file: Arc<File>,
    metadata: Arc<ParquetMetaData>,
    meter: Meter,
}

impl MeteredRowGroups {
    pub(super) fn new(file: Arc<File>, metadata: Arc<ParquetMetaData>, meter: Meter) -> Self {
        Self { file, metadata, meter }
    }
}

impl RowGroups for MeteredRowGroups {
    fn num_rows(&self) -> usize {
        let rows = self.metadata.row_groups().iter().map(|group| group.num_rows().max(0) as usize);
        rows.fold(0, usize::saturating_add)
    }

    fn column_chunks(&self, column: usize) -> Result<Box<dyn PageIterator>> {
        Ok(Box::new(MeteredChunks {
            file: Arc::clone(&self.file),
            metadata: Arc::clone(&self.metadata),
            meter: self.meter.clone(),
            column,
            group: 0,
        }))
    }

    fn row_groups(&self) -> Box<dyn Iterator<Item = &RowGroupMetaData> + '_> {
        Box::new(self.metadata.row_groups().iter())
    }

    fn metadata(&self) -> &ParquetMetaData {
        &self.metadata
    }
}

/// The chunks of a column, one per row group.
struct MeteredChunks {
    file: Arc<File>,
    metadata: Arc<ParquetMetaData>,
    meter: Meter,
    column: usize,
    group: usize,
}

impl Iterator for MeteredChunks {
    type Item = Result<Box<dyn PageReader>>;

    fn next(&mut self) -> Option<Self::Item> {
        let group = self.metadata.row_groups().get(self.group)?;
        self.group += 1;
        let rows = group.num_rows().max(0) as usize;
        let pages = SerializedPageReader::new(Arc::clone(&self.file), group.column(self.column), rows, None);
        Some(pages.map(|pages| {
            let column = self.metadata.file_metadata().schema_descr().column(self.column);
            Box::new(MeteredPages { pages, column, meter: self.meter.clone(), page: 0, dictionary: 0 })
                as Box<dyn PageReader>
        }))
    }
}

impl PageIterator for MeteredChunks {}

/// The pages of a column chunk.
struct MeteredPages {
    pages: SerializedPageReader<File>,
    column: ColumnDescPtr,
    meter: Meter,
    /// The bytes of the current page.
    page: u64,
    /// The bytes of the dictionary.
    dictionary: u64,
}

impl MeteredPages {
    fn charge(&mut self, page: &Page) -> Result<()> {
        let bytes = cost(page, &self.column)?;
        let is_dictionary = matches!(page, Page::DictionaryPage { .. });
        let current = if is_dictionary { &mut self.dictionary } else { &mut self.page };
        let before = std::mem::replace(current, bytes);
        self.meter.replace(before, bytes, self.column.path().parts().first().map_or("", String::as_str))
    }
}

impl Drop for MeteredPages {
    fn drop(&mut self) {
        // The last pages of a chunk may be in the batch that is being decoded.
        self.meter.replaced.fetch_add(self.page + self.dictionary, Ordering::Relaxed);
    }
}

impl Iterator for MeteredPages {
    type Item = Result<Page>;

    fn next(&mut self) -> Option<Self::Item> {
        self.get_next_page().transpose()
    }
}

impl PageReader for MeteredPages {
    fn get_next_page(&mut self) -> Result<Option<Page>> {
        let page = self.pages.get_next_page()?;
        if let Some(page) = &page {
            self.charge(page)?;
        }
        Ok(page)
    }

    fn peek_next_page(&mut self) -> Result<Option<PageMetadata>> {
        self.pages.peek_next_page()
    }

    fn skip_next_page(&mut self) -> Result<()> {
        self.pages.skip_next_page()
    }

    fn at_record_boundary(&mut self) -> Result<bool> {
        self.pages.at_record_boundary()
    }
}

/// The bytes that a page and its values take.
fn cost(page: &Page, column: &ColumnDescPtr) -> Result<u64> {
    let bytes = page.buffer().len() as u64;
    let values = u64::from(page.num_values());
    if matches!(page, Page::DictionaryPage { .. }) {
        // Every value of a dictionary takes at least a byte.
        if values > bytes {
            return Err(ParquetError::General(format!(
                "a dictionary of {bytes} bytes announces {values} values"
            )));
        }
        return Ok(bytes + VIEW * values);
    }
    let entries = if column.max_rep_level() > 0 { ENTRY * values } else { 0 };
    let texts = match page.encoding() {
        Encoding::DELTA_LENGTH_BYTE_ARRAY | Encoding::DELTA_BYTE_ARRAY => {
            delta::cost(page, column, BATCH_BYTES)?
        }
        _ => 0,
    };
    Ok(bytes.saturating_add(entries).saturating_add(texts))
}

#[cfg(test)]
mod tests {
    use parquet::schema::parser::parse_message_type;
    use parquet::schema::types::SchemaDescriptor;

    use super::*;

    fn column(item: &str) -> ColumnDescPtr {
        let schema = parse_message_type(&format!("message rows {{ {item} }}")).unwrap();
        SchemaDescriptor::new(Arc::new(schema)).column(0)
    }

    fn data(encoding: Encoding, num_values: u32, bytes: Vec<u8>) -> Page {
        Page::DataPage {
            buf: bytes.into(),
            num_values,
            encoding,
            def_level_encoding: Encoding::RLE,
            rep_level_encoding: Encoding::RLE,
            statistics: None,
        }
    }

    #[test]
    fn a_page_costs_what_its_values_take() {
        let (flat, list) = (column("required binary text (UTF8);"), column("repeated int64 ids;"));
        // A million entries of a list in ten bytes; without a list they are decoded batch by batch.
        let page = data(Encoding::RLE_DICTIONARY, 1_000_000, vec![0; 10]);
        assert_eq!(cost(&page, &list).unwrap(), 10 + 32_000_000);
        assert_eq!(cost(&page, &flat).unwrap(), 10);
        // A million times a length of 3, as in `delta.rs`.
        let lengths = vec![0x80, 0x80, 0x40, 1, 0xc0, 0x84, 0x3d, 6, 0, 0];
        let page = data(Encoding::DELTA_LENGTH_BYTE_ARRAY, 1_000_000, lengths.clone());
        assert_eq!(cost(&page, &flat).unwrap(), 10 + 8_000_000);
        let page = data(Encoding::DELTA_BYTE_ARRAY, 1_000_000, lengths.clone());
        assert_eq!(cost(&page, &flat).unwrap(), 10 + 8_000_000 + 3_000_000);
        assert!(cost(&data(Encoding::DELTA_BYTE_ARRAY, 999_999, lengths), &flat).is_err());
        let dictionary = |num_values| Page::DictionaryPage {
            buf: vec![0; 100].into(),
            num_values,
            encoding: Encoding::PLAIN,
            is_sorted: false,
        };
        assert_eq!(cost(&dictionary(25), &flat).unwrap(), 100 + 25 * 16);
        let error = cost(&dictionary(u32::MAX), &flat).unwrap_err().to_string();
        assert!(error.contains("a dictionary of 100 bytes announces 4294967295 values"), "{error}");
    }

    #[test]
    fn a_page_counts_until_the_batch_after_its_successor() {
        let meter = Meter::default();
        let half = BATCH_BYTES / 2;
        meter.replace(0, half, "a").unwrap();
        // Both pages of the column are in the batch.
        meter.replace(half, half, "a").unwrap();
        assert!(meter.clone().replace(0, 1, "b").unwrap_err().to_string().contains("the column b"));
        let meter = Meter::default();
        meter.replace(0, half, "a").unwrap();
        meter.replace(half, half, "a").unwrap();
        meter.begin_batch();
        meter.replace(half, half, "a").unwrap();
        assert!(meter.replace(half, half, "a").is_err());
    }
}
