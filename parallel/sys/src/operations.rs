//! Counts operations of libtorch and our own [`kernels`](crate::kernels). A count needs no clock, so a test
//! can hold the work of a layer to a number.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::ffi::c_void;

use crate::raw::{self, ShimValue};
use crate::{Error, check};

/// How often an operation ran, by its name, such as `aten::addmm`.
pub type Counts = BTreeMap<String, usize>;

thread_local! {
    /// The kernels that this thread has started during [`count`].
    static KERNELS: RefCell<Option<Counts>> = const { RefCell::new(None) };
}

/// Counts a kernel of our own, if this thread counts.
pub(crate) fn record(kernel: &str) {
    KERNELS.with_borrow_mut(|counts| {
        if let Some(counts) = counts {
            *counts.entry(format!("kernels::{kernel}")).or_default() += 1;
        }
    });
}

/// Runs `compute` and counts the operations that this thread dispatches, with those that they dispatch in
/// turn: `aten::linear` counts, and so does the `aten::addmm` inside it. Calls are not nested.
///
/// Our own kernels count as well, such as `kernels::linear`.
pub fn count<T>(compute: impl FnOnce() -> T) -> Result<(T, Counts), Error> {
    // SAFETY: the function takes nothing.
    check("shim_operations_begin", unsafe { raw::shim_operations_begin() })?;
    KERNELS.set(Some(Counts::new()));
    let result = compute();
    let mut counts = KERNELS.take().unwrap_or_default();
    // SAFETY: `collect` is only called during the call, with `counts` as its context.
    let code = unsafe { raw::shim_operations_end(collect, (&raw mut counts).cast()) };
    check("shim_operations_end", code)?;
    Ok((result, counts))
}

extern "C" fn collect(context: *mut c_void, value: *const ShimValue) {
    // SAFETY: the shim passes on the context of `count`, and a text that lives during this call.
    let (counts, value, name) = unsafe {
        let value = *value;
        let name = std::slice::from_raw_parts(value.data.cast::<u8>(), value.length);
        (&mut *context.cast::<Counts>(), value, name)
    };
    counts.insert(String::from_utf8_lossy(name).into_owned(), value.integer as usize);
}

#[cfg(test)]
mod tests {
    use tch::{Kind, Tensor};

    use super::*;

    #[test]
    fn operations_are_counted_on_their_thread_and_while_asked() {
        let x = Tensor::ones([2, 2], (Kind::Float, tch::Device::Cpu));
        let (_, counts) = count(|| {
            std::thread::scope(|scope| {
                scope.spawn(|| Tensor::ones([1], (Kind::Float, tch::Device::Cpu)).exp());
            });
            [x.matmul(&x), x.matmul(&x)]
        })
        .unwrap();
        assert_eq!((counts["aten::matmul"], counts["aten::mm"], counts.get("aten::exp")), (2, 2, None));
        let _ = x.exp();
        assert_eq!(count(|| ()).unwrap().1, Counts::new());
    }
}
