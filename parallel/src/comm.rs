//! Collectives among the ranks of a process group.
//!
//! A [`ProcessGroup`] is one rank's handle to a group. A [`Backend`] moves its bytes: shared memory if all
//! ranks run on one host ([`shared`]), Gloo over TCP otherwise ([`gloo`]), and none for a group of one rank.
//! The choice of the backend does not change the numerical result. GPU tensors go over NCCL ([`nccl`]), those
//! of other devices through host memory ([`staged`]); the ranks of a group connect the backend of a device at
//! its first tensor.
//!
//! Every rank calls the collectives of a group in the same order. A started collective returns a [`Work`];
//! its tensors must not be touched until the caller has waited for it. An error names the rank, the group,
//! the collective and the cause.
//!
//! The counted sent bytes are those of the optimal algorithm for `P` ranks with `n` bytes each: all-reduce
//! `2 n (P - 1) / P`, reduce-scatter `n (P - 1) / P`, all-gather `n (P - 1)`, all-to-all the bytes for the
//! other ranks, broadcast and send `n` at the root.

pub mod gloo;
pub mod nccl;
mod sent;
pub mod shared;
pub mod staged;

use std::collections::hash_map::Entry;
use std::collections::{BTreeMap, HashMap};
use std::fmt::Debug;
use std::ops::Range;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, mpsc};

use parallel_sys::c10d;
use serde::Serialize;
use serde::de::DeserializeOwned;
use tch::{Device, Kind, Tensor};

pub use parallel_sys::c10d::Reduction;
pub use sent::{NUMBERS, Sent, SentByGroup};

use crate::{Error, SysError};

/// A transport that moves bytes between ranks. All tensors are contiguous.
pub trait Backend: Debug + Send {
    /// The display name.
    fn name(&self) -> &'static str;

    /// Replaces every rank's `tensor` by the reduction over all ranks.
    fn all_reduce(&mut self, tensor: &Tensor, reduction: Reduction) -> Result<Work, SysError>;

    /// Writes the concatenated inputs of all ranks to `output`.
    fn all_gather(&mut self, output: &Tensor, input: &Tensor) -> Result<Work, SysError>;

    /// Writes this rank's chunk of the sum of all inputs to `output`.
    fn reduce_scatter(&mut self, output: &Tensor, input: &Tensor) -> Result<Work, SysError>;

    /// Fills the flat `tensor`, of which each rank has its own of `size` equal parts, with the parts of all
    /// ranks.
    fn all_gather_in_place(&mut self, tensor: &Tensor, [rank, size]: [usize; 2]) -> Result<Work, SysError> {
        let own = part(tensor, rank, size).copy();
        self.all_gather(tensor, &own)
    }

    /// Replaces this rank's of `size` equal parts of the flat `tensor` by the sum of this part over all
    /// ranks. The other parts are undefined afterwards.
    fn reduce_scatter_in_place(
        &mut self,
        tensor: &Tensor,
        [rank, size]: [usize; 2],
    ) -> Result<Work, SysError> {
        let own = part(tensor, rank, size);
        let sum = own.f_empty_like().map_err(|error| SysError::Torch {
            call: "reduce_scatter".to_owned(),
            message: error.to_string(),
        })?;
        let work = self.reduce_scatter(&sum, tensor)?;
        Ok(Work::Copied { work: Box::new(work), from: sum, to: own })
    }

    /// Sends the `i`-th chunk of every input to rank `i`. `counts` holds the rows received from each rank and
    /// the rows sent to each rank.
    fn all_to_all(&mut self, output: &Tensor, input: &Tensor, counts: [&[i64]; 2]) -> Result<Work, SysError>;

    /// Copies the `tensor` of rank `root` to every rank, in place.
    fn broadcast(&mut self, tensor: &Tensor, root: usize) -> Result<Work, SysError>;

    /// Sends `tensor` from the first of two ranks to the second. Neither rank blocks before it waits for the
    /// work.
    fn send_or_recv(&mut self, tensor: &Tensor) -> Result<Work, SysError> {
        self.broadcast(tensor, 0)
    }

    /// Blocks until every rank has called it.
    fn barrier(&mut self) -> Result<(), SysError>;
}

/// Connects some ranks of a group under a name, for tensors of a device.
pub(crate) type Connect = dyn Fn(&str, &[usize], Device) -> Result<Box<dyn Backend>, Error> + Send + Sync;

/// A started collective.
#[derive(Debug)]
#[must_use = "a collective is done once it was waited for"]
pub enum Work {
    /// The collective is complete.
    Done,
    /// Gloo's threads run the collective.
    Gloo(c10d::Work),
    /// Gloo's threads run an all-to-all into `[P, ...]` chunks, one per rank, whose sum is the output.
    AllToAllThenSum {
        /// The all-to-all.
        work: c10d::Work,
        /// The received chunks, one per rank.
        chunks: Tensor,
        /// The tensor that receives the sum of the chunks.
        output: Tensor,
    },
    /// A collective whose result is copied at the end.
    Copied {
        /// The collective.
        work: Box<Self>,
        /// Its result.
        from: Tensor,
        /// The tensor that receives the result.
        to: Tensor,
    },
    /// A GPU runs the collective.
    Nccl(parallel_sys::nccl::Work),
    /// A collective on copies of the tensors in host memory.
    Staged {
        /// The collective.
        work: Box<Self>,
        /// The inputs, which must live until the work is done.
        inputs: Vec<Tensor>,
        /// The result in host memory, and the tensor of the device that receives it.
        output: Option<(Tensor, Tensor)>,
    },
    /// A thread of this process runs the collective.
    Thread(mpsc::Receiver<Result<(), SysError>>),
}

impl Work {
    /// Waits for the collective: torch operations that are started afterwards see the result. The host does
    /// not block for a GPU collective.
    pub fn wait(self) -> Result<(), SysError> {
        match self {
            Self::Done => Ok(()),
            Self::Gloo(work) => work.wait(),
            Self::AllToAllThenSum { work, chunks, mut output } => {
                work.wait()?;
                // The shared-memory backend does the same: it adds in rank order, and bf16 in fp32.
                let acc_kind = if output.kind() == Kind::BFloat16 { Kind::Float } else { output.kind() };
                let mut sum = chunks.select(0, 0).to_kind(acc_kind);
                for rank in 1..chunks.size()[0] {
                    sum += chunks.select(0, rank).to_kind(acc_kind);
                }
                output.copy_(&sum);
                Ok(())
            }
            Self::Copied { work, from, mut to } => {
                work.wait()?;
                to.copy_(&from);
                Ok(())
            }
            Self::Nccl(work) => work.wait(),
            Self::Staged { work, inputs, output } => {
                work.wait()?;
                drop(inputs);
                if let Some((host, mut tensor)) = output {
                    tensor.copy_(&host);
                }
                Ok(())
            }
            Self::Thread(answer) => answer.recv().unwrap_or_else(|_| {
                let (call, problem) = ("collective".to_owned(), "its thread ended".to_owned());
                Err(SysError::Shared { call, problem })
            }),
        }
    }

    /// Returns the work if it is still running, and `None` if the tensors hold the result.
    fn try_wait(self) -> Result<Option<Self>, SysError> {
        match self {
            Self::Gloo(work) if !work.is_done()? => Ok(Some(Self::Gloo(work))),
            Self::Nccl(work) if !work.is_done()? => Ok(Some(Self::Nccl(work))),
            Self::Thread(answer) => match answer.try_recv() {
                Ok(result) => result.map(|()| None),
                Err(mpsc::TryRecvError::Empty) => Ok(Some(Self::Thread(answer))),
                Err(mpsc::TryRecvError::Disconnected) => Self::Thread(answer).wait().map(|()| None),
            },
            Self::Staged { work, inputs, output } => match work.try_wait()? {
                Some(work) => Ok(Some(Self::Staged { work: Box::new(work), inputs, output })),
                None => Self::Staged { work: Box::new(Self::Done), inputs, output }.wait().map(|()| None),
            },
            other => other.wait().map(|()| None),
        }
    }
}

/// A started collective of a process group.
#[derive(Debug)]
#[must_use = "a collective is done once it was waited for"]
pub struct PendingCollective {
    rank: usize,
    group: Arc<str>,
    collective: &'static str,
    work: Work,
}

impl PendingCollective {
    /// Waits for the collective, as [`Work::wait`] does.
    pub fn wait(self) -> Result<(), Error> {
        let Self { rank, group, collective, work } = self;
        work.wait().map_err(|cause| Error::Collective { rank, group: group.to_string(), collective, cause })
    }

    /// Returns the collective if it is still running, and `None` if the tensors hold the result. Waits for a
    /// collective whose chunks are summed at the end.
    pub fn try_wait(self) -> Result<Option<Self>, Error> {
        let Self { rank, group, collective, work } = self;
        match work.try_wait() {
            Ok(work) => Ok(work.map(|work| Self { rank, group, collective, work })),
            Err(cause) => Err(Error::Collective { rank, group: group.to_string(), collective, cause }),
        }
    }
}

/// Sender and receiver, and the message tag.
pub(crate) type P2pKey = ([usize; 2], usize);

/// One rank's handle to a process group.
pub struct ProcessGroup {
    name: Arc<str>,
    /// The world ranks of the group members, in order.
    ranks: Vec<usize>,
    rank: usize,
    /// The backend for CPU tensors; `None` for a group of one rank.
    communicator: Option<Mutex<Box<dyn Backend>>>,
    /// The backend for tensors of the device of this rank, connected at the first of them.
    device_communicator: Mutex<Option<Box<dyn Backend>>>,
    /// Connects further communicators among the ranks of the group; `None` for a group of one rank.
    connect: Option<Arc<Connect>>,
    /// The point-to-point connections between this rank and others.
    channels: Mutex<HashMap<P2pKey, Box<dyn Backend>>>,
    /// What this rank has sent so far, by collective.
    sent: Mutex<BTreeMap<&'static str, Sent>>,
}

impl Debug for ProcessGroup {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} {} of {:?}", self.name, self.rank, self.ranks)
    }
}

impl ProcessGroup {
    /// A group of one rank, without a backend.
    pub fn single(name: &str, rank: usize) -> Self {
        Self::new(name, vec![rank], 0, None, None)
    }

    /// The group of `ranks` for planning, seen from the `rank`-th of them. It has ranks and sizes, but no
    /// backend.
    pub(crate) fn fake(name: &str, ranks: Vec<usize>, rank: usize) -> Self {
        Self::new(name, ranks, rank, None, None)
    }

    /// The group of `ranks`; this process is the `rank`-th of them.
    pub(crate) fn new(
        name: &str,
        ranks: Vec<usize>,
        rank: usize,
        communicator: Option<Box<dyn Backend>>,
        connect: Option<Arc<Connect>>,
    ) -> Self {
        let communicator = communicator.map(Mutex::new);
        let (device_communicator, channels, sent) = (Mutex::default(), Mutex::default(), Mutex::default());
        Self { name: name.into(), ranks, rank, communicator, device_communicator, connect, channels, sent }
    }

    /// A group of the same ranks with communicators of its own, so that its collectives may run in another
    /// order than those of this group. Every rank calls this function with the same `name`, which no earlier
    /// duplicate of the group has. MPI: `MPI_Comm_dup`.
    pub fn duplicate(&self, name: &str) -> Result<Self, Error> {
        let Some(connect) = &self.connect else {
            return Ok(Self::new(name, self.ranks.clone(), self.rank, None, None));
        };
        let everyone: Vec<usize> = (0..self.size()).collect();
        let communicator = connect(name, &everyone, Device::Cpu)?;
        let (connect, prefix) = (Arc::clone(connect), name.to_owned());
        let full_name = format!("{} ({name})", self.name);
        let connect: Arc<Connect> = Arc::new(move |subgroup: &str, ranks: &[usize], device: Device| {
            connect(&format!("{prefix}/{subgroup}"), ranks, device)
        });
        Ok(Self::new(&full_name, self.ranks.clone(), self.rank, Some(communicator), Some(connect)))
    }

    /// The name of the group.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The rank of this process within the group.
    pub fn rank(&self) -> usize {
        self.rank
    }

    /// The number of ranks in the group.
    pub fn size(&self) -> usize {
        self.ranks.len()
    }

    /// The world ranks of the group members, in order.
    pub fn ranks(&self) -> &[usize] {
        &self.ranks
    }

    /// The name of the backend for CPU tensors.
    pub fn transport(&self) -> &'static str {
        self.communicator.as_ref().map_or("none", |communicator| lock(communicator).name())
    }

    /// The number of bytes that this rank has sent so far.
    pub fn sent_bytes(&self) -> u64 {
        lock(&self.sent).values().map(|sent| sent.bytes).sum()
    }

    /// What this rank has sent so far, by collective. [`NUMBERS`] are single numbers and plain data.
    pub fn sent(&self) -> BTreeMap<&'static str, Sent> {
        lock(&self.sent).clone()
    }

    /// Replaces every rank's `tensor` by the reduction over all ranks, in place.
    pub fn all_reduce(&self, tensor: &Tensor, reduction: Reduction) -> Result<(), Error> {
        self.start_all_reduce(tensor, reduction)?.wait()
    }

    /// Starts an [`all_reduce`](Self::all_reduce).
    pub fn start_all_reduce(
        &self,
        tensor: &Tensor,
        reduction: Reduction,
    ) -> Result<PendingCollective, Error> {
        self.start_all_reduce_as("all_reduce", tensor, reduction)
    }

    fn start_all_reduce_as(
        &self,
        counted: &'static str,
        tensor: &Tensor,
        reduction: Reduction,
    ) -> Result<PendingCollective, Error> {
        self.count(counted, 2 * bytes_of(tensor) * (self.size() as u64 - 1) / self.size() as u64);
        self.start("all_reduce", tensor.device(), |communicator| communicator.all_reduce(tensor, reduction))
    }

    /// Concatenates the `[n, ...]` tensors of all ranks, in rank order, to `[n P, ...]` on every rank.
    pub fn all_gather(&self, input: &Tensor) -> Result<Tensor, Error> {
        self.all_gather_as("all_gather", input)
    }

    fn all_gather_as(&self, counted: &'static str, input: &Tensor) -> Result<Tensor, Error> {
        let input = input.contiguous();
        let mut shape = input.size();
        shape[0] *= self.size() as i64;
        if self.size() == 1 {
            return Ok(input);
        }
        let output = self.empty_output(&shape, (input.kind(), input.device()), "all_gather")?;
        self.all_gather_into_as(counted, &output, &input)?;
        Ok(output)
    }

    /// Runs [`all_gather`](Self::all_gather) into an existing tensor. Both tensors are contiguous.
    pub fn all_gather_into(&self, output: &Tensor, input: &Tensor) -> Result<(), Error> {
        self.all_gather_into_as("all_gather", output, input)
    }

    fn all_gather_into_as(
        &self,
        counted: &'static str,
        output: &Tensor,
        input: &Tensor,
    ) -> Result<(), Error> {
        self.count(counted, bytes_of(input) * (self.size() as u64 - 1));
        self.start("all_gather", input.device(), |communicator| communicator.all_gather(output, input))?
            .wait()
    }

    /// Sums the `[n P, ...]` tensors of all ranks and returns this rank's `[n, ...]` chunk of the sum.
    pub fn reduce_scatter(&self, input: &Tensor) -> Result<Tensor, Error> {
        let input = input.contiguous();
        let mut shape = input.size();
        assert!(shape[0] % self.size() as i64 == 0, "the first dimension is a multiple of the ranks");
        shape[0] /= self.size() as i64;
        if self.size() == 1 {
            return Ok(input.copy());
        }
        let output = self.empty_output(&shape, (input.kind(), input.device()), "reduce_scatter")?;
        self.count("reduce_scatter", bytes_of(&output) * (self.size() as u64 - 1));
        self.start("reduce_scatter", input.device(), |communicator| {
            communicator.reduce_scatter(&output, &input)
        })?
        .wait()?;
        Ok(output)
    }

    /// Starts to fill the flat `tensor`, of which each rank has its own equal part, with the parts of all
    /// ranks. Its length is a multiple of the number of ranks. FSDP: `all_gather_into_tensor` of a flat
    /// parameter.
    pub fn start_all_gather_in_place(&self, tensor: &Tensor) -> Result<PendingCollective, Error> {
        self.count("all_gather", bytes_of(tensor) / self.size() as u64 * (self.size() as u64 - 1));
        let place = [self.rank, self.size()];
        self.start("all_gather", tensor.device(), |communicator| {
            communicator.all_gather_in_place(tensor, place)
        })
    }

    /// Starts to replace this rank's equal part of the flat `tensor` by the sum of this part over all ranks.
    /// The other parts are undefined afterwards. The length is a multiple of the number of ranks. FSDP:
    /// `reduce_scatter_tensor` of a flat gradient.
    pub fn start_reduce_scatter_in_place(&self, tensor: &Tensor) -> Result<PendingCollective, Error> {
        self.count("reduce_scatter", bytes_of(tensor) / self.size() as u64 * (self.size() as u64 - 1));
        let place = [self.rank, self.size()];
        self.start("reduce_scatter", tensor.device(), |communicator| {
            communicator.reduce_scatter_in_place(tensor, place)
        })
    }

    /// Sends `input_split_sizes[i]` rows of `input` `[n, ...]` to rank `i`. Returns the received rows,
    /// `output_split_sizes[i]` from rank `i`, concatenated in rank order.
    pub fn all_to_all(&self, input: &Tensor, split_sizes: [&[i64]; 2]) -> Result<Tensor, Error> {
        self.all_to_all_as("all_to_all", input, split_sizes)
    }

    fn all_to_all_as(
        &self,
        counted: &'static str,
        input: &Tensor,
        [output_split_sizes, input_split_sizes]: [&[i64]; 2],
    ) -> Result<Tensor, Error> {
        let input = input.contiguous();
        if self.size() == 1 {
            return Ok(input);
        }
        let mut shape = input.size();
        let row = bytes_of(&input) / shape[0].max(1) as u64;
        shape[0] = output_split_sizes.iter().sum();
        let output = self.empty_output(&shape, (input.kind(), input.device()), "all_to_all")?;
        let sent_rows = input_split_sizes.iter().sum::<i64>() - input_split_sizes[self.rank];
        self.count(counted, row * sent_rows as u64);
        self.start("all_to_all", input.device(), |communicator| {
            communicator.all_to_all(&output, &input, [output_split_sizes, input_split_sizes])
        })?
        .wait()?;
        Ok(output)
    }

    /// Copies the `tensor` of the group's rank `root` to every rank, in place.
    pub fn broadcast(&self, tensor: &Tensor, root: usize) -> Result<(), Error> {
        if self.rank == root {
            self.count("broadcast", bytes_of(tensor));
        }
        self.start("broadcast", tensor.device(), |communicator| communicator.broadcast(tensor, root))?.wait()
    }

    /// Starts to send `tensor` to the group's rank `to`, which [receives](Self::recv) the messages of one tag
    /// in order. `tensor` must not change until the caller has waited for the work.
    pub fn send(&self, tensor: &Tensor, to: usize, tag: usize) -> Result<PendingCollective, Error> {
        self.count("send", bytes_of(tensor));
        self.send_or_recv(tensor, [self.rank, to], tag, "send")
    }

    /// Receives the tensor that the group's rank `from` sends under `tag`.
    pub fn recv(
        &self,
        shape: &[i64],
        options: (Kind, Device),
        from: usize,
        tag: usize,
    ) -> Result<Tensor, Error> {
        let tensor = self.empty_output(shape, options, "receive")?;
        self.send_or_recv(&tensor, [from, self.rank], tag, "receive")?.wait()?;
        Ok(tensor)
    }

    /// Connects point-to-point channels for tensors of a GPU, each given by sender, receiver and tag. All
    /// ranks of the group pass the same list. Connecting over NCCL waits for the other rank, so two ranks
    /// whose first messages go to one another would wait forever if each connected at its first message.
    pub(crate) fn open_channels(
        &self,
        channels: impl Iterator<Item = P2pKey>,
        device: Device,
    ) -> Result<(), Error> {
        if device.is_cuda() {
            for (endpoints, tag) in channels.filter(|(endpoints, _)| endpoints.contains(&self.rank)) {
                self.channel(&mut lock(&self.channels), endpoints, tag, device).map(drop)?;
            }
        }
        Ok(())
    }

    /// The channel between two ranks, connected at its first use.
    fn channel<'c>(
        &self,
        channels: &'c mut HashMap<P2pKey, Box<dyn Backend>>,
        endpoints: [usize; 2],
        tag: usize,
        device: Device,
    ) -> Result<&'c mut Box<dyn Backend>, Error> {
        Ok(match channels.entry((endpoints, tag)) {
            Entry::Occupied(there) => there.into_mut(),
            Entry::Vacant(new) => {
                let name = format!("{}-{}/{tag}", endpoints[0], endpoints[1]);
                new.insert(self.connect(&name, &endpoints, device)?)
            }
        })
    }

    fn send_or_recv(
        &self,
        tensor: &Tensor,
        endpoints: [usize; 2],
        tag: usize,
        collective: &'static str,
    ) -> Result<PendingCollective, Error> {
        let mut channels = lock(&self.channels);
        let channel = self.channel(&mut channels, endpoints, tag, tensor.device())?;
        let (rank, group) = (self.ranks[self.rank], Arc::clone(&self.name));
        let work = channel.send_or_recv(tensor).map_err(|cause| Error::Collective {
            rank,
            group: group.to_string(),
            collective,
            cause,
        })?;
        Ok(PendingCollective { rank, group, collective, work })
    }

    /// Blocks until every rank has called it.
    pub fn barrier(&self) -> Result<(), Error> {
        self.start("barrier", Device::Cpu, |communicator| communicator.barrier().map(|()| Work::Done))?.wait()
    }

    /// Sums each number over the ranks, in fp64.
    pub fn all_reduce_sum<const N: usize>(&self, numbers: [f64; N]) -> Result<[f64; N], Error> {
        self.all_reduce_scalars(numbers, Reduction::Sum)
    }

    /// Returns the maximum of each number over the ranks.
    pub fn all_reduce_max<const N: usize>(&self, numbers: [f64; N]) -> Result<[f64; N], Error> {
        self.all_reduce_scalars(numbers, Reduction::Max)
    }

    /// All-gathers one byte string of any length per rank, in rank order.
    pub fn all_gather_bytes(&self, local: &[u8]) -> Result<Vec<Vec<u8>>, Error> {
        let options = (Kind::Int64, tch::Device::Cpu);
        let lengths = self.all_gather_as(NUMBERS, &Tensor::full([1], local.len() as i64, options))?;
        let lengths: Vec<i64> = Vec::try_from(&lengths).expect("one length a rank");
        let input_splits = vec![local.len() as i64; self.size()];
        let copies = Tensor::from_slice(local).repeat([self.size() as i64]);
        let all = self.all_to_all_as(NUMBERS, &copies, [&lengths, &input_splits])?;
        let mut rest: &[u8] = &Vec::<u8>::try_from(&all).expect("bytes");
        let mut chunks = Vec::with_capacity(self.size());
        for length in lengths {
            let (chunk, remaining) = rest.split_at(length as usize);
            chunks.push(chunk.to_vec());
            rest = remaining;
        }
        Ok(chunks)
    }

    /// Returns this rank's items if `items` are assigned round-robin: the first to rank 0, the second to rank
    /// 1, and so on.
    pub fn round_robin<T>(&self, items: impl IntoIterator<Item = T>) -> impl Iterator<Item = T> {
        items.into_iter().skip(self.rank).step_by(self.size())
    }

    /// Returns this rank's range if `length` indices are split into one contiguous range per rank, as evenly
    /// as possible.
    pub fn shard_range(&self, length: usize) -> Range<usize> {
        let cut = |rank: usize| length * rank / self.size();
        cut(self.rank)..cut(self.rank + 1)
    }

    /// All-gathers the items of all ranks, in rank order.
    pub fn all_gather_object<T: Serialize + DeserializeOwned>(&self, local: Vec<T>) -> Result<Vec<T>, Error> {
        if self.size() == 1 {
            return Ok(local);
        }
        let bytes = postcard::to_allocvec(&local).expect("plain data has a binary form");
        let mut all = Vec::new();
        for (index, bytes) in self.all_gather_bytes(&bytes)?.into_iter().enumerate() {
            let version_mismatch = |_| Error::VersionMismatch { rank: self.ranks[index] };
            all.extend(postcard::from_bytes::<Vec<T>>(&bytes).map_err(version_mismatch)?);
        }
        Ok(all)
    }

    /// Allocates the output of a collective. Running out of memory is an error, not a panic.
    fn empty_output(
        &self,
        shape: &[i64],
        options: (Kind, Device),
        collective: &'static str,
    ) -> Result<Tensor, Error> {
        Tensor::f_empty(shape, options).map_err(|error| Error::Collective {
            rank: self.ranks[self.rank],
            group: self.name.to_string(),
            collective,
            cause: SysError::Torch { call: "empty".to_owned(), message: error.to_string() },
        })
    }

    fn all_reduce_scalars<const N: usize>(
        &self,
        numbers: [f64; N],
        reduction: Reduction,
    ) -> Result<[f64; N], Error> {
        if self.size() == 1 {
            return Ok(numbers);
        }
        let tensor = Tensor::from_slice(&numbers);
        self.start_all_reduce_as(NUMBERS, &tensor, reduction)?.wait()?;
        let reduced = Vec::<f64>::try_from(&tensor).expect("a vector of numbers");
        Ok(reduced.try_into().expect("a reduction keeps the number of elements"))
    }

    fn start(
        &self,
        collective: &'static str,
        device: Device,
        start: impl FnOnce(&mut dyn Backend) -> Result<Work, SysError>,
    ) -> Result<PendingCollective, Error> {
        let (rank, group) = (self.ranks[self.rank], Arc::clone(&self.name));
        let work = match &self.communicator {
            None => {
                assert_eq!(self.size(), 1, "a fake group has no backend");
                Ok(Work::Done)
            }
            Some(communicator) if device == Device::Cpu => start(lock(communicator).as_mut()),
            Some(_) => start(self.device_communicator(device)?.as_mut().expect("it was connected").as_mut()),
        };
        let work =
            work.map_err(|cause| Error::Collective { rank, group: group.to_string(), collective, cause })?;
        Ok(PendingCollective { rank, group, collective, work })
    }

    /// The backend for tensors of `device`, connected at its first use. Either all ranks of the group have
    /// their tensors on such a device, or none.
    fn device_communicator(&self, device: Device) -> Result<MutexGuard<'_, Option<Box<dyn Backend>>>, Error> {
        let mut communicator = lock(&self.device_communicator);
        if communicator.is_none() {
            let everyone: Vec<usize> = (0..self.size()).collect();
            *communicator = Some(self.connect("all", &everyone, device)?);
        }
        Ok(communicator)
    }

    fn connect(&self, name: &str, ranks: &[usize], device: Device) -> Result<Box<dyn Backend>, Error> {
        self.connect.as_ref().expect("only groups of several ranks connect a backend")(name, ranks, device)
    }

    /// Counts a collective, under its name or as [`NUMBERS`]. A group of one rank sends nothing.
    fn count(&self, collective: &'static str, bytes: u64) {
        if self.size() > 1 {
            let mut sent = lock(&self.sent);
            let counted = sent.entry(collective).or_default();
            counted.calls += 1;
            counted.bytes += bytes;
        }
    }
}

/// Part `index` of a flat tensor that is cut into `parts` equal ones.
fn part(tensor: &Tensor, index: usize, parts: usize) -> Tensor {
    let length = tensor.size()[0] / parts as i64;
    assert!(length * parts as i64 == tensor.size()[0], "the length is a multiple of the ranks");
    tensor.narrow(0, index as i64 * length, length)
}

fn bytes_of(tensor: &Tensor) -> u64 {
    (tensor.numel() * tensor.kind().elt_size_in_bytes()) as u64
}

/// Locks a backend and ignores poisoning: a backend that a panic left unusable returns errors itself.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
