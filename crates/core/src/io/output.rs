//! All files are written by this module.
//!
//! A file is written whole or not at all: the content goes to a new file beside the old one, is synced to disk, and
//! only then gets the name. After a crash or on a full disk the old file is still there, and a program that has the old
//! file mapped keeps its content. Mode and owner of the old file stay (its access lists and other hard links do not:
//! the new content is a new file). A symbolic link is written through: the file that it leads to is replaced, the link
//! stays. Pipes, terminals and other character devices cannot be replaced and are written to as they are; directories,
//! block devices and sockets are refused.
//!
//! The new file is locked while it is written. One that is not locked belongs to a run that was killed, and the next
//! write of the same name removes it. A lock is more reliable than a process id, which may already belong to another
//! process.

use crate::error::{Error, Result};
use std::ffi::{OsStr, OsString};
use std::fs::{File, FileType, Metadata, OpenOptions, TryLockError};
use std::io::{self, BufWriter, Write};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

/// A longer chain of symbolic links is an error; systems have the same limit.
const MOST_LINKS: usize = 40;
/// How many bytes of the file's name the temporary file's name contains, so that it does not become too long.
const MOST_NAME_BYTES: usize = 180;
const MARK: &str = ".schwann-";
const END: &str = ".tmp";

/// Writes a file whole or not at all, or to a pipe or device as it is; the module says how.
pub fn write_file(path: impl AsRef<Path>, fill: impl FnOnce(&mut dyn Write) -> io::Result<()>) -> Result<()> {
    let path = path.as_ref();
    let written = match Place::of(path) {
        Ok(Place::Stream(file)) => {
            let mut out = BufWriter::new(file);
            fill(&mut out).and_then(|()| out.flush())
        }
        Ok(Place::File(target, old)) => replace(&target, old.as_ref(), fill).map_err(|e| {
            let after = if old.is_some() { "the file is as it was" } else { "no file was made" };
            io::Error::new(e.kind(), format!("{e}; {after}"))
        }),
        Err(e) => Err(e),
    };
    written.map_err(|source| Error::Io { path: path.to_owned(), source })
}

/// Writes these bytes with [`write_file`].
pub fn write_bytes(path: impl AsRef<Path>, bytes: &[u8]) -> Result<()> {
    write_file(path, |out| out.write_all(bytes))
}

/// Writes text with [`write_file`]. Text has no hidden characters (see [`show`](crate::show)), whatever names are in it.
pub fn write_text(path: impl AsRef<Path>, text: &str) -> Result<()> {
    write_bytes(path, crate::show::lines(text).as_bytes())
}

/// Whether two paths lead to one file on disk, through links or by two names. Files that do not exist yet are the same
/// if they have the same name in the same directory. Pipes and devices are never the same, since writing to them
/// replaces nothing.
pub fn same_file(a: impl AsRef<Path>, b: impl AsRef<Path>) -> bool {
    match (identity(a.as_ref()), identity(b.as_ref())) {
        (Some(a), Some(b)) => a == b,
        _ => false,
    }
}

/// Identifies a regular file, also one that does not exist yet.
#[derive(PartialEq, Eq)]
enum Identity {
    #[cfg(unix)]
    Inode(u64, u64),
    Path(PathBuf),
}

fn identity(path: &Path) -> Option<Identity> {
    let Ok(about) = std::fs::metadata(path) else {
        let Ok(Place::File(target, _)) = Place::of(path) else { return None };
        let name = target.file_name()?;
        return Some(Identity::Path(directory(&target).canonicalize().ok()?.join(name)));
    };
    if !about.is_file() {
        return None;
    }
    #[cfg(unix)]
    {
        use std::os::unix::fs::MetadataExt;
        Some(Identity::Inode(about.dev(), about.ino()))
    }
    #[cfg(not(unix))]
    path.canonicalize().ok().map(Identity::Path)
}

/// Where bytes for a path go.
enum Place {
    /// A file to replace, with what is known of the one that is there, or to make.
    File(PathBuf, Option<Metadata>),
    /// A pipe or a device, opened.
    Stream(File),
}

impl Place {
    fn of(path: &Path) -> io::Result<Place> {
        let mut path = path.to_owned();
        for _ in 0..MOST_LINKS {
            let slash = path.as_os_str().as_encoded_bytes().last().is_some_and(|&b| b == b'/');
            if path.file_name().is_none() || slash {
                return Err(io::Error::new(io::ErrorKind::IsADirectory, "that names a directory; expected a file"));
            }
            if let Some(number) = descriptor(&path) {
                return already_open(&path, number).map(Place::Stream);
            }
            let about = match std::fs::symlink_metadata(&path) {
                Ok(about) => about,
                Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(Place::File(path, None)),
                Err(e) => return Err(e),
            };
            if about.is_symlink() {
                // A relative link counts from the directory that the link is in.
                path = directory(&path).join(std::fs::read_link(&path)?);
                continue;
            }
            if about.is_file() {
                return Ok(Place::File(path, Some(about)));
            }
            refuse(about.file_type())?;
            return OpenOptions::new().write(true).open(&path).map(Place::Stream);
        }
        let problem = format!("symbolic links lead in a circle, or through more than {MOST_LINKS} others");
        Err(io::Error::new(io::ErrorKind::InvalidInput, problem))
    }
}

/// Refuses what can neither be replaced nor be streamed to.
fn refuse(kind: FileType) -> io::Result<()> {
    let is = if kind.is_dir() {
        "it is a directory"
    } else {
        #[cfg(unix)]
        {
            use std::os::unix::fs::FileTypeExt;
            if kind.is_fifo() || kind.is_char_device() {
                return Ok(());
            }
            if kind.is_block_device() {
                "it is a block device, which holds file systems"
            } else if kind.is_socket() {
                "it is a socket"
            } else {
                "it is no file"
            }
        }
        #[cfg(not(unix))]
        "it is no file"
    };
    let problem = format!("{is}; expected a file, a pipe or a character device");
    Err(io::Error::new(io::ErrorKind::InvalidInput, problem))
}

/// The number of this process' descriptor that a path stands for, as `/dev/fd/3` and what `/dev/stdout` leads to.
fn descriptor(path: &Path) -> Option<u32> {
    let number = path.file_name()?.to_str()?.parse().ok()?;
    let place = directory(path).canonicalize().ok()?;
    let own = Path::new("/proc").join(std::process::id().to_string());
    let here = place == Path::new("/dev/fd") || (place.starts_with(own) && place.file_name() == Some(OsStr::new("fd")));
    here.then_some(number)
}

/// A descriptor that was opened for this process is written to directly, whatever it is: a file that the shell opened
/// must not be replaced. The standard descriptors share their position with everything else that is written there.
fn already_open(path: &Path, number: u32) -> io::Result<File> {
    #[cfg(unix)]
    {
        use std::os::fd::AsFd;
        match number {
            1 => {
                io::stdout().flush()?;
                return Ok(io::stdout().as_fd().try_clone_to_owned()?.into());
            }
            2 => return Ok(io::stderr().as_fd().try_clone_to_owned()?.into()),
            _ => {}
        }
    }
    let about = std::fs::metadata(path)?;
    if !about.is_file() {
        refuse(about.file_type())?;
    }
    OpenOptions::new().append(true).open(path)
}

/// The directory that a path's last name is in.
fn directory(path: &Path) -> &Path {
    path.parent().filter(|p| !p.as_os_str().is_empty()).unwrap_or(Path::new("."))
}

fn replace(
    target: &Path,
    old: Option<&Metadata>,
    fill: impl FnOnce(&mut dyn Write) -> io::Result<()>,
) -> io::Result<()> {
    let place = directory(target);
    // Renaming only needs permission for the directory; this checks that the file itself may be written.
    if old.is_some() {
        OpenOptions::new().write(true).open(target)?;
    }
    let name = target.file_name().unwrap_or_default();
    sweep(place, name);
    let (temporary, file) = create(place, name, old)?;
    let mut unfinished = Unfinished(Some(&temporary));
    if let Some(old) = old {
        keep(&file, old)?;
    }
    let mut out = BufWriter::new(file);
    fill(&mut out)?;
    let file = out.into_inner().map_err(io::IntoInnerError::into_error)?;
    // On macOS this is F_FULLFSYNC (the standard library sees to it), which waits for the disk's own cache too.
    file.sync_all()?;
    std::fs::rename(&temporary, target)?;
    unfinished.0 = None;
    // The new name is on disk once the directory is synced; on systems where directories cannot be opened this is left
    // out.
    if let Ok(place) = File::open(place) {
        let _ = place.sync_all();
    }
    Ok(())
}

/// Gives a new file the mode and, where that is allowed, the owner of the old one.
#[cfg(unix)]
fn keep(file: &File, old: &Metadata) -> io::Result<()> {
    use std::os::unix::fs::{MetadataExt, PermissionsExt, fchown};
    let new = file.metadata()?;
    if (new.uid(), new.gid()) != (old.uid(), old.gid()) && fchown(file, Some(old.uid()), Some(old.gid())).is_err() {
        // Only the superuser may give files away; a group that one is in can be kept.
        let _ = fchown(file, None, Some(old.gid()));
    }
    file.set_permissions(std::fs::Permissions::from_mode(old.mode() & 0o7777))
}
#[cfg(not(unix))]
fn keep(file: &File, old: &Metadata) -> io::Result<()> {
    file.set_permissions(old.permissions())
}

/// What the names of temporary files for `name` start with.
fn start(name: &OsStr) -> OsString {
    let mut start = OsString::from(".");
    match name.to_str() {
        Some(text) => start.push(&text[..text.floor_char_boundary(MOST_NAME_BYTES)]),
        None if name.len() <= MOST_NAME_BYTES => start.push(name),
        // A long name that is not UTF-8 cannot be shortened safely.
        None => start.push("file"),
    }
    start.push(MARK);
    start
}

/// Makes and locks a new file beside the old one, which no other user may read before it has the old one's mode.
fn create(place: &Path, name: &OsStr, old: Option<&Metadata>) -> io::Result<(PathBuf, File)> {
    static NEXT: AtomicU64 = AtomicU64::new(0);
    let mut options = OpenOptions::new();
    options.write(true).create_new(true);
    #[cfg(unix)]
    if old.is_some() {
        std::os::unix::fs::OpenOptionsExt::mode(&mut options, 0o600);
    }
    #[cfg(not(unix))]
    let _ = old;
    loop {
        let mut own = start(name);
        own.push(format!("{}-{}{END}", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed)));
        let path = place.join(own);
        let file = match options.open(&path) {
            Ok(file) => file,
            // Left by a process that had this one's id.
            Err(e) if e.kind() == io::ErrorKind::AlreadyExists => continue,
            Err(e) => {
                let why = format!("{e} (a new file in {} is to replace it)", place.display());
                return Err(io::Error::new(e.kind(), why));
            }
        };
        match file.try_lock() {
            // Another process has locked it to remove it as a leftover.
            Err(TryLockError::WouldBlock) => continue,
            // On a file system without locks, leftovers cannot be locked either, and are never removed.
            Ok(()) | Err(TryLockError::Error(_)) => {}
        }
        // Or it was removed just before it was locked.
        if path.symlink_metadata().is_ok() {
            return Ok((path, file));
        }
    }
}

/// Removes temporary files of this name that killed runs left.
fn sweep(place: &Path, name: &OsStr) {
    let start = start(name);
    let numbers = |rest: &[u8]| {
        let rest = rest.strip_suffix(END.as_bytes()).unwrap_or_default();
        let mut parts = rest.split(|&b| b == b'-');
        let digits = |part: Option<&[u8]>| part.is_some_and(|p| !p.is_empty() && p.iter().all(u8::is_ascii_digit));
        digits(parts.next()) && digits(parts.next()) && parts.next().is_none()
    };
    for entry in std::fs::read_dir(place).into_iter().flatten().flatten() {
        let found = entry.file_name();
        let ours = found.as_encoded_bytes().strip_prefix(start.as_encoded_bytes()).is_some_and(numbers);
        if !ours || !entry.file_type().is_ok_and(|kind| kind.is_file()) {
            continue;
        }
        let path = entry.path();
        if let Ok(file) = File::open(&path)
            && file.try_lock().is_ok()
        {
            let _ = std::fs::remove_file(&path);
        }
    }
}

/// A file that is removed unless it was finished.
struct Unfinished<'a>(Option<&'a Path>);
impl Drop for Unfinished<'_> {
    fn drop(&mut self) {
        if let Some(path) = self.0 {
            let _ = std::fs::remove_file(path);
        }
    }
}
