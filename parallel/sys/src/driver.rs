//! The memory of a device through its driver: address space, physical memory, copies and events. (CUDA driver
//! API, "Virtual Memory Management" and "Stream Management".)
//!
//! ```text
//!   compute stream     operations of torch: stream 0
//!   one stream each    copies to the device, copies to the host
//! ```
//! The host runs ahead of the device. What was queued is ordered by [`Event`]s: a copy to the host starts
//! after the operations that were queued before it, and an operation uses copied memory only after
//! [`Event::join`]. The host waits only where memory is used for something else.
//!
//! The functions come from `libcuda.so.1` for a GPU of NVIDIA, and otherwise from the process itself: the
//! accelerator of the tests has functions of the same names. (cudarc's driver module would load the whole
//! interface, and from `libcuda` only.)

mod copy;

use std::ffi::{CStr, c_char, c_int, c_uint, c_ulonglong, c_void};
use std::fmt::{self, Debug};
use std::ptr;
use std::sync::Arc;

use tch::Device;

use crate::Error;

/// An address on the device.
type Address = u64;

/// `CUmemAllocationProp`: memory of one device, which no other process opens.
#[repr(C)]
struct AllocationProp {
    /// 1: `CU_MEM_ALLOCATION_TYPE_PINNED`.
    kind: c_int,
    handle_types: c_int,
    location: Location,
    windows: *mut c_void,
    flags: u64,
}

/// `CUmemLocation`.
#[repr(C)]
#[derive(Clone, Copy)]
struct Location {
    /// 1: `CU_MEM_LOCATION_TYPE_DEVICE`.
    kind: c_int,
    id: c_int,
}

/// `CUmemAccessDesc`.
#[repr(C)]
struct AccessDesc {
    location: Location,
    /// 3: `CU_MEM_ACCESS_FLAGS_PROT_READWRITE`.
    flags: c_int,
}

/// Declares the functions of the driver, each with its name in the library.
macro_rules! functions {
    ($($name:ident = $symbol:literal ($($argument:ty),*);)*) => {
        struct Functions {
            $($name: unsafe extern "C" fn($($argument),*) -> c_int,)*
        }

        impl Functions {
            /// Finds all functions in a library, or in what the process has loaded.
            fn find(library: *mut c_void) -> Result<Self, Error> {
                Ok(Self {
                    $(
                        // SAFETY: the signatures are those of `cuda.h`.
                        $name: unsafe {
                            std::mem::transmute::<*mut c_void, unsafe extern "C" fn($($argument),*) -> c_int>(
                                find(library, $symbol)?,
                            )
                        },
                    )*
                })
            }
        }
    };
}

functions! {
    init = c"cuInit" (c_uint);
    device_get = c"cuDeviceGet" (*mut c_int, c_int);
    retain_context = c"cuDevicePrimaryCtxRetain" (*mut *mut c_void, c_int);
    set_context = c"cuCtxSetCurrent" (*mut c_void);
    error_string = c"cuGetErrorString" (c_int, *mut *const c_char);
    memory_info = c"cuMemGetInfo_v2" (*mut usize, *mut usize);
    granularity = c"cuMemGetAllocationGranularity" (*mut usize, *const AllocationProp, c_int);
    reserve = c"cuMemAddressReserve" (*mut Address, usize, usize, Address, c_ulonglong);
    free_addresses = c"cuMemAddressFree" (Address, usize);
    create = c"cuMemCreate" (*mut c_ulonglong, usize, *const AllocationProp, c_ulonglong);
    release = c"cuMemRelease" (c_ulonglong);
    map = c"cuMemMap" (Address, usize, usize, c_ulonglong, c_ulonglong);
    set_access = c"cuMemSetAccess" (Address, usize, *const AccessDesc, usize);
    unmap = c"cuMemUnmap" (Address, usize);
    pin = c"cuMemHostRegister_v2" (*mut c_void, usize, c_uint);
    unpin = c"cuMemHostUnregister" (*mut c_void);
    create_stream = c"cuStreamCreate" (*mut *mut c_void, c_uint);
    stream_wait = c"cuStreamWaitEvent" (*mut c_void, *mut c_void, c_uint);
    create_event = c"cuEventCreate" (*mut *mut c_void, c_uint);
    record_event = c"cuEventRecord" (*mut c_void, *mut c_void);
    query_event = c"cuEventQuery" (*mut c_void);
    wait_for_event = c"cuEventSynchronize" (*mut c_void);
    destroy_event = c"cuEventDestroy_v2" (*mut c_void);
    copy_to_device = c"cuMemcpyHtoDAsync_v2" (Address, *const c_void, usize, *mut c_void);
    copy_to_host = c"cuMemcpyDtoHAsync_v2" (*mut c_void, Address, usize, *mut c_void);
    set_bytes = c"cuMemsetD8Async" (Address, u8, usize, *mut c_void);
}

/// `CUDA_ERROR_OUT_OF_MEMORY`.
const OUT_OF_MEMORY: c_int = 2;
/// `CUDA_ERROR_NOT_READY`.
const NOT_READY: c_int = 600;
/// `CU_STREAM_NON_BLOCKING`: the stream does not wait for stream 0 by itself.
const NON_BLOCKING: c_uint = 1;
/// `CU_EVENT_DISABLE_TIMING`.
const WITHOUT_TIME: c_uint = 2;
/// The stream on which torch computes.
const COMPUTE: *mut c_void = ptr::null_mut();

fn find(library: *mut c_void, name: &CStr) -> Result<*mut c_void, Error> {
    // SAFETY: a library that is never closed, or `RTLD_DEFAULT`.
    let symbol = unsafe { libc::dlsym(library, name.as_ptr()) };
    if symbol.is_null() {
        let problem = "the driver of this device does not have this function".to_owned();
        return Err(Error::Driver { call: name.to_string_lossy().into_owned(), problem });
    }
    Ok(symbol)
}

/// The driver of one device. It stays loaded until the process ends.
pub struct Driver {
    functions: Functions,
    device: Device,
    /// The number of the device.
    ordinal: c_int,
    context: *mut c_void,
    granularity: usize,
    to_device: *mut c_void,
    to_host: *mut c_void,
}

// SAFETY: the functions of the driver may be called on any thread; each call sets the context of its thread.
unsafe impl Send for Driver {}
// SAFETY: as above; the fields never change.
unsafe impl Sync for Driver {}

impl Debug for Driver {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Driver").field("device", &self.device).finish_non_exhaustive()
    }
}

impl Driver {
    /// Opens the driver of `device`, which is not the CPU.
    pub fn open(device: Device) -> Result<Arc<Self>, Error> {
        let (library, number) = match device {
            Device::Cuda(index) => {
                // SAFETY: a literal name; the driver's library has no requirements on its caller.
                let library = unsafe { libc::dlopen(c"libcuda.so.1".as_ptr(), libc::RTLD_NOW) };
                if library.is_null() {
                    let problem = "there is no driver of NVIDIA on this machine (libcuda.so.1)".to_owned();
                    return Err(Error::Driver { call: "dlopen".to_owned(), problem });
                }
                (library, index)
            }
            _ => (libc::RTLD_DEFAULT, 0),
        };
        let mut driver = Self {
            functions: Functions::find(library)?,
            device,
            ordinal: 0,
            context: ptr::null_mut(),
            granularity: 0,
            to_device: ptr::null_mut(),
            to_host: ptr::null_mut(),
        };
        let number = c_int::try_from(number).expect("few devices");
        let Functions { init, device_get, retain_context, create_stream, granularity, .. } = driver.functions;
        // SAFETY: each call receives a place for its answer; the context is kept until the process ends.
        unsafe {
            driver.check("cuInit", init(0))?;
            let code = device_get(&raw mut driver.ordinal, number);
            driver.check("cuDeviceGet", code)?;
            let code = retain_context(&raw mut driver.context, driver.ordinal);
            driver.check("cuDevicePrimaryCtxRetain", code)?;
            driver.enter()?;
            let prop = driver.allocation_prop();
            // 0: the least granularity.
            let code = granularity(&raw mut driver.granularity, &raw const prop, 0);
            driver.check("cuMemGetAllocationGranularity", code)?;
            for is_to_device in [true, false] {
                let stream = if is_to_device { &raw mut driver.to_device } else { &raw mut driver.to_host };
                let code = create_stream(stream, NON_BLOCKING);
                driver.check("cuStreamCreate", code)?;
            }
        }
        Ok(Arc::new(driver))
    }

    /// The device.
    pub fn device(&self) -> Device {
        self.device
    }

    /// Physical memory comes in multiples of this many bytes.
    pub fn granularity(&self) -> usize {
        self.granularity
    }

    /// The bytes of the device that nobody takes, and all of its bytes.
    pub fn memory_info(&self) -> Result<(usize, usize), Error> {
        self.enter()?;
        let (mut free, mut total) = (0, 0);
        // SAFETY: places for two numbers.
        self.check("cuMemGetInfo", unsafe { (self.functions.memory_info)(&raw mut free, &raw mut total) })?;
        Ok((free, total))
    }

    /// An event after all operations that torch has queued so far.
    pub fn mark(self: &Arc<Self>) -> Result<Event, Error> {
        self.enter()?;
        self.record(COMPUTE, None)
    }

    /// Reserves address space.
    pub(crate) fn reserve(&self, bytes: usize) -> Result<Address, Error> {
        self.enter()?;
        let mut start = 0;
        // SAFETY: a place for the address.
        let code = unsafe { (self.functions.reserve)(&raw mut start, bytes, 0, 0, 0) };
        self.check("cuMemAddressReserve", code)?;
        Ok(start)
    }

    /// Gives reserved address space back, in which nothing is mapped.
    pub(crate) fn free_addresses(&self, start: Address, bytes: usize) -> Result<(), Error> {
        self.enter()?;
        // SAFETY: the range came from `reserve`.
        self.check("cuMemAddressFree", unsafe { (self.functions.free_addresses)(start, bytes) })
    }

    /// Takes physical memory of the device.
    pub(crate) fn create(&self, bytes: usize) -> Result<Physical, Error> {
        self.enter()?;
        let prop = self.allocation_prop();
        let mut handle = 0;
        // SAFETY: a place for the handle, and a description of the memory.
        let code = unsafe { (self.functions.create)(&raw mut handle, bytes, &raw const prop, 0) };
        if code == OUT_OF_MEMORY {
            return Err(Error::DeviceMemory { device: self.device, wanted: bytes });
        }
        self.check("cuMemCreate", code)?;
        Ok(Physical { handle, bytes })
    }

    /// Gives physical memory back that is mapped nowhere.
    pub(crate) fn release(&self, physical: &Physical) -> Result<(), Error> {
        self.enter()?;
        // SAFETY: the handle came from `create`.
        self.check("cuMemRelease", unsafe { (self.functions.release)(physical.handle) })
    }

    /// Maps physical memory to reserved addresses.
    pub(crate) fn map(&self, start: Address, physical: &Physical) -> Result<(), Error> {
        self.enter()?;
        let desc = AccessDesc { location: self.location(), flags: 3 };
        // SAFETY: the addresses are reserved and unmapped, by the callers in `arena`.
        unsafe {
            let code = (self.functions.map)(start, physical.bytes, 0, physical.handle, 0);
            self.check("cuMemMap", code)?;
            let code = (self.functions.set_access)(start, physical.bytes, &raw const desc, 1);
            self.check("cuMemSetAccess", code).or_else(|error| {
                self.unmap(start, physical.bytes)?;
                Err(error)
            })
        }
    }

    /// Unmaps memory that no operation and no copy uses any more.
    pub(crate) fn unmap(&self, start: Address, bytes: usize) -> Result<(), Error> {
        self.enter()?;
        // SAFETY: the range was mapped as a whole, by the callers in `arena`.
        self.check("cuMemUnmap", unsafe { (self.functions.unmap)(start, bytes) })
    }

    /// Sets memory to zeros, after the operations that torch has queued so far.
    pub(crate) fn clear(&self, start: Address, bytes: usize) -> Result<(), Error> {
        self.enter()?;
        // SAFETY: the range is mapped, by the callers in `arena`.
        self.check("cuMemsetD8Async", unsafe { (self.functions.set_bytes)(start, 0, bytes, COMPUTE) })
    }

    /// Pins memory of the host, so that it is copied while the host goes on.
    pub(crate) fn pin(&self, start: *mut u8, bytes: usize) -> Result<(), Error> {
        self.enter()?;
        // SAFETY: the caller keeps the memory until `unpin`.
        self.check("cuMemHostRegister", unsafe { (self.functions.pin)(start.cast(), bytes, 0) })
    }

    /// Ends [`pin`](Self::pin).
    pub(crate) fn unpin(&self, start: *mut u8) -> Result<(), Error> {
        self.enter()?;
        // SAFETY: the range was pinned.
        self.check("cuMemHostUnregister", unsafe { (self.functions.unpin)(start.cast()) })
    }

    /// Makes the device current on this thread.
    fn enter(&self) -> Result<(), Error> {
        // SAFETY: the context is kept until the process ends.
        self.check("cuCtxSetCurrent", unsafe { (self.functions.set_context)(self.context) })
    }

    fn record(self: &Arc<Self>, stream: *mut c_void, copied: Option<Copied>) -> Result<Event, Error> {
        let mut raw = ptr::null_mut();
        // SAFETY: a place for the event, which the value owns from here on, and a live stream.
        unsafe {
            let code = (self.functions.create_event)(&raw mut raw, WITHOUT_TIME);
            self.check("cuEventCreate", code)?;
            let event = Event { driver: Arc::clone(self), raw, copied };
            self.check("cuEventRecord", (self.functions.record_event)(event.raw, stream))?;
            Ok(event)
        }
    }

    fn location(&self) -> Location {
        Location { kind: 1, id: self.ordinal }
    }

    fn allocation_prop(&self) -> AllocationProp {
        let location = self.location();
        AllocationProp { kind: 1, handle_types: 0, location, windows: ptr::null_mut(), flags: 0 }
    }

    /// Turns the code of a call into a `Result` that names the call.
    fn check(&self, call: &str, code: c_int) -> Result<(), Error> {
        if code == 0 {
            return Ok(());
        }
        let mut text = ptr::null();
        // SAFETY: a place for a text that the driver keeps.
        let known = unsafe { (self.functions.error_string)(code, &raw mut text) } == 0 && !text.is_null();
        let problem = if known {
            // SAFETY: the driver's text ends with a zero.
            unsafe { CStr::from_ptr(text) }.to_string_lossy().into_owned()
        } else {
            format!("error {code}")
        };
        Err(Error::Driver { call: call.to_owned(), problem })
    }
}

/// The number of a device in tch, which keeps it to itself.
pub(crate) fn device_number(device: Device) -> i32 {
    match device {
        Device::Cpu => -1,
        Device::Mps => -2,
        Device::Vulkan => -3,
        Device::Cuda(index) => i32::try_from(index).expect("few devices"),
    }
}

/// Physical memory of the device.
#[derive(Debug)]
pub(crate) struct Physical {
    handle: c_ulonglong,
    pub(crate) bytes: usize,
}

/// The owners of the memory at both ends of a copy.
type Copied = Box<dyn Debug + Send + Sync>;

/// A point in the work of the device. The event of a copy keeps the memory at both ends, and waits for
/// the copy when it is dropped.
#[derive(Debug)]
pub struct Event {
    driver: Arc<Driver>,
    raw: *mut c_void,
    copied: Option<Copied>,
}

// SAFETY: an event may be used on any thread.
unsafe impl Send for Event {}
// SAFETY: as above; the driver locks an event itself.
unsafe impl Sync for Event {}

impl Event {
    /// Waits until the device has reached the event.
    pub fn wait(&self) -> Result<(), Error> {
        self.driver.enter()?;
        // SAFETY: a live event.
        let code = unsafe { (self.driver.functions.wait_for_event)(self.raw) };
        self.driver.check("cuEventSynchronize", code)
    }

    /// Whether the device has reached the event.
    pub fn is_done(&self) -> Result<bool, Error> {
        self.driver.enter()?;
        // SAFETY: a live event.
        match unsafe { (self.driver.functions.query_event)(self.raw) } {
            NOT_READY => Ok(false),
            code => self.driver.check("cuEventQuery", code).map(|()| true),
        }
    }

    /// Makes the operations that torch queues from now on wait for the event. The host does not wait.
    pub fn join(&self) -> Result<(), Error> {
        self.driver.enter()?;
        // SAFETY: a live event and the stream of torch.
        let code = unsafe { (self.driver.functions.stream_wait)(COMPUTE, self.raw, 0) };
        self.driver.check("cuStreamWaitEvent", code)
    }
}

impl Drop for Event {
    fn drop(&mut self) {
        if self.copied.is_some() {
            // A driver that refuses this call has lost the device, and copies nothing any more.
            let _ = self.wait();
        }
        // SAFETY: owned by this value, and destroyed once.
        unsafe { (self.driver.functions.destroy_event)(self.raw) };
    }
}
