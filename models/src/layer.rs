//! Linear maps and norms, and the registry through which every parameter enters a model.
//!
//! Legend: `N` tokens, `H` width.

use parallel::Parameter;
use parallel::dispatch::{self, Value};
use tch::{Kind, Tensor};

use crate::Error;
use crate::architecture::{Architecture, NormKind};
use crate::initialize::Initial;

/// Rows from which oneDNN is faster than MKL on matrices of [`for_few_rows`]: MKL packs them anew for each product, which
/// costs as much as 100 rows, and below 16 rows the two are even.
const ROWS_OF_ONEDNN: std::ops::RangeInclusive<i64> = 16..=256;

/// A parameter that a model asks for.
#[derive(Clone, Copy, Debug)]
pub struct Request<'a> {
    /// The checkpoint's name.
    pub name: &'a str,
    /// Its shape.
    pub shape: &'a [i64],
    /// Its distribution in a new model.
    pub initial: Initial,
    /// Whether tokens are multiplied by its transpose, so that [`for_few_rows`] may lay it out anew.
    pub is_matrix: bool,
}

/// The same matrix `[out, in]` with its columns side by side in memory.
///
/// A product of few rows with the transpose of a matrix takes half the time or less when the memory is that of the transpose:
/// the kernels have to reorder nothing, and with few rows nothing else is there to hide it behind. Shares memory with
/// `weight` where that is laid out so already.
pub fn for_few_rows(weight: &Tensor) -> Tensor {
    let columns = weight.tr();
    if columns.is_contiguous() { weight.shallow_clone() } else { columns.contiguous().tr() }
}

/// Where parameters come from: a checkpoint or a generator.
pub type Source<'a> = dyn FnMut(&Request<'_>) -> Result<Tensor, Error> + 'a;

/// Makes layers and keeps the list of their parameters in order of use.
pub struct Registry<'a> {
    architecture: &'a Architecture,
    source: &'a mut Source<'a>,
    parameters: Vec<Parameter>,
}

impl<'a> Registry<'a> {
    /// An empty list for a model of this architecture.
    pub fn new(architecture: &'a Architecture, source: &'a mut Source<'a>) -> Self {
        Self { architecture, source, parameters: Vec::new() }
    }

    /// The parameters so far.
    pub fn len(&self) -> usize {
        self.parameters.len()
    }

    /// Whether there is none yet.
    pub fn is_empty(&self) -> bool {
        self.parameters.is_empty()
    }

    /// All parameters, in order of use.
    pub fn into_parameters(self) -> Vec<Parameter> {
        self.parameters
    }

    /// A parameter that tokens are not multiplied by.
    pub fn take(&mut self, name: &str, shape: &[i64], initial: Initial) -> Result<Tensor, Error> {
        self.ask(Request { name, shape, initial, is_matrix: false })
    }

    fn ask(&mut self, request: Request<'_>) -> Result<Tensor, Error> {
        let tensor = (self.source)(&request)?;
        self.parameters.push(Parameter::replicated(request.name, &tensor));
        Ok(tensor)
    }

    /// The matrix `{name}.weight` `[rows, width]` of a head.
    pub fn head(&mut self, name: &str, rows: i64, width: i64) -> Result<Tensor, Error> {
        self.ask(Request {
            name: &format!("{name}.weight"),
            shape: &[rows, width],
            initial: Initial::Normal(self.architecture.initializer_range),
            is_matrix: true,
        })
    }

    /// A table `{name}.weight` `[rows, width]`.
    pub fn embedding(&mut self, name: &str, rows: i64, width: i64) -> Result<Tensor, Error> {
        let initial = Initial::Normal(self.architecture.initializer_range);
        self.take(&format!("{name}.weight"), &[rows, width], initial)
    }

    /// A linear map.
    pub fn linear(&mut self, name: &str, inner: i64, outer: i64, bias: bool) -> Result<Linear, Error> {
        self.linear_with(name, [inner, outer], bias, self.architecture.initializer_range)
    }

    /// A linear map back into the residual stream.
    pub fn residual_linear(
        &mut self,
        name: &str,
        inner: i64,
        outer: i64,
        bias: bool,
    ) -> Result<Linear, Error> {
        self.linear_with(name, [inner, outer], bias, self.architecture.residual_initializer_range)
    }

    fn linear_with(
        &mut self,
        name: &str,
        sizes: [i64; 2],
        bias: bool,
        deviation: f64,
    ) -> Result<Linear, Error> {
        let in_out = self.architecture.in_out;
        let shape = if in_out { sizes } else { [sizes[1], sizes[0]] };
        let weight = self.ask(Request {
            name: &format!("{name}.weight"),
            shape: &shape,
            initial: Initial::Normal(deviation),
            is_matrix: !in_out,
        })?;
        let bias =
            if bias { Some(self.take(&format!("{name}.bias"), &[sizes[1]], Initial::Zeros)?) } else { None };
        Ok(Linear { weight, bias, in_out })
    }

    /// A norm over the last dimension, of the architecture's kind; an RMS norm has no bias.
    pub fn norm(&mut self, name: &str, size: i64) -> Result<Norm, Error> {
        let (kind, eps) = (self.architecture.norm, self.architecture.norm_eps);
        let (mut weight, mut bias) = (None, None);
        if self.architecture.norm_affine {
            weight = Some(self.take(&format!("{name}.weight"), &[size], Initial::Ones)?);
            if kind == NormKind::Layer {
                bias = Some(self.take(&format!("{name}.bias"), &[size], Initial::Zeros)?);
            }
        }
        Ok(Norm { kind, eps, size, weight, bias })
    }
}

/// Whether [`multiply_few_rows`] is the faster way to `x W^T`.
pub(crate) fn suits_few_rows(x: &Tensor, weight: &Tensor) -> bool {
    let relaid = weight.tr().is_contiguous() && !weight.is_contiguous();
    let plain = x.kind() == Kind::Float && x.device() == tch::Device::Cpu && !x.requires_grad();
    relaid && plain && ROWS_OF_ONEDNN.contains(&x.size()[0])
}

/// `x W^T + b` of `x` `[N, in]` and `weight` `[out, in]` laid out by [`for_few_rows`], without a graph, by oneDNN.
pub(crate) fn multiply_few_rows(x: &Tensor, weight: &Tensor, bias: Option<&Tensor>) -> Tensor {
    let arguments = [
        Value::Tensor(x),
        Value::Tensor(weight),
        bias.map_or(Value::None, Value::Tensor),
        Value::Str("none"),
        Value::Doubles(&[]),
        Value::Str(""),
    ];
    let mut product = dispatch::call_tensors("mkldnn::_linear_pointwise", "", &arguments)
        .expect("shapes were checked at loading");
    product.pop().expect("the operation has one result")
}

/// `x W + b`.
#[derive(Debug)]
pub struct Linear {
    /// `[out, in]`, or `[in, out]` as stored by GPT-2.
    weight: Tensor,
    bias: Option<Tensor>,
    in_out: bool,
}

impl Linear {
    /// `[N, in]` to `[N, out]`.
    pub fn forward(&self, x: &Tensor) -> Tensor {
        if !self.in_out && suits_few_rows(x, &self.weight) {
            return multiply_few_rows(x, &self.weight, self.bias.as_ref());
        }
        match (&self.bias, self.in_out) {
            (bias, false) => x.linear(&self.weight, bias.as_ref()),
            (Some(bias), true) => bias.addmm(x, &self.weight),
            (None, true) => x.matmul(&self.weight),
        }
    }

    /// [`forward`](Self::forward) plus `residual` `[N, out]`, in one operation where there is no bias.
    pub fn forward_onto(&self, x: &Tensor, residual: Option<&Tensor>) -> Tensor {
        match (residual, &self.bias) {
            (None, _) => self.forward(x),
            (Some(residual), Some(_)) => self.forward(x) + residual,
            (Some(residual), None) if self.in_out => residual.addmm(x, &self.weight),
            (Some(residual), None) if suits_few_rows(x, &self.weight) => self.forward(x) + residual,
            (Some(residual), None) => residual.addmm(x, &self.weight.tr()),
        }
    }
}

/// A norm over the last dimension.
#[derive(Debug)]
pub struct Norm {
    kind: NormKind,
    eps: f64,
    size: i64,
    weight: Option<Tensor>,
    bias: Option<Tensor>,
}

impl Norm {
    /// The same shape; computed in fp32 and given back in the kind of `x`.
    pub fn forward(&self, x: &Tensor) -> Tensor {
        match self.kind {
            NormKind::Layer => {
                x.layer_norm([self.size], self.weight.as_ref(), self.bias.as_ref(), self.eps, false)
            }
            NormKind::Rms => self.rms(x),
        }
    }

    fn rms(&self, x: &Tensor) -> Tensor {
        let full = x.to_kind(Kind::Float);
        let root = (full.square().mean_dim(-1, true, Kind::Float) + self.eps).rsqrt();
        let normed = (full * root).to_kind(x.kind());
        match &self.weight {
            Some(weight) => normed * weight,
            None => normed,
        }
    }
}

#[cfg(test)]
mod tests {
    use tch::Device;

    use super::*;

    #[test]
    fn few_rows_are_the_same_product() {
        tch::manual_seed(3);
        let random = |shape: &[i64]| Tensor::randn(shape, (Kind::Float, Device::Cpu));
        let (weight, bias) = (random(&[70, 48]), random(&[70]));
        let relaid = for_few_rows(&weight);
        assert_eq!(relaid, weight);
        assert_eq!(for_few_rows(&relaid).data_ptr(), relaid.data_ptr(), "what is laid out so is shared");
        for rows in [1, 16, 33, 300] {
            // Columns of a wider tensor: rows need not lie side by side.
            let x = random(&[rows, 100]).narrow(1, 5, 48);
            let linear = |weight: &Tensor| Linear {
                weight: weight.shallow_clone(),
                bias: Some(bias.shallow_clone()),
                in_out: false,
            };
            assert_eq!(suits_few_rows(&x, &relaid), rows == 16 || rows == 33);
            let (plain, fast) = (linear(&weight).forward(&x), linear(&relaid).forward(&x));
            assert!(plain.allclose(&fast, 1e-5, 1e-5, false), "{rows} rows");
        }
    }
}
