//! Splits held-out rows from a training set.
//!
//! A row is held out if the hash of its ids, seeded with the split seed, falls into the lowest fraction of
//! the hash range. The choice therefore does not depend on the order or number of the other rows, and is the
//! same on every rank and after every restart. Rows with the same ids are always on the same side; preference
//! pairs and unpaired completions are compared by the ids of their prompt.

use std::hash::Hasher;

use twox_hash::XxHash64;

use super::{EncodedDataset, TrainingRow};

/// Removes about `fraction` of the rows from the data set and returns them as held-out rows.
pub fn hold_out<T: TrainingRow>(dataset: &mut EncodedDataset<T>, fraction: f64, seed: u64) -> Vec<T> {
    let rows = std::mem::take(&mut dataset.rows);
    let (held_out, kept) = rows.into_iter().partition(|row| is_held_out(row.split_key(), fraction, seed));
    dataset.rows = kept;
    held_out
}

fn is_held_out(ids: &[i64], fraction: f64, seed: u64) -> bool {
    let mut hasher = XxHash64::with_seed(seed);
    for id in ids {
        hasher.write(&id.to_le_bytes());
    }
    // Divide by 2^64 to map the hash to [0, 1).
    (hasher.finish() as f64) / 18_446_744_073_709_551_616.0 < fraction
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_fraction_of_the_rows_is_held_out_whatever_stands_beside_them() {
        let held: Vec<bool> = (0..20_000).map(|id| is_held_out(&[id, 7], 0.05, 1)).collect();
        let count = held.iter().filter(|&&held| held).count();
        // 1000 expected, standard deviation sqrt(20000 * 0.05 * 0.95) = 31.
        assert!((850..1150).contains(&count), "{count}");
        assert_eq!(held[17], is_held_out(&[17, 7], 0.05, 1));
        let others = (0..20_000).filter(|&id| is_held_out(&[id, 7], 0.05, 2) != held[id as usize]).count();
        assert!(others > 1500, "another seed holds out other rows: {others}");
    }
}
