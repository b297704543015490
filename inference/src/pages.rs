//! Which page of the KV cache belongs to which tokens: pure bookkeeping, without a tensor.
//!
//! A page holds the keys and values of [`PageTable::page_size`] consecutive tokens in every layer (Kwon et
//! al. 2023, arXiv 2309.06180). Several sequences may use one page. A full page is known by its prefix: a
//! hash of its tokens and of all tokens before them, since keys and values depend on both. When the last
//! sequence gives up such a page, the page stays in the cache, and the next sequence with the same prefix
//! takes it without computing anything. The page that was given up first is the first to be overwritten.

use std::collections::{BTreeMap, HashMap};

use sha2::{Digest, Sha256};

/// The index of a page in the tensors of the KV cache.
pub type PageId = u32;

/// Identifies the tokens of a full page and all tokens before them.
///
/// The hash is cryptographic: requests come from strangers, and two prefixes with one hash would read each
/// other's keys.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct PrefixHash([u8; 16]);

impl PrefixHash {
    /// The prefix of no tokens. Sequences share pages only if their salts are equal.
    pub fn empty(salt: u64) -> Self {
        Self::digest(&Sha256::new_with_prefix(salt.to_le_bytes()))
    }

    /// This prefix with the `tokens` of one more page.
    #[must_use]
    pub fn extended(self, tokens: &[i64]) -> Self {
        let mut digest = Sha256::new_with_prefix(self.0);
        for token in tokens {
            digest.update(token.to_le_bytes());
        }
        Self::digest(&digest)
    }

    fn digest(digest: &Sha256) -> Self {
        let bytes = digest.clone().finalize();
        Self(std::array::from_fn(|index| bytes[index]))
    }
}

/// A page, as the table knows it.
#[derive(Clone, Debug, Default)]
struct Page {
    /// The sequences that use the page.
    users: u32,
    /// The prefix that the page holds, once the page is full.
    prefix: Option<PrefixHash>,
    /// When the last user gave up the page. It is the key of the page in `PageTable::unused`.
    released_at: u64,
}

/// The pages of the KV cache.
/// vLLM: `BlockPool`.
#[derive(Debug)]
pub struct PageTable {
    page_size: usize,
    pages: Vec<Page>,
    /// Pages without content.
    empty: Vec<PageId>,
    /// Pages with content that no sequence uses, by the time at which they were given up.
    unused: BTreeMap<u64, PageId>,
    by_prefix: HashMap<PrefixHash, PageId>,
    /// Counts the pages that were given up.
    clock: u64,
}

impl PageTable {
    /// A table without pages, for pages of `page_size` tokens.
    pub fn new(page_size: usize) -> Self {
        assert!(page_size > 0, "a page holds at least one token");
        Self {
            page_size,
            pages: Vec::new(),
            empty: Vec::new(),
            unused: BTreeMap::new(),
            by_prefix: HashMap::new(),
            clock: 0,
        }
    }

    /// The tokens of a page.
    pub fn page_size(&self) -> usize {
        self.page_size
    }

    /// The number of pages.
    pub fn len(&self) -> usize {
        self.pages.len()
    }

    /// Whether there is no page.
    pub fn is_empty(&self) -> bool {
        self.pages.is_empty()
    }

    /// The pages that a sequence may get now: those without content, and those that no sequence uses.
    pub fn num_available(&self) -> usize {
        self.empty.len() + self.unused.len()
    }

    /// The pages that sequences use.
    pub fn num_used(&self) -> usize {
        self.len() - self.num_available()
    }

    /// Adds `count` pages without content.
    pub fn grow(&mut self, count: usize) {
        let first = self.pages.len();
        self.pages.resize_with(first + count, Page::default);
        // The lowest index is taken first.
        self.empty.extend((first..first + count).rev().map(|index| index as PageId));
    }

    /// Takes a page for one sequence. `None` if every page is used.
    pub fn allocate(&mut self) -> Option<PageId> {
        let page = self.empty.pop().or_else(|| self.overwrite())?;
        self.entry(page).users = 1;
        Some(page)
    }

    /// Forgets the content of the page that was given up first among those that no sequence uses.
    fn overwrite(&mut self) -> Option<PageId> {
        let (_, page) = self.unused.pop_first()?;
        let prefix = self.entry(page).prefix.take().expect("an unused page has content");
        self.by_prefix.remove(&prefix);
        Some(page)
    }

    /// Takes the page that holds `prefix` for one more sequence. `None` if there is no such page.
    pub fn find(&mut self, prefix: PrefixHash) -> Option<PageId> {
        let page = *self.by_prefix.get(&prefix)?;
        self.share(page);
        Some(page)
    }

    /// Takes a page for one more sequence.
    pub fn share(&mut self, page: PageId) {
        let entry = self.entry(page);
        entry.users += 1;
        if entry.users == 1 {
            let released_at = entry.released_at;
            self.unused.remove(&released_at);
        }
    }

    /// Whether more than one sequence uses the page. Nothing may be written into such a page.
    pub fn is_shared(&self, page: PageId) -> bool {
        self.pages[page as usize].users > 1
    }

    /// Gives up the page for one sequence.
    pub fn release(&mut self, page: PageId) {
        self.clock += 1;
        let clock = self.clock;
        let entry = self.entry(page);
        entry.users = entry.users.checked_sub(1).expect("a page that is given up has a user");
        if entry.users > 0 {
            return;
        }
        entry.released_at = clock;
        if entry.prefix.is_some() {
            self.unused.insert(clock, page);
        } else {
            self.empty.push(page);
        }
    }

    /// Notes that the keys and values of `prefix` are in `page`, which is full. If another page holds them
    /// already, this page stays unknown.
    pub fn publish(&mut self, page: PageId, prefix: PrefixHash) {
        if self.by_prefix.contains_key(&prefix) {
            return;
        }
        self.by_prefix.insert(prefix, page);
        self.entry(page).prefix = Some(prefix);
    }

    /// Forgets the content of all pages that no sequence uses: the weights have changed, or the memory is
    /// given back.
    pub fn forget_unused(&mut self) {
        for page in std::mem::take(&mut self.unused).into_values() {
            self.entry(page).prefix = None;
            self.empty.push(page);
        }
        self.by_prefix.retain(|_, page| self.pages[*page as usize].prefix.is_some());
    }

    fn entry(&mut self, page: PageId) -> &mut Page {
        &mut self.pages[page as usize]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn table(pages: usize) -> PageTable {
        let mut table = PageTable::new(4);
        table.grow(pages);
        table
    }

    #[test]
    fn a_prefix_depends_on_every_token_before_it_and_on_the_salt() {
        let prefix = |salt, pages: &[[i64; 2]]| {
            pages.iter().fold(PrefixHash::empty(salt), |prefix, tokens| prefix.extended(tokens))
        };
        let same = prefix(0, &[[1, 2], [3, 4]]);
        assert_eq!(same, prefix(0, &[[1, 2], [3, 4]]));
        for other in [prefix(1, &[[1, 2], [3, 4]]), prefix(0, &[[1, 3], [3, 4]]), prefix(0, &[[3, 4]])] {
            assert_ne!(same, other);
        }
    }

    #[test]
    fn a_page_that_is_given_up_is_found_again_until_it_is_overwritten() {
        let mut table = table(2);
        let prefixes = [1, 2].map(|token| PrefixHash::empty(0).extended(&[token; 4]));
        let pages = prefixes.map(|prefix| {
            let page = table.allocate().unwrap();
            table.publish(page, prefix);
            page
        });
        assert_eq!(table.allocate(), None);
        for page in pages {
            table.release(page);
        }
        assert_eq!((table.num_available(), table.num_used()), (2, 0));

        assert_eq!(table.find(prefixes[0]), Some(pages[0]));
        // The second page was given up last but is the only one without a user.
        assert_eq!(table.allocate(), Some(pages[1]));
        assert_eq!(table.find(prefixes[1]), None);
        assert_eq!(table.find(prefixes[0]), Some(pages[0]));
        assert!(table.is_shared(pages[0]));
    }

    #[test]
    fn the_page_that_was_given_up_first_is_overwritten_first() {
        let mut table = table(3);
        let pages: Vec<PageId> = (0..3).map(|_| table.allocate().unwrap()).collect();
        for (&page, token) in pages.iter().zip(0..) {
            table.publish(page, PrefixHash::empty(0).extended(&[token; 4]));
        }
        for index in [1, 0, 2] {
            table.release(pages[index]);
        }
        let order: Vec<PageId> = (0..3).map(|_| table.allocate().unwrap()).collect();
        assert_eq!(order, [pages[1], pages[0], pages[2]]);
    }

    #[test]
    fn content_that_is_forgotten_is_not_found() {
        let mut table = table(2);
        let prefix = PrefixHash::empty(7).extended(&[1; 4]);
        let (used, unused) = (table.allocate().unwrap(), table.allocate().unwrap());
        table.publish(unused, prefix);
        table.publish(used, prefix);
        table.release(unused);
        table.forget_unused();
        assert_eq!(table.find(prefix), None);
        assert_eq!((table.num_available(), table.num_used()), (1, 1));
        table.release(used);
        assert_eq!(table.num_available(), 2);
    }
}
