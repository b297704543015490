//! No circle of files: the files of a crate can be read one after the other, each after those that it uses.
//!
//! File A uses file B if a path of A, in a `use` or in code, leads to an item that B defines. A re-export is
//! a use by the module that has it, and whoever takes an item from there uses the file that defines the item.
//! A module that only declares its children uses none of them. Unit tests are left out.
//!
//! The reader is a tokenizer that knows modules, items and imports. It does not see methods and fields, which
//! are reached through values, nor what a macro makes, nor that a name inside a function may be another one.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::fmt::Write;
use std::path::Path;

/// The roots of the crates.
const ROOTS: [&str; 16] = [
    "planner/src/lib.rs",
    "parallel/sys/src/lib.rs",
    "parallel/src/lib.rs",
    "gemini/src/lib.rs",
    "models/src/lib.rs",
    "inference/src/lib.rs",
    "serve/src/lib.rs",
    "datasets/src/lib.rs",
    "rewards/src/lib.rs",
    "rlhf/src/lib.rs",
    "eval/src/lib.rs",
    "gguf/src/lib.rs",
    "text/src/lib.rs",
    "tui/src/lib.rs",
    "chat/src/main.rs",
    "tests/accelerator/src/lib.rs",
];

#[test]
fn files_use_one_another_in_no_circle() {
    let workspace = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let mut report = String::new();
    for root in ROOTS {
        let sources = Sources::read(&workspace, root);
        let uses = sources.uses();
        for circle in circles(sources.files.len(), &uses) {
            let names: Vec<&str> = circle.iter().map(|&file| sources.files[file].as_str()).collect();
            let _ = writeln!(report, "a circle of {} files: {}", names.len(), names.join(", "));
            for Use { user, defining, path, line } in shortest(&circle, &uses) {
                let (user, defining) = (&sources.files[*user], &sources.files[*defining]);
                let _ = writeln!(report, "  {user}:{line} uses `{path}` of {defining}");
            }
        }
    }
    assert!(report.is_empty(), "move what the files share into a file below them:\n{report}");
}

/// The modules of a crate.
#[derive(Default)]
struct Sources {
    /// The paths of the files in the workspace.
    files: Vec<String>,
    /// The root is the first.
    modules: Vec<Module>,
}

/// A file, or a module in one.
#[derive(Default)]
struct Module {
    file: usize,
    parent: Option<usize>,
    children: BTreeMap<String, usize>,
    /// The items that are defined here.
    items: BTreeSet<String>,
    /// The paths of imported names.
    imports: BTreeMap<String, Vec<String>>,
    /// The paths of imports with a star.
    globs: Vec<Vec<String>>,
    /// All paths, with the line of the first. Names alone are here because of imports with a star.
    paths: BTreeMap<Vec<String>, usize>,
}

/// A path in one file to an item of another one.
struct Use {
    user: usize,
    defining: usize,
    path: String,
    line: usize,
}

/// Where a path leads.
#[derive(Clone, Copy)]
enum Target {
    Module(usize),
    /// An item of the module, or what the item holds.
    Item(usize),
    /// Another crate, or what is declared in a function.
    Outside,
}

/// A word or a mark, and its line.
type Token<'a> = (&'a str, usize);

impl Sources {
    fn read(workspace: &Path, root: &str) -> Self {
        let mut sources = Self::default();
        let folder = Path::new(root).parent().unwrap();
        sources.read_file(workspace, Path::new(root), folder, None);
        sources
    }

    /// Reads a file and the modules that it declares, which are files in `folder`.
    fn read_file(&mut self, workspace: &Path, file: &Path, folder: &Path, parent: Option<usize>) -> usize {
        let text = std::fs::read_to_string(workspace.join(file)).unwrap();
        let module = self.add(self.files.len(), parent);
        self.files.push(file.to_str().unwrap().to_owned());
        let mut declared = Vec::new();
        self.read_items(&without_tests(&tokens(&text)), module, &mut declared);
        for (declaring, name) in declared {
            let file = folder.join(format!("{name}.rs"));
            let child = self.read_file(workspace, &file, &folder.join(&name), Some(declaring));
            self.modules[declaring].children.insert(name, child);
        }
        module
    }

    fn add(&mut self, file: usize, parent: Option<usize>) -> usize {
        self.modules.push(Module { file, parent, ..Module::default() });
        self.modules.len() - 1
    }

    /// Reads the items of a module. The modules that are files of their own are `declared`, with the module
    /// that declares them.
    fn read_items(&mut self, tokens: &[Token<'_>], module: usize, declared: &mut Vec<(usize, String)>) {
        let mut rest = tokens;
        while let Some(&(first, _)) = rest.first() {
            let length = if first == "#" { attribute_length(rest) } else { item_length(rest) }.max(1);
            let (item, after) = rest.split_at(length);
            rest = after;
            let words = &item[visibility_length(item)..];
            let name = words.get(1).map_or("", |&(name, _)| name);
            match words.first() {
                Some(("mod", _)) if words.len() == 3 => {
                    declared.push((module, name.to_owned()));
                }
                Some(("mod", _)) => {
                    let child = self.add(self.modules[module].file, Some(module));
                    self.modules[module].children.insert(name.to_owned(), child);
                    self.read_items(&words[3..words.len() - 1], child, declared);
                }
                Some(("thread_local", _)) => self.read_items(&words[3..words.len() - 1], module, declared),
                _ => {
                    self.modules[module].items.extend(defined_name(words).map(str::to_owned));
                    self.modules[module].read_code(item);
                }
            }
        }
    }

    /// All uses between files.
    fn uses(&self) -> Vec<Use> {
        let mut uses = Vec::new();
        for (index, module) in self.modules.iter().enumerate() {
            for (path, &line) in &module.paths {
                let target = self.target(index, path, false, &mut Vec::new());
                let (path, user) = (path.join("::"), module.file);
                // The reader has to know every path that is in the crate for sure.
                let is_known =
                    target.is_some() || !(path.starts_with("crate::") || path.starts_with("super::"));
                assert!(is_known, "{}:{line}: `{path}` is not found", self.files[user]);
                if let Some(Target::Item(defining)) = target {
                    let defining = self.modules[defining].file;
                    uses.extend((defining != user).then_some(Use { user, defining, path, line }));
                }
            }
        }
        uses
    }

    /// Where a path leads from a module. As its last name may be both a module and an item, `is_module` says
    /// which of them is meant.
    fn target(&self, from: usize, path: &[String], is_module: bool, seen: &mut Seen) -> Option<Target> {
        let mut module = from;
        for (place, name) in path.iter().enumerate() {
            let target = match name.as_str() {
                "crate" => Target::Module(0),
                "self" => Target::Module(module),
                "super" => Target::Module(self.modules[module].parent?),
                name => match self.named(module, name, is_module || place + 1 < path.len(), seen) {
                    None if place == 0 => Target::Outside,
                    found => found?,
                },
            };
            match target {
                Target::Module(next) => module = next,
                Target::Item(_) | Target::Outside => return Some(target),
            }
        }
        Some(Target::Module(module))
    }

    /// What a name means in a module: an item, an import, a child, or a name of an import with a star.
    fn named(&self, index: usize, name: &str, is_module: bool, seen: &mut Seen) -> Option<Target> {
        let module = &self.modules[index];
        let child = module.children.get(name).copied().map(Target::Module);
        if child.is_some() && is_module {
            return child;
        }
        if module.items.contains(name) {
            return Some(Target::Item(index));
        }
        let key = (index, name.to_owned());
        if seen.contains(&key) {
            return child;
        }
        seen.push(key);
        let import = module.imports.get(name).and_then(|path| self.target(index, path, is_module, seen));
        import.or(child).or_else(|| {
            module.globs.iter().find_map(|path| match self.target(index, path, true, seen)? {
                Target::Module(other) => self.named(other, name, is_module, seen),
                // The path to an enum is a use in itself, whatever its variants are.
                Target::Item(_) | Target::Outside => None,
            })
        })
    }
}

/// The modules and names that a search has been at, because imports may lead back to themselves.
type Seen = Vec<(usize, String)>;

impl Module {
    /// Reads the paths and the imports of an item.
    fn read_code(&mut self, tokens: &[Token<'_>]) {
        let mut place = 0;
        while place < tokens.len() {
            let (word, line) = tokens[place];
            let follows = |mark: &str| place > 0 && tokens[place - 1].0 == mark;
            if word == "use" && tokens.get(place + 1).is_some_and(|&(next, _)| next != "<") {
                place += 1;
                self.read_imports(tokens, &mut place, &[]);
            } else if is_word(word) && !follows(".") && !follows("::") {
                let path = path(tokens, &mut place);
                self.paths.entry(path).or_insert(line);
            } else {
                place += 1;
            }
        }
    }

    /// Reads one tree of a `use`, whose names follow those of `prefix`.
    fn read_imports(&mut self, tokens: &[Token<'_>], place: &mut usize, prefix: &[String]) {
        let Some(&(_, line)) = tokens.get(*place) else { return };
        let mut whole = prefix.to_vec();
        whole.extend(path(tokens, place));
        match tokens.get(*place).map_or("", |&(mark, _)| mark) {
            "{" => {
                *place += 1;
                while tokens.get(*place).is_some_and(|&(mark, _)| mark != "}") {
                    self.read_imports(tokens, place, &whole);
                    *place += usize::from(tokens.get(*place).is_some_and(|&(mark, _)| mark == ","));
                }
                *place += 1;
                return;
            }
            "*" => {
                *place += 1;
                self.globs.push(whole.clone());
            }
            mark => {
                if whole.len() > 1 && whole.last().is_some_and(|last| last == "self") {
                    whole.pop();
                }
                let mut name = whole.last().cloned().unwrap_or_default();
                if mark == "as" {
                    tokens[*place + 1].0.clone_into(&mut name);
                    *place += 2;
                }
                self.imports.insert(name, whole.clone());
            }
        }
        self.paths.entry(whole).or_insert(line);
    }
}

/// The names of a path with `::` between them, and at its end.
fn path(tokens: &[Token<'_>], place: &mut usize) -> Vec<String> {
    let mut names = Vec::new();
    while let Some(&(word, _)) = tokens.get(*place)
        && is_word(word)
    {
        names.push(word.to_owned());
        *place += 1;
        if tokens.get(*place).is_none_or(|&(mark, _)| mark != "::") {
            break;
        }
        *place += 1;
    }
    names
}

/// The name that an item gives to the module.
fn defined_name<'a>(item: &[Token<'a>]) -> Option<&'a str> {
    const KINDS: [&str; 8] = ["fn", "struct", "enum", "trait", "union", "type", "static", "const"];
    let head = item.iter().take_while(|(word, _)| is_word(word) && *word != "impl" && *word != "use");
    let words: Vec<&str> = head.map(|&(word, _)| word).collect();
    // In `const fn name`, the kind is the last of the two.
    let kind = words.iter().rposition(|word| KINDS.contains(word))?;
    words.get(kind + 1).copied()
}

/// The tokens without those that `#[cfg(test)]` stands before.
fn without_tests<'a>(tokens: &[Token<'a>]) -> Vec<Token<'a>> {
    const TEST: [&str; 7] = ["#", "[", "cfg", "(", "test", ")", "]"];
    let mut kept = Vec::new();
    let mut rest = tokens;
    while let Some(&token) = rest.first() {
        if !rest.iter().take(TEST.len()).map(|&(word, _)| word).eq(TEST) {
            kept.push(token);
            rest = &rest[1..];
            continue;
        }
        while rest.first().is_some_and(|&(mark, _)| mark == "#") {
            rest = &rest[attribute_length(rest)..];
        }
        rest = &rest[item_length(rest)..];
    }
    kept
}

/// The number of tokens of `#[...]` or `#![...]`.
fn attribute_length(tokens: &[Token<'_>]) -> usize {
    let open = tokens.iter().position(|&(mark, _)| mark == "[").unwrap_or(0);
    open + group_length(&tokens[open..])
}

/// The number of tokens of `pub` or `pub(...)`.
fn visibility_length(tokens: &[Token<'_>]) -> usize {
    match tokens {
        [("pub", _), ("(", _), ..] => 1 + group_length(&tokens[1..]),
        [("pub", _), ..] => 1,
        _ => 0,
    }
}

/// The number of tokens up to the bracket that closes the first one.
fn group_length(tokens: &[Token<'_>]) -> usize {
    let mut depth = 0;
    let closes = |&(mark, _): &Token<'_>| {
        depth += depth_change(mark);
        depth == 0
    };
    tokens.iter().position(closes).map_or(tokens.len(), |last| last + 1)
}

/// The number of tokens of an item, a statement, a field or a variant: up to its `;`, the `}` of its body, or
/// the `,` behind it.
fn item_length(tokens: &[Token<'_>]) -> usize {
    const WITH_BODY: [&str; 10] =
        ["fn", "struct", "enum", "trait", "union", "impl", "mod", "extern", "macro_rules", "!"];
    let start = visibility_length(tokens);
    let head = tokens[start..].iter().map(|&(word, _)| word).take_while(|word| is_word(word) || *word == "!");
    let head: Vec<&str> = head.collect();
    let has_body = head.iter().any(|word| WITH_BODY.contains(word));
    let is_value = head.first().is_some_and(|word| ["const", "static", "type", "use", "let"].contains(word));
    let mut depth = 0;
    for (place, &(mark, _)) in tokens.iter().enumerate().skip(start) {
        depth += depth_change(mark);
        match mark {
            ";" if depth == 0 => return place + 1,
            "," if depth == 0 && !has_body && !is_value => return place + 1,
            "}" if depth == 0 && has_body => return place + 1,
            _ if depth < 0 => return place,
            _ => {}
        }
    }
    tokens.len()
}

fn depth_change(mark: &str) -> i32 {
    match mark {
        "(" | "[" | "{" => 1,
        ")" | "]" | "}" => -1,
        _ => 0,
    }
}

fn is_word(token: &str) -> bool {
    token.starts_with(|first: char| first.is_alphabetic() || first == '_')
}

/// The words and marks of a file without comments, numbers, lifetimes and texts. A text that is a path, as in
/// `#[serde(with = "crate::name")]`, stays.
fn tokens(text: &str) -> Vec<Token<'_>> {
    let mut tokens = Vec::new();
    let (mut rest, mut line) = (text, 1);
    while let Some(first) = rest.chars().next() {
        let length = literal_length(rest).unwrap_or_else(|| match first {
            _ if first.is_alphanumeric() || first == '_' => word_length(rest),
            _ if rest.starts_with("::") || rest.starts_with("..") => 2,
            _ => first.len_utf8(),
        });
        let (token, after) = rest.split_at(length);
        let is_literal = literal_length(rest).is_some();
        let path = token.trim_matches('"');
        if is_literal && path.contains("::") && path.split("::").all(|name| word_length(name) == name.len()) {
            let names = path.split("::").flat_map(|name| [("::", line), (name, line)]);
            tokens.extend(names.skip(1));
        } else if !is_literal && !first.is_whitespace() && !first.is_numeric() {
            tokens.push((token, line));
        }
        line += token.matches('\n').count();
        rest = after;
    }
    tokens
}

fn word_length(text: &str) -> usize {
    text.find(|letter: char| !letter.is_alphanumeric() && letter != '_').unwrap_or(text.len())
}

/// The length of a comment, a text, a character or a lifetime.
fn literal_length(text: &str) -> Option<usize> {
    let to_end = |found: Option<usize>| found.unwrap_or(text.len());
    if text.starts_with("//") {
        return Some(to_end(text.find('\n')));
    }
    if text.starts_with("/*") {
        return Some(to_end(text.find("*/").map(|end| end + 2)));
    }
    let prefix = ["br", "cr", "r", "b", "c", ""].into_iter().find(|prefix| {
        let after = text.strip_prefix(prefix).unwrap_or_default().trim_start_matches('#');
        after.starts_with('"') && (prefix.ends_with('r') || text[prefix.len()..].starts_with('"'))
    });
    if let Some(prefix) = prefix {
        let quoted = &text[prefix.len()..];
        let quote = quoted.find('"')?;
        let body = &quoted[quote + 1..];
        let end = if prefix.ends_with('r') {
            body.find(&format!("\"{}", "#".repeat(quote)))? + quote
        } else {
            unescaped(body, '"')?
        };
        return Some(prefix.len() + quote + 1 + end + 1);
    }
    let quoted = text.strip_prefix("b'").or_else(|| text.strip_prefix('\''))?;
    let start = text.len() - quoted.len();
    let mut letters = quoted.chars();
    let (first, second) = (letters.next()?, letters.next());
    // A lifetime has no second quote.
    let is_character = first == '\\' || second == Some('\'');
    Some(start + if is_character { unescaped(quoted, '\'')? + 1 } else { word_length(quoted) })
}

/// The place of a quote that no backslash stands before.
fn unescaped(text: &str, quote: char) -> Option<usize> {
    let mut is_escaped = false;
    text.char_indices().find_map(|(place, letter)| {
        let is_end = letter == quote && !is_escaped;
        is_escaped = letter == '\\' && !is_escaped;
        is_end.then_some(place)
    })
}

/// The sets of more than one file each of which uses, directly or not, every other one.
fn circles(count: usize, uses: &[Use]) -> Vec<Vec<usize>> {
    let reached: Vec<BTreeSet<usize>> = (0..count).map(|file| reached(file, uses)).collect();
    let circle = |file: usize| -> Vec<usize> {
        reached[file].iter().copied().filter(|&other| reached[other].contains(&file)).collect()
    };
    // A file on no circle does not reach itself. Each circle is taken from its first file.
    (0..count)
        .map(|file| (file, circle(file)))
        .filter(|(file, all)| all.first() == Some(file))
        .map(|(_, all)| all)
        .collect()
}

/// The files that a file uses, directly or not.
fn reached(file: usize, uses: &[Use]) -> BTreeSet<usize> {
    let mut reached = BTreeSet::new();
    let mut waiting = vec![file];
    while let Some(user) = waiting.pop() {
        let used = uses.iter().filter(|used| used.user == user).map(|used| used.defining);
        waiting.extend(used.filter(|&defining| reached.insert(defining)));
    }
    reached
}

/// The fewest uses in a circle that lead from a file back to it.
fn shortest<'a>(circle: &[usize], uses: &'a [Use]) -> Vec<&'a Use> {
    let way_back = |&start: &usize| -> Vec<&'a Use> {
        let mut ways: VecDeque<Vec<&Use>> = VecDeque::from([Vec::new()]);
        let mut seen = BTreeSet::new();
        while let Some(way) = ways.pop_front() {
            let end = way.last().map_or(start, |used| used.defining);
            if end == start && !way.is_empty() {
                return way;
            }
            for used in uses.iter().filter(|used| used.user == end) {
                if seen.insert(used.defining) {
                    ways.push_back(way.iter().copied().chain([used]).collect());
                }
            }
        }
        Vec::new()
    };
    circle.iter().map(way_back).min_by_key(Vec::len).unwrap_or_default()
}
