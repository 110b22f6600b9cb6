//! Operations of the user's own: their texts in a kernel of ours, and for the interpreter their definitions.

use super::element::Call;
use super::site::{Site, too_large};
use super::view::View;
use schwann_codegen::lang::{Compute, Expr, Function, Reader, Routine, Run, Ty};
use schwann_core::op::custom::{self, Custom, Definition, Form, MOST_RESULTS, Places};
use schwann_core::{Dim, Result};
use std::sync::Arc;

/// The results at one place.
pub(super) fn results(s: &mut Site<'_>, call: &Call<'_>, name: &str, at: &[Expr]) -> Result<Vec<Expr>> {
    let custom = custom::find(name).ok_or_else(|| call.unsupported("nobody registered it in this program"))?;
    let wgsl = custom.wgsl_body().ok_or_else(|| {
        call.unsupported(&format!("`{name}` was registered without a text for GPUs; give it one with `Custom::wgsl`"))
    })?;
    match custom.form() {
        Form::Elements { definition, .. } => {
            let function = function(&custom, wgsl, definition);
            let operands = call.inputs.iter().map(|view| s.load(&view.stretched(call.dims), at));
            let operands = operands.collect::<Result<Vec<_>>>()?;
            let value = s.maker.call(&function, operands);
            Ok(vec![s.maker.name("y", value)])
        }
        Form::Places(places) => {
            let readers = call.inputs.iter().map(|view| reader(s, view)).collect::<Result<Vec<_>>>()?;
            let dims: Vec<&[Dim]> = call.inputs.iter().map(|view| &view.dims[..]).collect();
            let sizes = places.bind(&dims).map_err(|problem| call.unsupported(&problem))?;
            call.dims.iter().try_for_each(|dim| countable(s, dim))?;
            let mut operands: Vec<Expr> = at.iter().map(|at| at.bits(Ty::I32)).collect();
            for dim in &sizes {
                countable(s, dim)?;
                operands.push(s.size(dim)?.bits(Ty::I32));
            }
            let routine = routine(&custom, wgsl, places, at.len(), readers);
            Ok(s.maker.routine(routine, operands))
        }
    }
}

/// Refuses a size that an `i32` cannot count, as places are.
fn countable(s: &Site<'_>, dim: &Dim) -> Result<()> {
    let size = dim.eval(s.bindings)?;
    i32::try_from(size).map(|_| ()).map_err(|_| too_large(size))
}

/// A function as the kernel language has it.
fn function(custom: &Custom, wgsl: &str, definition: &Definition) -> Function {
    let definition = Arc::clone(definition);
    // The interpreter runs the definition, and checks everything around it.
    let run = Run(Arc::new(move |x: &[f32]| {
        let wide: Vec<f64> = x.iter().map(|x| f64::from(*x)).collect();
        definition(&wide) as f32
    }));
    let (wgsl, c) = (wgsl.to_owned(), custom.c_body().map(str::to_owned));
    Function { name: format!("custom_{}", custom.name()), operands: custom.inputs() as u32, wgsl, c, run }
}

/// A kernel that looks around, as the kernel language has it.
fn routine(custom: &Custom, wgsl: &str, places: &Arc<Places>, axes: usize, readers: Vec<Reader>) -> Routine {
    let mut operands: Vec<String> = (0..axes).map(|axis| format!("at{axis}")).collect();
    operands.extend(places.symbols().iter().cloned());
    let (results, places) = (places.results(), Arc::clone(places));
    let run = Compute(Arc::new(move |operands, read, y| {
        let wide: Vec<i64> = operands.iter().map(|n| i64::from(*n)).collect();
        let (at, sizes) = wide.split_at(axes);
        let mut near = |input: usize, places: &[i64]| {
            // Beyond what an `i32` counts is beyond every end.
            let narrow = |place: &i64| (*place).clamp(i32::MIN.into(), i32::MAX.into()) as i32;
            f64::from(read(input, &places.iter().map(narrow).collect::<Vec<i32>>()))
        };
        let mut values = [0.0; MOST_RESULTS];
        places.compute(at, sizes, &mut near, &mut values[..y.len()])?;
        y.iter_mut().zip(values).for_each(|(y, value)| *y = value as f32);
        Ok(())
    }));
    let (wgsl, c) = (wgsl.to_owned(), custom.c_body().map(str::to_owned));
    Routine { name: format!("custom_{}", custom.name()), operands, readers, results: results as u32, wgsl, c, run }
}

/// What reads an input: the element that is nearest to the places along each axis, as an `f32`; 0 if there are no elements.
fn reader(s: &mut Site<'_>, view: &View) -> Result<Reader> {
    view.dims.iter().try_for_each(|dim| countable(s, dim))?;
    let sizes = view.dims.iter().map(|dim| s.size(dim)).collect::<Result<Vec<_>>>()?;
    let params = s.maker.open_reader(sizes.len());
    let value = nearest(s, view, &sizes, &params);
    // The reader is ended in any case, so that an error leaves nothing open.
    let found = value.as_ref().map_or_else(|_| 0.0f32.into(), Expr::clone);
    let reader = s.maker.close_reader(&params, found);
    value.map(|_| reader)
}

fn nearest(s: &mut Site<'_>, view: &View, sizes: &[Expr], params: &[Expr]) -> Result<Expr> {
    let mut places = vec![];
    for (place, size) in params.iter().zip(sizes) {
        let place = place.max(0i32).bits(Ty::U32).min(size - 1u32);
        places.push(s.maker.name("place", place));
    }
    let load = |s: &mut Site<'_>| Ok(s.load(view, &places)?.to(Ty::F32));
    let open: Vec<&Expr> = sizes.iter().filter(|size| size.as_const().is_none_or(|size| size == 0)).collect();
    if open.is_empty() {
        return load(s);
    }
    let found = s.maker.variable("found", 0.0f32);
    let some = open.into_iter().fold(Expr::from(true), |some, size| some.and(size.ne(0u32)));
    s.guarded(some, |s| {
        let value = load(s)?;
        s.maker.set(found, value);
        Ok(())
    })?;
    Ok(s.maker.get(found))
}
