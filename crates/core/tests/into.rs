//! Runs on memory of the caller's: what is read where it lies, what is written where it is wanted, and what is refused.

use schwann_core::backend::cpu::Cpu;
use schwann_core::backend::reference::Reference;
use schwann_core::backend::{Backend, Bound, Canceller, Inputs, Observer, Prepared, Sizes, Source, Stream};
use schwann_core::pass::PassOptions;
use schwann_core::{Bindings, CompileOptions, DType, Error, Graph, GraphBuilder, Program, Result, Tensor, View, shape};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

/// h ← h + x, y = 2·h: a state, and an output that is none.
fn sums() -> Graph {
    let build = || -> Result<Graph> {
        let mut b = GraphBuilder::new();
        let x = b.input("x", DType::F32, shape!["B", 3])?;
        let h = b.input("h0", DType::F32, shape!["B", 3])?;
        let next = b.add(h, x)?;
        let y = b.add(next, next)?;
        b.output("y", y)?;
        b.output("hn", next)?;
        b.state("h0", "hn")?;
        b.build()
    };
    build().unwrap()
}

fn bytes(numbers: &[f32]) -> &[u8] {
    bytemuck::cast_slice(numbers)
}

#[test]
fn a_run_into_the_callers_memory_gives_the_numbers_of_a_plain_one() {
    let backends: [Arc<dyn Backend>; 2] = [Arc::new(Cpu::new(2).unwrap()), Arc::new(Reference)];
    for backend in backends {
        let program = Program::compile_for(&sums(), &*backend, &CompileOptions::default()).unwrap();
        let (mut plain, mut into) = (program.session(), program.session());
        let x: Vec<f32> = (0..6).map(|i| i as f32).collect();
        let (mut y, mut hn) = ([0f32; 6], [0f32; 6]);
        for _ in 0..3 {
            let wanted = plain.run(&[("x", &Tensor::new(&[2, 3], &x).unwrap())]).unwrap().to_vec();
            let view = View::new(DType::F32, &[2, 3], bytes(&x)).unwrap();
            let mut places = [Some(bytemuck::cast_slice_mut(&mut y)), Some(bytemuck::cast_slice_mut(&mut hn))];
            into.run_into(&[("x", view)], &mut places).unwrap();
            assert_eq!([&y[..], &hn[..]], [wanted[0].values::<f32>().unwrap(), wanted[1].values::<f32>().unwrap()]);
        }
        assert_eq!(into.state("h0").unwrap().values::<f32>().unwrap(), hn);
    }
}

#[test]
fn what_was_written_elsewhere_is_not_told_as_a_result() {
    let program = Program::compile(&sums(), &CompileOptions::default()).unwrap();
    let mut session = program.session();
    let x = [1f32; 3];
    let view = View::new(DType::F32, &[1, 3], bytes(&x)).unwrap();
    let mut y = [0f32; 3];
    session.run_into(&[("x", view)], &mut [Some(bytemuck::cast_slice_mut(&mut y))]).unwrap();
    assert_eq!(y, [2.0; 3]);
    let problem = session.output("y").unwrap_err().to_string();
    assert!(problem.contains("memory of the caller's"), "{problem}");
    assert!(session.outputs().is_err());
    assert_eq!(session.output("hn").unwrap().values::<f32>().unwrap(), [1.0; 3]);
    session.run_into(&[("x", view)], &mut []).unwrap();
    assert_eq!(session.output("y").unwrap().values::<f32>().unwrap(), [4.0; 3]);
}

#[test]
fn sizes_are_known_before_the_run_and_change_nothing() {
    let program = Program::compile(&sums(), &CompileOptions::default()).unwrap();
    let mut session = program.session();
    let x = [1f32; 12];
    let four = View::new(DType::F32, &[4, 3], bytes(&x)).unwrap();
    assert_eq!(session.sizes_for(&[("x", four)]).unwrap().outputs[0], (DType::F32, vec![4, 3]));
    assert!(session.outputs().is_err(), "there was no run");
    session.run_into(&[("x", four)], &mut []).unwrap();
    session.sizes_for(&[("x", four)]).unwrap();
    assert_eq!(session.output("y").unwrap().values::<f32>().unwrap(), [2.0; 12]);
}

#[test]
fn memory_of_another_size_or_place_is_refused_with_what_was_expected() {
    let program = Program::compile(&sums(), &CompileOptions::default()).unwrap();
    let mut session = program.session();
    let x = [1f32; 6];
    let view = View::new(DType::F32, &[2, 3], bytes(&x)).unwrap();
    let mut refused = |place: &mut [u8]| session.run_into(&[("x", view)], &mut [Some(place)]).unwrap_err().to_string();
    let mut room = [0f32; 8];
    let room: &mut [u8] = bytemuck::cast_slice_mut(&mut room);
    let said = refused(&mut room[..20]);
    assert!(said.contains("24 bytes") && said.contains("f32[2, 3]") && said.contains("`y`"), "{said}");
    let said = refused(&mut room[1..25]);
    assert!(said.contains("aligned"), "{said}");
    let mut three = [None, None, None];
    assert!(session.run_into(&[("x", view)], &mut three).is_err());
    assert!(View::new(DType::F32, &[2, 3], &bytes(&x)[..20]).is_err());
    assert!(View::new(DType::F32, &[1], &bytes(&x)[1..5]).is_err());
    assert!(View::new(DType::Bool, &[1], &[2]).is_err());
    assert!(View::new(DType::F32, &[usize::MAX, 2], &[]).is_err());
    let wrong = View::new(DType::I8, &[2], &[1, 2]).unwrap();
    let said = session.run_into(&[("x", wrong)], &mut []).unwrap_err().to_string();
    assert!(said.contains("f32[B, 3]") && said.contains("i8[2]"), "{said}");
}

/// A backend that notes where inputs and outputs of its runs lie, and computes nothing.
#[derive(Clone, Default)]
struct Notes {
    read: Arc<Mutex<Vec<usize>>>,
    wrote: Arc<AtomicUsize>,
    cpu: Option<Cpu>,
}

impl Backend for Notes {
    fn name(&self) -> String {
        "notes".into()
    }
    fn pass_options(&self, wanted: &PassOptions) -> PassOptions {
        wanted.clone()
    }
    fn prepare(&self, graph: Arc<Graph>) -> Result<Box<dyn Prepared>> {
        let inner = self.cpu.clone().unwrap_or(Cpu::new(1)?).prepare(graph)?;
        Ok(Box::new(NotesPrepared { notes: self.clone(), inner }))
    }
}

struct NotesPrepared {
    notes: Notes,
    inner: Box<dyn Prepared>,
}

impl Prepared for NotesPrepared {
    fn bind(&self, bindings: &Bindings) -> Result<Arc<dyn Bound>> {
        self.inner.bind(bindings)
    }
    fn stream(&self) -> Result<Box<dyn Stream>> {
        Ok(Box::new(NotesStream { notes: self.notes.clone(), inner: self.inner.stream()? }))
    }
}

struct NotesStream {
    notes: Notes,
    inner: Box<dyn Stream>,
}

impl Stream for NotesStream {
    fn fit(&mut self, bound: Arc<dyn Bound>, sizes: &Sizes) -> Result<()> {
        self.inner.fit(bound, sizes)
    }
    fn release(&mut self) {
        self.inner.release();
    }
    fn bytes(&self) -> usize {
        self.inner.bytes()
    }
    fn upload(&mut self, input: usize, value: &Tensor) -> Result<()> {
        self.inner.upload(input, value)
    }
    fn zero(&mut self, state: usize) -> Result<()> {
        self.inner.zero(state)
    }
    fn state(&self, state: usize) -> Result<&Tensor> {
        self.inner.state(state)
    }
    fn submit(&mut self, inputs: &dyn Inputs, watched: bool, cancel: &Canceller) -> Result<()> {
        self.inner.submit(inputs, watched, cancel)
    }
    fn wait(&mut self, observer: Option<&mut dyn Observer>) -> Result<()> {
        self.inner.wait(observer)
    }
    fn outputs(&self) -> Result<&[Tensor]> {
        self.inner.outputs()
    }
    fn run_into(
        &mut self,
        inputs: &dyn Inputs,
        into: &mut [Option<&mut [u8]>],
        observer: Option<&mut dyn Observer>,
        cancel: &Canceller,
    ) -> Result<()> {
        let read = (0..2).filter_map(|i| match inputs.source(i) {
            Source::Host(bytes) => Some(bytes.as_ptr().addr()),
            Source::Kept => None,
        });
        self.notes.read.lock().unwrap().extend(read);
        let place = into.first().and_then(|p| p.as_ref()).map_or(0, |p| p.as_ptr().addr());
        self.notes.wrote.store(place, Ordering::Relaxed);
        self.inner.run_into(inputs, into, observer, cancel)
    }
}

#[test]
fn the_backend_sees_the_callers_own_addresses() {
    let notes = Notes::default();
    let program = Program::compile_for(&sums(), &notes, &CompileOptions::default()).unwrap();
    let mut session = program.session();
    let x = [1f32; 6];
    let mut y = [0f32; 6];
    let (from, to) = (x.as_ptr().addr(), y.as_mut_ptr().addr());
    let view = View::new(DType::F32, &[2, 3], bytes(&x)).unwrap();
    session.run_into(&[("x", view)], &mut [Some(bytemuck::cast_slice_mut(&mut y))]).unwrap();
    assert_eq!(*notes.read.lock().unwrap(), [from]);
    assert_eq!(notes.wrote.load(Ordering::Relaxed), to);
    assert_eq!(y, [2.0; 6]);
}

#[test]
fn a_cancelled_run_leaves_the_state_as_it_was() {
    let program = Program::compile(&sums(), &CompileOptions::default()).unwrap();
    let mut session = program.session();
    let x = [1f32; 3];
    let view = View::new(DType::F32, &[1, 3], bytes(&x)).unwrap();
    let mut y = [0f32; 3];
    session.run_into(&[("x", view)], &mut [Some(bytemuck::cast_slice_mut(&mut y))]).unwrap();
    session.canceller().cancel();
    let outcome = session.run_into(&[("x", view)], &mut [Some(bytemuck::cast_slice_mut(&mut y))]);
    assert!(matches!(outcome, Err(Error::Cancelled)));
    session.run_into(&[("x", view)], &mut [Some(bytemuck::cast_slice_mut(&mut y))]).unwrap();
    assert_eq!(y, [4.0; 3]);
}
