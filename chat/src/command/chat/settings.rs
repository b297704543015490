//! The settings of the chat screen: `$XDG_CONFIG_HOME/colossal-chat/chat.toml` or
//! `~/.config/colossal-chat/chat.toml`. There need not be such a file; one with an unknown key or value is
//! refused.

use std::collections::BTreeMap;
use std::path::Path;

use serde::Deserialize;
use tui::chat::event::ContextPolicy;
use tui::chat::keys::Keymap;
use tui::theme::ThemeName;

use crate::failure::Failure;
use crate::user_folders;

/// What a user can set for all chats.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(super) struct Settings {
    /// `dark`, `light` or `plain`.
    theme: Option<String>,
    /// Whether the input has the keys of vim.
    pub(super) vim: bool,
    /// Whether the wheel scrolls.
    pub(super) mouse: bool,
    /// What happens when the context is full.
    pub(super) context: Option<ContextPolicy>,
    /// The keys of actions, such as `help = ["f1"]`.
    keys: BTreeMap<String, Vec<String>>,
}

impl Settings {
    /// Reads the file of this user.
    pub(super) fn read() -> anyhow::Result<(Self, Keymap)> {
        match user_folders::config() {
            Some(folder) => Self::from_file(&folder.join("chat.toml")),
            None => Ok((Self::default(), Keymap::default())),
        }
    }

    fn from_file(path: &Path) -> anyhow::Result<(Self, Keymap)> {
        let refuse = |problem: String| Failure::File { path: path.to_owned(), problem };
        let text = match std::fs::read_to_string(path) {
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => String::new(),
            other => other.map_err(|source| refuse(source.to_string()))?,
        };
        let settings: Self = toml::from_str(&text).map_err(|source| refuse(source.to_string()))?;
        let mut keys = Keymap::default();
        for (action, names) in &settings.keys {
            keys.bind(action, names).map_err(|problem| refuse(format!("[keys] {problem}")))?;
        }
        if let Some(theme) = settings.theme.as_ref().filter(|theme| ThemeName::find(theme).is_none()) {
            return Err(refuse(format!("theme = \"{theme}\": the themes are dark, light and plain")).into());
        }
        Ok((settings, keys))
    }

    /// The theme, if one is set.
    pub(super) fn theme(&self) -> Option<ThemeName> {
        self.theme.as_deref().and_then(ThemeName::find)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> Result<(Settings, Keymap), String> {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("chat.toml");
        std::fs::write(&path, text).unwrap();
        Settings::from_file(&path).map_err(|error| format!("{error:#}"))
    }

    #[test]
    fn a_file_sets_theme_and_keys_and_needs_not_be_there() {
        let (settings, keys) = read("theme = \"light\"\nvim = true\n[keys]\nhelp = [\"ctrl-x\"]\n").unwrap();
        assert_eq!((settings.theme(), settings.vim), (Some(ThemeName::Light), true));
        assert_eq!(keys.keys(tui::chat::keys::Action::Help), "Ctrl-X");
        assert_eq!(Settings::from_file(Path::new("/nowhere/chat.toml")).unwrap().0, Settings::default());
    }

    #[test]
    fn what_is_unknown_is_refused_with_the_file() {
        for (text, words) in [
            ("them = \"dark\"", "unknown field `them`"),
            ("theme = \"pink\"", "the themes are dark"),
            ("[keys]\njump = [\"f1\"]", "there is no action `jump`"),
            ("[keys]\nhelp = [\"f99\"]", "`f99` is no key"),
        ] {
            let error = read(text).unwrap_err();
            assert!(error.contains(words) && error.contains("chat.toml"), "{error}");
        }
    }
}
