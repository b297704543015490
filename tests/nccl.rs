//! What needs a GPU: NCCL among one rank. Where there is none it says so and ends.

use std::time::Duration;

use parallel::c10d::Secret;
use parallel::comm::nccl::NcclGroup;
use parallel::comm::{Backend, Reduction};
use parallel::rendezvous::open_store;
use parallel::{RankInfo, runtime};
use tch::{Cuda, Device, Kind, Tensor};

const TIMEOUT: Duration = Duration::from_secs(60);

#[test]
fn a_rank_by_itself_gets_its_own_numbers_in_order() {
    if let Err(reason) = runtime::load_cuda() {
        return println!("skipped: {reason}");
    }
    if !Cuda::is_available() {
        return println!("skipped: there is no GPU");
    }
    let rank_info = RankInfo { secret: Some(Secret::random().unwrap()), ..RankInfo::single() };
    let store = open_store(&rank_info, TIMEOUT).unwrap();
    let mut group = NcclGroup::join(&store, "one", [0, 1], 0, TIMEOUT).unwrap();
    let options = (Kind::Float, Device::Cuda(0));
    let weight = Tensor::randn([4096, 4096], options) / 64.0;
    // Long enough in the making that a collective that did not wait for it would find old numbers.
    let make = || (0..50).fold(weight.copy(), |product, _| product.matmul(&weight).tanh());
    let expected = make();
    let empty = || Tensor::zeros_like(&expected);

    let reduced = make();
    group.all_reduce(&reduced, Reduction::Sum).unwrap().wait().unwrap();
    assert_eq!(reduced, expected);
    let gathered = empty();
    group.all_gather(&gathered, &make()).unwrap().wait().unwrap();
    assert_eq!(gathered, expected);
    let scattered = empty();
    group.reduce_scatter(&scattered, &make()).unwrap().wait().unwrap();
    assert_eq!(scattered, expected);
    let exchanged = empty();
    group.all_to_all(&exchanged, &make(), [&[4096], &[4096]]).unwrap().wait().unwrap();
    assert_eq!(exchanged, expected);
    let received = make();
    group.broadcast(&received, 0).unwrap().wait().unwrap();
    assert_eq!(received, expected);
    group.barrier().unwrap();

    let error = group.broadcast(&Tensor::zeros([1], (Kind::Float, Device::Cpu)), 0).unwrap_err().to_string();
    assert!(error.contains("must be contiguous and on the GPU 0"), "{error}");
}
