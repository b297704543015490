//! Linear maps and norms, and the registry through which every parameter enters a model.
//!
//! Legend: `N` tokens, `H` width.

use parallel::Parameter;
use tch::{Kind, Tensor};

use crate::Error;
use crate::architecture::{Architecture, NormKind};
use crate::initialize::Initial;

/// A parameter that a model asks for.
#[derive(Clone, Copy, Debug)]
pub struct Request<'a> {
    /// The checkpoint's name.
    pub name: &'a str,
    /// Its shape.
    pub shape: &'a [i64],
    /// Its distribution in a new model.
    pub initial: Initial,
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

    /// A parameter.
    pub fn take(&mut self, name: &str, shape: &[i64], initial: Initial) -> Result<Tensor, Error> {
        let tensor = (self.source)(&Request { name, shape, initial })?;
        self.parameters.push(Parameter::replicated(name, &tensor));
        Ok(tensor)
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
        let weight = self.take(&format!("{name}.weight"), &shape, Initial::Normal(deviation))?;
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
