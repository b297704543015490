//! Writes a GGUF file from beginning to end: everything before the data at once, then the bytes of one tensor
//! after the other, so that no more than a piece of one tensor is in memory.

use std::io::{Error, Result, Write};

use crate::format::{DEFAULT_ALIGNMENT, MAGIC, VERSION};
use crate::value::{LIST_ID, TEXT_ID};
use crate::{Metadata, TensorInfo, Value};

/// A file that is being written. Names and sizes are those of the caller, who has checked them.
#[derive(Debug)]
pub struct GgufWriter<W> {
    output: W,
    /// The bytes of each tensor that is still to be written, the last one first.
    remaining: Vec<u64>,
    /// The bytes of the current tensor that are written.
    written: u64,
}

impl<W: Write> GgufWriter<W> {
    /// Writes everything before the data of `tensors`.
    pub fn new(mut output: W, metadata: &Metadata, tensors: &[TensorInfo]) -> Result<Self> {
        let mut header = Vec::new();
        header.extend(MAGIC);
        header.extend(VERSION.to_le_bytes());
        header.extend((tensors.len() as u64).to_le_bytes());
        let entries = metadata.entries();
        header.extend((entries.len() as u64).to_le_bytes());
        for (key, value) in entries {
            push_text(&mut header, key);
            push_value(&mut header, value);
        }

        let (mut offset, mut remaining) = (0u64, Vec::new());
        for tensor in tensors {
            push_text(&mut header, &tensor.name);
            header.extend((tensor.shape.len() as u32).to_le_bytes());
            header.extend(tensor.shape.iter().rev().flat_map(|size| size.to_le_bytes()));
            header.extend(tensor.tensor_type.id().to_le_bytes());
            header.extend(offset.to_le_bytes());
            let impossible = || Error::other(format!("the tensor {:?} has no such shape", tensor.name));
            let bytes = tensor.num_bytes().ok_or_else(impossible)?;
            offset += bytes.next_multiple_of(DEFAULT_ALIGNMENT);
            remaining.push(bytes);
        }
        header.resize(header.len().next_multiple_of(DEFAULT_ALIGNMENT as usize), 0);
        output.write_all(&header)?;
        remaining.reverse();
        Ok(Self { output, remaining, written: 0 })
    }

    /// Writes the next bytes of the current tensor. When it is complete, the next one becomes current.
    pub fn append(&mut self, bytes: &[u8]) -> Result<()> {
        let Some(&whole) = self.remaining.last() else {
            return Err(Error::other("all tensors are written"));
        };
        self.written += bytes.len() as u64;
        if self.written > whole {
            return Err(Error::other("a tensor has more bytes than its shape"));
        }
        self.output.write_all(bytes)?;
        if self.written == whole {
            let padding = whole.next_multiple_of(DEFAULT_ALIGNMENT) - whole;
            self.output.write_all(&vec![0; padding as usize])?;
            self.remaining.pop();
            self.written = 0;
        }
        Ok(())
    }

    /// Ends the file. Every tensor must be complete.
    pub fn finish(self) -> Result<W> {
        if self.remaining.is_empty() {
            Ok(self.output)
        } else {
            Err(Error::other("a tensor is not complete"))
        }
    }
}

fn push_text(header: &mut Vec<u8>, text: &str) {
    header.extend((text.len() as u64).to_le_bytes());
    header.extend(text.as_bytes());
}

fn push_value(header: &mut Vec<u8>, value: &Value) {
    let mut id = |id: u32| header.extend(id.to_le_bytes());
    match value {
        Value::Number(kind, bytes) => {
            id(kind.id());
            header.extend(bytes);
        }
        Value::Text(text) => {
            id(TEXT_ID);
            push_text(header, text);
        }
        Value::Numbers(kind, bytes) => {
            id(LIST_ID);
            id(kind.id());
            header.extend(((bytes.len() / kind.width()) as u64).to_le_bytes());
            header.extend(bytes);
        }
        Value::Texts(texts) => {
            id(LIST_ID);
            id(TEXT_ID);
            header.extend((texts.len() as u64).to_le_bytes());
            for text in texts {
                push_text(header, text);
            }
        }
    }
}
