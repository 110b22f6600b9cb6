//! The kernel of a loop whose values lie in tiles.

use super::pack::TEAM;
use super::{Columns, TILE, Tiled};
use crate::device::{Limits, Products};
use crate::lower::Lowering;
use crate::lower::site::{Functions, Site, word};
use crate::lower::view::{Home, View};
use crate::program::Walk;
use schwann_codegen::lang::{Expr, Memory, Ty, Var};
use schwann_core::op::Scan;
use schwann_core::pass::rows::{Independent, ROWS};
use schwann_core::plan::{Loop, RowsLimit, Workgroup};
use schwann_core::{Dim, Error, Op, Result, Value};
use std::collections::HashMap;
use std::rc::Rc;

/// Rows of a tile.
const TILE_ROWS: u32 = 16;
/// Fewer rows than this for each core are left to other kernels.
const ROWS_LEAST: usize = 8;
/// Teams of a workgroup: with 8, each thread may have all the registers that there are; with 16 half of them.
const TEAMS_USUAL: u32 = 8;
const TEAMS_MOST: u32 = 16;
/// Registers of a thread that values may take; it has 255, and others are for sums, factors and addresses.
const VALUE_REGISTERS: u32 = 176;
/// The same where a workgroup has more teams, and a thread 127 registers.
const VALUE_REGISTERS_OF_MANY: u32 = 72;

/// How many rows a team takes, in tiles, and how many teams are a workgroup.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Shape {
    pub(super) tiles: u32,
    teams: u32,
}

impl Shape {
    fn rows(self) -> u32 {
        self.tiles * self.teams * TILE_ROWS
    }

    /// The first of these shapes that fits and leaves a workgroup for each core. Measured on an H200, differences are small: with
    /// numbers that are split, many teams are 1 to 7% faster than teams of more rows, and with halves up to 20% slower.
    fn of(tiled: &Tiled, limits: &Limits, batch: usize) -> Option<Shape> {
        let cores = limits.parallel_groups as usize;
        let fits = |shape: &Shape| {
            let registers = if shape.teams > TEAMS_USUAL { VALUE_REGISTERS_OF_MANY } else { VALUE_REGISTERS };
            tiled.live * 4 * shape.tiles <= registers && shape.teams * TEAM <= limits.threads
        };
        let many: &[(u32, u32)] = if limits.products == Products::Split { &[(1, TEAMS_MOST)] } else { &[] };
        let tries = many.iter().chain(&[(2, TEAMS_USUAL), (2, 4), (1, TEAMS_USUAL), (1, 4), (1, 2), (1, 1)]);
        let mut shapes = tries.map(|&(tiles, teams)| Shape { tiles, teams }).filter(fits);
        let busy = |shape: &Shape| batch.div_ceil(shape.rows() as usize) >= cores;
        let least = Shape { tiles: 1, teams: 1 };
        shapes.find(busy).or_else(|| (batch >= ROWS_LEAST * cores && fits(&least)).then_some(least))
    }
}

/// A value in tiles: for each tile, for each 16 rows, a thread's elements.
pub(super) type Tiles = Rc<Vec<Vec<[Expr; 4]>>>;

/// A first factor: for each 16 columns, for each 16 rows, a thread's words, of high parts and of low ones.
pub(super) type Packed = Rc<Vec<Vec<[[Expr; 4]; 2]>>>;

/// An element of a value.
struct Place {
    /// Its row, or the last one where it is beyond that.
    row: Expr,
    /// Its column, or the tile's last one where it is none.
    column: Expr,
    /// Whether it really is an element, and so this thread's alone.
    own: Expr,
}

/// What a team does, while the kernel is made.
pub(super) struct Team<'b> {
    pub(super) body: &'b Independent,
    pub(super) tiled: &'b Tiled,
    pub(super) shape: Shape,
    pub(super) products: Products,
    /// The rows of a thread, in pairs, and the same no further than the last row.
    pub(super) rows: Vec<[Expr; 2]>,
    pub(super) within: Vec<[Expr; 2]>,
    /// Whether they are rows at all.
    pub(super) inside: Vec<[Expr; 2]>,
    /// The columns of a thread in a tile.
    pub(super) columns: [Expr; 2],
    /// Where a thread's words of a matrix begin, by the number of the product.
    pub(super) matrices: HashMap<u32, (Memory, Expr)>,
    pub(super) held: HashMap<Value, Tiles>,
    pub(super) packed: HashMap<Value, Packed>,
    /// Values that are the same for all rows.
    pub(super) shared: HashMap<Value, View>,
}

impl Lowering<'_> {
    /// A loop in tiles; none where another kernel serves it better.
    #[expect(clippy::too_many_arguments, reason = "a node, where it is, and what it reads and writes")]
    pub(in crate::lower::scan) fn in_tiles(
        &mut self,
        path: &[u32],
        scan: &Scan,
        body: &Independent,
        operands: &[View],
        outs: &[View],
        place: &[usize],
        steps: usize,
    ) -> Result<Option<Box<Loop>>> {
        let constants = self.constants;
        let Some(tiled) = constants.tiled(path) else { return Ok(None) };
        let first_sequence = &operands[scan.states];
        let batch_dim = first_sequence.dims[1 - scan.axis].clone();
        let batch = batch_dim.eval(self.bindings)?;
        if steps == 0 {
            return Ok(None);
        }
        let Some(shape) = Shape::of(tiled, self.limits, batch) else {
            return Ok(None);
        };
        let graph = &body.body;
        let words: u32 = tiled.products.values().map(|product| product.matrix.words()).sum();
        let resident = u64::from(words) * 4 <= u64::from(self.limits.shared_bytes);
        let finals = self.finals(scan, outs)?;
        let mut site = Site::new("tiles", shape.teams * TEAM, self);
        if let (Products::Halves(_), Functions::Fast) = (self.limits.products, site.functions) {
            // What follows is rounded to 16 bits in any case.
            site.functions = Functions::Rough;
        }
        site.fixed.insert(Dim::symbol(ROWS), shape.rows());
        let shared = resident.then(|| site.maker.shared("matrices", Ty::U32, words));
        let (from_number, from) = (site.args.len(), site.number("from", 0));
        let (to_number, to) = (site.args.len(), site.number("to", word(steps)?));
        let all_steps = site.size(&first_sequence.dims[scan.axis])?;
        let rows_in_all = site.size(&batch_dim)?;
        let (places, carry) = site.state_places(scan, operands, &finals)?;
        let blocks = batch.div_ceil(shape.rows() as usize);
        let groups = self.a_group_each(&mut site, blocks, |s, number| {
            let mut team = Team::new(s, body, tiled, shape, self.limits.products, &number, &rows_in_all);
            team.matrices(s, shared)?;
            let inputs: Vec<Value> = graph.inputs().map(|(_, v)| v).collect();
            let split = scan.states + scan.sequences;
            for (value, view) in inputs.iter().zip(operands).skip(split) {
                team.shared.insert(*value, view.clone());
            }
            for (id, node) in graph.nodes().iter().enumerate() {
                if matches!(node.op, Op::Const(_)) {
                    let view = constants.view(path, id as u32, node)?;
                    team.shared.insert(Value { node: id as u32, slot: 0 }, view);
                }
            }
            let mut states = vec![];
            for ((value, state), (read_at, write_at)) in inputs.iter().zip(operands).zip(&places) {
                states.push(team.first_state(s, *value, state, &from, read_at.as_ref(), write_at)?);
            }
            // What the sequences have for a step is read one step ahead, while there is something else to do.
            let sequences: Vec<(Value, &View)> =
                inputs.iter().copied().zip(operands).skip(scan.states).take(scan.sequences).collect();
            let sequences: Vec<_> = sequences.into_iter().filter(|(v, _)| tiled.columns.contains_key(v)).collect();
            let time_of = |s: &mut Site<'_>, t: Expr| {
                let t = s.maker.name("step", t);
                s.maker.name("time", if scan.reverse { &all_steps - 1u32 - t } else { t })
            };
            let mut ahead = vec![];
            let first = time_of(s, from.clone());
            for (value, view) in &sequences {
                ahead.push(team.variables(s, *value, |s, at| element(s, scan, view, at, &first))?);
            }
            s.counted("t", &from, &to, |s, t| {
                for (value, variables) in inputs.iter().zip(&states) {
                    let now = team.now(s, variables);
                    team.held.insert(*value, now);
                }
                let next = time_of(s, (&t + 1u32).min(&to - 1u32));
                for ((value, view), variables) in sequences.iter().zip(&ahead) {
                    let now = team.now(s, variables);
                    team.held.insert(*value, now);
                    team.assign(s, *value, variables, |s, at| element(s, scan, view, at, &next))?;
                }
                for (id, node) in graph.nodes().iter().enumerate() {
                    team.node(s, id as u32, node)?;
                }
                let time = time_of(s, t);
                let outputs: Vec<Value> = graph.outputs().iter().map(|output| output.value).collect();
                for (value, out) in outputs.iter().zip(outs).skip(scan.states) {
                    team.store(s, *value, |s, row, column, result| {
                        let mut at = vec![row.clone(), column.clone()];
                        at.insert(scan.axis, time.clone());
                        s.store(out, &at, result)
                    })?;
                }
                for (value, variables) in outputs.iter().zip(&states) {
                    let tiles = team.get(*value)?;
                    for (tile, variables) in tiles.iter().zip(variables) {
                        for (elements, variables) in tile.iter().zip(variables) {
                            for (element, variable) in elements.iter().zip(variables) {
                                s.maker.set(*variable, element);
                            }
                        }
                    }
                }
                team.held.clear();
                team.packed.clear();
                Ok(())
            })?;
            for ((value, variables), (_, write_at)) in inputs.iter().zip(&states).zip(&places) {
                let last = team.now(s, variables);
                team.held.insert(*value, last);
                let (arena, width) = (s.arena, team.width(*value));
                team.store(s, *value, |s, row, column, result| {
                    s.maker.store(arena, write_at + row * width + column, result);
                    Ok(())
                })?;
            }
            Ok(())
        })?;
        let walk = Walk { steps: word(steps)?, from: from_number, to: to_number, carry };
        self.dispatch(site, groups, place, Some(walk))?;
        self.copy_finals(&finals, outs, place)?;
        let workgroup = Workgroup {
            threads: (shape.teams * TEAM) as usize,
            memory_bytes: if resident { 4 * words as usize } else { 0 },
            memory_most_bytes: self.limits.shared_bytes as usize,
            weight_bytes: 4 * words as usize,
            resident_bytes: if resident { 4 * words as usize } else { 0 },
            register_bytes: 0,
            rows: shape.rows() as usize,
            rows_limit: if shape.tiles * shape.teams == TEAMS_MOST { RowsLimit::Enough } else { RowsLimit::Batch },
            barriers: 0,
        };
        let body = self.block_plan(body, shape.rows())?;
        let block_rows = Some(shape.rows() as usize);
        Ok(Some(Box::new(Loop { steps, block_rows, blocks, body, tail: None, workgroup: Some(workgroup) })))
    }
}

/// An element of a sequence.
fn element(s: &mut Site<'_>, scan: &Scan, view: &View, place: &Place, time: &Expr) -> Result<Expr> {
    let mut at = vec![place.row.clone(), place.column.clone()];
    at.insert(scan.axis, time.clone());
    s.load(view, &at)
}

impl<'b> Team<'b> {
    fn new(
        s: &mut Site<'_>,
        body: &'b Independent,
        tiled: &'b Tiled,
        shape: Shape,
        products: Products,
        group: &Expr,
        rows_in_all: &Expr,
    ) -> Team<'b> {
        let m = &mut s.maker;
        let thread = m.thread();
        let lane = m.name("lane", thread.rem(TEAM));
        let first = m.name("first", group * shape.rows() + &thread / TEAM * (shape.tiles * TILE_ROWS) + &lane / 4u32);
        let last = m.name("last", rows_in_all - 1u32);
        let mut row = |at: u32| m.name("row", &first + at);
        let rows: Vec<[Expr; 2]> =
            (0..shape.tiles).map(|tile| [row(TILE_ROWS * tile), row(TILE_ROWS * tile + TILE)]).collect();
        let mut pairs = |name: &str, make: &dyn Fn(&Expr) -> Expr| -> Vec<[Expr; 2]> {
            rows.iter().map(|pair| pair.each_ref().map(|row| m.name(name, make(row)))).collect()
        };
        let within = pairs("within", &|row| row.min(&last));
        let inside = pairs("inside", &|row| row.lt(rows_in_all));
        let column = m.name("column", lane.rem(4u32) * 2u32);
        let columns = [column.clone(), m.name("column", column + 1u32)];
        let (matrices, held, packed, shared) = Default::default();
        Team { body, tiled, shape, products, rows, within, inside, columns, matrices, held, packed, shared }
    }

    pub(super) fn width(&self, value: Value) -> u32 {
        self.tiled.columns.get(&value).map_or(0, |columns| columns.iter().map(|[_, count]| count).sum())
    }

    pub(super) fn columns_of(&self, value: Value) -> Result<&'b Columns> {
        self.tiled.columns.get(&value).ok_or_else(|| Error::Internal("a value that is not in tiles".into()))
    }

    pub(super) fn get(&self, value: Value) -> Result<Tiles> {
        self.held.get(&value).cloned().ok_or_else(|| Error::Internal("a tile is read too early".into()))
    }

    /// Copies the matrices to shared memory, if they are to be there, and notes where each thread's words are.
    fn matrices(&mut self, s: &mut Site<'_>, shared: Option<Memory>) -> Result<()> {
        let (thread, threads) = (s.maker.thread(), self.shape.teams * TEAM);
        let lane = s.maker.name("lane", thread.rem(TEAM));
        let mut end = 0u32;
        for (id, product) in &self.tiled.products {
            let words = product.matrix.words();
            let base = s.arg("matrix", Home::Constant(product.at), &[]);
            let each = product.matrix.thread_words();
            let Some(shared) = shared else {
                let first = s.maker.name("words", base + &lane * each);
                self.matrices.insert(*id, (s.constants, first));
                continue;
            };
            let constants = s.constants;
            s.strided("i", thread.clone(), words, threads, |s, i| {
                let word = s.maker.load(constants, &base + &i, Ty::U32);
                s.maker.store(shared, i + end, word);
                Ok(())
            })?;
            let first = s.maker.name("words", &lane * each + end);
            self.matrices.insert(*id, (shared, first));
            end += words;
        }
        if shared.is_some() {
            s.maker.barrier();
        }
        Ok(())
    }

    /// Calls `make` for each element of a value that a thread has; what is no column of the value is 0.
    fn each(
        &self,
        s: &mut Site<'_>,
        value: Value,
        mut make: impl FnMut(&mut Site<'_>, &Place) -> Result<Expr>,
    ) -> Result<Vec<Vec<[Expr; 4]>>> {
        let mut tiles = vec![];
        for [first, count] in self.columns_of(value)? {
            let mut tile = vec![];
            for (rows, inside) in self.within.iter().zip(&self.inside) {
                let mut elements = vec![];
                for (row, inside) in rows.iter().zip(inside) {
                    for column in &self.columns {
                        let (at, own) = match *count < TILE {
                            true => (column.min(count - 1), inside.and(column.lt(*count))),
                            false => (column.clone(), inside.clone()),
                        };
                        let column_of_value = s.maker.name("at", at + *first);
                        let element = make(s, &Place { row: row.clone(), column: column_of_value, own })?;
                        elements.push(self.only_columns(s, element, column, *count));
                    }
                }
                tile.push(four(elements)?);
            }
            tiles.push(tile);
        }
        Ok(tiles)
    }

    /// The element if its column in the tile is one of so many, else 0.
    pub(super) fn only_columns(&self, s: &mut Site<'_>, element: Expr, column: &Expr, count: u32) -> Expr {
        let element = if count < TILE { column.lt(count).select(element, 0.0f32) } else { element };
        s.maker.name("x", element)
    }

    /// Variables for a value that changes from step to step, and their first values.
    fn variables(
        &self,
        s: &mut Site<'_>,
        value: Value,
        make: impl FnMut(&mut Site<'_>, &Place) -> Result<Expr>,
    ) -> Result<Vec<Vec<[Var; 4]>>> {
        let tiles = self.each(s, value, make)?;
        let variable = |s: &mut Site<'_>, x: Expr| s.maker.variable("kept", x);
        let elements = |s: &mut Site<'_>, tile: Vec<[Expr; 4]>| {
            tile.into_iter().map(|elements| elements.map(|x| variable(s, x))).collect::<Vec<_>>()
        };
        Ok(tiles.into_iter().map(|tile| elements(s, tile)).collect())
    }

    /// Gives variables new values.
    fn assign(
        &self,
        s: &mut Site<'_>,
        value: Value,
        variables: &[Vec<[Var; 4]>],
        make: impl FnMut(&mut Site<'_>, &Place) -> Result<Expr>,
    ) -> Result<()> {
        let tiles = self.each(s, value, make)?;
        for (tile, variables) in tiles.iter().zip(variables) {
            for (element, variable) in tile.iter().flatten().zip(variables.iter().flatten()) {
                s.maker.set(*variable, element);
            }
        }
        Ok(())
    }

    /// What variables hold now.
    fn now(&self, s: &mut Site<'_>, variables: &[Vec<[Var; 4]>]) -> Tiles {
        let mut read = |var: &Var| {
            let value = s.maker.get(*var);
            s.maker.name("x", value)
        };
        Rc::new(variables.iter().map(|tile| tile.iter().map(|e| e.each_ref().map(&mut read)).collect()).collect())
    }

    /// A state as it is before the first of these steps.
    fn first_state(
        &self,
        s: &mut Site<'_>,
        value: Value,
        state: &View,
        from: &Expr,
        read_at: Option<&Expr>,
        write_at: &Expr,
    ) -> Result<Vec<Vec<[Var; 4]>>> {
        let (arena, width) = (s.arena, self.width(value));
        self.variables(s, value, |s, Place { row, column, own }| {
            let kept = s.maker.variable("first", 0.0f32);
            // Each word is read by the thread that writes it in the end: a state may be written where it was read.
            let stored = |s: &mut Site<'_>, at: &Expr| {
                s.guarded(own.clone(), |s| {
                    let before = s.maker.load(arena, at + row * width + column, Ty::F32);
                    s.maker.set(kept, before);
                    Ok(())
                })
            };
            if let Some(at) = read_at {
                stored(s, at)?;
                return Ok(s.maker.get(kept));
            }
            // It is not stored as states are, or is no more than a number: later pieces read what the first one wrote.
            let first = |s: &mut Site<'_>| {
                let first = s.load(state, &[row.clone(), column.clone()])?;
                s.maker.set(kept, first);
                Ok(())
            };
            s.either(from.eq(0u32), first, |s| stored(s, write_at))?;
            Ok(s.maker.get(kept))
        })
    }

    /// Writes what a thread has of a value.
    fn store(
        &self,
        s: &mut Site<'_>,
        value: Value,
        mut write: impl FnMut(&mut Site<'_>, &Expr, &Expr, &Expr) -> Result<()>,
    ) -> Result<()> {
        let tiles = self.get(value)?;
        let columns = self.columns_of(value)?;
        for (m, rows) in self.rows.iter().enumerate() {
            for (half, row) in rows.iter().enumerate() {
                s.guarded(self.inside[m][half].clone(), |s| {
                    for (tile, [first, count]) in tiles.iter().zip(columns) {
                        for (k, column) in self.columns.iter().enumerate() {
                            let result = &tile[m][2 * half + k];
                            let at = s.maker.name("at", column + *first);
                            if *count < TILE {
                                s.guarded(column.lt(*count), |s| write(s, row, &at, result))?;
                            } else {
                                write(s, row, &at, result)?;
                            }
                        }
                    }
                    Ok(())
                })?;
            }
        }
        Ok(())
    }
}

pub(super) fn four(elements: Vec<Expr>) -> Result<[Expr; 4]> {
    elements.try_into().map_err(|_| Error::Internal("a thread has four elements of a tile".into()))
}
