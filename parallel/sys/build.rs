//! Compiles the shim against the headers of the libtorch that `LIBTORCH` names.

use std::path::PathBuf;

/// The files of the shim, in `cpp/`.
const FILES: [&str; 12] = [
    "error",
    "dispatch",
    "autograd",
    "c10d",
    "stream",
    "runtime",
    "blob",
    "allocator",
    "cuda_allocator",
    "mkl",
    "names",
    "operations",
];

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
    // The files are one translation unit, because the compiler spends nearly all of its time on libtorch's
    // headers: one unit takes a third of the time of twelve.
    let unit = PathBuf::from(std::env::var_os("OUT_DIR").expect("cargo sets OUT_DIR")).join("shim.cpp");
    let includes = FILES.map(|file| format!("#include \"{file}.cpp\"\n")).concat();
    std::fs::write(&unit, includes).expect("OUT_DIR can be written");

    cc::Build::new()
        .cpp(true)
        .std("c++17")
        .include("cpp")
        .include("cpp/declarations")
        .include(&include)
        .include(include.join("torch/csrc/api/include"))
        .define("_GLIBCXX_USE_CXX11_ABI", "1")
        .flag("-Wno-unused-parameter")
        .flag("-Wno-deprecated-declarations")
        .flag("-Wno-attributes")
        .file(unit)
        // Whole, since nobody but libtorch calls the functions of mkl.cpp and names.cpp.
        .link_lib_modifier("+whole-archive")
        .compile("colossal_shim");
}
