//! The coefficient of the entropy bonus that follows a target (adaptive entropy control).
//!
//! ```text
//!   after each measurement of the mean entropy H of a token
//!     coefficient += delta for H <= target, -= delta for H > target; between 0 and 1
//!   the next loss has the bonus with this coefficient for H <= target, and no bonus for H > target
//! ```
//! He et al. 2025 (Skywork-OR1, arXiv 2505.22312); TRL: `use_adaptive_entropy`, with `entropy_coef_min = 0`
//! and `entropy_coef_max = 1`. Without a target the coefficient is fixed. This module measures no entropy.

use serde::{Deserialize, Serialize};

use crate::{Error, check};

/// The largest coefficient (TRL).
const MOST: f64 = 1.0;

/// The controller of the coefficient of the entropy bonus. Checkpoints contain its serialized form.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct EntropyController {
    /// The coefficient while the bonus is on.
    pub coefficient: f64,
    /// The entropy of a token, in nats, at which the bonus turns on. TRL: 0.2. Without a target, the bonus is
    /// always on.
    pub target: Option<f64>,
    /// What a measurement adds to the coefficient or subtracts from it. TRL: 0.005.
    pub delta: f64,
    /// The last measurement. `None` before the first one: a bonus with a target is off until then.
    pub last_entropy: Option<f64>,
}

impl EntropyController {
    /// Creates a controller before the first measurement. `target` is a number, or `None` for a fixed
    /// coefficient.
    pub fn new(coefficient: f64, target: impl Into<Option<f64>>, delta: f64) -> Self {
        Self { coefficient, target: target.into(), delta, last_entropy: None }
    }

    /// The coefficient of the next loss: 0 while the entropy is above the target.
    pub fn applied(&self) -> f64 {
        let Some(target) = self.target else { return self.coefficient };
        if self.last_entropy.is_some_and(|entropy| entropy <= target) { self.coefficient } else { 0.0 }
    }

    /// Updates the coefficient after a step whose tokens had `entropy_mean` on average.
    pub fn update(&mut self, entropy_mean: f64) -> Result<(), Error> {
        check::finite("the mean entropy of a token", &[entropy_mean])?;
        self.last_entropy = Some(entropy_mean);
        if let Some(target) = self.target {
            self.coefficient = if entropy_mean <= target {
                (self.coefficient + self.delta).min(MOST)
            } else {
                (self.coefficient - self.delta).max(0.0)
            };
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_bonus_is_on_while_the_entropy_is_low() {
        let mut controller = EntropyController::new(0.25, 0.5, 0.125);
        assert_eq!(controller.applied(), 0.0);
        controller.update(0.5).unwrap();
        assert_eq!(controller.applied(), 0.375);
        controller.update(0.75).unwrap();
        // Off, and remembered.
        assert_eq!((controller.applied(), controller.coefficient), (0.0, 0.25));
        controller.update(0.25).unwrap();
        assert_eq!(controller.applied(), 0.375);
    }

    #[test]
    fn the_coefficient_stays_between_its_bounds() {
        let mut controller = EntropyController::new(0.5, 1.0, 0.375);
        for (entropy, coefficient) in
            [(2.0, 0.125), (2.0, 0.0), (2.0, 0.0), (0.0, 0.375), (0.0, 0.75), (0.0, 1.0)]
        {
            controller.update(entropy).unwrap();
            assert_eq!(controller.coefficient, coefficient, "{entropy}");
        }
        assert!(matches!(controller.update(f64::NAN), Err(Error::NotFinite { .. })));
        assert_eq!(controller.coefficient, 1.0);
    }

    #[test]
    fn without_a_target_the_coefficient_is_fixed() {
        let mut controller = EntropyController::new(0.01, None::<f64>, 0.005);
        assert_eq!(controller.applied(), 0.01);
        for entropy in [0.0, 9.0] {
            controller.update(entropy).unwrap();
            assert_eq!((controller.applied(), controller.coefficient), (0.01, 0.01));
        }
    }

    #[test]
    fn a_controller_survives_a_checkpoint() {
        let mut whole = EntropyController::new(0.1, 0.2, 0.005);
        whole.update(0.1).unwrap();
        let mut resumed: EntropyController =
            serde_json::from_str(&serde_json::to_string(&whole).unwrap()).unwrap();
        assert_eq!(whole.applied(), resumed.applied());
        whole.update(0.3).unwrap();
        resumed.update(0.3).unwrap();
        assert_eq!(whole, resumed);
        let text = r#"{"coefficient":0.1,"target":0.2,"delta":0.005,"step":1}"#;
        assert!(serde_json::from_str::<EntropyController>(text).is_err());
    }
}
