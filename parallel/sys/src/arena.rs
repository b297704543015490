//! A range of address space whose memory can be given back to the system and used again, while the tensors
//! over it keep their addresses.
//!
//! ```text
//!   reserve   address space only
//!   use       the system adds zeroed pages as they are touched, or ahead of that by `commit`
//!   release   the pages go back to the system; the next use finds zeros at the same addresses
//!   move      the pages appear at other addresses, without being cleared and made present again
//! ```
//! On a device ([`Arena::reserve_on`]) it is the same with the physical memory of the device, which has to be
//! there before the use: after `commit`, what it holds is undefined.
//!
//! Each tensor over an arena has a storage of its own, so tensors beside each other do not share the version
//! counter of autograd, and each keeps the whole mapping alive.
//!
//! Like the tensors of tch, an arena does not order accesses: who releases, writes or transfers a range must
//! know that no other thread uses it meanwhile. The arena does not know what its ranges mean.

mod device;

use std::ffi::c_void;
use std::io;
use std::ops::Range;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};

use tch::{Device, Kind, Tensor};

use self::device::Mapped;
use crate::driver::{Driver, device_number};
use crate::{Error, check, raw};

/// The size of a huge page on x86-64.
pub const HUGE_PAGE_BYTES: usize = 2 << 20;

/// The size of a page of memory in bytes.
pub fn page_bytes() -> usize {
    // SAFETY: a plain call.
    let bytes = unsafe { libc::sysconf(libc::_SC_PAGESIZE) };
    usize::try_from(bytes).expect("the system has pages")
}

/// A range of address space. See the module's description.
#[derive(Debug)]
pub struct Arena {
    start: NonNull<u8>,
    len: usize,
    /// The memory of a device; `None` on the host.
    mapped: Option<Mapped>,
    /// The driver that has pinned the memory.
    pinned_by: OnceLock<Arc<Driver>>,
    /// Whether some of the addresses may belong to somebody else.
    is_lost: AtomicBool,
}

// SAFETY: the mapping belongs to the process, not to a thread, and is unmapped with the last owner. The
// order of accesses to its contents is the callers', as for the tensors of tch.
unsafe impl Send for Arena {}
// SAFETY: as above; the fields never change, but for atomic ones.
unsafe impl Sync for Arena {}

impl Arena {
    /// Reserves address space for `bytes` bytes, rounded up to whole pages. It starts where a huge page can
    /// start, and takes no memory until it is used. Fails if the system has no such range.
    pub fn reserve(bytes: usize) -> Result<Arc<Self>, Error> {
        let refused = |problem: String| Error::Arena { call: "reserve", arena: bytes, problem };
        let len = bytes
            .checked_next_multiple_of(page_bytes())
            .ok_or_else(|| refused("no address space is that large".to_owned()))?;
        let protection = libc::PROT_READ | libc::PROT_WRITE;
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
        let reserved = mapped_bytes(len).checked_add(HUGE_PAGE_BYTES);
        let reserved = reserved.ok_or_else(|| refused("no address space is that large".to_owned()))?;
        // SAFETY: a new mapping at an address that the system chooses.
        let mapping = unsafe { libc::mmap(std::ptr::null_mut(), reserved, protection, flags, -1, 0) };
        if mapping == libc::MAP_FAILED {
            return Err(refused(io::Error::last_os_error().to_string()));
        }

        // What lies before the first huge page and behind the arena is not needed.
        let mapping: *mut u8 = mapping.cast();
        let before = mapping.align_offset(HUGE_PAGE_BYTES);
        let end = before + mapped_bytes(len);
        for unused in [0..before, end..reserved] {
            if !unused.is_empty() {
                // SAFETY: whole pages of the new mapping, which nobody uses.
                unsafe { libc::munmap(mapping.wrapping_add(unused.start).cast(), unused.len()) };
            }
        }
        let start = NonNull::new(mapping.wrapping_add(before)).expect("a mapping does not begin at null");
        Ok(Arc::new(Self::at(start, len, None)))
    }

    /// Reserves address space on a device, rounded up to its [granularity](Driver::granularity).
    pub fn reserve_on(driver: &Arc<Driver>, bytes: usize) -> Result<Arc<Self>, Error> {
        let len = bytes.max(1).next_multiple_of(driver.granularity());
        let address = driver.reserve(len)?;
        let start = NonNull::new(address as *mut u8).expect("reserved addresses do not begin at null");
        Ok(Arc::new(Self::at(start, len, Some(Mapped::new(driver, address, len)))))
    }

    fn at(start: NonNull<u8>, len: usize, mapped: Option<Mapped>) -> Self {
        Self { start, len, mapped, pinned_by: OnceLock::new(), is_lost: AtomicBool::new(false) }
    }

    /// The device whose memory this is.
    pub fn device(&self) -> Device {
        self.driver().map_or(Device::Cpu, |driver| driver.device())
    }

    /// The driver of the device; `None` on the host.
    pub fn driver(&self) -> Option<&Arc<Driver>> {
        self.mapped.as_ref().map(|mapped| &mapped.driver)
    }

    /// Makes all of the memory present and keeps it where it is, so that `driver` copies it while the host
    /// goes on. It stays so until the arena is dropped.
    pub fn pin(&self, driver: &Arc<Driver>) -> Result<(), Error> {
        self.commit(0..self.len)?;
        driver.pin(self.host_address("pin", 0..self.len)?, self.len)?;
        self.pinned_by.set(Arc::clone(driver)).expect("an arena is pinned once");
        Ok(())
    }

    /// The length in bytes, a multiple of the page size.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether the length is zero.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Makes a tensor over the memory from `offset` bytes on. `strides` count elements, one per
    /// dimension of `shape`; a matrix `[out, in]` that lies column by column has the strides `[1, out]`.
    ///
    /// Tensors may overlap. Each keeps the mapping alive, also without the arena. Fails if an element would
    /// lie outside the arena or not at a multiple of its size.
    pub fn tensor(
        self: &Arc<Self>,
        offset: usize,
        shape: &[i64],
        strides: &[i64],
        kind: Kind,
    ) -> Result<Tensor, Error> {
        let (arena, element) = (self.len, kind.elt_size_in_bytes());
        let refused = |why: &str| {
            let problem = format!("{kind:?} {shape:?} with the strides {strides:?} at {offset} bytes {why}");
            Error::Arena { call: "tensor", arena, problem }
        };
        if !offset.is_multiple_of(element) {
            return Err(refused(&format!(
                "does not begin at a multiple of the {element} bytes of an element"
            )));
        }
        let bytes = span(shape, strides)
            .ok_or_else(|| refused("is not one stride per dimension, none below zero, in 64 bits"))?
            .checked_mul(element);
        let end = bytes.and_then(|bytes| offset.checked_add(bytes));
        if end.is_none_or(|end| end > self.len) {
            return Err(refused("ends behind the arena"));
        }

        let state = Box::into_raw(Box::new(Arc::clone(self)));
        let mut result = std::ptr::null_mut();
        // SAFETY: the tensor owns `state` and passes it to `free` exactly once, also on failure; the mapping
        // lives until then and contains every element; the lists have one entry per dimension.
        let code = unsafe {
            raw::shim_from_blob(
                self.address(offset).cast(),
                shape.as_ptr(),
                strides.as_ptr(),
                shape.len(),
                scalar_type(kind),
                device_number(self.device()),
                state.cast(),
                free,
                &raw mut result,
            )
        };
        check("from_blob", code)?;
        // SAFETY: the call succeeded, so this is a tensor that now belongs to the caller.
        Ok(unsafe { Tensor::from_ptr(result) })
    }

    /// Gives the memory of the whole pages inside `range` (bytes) back to the system; afterwards they read as
    /// zeros. Pages that lie only partly inside stay as they are. On a device, the range was committed or
    /// moved as a whole, and no operation of the device uses it any more.
    pub fn release(&self, range: Range<usize>) -> Result<(), Error> {
        self.check_range("release", &range)?;
        if let Some(mapped) = &self.mapped {
            return mapped.release(range);
        }
        let page = page_bytes();
        let inside = range.start.next_multiple_of(page)..range.end / page * page;
        if inside.is_empty() {
            return Ok(());
        }
        // SAFETY: whole pages of the mapping. What lies there becomes zeros, which is valid for every tensor.
        let code =
            unsafe { libc::madvise(self.address(inside.start).cast(), inside.len(), libc::MADV_DONTNEED) };
        if code == 0 { Ok(()) } else { Err(self.system_error("release", &range)) }
    }

    /// Moves the memory of the whole pages `from` of `other` to `range`, which has the same length in bytes.
    /// Afterwards `from` has no memory and reads as zeros, and `range` has what was in `from`, or zeros if
    /// the system cannot move memory (Linux before 5.7).
    ///
    /// Both begin at a [huge page](HUGE_PAGE_BYTES), or are smaller than one: the system refuses a range for
    /// a part of which [huge pages](Self::prefer_huge_pages) were asked, and memory is then not moved either.
    pub fn move_memory(&self, range: Range<usize>, other: &Self, from: Range<usize>) -> Result<(), Error> {
        self.check_range("move_memory", &range)?;
        other.check_range("move_memory", &from)?;
        let page = page_bytes();
        let is_whole = [range.start, range.end, from.start].iter().all(|byte| byte.is_multiple_of(page));
        if !is_whole || range.len() != from.len() {
            let problem = format!("{from:?} and {range:?} are not the same number of whole pages");
            return Err(Error::Arena { call: "move_memory", arena: self.len, problem });
        }
        if range.is_empty() || self.address(range.start) == other.address(from.start) {
            return Ok(());
        }
        if let (Some(mapped), Some(others)) = (&self.mapped, &other.mapped) {
            return mapped.move_memory(range, others, from);
        }

        let (source, target) = (other.address(from.start), self.address(range.start).cast::<c_void>());
        let flags = libc::MREMAP_MAYMOVE | libc::MREMAP_FIXED | libc::MREMAP_DONTUNMAP;
        // SAFETY: whole pages of two mappings, which stay mapped. What lies there stays valid for tensors.
        let moved = unsafe { libc::mremap(source.cast(), from.len(), range.len(), flags, target) };
        if moved != libc::MAP_FAILED {
            return Ok(());
        }
        let refusal = io::Error::last_os_error();
        // A system that does not know the request has changed nothing.
        if refusal.raw_os_error() == Some(libc::EINVAL) {
            self.release(range)?;
            return other.release(from);
        }
        self.map_again(&range, &refusal)?;
        self.prefer_huge_pages(range)?;
        other.release(from)
    }

    /// Maps the whole pages of `range` again, which a move that failed with `refusal` has unmapped.
    ///
    /// Another thread may have got these addresses meanwhile, for a stack or from malloc. What lies there is
    /// not touched then, and the arena is neither used nor unmapped any more.
    fn map_again(&self, range: &Range<usize>, refusal: &io::Error) -> Result<(), Error> {
        let target = self.address(range.start).cast::<c_void>();
        let protection = libc::PROT_READ | libc::PROT_WRITE;
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE | libc::MAP_FIXED_NOREPLACE;
        // SAFETY: a new mapping, which replaces none.
        let mapping = unsafe { libc::mmap(target, range.len(), protection, flags, -1, 0) };
        if mapping == target {
            return Ok(());
        }
        if mapping != libc::MAP_FAILED {
            // Linux before 4.17 takes the address for a wish.
            // SAFETY: the new mapping, which nobody uses.
            unsafe { libc::munmap(mapping, range.len()) };
        }
        self.is_lost.store(true, Ordering::SeqCst);
        let problem = format!(
            "the system moves no memory to the bytes {} to {} ({refusal}), and may have given their addresses away",
            range.start, range.end
        );
        Err(Error::Arena { call: "move_memory", arena: self.len, problem })
    }

    /// Asks for huge pages inside `range` (bytes), which are made present and given back much faster than
    /// small ones. They lie completely inside, so the range takes no more memory than its bytes. (A huge page
    /// would reach beyond the end only if huge pages were asked for what follows, too. Therefore ask for them
    /// from the start of a huge page on.) A system without huge pages does nothing.
    pub fn prefer_huge_pages(&self, range: Range<usize>) -> Result<(), Error> {
        self.check_range("prefer_huge_pages", &range)?;
        if self.mapped.is_some() {
            return Ok(());
        }
        let first = range.start.next_multiple_of(HUGE_PAGE_BYTES);
        let end = range.end / page_bytes() * page_bytes();
        if first + HUGE_PAGE_BYTES <= end {
            // SAFETY: pages of the mapping, whose contents the call keeps. A refusal costs only speed.
            unsafe { libc::madvise(self.address(first).cast(), end - first, libc::MADV_HUGEPAGE) };
        }
        Ok(())
    }

    /// Makes memory present for every page of `range` (bytes), so that the first use need not wait for it.
    /// Contents stay. Does nothing on a system without `MADV_POPULATE_WRITE` (Linux before 5.14).
    pub fn commit(&self, range: Range<usize>) -> Result<(), Error> {
        self.check_range("commit", &range)?;
        if let Some(mapped) = &self.mapped {
            return mapped.commit(range);
        }
        let pages = outer_pages(&range);
        if pages.is_empty() {
            return Ok(());
        }
        // SAFETY: whole pages of the mapping, whose contents the call keeps.
        let code = unsafe {
            libc::madvise(self.address(pages.start).cast(), pages.len(), libc::MADV_POPULATE_WRITE)
        };
        if code == 0 || io::Error::last_os_error().raw_os_error() == Some(libc::EINVAL) {
            return Ok(());
        }
        Err(self.system_error("commit", &range))
    }

    /// Sets `range` (bytes) to zeros. No thread and no transfer may use it meanwhile.
    pub fn clear(&self, range: Range<usize>) -> Result<(), Error> {
        self.check_range("clear", &range)?;
        if let Some(mapped) = &self.mapped {
            return mapped.driver.clear(self.address(range.start).addr() as u64, range.len());
        }
        // SAFETY: inside the mapping by the check, and nobody else uses it, by this function's contract.
        unsafe { std::ptr::write_bytes(self.address(range.start), 0, range.len()) };
        Ok(())
    }

    /// The bytes of those pages of `range` that are in memory, a multiple of the page size.
    pub fn resident_bytes(&self, range: Range<usize>) -> Result<usize, Error> {
        // One byte of answer per page, so a range is asked about in windows.
        const WINDOW_PAGES: usize = 1 << 16;
        self.check_range("resident_bytes", &range)?;
        if let Some(mapped) = &self.mapped {
            return Ok(mapped.mapped_bytes(range));
        }
        let (page, pages) = (page_bytes(), outer_pages(&range));
        let mut answer = vec![0u8; WINDOW_PAGES.min(pages.len() / page)];
        let mut resident = 0;
        for start in pages.clone().step_by(WINDOW_PAGES * page) {
            let length = (pages.end - start).min(WINDOW_PAGES * page);
            // SAFETY: whole pages of the mapping, and one byte of `answer` for each.
            let code = unsafe { libc::mincore(self.address(start).cast(), length, answer.as_mut_ptr()) };
            if code != 0 {
                return Err(self.system_error("resident_bytes", &range));
            }
            resident += answer[..length / page].iter().filter(|&&state| state & 1 == 1).count() * page;
        }
        Ok(resident)
    }

    /// Copies the bytes from `offset` on into `target`. No thread and no transfer may write them meanwhile.
    pub fn read_bytes(&self, offset: usize, target: &mut [u8]) -> Result<(), Error> {
        let source = self.host_address("read_bytes", offset..offset.saturating_add(target.len()))?;
        // SAFETY: inside the mapping by the check, and nobody else writes there, by this function's contract.
        // A slice of the caller's is not memory of an arena, which only tensors and this file reach.
        unsafe { std::ptr::copy_nonoverlapping(source, target.as_mut_ptr(), target.len()) };
        Ok(())
    }

    /// Copies `source` to the bytes from `offset` on. No thread and no transfer may use them meanwhile.
    pub fn write_bytes(&self, offset: usize, source: &[u8]) -> Result<(), Error> {
        let target = self.host_address("write_bytes", offset..offset.saturating_add(source.len()))?;
        // SAFETY: as in `read_bytes`, with nobody else reading there either.
        unsafe { std::ptr::copy_nonoverlapping(source.as_ptr(), target, source.len()) };
        Ok(())
    }

    /// The address of a range that lies inside, on the host.
    pub(crate) fn host_address(&self, call: &'static str, range: Range<usize>) -> Result<*mut u8, Error> {
        self.check_range(call, &range)?;
        if self.mapped.is_some() {
            let problem = format!("the memory is that of {:?}, which the host cannot use", self.device());
            return Err(Error::Arena { call, arena: self.len, problem });
        }
        Ok(self.address(range.start))
    }

    /// The address of a range that lies inside, on a device.
    pub(crate) fn device_address(&self, call: &'static str, range: &Range<usize>) -> Result<u64, Error> {
        self.check_range(call, range)?;
        if self.mapped.is_none() {
            let problem = "the memory is that of the host".to_owned();
            return Err(Error::Arena { call, arena: self.len, problem });
        }
        Ok(self.address(range.start).addr() as u64)
    }

    /// The address of the byte at `offset`, which is at most the length.
    fn address(&self, offset: usize) -> *mut u8 {
        self.start.as_ptr().wrapping_add(offset)
    }

    /// Checks that a range of bytes lies inside, and belongs to the arena.
    pub(crate) fn check_range(&self, call: &'static str, range: &Range<usize>) -> Result<(), Error> {
        if self.is_lost.load(Ordering::SeqCst) {
            let problem = "an earlier move of memory has failed".to_owned();
            return Err(Error::Arena { call, arena: self.len, problem });
        }
        if range.start <= range.end && range.end <= self.len {
            return Ok(());
        }
        let problem = format!("the bytes {} to {} are not inside", range.start, range.end);
        Err(Error::Arena { call, arena: self.len, problem })
    }

    /// The error of the system call that just failed.
    fn system_error(&self, call: &'static str, range: &Range<usize>) -> Error {
        let problem = format!("the bytes {} to {}: {}", range.start, range.end, io::Error::last_os_error());
        Error::Arena { call, arena: self.len, problem }
    }
}

impl Drop for Arena {
    fn drop(&mut self) {
        // What the driver refuses now goes when the process ends.
        if let Some(mapped) = &self.mapped {
            let _ = mapped.free();
            return;
        }
        if self.is_lost.load(Ordering::SeqCst) {
            return;
        }
        if let Some(driver) = self.pinned_by.get() {
            let _ = driver.unpin(self.start.as_ptr());
        }
        // SAFETY: the mapping made by `reserve`, unmapped once; every tensor over it has owned a reference.
        unsafe { libc::munmap(self.start.as_ptr().cast(), mapped_bytes(self.len)) };
    }
}

/// The length of the mapping of an arena: an empty mapping is impossible, so an empty arena has one page.
fn mapped_bytes(len: usize) -> usize {
    len.max(page_bytes())
}

/// The range of the pages that a range of bytes touches.
fn outer_pages(range: &Range<usize>) -> Range<usize> {
    let page = page_bytes();
    if range.is_empty() { 0..0 } else { range.start / page * page..range.end.next_multiple_of(page) }
}

/// The number of elements from the first to the furthest, both included. `None` if a size or a stride is
/// negative or missing, or if a number does not fit.
fn span(shape: &[i64], strides: &[i64]) -> Option<usize> {
    if shape.len() != strides.len() {
        return None;
    }
    let (mut furthest, mut elements) = (0usize, 1i64);
    for (&size, &stride) in shape.iter().zip(strides) {
        let (size, stride) = (usize::try_from(size).ok()?, usize::try_from(stride).ok()?);
        furthest = furthest.checked_add(size.saturating_sub(1).checked_mul(stride)?)?;
        elements = elements.checked_mul(i64::try_from(size).ok()?)?;
    }
    if elements == 0 { Some(0) } else { furthest.checked_add(1) }
}

/// The number of a kind in `c10/core/ScalarType.h`, which tch keeps to itself.
fn scalar_type(kind: Kind) -> i32 {
    match kind {
        Kind::Uint8 => 0,
        Kind::Int8 => 1,
        Kind::Int16 => 2,
        Kind::Int => 3,
        Kind::Int64 => 4,
        Kind::Half => 5,
        Kind::Float => 6,
        Kind::Double => 7,
        Kind::ComplexHalf => 8,
        Kind::ComplexFloat => 9,
        Kind::ComplexDouble => 10,
        Kind::Bool => 11,
        Kind::QInt8 => 12,
        Kind::QUInt8 => 13,
        Kind::QInt32 => 14,
        Kind::BFloat16 => 15,
        Kind::Float8e5m2 => 23,
        Kind::Float8e4m3fn => 24,
        Kind::Float8e5m2fnuz => 25,
        Kind::Float8e4m3fnuz => 26,
    }
}

/// Drops the reference that a tensor owns.
extern "C" fn free(state: *mut c_void) {
    // SAFETY: the box that `Arena::tensor` handed over, freed exactly once.
    drop(unsafe { Box::from_raw(state.cast::<Arc<Arena>>()) });
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: usize = 1 << 20;

    #[test]
    fn released_memory_is_given_back_and_used_again() {
        let (arena, page) = (Arena::reserve(16 * MIB - 5).unwrap(), page_bytes());
        assert_eq!(arena.len(), 16 * MIB);
        assert_eq!(arena.resident_bytes(0..16 * MIB).unwrap(), 0);
        let mut values = arena.tensor(0, &[4 * MIB as i64], &[1], Kind::Float).unwrap();
        let address = values.data_ptr();
        let _ = values.fill_(3.0);
        assert_eq!(arena.resident_bytes(0..16 * MIB).unwrap(), 16 * MIB);

        // Of 1 MiB + 100 to 5 MiB + 100, the first page is only partly inside and stays, as does the last.
        arena.release(MIB + 100..5 * MIB + 100).unwrap();
        assert_eq!(arena.resident_bytes(0..16 * MIB).unwrap(), 12 * MIB + page);
        assert_eq!(arena.resident_bytes(2 * MIB + 7..3 * MIB).unwrap(), 0);
        assert_eq!(values.data_ptr(), address);
        let zeros = (4 * MIB - page) / 4;
        let sum = values.sum(Kind::Double).double_value(&[]);
        assert_eq!(sum, 3.0 * (4 * MIB - zeros) as f64);
        assert_eq!(values.double_value(&[2 * MIB as i64 / 4]), 0.0);

        let _ = values.fill_(5.0);
        assert_eq!(values.sum(Kind::Double).double_value(&[]), 5.0 * (4 * MIB) as f64);
        // No whole page inside: nothing changes.
        arena.release(1..page).unwrap();
        arena.release(page..page).unwrap();
        assert_eq!(arena.resident_bytes(0..16 * MIB).unwrap(), 16 * MIB);
        arena.release(0..16 * MIB).unwrap();
        assert_eq!(arena.resident_bytes(0..16 * MIB).unwrap(), 0);
    }

    #[test]
    fn memory_moves_between_arenas() {
        // Large ranges with huge pages, and small ones.
        for (bytes, start) in [(3 * MIB, 4 * MIB), (MIB / 2, 3 * MIB)] {
            let (one, two) = (Arena::reserve(8 * MIB).unwrap(), Arena::reserve(8 * MIB).unwrap());
            let (from, to) = (start..start + bytes, 0..bytes);
            one.prefer_huge_pages(from.clone()).unwrap();
            two.prefer_huge_pages(to.clone()).unwrap();
            let tensor = |arena: &Arc<Arena>, offset: usize| {
                arena.tensor(offset, &[bytes as i64 / 4], &[1], Kind::Float).unwrap()
            };
            let (mut source, mut target) = (tensor(&one, from.start), tensor(&two, 0));
            let beside = one.tensor(from.end, &[1], &[1], Kind::Float).unwrap().fill_(8.0);
            let _ = source.fill_(3.0);
            let _ = target.fill_(4.0);
            two.move_memory(to.clone(), &one, from.clone()).unwrap();

            let taken = [one.resident_bytes(from.clone()).unwrap(), two.resident_bytes(to.clone()).unwrap()];
            if taken == [0, 0] {
                println!("this system cannot move memory");
            } else {
                assert_eq!(taken, [0, bytes]);
                assert_eq!((target.min().double_value(&[]), target.max().double_value(&[])), (3.0, 3.0));
            }
            assert_eq!(source.abs().max().double_value(&[]), 0.0);
            assert_eq!(beside.double_value(&[0]), 8.0);

            // And back: what was read into the source in between is gone.
            let _ = target.fill_(5.0);
            one.move_memory(from.clone(), &two, to.clone()).unwrap();
            let [first, last] = [0, bytes as i64 / 4 - 1].map(|index| source.double_value(&[index]));
            assert_eq!((first, last), if taken == [0, 0] { (0.0, 0.0) } else { (5.0, 5.0) });
            one.move_memory(from.clone(), &one, from.clone()).unwrap();
            assert_eq!(source.double_value(&[0]), first);
        }
        let arena = Arena::reserve(MIB).unwrap();
        let error = |to: Range<usize>, from: Range<usize>| {
            arena.move_memory(to, &arena, from).unwrap_err().to_string()
        };
        assert!(error(0..8192, 8192..12288).contains("are not the same number of whole pages"));
        assert!(error(0..100, 8192..8292).contains("are not the same number of whole pages"));
        assert!(error(0..4096, MIB..MIB + 4096).contains("are not inside"));
    }

    /// A move that the system refuses may leave a hole. It is filled, unless somebody else has mapped memory
    /// there, which keeps its contents, also when the arena is dropped.
    #[test]
    fn addresses_that_a_failed_move_gave_away_are_left_to_their_new_owner() {
        let (arena, page) = (Arena::reserve(MIB).unwrap(), page_bytes());
        let hole = 4 * page..8 * page;
        let start = arena.address(hole.start);
        let refusal = || io::Error::from_raw_os_error(libc::ENOMEM);
        let unmap = |length: usize| {
            // SAFETY: pages of the arena, over which this test makes no tensor.
            assert_eq!(unsafe { libc::munmap(start.cast(), length) }, 0);
        };
        arena.write_bytes(hole.start, &[7; 10]).unwrap();
        unmap(hole.len());
        arena.map_again(&hole, &refusal()).unwrap();
        let mut bytes = [1; 10];
        arena.read_bytes(hole.start, &mut bytes).unwrap();
        assert_eq!(bytes, [0; 10]);

        unmap(hole.len());
        let (protection, flags) = (
            libc::PROT_READ | libc::PROT_WRITE,
            libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_FIXED_NOREPLACE,
        );
        // SAFETY: addresses that were just unmapped, one page of them.
        let foreign = unsafe { libc::mmap(start.cast(), page, protection, flags, -1, 0) };
        assert_eq!(foreign, start.cast());
        // SAFETY: the mapping of one page that was just made.
        unsafe { start.write_bytes(9, page) };
        let error = arena.map_again(&hole, &refusal()).unwrap_err().to_string();
        assert!(error.contains("may have given their addresses away"), "{error}");
        let error = arena.release(0..MIB).unwrap_err().to_string();
        assert!(error.contains("an earlier move of memory has failed"), "{error}");
        drop(arena);
        // SAFETY: the mapping of this test, which nobody has touched.
        let kept = unsafe { std::slice::from_raw_parts(start, page) };
        assert!(kept.iter().all(|&byte| byte == 9));
        unmap(page);
    }

    #[test]
    fn committed_memory_is_there_and_keeps_its_contents() {
        let (arena, page) = (Arena::reserve(MIB).unwrap(), page_bytes());
        arena.write_bytes(page, &[7; 10]).unwrap();
        arena.commit(page + 5..3 * page + 1).unwrap();
        let resident = arena.resident_bytes(0..MIB).unwrap();
        // A system without MADV_POPULATE_WRITE has only the page that was written.
        assert!(resident >= page, "{resident}");
        if resident >= 3 * page {
            assert_eq!(arena.resident_bytes(page..4 * page).unwrap(), 3 * page);
        } else {
            println!("this system cannot commit memory ahead of use");
        }
        let mut bytes = [0; 11];
        arena.read_bytes(page, &mut bytes).unwrap();
        assert_eq!(bytes, [7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 0]);
        arena.commit(8..8).unwrap();
    }

    #[test]
    fn a_tensor_keeps_the_mapping() {
        let arena = Arena::reserve(4096).unwrap();
        let mut first = arena.tensor(0, &[2, 3], &[3, 1], Kind::Int64).unwrap();
        let second = arena.tensor(24, &[3], &[1], Kind::Int64).unwrap();
        let weak = Arc::downgrade(&arena);
        drop(arena);
        first.copy_(&Tensor::arange(6, (Kind::Int64, tch::Device::Cpu)).view([2, 3]));
        drop(first);
        assert_eq!(Vec::<i64>::try_from(&second).unwrap(), [3, 4, 5]);
        let view = second.slice(0, 1, 3, 1);
        drop(second);
        assert!(weak.upgrade().is_some());
        assert_eq!(Vec::<i64>::try_from(view).unwrap(), [4, 5]);
        assert!(weak.upgrade().is_none());
    }

    #[test]
    fn neighbors_share_no_version_counter() {
        let arena = Arena::reserve(4096).unwrap();
        let first = arena.tensor(0, &[4], &[1], Kind::Float).unwrap();
        let mut second = arena.tensor(16, &[4], &[1], Kind::Float).unwrap();
        let input = Tensor::ones([4], (Kind::Float, tch::Device::Cpu)).set_requires_grad(true);
        let _ = first.shallow_clone().fill_(2.0);
        // The backward of the product needs `first`, which a write to `second` must not invalidate.
        let product = (&input * &first).sum(Kind::Float);
        let _ = second.fill_(9.0);
        product.backward();
        assert_eq!(Vec::<f32>::try_from(input.grad()).unwrap(), [2.0; 4]);
    }

    #[test]
    fn strides_tell_how_a_matrix_lies() {
        let arena = Arena::reserve(4096).unwrap();
        // A weight [2, 3] column by column is the transpose of the contiguous [3, 2].
        let mut rows = arena.tensor(64, &[3, 2], &[2, 1], Kind::BFloat16).unwrap();
        let weight = arena.tensor(64, &[2, 3], &[1, 2], Kind::BFloat16).unwrap();
        rows.copy_(&Tensor::arange(6, (Kind::Int64, tch::Device::Cpu)).view([3, 2]));
        assert!(!weight.is_contiguous() && weight.equal(&rows.tr()));
        assert_eq!(weight.double_value(&[1, 2]), 5.0);
        assert_eq!(weight.stride(), [1, 2]);
        let kinds =
            [Kind::Uint8, Kind::Bool, Kind::Half, Kind::Double, Kind::ComplexDouble, Kind::Float8e4m3fn];
        for kind in kinds {
            assert_eq!(arena.tensor(0, &[2], &[1], kind).unwrap().kind(), kind);
        }
    }

    #[test]
    fn what_does_not_fit_is_refused() {
        let arena = Arena::reserve(4096).unwrap();
        let refused = |offset, shape: &[i64], strides: &[i64]| {
            arena.tensor(offset, shape, strides, Kind::Float).unwrap_err().to_string()
        };
        assert!(arena.tensor(0, &[1024], &[1], Kind::Float).is_ok());
        assert!(arena.tensor(4092, &[], &[], Kind::Float).is_ok());
        assert!(arena.tensor(4096, &[5, 0], &[9999, 1], Kind::Float).is_ok());
        assert_eq!(
            refused(4, &[1024], &[1]),
            "tensor of an arena of 4096 bytes: Float [1024] with the strides [1] at 4 bytes \
             ends behind the arena"
        );
        // The furthest element of [3, 2] with the strides [1, 1022] is 2 + 1022.
        assert!(refused(0, &[3, 2], &[1, 1022]).contains("ends behind"));
        assert!(arena.tensor(0, &[2, 2], &[1, 1022], Kind::Float).is_ok());
        assert!(refused(2, &[1], &[1]).contains("at 2 bytes does not begin at a multiple of the 4 bytes"));
        assert!(refused(usize::MAX - 3, &[1], &[1]).contains("ends behind"));
        for (shape, strides) in
            [(&[1, 1][..], &[1][..]), (&[-1], &[1]), (&[2], &[-1]), (&[i64::MAX; 3], &[0; 3])]
        {
            assert!(refused(0, shape, strides).contains("not one stride per dimension"));
        }
        assert!(refused(0, &[i64::MAX], &[1]).contains("ends behind"));

        let range = "the bytes 4095 to 4097 are not inside";
        assert!(arena.release(4095..4097).unwrap_err().to_string().contains(range));
        assert!(arena.commit(4095..4097).unwrap_err().to_string().contains(range));
        assert!(arena.resident_bytes(4095..4097).unwrap_err().to_string().contains(range));
        assert!(arena.read_bytes(4095, &mut [0; 2]).unwrap_err().to_string().contains(range));
        assert!(arena.write_bytes(4095, &[0; 2]).unwrap_err().to_string().contains(range));
        assert!(Arena::reserve(usize::MAX).unwrap_err().to_string().contains("no address space"));
        let error = Arena::reserve(usize::MAX >> 1).unwrap_err().to_string();
        assert!(
            error.contains("reserve of an arena of 9223372036854775807 bytes: Cannot allocate"),
            "{error}"
        );
    }

    #[test]
    fn an_arena_may_be_empty() {
        let arena = Arena::reserve(0).unwrap();
        assert!(arena.is_empty());
        assert_eq!(arena.tensor(0, &[0, 4], &[4, 1], Kind::Float).unwrap().size(), [0, 4]);
        arena.release(0..0).unwrap();
        arena.commit(0..0).unwrap();
        assert_eq!(arena.resident_bytes(0..0).unwrap(), 0);
        assert!(arena.tensor(0, &[1], &[1], Kind::Float).is_err());
    }
}
