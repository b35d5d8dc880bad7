//! Paths in configurations. A path in a file is relative to the file's folder; in memory it is relative to the working folder.

use std::path::{Component, Path, PathBuf};

use toml::{Table, Value};

use crate::config::Config;
use crate::constraint::config::ParameterConfig;

/// Turns the paths of a configuration file's `table` in `folder` into those of the working folder.
pub(super) fn from_file(table: &mut Table, folder: &Path) {
    let rebase = |value: Option<&mut Value>| {
        if let Some(Value::String(path)) = value {
            *path = joined(folder, Path::new(path.as_str())).display().to_string();
        }
    };
    rebase(table.get_mut("data").and_then(|data| data.get_mut("path")));
    for law in ["constraint", "truth"] {
        let parameters = table.get_mut(law).and_then(|law| law.get_mut("parameters")).and_then(Value::as_table_mut);
        for (_, parameter) in parameters.into_iter().flatten() {
            rebase(parameter.get_mut("file"));
        }
    }
    let methods = table.get_mut("methods").and_then(Value::as_table_mut);
    for (_, method) in methods.into_iter().flatten() {
        if let Value::Table(method) = method {
            from_file(method, folder);
        }
    }
}

impl Config {
    /// The configuration as it is written into a file in `folder`: paths lead from there.
    #[must_use]
    pub fn for_folder(mut self, folder: &Path) -> Self {
        self.map_paths(|path| seen_from(folder, path));
        self
    }

    /// The configuration that was read from a file in `folder`: paths lead from the working folder.
    #[must_use]
    pub(crate) fn of_folder(mut self, folder: &Path) -> Self {
        self.map_paths(|path| joined(folder, path));
        self
    }

    fn map_paths(&mut self, change: impl Fn(&Path) -> PathBuf) {
        let laws = [&mut self.constraint, &mut self.truth].into_iter().flatten();
        let files = laws.flat_map(|law| law.parameters.values_mut()).filter_map(|parameter| match parameter {
            ParameterConfig::File { file } => Some(file),
            _ => None,
        });
        for path in files.chain(&mut self.data.path) {
            *path = change(path);
        }
    }
}

/// `path`, which leads from `folder`, as it leads from the working folder. Absolute paths stay; a relative one is relative
/// still, so that [`seen_from`] is the way back.
fn joined(folder: &Path, path: &Path) -> PathBuf {
    if path.is_absolute() || folder.as_os_str().is_empty() {
        return path.to_path_buf();
    }
    let whole = tidy(&folder.join(path));
    if whole.is_absolute() { way(Path::new("."), &whole) } else { whole }
}

/// `path`, which leads from the working folder, as it leads from `folder`. Absolute paths stay.
pub(crate) fn seen_from(folder: &Path, path: &Path) -> PathBuf {
    if path.is_absolute() { path.to_path_buf() } else { way(folder, path) }
}

/// The way from `folder` to `path`, both as they lead from the working folder.
fn way(folder: &Path, path: &Path) -> PathBuf {
    let absolute = |path: &Path| std::path::absolute(path).map(|path| tidy(&path));
    let (Ok(folder), Ok(whole)) = (absolute(folder), absolute(path)) else { return path.to_path_buf() };
    let shared = folder.components().zip(whole.components()).take_while(|(a, b)| a == b).count();
    let up = folder.components().skip(shared).map(|_| Component::ParentDir);
    let seen: PathBuf = up.chain(whole.components().skip(shared)).collect();
    if seen.as_os_str().is_empty() { ".".into() } else { seen }
}

/// The path without `.` and without `name/..`.
fn tidy(path: &Path) -> PathBuf {
    let mut tidy = PathBuf::new();
    for part in path.components() {
        match part {
            Component::CurDir => {}
            Component::ParentDir if matches!(tidy.components().next_back(), Some(Component::Normal(_))) => {
                tidy.pop();
            }
            part => tidy.push(part),
        }
    }
    if tidy.as_os_str().is_empty() { ".".into() } else { tidy }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_lead_from_the_file_and_back() {
        let joined = |folder: &str, path: &str| super::joined(folder.as_ref(), path.as_ref()).display().to_string();
        assert_eq!(joined("", "data/u"), "data/u");
        assert_eq!(joined("runs/a", "../../data/u"), "data/u");
        assert_eq!(joined("runs/a", "../../../u"), "../u");
        assert_eq!(joined("my", "./u.npy"), "my/u.npy");
        assert_eq!(joined("runs", ".."), ".");
        assert_eq!(joined("my", "/data/u"), "/data/u");
        let seen = |folder: &str, path: &str| super::seen_from(folder.as_ref(), path.as_ref()).display().to_string();
        assert_eq!(seen("runs/a", "data/u"), "../../data/u");
        assert_eq!(seen("", "data/u"), "data/u");
        assert_eq!(seen("data", "data/u"), "u");
        assert_eq!(seen("data/u", "data/u"), ".");
        assert_eq!(seen("runs/a", "/data/u"), "/data/u");
        let absolute = std::path::absolute("runs/a").unwrap();
        let absolute = absolute.to_str().unwrap();
        for (folder, path) in [(absolute, "data/u"), ("runs/a", "data/u"), ("a/b", "a/u"), ("runs", "runs/data")] {
            assert_eq!(joined(folder, &seen(folder, path)), path, "{folder}");
        }
    }

    #[test]
    fn every_path_of_a_file_is_found() {
        let text = "[data]\npath = 'd'\n[truth.parameters]\nK = { file = 'K.npy' }\nc = 1.0\n\
                    [methods.other.data]\npath = 'e'\n[methods.other.constraint.parameters]\nf = { file = '/f.npy' }\n";
        let mut table: Table = toml::from_str(text).unwrap();
        from_file(&mut table, Path::new("sub"));
        let expected = text.replace("'d'", "'sub/d'").replace("'K.npy'", "'sub/K.npy'").replace("'e'", "'sub/e'");
        assert_eq!(table, toml::from_str(&expected).unwrap());
    }
}
