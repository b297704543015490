//! Memory of a device behind addresses that stay, and copies that run while the host goes on.

use std::sync::Arc;

use parallel_sys::arena::Arena;
use parallel_sys::device_allocator;
use parallel_sys::driver::Driver;
use parallel_sys::runtime;
use tch::{Device, Kind, Tensor};

fn driver() -> Arc<Driver> {
    accelerator::load();
    Driver::open(Device::Mps).unwrap()
}

fn values(tensor: &Tensor) -> Vec<f32> {
    Vec::try_from(tensor.to_device(Device::Cpu).view([-1])).unwrap()
}

#[test]
fn values_go_to_the_host_and_come_back_to_the_same_addresses() {
    let driver = driver();
    let piece = driver.granularity();
    let arena = Arena::reserve_on(&driver, 2 * piece).unwrap();
    let buffer = Arena::reserve(piece).unwrap();
    buffer.pin(&driver).unwrap();
    let mut tensor = arena.tensor(piece, &[2, 3], &[3, 1], Kind::Float).unwrap();
    assert_eq!((tensor.device(), arena.resident_bytes(0..2 * piece).unwrap()), (Device::Mps, 0));

    arena.commit(piece..2 * piece).unwrap();
    arena.clear(piece..2 * piece).unwrap();
    assert_eq!(values(&tensor), [0.0; 6]);
    tensor.copy_(&Tensor::from_slice(&[1.0_f32, 2.0, 3.0, 4.0, 5.0, 6.0]).view([2, 3]));
    let saved = driver.start_copy_to_host((&arena, piece..2 * piece), &buffer).unwrap();
    saved.wait().unwrap();
    driver.mark().unwrap().wait().unwrap();
    arena.release(piece..2 * piece).unwrap();
    assert_eq!(arena.resident_bytes(0..2 * piece).unwrap(), 0);

    // The same memory serves another range before.
    arena.commit(0..piece).unwrap();
    arena.move_memory(piece..2 * piece, &arena, 0..piece).unwrap();
    driver.start_copy_to_device(&buffer, (&arena, piece..2 * piece)).unwrap().join().unwrap();
    assert_eq!(values(&tensor), [1.0, 2.0, 3.0, 4.0, 5.0, 6.0]);
    assert_eq!(arena.resident_bytes(0..2 * piece).unwrap(), piece);
}

#[test]
fn the_host_cannot_use_memory_of_the_device() {
    let driver = driver();
    let piece = driver.granularity();
    let arena = Arena::reserve_on(&driver, piece).unwrap();
    let error = arena.read_bytes(0, &mut [0; 4]).unwrap_err().to_string();
    assert!(error.contains("the memory is that of Mps, which the host cannot use"), "{error}");
    arena.commit(0..piece).unwrap();
    let error = arena.release(0..piece / 2).unwrap_err().to_string();
    assert!(error.contains("stays whole"), "{error}");
    let host = Arena::reserve(piece).unwrap();
    let error = driver.start_copy_to_device(&host, (&host, 0..piece)).unwrap_err().to_string();
    assert!(error.contains("the memory is that of the host"), "{error}");
}

#[test]
fn tensors_of_the_device_are_counted_and_may_be_refused() {
    accelerator::load();
    device_allocator::watch(Device::Mps).unwrap();
    let before = device_allocator::live_bytes();
    let small = Tensor::zeros([3], (Kind::Float, Device::Mps));
    assert_eq!(device_allocator::live_bytes() - before, 512);
    let refuse = |bytes| if bytes > 4096 { Err(format!("no room for {bytes} bytes")) } else { Ok(()) };
    device_allocator::set_budget(Some(Box::new(refuse)));
    let error = Tensor::f_zeros([4096], (Kind::Float, Device::Mps)).unwrap_err().to_string();
    device_allocator::set_budget(None);
    assert!(error.contains("no room for 16384 bytes"), "{error}");
    drop(small);
    assert_eq!(device_allocator::live_bytes(), before);
    assert!(device_allocator::watch(Device::Cuda(0)).is_err());
}

#[test]
fn a_machine_without_gpus_has_no_driver_of_one() {
    if runtime::count_gpus().is_ok() {
        println!("skipped: this machine has the driver of NVIDIA");
        return;
    }
    let error = Driver::open(Device::Cuda(0)).unwrap_err().to_string();
    assert!(error.contains("there is no driver of NVIDIA"), "{error}");
}
