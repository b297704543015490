//! A model of this process, as an evaluation asks it.

use std::fs::{self, File};
use std::io;
use std::path::Path;

use datasets::Tokenizer;
use eval::request::{LanguageModel, OnResponses, Request};
use models::causal_lm::CausalLm;
use sha2::{Digest, Sha256};

use super::encoder::Encoder;
use super::error::AnswerError;
use super::reply::ReplyWriter;
use super::score::Scorer;
use crate::Error;
use crate::model_folder::ModelFolder;
use crate::session::Session;

/// Changes when the same request gets other numbers from a model of this process.
const ENGINE: &str = "colossal-chat engine 6";

/// A model of this process. Its digest is its name, so its answers cannot be kept: it may be in training.
pub struct LocalModel<'a> {
    model: &'a CausalLm,
    encoder: Encoder<'a>,
    name: String,
}

/// A model that was loaded from a folder. Its answers can be kept.
pub struct FolderModel {
    session: Session<CausalLm>,
    name: String,
    digest: String,
    max_length: Option<usize>,
}

impl<'a> LocalModel<'a> {
    /// Takes a model with its tokenizer. As its answers are kept nowhere, `name` is all that tells it apart.
    /// `max_length` limits the tokens of a row below what the model allows.
    pub fn new(
        model: &'a CausalLm,
        tokenizer: &'a Tokenizer,
        name: String,
        max_length: Option<usize>,
    ) -> Self {
        Self { model, encoder: Encoder::new(model.config(), tokenizer, max_length), name }
    }
}

impl LanguageModel for LocalModel<'_> {
    fn name(&self) -> &str {
        &self.name
    }

    fn digest(&self) -> &str {
        &self.name
    }

    fn respond(
        &mut self,
        requests: &[Request],
        answered: &[bool],
        on_responses: &mut OnResponses<'_>,
    ) -> Result<(), eval::Error> {
        let (model, encoder) = (self.model, &self.encoder);
        let mut respond = || {
            Scorer { model, encoder }.respond(requests, answered, on_responses)?;
            ReplyWriter { model, encoder }.respond(requests, answered, on_responses)
        };
        respond().map_err(|error: AnswerError| error.of_model(&self.name))
    }
}

impl FolderModel {
    /// Takes the session that was loaded from `folder`. `max_length` limits the tokens of a row below what
    /// the model allows. Fails without a tokenizer, or if a file of the folder cannot be read.
    pub fn new(
        session: Session<CausalLm>,
        name: String,
        folder: &ModelFolder,
        max_length: Option<usize>,
    ) -> Result<Self, Error> {
        let tokenizer = session.tokenizer()?;
        let max_row = Encoder::new(session.model.config(), tokenizer, max_length).max_length;
        let (kind, codes) = (session.model.decoder().kind(), session.model.decoder().quantization());
        // What ends a reply may come from another file; a template may print the date.
        let (stop_ids, tokenizer) = (tokenizer.stop_ids(), tokenizer.fingerprint()?);
        let settings = format!("{ENGINE} {max_row} {kind:?} {codes:?} {stop_ids:?} {tokenizer}");
        let digest = folder_digest(folder, &settings).map_err(Error::ModelFiles)?;
        Ok(Self { session, name, digest, max_length })
    }
}

impl LanguageModel for FolderModel {
    fn name(&self) -> &str {
        &self.name
    }

    fn digest(&self) -> &str {
        &self.digest
    }

    fn respond(
        &mut self,
        requests: &[Request],
        answered: &[bool],
        on_responses: &mut OnResponses<'_>,
    ) -> Result<(), eval::Error> {
        let tokenizer = self.session.tokenizer()?;
        let mut model = LocalModel::new(&self.session.model, tokenizer, self.name.clone(), self.max_length);
        model.respond(requests, answered, on_responses)
    }
}

/// A hash, in hexadecimal, of the files of a model folder that decide what the model computes, and of
/// `settings`. Fails if a file cannot be read.
pub fn folder_digest(folder: &ModelFolder, settings: &str) -> io::Result<String> {
    let mut hash = Sha256::new();
    hash.update(settings);
    hash_files(folder.path(), &mut hash)?;
    if let Some(base) = folder.base() {
        hash.update("adapter of");
        hash_files(base, &mut hash)?;
    }
    Ok(format!("{:x}", hash.finalize()))
}

/// Adds the names and the contents of the files of a folder that decide what a model computes.
fn hash_files(folder: &Path, hash: &mut Sha256) -> io::Result<()> {
    const KNOWN: [&str; 5] = [
        "adapter_config.json",
        "config.json",
        "tokenizer.json",
        "tokenizer_config.json",
        "special_tokens_map.json",
    ];
    let mut names: Vec<String> = Vec::new();
    for entry in fs::read_dir(folder)? {
        let name = entry?.file_name().to_string_lossy().into_owned();
        if name.ends_with(".safetensors") || KNOWN.contains(&name.as_str()) {
            names.push(name);
        }
    }
    names.sort();
    for name in names {
        hash.update(&name);
        io::copy(&mut File::open(folder.join(&name))?, hash)?;
    }
    Ok(())
}
