//! The hardware that a run is planned for: the speeds of a device, and the links between devices.
//!
//! ```toml
//! source = "measured by `colossal-chat doctor --bench`"
//!
//! [device]
//! name = "Intel(R) Xeon(R) Processor"
//! threads = 2                                              # of an operation; a GPU has no threads
//! cores = 2
//! memory = 25_324_000_000                                  # bytes
//! program = 190_000_000                                    # without any model; if absent, an estimate
//! memory_read = 28.9e9                                     # bytes per second
//! memory_copy = 26.0e9
//! attention = { float32 = 60e9, bfloat16 = 20e9 }          # operations per second
//! elementwise = { float32 = 12e9, bfloat16 = 6e9 }         # bytes per second
//!
//! [[device.matmul]]
//! width = 128
//! flops = { float32 = 120e9, bfloat16 = 60e9 }
//!
//! [[device.decode]]                                        # products of few rows; without them, as `matmul`
//! rows = 8
//! width = 128
//! flops = { float32 = 60e9, bfloat16 = 20e9 }
//!
//! [host]                                                   # of a GPU: where a budget moves its chunks
//! memory = 256_000_000_000                                 # bytes, of a rank
//! read = 50e9                                              # bytes per second to the device
//! write = 50e9                                             # from the device
//!
//! [disk]                                                   # of a processor: where a budget moves its chunks
//! read = 2e9
//! write = 1e9
//!
//! [[link]]
//! ranks = 2                                                # of the consecutive ranks that it joins
//! latency = 2e-6                                           # seconds of a message, beside its bytes
//! bandwidth = 5e9                                          # bytes per second that a rank sends
//!
//! [[straggler]]                                            # a rank that is slower than the others
//! rank = 3
//! slowdown = 1.5                                           # its time for the same work, over theirs
//! ```
//! A file may have been written by hand, copied or damaged: a value that no machine has is refused by its
//! name. This module measures nothing.

use std::collections::BTreeMap;
use std::ops::RangeInclusive;
use std::path::PathBuf;

use parallel::Axis;
use serde::{Deserialize, Serialize};

use crate::{Error, HardwareError, Layout};

/// A device, of which every rank has one, with what joins them.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Hardware {
    /// Where the numbers come from.
    pub source: String,
    /// The device of a rank.
    pub device: Device,
    /// The memory beside the GPU of a rank; `None` if it is not known, and for a processor.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub host: Option<Host>,
    /// The disk of a rank; `None` if it is not known.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub disk: Option<Disk>,
    /// What joins ranks, from the fastest link between few ranks to the link between all of them.
    #[serde(rename = "link", default, skip_serializing_if = "Vec::is_empty")]
    pub links: Vec<Link>,
    /// The ranks that are slower than the others.
    #[serde(rename = "straggler", default, skip_serializing_if = "Vec::is_empty")]
    pub stragglers: Vec<Straggler>,
}

/// The speeds of a device.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Device {
    /// The name of the processor.
    pub name: String,
    /// The threads of an operation on a processor; `None` for a GPU.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub threads: Option<usize>,
    /// The cores of the processor that a process may use; `None` for a GPU.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cores: Option<usize>,
    /// The memory, in bytes: of all ranks of a machine if they share it, as the threads of a processor do.
    pub memory: u64,
    /// The bytes that the program takes of it in a rank without any model; `None` if they are not known.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub program: Option<u64>,
    /// The bytes per second that are read of tensors larger than the caches.
    pub memory_read: f64,
    /// The bytes per second of a copy of them: what is read and what is written.
    pub memory_copy: f64,
    /// The operations per second of attention over short sequences, forward and backward.
    pub attention: DtypeSpeed,
    /// The bytes per second that an activation function reads and writes.
    pub elementwise: DtypeSpeed,
    /// The speed of matrix products, in order of their width.
    pub matmul: Vec<MatmulSpeed>,
    /// The speed of products of few rows, as decoding has them, in order of their rows and then of their
    /// width. Without them it is that of `matmul`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub decode: Vec<DecodeSpeed>,
}

/// The speed of the three products of a linear layer.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct MatmulSpeed {
    /// The width of the layer's input.
    pub width: usize,
    /// Operations per second: a multiplication and an addition are two.
    pub flops: DtypeSpeed,
}

/// The speed of the product of a linear layer in a pass without gradients.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct DecodeSpeed {
    /// The rows of the input: the replies that are generated at the same time.
    pub rows: usize,
    /// The width of the input.
    pub width: usize,
    /// Operations per second.
    pub flops: DtypeSpeed,
}

/// A speed in each dtype.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct DtypeSpeed {
    /// In fp32.
    pub float32: f64,
    /// In bf16.
    pub bfloat16: f64,
}

/// The dtype of the weights in memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Dtype {
    /// 32 bits.
    Float32,
    /// 16 bits with the exponent of 32.
    BFloat16,
}

/// Memory beside a GPU.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Host {
    /// The bytes of host memory for each rank.
    pub memory: u64,
    /// Bytes per second to the device.
    pub read: f64,
    /// Bytes per second from the device.
    pub write: f64,
}

/// Where the chunks of a rank wait that do not fit into a budget.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct OuterTier {
    /// The bytes that it holds; `None` if nothing limits them.
    pub memory: Option<u64>,
    /// Bytes per second to the device.
    pub read: f64,
    /// Bytes per second from the device.
    pub write: f64,
}

/// The speed of a disk with many requests in flight.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Disk {
    /// The folder on this disk that was measured.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub folder: Option<PathBuf>,
    /// Whether the transfers passed the page cache.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub is_direct: Option<bool>,
    /// Bytes per second of reading.
    pub read: f64,
    /// Bytes per second of writing.
    pub write: f64,
}

/// What joins groups of consecutive ranks, such as the devices of a machine.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Link {
    /// The number of consecutive ranks that it joins, from a multiple of this number on.
    pub ranks: usize,
    /// The seconds of a message beside those of its bytes.
    pub latency: f64,
    /// The bytes per second that a rank sends while all others send as much.
    pub bandwidth: f64,
}

/// A rank whose device is slower than the devices of the others.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Straggler {
    /// The rank.
    pub rank: usize,
    /// The time in which it computes something, divided by the time of another rank: 1 or more.
    pub slowdown: f64,
}

/// Hardware files of this crate, by name: for any number of machines of eight GPUs, and for a laptop.
pub const SHIPPED: [(&str, &str); 3] = [
    ("h100", include_str!("../hardware/h100.toml")),
    ("a100", include_str!("../hardware/a100.toml")),
    ("laptop", include_str!("../hardware/laptop.toml")),
];

/// The rows with which products are measured for [`Device::matmul`].
pub const MATMUL_ROWS: f64 = 512.0;

/// Slower and faster than any machine.
const OPERATIONS_PER_SECOND: RangeInclusive<f64> = 1e6..=1e17;
const BYTES_PER_SECOND: RangeInclusive<f64> = 1e4..=1e15;
const SECONDS: RangeInclusive<f64> = 1e-9..=10.0;
const SLOWDOWN: RangeInclusive<f64> = 1.0..=1e4;
/// No host has less memory.
const LEAST_HOST_MEMORY: u64 = 1 << 20;

impl DtypeSpeed {
    /// The speed in a dtype.
    pub fn of(self, dtype: Dtype) -> f64 {
        match dtype {
            Dtype::Float32 => self.float32,
            Dtype::BFloat16 => self.bfloat16,
        }
    }
}

impl Dtype {
    /// The bytes of an element.
    pub fn bytes(self) -> f64 {
        match self {
            Self::Float32 => 4.0,
            Self::BFloat16 => 2.0,
        }
    }
}

impl Device {
    /// The memory of a rank, if ranks use all cores: ranks on a processor divide it.
    pub fn memory_of_rank(&self) -> u64 {
        let ranks = self.cores.zip(self.threads).map_or(1, |(cores, threads)| cores / threads.max(1));
        self.memory / ranks.max(1) as u64
    }

    /// The operations per second of products of this width.
    pub fn matmul_flops(&self, width: f64, dtype: Dtype) -> f64 {
        let points = self.matmul.iter().map(|speed| (speed.width as f64, speed.flops.of(dtype)));
        on_line(&points.collect::<Vec<_>>(), width)
    }

    /// The operations per second of products of this width with few rows, in a pass without gradients.
    pub fn decode_flops(&self, rows: f64, width: f64, dtype: Dtype) -> f64 {
        let of_rows = |speeds: &[DecodeSpeed]| {
            let points = speeds.iter().map(|speed| (speed.width as f64, speed.flops.of(dtype)));
            (speeds[0].rows as f64, on_line(&points.collect::<Vec<_>>(), width))
        };
        let mut points: Vec<(f64, f64)> =
            self.decode.chunk_by(|left, right| left.rows == right.rows).map(of_rows).collect();
        points.push((MATMUL_ROWS, self.matmul_flops(width, dtype)));
        on_line(&points, rows)
    }
}

/// The value at `x` on straight lines between points, over the logarithm of `x`; beyond them that of the
/// first or of the last.
fn on_line(points: &[(f64, f64)], x: f64) -> f64 {
    let above = points.partition_point(|&(place, _)| place < x);
    let ((from, low), (to, high)) = (points[above.saturating_sub(1)], points[above.min(points.len() - 1)]);
    if from == to {
        return low;
    }
    low + (x / from).ln() / (to / from).ln() * (high - low)
}

impl Hardware {
    /// Reads the text of a file.
    pub fn parse(text: &str) -> Result<Self, HardwareError> {
        let hardware: Self = toml::from_str(text).map_err(|error| HardwareError::Toml {
            line: error.span().map_or(1, |span| 1 + text[..span.start].matches('\n').count()),
            message: error.message().to_owned(),
        })?;
        hardware.check()?;
        Ok(hardware)
    }

    /// The text of the file.
    pub fn to_text(&self) -> String {
        toml::to_string(self).expect("every field has a form in TOML")
    }

    /// The link that joins all of `span` consecutive ranks, which begin at a multiple of `span`.
    pub fn link(&self, span: usize) -> Result<&Link, Error> {
        let joins = |link: &&Link| link.ranks >= span;
        let most = || self.links.last().map_or(1, |link| link.ranks);
        self.links.iter().find(joins).ok_or_else(|| Error::NoLink { ranks: span, most: most() })
    }

    /// Where a budget moves chunks: from a GPU to its host, from a processor to the disk.
    pub fn outer_tier(&self) -> Result<OuterTier, Error> {
        if self.device.threads.is_none() {
            let host = self.host.as_ref().ok_or(Error::NoOuterTier { section: "host" })?;
            return Ok(OuterTier { memory: Some(host.memory), read: host.read, write: host.write });
        }
        let disk = self.disk.as_ref().ok_or(Error::NoOuterTier { section: "disk" })?;
        Ok(OuterTier { memory: None, read: disk.read, write: disk.write })
    }

    /// How much slower the ranks of a pipeline are, for each replica with a straggler. Ranks that divide a
    /// layer or exchange tokens in it wait for the slowest of them.
    pub fn slowdowns(&self, layout: &Layout) -> Result<Vec<Vec<f64>>, Error> {
        let even = vec![1.0; layout.size(Axis::Pipeline)];
        let mut replicas: BTreeMap<usize, Vec<f64>> = BTreeMap::new();
        for &Straggler { rank, slowdown } in &self.stragglers {
            let ranks = layout.mesh.world_size();
            if rank >= ranks {
                return Err(Error::NoSuchRank { rank, ranks });
            }
            let place = layout.mesh.for_rank(rank);
            let replica = replicas.entry(place.coordinate(Axis::Data)).or_insert_with(|| even.clone());
            let slowest = &mut replica[place.coordinate(Axis::Pipeline)];
            *slowest = slowest.max(slowdown);
        }
        let mut slowdowns: Vec<Vec<f64>> = replicas.into_values().collect();
        if slowdowns.is_empty() {
            slowdowns.push(even);
        }
        Ok(slowdowns)
    }

    /// How much slower the slowest rank is.
    pub fn largest_slowdown(&self) -> f64 {
        self.stragglers.iter().map(|straggler| straggler.slowdown).fold(1.0, f64::max)
    }

    /// Refuses what no machine has.
    fn check(&self) -> Result<(), HardwareError> {
        let Self { device, host, disk, links, .. } = self;
        if device.matmul.is_empty() || !device.matmul.is_sorted_by(|left, right| left.width < right.width) {
            return Err(HardwareError::Order { list: "device.matmul", key: "width" });
        }
        let place = |speed: &DecodeSpeed| (speed.rows, speed.width);
        if !device.decode.is_sorted_by(|left, right| place(left) < place(right)) {
            return Err(HardwareError::Order { list: "device.decode", key: "rows" });
        }
        let is_few = |rows: usize| rows > 0 && (rows as f64) < MATMUL_ROWS;
        if let Some(speed) = device.decode.iter().find(|speed| !is_few(speed.rows)) {
            return Err(HardwareError::NotFewRows { rows: speed.rows, most: MATMUL_ROWS as usize - 1 });
        }
        if !links.is_sorted_by(|left, right| left.ranks < right.ranks) {
            return Err(HardwareError::Order { list: "link", key: "ranks" });
        }
        if let Some(program) = device.program.filter(|&program| program >= device.memory) {
            return Err(HardwareError::NoMemoryLeft { program, memory: device.memory });
        }
        if host.is_some_and(|host| device.threads.is_some() || host.memory < LEAST_HOST_MEMORY) {
            return Err(HardwareError::Host { least: LEAST_HOST_MEMORY });
        }
        let mut slow: Vec<usize> = self.stragglers.iter().map(|straggler| straggler.rank).collect();
        slow.sort_unstable();
        if let Some(pair) = slow.windows(2).find(|pair| pair[0] == pair[1]) {
            return Err(HardwareError::SameStraggler { rank: pair[0] });
        }
        if let Some(link) = links.iter().find(|link| link.ranks < 2) {
            return Err(HardwareError::LinkOfOne { ranks: link.ranks });
        }

        let dtypes = |key: &'static str, speed: DtypeSpeed| [(key, speed.float32), (key, speed.bfloat16)];
        let products = device.matmul.iter().flat_map(|speed| dtypes("device.matmul.flops", speed.flops));
        let few = device.decode.iter().flat_map(|speed| dtypes("device.decode.flops", speed.flops));
        let operations = products.chain(few).chain(dtypes("device.attention", device.attention));
        let operations = operations.map(|(key, value)| (key, value, OPERATIONS_PER_SECOND));
        let of_memory =
            [("device.memory_read", device.memory_read), ("device.memory_copy", device.memory_copy)];
        let of_disk = disk.iter().flat_map(|disk| [("disk.read", disk.read), ("disk.write", disk.write)]);
        let of_host = host.iter().flat_map(|host| [("host.read", host.read), ("host.write", host.write)]);
        let of_links = links.iter().map(|link| ("link.bandwidth", link.bandwidth));
        let bytes = dtypes("device.elementwise", device.elementwise).into_iter().chain(of_memory);
        let bytes = bytes
            .chain(of_host)
            .chain(of_disk)
            .chain(of_links)
            .map(|(key, value)| (key, value, BYTES_PER_SECOND));
        let slowdowns =
            self.stragglers.iter().map(|straggler| ("straggler.slowdown", straggler.slowdown, SLOWDOWN));
        let latencies = links.iter().map(|link| ("link.latency", link.latency, SECONDS));
        // Numbers that are not finite lie in no range.
        let mut all = operations.chain(bytes).chain(latencies).chain(slowdowns);
        match all.find(|(_, value, range)| !range.contains(value)) {
            None => Ok(()),
            Some((key, value, range)) => {
                Err(HardwareError::Impossible { key, value, least: *range.start(), most: *range.end() })
            }
        }
    }
}

/// An example: a processor with round numbers in fp32, half of them in bf16: 100 Gflop/s, 20 of attention, 5
/// GB/s of activations; 20 and 10 GB/s of memory, 2 and 1 GB/s of disk. Two ranks are joined by 1 GB/s, eight
/// by a tenth of it.
pub fn round_numbers() -> Hardware {
    let half_in_bf16 = |float32: f64| DtypeSpeed { float32, bfloat16: float32 / 2.0 };
    Hardware {
        source: "round numbers".to_owned(),
        device: Device {
            name: "round".to_owned(),
            threads: Some(2),
            cores: Some(2),
            memory: 1 << 34,
            program: None,
            memory_read: 2e10,
            memory_copy: 1e10,
            attention: half_in_bf16(2e10),
            elementwise: half_in_bf16(5e9),
            matmul: vec![MatmulSpeed { width: 128, flops: half_in_bf16(1e11) }],
            decode: Vec::new(),
        },
        host: None,
        disk: Some(Disk { folder: None, is_direct: None, read: 2e9, write: 1e9 }),
        links: vec![
            Link { ranks: 2, latency: 1e-6, bandwidth: 1e9 },
            Link { ranks: 8, latency: 1e-5, bandwidth: 1e8 },
        ],
        stragglers: Vec::new(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn speeds_lie_between_those_of_the_measured_widths() {
        let mut device = round_numbers().device;
        let flops = DtypeSpeed { float32: 2e11, bfloat16: 7e10 };
        device.matmul.push(MatmulSpeed { width: 512, flops });
        for (width, float32) in [(64.0, 1e11), (128.0, 1e11), (256.0, 1.5e11), (512.0, 2e11), (4096.0, 2e11)]
        {
            let told = device.matmul_flops(width, Dtype::Float32);
            assert!((told - float32).abs() < 1.0, "{width}: {told}");
        }
        assert!((device.matmul_flops(256.0, Dtype::BFloat16) - 6e10).abs() < 1.0);
    }

    #[test]
    fn few_rows_are_as_fast_as_the_nearest_measured_ones() {
        let mut device = round_numbers().device;
        let at = |device: &Device, rows, width| device.decode_flops(rows, width, Dtype::Float32).round();
        assert_eq!(at(&device, 1.0, 128.0), 1e11);
        let speed = |rows, width, float32| DecodeSpeed {
            rows,
            width,
            flops: DtypeSpeed { float32, bfloat16: float32 },
        };
        device.decode =
            vec![speed(2, 128, 1e10), speed(2, 512, 3e10), speed(8, 128, 2e10), speed(8, 512, 4e10)];
        assert_eq!(
            [1.0, 2.0, 8.0, 512.0, 1e4].map(|rows| at(&device, rows, 128.0)),
            [1e10, 1e10, 2e10, 1e11, 1e11]
        );
        // Half-way between 2 and 8 rows, and between widths of 128 and 512: 4 rows of 256.
        assert_eq!(at(&device, 4.0, 256.0), 2.5e10);
        // Half-way between 8 and 512 rows, where the speed of `matmul` counts.
        assert_eq!(at(&device, 64.0, 128.0), 6e10);
    }

    #[test]
    fn ranks_on_a_processor_divide_its_memory() {
        let device = |threads, cores| Device { threads, cores, ..round_numbers().device };
        assert_eq!(device(Some(2), Some(2)).memory_of_rank(), 1 << 34);
        assert_eq!(device(Some(2), Some(8)).memory_of_rank(), 1 << 32);
        // More threads than cores are one rank, and so is a GPU.
        assert_eq!(device(Some(4), Some(2)).memory_of_rank(), 1 << 34);
        assert_eq!(device(None, None).memory_of_rank(), 1 << 34);
    }

    #[test]
    fn chunks_leave_a_processor_for_the_disk_and_a_gpu_for_its_host() {
        let mut hardware = round_numbers();
        let tier = |memory, read, write| OuterTier { memory, read, write };
        assert_eq!(hardware.outer_tier().unwrap(), tier(None, 2e9, 1e9));
        hardware.device.threads = None;
        let error = hardware.outer_tier().unwrap_err().to_string();
        assert!(error.contains("no `[host]`") && error.contains("add it"), "{error}");
        hardware.host = Some(Host { memory: 1 << 36, read: 5e10, write: 4e10 });
        assert_eq!(hardware.outer_tier().unwrap(), tier(Some(1 << 36), 5e10, 4e10));
    }

    #[test]
    fn hosts_and_stragglers_that_cannot_be_are_refused() {
        let host = "\n[host]\nmemory = 100\nread = 1e9\nwrite = 1e9\n";
        let slow = "\n[[straggler]]\nrank = 1\nslowdown = 2.0\n";
        let error = |text: &str| Hardware::parse(text).unwrap_err().to_string();
        let gpu = SHIPPED[0].1;
        let with_host = |memory: &str| gpu.replace("memory = 256_000_000_000", memory);
        assert!(error(&with_host("memory = 100")).contains("at least 1048576 bytes"));
        assert!(error(&format!("{}{host}", round_numbers().to_text())).contains("`host`"));
        let twice = error(&format!("{gpu}{slow}{slow}"));
        assert!(twice.contains("two entries of rank 1"), "{twice}");
        let faster = error(&format!("{gpu}{slow}").replace("= 2.0", "= 0.5"));
        assert!(faster.contains("`straggler.slowdown` is 5e-1"), "{faster}");
    }

    #[test]
    fn the_smallest_link_that_joins_all_ranks_counts() {
        let hardware = round_numbers();
        assert_eq!([1, 2, 3, 8].map(|span| hardware.link(span).unwrap().ranks), [2, 2, 8, 8]);
        let error = hardware.link(9).unwrap_err().to_string();
        assert!(error.contains("joins 9 ranks") && error.contains("at most 8"), "{error}");
    }

    #[test]
    fn the_shipped_files_are_read_and_join_as_many_ranks_as_they_say() {
        for (name, text) in SHIPPED {
            let hardware = Hardware::parse(text).unwrap_or_else(|error| panic!("{name}: {error}"));
            // A laptop is one rank.
            assert_eq!(hardware.link(10_000).is_ok(), hardware.device.threads.is_none(), "{name}");
            // Of each weight of 2 bytes that one reply reads, there are 2 operations.
            let decode = hardware.device.decode_flops(1.0, 4096.0, Dtype::BFloat16);
            let reads_at_most = hardware.device.decode.is_empty() || decode <= hardware.device.memory_read;
            assert!(reads_at_most, "{name}: {decode:e}");
        }
    }

    #[test]
    fn a_file_reads_back_and_a_mistake_in_it_is_named() {
        let text = round_numbers().to_text();
        assert_eq!(Hardware::parse(&text).unwrap(), round_numbers());
        for (was, now, words) in [
            ("100000000000.0", "-1.0", "`device.matmul.flops` is -1e0"),
            ("2000000000.0", "0.0", "`disk.read` is 0e0"),
            ("latency = 0.000001", "latency = inf", "`link.latency` is inf"),
            ("width = 128", "width = -1", "invalid value"),
            ("threads", "kernels", "line 5: unknown field `kernels`"),
            ("ranks = 2", "ranks = 9", "`link` has no entry, or its entries do not increase by `ranks`"),
            ("ranks = 2", "ranks = 1", "at least 2 ranks"),
            ("memory = 17179869184", "memory = 100\nprogram = 100", "`device.program` is 100 of 100 bytes"),
            ("[device]", "[device", "line 3: "),
        ] {
            assert!(text.contains(was), "{was}: {text}");
            let error = Hardware::parse(&text.replacen(was, now, 1)).unwrap_err().to_string();
            assert!(error.contains(words) && !error.contains('\n'), "{now}: {error}");
        }
    }
}
