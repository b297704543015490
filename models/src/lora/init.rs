//! The values that an adapter begins with: drawn, beside a weight that stays as it is, or a part of the
//! weight `W` `[out, in]` of its layer.
//!
//! ```text
//!   PiSSA   A = sqrt(S_r / s) V_r^T   B = U_r sqrt(S_r / s)   W = U S V^T, the largest of S first
//!   OLoRA   A = R_r                   B = Q_r                 W = Q R
//!   LoftQ   as PiSSA, of W - Q                                Q = dequantise(quantise(W))
//! ```
//! `s` is the factor of the adapter's output. With PiSSA and OLoRA the layer's weight becomes `W - s B A`, so
//! that the layer computes what it did, and training goes on from the part of `W` that the adapter has. With
//! LoftQ it becomes `Q`, and `s B A` is the best approximation of rank `r` of what `Q` lacks. (PiSSA: Meng et
//! al. 2024, arXiv 2404.02948, section 3; OLoRA: Büyükakyüz 2024, arXiv 2406.01775, section 3; LoftQ: Li et
//! al. 2023, arXiv 2310.08659, algorithm 1 with one iteration.) The factors are those of PEFT 0.21.2, but for
//! LoftQ with `s` other than 1: PEFT leaves it out of account, and the error does not become smaller then.

use parallel::Placement;
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use serde_json::Value;
use tch::{Kind, Tensor, no_grad};

use crate::Error;
use crate::quantize::{Quantization, QuantizedMatrix};

/// The values that new adapters are drawn with. The output of each adapted layer stays what it was.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Init {
    /// `A` uniform between `-1/sqrt(in)` and `1/sqrt(in)`, `B` zero.
    #[default]
    Default,
    /// `A` normal with deviation `1/r`, `B` zero.
    Gaussian,
}

/// Values that are computed from the weight of the layer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WeightInit {
    /// The largest singular values with their vectors.
    Pissa,
    /// The first columns of `Q` and rows of `R`.
    Olora,
    /// The largest singular values of what quantisation takes away, with their vectors.
    Loftq(Quantization),
}

impl WeightInit {
    /// Whether the weights of the model change. LoftQ leaves them to be quantised while they are read.
    pub fn changes_weights(self) -> bool {
        !matches!(self, Self::Loftq(_))
    }

    /// `A` `[r, in]` and `B` `[out, r]` in fp32 for a layer with `weight` `[out, in]`, which has at least `r`
    /// inputs and outputs, and with an adapter whose output is multiplied by `scaling`.
    pub(crate) fn factors(self, weight: &Tensor, r: i64, scaling: f64) -> Result<[Tensor; 2], Error> {
        let weight = weight.detach().to_kind(Kind::Float);
        match self {
            Self::Pissa => largest_singular(&weight, r, scaling),
            Self::Olora => {
                let (orthonormal, triangle) = Tensor::f_linalg_qr(&weight, "reduced")?;
                Ok([triangle.narrow(0, 0, r).contiguous(), orthonormal.narrow(1, 0, r).contiguous()])
            }
            Self::Loftq(quantization) => {
                let quantized = QuantizedMatrix::new(quantization, &weight, &Placement::Replicate);
                let quantized = quantized.expect("the rows of a whole matrix are whole");
                largest_singular(&(weight - quantized.dense(Kind::Float)), r, scaling)
            }
        }
    }
}

/// `A` and `B` whose product, multiplied by the factor of the output, is the best approximation of `weight`
/// of their rank (Eckart and Young 1936, <https://doi.org/10.1007/BF02288367>).
fn largest_singular(weight: &Tensor, r: i64, scaling: f64) -> Result<[Tensor; 2], Error> {
    let (u, s, v) = weight.f_svd(true, true)?;
    Ok(no_grad(|| {
        let roots = (s.narrow(0, 0, r) / scaling).sqrt();
        let [a, b] = [v, u].map(|vectors| vectors.narrow(1, 0, r) * &roots);
        [a.tr().contiguous(), b]
    }))
}

impl Serialize for Init {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self {
            Self::Default => serializer.serialize_bool(true),
            Self::Gaussian => serializer.serialize_str("gaussian"),
        }
    }
}

impl<'de> Deserialize<'de> for Init {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        match Value::deserialize(deserializer)? {
            Value::Bool(true) => Ok(Self::Default),
            Value::String(name) if name == "gaussian" => Ok(Self::Gaussian),
            other => Err(serde::de::Error::custom(match other.as_str().and_then(command_init) {
                Some(init) => format!(
                    "`init_lora_weights` = {other} draws no numbers: make the adapter with `model init-adapter --init \
                     {init}`, name its folder in [model] path, and leave out [model.lora]"
                ),
                None => format!("`init_lora_weights` must be true or \"gaussian\", got {other}"),
            })),
        }
    }
}

/// The `--init` of the command that makes the adapters for which PEFT has the name `name`.
fn command_init(name: &str) -> Option<&'static str> {
    // PEFT also has `pissa_niter_4`, which approximates the singular values.
    ["pissa", "olora", "loftq", "eva"].into_iter().find(|init| name.starts_with(init))
}

/// What to do with an adapter of PEFT whose file names an initialisation that has changed the weights of its
/// model; `None` for other names.
pub(super) fn fix_for_peft(name: &str) -> Option<&'static str> {
    let begins_with = |inits: &[&str]| inits.iter().any(|init| name.starts_with(init));
    if begins_with(&["pissa", "olora", "corda", "lora_ga"]) {
        return Some(
            "the adapter belongs to weights that PEFT has changed: save it with \
             `path_initial_model_for_weight_conversion`, which makes it one of the original model",
        );
    }
    begins_with(&["loftq"]).then_some(
        "the adapter belongs to weights that PEFT has quantised: merge it into them with PEFT, or make another one \
         with `model init-adapter --init loftq`",
    )
}

#[cfg(test)]
mod tests {
    use tch::Device;

    use super::*;

    fn random(shape: &[i64]) -> Tensor {
        tch::manual_seed(5);
        Tensor::randn(shape, (Kind::Float, Device::Cpu))
    }

    fn product([a, b]: &[Tensor; 2], scaling: f64) -> Tensor {
        b.matmul(a) * scaling
    }

    /// `W = 6 e_0 f_1^T + 3 e_1 f_0^T + e_2 f_2^T`, whose singular values are 6, 3 and 1.
    #[test]
    fn pissa_takes_the_largest_singular_values() {
        let weight =
            Tensor::from_slice2(&[[0f32, 6.0, 0.0, 0.0], [3.0, 0.0, 0.0, 0.0], [0.0, 0.0, 1.0, 0.0]]);
        for scaling in [1.0, 1.5] {
            let factors = WeightInit::Pissa.factors(&weight, 2, scaling).unwrap();
            let expected =
                Tensor::from_slice2(&[[0f32, 6.0, 0.0, 0.0], [3.0, 0.0, 0.0, 0.0], [0.0, 0.0, 0.0, 0.0]]);
            assert!(product(&factors, scaling).allclose(&expected, 1e-6, 1e-6, false));
            // Both matrices have the roots: the rows of A have the squares 6 / s and 3 / s.
            let squares = factors[0].square().sum_dim_intlist(1, false, Kind::Float);
            let expected = Tensor::from_slice(&[6f32, 3.0]) / scaling;
            assert!(squares.allclose(&expected, 1e-5, 1e-6, false), "{squares:?}");
        }
    }

    #[test]
    fn olora_has_orthonormal_columns_and_a_triangle() {
        for shape in [[9, 6], [6, 9]] {
            let weight = random(&shape);
            let [a, b] = WeightInit::Olora.factors(&weight, 4, 2.0).unwrap();
            let identity = Tensor::eye(4, (Kind::Float, Device::Cpu));
            assert!(b.tr().matmul(&b).allclose(&identity, 0.0, 1e-6, false));
            assert!(a.tril(-1).abs().max().double_value(&[]) == 0.0);
            // The first columns of Q span the first columns of W, so the product has these.
            let first = |x: &Tensor| x.narrow(1, 0, 4);
            assert!(first(&b.matmul(&a)).allclose(&first(&weight), 0.0, 1e-5, false));
        }
    }

    #[test]
    fn a_run_file_that_wants_parts_of_the_weights_is_told_the_command() {
        for (name, init) in [
            ("pissa", "pissa"),
            ("pissa_niter_4", "pissa"),
            ("olora", "olora"),
            ("loftq", "loftq"),
            ("eva", "eva"),
        ] {
            let error = serde_json::from_value::<Init>(name.into()).unwrap_err().to_string();
            let words =
                [format!("`init_lora_weights` = \"{name}\""), format!("model init-adapter --init {init}`")];
            assert!(words.iter().all(|words| error.contains(words)), "{error}");
        }
        let error = serde_json::from_value::<Init>("orthogonal".into()).unwrap_err().to_string();
        assert_eq!(error, "`init_lora_weights` must be true or \"gaussian\", got \"orthogonal\"");
    }

    /// What is left of the error has the norm of the smaller singular values, whatever the factor.
    #[test]
    fn loftq_makes_up_for_the_largest_part_of_the_error() {
        let weight = random(&[48, 80]);
        for quantization in [Quantization::Nf4, Quantization::Int8] {
            let quantized = QuantizedMatrix::new(quantization, &weight, &Placement::Replicate).unwrap();
            let error = &weight - quantized.dense(Kind::Float);
            let squares = error.to_kind(Kind::Double).matmul(&error.to_kind(Kind::Double).tr());
            let (eigenvalues, _) = squares.linalg_eigh("L");
            let smallest = eigenvalues.narrow(0, 0, 40).sum(Kind::Double).sqrt().double_value(&[]);
            for scaling in [1.0, 2.0, 0.25] {
                let factors = WeightInit::Loftq(quantization).factors(&weight, 8, scaling).unwrap();
                let left = (&error - product(&factors, scaling)).norm().double_value(&[]);
                assert!((left / smallest - 1.0).abs() < 1e-4, "{quantization:?}, {scaling}: {left}");
                assert!(left < 0.95 * error.norm().double_value(&[]));
            }
        }
    }
}
