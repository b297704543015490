//! Collectives among GPUs over NCCL, by way of cudarc.
//!
//! NCCL is looked for at run time, as `libnccl.so` in the loader's path; nothing of it is needed to build. Every rank has a GPU of its
//! own. A collective is queued and not waited for (see [`stream`](crate::stream)); its tensors are contiguous and on the group's GPU.
//! Calls on one group are made in the same order on every rank.
//!
//! A group is never taken apart: NCCL would wait for all ranks to do so, and one that failed would not end. Groups live as long as
//! their process.
//!
//! | level | what | knows |
//! |---|---|---|
//! | cudarc | `result`, `sys` | pointers, counts |
//! | `Comm` | NCCL's calls on tensors | kinds of numbers, ranks |
//! | `Nccl` | the calls in order with what torch computes | queues, lifetimes |

use std::ffi::{CStr, c_char, c_int, c_void};

use cudarc::nccl::result::{self, NcclError, NcclStatus};
use cudarc::nccl::sys;
use tch::{Device, Kind, Tensor};

use crate::Error;
use crate::c10d::Reduction;
use crate::stream::{Event, SideStream};

/// What ranks must share to find each other.
pub type UniqueId = [u8; 128];

/// A new one, for one rank to make and tell the others.
pub fn unique_id() -> Result<UniqueId, Error> {
    let id = result::get_uniqueid().map_err(|error| failed("ncclGetUniqueId", None, &error))?;
    Ok(id.internal.map(|byte| byte as u8))
}

/// A queue of the GPU `device`, which becomes this thread's; refused where NCCL is missing. NCCL waits for ever for a rank that does not
/// join, so a rank has this before it tells the others that it is coming.
pub fn open_stream(device: usize) -> Result<SideStream, Error> {
    check_library()?;
    SideStream::open(device)
}

/// Ranks that talk over NCCL.
#[derive(Debug)]
pub struct Nccl {
    calls: Comm,
    stream: SideStream,
}

impl Nccl {
    /// Joins the group of `id` as `rank` of `size` with the GPU of `stream`, which must be this thread's; returns once all have.
    pub fn join(id: &UniqueId, place: [usize; 2], stream: SideStream) -> Result<Self, Error> {
        Ok(Self { calls: Comm::join(id, place)?, stream })
    }

    /// Every rank's `tensor` becomes the reduction of all.
    pub fn all_reduce(&self, tensor: &Tensor, reduction: Reduction) -> Result<Work, Error> {
        self.start(&[tensor], |calls, stream| calls.all_reduce(tensor, reduction, stream))
    }

    /// `output` becomes the inputs of all ranks, end to end.
    pub fn all_gather(&self, output: &Tensor, input: &Tensor) -> Result<Work, Error> {
        self.start(&[output, input], |calls, stream| calls.all_gather(output, input, stream))
    }

    /// `output` becomes this rank's part of the sum of all inputs.
    pub fn reduce_scatter(&self, output: &Tensor, input: &Tensor) -> Result<Work, Error> {
        self.start(&[output, input], |calls, stream| calls.reduce_scatter(output, input, stream))
    }

    /// Rank `i` receives the `i`-th part of every input; `counts` are the rows that come from, and go to, each rank.
    pub fn all_to_all(&self, output: &Tensor, input: &Tensor, counts: [&[i64]; 2]) -> Result<Work, Error> {
        self.start(&[output, input], |calls, stream| calls.all_to_all(output, input, counts, stream))
    }

    /// Every rank's `tensor` becomes that of `root`.
    pub fn broadcast(&self, tensor: &Tensor, root: usize) -> Result<Work, Error> {
        self.start(&[tensor], |calls, stream| calls.broadcast(tensor, root, stream))
    }

    /// Returns once every rank has called it.
    pub fn barrier(&self) -> Result<(), Error> {
        let tensor = Tensor::zeros([1], (Kind::Float, Device::Cuda(self.stream.device())));
        self.all_reduce(&tensor, Reduction::Sum)?.wait()?;
        // To read the number is to wait for it.
        tensor.double_value(&[0]);
        Ok(())
    }

    fn start(
        &self,
        tensors: &[&Tensor],
        call: impl FnOnce(&Comm, *mut c_void) -> Result<(), Error>,
    ) -> Result<Work, Error> {
        let device = self.stream.device();
        if !tensors.iter().all(|tensor| tensor.device() == Device::Cuda(device) && tensor.is_contiguous()) {
            let problem = format!("a tensor must be contiguous and on the GPU {device}");
            return Err(Error::Nccl { call: "collective".to_owned(), problem });
        }
        self.calls.check()?;
        let event = self.stream.run(|stream| call(&self.calls, stream))?;
        Ok(Work { event, tensors: tensors.iter().map(|tensor| tensor.shallow_clone()).collect() })
    }
}

/// A collective that was queued.
#[derive(Debug)]
#[must_use = "a collective is done once it was waited for"]
pub struct Work {
    event: Event,
    tensors: Vec<Tensor>,
}

impl Work {
    /// What torch queues from now on finds the result in the tensors; the caller does not wait.
    pub fn wait(mut self) -> Result<(), Error> {
        self.event.block()?;
        self.tensors.clear();
        Ok(())
    }
}

impl Drop for Work {
    fn drop(&mut self) {
        // Nobody may get the memory of tensors that are still in use. Nothing is left to tell a failure to.
        if !self.tensors.is_empty() {
            let _ = self.event.block();
        }
    }
}

/// NCCL's calls on contiguous tensors whose memory NCCL can reach.
#[derive(Debug)]
struct Comm {
    communicator: sys::ncclComm_t,
    size: usize,
}

// SAFETY: NCCL's communicators belong to no thread; the order of calls is the caller's business.
unsafe impl Send for Comm {}

impl Comm {
    fn join(id: &UniqueId, [rank, size]: [usize; 2]) -> Result<Self, Error> {
        let id = sys::ncclUniqueId { internal: id.map(|byte| byte as c_char) };
        let mut communicator = std::ptr::null_mut();
        // SAFETY: `communicator` receives a communicator that belongs to us.
        let joined = unsafe { result::comm_init_rank(&raw mut communicator, narrow(size), id, narrow(rank)) };
        joined.map_err(|error| failed("ncclCommInitRank", None, &error))?;
        Ok(Self { communicator, size })
    }

    /// Whether the collectives before this one went well, as far as is known.
    fn check(&self) -> Result<(), Error> {
        let mut state = sys::ncclResult_t::ncclSuccess;
        // SAFETY: a live communicator and a place for its state.
        let asked = unsafe { sys::ncclCommGetAsyncError(self.communicator, &raw mut state) };
        self.check_result("ncclCommGetAsyncError", asked.result())?;
        self.check_result("an earlier collective", state.result())
    }

    fn all_reduce(&self, tensor: &Tensor, reduction: Reduction, stream: *mut c_void) -> Result<(), Error> {
        let operation = match reduction {
            Reduction::Sum => sys::ncclRedOp_t::ncclSum,
            Reduction::Max => sys::ncclRedOp_t::ncclMax,
            Reduction::Min => sys::ncclRedOp_t::ncclMin,
        };
        let (pointer, kind) = (tensor.data_ptr(), kind_of(tensor)?);
        // SAFETY: (here and below) a live communicator, and tensors that are as long as they say; they live until the work was waited
        // for. In and out may be one.
        let queued = unsafe {
            result::all_reduce(
                pointer,
                pointer,
                tensor.numel(),
                kind,
                operation,
                self.communicator,
                stream.cast(),
            )
        };
        self.check_result("ncclAllReduce", queued)
    }

    fn all_gather(&self, output: &Tensor, input: &Tensor, stream: *mut c_void) -> Result<(), Error> {
        check_sizes("ncclAllGather", output, input, self.size)?;
        let (to, from, kind) = (output.data_ptr(), input.data_ptr(), kind_of(input)?);
        // SAFETY: as above, and `output` has room for every rank's input.
        let queued =
            unsafe { result::all_gather(from, to, input.numel(), kind, self.communicator, stream.cast()) };
        self.check_result("ncclAllGather", queued)
    }

    fn reduce_scatter(&self, output: &Tensor, input: &Tensor, stream: *mut c_void) -> Result<(), Error> {
        check_sizes("ncclReduceScatter", input, output, self.size)?;
        let (to, from, kind) = (output.data_ptr(), input.data_ptr(), kind_of(input)?);
        let sum = sys::ncclRedOp_t::ncclSum;
        // SAFETY: as above, and `input` holds a part for every rank.
        let queued = unsafe {
            result::reduce_scatter(from, to, output.numel(), kind, sum, self.communicator, stream.cast())
        };
        self.check_result("ncclReduceScatter", queued)
    }

    fn all_to_all(
        &self,
        output: &Tensor,
        input: &Tensor,
        [received, sent]: [&[i64]; 2],
        stream: *mut c_void,
    ) -> Result<(), Error> {
        let kind = kind_of(input)?;
        let row = input.size()[1..].iter().product::<i64>() as usize;
        for (tensor, counts) in [(output, received), (input, sent)] {
            let rows = counts.iter().sum::<i64>() as usize;
            if counts.len() != self.size || tensor.kind() != input.kind() || tensor.numel() != rows * row {
                let problem = format!("{counts:?} are not the rows of {:?} for each rank", tensor.size());
                return Err(Error::Nccl { call: "all_to_all".to_owned(), problem });
            }
        }
        let (mut to, mut from) = (output.data_ptr().cast::<u8>(), input.data_ptr().cast::<u8>());
        let width = input.kind().elt_size_in_bytes();
        self.check_result("ncclGroupStart", result::group_start())?;
        let queued = (0..self.size).try_for_each(|peer| {
            let [come, go] = [received, sent].map(|counts| counts[peer] as usize * row);
            let (number, stream) = (narrow(peer), stream.cast());
            // SAFETY: as above; `to` and `from` stay inside their tensors, whose lengths are the sums of the counts.
            unsafe {
                if go > 0 {
                    let queued = result::send(from.cast(), go, kind, number, self.communicator, stream);
                    self.check_result("ncclSend", queued)?;
                }
                if come > 0 {
                    let queued = result::recv(to.cast(), come, kind, number, self.communicator, stream);
                    self.check_result("ncclRecv", queued)?;
                }
                to = to.add(come * width);
                from = from.add(go * width);
            }
            Ok(())
        });
        // A group that was begun is ended, whatever happened in it.
        let ended = self.check_result("ncclGroupEnd", result::group_end());
        queued.and(ended)
    }

    fn broadcast(&self, tensor: &Tensor, root: usize, stream: *mut c_void) -> Result<(), Error> {
        let (pointer, kind) = (tensor.data_ptr(), kind_of(tensor)?);
        // SAFETY: as above.
        let queued = unsafe {
            result::broadcast(
                pointer,
                pointer,
                tensor.numel(),
                kind,
                narrow(root),
                self.communicator,
                stream.cast(),
            )
        };
        self.check_result("ncclBroadcast", queued)
    }

    fn check_result(&self, call: &str, result: Result<NcclStatus, NcclError>) -> Result<(), Error> {
        result.map(drop).map_err(|error| failed(call, Some(self), &error))
    }
}

/// Whether NCCL is there: cudarc panics where it is not.
fn check_library() -> Result<(), Error> {
    // SAFETY: loading NCCL runs its own initialisers.
    if unsafe { sys::is_culib_present() } {
        return Ok(());
    }
    let problem = "no libnccl.so in the loader's path: name its folder in LD_LIBRARY_PATH, and where it is called libnccl.so.2, \
                   link libnccl.so to it there";
    Err(Error::Nccl { call: "loading".to_owned(), problem: problem.to_owned() })
}

fn kind_of(tensor: &Tensor) -> Result<sys::ncclDataType_t, Error> {
    use sys::ncclDataType_t as Nccl;
    Ok(match tensor.kind() {
        Kind::Uint8 | Kind::Bool => Nccl::ncclUint8,
        Kind::Int8 => Nccl::ncclInt8,
        Kind::Int => Nccl::ncclInt32,
        Kind::Int64 => Nccl::ncclInt64,
        Kind::Half => Nccl::ncclFloat16,
        Kind::BFloat16 => Nccl::ncclBfloat16,
        Kind::Float => Nccl::ncclFloat32,
        Kind::Double => Nccl::ncclFloat64,
        other => {
            let problem = format!("NCCL has no numbers of kind {other:?}");
            return Err(Error::Nccl { call: "collective".to_owned(), problem });
        }
    })
}

/// Whether `whole` is `parts` times `part`.
fn check_sizes(call: &str, whole: &Tensor, part: &Tensor, parts: usize) -> Result<(), Error> {
    if whole.kind() == part.kind() && whole.numel() == part.numel() * parts {
        return Ok(());
    }
    let [whole, part] = [whole, part].map(|tensor| format!("{:?} {:?}", tensor.kind(), tensor.size()));
    let problem = format!("{whole} is not {parts} times {part}");
    Err(Error::Nccl { call: call.to_owned(), problem })
}

fn narrow(number: usize) -> c_int {
    c_int::try_from(number).expect("few ranks")
}

/// NCCL's code and what it says of it; `calls` tells more where there are any.
fn failed(call: &str, calls: Option<&Comm>, NcclError(code): &NcclError) -> Error {
    let communicator = calls.map_or(std::ptr::null_mut(), |calls| calls.communicator);
    let copy = |text: *const c_char| {
        if text.is_null() {
            return String::new();
        }
        // SAFETY: NCCL's texts end with a NUL and live until its next call on this thread.
        unsafe { CStr::from_ptr(text) }.to_string_lossy().into_owned()
    };
    // SAFETY: a plain call.
    let reason = copy(unsafe { sys::ncclGetErrorString(*code) });
    // SAFETY: a live communicator or none, which NCCL takes as well.
    let detail = copy(unsafe { sys::ncclGetLastError(communicator) });
    let problem = [format!("{reason} ({code:?})"), detail].into_iter().filter(|text| !text.is_empty());
    Error::Nccl { call: call.to_owned(), problem: problem.collect::<Vec<_>>().join(": ") }
}

#[cfg(test)]
mod tests;
