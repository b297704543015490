//! The folders of the golden models.

use std::path::{Path, PathBuf};

/// The folder of the golden model `name`.
pub(crate) fn golden_folder(name: &str) -> PathBuf {
    Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/golden")).join(name)
}

/// The golden model `name` with the load-balancing auxiliary loss switched on, with the coefficient 0.4.
pub(crate) fn with_aux_loss(name: &str) -> tempfile::TempDir {
    let (from, to) = (golden_folder(name), tempfile::tempdir().unwrap());
    let text = std::fs::read_to_string(from.join("config.json")).unwrap();
    let mut config: serde_json::Value = serde_json::from_str(&text).unwrap();
    config["output_router_logits"] = true.into();
    config["router_aux_loss_coef"] = 0.4.into();
    std::fs::write(to.path().join("config.json"), config.to_string()).unwrap();
    std::fs::copy(from.join("model.safetensors"), to.path().join("model.safetensors")).unwrap();
    to
}
