//! The anonymous memory file that the ranks of a group map: how rank 0 creates it, and what another rank
//! checks before it maps the file.
//!
//! The address of the file comes from the store. A rank maps the file only if rank 0 of the same group made
//! it: it must be a sealed memory file of the agreed name and size, open in the process that the ranks know
//! as rank 0, and that process must belong to the same user.

use std::ffi::CString;
use std::fs::{self, File};
use std::io;
use std::os::fd::{AsRawFd, FromRawFd};
use std::os::unix::fs::MetadataExt;

use crate::Error;

/// The file can neither shrink nor grow, so no rank reads beyond its end.
const SEALS: libc::c_int = libc::F_SEAL_SHRINK | libc::F_SEAL_GROW | libc::F_SEAL_SEAL;

/// Creates the file `name` of `length` bytes.
pub(super) fn create(name: &str, length: usize) -> Result<File, Error> {
    let text = CString::new(name).map_err(|error| failed("memfd_create", &error.into()))?;
    let flags = libc::MFD_CLOEXEC | libc::MFD_ALLOW_SEALING;
    // SAFETY: the name lives during the call.
    let descriptor = unsafe { libc::memfd_create(text.as_ptr(), flags) };
    if descriptor < 0 {
        return Err(failed("memfd_create", &io::Error::last_os_error()));
    }
    // SAFETY: a descriptor that was just created and that nothing else owns.
    let file = unsafe { File::from_raw_fd(descriptor) };
    file.set_len(length as u64).map_err(|error| failed("ftruncate", &error))?;
    // SAFETY: plain numbers on an open descriptor.
    if unsafe { libc::fcntl(descriptor, libc::F_ADD_SEALS, SEALS) } < 0 {
        return Err(failed("F_ADD_SEALS", &io::Error::last_os_error()));
    }
    Ok(file)
}

/// Opens the file `name` of `length` bytes at `address`, which must be an address in the process `owner`.
pub(super) fn open(address: &str, name: &str, owner: u32, length: usize) -> Result<File, Error> {
    let (process, descriptor) = parse(address)?;
    let refuse = |problem: String| Error::Memory { process, descriptor, problem };
    if process != owner {
        return Err(refuse(format!("the process of the rank that creates it is {owner}")));
    }
    let unseen = |error: io::Error| refuse(error.to_string());
    let user = fs::metadata(format!("/proc/{process}")).map_err(unseen)?.uid();
    // SAFETY: a plain call.
    let own_user = unsafe { libc::geteuid() };
    if user != own_user {
        return Err(refuse(format!("that process belongs to user {user}, and this one to {own_user}")));
    }
    // Check the name before opening, because opening a pipe or a terminal has side effects.
    let path = format!("/proc/{process}/fd/{descriptor}");
    check_name(&path, name).map_err(refuse)?;
    let file = File::options().read(true).write(true).open(&path).map_err(unseen)?;
    check(&file, name, length).map_err(refuse)?;
    Ok(file)
}

/// Parses `process:descriptor`, two decimal numbers.
fn parse(address: &str) -> Result<(u32, u32), Error> {
    let plain = |text: &str| text.bytes().all(|byte| byte.is_ascii_digit()).then(|| text.parse().ok())?;
    let address_parts = address.split_once(':');
    let numbers = address_parts.and_then(|(process, descriptor)| Some((plain(process)?, plain(descriptor)?)));
    numbers.ok_or_else(|| {
        let problem = format!("the address {address:?} of the memory is not PROCESS:DESCRIPTOR");
        Error::Shared { call: "join".to_owned(), problem }
    })
}

/// Checks that a link of `/proc` points to the memory file `name`.
fn check_name(link: &str, name: &str) -> Result<(), String> {
    let found = fs::read_link(link).map_err(|error| error.to_string())?;
    if found.as_os_str() == format!("/memfd:{name} (deleted)").as_str() {
        return Ok(());
    }
    Err(format!("{:?} is open there instead", found.display().to_string()))
}

/// Checks the opened file again: unlike the link, it can no longer be replaced.
fn check(file: &File, name: &str, length: usize) -> Result<(), String> {
    let descriptor = file.as_raw_fd();
    check_name(&format!("/proc/self/fd/{descriptor}"), name)?;
    // SAFETY: a plain call on an open descriptor.
    let seals = unsafe { libc::fcntl(descriptor, libc::F_GET_SEALS) };
    if seals != SEALS {
        return Err("its size is not sealed".to_owned());
    }
    let found = file.metadata().map_err(|error| error.to_string())?.len();
    if found != length as u64 {
        return Err(format!("it has {found} bytes and must have {length}"));
    }
    Ok(())
}

/// The error of a system call.
pub(super) fn failed(call: &str, error: &io::Error) -> Error {
    Error::Shared { call: call.to_owned(), problem: error.to_string() }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NAME: &str = "colossal-chat-0123456789abcdef";

    fn refused(address: &str, name: &str, owner: u32, length: usize) -> String {
        open(address, name, owner, length).unwrap_err().to_string()
    }

    #[test]
    fn only_the_file_of_this_group_is_opened() {
        let (own_process, length) = (std::process::id(), 8192);
        let file = create(NAME, length).unwrap();
        let at = |descriptor: i32| format!("{own_process}:{descriptor}");
        let address = at(file.as_raw_fd());
        assert_eq!(open(&address, NAME, own_process, length).unwrap().metadata().unwrap().len(), 8192);

        let error = refused(&address, "colossal-chat-of-another-job", own_process, length);
        assert!(error.contains(&format!("/memfd:{NAME} (deleted)\" is open there instead")), "{error}");
        assert!(refused(&address, NAME, own_process, 4096).contains("it has 8192 bytes and must have 4096"));
        assert!(refused(&address, NAME, own_process + 1, length).contains("the rank that creates it is"));
        // Process 1 belongs to the same user only if everything runs as root.
        let error = refused("1:0", NAME, 1, length);
        assert!(error.contains("descriptor 0 of process 1") && error.contains("not mapped"), "{error}");

        // A file on disk, and a memory file that may still shrink.
        let plain = tempfile::tempfile().unwrap();
        plain.set_len(8192).unwrap();
        assert!(refused(&at(plain.as_raw_fd()), NAME, own_process, length).contains("is open there instead"));
        let text = CString::new(NAME).unwrap();
        // SAFETY: the name lives during the call, and nothing else owns the descriptor.
        let open = unsafe { File::from_raw_fd(libc::memfd_create(text.as_ptr(), libc::MFD_ALLOW_SEALING)) };
        open.set_len(8192).unwrap();
        assert!(refused(&at(open.as_raw_fd()), NAME, own_process, length).contains("its size is not sealed"));
        assert!(refused(&at(9999), NAME, own_process, length).contains("No such file"));
    }

    #[test]
    fn an_address_is_two_numbers() {
        for address in
            ["", "1", "1:", ":1", "self:3", "1:../../../../etc/passwd", "+1:3", "1:3:5", "99999999999:0"]
        {
            let error = refused(address, NAME, 1, 1);
            assert!(error.contains("is not PROCESS:DESCRIPTOR"), "{address}: {error}");
        }
    }
}
