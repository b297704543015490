//! tmp
fn main() {
    let texts = (0..300).map(|n| format!("What is {n} plus {}? 请问 {n} 加一等于几? hello world", n + 1));
    let t =
        datasets::Tokenizer::train(texts, &datasets::TrainOptions { vocab_size: 300, ..Default::default() })
            .unwrap();
    let dir = std::path::PathBuf::from("/tmp/tok_out");
    t.save(&dir).unwrap();
    let m = [datasets::Message::user("What is 12 plus 3? 你好"), datasets::Message::assistant("15 😀")];
    println!(
        "{}",
        serde_json::json!({"enc": t.encode("hello 12 世界", true).unwrap(), "conv": t.encode_conversation(&m).unwrap().input_ids, "prompt": t.encode_prompt(&m[..1]).unwrap()})
    );
    let mut s =
        datasets::Tokenizer::from_folder(std::path::Path::new("/work/shared/models/stories260k")).unwrap();
    s.set_built_in_template("plain").unwrap();
    s.save(std::path::Path::new("/tmp/tok_out2")).unwrap();
    println!(
        "{}",
        serde_json::json!({"enc": s.encode("hello 12 世界", true).unwrap(), "conv": s.encode_conversation(&m).unwrap().input_ids, "prompt": s.encode_prompt(&m[..1]).unwrap()})
    );
}
