//! Copies between an arena of a device and a pinned arena of the host.

use std::ffi::c_void;
use std::ops::Range;
use std::sync::Arc;

use super::{Address, Driver, Event};
use crate::Error;
use crate::arena::Arena;

impl Driver {
    /// Starts to copy `from` of an arena of this device to the start of `to`, which is
    /// [pinned](Arena::pin), after all operations that torch has queued so far.
    pub fn start_copy_to_host(
        self: &Arc<Self>,
        from: (&Arc<Arena>, Range<usize>),
        to: &Arc<Arena>,
    ) -> Result<Event, Error> {
        let computed = self.mark()?;
        let ends = [Arc::clone(from.0), Arc::clone(to)];
        let (device, host, bytes) = endpoints("copy_to_host", from, to)?;
        // SAFETY: both ranges lie in their arenas, which the event keeps.
        unsafe {
            self.check("cuStreamWaitEvent", (self.functions.stream_wait)(self.to_host, computed.raw, 0))?;
            let code = (self.functions.copy_to_host)(host, device, bytes, self.to_host);
            self.check("cuMemcpyDtoHAsync", code)?;
        }
        self.record(self.to_host, Some(Box::new(ends)))
    }

    /// Starts to copy the start of `from`, which is [pinned](Arena::pin), to a range of an arena of this
    /// device that no operation uses. Torch may use it after [`Event::join`].
    pub fn start_copy_to_device(
        self: &Arc<Self>,
        from: &Arc<Arena>,
        to: (&Arc<Arena>, Range<usize>),
    ) -> Result<Event, Error> {
        self.enter()?;
        let ends = [Arc::clone(to.0), Arc::clone(from)];
        let (device, host, bytes) = endpoints("copy_to_device", to, from)?;
        // SAFETY: as above.
        let code = unsafe { (self.functions.copy_to_device)(device, host, bytes, self.to_device) };
        self.check("cuMemcpyHtoDAsync", code)?;
        self.record(self.to_device, Some(Box::new(ends)))
    }
}

/// The addresses of a range on the device and of the start of a pinned arena, and the bytes of the range.
fn endpoints(
    call: &'static str,
    (device, range): (&Arc<Arena>, Range<usize>),
    host: &Arena,
) -> Result<(Address, *mut c_void, usize), Error> {
    let bytes = range.len();
    Ok((device.device_address(call, &range)?, host.host_address(call, 0..bytes)?.cast(), bytes))
}
