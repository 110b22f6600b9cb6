//! NVIDIA's run-time compiler, NVRTC, which is loaded when a kernel has to be compiled, and a folder of what it compiled before.
#![allow(unsafe_code, reason = "calls of a foreign library")]

use cudarc::nvrtc::{result, sys};
use schwann_core::io::write_file;
use sha2::{Digest, Sha256};
use std::ffi::{CString, c_char, c_int};
use std::path::{Path, PathBuf};

/// What the compiler made for a GPU.
pub(super) struct Code {
    /// An image, or text that the driver compiles further. It ends with a zero if it is text.
    pub(super) bytes: Vec<u8>,
    /// Whether it was in the folder.
    pub(super) known: bool,
}

/// Bytes of the stack that the compiler gets.
const STACK: usize = 256 << 20;

/// Bytes of a checksum.
const SUM: usize = 32;

/// Compiles a text for a GPU of this capability. What was compiled before is taken from the folder, if there is one; a folder
/// that cannot be read or written only costs time.
pub(super) fn compile(text: &str, capability: (u32, u32), folder: Option<&Path>) -> Result<Code, String> {
    let place = folder.map(|folder| place(folder, text, capability));
    if let Some(bytes) = place.as_deref().and_then(read) {
        return Ok(Code { bytes, known: true });
    }
    // The compiler goes deep where expressions do, and callers' threads may have little room for that.
    let bytes = std::thread::scope(|scope| {
        let compile = || Compiler::open()?.compile(text, capability);
        let thread = std::thread::Builder::new().stack_size(STACK).spawn_scoped(scope, compile);
        let thread = thread.map_err(|why| format!("no thread to compile in: {why}"))?;
        thread.join().unwrap_or_else(|_| Err("the compiler's thread has panicked".into()))
    })?;
    if let Some(place) = place {
        let sum = Sha256::digest(&bytes);
        let folder = place.parent().map_or(Ok(()), std::fs::create_dir_all);
        let _ = folder.map(|()| write_file(&place, |to| to.write_all(&sum).and_then(|()| to.write_all(&bytes))));
    }
    Ok(Code { bytes, known: false })
}

/// The file for what becomes of a text. A new version of this crate has new files.
fn place(folder: &Path, text: &str, (major, minor): (u32, u32)) -> PathBuf {
    let mut sum = Sha256::new();
    sum.update(format!("{} sm_{major}{minor}\n{text}", env!("CARGO_PKG_VERSION")));
    let name: String = sum.finalize().iter().take(16).map(|byte| format!("{byte:02x}")).collect();
    folder.join(format!("{name}.cubin"))
}

/// A file that is whole.
fn read(place: &Path) -> Option<Vec<u8>> {
    let bytes = std::fs::read(place).ok()?;
    let (sum, code) = bytes.split_at_checked(SUM)?;
    (sum == Sha256::digest(code).as_slice()).then(|| code.to_vec())
}

/// The compiler's library, which is there.
struct Compiler {
    /// The architectures that it knows, such as 90.
    known: Vec<u32>,
}

impl Compiler {
    fn open() -> Result<Compiler, String> {
        // SAFETY: it only tries to load the library. Without this, the first call would panic where there is none.
        if !unsafe { sys::is_culib_present() } {
            let why = "NVRTC, which compiles kernels, was not found (libnvrtc.so). It is part of CUDA's toolkit, and of the Python \
                       package nvidia-cuda-nvrtc; LD_LIBRARY_PATH may say where it is";
            return Err(why.into());
        }
        let mut count: c_int = 0;
        // SAFETY: the library writes one number, and then as many as it said.
        let known = unsafe {
            says(sys::nvrtcGetNumSupportedArchs(&mut count))?;
            let mut known = vec![0 as c_int; count.max(0) as usize];
            says(sys::nvrtcGetSupportedArchs(known.as_mut_ptr()))?;
            known
        };
        Ok(Compiler { known: known.into_iter().filter_map(|arch| u32::try_from(arch).ok()).collect() })
    }

    fn compile(&self, text: &str, (major, minor): (u32, u32)) -> Result<Vec<u8>, String> {
        let arch = major * 10 + minor;
        // A GPU that is newer than the compiler gets text, which its driver can compile.
        let exact = self.known.contains(&arch);
        let least =
            || format!("it knows GPUs from sm_{} on, and this is sm_{arch}", self.known.iter().min().unwrap_or(&0));
        let best = self.known.iter().copied().filter(|known| *known <= arch).max().ok_or_else(least)?;
        let target = if exact { format!("sm_{arch}") } else { format!("compute_{best}") };
        let program = Program::new(text)?;
        let options = [format!("--gpu-architecture={target}"), "--std=c++17".into(), "--restrict".into()];
        // SAFETY: the program exists.
        let done = unsafe { result::compile_program(program.0, &options) };
        if let Err(why) = done {
            // SAFETY: as above.
            let said = unsafe { result::get_program_log(program.0) }.unwrap_or_default();
            let said: Vec<u8> = said.into_iter().map(|c| c as u8).take_while(|c| *c != 0).collect();
            return Err(format!("{:?}: {}", why.0, String::from_utf8_lossy(&said).trim()));
        }
        // SAFETY: the program is compiled; the library writes as many bytes as it said.
        unsafe {
            if !exact {
                let text = result::get_ptx(program.0).map_err(|why| format!("{:?}", why.0))?;
                return Ok(text.into_iter().map(|c| c as u8).collect());
            }
            let mut size = 0usize;
            says(sys::nvrtcGetCUBINSize(program.0, &mut size))?;
            let mut code = vec![0u8; size];
            says(sys::nvrtcGetCUBIN(program.0, code.as_mut_ptr().cast::<c_char>()))?;
            Ok(code)
        }
    }
}

fn says(result: sys::nvrtcResult) -> Result<(), String> {
    result.result().map_err(|why| format!("{:?}", why.0))
}

/// A text given to the compiler.
struct Program(sys::nvrtcProgram);

impl Program {
    fn new(text: &str) -> Result<Program, String> {
        let text = CString::new(text).map_err(|_| "the text has a zero in it".to_owned())?;
        // The compiler makes a copy of the text.
        result::create_program(&text, None).map(Program).map_err(|why| format!("{:?}", why.0))
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        // SAFETY: it was created by `new`.
        let _ = unsafe { result::destroy_program(self.0) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_that_is_not_whole_is_not_taken() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("a.cubin");
        assert_eq!(read(&file), None);
        let whole = [Sha256::digest(b"code").as_slice(), b"code"].concat();
        std::fs::write(&file, &whole).unwrap();
        assert_eq!(read(&file), Some(b"code".to_vec()));
        for end in [0, SUM - 1, SUM, whole.len() - 1] {
            std::fs::write(&file, &whole[..end]).unwrap();
            assert_eq!(read(&file), None);
        }
    }

    #[test]
    fn another_text_or_gpu_has_another_file() {
        let place = |text, capability| place(Path::new("f"), text, capability);
        assert_eq!(place("a", (9, 0)), place("a", (9, 0)));
        assert_ne!(place("a", (9, 0)), place("b", (9, 0)));
        assert_ne!(place("a", (9, 0)), place("a", (8, 7)));
    }
}
