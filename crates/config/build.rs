//! Puts the profiles of `profiles/` into the program: one `(name, text)` each, in the order of their names.

use std::fmt::Write as _;
use std::path::Path;
use std::{env, fs, io};

fn main() -> io::Result<()> {
    let folder = Path::new(&env::var_os("CARGO_MANIFEST_DIR").unwrap_or_default()).join("../../profiles");
    println!("cargo:rerun-if-changed={}", folder.display());
    let mut files: Vec<_> =
        fs::read_dir(&folder)?.map(|entry| entry.map(|e| e.path())).collect::<Result<_, _>>()?;
    files.retain(|file| file.extension().is_some_and(|extension| extension == "yaml"));
    files.sort();
    let mut list = "&[\n".to_owned();
    for file in files {
        let name = file.file_stem().unwrap_or_default().display();
        let _ = writeln!(list, "({:?}, include_str!({:?})),", name.to_string(), file.display().to_string());
    }
    list.push(']');
    fs::write(Path::new(&env::var_os("OUT_DIR").unwrap_or_default()).join("profiles.rs"), list)
}
