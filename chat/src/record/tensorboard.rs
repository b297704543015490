//! TensorBoard event files, written without a library: `TFRecord` framing around one protobuf message per
//! event.
//!
//! ```text
//! record   u64 length | u32 masked crc32c of the length | bytes | u32 masked crc32c of the bytes
//!          (integers are little endian)
//! masked   rotate_right(crc, 15) + 0xa282ead8
//! Event    1: double wall_time  2: int64 step  3: string file_version  5: Summary summary
//!          7: SessionLog session_log
//! Summary  repeated 1: Value;   Value  1: string tag  2: float simple_value
//! SessionLog  1: enum status (START = 1)
//! ```
//! After a `START` at step n, TensorBoard discards earlier events at step n and beyond. A resumed run uses
//! this to remove the events that the interrupted run wrote after the checkpoint. This module uses no stage
//! and no metric name.

use std::fs::{self, File};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

use parallel::regular_file;
use rlhf::Error;

use crate::own_file::{self, io_error};
use crate::own_folder::is_event_file;

/// Writes one event file.
#[derive(Debug)]
pub(crate) struct EventWriter {
    path: PathBuf,
    file: File,
}

impl EventWriter {
    /// Creates an event file in `folder`, which is created if needed in the run folder. For a resumed run, `resumed_at` is the
    /// last step whose events stay valid.
    pub(crate) fn create(folder: &Path, resumed_at: Option<u64>) -> Result<Self, Error> {
        own_file::make_folder(folder).map_err(io_error(folder))?;
        let time = now();
        // TensorBoard reads the files of a folder in the order of their names, so the time comes first.
        let path = folder.join(format!("events.out.tfevents.{:017.6}.{}", time, std::process::id()));
        let created = regular_file::open(&path, File::options().append(true).create_new(true));
        let file = created.map_err(io_error(&path))?;
        let mut writer = Self { path, file };
        writer.append(&version_event(time))?;
        if let Some(step) = resumed_at {
            writer.append(&restart_event(time, step + 1))?;
        }
        Ok(writer)
    }

    /// Writes the scalars of `step`. A number that is not finite is written as it is.
    pub(crate) fn scalars(&mut self, step: u64, scalars: &[(String, f64)]) -> Result<(), Error> {
        self.append(&scalar_event(now(), step, scalars))
    }

    fn append(&mut self, event: &[u8]) -> Result<(), Error> {
        self.file.write_all(&record(event)).map_err(|source| Error::Io { path: self.path.clone(), source })
    }
}

/// Removes the event files of an earlier run from `folder`: regular files alone.
pub(crate) fn remove_events(folder: &Path) -> Result<(), Error> {
    if !own_file::is_folder(folder) {
        return Ok(());
    }
    for entry in fs::read_dir(folder).map_err(io_error(folder))? {
        let entry = entry.map_err(io_error(folder))?;
        // The type is that of the entry itself: a link is no file.
        let is_file = entry.file_type().is_ok_and(|kind| kind.is_file());
        if is_file && entry.file_name().to_str().is_some_and(is_event_file) {
            fs::remove_file(entry.path()).map_err(io_error(&entry.path()))?;
        }
    }
    Ok(())
}

fn now() -> f64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0.0, |elapsed| elapsed.as_secs_f64())
}

/// Encodes the first event of every file.
fn version_event(time: f64) -> Vec<u8> {
    let mut event = Message::default();
    event.double(1, time);
    event.bytes(3, b"brain.Event:2");
    event.0
}

/// Encodes a restart, which discards all events at `step` and beyond.
fn restart_event(time: f64, step: u64) -> Vec<u8> {
    let mut start = Message::default();
    start.varint(1, 1);
    let mut event = Message::default();
    event.double(1, time);
    event.varint(2, step);
    event.bytes(7, &start.0);
    event.0
}

fn scalar_event(time: f64, step: u64, scalars: &[(String, f64)]) -> Vec<u8> {
    let mut summary = Message::default();
    for (tag, number) in scalars {
        let mut value = Message::default();
        value.bytes(1, tag.as_bytes());
        value.float(2, *number as f32);
        summary.bytes(1, &value.0);
    }
    let mut event = Message::default();
    event.double(1, time);
    event.varint(2, step);
    event.bytes(5, &summary.0);
    event.0
}

/// A protobuf message under construction.
#[derive(Default)]
struct Message(Vec<u8>);

impl Message {
    /// Appends a field of wire type 0.
    fn varint(&mut self, field: u64, number: u64) {
        self.raw_varint(field << 3);
        self.raw_varint(number);
    }

    /// Appends a field of wire type 1.
    fn double(&mut self, field: u64, number: f64) {
        self.raw_varint(field << 3 | 1);
        self.0.extend(number.to_le_bytes());
    }

    /// Appends a field of wire type 2: text or a nested message.
    fn bytes(&mut self, field: u64, bytes: &[u8]) {
        self.raw_varint(field << 3 | 2);
        self.raw_varint(bytes.len() as u64);
        self.0.extend(bytes);
    }

    /// Appends a field of wire type 5.
    fn float(&mut self, field: u64, number: f32) {
        self.raw_varint(field << 3 | 5);
        self.0.extend(number.to_le_bytes());
    }

    /// Appends a varint: seven bits per byte, low bits first, with the top bit set on all bytes but the last.
    fn raw_varint(&mut self, mut number: u64) {
        while number >= 0x80 {
            self.0.push(number as u8 | 0x80);
            number >>= 7;
        }
        self.0.push(number as u8);
    }
}

fn record(event: &[u8]) -> Vec<u8> {
    let length = (event.len() as u64).to_le_bytes();
    let mut bytes = Vec::with_capacity(event.len() + 16);
    bytes.extend(length);
    bytes.extend(masked_crc32c(&length).to_le_bytes());
    bytes.extend(event);
    bytes.extend(masked_crc32c(event).to_le_bytes());
    bytes
}

fn masked_crc32c(bytes: &[u8]) -> u32 {
    crc32c(bytes).rotate_right(15).wrapping_add(0xa282_ead8)
}

/// Computes the cyclic redundancy check of Castagnoli et al. 1993, reflected, polynomial 0x1EDC6F41 (RFC
/// 3720, appendix B.4).
fn crc32c(bytes: &[u8]) -> u32 {
    let mut crc = u32::MAX;
    for byte in bytes {
        crc ^= u32::from(*byte);
        for _ in 0..8 {
            let poly = if crc & 1 == 1 { 0x82f6_3b78 } else { 0 };
            crc = crc >> 1 ^ poly;
        }
    }
    !crc
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn crc32c_of_the_published_vectors() {
        // RFC 3720, appendix B.4: 32 bytes of zeros, of ones, and 0 to 31.
        assert_eq!(crc32c(&[0; 32]), 0x8a91_36aa);
        assert_eq!(crc32c(&[0xff; 32]), 0x62a8_ab43);
        let rising: Vec<u8> = (0..32).collect();
        assert_eq!(crc32c(&rising), 0x46dd_794e);
    }

    /// The golden bytes are the output of `tests/tensorboard_golden.py`, which uses the protobuf classes and
    /// the record writer of TensorBoard.
    #[test]
    fn events_have_the_bytes_of_tensorboard() {
        let hex = |bytes: &[u8]| bytes.iter().map(|byte| format!("{byte:02x}")).collect::<Vec<_>>().concat();
        let golden = include_str!("tensorboard_golden.txt");
        let scalars = [("loss".to_owned(), 1.5), ("objective/kl".to_owned(), -0.25)];
        let events = [version_event(1.25), restart_event(1.25, 301), scalar_event(2.5, 300, &scalars)];
        for (event, golden) in events.iter().zip(golden.lines()) {
            assert_eq!(hex(&record(event)), golden);
        }
        assert_eq!(golden.lines().count(), 3);
    }

    #[test]
    fn a_new_run_removes_only_event_files() {
        let folder = tempfile::tempdir().unwrap();
        let mut writer = EventWriter::create(folder.path(), None).unwrap();
        writer.scalars(1, &[("loss".to_owned(), f64::NAN)]).unwrap();
        fs::write(folder.path().join("notes.txt"), "mine").unwrap();
        remove_events(folder.path()).unwrap();
        let left: Vec<_> =
            fs::read_dir(folder.path()).unwrap().map(|entry| entry.unwrap().file_name()).collect();
        assert_eq!(left, ["notes.txt"]);
        remove_events(&folder.path().join("absent")).unwrap();
    }
}
