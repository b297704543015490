//! The memory that oneDNN keeps for shapes of matrices, in a process of its own, since memory is counted for
//! the whole of it.

use parallel_sys::memory;
use tch::{Device, Kind, Tensor};

#[test]
fn products_of_many_shapes_keep_little_memory() {
    const WIDTH: i64 = 384;
    let options = (Kind::BFloat16, Device::Cpu);
    let weight = Tensor::ones([WIDTH, WIDTH], options);
    let product = |rows: i64| {
        let sum = Tensor::ones([rows, WIDTH], options).matmul(&weight).sum(Kind::Double).double_value(&[]);
        assert_eq!(sum, (rows * WIDTH * WIDTH) as f64);
    };
    // Both caches are full after these.
    (100..180).for_each(product);
    let before = memory::anonymous_rss_bytes();
    (200..600).for_each(product);
    let grown = memory::anonymous_rss_bytes().saturating_sub(before);
    // With the defaults, 400 more shapes took 280 MiB on a processor that multiplies in bf16. Others compile
    // nothing.
    assert!(grown < 64 << 20, "{} MiB", grown >> 20);
}
