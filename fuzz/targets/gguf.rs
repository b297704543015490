//! GGUF files: every tensor of the container, and the model folder that is made of it.

#![no_main]

use std::fs;

use datasets::Tokenizer;
use datasets::tokenizer::gguf_vocabulary::GgufTokenizer;
use gguf::GgufFile;
use models::gguf_model::import::GgufImport;

libfuzzer_sys::fuzz_target!(init: colossal_chat_fuzz::watch_panics(), |bytes: &[u8]| {
    let folder = tempfile::tempdir_in("/dev/shm").expect("a folder in memory");
    let path = folder.path().join("model.gguf");
    fs::write(&path, bytes).expect("a file in memory");

    let Ok(file) = GgufFile::open(&path) else { return };
    for info in file.tensors() {
        let size = info.num_bytes().expect("the size was checked");
        file.read(&info.name, 0, &mut vec![0; size as usize]).expect("the bytes lie in the file");
    }
    let size = file.tensor("token_embd.weight").map_or(300, |info| info.shape[0] as usize);
    if let Ok(tokenizer) = GgufTokenizer::read(file.metadata(), size) {
        tokenizer.save(folder.path()).expect("files in memory");
        if let Ok(tokenizer) = Tokenizer::from_folder(folder.path()) {
            let _ = tokenizer.encode("how do i greet? 你好 <s>", true);
        }
    }
    let Ok(import) = GgufImport::open(&path) else { return };
    let _ = import.save(&folder.path().join("out"));
});
