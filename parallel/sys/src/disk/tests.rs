//! Transfers through both mechanisms.

use std::path::Path;
use std::sync::{Arc, Once};

use super::{BLOCK_BYTES, DiskFile, DiskQueue, QUEUE_DEPTH, REQUEST_BYTES};
use crate::arena::{Arena, page_bytes};

const MIB: usize = 1 << 20;

/// Both mechanisms, or threads alone on a system without `io_uring`.
fn queues() -> Vec<DiskQueue> {
    let threads = DiskQueue::with_threads(3).unwrap();
    match DiskQueue::with_uring() {
        Ok(ring) => vec![ring, threads],
        Err(error) => {
            static TOLD: Once = Once::new();
            TOLD.call_once(|| println!("io_uring is not available here and is not tested: {error}"));
            vec![threads]
        }
    }
}

/// Bytes that differ from place to place.
fn pattern(length: usize, seed: usize) -> Vec<u8> {
    (0..length).map(|index| (index.wrapping_mul(2_654_435_761).wrapping_add(seed) >> 7) as u8).collect()
}

fn arena_with(bytes: &[u8]) -> Arc<Arena> {
    let arena = Arena::reserve(bytes.len()).unwrap();
    arena.write_bytes(0, bytes).unwrap();
    arena
}

fn bytes_of(arena: &Arena, start: usize, length: usize) -> Vec<u8> {
    let mut bytes = vec![0; length];
    arena.read_bytes(start, &mut bytes).unwrap();
    bytes
}

fn scratch(folder: &Path, bytes: usize) -> Arc<DiskFile> {
    Arc::new(DiskFile::scratch(folder, bytes as u64).unwrap())
}

#[test]
fn what_is_written_is_read() {
    let folder = tempfile::tempdir().unwrap();
    let page = page_bytes();
    for mut queue in queues() {
        let mut sum = 0;
        for pages in [1, 2, 255, 256, 257, 1031] {
            let (length, shift) = (pages * page, 3 * page);
            let expected = pattern(length, pages);
            let source = arena_with(&expected);
            let target = Arena::reserve(length + shift).unwrap();
            let file = scratch(folder.path(), length + page);

            let write = queue.write(&file, page as u64, &source, 0..length).unwrap();
            queue.wait(write).unwrap();
            let read = queue.read(&file, page as u64, &target, shift..shift + length).unwrap();
            queue.wait(read).unwrap();
            assert!(bytes_of(&target, shift, length) == expected, "{pages} pages, {}", queue.mechanism());
            assert_eq!(bytes_of(&target, 0, shift), vec![0; shift]);
            sum += length as u64;
        }
        assert_eq!((queue.bytes_written(), queue.bytes_read()), (sum, sum));
    }
}

#[test]
fn a_file_may_end_inside_a_page() {
    let folder = tempfile::tempdir().unwrap();
    let page = page_bytes();
    for mut queue in queues() {
        for length in [1, 4095, 4096, 4097, MIB - 1, MIB + 1, 3 * MIB + 12_345] {
            let (path, expected) = (folder.path().join("frozen"), pattern(length, 9));
            std::fs::write(&path, &expected).unwrap();
            let file = Arc::new(DiskFile::open(&path).unwrap());
            let rounded = length.next_multiple_of(page);
            let arena = Arena::reserve(rounded + page).unwrap();
            arena.write_bytes(rounded, &[0xab; 16]).unwrap();
            let read = queue.read(&file, 0, &arena, 0..rounded).unwrap();
            queue.wait(read).unwrap();
            assert!(bytes_of(&arena, 0, length) == expected, "{length} bytes, {}", queue.mechanism());
            assert_eq!(bytes_of(&arena, rounded, 16), [0xab; 16]);
            // A whole page behind the end is too much.
            let error = queue.read(&file, 0, &arena, 0..rounded + page).unwrap_err().to_string();
            assert!(error.contains(&format!("lie behind the end of its {length} bytes")), "{error}");
        }
    }
}

#[test]
fn buffered_files_need_no_alignment() {
    // The file system of /proc has no direct I/O, and its files have no length before they are read.
    let file = Arc::new(DiskFile::open(Path::new("/proc/self/status")).unwrap());
    assert!(!file.is_direct() && file.is_empty());
    let folder = Path::new("/sys/kernel/mm");
    let file = DiskFile::open(&folder.join("transparent_hugepage/hpage_pmd_size"));
    let Ok(file) = file.map(Arc::new) else {
        println!("this system has no file in /sys to read: not tested here");
        return;
    };
    // A file of /sys has the length of a page and fewer bytes, so the transfer ends early.
    let arena = Arena::reserve(8192).unwrap();
    for mut queue in queues() {
        let read = queue.read(&file, 0, &arena, 3..103).unwrap();
        let error = queue.wait(read).unwrap_err().to_string();
        assert!(error.contains("must not become shorter"), "{error}");
        let mut length = bytes_of(&arena, 3, 100);
        length.truncate(length.iter().position(|&byte| byte == b'\n').unwrap());
        assert!(String::from_utf8(length).unwrap().parse::<usize>().unwrap() >= MIB);
    }
}

#[test]
fn more_requests_than_the_queue_is_deep_wait_their_turn() {
    let folder = tempfile::tempdir().unwrap();
    let requests = QUEUE_DEPTH + 21;
    let expected = pattern(requests * REQUEST_BYTES, 1);
    let arena = arena_with(&expected);
    let file = scratch(folder.path(), expected.len());
    for mut queue in queues() {
        let write = queue.write(&file, 0, &arena, 0..expected.len()).unwrap();
        assert_eq!(queue.most_in_flight(), QUEUE_DEPTH);
        while !queue.is_done(&write).unwrap() {
            std::thread::yield_now();
        }
        queue.wait(write).unwrap();
        arena.release(0..expected.len()).unwrap();
        let read = queue.read(&file, 0, &arena, 0..expected.len()).unwrap();
        queue.wait(read).unwrap();
        assert!(bytes_of(&arena, 0, expected.len()) == expected, "{}", queue.mechanism());
        assert_eq!(queue.most_in_flight(), QUEUE_DEPTH);
        assert_eq!(queue.bytes_read(), expected.len() as u64);
    }
}

#[test]
fn transfers_are_waited_for_in_any_order() {
    let folder = tempfile::tempdir().unwrap();
    let (count, length) = (7, 2 * MIB);
    let arena = arena_with(&pattern(count * length, 4));
    let file = scratch(folder.path(), count * length);
    for mut queue in queues() {
        let place = |index: usize| index * length..(index + 1) * length;
        let mut writes: Vec<_> = (0..count)
            .map(|index| queue.write(&file, (index * length) as u64, &arena, place(index)).unwrap())
            .collect();
        while let Some(write) = writes.pop() {
            queue.wait(write).unwrap();
        }
        let copy = Arena::reserve(count * length).unwrap();
        let mut reads: Vec<_> = (0..count)
            .map(|index| (index, queue.read(&file, (index * length) as u64, &copy, place(index)).unwrap()))
            .collect();
        for position in [3, 0, 4, 1, 1, 1, 0] {
            let (index, read) = reads.remove(position);
            queue.wait(read).unwrap();
            let start = index * length;
            assert!(bytes_of(&copy, start, length) == bytes_of(&arena, start, length), "{index}");
        }
    }
}

#[test]
fn a_transfer_may_be_dropped() {
    let folder = tempfile::tempdir().unwrap();
    let expected = pattern(90 * MIB, 2);
    for mut queue in queues() {
        let mechanism = queue.mechanism();
        let file = scratch(folder.path(), expected.len());
        let arena = arena_with(&expected);
        let mapping = Arc::downgrade(&arena);
        drop(queue.write(&file, 0, &arena, 0..expected.len()).unwrap());
        drop(arena);
        // Requests own the arena; the drop of the queue finishes those that wait, too.
        assert!(mapping.upgrade().is_some());
        drop(queue);
        assert!(mapping.upgrade().is_none());
        assert_eq!(Arc::strong_count(&file), 1);
        let mut bytes = vec![0; expected.len()];
        file.read_at(&mut bytes, 0).unwrap();
        assert!(bytes == expected, "{mechanism}");
    }
}

#[test]
fn a_queue_works_from_several_threads() {
    let folder = tempfile::tempdir().unwrap();
    let expected = pattern(80 * MIB, 8);
    let file = scratch(folder.path(), expected.len());
    let arena = arena_with(&expected);
    for mut queue in queues() {
        // The thread that starts the transfer ends before the transfer does.
        let asking = std::thread::scope(|scope| {
            let (queue, file, arena) = (&mut queue, &file, &arena);
            scope.spawn(move || queue.write(file, 0, arena, 0..80 * MIB).unwrap()).join().unwrap()
        });
        queue.wait(asking).unwrap();
        assert_eq!(queue.bytes_written(), 80 * MIB as u64);
        let mut bytes = vec![0; expected.len()];
        file.read_at(&mut bytes, 0).unwrap();
        assert!(bytes == expected, "{}", queue.mechanism());
    }
}

#[test]
fn a_transfer_that_cannot_be_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("frozen");
    std::fs::write(&path, [5; 8192]).unwrap();
    let frozen = Arc::new(DiskFile::open(&path).unwrap());
    let (file, arena) = (scratch(folder.path(), 65_536), Arena::reserve(65_536).unwrap());
    for mut queue in queues() {
        let error = queue.write(&frozen, 0, &arena, 0..4096).unwrap_err().to_string();
        let expected = format!("write of {}: it is open only to be read", path.display());
        assert_eq!(error, expected);
        let error = queue.write(&file, 65_536, &arena, 0..4096).unwrap_err().to_string();
        assert!(error.contains("4096 bytes at offset 65536 lie behind the end of its 65536"), "{error}");
        assert!(queue.read(&file, u64::MAX - 4095, &arena, 0..4096).is_err());
        let error = queue.read(&file, 0, &arena, 61_440..69_632).unwrap_err().to_string();
        assert!(error.contains("the bytes 61440 to 69632 are not inside"), "{error}");
        if file.is_direct() {
            for (offset, range) in [(512, 0..4096), (0, 100..4196), (0, 0..100)] {
                let error = queue.read(&file, offset, &arena, range).unwrap_err().to_string();
                assert!(
                    error.contains("are not all multiples of 4096")
                        && error.starts_with("read of the scratch"),
                    "{error}"
                );
            }
        } else {
            println!("the folder for temporary files has no direct I/O: alignment is not tested here");
        }
        let nothing = queue.read(&file, 0, &arena, 8192..8192).unwrap();
        assert!(queue.is_done(&nothing).unwrap());
        queue.wait(nothing).unwrap();
        assert_eq!((queue.bytes_read(), queue.bytes_written(), queue.most_in_flight()), (0, 0, 0));
    }
    assert!(BLOCK_BYTES <= page_bytes());
}

#[test]
fn a_file_that_became_shorter_is_an_error() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("frozen");
    let arena = Arena::reserve(70 * MIB).unwrap();
    for mut queue in queues() {
        std::fs::write(&path, vec![1; 70 * MIB]).unwrap();
        let file = Arc::new(DiskFile::open(&path).unwrap());
        std::fs::File::options().write(true).open(&path).unwrap().set_len(2 * MIB as u64).unwrap();
        let read = queue.read(&file, 0, &arena, 0..70 * MIB).unwrap();
        while !queue.is_done(&read).unwrap() {
            std::thread::yield_now();
        }
        let error = queue.wait(read).unwrap_err().to_string();
        assert!(error.contains("read of 1048576 bytes at offset") && error.contains("shorter"), "{error}");
        // The queue goes on.
        let read = queue.read(&file, 0, &arena, 0..2 * MIB).unwrap();
        queue.wait(read).unwrap();
        assert_eq!(bytes_of(&arena, 2 * MIB - 4, 4), [1; 4]);
    }
}

#[test]
fn a_transfer_belongs_to_its_queue() {
    let folder = tempfile::tempdir().unwrap();
    let (file, arena) = (scratch(folder.path(), 90 * MIB), Arena::reserve(90 * MIB).unwrap());
    let mut own = DiskQueue::with_threads(1).unwrap();
    let mut other = DiskQueue::open().unwrap();
    let write = own.write(&file, 0, &arena, 0..90 * MIB).unwrap();
    let error = other.wait(write).unwrap_err().to_string();
    assert!(error.contains("not one of the queue's"), "{error}");
}

#[test]
fn queues_files_and_transfers_can_be_sent() {
    fn is_send<T: Send>() {}
    fn is_sync<T: Sync>() {}
    is_send::<DiskQueue>();
    is_send::<super::Transfer>();
    is_send::<Arc<DiskFile>>();
    is_send::<Arc<Arena>>();
    is_sync::<Arena>();
}
