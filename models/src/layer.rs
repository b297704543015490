//! Linear maps and norms, and the registry through which every parameter enters a model.
//!
//! Legend: `N` tokens, `H` width.

use std::ops::Range;
use std::sync::Arc;

use parallel::comm::Group;
use parallel::dispatch::{self, Value};
use parallel::{Parameter, Placement, deferred};
use tch::{Kind, Tensor};

use crate::Error;
use crate::architecture::{Architecture, NormKind};
use crate::initialize::Initial;
use crate::split::{Share, Split};

/// Rows from which oneDNN is faster than MKL on matrices of [`for_few_rows`]: MKL packs them anew for each product, which
/// costs as much as 100 rows, and below 16 rows the two are even.
const ROWS_OF_ONEDNN: std::ops::RangeInclusive<i64> = 16..=256;

/// A parameter that a model asks for.
#[derive(Clone, Copy, Debug)]
pub struct Request<'a> {
    /// The checkpoint's name.
    pub name: &'a str,
    /// The shape of the whole.
    pub shape: &'a [i64],
    /// What this rank holds of it.
    pub placement: &'a Placement,
    /// Its distribution in a new model.
    pub initial: Initial,
    /// Whether this rank holds (a shard of) the parameter. If not, the source only checks that the checkpoint
    /// contains it.
    pub here: bool,
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
    split: &'a Split,
    here: bool,
    exclusive: bool,
    parameters: Vec<Parameter>,
}

impl<'a> Registry<'a> {
    /// An empty list for a model of this architecture.
    pub fn new(architecture: &'a Architecture, split: &'a Split, source: &'a mut Source<'a>) -> Self {
        Self { architecture, source, split, here: true, exclusive: false, parameters: Vec::new() }
    }

    /// Those among whom the layers are split.
    pub fn group(&self) -> Option<&'a Arc<Group>> {
        self.split.weights.as_ref()
    }

    /// How ranks share the model.
    pub fn split(&self) -> &'a Split {
        self.split
    }

    /// Whether this rank has the layers that come next. Those of others have neither values nor parameters.
    pub fn set_here(&mut self, here: bool) {
        self.here = here;
    }

    /// Runs `make` for one expert, which this rank of an expert group has or not.
    pub fn expert<T>(&mut self, own: bool, make: impl FnOnce(&mut Self) -> T) -> T {
        let here = self.here;
        self.here &= own;
        self.exclusive = self.split.experts.is_some();
        let made = make(self);
        (self.here, self.exclusive) = (here, false);
        made
    }

    /// The parameter `index` is there once more on the other ranks of `copies`.
    pub fn is_copied(&mut self, index: usize, copies: &Arc<Group>) {
        self.parameters[index].copies = Some(Arc::clone(copies));
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
    pub fn take(
        &mut self,
        name: &str,
        shape: &[i64],
        initial: Initial,
        share: &Share,
    ) -> Result<Tensor, Error> {
        self.ask(name, shape, initial, false, share)
    }

    fn ask(
        &mut self,
        name: &str,
        shape: &[i64],
        initial: Initial,
        is_matrix: bool,
        share: &Share,
    ) -> Result<Tensor, Error> {
        let placement = match (share, self.group()) {
            (Share::Part(cut), Some(group)) => {
                Placement::Shard { cut: cut.clone(), group: Arc::clone(group) }
            }
            _ => Placement::Replicate,
        };
        let tensor = (self.source)(&Request {
            name,
            shape,
            placement: &placement,
            initial,
            here: self.here,
            is_matrix,
        })?;
        if !self.here {
            return Ok(tensor);
        }
        let partial = matches!(share, Share::Terms);
        self.parameters.push(Parameter {
            partial,
            exclusive: self.exclusive,
            ..Parameter::placed(name, &tensor, placement)
        });
        Ok(tensor)
    }

    /// The matrix `{name}.weight` `[rows, width]` of a head, split by rows.
    pub fn head(&mut self, name: &str, rows: i64, width: i64, share: &Share) -> Result<Tensor, Error> {
        let initial = Initial::Normal(self.architecture.initializer_range);
        self.ask(&format!("{name}.weight"), &[rows, width], initial, true, share)
    }

    /// A table `{name}.weight` `[rows, width]`, split by rows.
    pub fn embedding(&mut self, name: &str, rows: i64, width: i64, share: &Share) -> Result<Tensor, Error> {
        let initial = Initial::Normal(self.architecture.initializer_range);
        self.ask(&format!("{name}.weight"), &[rows, width], initial, false, share)
    }

    /// A linear map whose columns, the outer dimension, are split.
    pub fn columns(
        &mut self,
        name: &str,
        sizes: [i64; 2],
        bias: bool,
        share: &Share,
    ) -> Result<Linear, Error> {
        let weight = self.matrix(name, sizes, 1, self.architecture.initializer_range, share)?;
        self.with_bias(name, weight, bias.then_some(sizes[1]), share)
    }

    /// A linear map back into the residual stream whose rows, the inner dimension, are split: what the ranks make of their parts adds
    /// up to the product.
    pub fn rows(&mut self, name: &str, sizes: [i64; 2], bias: bool, share: &Share) -> Result<Linear, Error> {
        let weight = self.matrix(name, sizes, 0, self.architecture.residual_initializer_range, share)?;
        self.with_bias(name, weight, bias.then_some(sizes[1]), &self.split.outside())
    }

    /// The weight of a linear map of `[inner, outer]` sizes, of which `side` is split.
    fn matrix(
        &mut self,
        name: &str,
        [inner, outer]: [i64; 2],
        side: usize,
        deviation: f64,
        share: &Share,
    ) -> Result<Tensor, Error> {
        let in_out = self.architecture.in_out;
        let (shape, dim) = if in_out { ([inner, outer], side) } else { ([outer, inner], 1 - side) };
        let share = match share {
            Share::Part(cut) => Share::Part(cut.of_dim(dim)),
            other => other.clone(),
        };
        self.ask(&format!("{name}.weight"), &shape, Initial::Normal(deviation), !in_out, &share)
    }

    fn with_bias(
        &mut self,
        name: &str,
        weight: Tensor,
        bias: Option<i64>,
        share: &Share,
    ) -> Result<Linear, Error> {
        let bias = match bias {
            Some(size) => Some(self.ask(&format!("{name}.bias"), &[size], Initial::Zeros, false, share)?),
            None => None,
        };
        Ok(Linear { weight, bias, in_out: self.architecture.in_out })
    }

    /// A norm over the last dimension, of the architecture's kind; an RMS norm has no bias.
    pub fn norm(&mut self, name: &str, size: i64) -> Result<Norm, Error> {
        self.norm_of(name, size, &self.split.outside())
    }

    /// [`norm`](Self::norm) over what each rank has of its own.
    pub fn norm_of(&mut self, name: &str, size: i64, share: &Share) -> Result<Norm, Error> {
        let (kind, eps) = (self.architecture.norm, self.architecture.norm_eps);
        let (mut weight, mut bias) = (None, None);
        if self.architecture.norm_affine {
            weight = Some(self.ask(&format!("{name}.weight"), &[size], Initial::Ones, false, share)?);
            if kind == NormKind::Layer {
                bias = Some(self.ask(&format!("{name}.bias"), &[size], Initial::Zeros, false, share)?);
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
        if let Some(product) = self.put_off(x) {
            return self.with_bias(product);
        }
        match (&self.bias, self.in_out) {
            (bias, false) => x.linear(&self.weight, bias.as_ref()),
            (Some(bias), true) => bias.addmm(x, &self.weight),
            (None, true) => x.matmul(&self.weight),
        }
    }

    /// [`forward`](Self::forward) without the bias.
    pub fn product(&self, x: &Tensor) -> Tensor {
        if let Some(product) = self.put_off(x) {
            return product;
        }
        if self.in_out { x.matmul(&self.weight) } else { x.linear(&self.weight, None::<&Tensor>) }
    }

    /// The product, where the gradient of the weight is put off.
    fn put_off(&self, x: &Tensor) -> Option<Tensor> {
        let product = deferred::product(x, &self.weight, self.in_out)?;
        Some(product.expect("a node is put behind a product that is there"))
    }

    /// `x` `[N, out]` and the bias.
    pub fn with_bias(&self, x: Tensor) -> Tensor {
        match &self.bias {
            Some(bias) => x + bias,
            None => x,
        }
    }

    /// The same map to `columns` of the output alone.
    #[must_use]
    pub fn of_columns(&self, columns: &Range<i64>) -> Self {
        let part = |x: &Tensor, dim: i64| x.narrow(dim, columns.start, columns.end - columns.start);
        Self {
            weight: part(&self.weight, i64::from(self.in_out)),
            bias: self.bias.as_ref().map(|bias| part(bias, 0)),
            in_out: self.in_out,
        }
    }

    /// [`forward`](Self::forward) plus `residual` `[N, out]`, in one operation where there is no bias.
    pub fn forward_onto(&self, x: &Tensor, residual: Option<&Tensor>) -> Tensor {
        match (residual, &self.bias) {
            (None, _) => self.forward(x),
            (Some(residual), _) if deferred::is_collecting() => self.forward(x) + residual,
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
