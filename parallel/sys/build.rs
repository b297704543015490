//! Compiles the shim against the headers of the libtorch that `LIBTORCH` names.

use std::path::PathBuf;

fn main() {
    println!("cargo:rerun-if-changed=cpp");
    println!("cargo:rerun-if-env-changed=LIBTORCH");
    // The functions of `openmp.rs` go before those of libgomp. `build.rs` of the program says the same.
    for names in ["GOMP_*", "omp_*"] {
        println!("cargo:rustc-link-arg=-Wl,--export-dynamic-symbol={names}");
    }
    let libtorch = PathBuf::from(
        std::env::var("LIBTORCH")
            .expect("LIBTORCH is not set: run `make libtorch` once, it sets .libtorch up"),
    );
    let include = libtorch.join("include");
    assert!(
        include.join("torch/csrc/api/include/torch/torch.h").is_file(),
        "no libtorch headers under {}: run `make libtorch`",
        include.display()
    );
    cc::Build::new()
        .cpp(true)
        .std("c++17")
        .include("cpp/declarations")
        .include(&include)
        .include(include.join("torch/csrc/api/include"))
        .define("_GLIBCXX_USE_CXX11_ABI", "1")
        .flag("-Wno-unused-parameter")
        .flag("-Wno-deprecated-declarations")
        .flag("-Wno-attributes")
        .files([
            "cpp/error.cpp",
            "cpp/dispatch.cpp",
            "cpp/autograd.cpp",
            "cpp/c10d.cpp",
            "cpp/stream.cpp",
            "cpp/runtime.cpp",
            "cpp/blob.cpp",
            "cpp/allocator.cpp",
            "cpp/cuda_allocator.cpp",
            "cpp/mkl.cpp",
            "cpp/names.cpp",
            "cpp/operations.cpp",
        ])
        // Whole, since nobody but libtorch calls the functions of mkl.cpp and names.cpp.
        .link_lib_modifier("+whole-archive")
        .compile("colossal_shim");
}
