//! A real pretrained model: greedy text of stories260k, and its round trip through `save`.

#![expect(clippy::unwrap_used, reason = "a test ends at the first thing that is not as it should be")]

use std::path::Path;

use models::batch::Batch;
use models::cached_batch::{CachedRow, Outputs};
use models::causal_lm::{CausalLm, LoadOptions};
use models::model_parallel::ModelParallel;
use parallel::Segmented;
use tch::{Device, Kind, Tensor};

const OPTIONS: LoadOptions = LoadOptions {
    kind: Kind::Float,
    device: Device::Cpu,
    trainable: false,
    model_parallel: ModelParallel::NONE,
    memory: None,
    quantize: None,
};

/// 64 greedy tokens after `<s>`, by transformers 5.23.0 (torch 2.11.0, eager attention, fp32): "Once upon a
/// time, there was a little girl named Lily. She loved to play outside in the park. …", as the model's own
/// page has it.
const GREEDY: [i64; 65] = [
    1, 403, 407, 261, 378, 432, 383, 286, 261, 376, 298, 315, 421, 395, 317, 426, 338, 401, 396, 267, 337,
    410, 408, 419, 292, 411, 322, 265, 282, 295, 433, 426, 385, 328, 432, 358, 394, 261, 370, 432, 352, 266,
    268, 388, 426, 338, 391, 266, 267, 337, 335, 312, 432, 398, 312, 286, 267, 414, 270, 333, 415, 426, 13,
    438, 310,
];

fn load() -> Option<CausalLm> {
    let folder = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../../shared/models/stories260k"));
    if !folder.exists() {
        eprintln!("skipped: {} is not there", folder.display());
        return None;
    }
    Some(CausalLm::load(folder, &OPTIONS).unwrap())
}

fn best(model: &CausalLm, hidden: &Tensor) -> i64 {
    hidden.matmul(&model.head().weight.tr()).argmax(-1, false).int64_value(&[0])
}

#[test]
fn greedy_text_begins_as_published() {
    let Some(model) = load() else { return };
    let mut cache = model.decoder().cache(5, 16);
    let mut ids = vec![GREEDY[0]];
    while ids.len() < GREEDY.len() {
        let past = ids.len() - 1;
        let row = CachedRow { tokens: &ids[past..], past, pages: &[0, 1, 2, 3, 4], outputs: Outputs::Last };
        let hidden = model.step(&[row], &mut cache).unwrap();
        ids.push(best(&model, &hidden));
    }
    assert_eq!(ids, GREEDY);
}

#[test]
fn a_copy_is_written_that_gives_the_same_numbers() {
    let Some(model) = load() else { return };
    let folder = tempfile::tempdir().unwrap();
    model.save(folder.path()).unwrap();
    let again = CausalLm::load(folder.path(), &OPTIONS).unwrap();
    let batch = Batch::new(&[&GREEDY], Device::Cpu);
    assert_eq!(model.forward_no_grad(&batch).unwrap(), again.forward_no_grad(&batch).unwrap());
}
