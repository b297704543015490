//! Rotary position embeddings (Su et al. 2021, arXiv 2104.09864) and their scaling methods for longer
//! sequences.
//!
//! Pair `j` of a head's `dim` rotated numbers is rotated by the angle `position * inv_freq[j]`, with
//! `inv_freq[j] = theta^(-2j/dim)`. The pair is `(x[j], x[j + dim/2])`, as in all HF checkpoints. Scaling
//! methods change `inv_freq`: `linear` (positions divided), `dynamic` (NTK: a larger theta for longer rows),
//! `llama3` (long waves divided), `yarn` (Peng et al. 2023, arXiv 2309.00071). Frequencies, angles, sine and
//! cosine are computed in fp32 in the same order of operations as in transformers, and are cast at the end.
//!
//! `dynamic` depends on the length of a row. Here each row uses its own length, so its result does not depend
//! on the other rows of the batch; transformers uses the longest row of the batch. With a KV cache each new
//! token is rotated for the current length and old keys stay unchanged, as in transformers.

use parallel::autograd;
use parallel::kernels::rotary;
use serde_json::{Value, json};
use tch::{Device, Kind, Tensor, no_grad};

use crate::Error;
use crate::fields::Fields;

/// The largest allowed theta. Above it frequencies would underflow in fp32.
const LARGEST_THETA: f64 = 1e30;

/// The rotary embedding of one model.
#[derive(Clone, Debug, PartialEq)]
pub struct Rope {
    /// The base of the frequencies, before scaling.
    pub theta: f64,
    /// How many numbers of each head are rotated. These are the first ones; the others are left unchanged.
    pub dim: i64,
    /// The scaling method.
    pub scaling: Scaling,
}

/// The scaling of frequencies for sequences longer than in pretraining.
#[derive(Clone, Debug, PartialEq)]
pub enum Scaling {
    /// No scaling.
    None,
    /// `inv_freq / factor`.
    Linear {
        /// At least 1.
        factor: f64,
    },
    /// Theta becomes `theta * (factor * length / max - (factor - 1))^(dim / (dim - 2))` for rows longer than
    /// `max_positions`.
    Dynamic {
        /// At least 1.
        factor: f64,
        /// The length up to which frequencies are unchanged.
        max_positions: i64,
    },
    /// Divides the frequencies of waves longer than `original / low` by `factor`, keeps waves shorter than
    /// `original / high`, and blends in between.
    Llama3 {
        /// The divisor for long waves.
        factor: f64,
        /// The bound of long waves, as a divisor of `original`.
        low: f64,
        /// The bound of short waves, as a divisor of `original`.
        high: f64,
        /// The number of positions in pretraining.
        original: f64,
    },
    /// Blends unchanged and divided frequencies by a ramp over the pairs, and multiplies sine and cosine by a
    /// factor.
    Yarn {
        /// The divisor of the divided frequencies.
        factor: f64,
        /// The first pair of the ramp.
        ramp_start: f64,
        /// The last pair of the ramp.
        ramp_end: f64,
        /// The factor on sine and cosine.
        attention_factor: f64,
    },
}

/// The direction of a pass through the network, in which angles are added or subtracted.
#[derive(Clone, Copy, Debug)]
enum Direction {
    Forward,
    Backward,
}

/// The rotary tables of a batch: sine and cosine for each token.
#[derive(Debug)]
pub struct Rotary {
    /// `[N, 1, dim]`.
    cos: Tensor,
    /// `[N, 1, dim]`, with the first half negated.
    sin: Tensor,
}

impl Rotary {
    /// Rotates the first `dim` numbers of each head. `x` and the result are `[N, heads, D]`. The rotation is
    /// one node of the graph, whose backward pass rotates the gradient back.
    /// transformers: `apply_rotary_pos_emb`.
    pub fn apply(&self, x: &Tensor) -> Tensor {
        let rotated = no_grad(|| self.rotate(&x.detach(), Direction::Forward));
        let tables = self.clone();
        autograd::node(rotated, &[x], move |grad| vec![Some(tables.rotate(grad, Direction::Backward))])
            .expect("a node can be attached to the rotation")
    }

    /// Computes `x cos + (x2, x1) (-sin, sin)` for the halves `(x1, x2)` of the rotated numbers, or with the
    /// opposite angles.
    /// transformers: `rotate_half`, whose minus sign is in the table of sines.
    fn rotate(&self, x: &Tensor, direction: Direction) -> Tensor {
        let is_backward = matches!(direction, Direction::Backward);
        if let Some(rotated) = rotary::rotate(x, &self.cos, &self.sin, is_backward) {
            return rotated;
        }
        let (dim, head_dim) = (self.cos.size()[2], x.size()[2]);
        let half = dim / 2;
        let mut rotated = x.narrow(2, 0, dim) * &self.cos;
        let [sin1, sin2] = match direction {
            Direction::Forward => [0, half],
            Direction::Backward => [half, 0],
        }
        .map(|start| self.sin.narrow(2, start, half));
        let [x1, x2] = [0, half].map(|start| x.narrow(2, start, half));
        let mut halves = [(0, x2, sin1), (half, x1, sin2)]
            .map(|(start, other, sin)| (rotated.narrow(2, start, half), other, sin));
        for (rotated, other, sin) in &mut halves {
            // A fused multiply-add of the CPU would round differently where aten's loop is not a vector loop.
            let _ = if x.device().is_cuda() {
                rotated.addcmul_(other, sin)
            } else {
                rotated.g_add_(&(&*other * &*sin))
            };
        }
        if dim < head_dim {
            rotated = Tensor::cat(&[rotated, x.narrow(2, dim, head_dim - dim)], 2);
        }
        rotated
    }

    /// The tables of some of the tokens; `tokens` are their indices `[n]`.
    #[must_use]
    pub fn select(&self, tokens: &Tensor) -> Self {
        let [cos, sin] = [&self.cos, &self.sin].map(|table| table.index_select(0, tokens));
        Self { cos, sin }
    }

    fn shallow_clone(&self) -> Self {
        Self { cos: self.cos.shallow_clone(), sin: self.sin.shallow_clone() }
    }
}

impl Clone for Rotary {
    fn clone(&self) -> Self {
        self.shallow_clone()
    }
}

/// A family's keys for rotary embeddings outside `rope_parameters`, and its defaults for absent keys.
#[derive(Clone, Copy, Debug)]
pub struct RopeDefaults {
    /// The size of a head.
    pub head_dim: i64,
    /// The number of positions of the model.
    pub max_positions: i64,
    /// The default theta.
    pub theta: f64,
    /// The key of theta outside `rope_parameters`.
    pub theta_key: &'static str,
    /// The fraction of a head that is rotated; 1 for families that always rotate complete heads.
    pub partial_rotary_factor: f64,
    /// The key of that fraction outside `rope_parameters`.
    pub partial_rotary_factor_key: &'static str,
}

impl Rope {
    /// Reads `rope_scaling`, or `rope_parameters` (transformers 5) if `rope_scaling` is absent or empty, and
    /// the keys outside these objects.
    pub fn from_fields(fields: &Fields<'_>, defaults: &RopeDefaults) -> Result<Self, Error> {
        let scaling = fields.object("rope_scaling")?;
        let parameters = if scaling.is_some() { scaling } else { fields.object("rope_parameters")? };
        let outer_theta = fields.number_or(defaults.theta_key, defaults.theta)?;
        let outer_share = fields
            .optional_number(defaults.partial_rotary_factor_key)?
            .unwrap_or(defaults.partial_rotary_factor);

        let (theta, share) = match &parameters {
            None => (outer_theta, outer_share),
            Some(inner) => (
                inner.number_or("rope_theta", outer_theta)?,
                inner.number_or("partial_rotary_factor", outer_share)?,
            ),
        };

        if !(theta > 1.0 && theta <= LARGEST_THETA) {
            let owner = parameters.as_ref().filter(|inner| inner.has("rope_theta"));
            let (owner, key) = owner.map_or((fields, defaults.theta_key), |inner| (inner, "rope_theta"));
            return Err(owner.wrong(key, "a number above 1 and at most 1e30", &json!(theta)));
        }

        let dim = rotated_dim(defaults.head_dim, share);
        check_width(fields, parameters.as_ref(), defaults, share, dim)?;
        let scaling = match parameters {
            None => Scaling::None,
            Some(parameters) => {
                let (original, max_positions) =
                    (fields.number("original_max_position_embeddings")?, defaults.max_positions);
                ScalingReader { parameters, theta, dim, max_positions, original }.read()?
            }
        };
        Ok(Self { theta, dim, scaling })
    }

    /// The maximum number of tokens per row: the model's positions, or more with `dynamic` scaling.
    pub fn max_positions(&self, max_positions: i64) -> i64 {
        match self.scaling {
            Scaling::Dynamic { factor, .. } => (factor * max_positions as f64) as i64,
            _ => max_positions,
        }
    }

    /// Whether the frequencies of a row depend on its length.
    pub fn depends_on_length(&self) -> bool {
        matches!(self.scaling, Scaling::Dynamic { .. })
    }

    /// The frequencies for rows of `length` tokens, fp32 `[dim / 2]`.
    pub fn inv_freq(&self, length: i64, device: Device) -> Tensor {
        let exponents = Tensor::arange_start_step(0, self.dim, 2, (Kind::Float, device)) / self.dim as f64;
        let powers = |theta: f64| Tensor::pow_scalar(theta, &exponents);

        match self.scaling {
            Scaling::None => powers(self.theta).reciprocal(),
            Scaling::Linear { factor } => powers(self.theta).reciprocal() / factor,
            Scaling::Dynamic { factor, max_positions } => {
                let stretch =
                    factor * length.max(max_positions) as f64 / max_positions as f64 - (factor - 1.0);
                let dim = self.dim as f64;
                powers(self.theta * stretch.powf(dim / (dim - 2.0))).reciprocal()
            }
            Scaling::Llama3 { factor, low, high, original } => {
                let plain = powers(self.theta).reciprocal();
                let wave = plain.reciprocal() * (2.0 * std::f64::consts::PI);
                let smooth = (wave.reciprocal() * original - low) / (high - low);
                let blend = (1.0 - &smooth) * &plain / factor + smooth * &plain;
                let long = (&plain / factor).where_self(&wave.gt(original / low), &blend);
                plain.where_self(&wave.lt(original / high), &long)
            }
            Scaling::Yarn { factor, ramp_start, ramp_end, .. } => {
                let powers = powers(self.theta);
                let pairs = Tensor::arange(self.dim / 2, (Kind::Float, device));
                let divided = ((pairs - ramp_start) / (ramp_end - ramp_start)).clamp(0.0, 1.0);
                (&powers * factor).reciprocal() * &divided + powers.reciprocal() * (1.0 - divided)
            }
        }
    }

    /// Computes the rotary tables at `positions` (int64 `[N]`). `counts` are the numbers of tokens of each
    /// row in this batch, `lengths` the full lengths of the rows so far. The two are equal in a packed batch;
    /// in a decoding step every count is 1.
    pub fn rotary(&self, positions: &Tensor, counts: &[i64], lengths: &[i64], kind: Kind) -> Rotary {
        tch::no_grad(|| {
            let device = positions.device();
            let positions = positions.to_kind(Kind::Float).unsqueeze(1);
            let angles = match self.scaling {
                Scaling::Dynamic { max_positions, .. }
                    if lengths.iter().any(|&length| length > max_positions) =>
                {
                    let row = |(&length, &count): (&i64, &i64)| {
                        self.inv_freq(length, device).unsqueeze(0).expand([count, -1], false)
                    };
                    let rows: Vec<Tensor> = lengths.iter().zip(counts).map(row).collect();
                    positions * Tensor::cat(&rows, 0)
                }
                _ => positions * self.inv_freq(0, device),
            };

            let (cos, sin) = (angles.cos(), angles.sin());
            let factor = self.attention_factor();
            let finish = |left: &Tensor, right: &Tensor| {
                let table = Tensor::cat(&[left, right], 1).unsqueeze(1);
                (if (factor - 1.0).abs() > 0.0 { table * factor } else { table }).to_kind(kind)
            };
            Rotary { cos: finish(&cos, &cos), sin: finish(&-&sin, &sin) }
        })
    }

    fn attention_factor(&self) -> f64 {
        match self.scaling {
            Scaling::Yarn { attention_factor, .. } => attention_factor,
            _ => 1.0,
        }
    }
}

/// Returns an error if the rotated width is not valid for a head, or not supported by the family.
fn check_width(
    fields: &Fields<'_>,
    parameters: Option<&Fields<'_>>,
    defaults: &RopeDefaults,
    share: f64,
    dim: i64,
) -> Result<(), Error> {
    let owner = parameters.filter(|inner| inner.has("partial_rotary_factor"));
    let (owner, key) =
        owner.map_or((fields, defaults.partial_rotary_factor_key), |inner| (inner, "partial_rotary_factor"));
    if defaults.partial_rotary_factor >= 1.0 && dim != defaults.head_dim {
        let fix = "this family rotates whole heads; use a GPT-NeoX checkpoint for partial rotation";
        return Err(owner.unsupported(key, &json!(share), fix));
    }
    if dim >= 2 && dim % 2 == 0 && dim <= defaults.head_dim {
        return Ok(());
    }
    if !owner.has(key) {
        return Err(fields.wrong("head_dim", "an even number of at least 2", &json!(defaults.head_dim)));
    }
    let expected = format!("a share that makes an even width within a head of {} numbers", defaults.head_dim);
    Err(owner.wrong(key, &expected, &json!(share)))
}

fn rotated_dim(head_dim: i64, share: f64) -> i64 {
    (head_dim as f64 * share) as i64
}

/// The JSON object with the scaling parameters, and the other values that scaling depends on.
struct ScalingReader<'a> {
    parameters: Fields<'a>,
    theta: f64,
    dim: i64,
    max_positions: i64,
    original: Option<f64>,
}

impl ScalingReader<'_> {
    fn read(&self) -> Result<Scaling, Error> {
        let key = if self.parameters.has("rope_type") { "rope_type" } else { "type" };
        let kind = self.parameters.text_or(key, "default")?;
        let known: &[&str] = match kind {
            "default" => &[],
            "linear" | "dynamic" => &["factor"],
            "llama3" => {
                &["factor", "low_freq_factor", "high_freq_factor", "original_max_position_embeddings"]
            }
            "yarn" => &[
                "factor",
                "original_max_position_embeddings",
                "attention_factor",
                "beta_fast",
                "beta_slow",
                "mscale",
                "mscale_all_dim",
                "truncate",
                "finetuned",
            ],
            other => {
                let fix = "the known ones are default, linear, dynamic, llama3 and yarn";
                return Err(self.parameters.unsupported(key, &json!(other), fix));
            }
        };

        self.refuse_unknown_keys(known)?;
        match kind {
            "linear" => Ok(Scaling::Linear { factor: self.factor()? }),
            "dynamic" => Ok(Scaling::Dynamic { factor: self.factor()?, max_positions: self.max_positions }),
            "llama3" => self.llama3(),
            "yarn" => self.yarn(),
            _ => Ok(Scaling::None),
        }
    }

    fn refuse_unknown_keys(&self, known: &[&str]) -> Result<(), Error> {
        let always = ["rope_type", "type", "rope_theta", "partial_rotary_factor"];
        let unknown = self
            .parameters
            .keys()
            .find(|key| !always.contains(key) && !known.contains(key) && !self.parameters.is_null(key));
        match unknown {
            None => Ok(()),
            Some(key) => {
                let value = self.parameters.get(key).unwrap_or(&Value::Null);
                Err(self.parameters.unsupported(
                    key,
                    value,
                    "this rope type has no such parameter: remove it",
                ))
            }
        }
    }

    /// A required number above zero.
    fn required(&self, key: &str) -> Result<f64, Error> {
        let number = self.parameters.number(key)?;
        let out_of_range = || {
            let found = number.map_or(Value::Null, |number| json!(number));
            self.parameters.wrong(key, "a number above zero and at most 1e12", &found)
        };
        number.filter(|number| (f64::MIN_POSITIVE..=1e12).contains(number)).ok_or_else(out_of_range)
    }

    fn factor(&self) -> Result<f64, Error> {
        let factor = self.required("factor")?;
        if factor >= 1.0 {
            Ok(factor)
        } else {
            Err(self.parameters.wrong("factor", "at least 1", &json!(factor)))
        }
    }

    /// The number of positions in pretraining. The key of the model has priority over the key in the scaling
    /// parameters, as in transformers.
    fn original(&self) -> Result<f64, Error> {
        let key = "original_max_position_embeddings";
        let original = match self.original {
            Some(original) => original,
            None => self.parameters.number_or(key, self.max_positions as f64)?,
        };
        if (1.0..=1e12).contains(&original) {
            return Ok(original);
        }
        Err(self.parameters.wrong(key, "a number from 1 to 1e12", &json!(original)))
    }

    fn llama3(&self) -> Result<Scaling, Error> {
        let (low, high) = (self.required("low_freq_factor")?, self.required("high_freq_factor")?);
        if high <= low {
            return Err(self.parameters.wrong("high_freq_factor", "above low_freq_factor", &json!(high)));
        }
        Ok(Scaling::Llama3 { factor: self.factor()?, low, high, original: self.original()? })
    }

    fn yarn(&self) -> Result<Scaling, Error> {
        let original = self.original()?;
        let factor = match self.parameters.optional_number("factor")? {
            Some(_) => self.factor()?,
            None => self.max_positions as f64 / original,
        };
        let optional = |key: &str| self.parameters.optional_number(key);

        let attention_factor = if let Some(given) = optional("attention_factor")? {
            given
        } else {
            let [mscale, all_dim] =
                [optional("mscale")?.unwrap_or(0.0), optional("mscale_all_dim")?.unwrap_or(0.0)];
            let both = mscale != 0.0 && all_dim != 0.0;
            if both {
                get_mscale(factor, mscale) / get_mscale(factor, all_dim)
            } else {
                get_mscale(factor, 1.0)
            }
        };

        let bound = |key: &str, default: f64| {
            let rotations = optional(key)?.filter(|&number| number != 0.0).unwrap_or(default);
            if rotations < 0.0 {
                return Err(self.parameters.wrong(key, "a number above zero", &json!(rotations)));
            }
            let dim = self.dim as f64;
            Ok::<f64, Error>(
                dim * (original / (rotations * 2.0 * std::f64::consts::PI)).ln() / (2.0 * self.theta.ln()),
            )
        };

        // The ramp runs between the pairs that make `beta_fast` and `beta_slow` rotations over the original
        // positions.
        let (mut start, mut end) = (bound("beta_fast", 32.0)?, bound("beta_slow", 1.0)?);
        // transformers treats null as false.
        if !self.parameters.is_null("truncate") && self.parameters.flag_or("truncate", true)? {
            (start, end) = (start.floor(), end.ceil());
        }
        let (ramp_start, mut ramp_end) = (start.max(0.0), end.min(self.dim as f64 - 1.0));
        if (ramp_start - ramp_end).abs() < f64::EPSILON {
            ramp_end += 0.001;
        }
        Ok(Scaling::Yarn { factor, ramp_start, ramp_end, attention_factor })
    }
}

/// `0.1 m ln(factor) + 1`: eq. 22 of the `YaRN` paper with `m = 1`.
fn get_mscale(factor: f64, m: f64) -> f64 {
    if factor <= 1.0 { 1.0 } else { 0.1 * m * factor.ln() + 1.0 }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::Map;

    fn read(text: &str) -> Result<Rope, Error> {
        let map: Map<String, Value> = serde_json::from_str(text).unwrap();
        let defaults = RopeDefaults {
            head_dim: 4,
            max_positions: 16,
            theta: 10_000.0,
            theta_key: "rope_theta",
            partial_rotary_factor: 1.0,
            partial_rotary_factor_key: "partial_rotary_factor",
        };
        Rope::from_fields(&Fields::new(&map, "test"), &defaults)
    }

    #[test]
    fn both_spellings_mean_the_same() {
        let old =
            read(r#"{"rope_theta": 100.0, "rope_scaling": {"type": "linear", "factor": 2.0}}"#).unwrap();
        let new = read(r#"{"rope_parameters": {"rope_type": "linear", "factor": 2, "rope_theta": 100.0}}"#)
            .unwrap();
        assert_eq!(old, new);
        // theta 100, dim 4: 1/100^0 = 1 and 1/100^(1/2) = 0.1, halved by the factor.
        let freq = Vec::<f32>::try_from(old.inv_freq(0, Device::Cpu)).unwrap();
        assert!((freq[0] - 0.5).abs() < 1e-7 && (freq[1] - 0.05).abs() < 1e-7, "{freq:?}");
    }

    #[test]
    fn rotation_by_hand() {
        // At position 1 with theta 100 the angles are 1 and 0.1: pair (1, 3) is rotated by 1, pair (2, 4) by
        // 0.1.
        let rope = Rope { theta: 100.0, dim: 4, scaling: Scaling::None };
        let rotary = rope.rotary(&Tensor::from_slice(&[1_i64]), &[1], &[2], Kind::Float);
        let rotated = rotary.apply(&Tensor::from_slice(&[1.0_f32, 2.0, 3.0, 4.0]).view([1, 1, 4]));
        let got = Vec::<f32>::try_from(rotated.view([4])).unwrap();
        let (c1, s1, c2, s2) = (1f32.cos(), 1f32.sin(), 0.1f32.cos(), 0.1f32.sin());
        let expected = [c1 - 3.0 * s1, 2.0 * c2 - 4.0 * s2, 3.0 * c1 + s1, 4.0 * c2 + 2.0 * s2];
        assert!(got.iter().zip(expected).all(|(a, b)| (a - b).abs() < 1e-6), "{got:?} {expected:?}");
    }

    #[test]
    fn what_is_not_known_is_refused_by_name() {
        for (text, word) in [
            (r#"{"rope_scaling": {"type": "longrope", "factor": 2.0}}"#, "longrope"),
            (r#"{"rope_scaling": {"type": "linear", "factor": 2.0, "mrope_section": [1]}}"#, "mrope_section"),
            (r#"{"rope_parameters": {"full_attention": {"rope_type": "default"}}}"#, "full_attention"),
            (r#"{"rope_scaling": {"type": "linear"}}"#, "rope_scaling.factor"),
            (r#"{"partial_rotary_factor": 0.5}"#, "partial_rotary_factor"),
        ] {
            let error = read(text).unwrap_err().to_string();
            assert!(error.contains(word), "{error}");
        }
    }
}
