//! Collectives between GPUs over NCCL, through cudarc.
//!
//! NCCL is loaded at run time as `libnccl.so` from the loader's path; the build does not need it. Every rank
//! has its own GPU. A collective is queued on a stream and the host does not block (see
//! [`stream`](crate::stream)). Its tensors are contiguous and on the group's GPU. Every rank makes the calls
//! on one group in the same order.
//!
//! A communicator is never destroyed: NCCL would wait until all ranks do so, and a failed rank never would.
//! Communicators live as long as their process.
//!
//! | level | content | handles |
//! |---|---|---|
//! | cudarc | `result`, `sys` | pointers, counts |
//! | `Comm` | NCCL's functions on tensors | dtypes, ranks |
//! | `Nccl` | the calls, ordered with torch's operations | streams, lifetimes |

use std::ffi::{CStr, c_char, c_int, c_void};

use cudarc::nccl::result::{self, NcclError, NcclStatus};
use cudarc::nccl::sys;
use tch::{Device, Kind, Tensor};

use crate::Error;
use crate::c10d::Reduction;
use crate::stream::{Event, SideStream};

/// The id with which the ranks of a communicator find each other.
pub type UniqueId = [u8; 128];

/// Makes a new id. One rank calls this and sends the id to the others.
pub fn unique_id() -> Result<UniqueId, Error> {
    let id = result::get_uniqueid().map_err(|error| failed("ncclGetUniqueId", None, &error))?;
    Ok(id.internal.map(|byte| byte as u8))
}

/// Opens a stream of the GPU `device`, which becomes the current device of this thread. Fails if NCCL is
/// missing. NCCL waits forever for a rank that does not join, so a rank opens its stream before it announces
/// itself to the others.
pub fn open_stream(device: usize) -> Result<SideStream, Error> {
    check_library()?;
    SideStream::open(device)
}

/// A process group over NCCL.
#[derive(Debug)]
pub struct Nccl {
    calls: Comm,
    stream: SideStream,
}

impl Nccl {
    /// Joins the group of `id` with `rank_and_size` and the GPU of `stream`, which must be the current
    /// device of this thread. Blocks until all ranks have joined.
    pub fn join(id: &UniqueId, rank_and_size: [usize; 2], stream: SideStream) -> Result<Self, Error> {
        Ok(Self { calls: Comm::join(id, rank_and_size)?, stream })
    }

    /// Replaces every rank's `tensor` by the reduction over all ranks.
    pub fn all_reduce(&self, tensor: &Tensor, reduction: Reduction) -> Result<Work, Error> {
        self.start(&[tensor], |calls, stream| calls.all_reduce(tensor, reduction, stream))
    }

    /// Writes the concatenated inputs of all ranks to `output`.
    pub fn all_gather(&self, output: &Tensor, input: &Tensor) -> Result<Work, Error> {
        self.start(&[output, input], |calls, stream| calls.all_gather(output, input, stream))
    }

    /// Writes this rank's chunk of the sum of all inputs to `output`.
    pub fn reduce_scatter(&self, output: &Tensor, input: &Tensor) -> Result<Work, Error> {
        self.start(&[output, input], |calls, stream| calls.reduce_scatter(output, input, stream))
    }

    /// Sends the `i`-th chunk of every input to rank `i`. `counts` holds the rows received from each rank and
    /// the rows sent to each rank.
    pub fn all_to_all(&self, output: &Tensor, input: &Tensor, counts: [&[i64]; 2]) -> Result<Work, Error> {
        self.start(&[output, input], |calls, stream| calls.all_to_all(output, input, counts, stream))
    }

    /// Copies the `tensor` of rank `root` to every rank, in place.
    pub fn broadcast(&self, tensor: &Tensor, root: usize) -> Result<Work, Error> {
        self.start(&[tensor], |calls, stream| calls.broadcast(tensor, root, stream))
    }

    /// Blocks until every rank has called it.
    pub fn barrier(&self) -> Result<(), Error> {
        let tensor = Tensor::zeros([1], (Kind::Float, Device::Cuda(self.stream.device())));
        self.all_reduce(&tensor, Reduction::Sum)?.wait()?;
        // Reading the value blocks until the collective is done.
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

/// A queued collective.
#[derive(Debug)]
#[must_use = "a collective is done once it was waited for"]
pub struct Work {
    event: Event,
    tensors: Vec<Tensor>,
}

impl Work {
    /// Makes torch operations that are queued from now on wait for the result. The host does not block.
    pub fn wait(mut self) -> Result<(), Error> {
        self.event.block()?;
        self.tensors.clear();
        Ok(())
    }

    /// Whether the GPU has finished the collective.
    pub fn is_done(&self) -> Result<bool, Error> {
        self.event.query()
    }
}

impl Drop for Work {
    fn drop(&mut self) {
        // The memory of tensors in use must not be reused. An error cannot be reported here.
        if !self.tensors.is_empty() {
            let _ = self.event.block();
        }
    }
}

/// NCCL's functions on contiguous tensors whose memory NCCL can access.
#[derive(Debug)]
struct Comm {
    communicator: sys::ncclComm_t,
    size: usize,
}

// SAFETY: NCCL's communicators are not bound to a thread; the caller is responsible for the order of calls.
unsafe impl Send for Comm {}

impl Comm {
    fn join(id: &UniqueId, [rank, size]: [usize; 2]) -> Result<Self, Error> {
        let id = sys::ncclUniqueId { internal: id.map(|byte| byte as c_char) };
        let mut communicator = std::ptr::null_mut();
        // SAFETY: `communicator` receives a communicator that belongs to the caller.
        let joined = unsafe { result::comm_init_rank(&raw mut communicator, narrow(size), id, narrow(rank)) };
        joined.map_err(|error| failed("ncclCommInitRank", None, &error))?;
        Ok(Self { communicator, size })
    }

    /// Returns an error if an earlier collective is known to have failed.
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
        // SAFETY: (here and below) a live communicator, and tensors that are as long as they say; they live
        // until the caller has waited for the work. Input and output may be the same tensor.
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
        // SAFETY: as above, and `input` holds a chunk for every rank.
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
            // SAFETY: as above; `to` and `from` stay inside their tensors, whose lengths are the sums of
            // the counts.
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

        // The group must be ended even if a call in it failed.
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

/// Checks that NCCL can be loaded, because cudarc panics if it cannot.
fn check_library() -> Result<(), Error> {
    // SAFETY: loading NCCL runs its own initializers.
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
            let problem = format!("NCCL has no dtype for {other:?}");
            return Err(Error::Nccl { call: "collective".to_owned(), problem });
        }
    })
}

/// Checks that `full` has `ranks` times as many elements as `shard`, and the same kind.
fn check_sizes(call: &str, full: &Tensor, shard: &Tensor, ranks: usize) -> Result<(), Error> {
    if full.kind() == shard.kind() && full.numel() == shard.numel() * ranks {
        return Ok(());
    }
    let [full, shard] = [full, shard].map(|tensor| format!("{:?} {:?}", tensor.kind(), tensor.size()));
    let problem = format!("{full} is not {ranks} times {shard}");
    Err(Error::Nccl { call: call.to_owned(), problem })
}

fn narrow(number: usize) -> c_int {
    c_int::try_from(number).expect("few ranks")
}

/// Makes an error from NCCL's code and its error text. `calls` provides details if there is a communicator.
fn failed(call: &str, calls: Option<&Comm>, NcclError(code): &NcclError) -> Error {
    let communicator = calls.map_or(std::ptr::null_mut(), |calls| calls.communicator);
    let copy = |text: *const c_char| {
        if text.is_null() {
            return String::new();
        }
        // SAFETY: NCCL's texts end with a NUL and live until the next NCCL call on this thread.
        unsafe { CStr::from_ptr(text) }.to_string_lossy().into_owned()
    };
    // SAFETY: a plain call.
    let reason = copy(unsafe { sys::ncclGetErrorString(*code) });
    // SAFETY: a live communicator or null, which NCCL accepts as well.
    let detail = copy(unsafe { sys::ncclGetLastError(communicator) });
    let problem = [format!("{reason} ({code:?})"), detail].into_iter().filter(|text| !text.is_empty());
    Error::Nccl { call: call.to_owned(), problem: problem.collect::<Vec<_>>().join(": ") }
}

#[cfg(test)]
mod tests;
