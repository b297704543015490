//! Exports the program's OpenMP functions (`parallel/sys/src/openmp.rs`), so that the loader binds libtorch
//! to them and not to libgomp.

fn main() {
    for names in ["GOMP_*", "omp_*"] {
        println!("cargo:rustc-link-arg-bins=-Wl,--export-dynamic-symbol={names}");
    }
}
