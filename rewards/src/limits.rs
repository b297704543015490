//! The bounds of settings that programs and servers of the user share.

use crate::error::Wrong;

/// The longest time limit, in seconds: a day.
const LONGEST_TIMEOUT: f64 = 86_400.0;
/// The most replies or turns of a request.
const LARGEST_BATCH: usize = 65_536;

/// Refuses a size of requests or a time limit out of bounds.
pub(crate) fn check_batches(batch_size: usize, timeout: f64) -> Result<(), Wrong> {
    within("batch_size", batch_size, LARGEST_BATCH)?;
    if timeout > 0.0 && timeout <= LONGEST_TIMEOUT {
        return Ok(());
    }
    let fix = format!("give seconds above 0 and up to {LONGEST_TIMEOUT}");
    Err(Wrong::new("timeout", format!("is {timeout}"), fix))
}

/// Refuses a number that is not in `1..=most`.
pub(crate) fn within(key: &'static str, number: usize, most: usize) -> Result<(), Wrong> {
    if (1..=most).contains(&number) {
        return Ok(());
    }
    Err(Wrong::new(key, format!("is {number}"), format!("give a number from 1 to {most}")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_out_of_bounds_are_refused_by_name() {
        for (batch_size, timeout, key) in [
            (0, 1.0, "batch_size"),
            (65_537, 1.0, "batch_size"),
            (1, 0.0, "timeout"),
            (1, -1.0, "timeout"),
            (1, f64::NAN, "timeout"),
            (1, f64::INFINITY, "timeout"),
            (1, 86_401.0, "timeout"),
        ] {
            assert_eq!(check_batches(batch_size, timeout).unwrap_err().key, key);
        }
        assert_eq!(check_batches(65_536, 86_400.0), Ok(()));
        assert_eq!(check_batches(1, 0.001), Ok(()));
        assert_eq!(within("attempts", 4, 3).unwrap_err().fix, "give a number from 1 to 3");
    }
}
