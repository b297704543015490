//! Names that the hub and its repositories choose, checked before any of them becomes part of a path or a
//! URL.

use hf_hub::{Repo, RepoType};

/// What a repository holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    /// A model.
    Model,
    /// Rows.
    Dataset,
}

impl Kind {
    /// The part of a URL between `/api/` and the name.
    pub(super) fn in_api(self) -> &'static str {
        match self {
            Self::Model => "models",
            Self::Dataset => "datasets",
        }
    }

    /// The beginning of the URL of a file, before the name.
    pub(super) fn in_address(self) -> &'static str {
        match self {
            Self::Model => "",
            Self::Dataset => "/datasets",
        }
    }
}

/// `owner/name[@revision]`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct RepositoryName {
    pub(super) kind: Kind,
    /// As the user wrote it.
    pub(super) full: String,
    /// `owner/name`.
    pub(super) id: String,
    /// A branch, a tag or a commit; `main` if the user gave none.
    pub(super) revision: String,
}

impl RepositoryName {
    /// Parses `owner/name[@revision]`; `None` if the text has another form.
    pub(super) fn parse(kind: Kind, text: &str) -> Option<Self> {
        let (id, revision) = text.split_once('@').unwrap_or((text, "main"));
        let (owner, name) = id.split_once('/')?;
        // A revision such as `refs/pr/1` is a path below `refs/` in the cache.
        let valid = word(owner) && word(name) && revision.split('/').all(word);
        valid.then(|| Self { kind, full: text.to_owned(), id: id.to_owned(), revision: revision.to_owned() })
    }

    /// The repository as `hf_hub` represents it.
    pub(super) fn repo(&self) -> Repo {
        let kind = match self.kind {
            Kind::Model => RepoType::Model,
            Kind::Dataset => RepoType::Dataset,
        };
        Repo::with_revision(self.id.clone(), kind, self.revision.clone())
    }

    /// The revision as part of a URL.
    pub(super) fn revision_in_address(&self) -> String {
        self.revision.replace('/', "%2F")
    }
}

fn word(text: &str) -> bool {
    let letter = |character: char| character.is_ascii_alphanumeric() || "-_.+".contains(character);
    !text.is_empty() && !text.starts_with('.') && text.chars().all(letter)
}

/// Whether a text is a git commit: 40 hexadecimal digits.
pub(super) fn is_commit(text: &str) -> bool {
    text.len() == 40 && text.bytes().all(|byte| byte.is_ascii_hexdigit())
}

/// The name of a blob: the `ETag` without its quotes. `None` if the `ETag` is not a plain word.
pub(super) fn blob_name(etag: &str) -> Option<String> {
    let name = etag.trim().trim_start_matches("W/").trim_matches('"');
    (word(name) && name.len() <= 128).then(|| name.to_owned())
}

/// Whether a text is a file name and not a path: no separator, no control character, and not hidden.
///
/// The `models` crate has the same rule for the index of a folder that it loads, because it does not depend
/// on this crate.
pub fn plain_file_name(name: &str) -> bool {
    let harmless = |character: char| !matches!(character, '/' | '\\') && !character.is_control();
    !name.is_empty() && !name.starts_with('.') && name.chars().all(harmless)
}

/// Whether a path within a repository stays in it: plain names with `/` between them.
pub(super) fn is_plain_path(path: &str) -> bool {
    path.split('/').all(plain_file_name)
}

/// A path within a repository as part of a URL.
pub(super) fn percent_encoded(name: &str) -> String {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.~/".contains(&byte);
    name.bytes()
        .map(|byte| if plain(byte) { char::from(byte).to_string() } else { format!("%{byte:02X}") })
        .collect()
}

/// Whether a value of `weight_map` may be opened: a plain file name that ends in `.safetensors`.
pub(super) fn is_weight_file(name: &str) -> bool {
    plain_file_name(name) && name.ends_with(".safetensors")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_is_two_words_and_a_revision() {
        let name = RepositoryName::parse(Kind::Model, "owner/tiny@refs/pr/1").unwrap();
        assert_eq!((name.id.as_str(), name.revision.as_str()), ("owner/tiny", "refs/pr/1"));
        assert_eq!(
            (name.repo().folder_name().as_str(), name.revision_in_address().as_str()),
            ("models--owner--tiny", "refs%2Fpr%2F1")
        );
        for hostile in
            ["a/b@/etc/x", "a/b@x/../../y", "a/b@..", "a/b@x//y", "a/b@x/", "a/b@x\ny", "a/..", "a/b/c"]
        {
            assert_eq!(RepositoryName::parse(Kind::Model, hostile), None, "{hostile:?}");
        }
    }

    #[test]
    fn an_etag_is_a_plain_word() {
        assert_eq!(blob_name("W/\"12ab\"").as_deref(), Some("12ab"));
        for hostile in ["\"../x\"", "a/../b", "/etc/x", "..", ".x", "", "a\\b", "a b", "a\u{1b}[0m"] {
            assert_eq!(blob_name(hostile), None, "{hostile:?}");
        }
    }

    #[test]
    fn a_weight_file_is_a_plain_name() {
        assert!(is_weight_file("model-00001-of-00002.safetensors"));
        for hostile in [
            "../x.safetensors",
            "/x.safetensors",
            "a\\b.safetensors",
            "a\n.safetensors",
            "x.bin",
            ".safetensors",
            "",
        ] {
            assert!(!is_weight_file(hostile), "{hostile:?}");
        }
        assert_eq!(percent_encoded("a b?#%é"), "a%20b%3F%23%25%C3%A9");
    }
}
