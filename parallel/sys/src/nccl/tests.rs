//! The calls against a stand-in for NCCL on memory of the host, whose ranks are threads of this process.

use std::os::unix::ffi::OsStrExt;
use std::process::Command;
use std::sync::OnceLock;
use std::thread;

use super::*;

/// The stand-in goes by the name of NCCL, so the loader gives it to cudarc.
fn load_stand_in() {
    static LOADED: OnceLock<()> = OnceLock::new();
    LOADED.get_or_init(|| {
        let folder = tempfile::tempdir().unwrap();
        let library = folder.path().join("stand_in.so");
        let built = Command::new("cc")
            .args(["-std=gnu11", "-O1", "-Wall", "-Wextra", "-Werror", "-shared", "-fPIC", "-pthread"])
            .args([
                "-Wl,-soname,libnccl.so",
                concat!(env!("CARGO_MANIFEST_DIR"), "/src/nccl/stand_in.c"),
                "-o",
            ])
            .arg(&library)
            .status();
        assert!(built.unwrap().success());
        let name = std::ffi::CString::new(library.as_os_str().as_bytes()).unwrap();
        // SAFETY: a library of the test's own, which has no initializers.
        let loaded = unsafe { libc::dlopen(name.as_ptr(), libc::RTLD_NOW | libc::RTLD_GLOBAL) };
        assert!(!loaded.is_null());
    });
}

/// Runs `body` on `size` ranks, each a thread.
fn ranks(size: usize, body: impl Fn(usize, &Comm) + Sync) {
    load_stand_in();
    let id = unique_id().unwrap();
    thread::scope(|scope| {
        for rank in 0..size {
            let (body, id) = (&body, &id);
            scope.spawn(move || body(rank, &Comm::join(id, [rank, size]).unwrap()));
        }
    });
}

const STREAM: *mut c_void = std::ptr::null_mut();

fn row(values: &[f32]) -> Tensor {
    Tensor::from_slice(values)
}

fn empty(length: usize) -> Tensor {
    Tensor::zeros([length as i64], (Kind::Float, Device::Cpu))
}

fn values(tensor: &Tensor) -> Vec<f32> {
    Vec::try_from(tensor).unwrap()
}

#[test]
fn three_ranks_exchange_by_hand_computed_numbers() {
    ranks(3, |rank, calls| {
        let value = rank as f32;
        for (reduction, wanted) in
            [(Reduction::Sum, [3.0, 30.0]), (Reduction::Max, [2.0, 20.0]), (Reduction::Min, [0.0, 0.0])]
        {
            let tensor = row(&[value, 10.0 * value]);
            calls.all_reduce(&tensor, reduction, STREAM).unwrap();
            assert_eq!(values(&tensor), wanted);
        }
        let counted = Tensor::from_slice(&[rank as i64 + 1]);
        calls.all_reduce(&counted, Reduction::Sum, STREAM).unwrap();
        assert_eq!(counted.int64_value(&[0]), 6);

        let gathered = empty(3);
        calls.all_gather(&gathered, &row(&[value + 1.0]), STREAM).unwrap();
        assert_eq!(values(&gathered), [1.0, 2.0, 3.0]);

        let chunk = empty(1);
        calls.reduce_scatter(&chunk, &row(&[value, value + 1.0, value + 2.0]), STREAM).unwrap();
        assert_eq!(values(&chunk), [[3.0], [6.0], [9.0]][rank]);

        let received = row(&[value]);
        calls.broadcast(&received, 2, STREAM).unwrap();
        assert_eq!(values(&received), [2.0]);
        calls.check().unwrap();
    });
}

#[test]
fn rows_go_where_the_counts_say() {
    ranks(3, |rank, calls| {
        // Rank r sends r + 1 rows of two numbers to rank 0 and one to rank 2.
        let (value, rows) = (rank as f32, rank + 2);
        let sent = [rank as i64 + 1, 0, 1];
        let received: [i64; 3] = [[1, 2, 3], [0, 0, 0], [1, 1, 1]][rank];
        let input = Tensor::arange(2 * rows as i64, (Kind::Float, Device::Cpu)) + f64::from(100.0 * value);
        let output = empty(2 * received.iter().sum::<i64>() as usize);
        calls.all_to_all(&output.view([-1, 2]), &input.view([-1, 2]), [&received, &sent], STREAM).unwrap();
        let wanted: &[f32] = match rank {
            0 => &[0.0, 1.0, 100.0, 101.0, 102.0, 103.0, 200.0, 201.0, 202.0, 203.0, 204.0, 205.0],
            1 => &[],
            _ => &[2.0, 3.0, 104.0, 105.0, 206.0, 207.0],
        };
        assert_eq!(values(&output), wanted);
    });
}

#[test]
fn what_nccl_refuses_is_told_with_its_own_words() {
    ranks(1, |_, calls| {
        let error = calls.broadcast(&row(&[1.0]), 7, STREAM).unwrap_err().to_string();
        assert_eq!(
            error,
            "ncclBroadcast over NCCL: invalid argument (ncclInvalidArgument): root 7 of 1 ranks"
        );
    });
}

#[test]
fn tensors_that_do_not_fit_are_refused_before_nccl_sees_them() {
    ranks(1, |_, calls| {
        let refused = |result: Result<(), Error>, fragment: &str| {
            let error = result.unwrap_err().to_string();
            assert!(error.contains(fragment), "{error}");
        };
        refused(calls.all_gather(&empty(3), &empty(2), STREAM), "Float [3] is not 1 times Float [2]");
        let double = Tensor::zeros([2], (Kind::Double, Device::Cpu));
        refused(calls.reduce_scatter(&double, &empty(2), STREAM), "Float [2] is not 1 times Double [2]");
        refused(
            calls.all_to_all(&empty(2), &empty(2), [&[2], &[1]], STREAM),
            "[1] are not the rows of [2] for each rank",
        );
        let complex = Tensor::zeros([1], (Kind::ComplexFloat, Device::Cpu));
        refused(calls.all_reduce(&complex, Reduction::Sum, STREAM), "no dtype for ComplexFloat");
    });
}
