//! From rows to flat arrays: the packed form that training uses, and the padded form.
//!
//! Packed: the rows of a micro-batch one after the other in one long sequence, with their lengths, positions starting anew
//! at each row. Padded: `[B, T]` with T the longest row of the batch, row-major, padding on the right. What is padding is
//! told by `lengths`, never by ids. Knows no tensors.

use crate::rows::{NO_LOSS, SftRow};

/// Rows one after the other, without padding; N is the sum of the lengths.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PackedBatch {
    /// Token ids, `[N]`.
    pub input_ids: Vec<i64>,
    /// Labels, not shifted, `[N]`. The first label of a row is always [`NO_LOSS`]: a shift must not cross rows.
    pub labels: Vec<i64>,
    /// Positions, 0 at the start of each row, `[N]`.
    pub position_ids: Vec<i64>,
    /// Tokens of each row, `[B]`.
    pub lengths: Vec<usize>,
}

/// Rows side by side, padded on the right.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PaddedBatch {
    /// Token ids, `[B, T]` row-major, `pad_id` beyond a row's length.
    pub input_ids: Vec<i64>,
    /// Labels, not shifted, `[B, T]` row-major, [`NO_LOSS`] beyond a row's length.
    pub labels: Vec<i64>,
    /// Tokens of each row, `[B]`.
    pub lengths: Vec<usize>,
    /// (B, T).
    pub shape: (usize, usize),
}

/// Lays rows one after the other.
pub fn collate_packed<'a>(rows: impl IntoIterator<Item = &'a SftRow>) -> PackedBatch {
    let mut batch = PackedBatch::default();
    for row in rows {
        let start = batch.labels.len();
        batch.input_ids.extend(&row.input_ids);
        batch.labels.extend(&row.labels);
        batch.position_ids.extend(0..row.input_ids.len() as i64);
        batch.lengths.push(row.input_ids.len());
        if let Some(first) = batch.labels.get_mut(start) {
            *first = NO_LOSS;
        }
    }
    batch
}

/// Lays rows side by side, padded to the longest of them.
pub fn collate_padded(rows: &[&SftRow], pad_id: i64) -> PaddedBatch {
    let longest = rows.iter().map(|row| row.input_ids.len()).max().unwrap_or(0);
    let mut batch = PaddedBatch { shape: (rows.len(), longest), ..PaddedBatch::default() };
    for (index, row) in rows.iter().enumerate() {
        let end = (index + 1) * longest;
        batch.input_ids.extend(&row.input_ids);
        batch.input_ids.resize(end, pad_id);
        batch.labels.extend(&row.labels);
        batch.labels.resize(end, NO_LOSS);
        batch.lengths.push(row.input_ids.len());
    }
    batch
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rows() -> [SftRow; 2] {
        [
            SftRow { input_ids: vec![5, 6, 7], labels: vec![NO_LOSS, 6, 7] },
            SftRow { input_ids: vec![8, 9], labels: vec![8, 9] },
        ]
    }

    #[test]
    fn packed_rows_keep_apart() {
        let batch = collate_packed(&rows());
        assert_eq!(batch.input_ids, [5, 6, 7, 8, 9]);
        assert_eq!(batch.labels, [NO_LOSS, 6, 7, NO_LOSS, 9]);
        assert_eq!(batch.position_ids, [0, 1, 2, 0, 1]);
        assert_eq!(batch.lengths, [3, 2]);
    }

    #[test]
    fn padded_rows_carry_their_lengths() {
        let [first, second] = rows();
        let batch = collate_padded(&[&first, &second], 0);
        assert_eq!(batch.shape, (2, 3));
        assert_eq!(batch.input_ids, [5, 6, 7, 8, 9, 0]);
        assert_eq!(batch.labels, [NO_LOSS, 6, 7, 8, 9, NO_LOSS]);
        assert_eq!(batch.lengths, [3, 2]);
    }
}
