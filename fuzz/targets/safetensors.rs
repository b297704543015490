//! Weight files: the header, and every tensor that it promises.

#![no_main]

use std::fs;

use parallel::Placement;
use parallel::safetensors_file::TensorFile;

libfuzzer_sys::fuzz_target!(init: colossal_chat_fuzz::watch_panics(), |bytes: &[u8]| {
    let folder = tempfile::tempdir_in("/dev/shm").expect("a folder in memory");
    let path = folder.path().join("model.safetensors");
    fs::write(&path, bytes).expect("a file in memory");

    let Ok(file) = TensorFile::open(&path) else { return };
    for name in file.names() {
        let shape = file.shape(name).expect("a name of the file").to_vec();
        let _ = file.read(name, &shape, &Placement::Replicate);
    }
});
