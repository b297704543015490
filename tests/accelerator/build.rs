//! Compiles `accelerator.cpp` and `driver.cpp` to a shared library, against the libtorch that `LIBTORCH`
//! names.

use std::path::PathBuf;

fn main() {
    for file in ["accelerator.cpp", "driver.cpp", "driver.h"] {
        println!("cargo:rerun-if-changed={file}");
    }
    println!("cargo:rerun-if-env-changed=LIBTORCH");
    let path =
        |name: &str| PathBuf::from(std::env::var(name).unwrap_or_else(|_| panic!("{name} is not set")));
    let (libtorch, library) = (path("LIBTORCH"), path("OUT_DIR").join("libaccelerator.so"));

    let compiler = cc::Build::new().cpp(true).std("c++17").opt_level(1).pic(true).get_compiler();
    let mut command = compiler.to_command();
    command
        .args(["-shared", "-w", "accelerator.cpp", "driver.cpp", "-ltorch_cpu", "-lc10", "-o"])
        .arg(library);
    for include in ["include", "include/torch/csrc/api/include"] {
        command.arg("-I").arg(libtorch.join(include));
    }
    command.arg("-L").arg(libtorch.join("lib"));
    let status = command.status().expect("the C++ compiler starts");
    assert!(status.success(), "accelerator.cpp does not compile");
}
