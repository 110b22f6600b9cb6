//! Tuning: every number that only decides how fast something is, in one record with units.
//!
//! Such numbers say when another thread is worth it, how large a block is, and what something is assumed to cost. None
//! of them changes what is computed, beyond the order in which a few sums are added up. They are chosen by the class of
//! machine ([`MachineClass`]); a value that was measured on the machine itself can replace any of them ([`Tuning::with`]).
//!
//! Numbers that shape compiled code are not in this record: the registers of a tile, the lanes and arrays on the stack
//! are constants or types beside their kernel. Where several variants are compiled, the record says which one is used.

use crate::Isa;

/// An instruction set, and the numbers that its kernels are tuned with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Machine<'a> {
    /// The instruction set.
    pub isa: Isa,
    /// The numbers.
    pub tuning: &'a Tuning,
}

/// An instruction set with the numbers that tests use.
#[cfg(test)]
pub(crate) fn on(isa: Isa) -> Machine<'static> {
    static USUAL: Tuning = Tuning::for_machine(MachineClass::Portable);
    Machine { isa, tuning: &USUAL }
}

/// An instruction set with the least value of every number: threads share all work that can be shared, and blocks are
/// small. Only the numbers that decide which products may come in two parts keep their usual values.
#[cfg(test)]
pub(crate) fn finest(isa: Isa) -> Machine<'static> {
    static FINEST: Tuning = Tuning {
        gemm_thread_multiply_adds_least: Tuning::PORTABLE.gemm_thread_multiply_adds_least,
        gemm_block_column_bytes: Tuning::PORTABLE.gemm_block_column_bytes,
        ..Tuning::LEAST
    };
    Machine { isa, tuning: &FINEST }
}

/// Kinds of machines that are tuned alike.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum MachineClass {
    /// Any other machine: values that do no harm anywhere.
    Portable,
    /// AMD's Zen 4, such as the EPYC 9004 and the Ryzen 7000.
    Zen4,
    /// AMD's Zen 5 with a datapath of 512 bits, such as the EPYC 9005 and the Ryzen 9000.
    Zen5,
    /// Intel's Sapphire Rapids and Emerald Rapids, such as the Xeon Platinum 8480 and 8592.
    SapphireRapids,
}

impl MachineClass {
    /// Every class.
    pub const ALL: [MachineClass; 4] =
        [MachineClass::Portable, MachineClass::Zen4, MachineClass::Zen5, MachineClass::SapphireRapids];

    /// The class of the machine that this runs on.
    pub fn detect() -> MachineClass {
        #[cfg(target_arch = "x86_64")]
        {
            use std::arch::x86_64::__cpuid;
            let about = __cpuid(0);
            let mut vendor = [0; 12];
            for (bytes, part) in vendor.chunks_exact_mut(4).zip([about.ebx, about.edx, about.ecx]) {
                bytes.copy_from_slice(&part.to_le_bytes());
            }
            MachineClass::of(&vendor, __cpuid(1).eax)
        }
        #[cfg(not(target_arch = "x86_64"))]
        MachineClass::Portable
    }

    /// The class of an x86-64 processor, by its vendor and by what CPUID says of its family and model (leaf 1, EAX).
    #[cfg(any(target_arch = "x86_64", test))]
    fn of(vendor: &[u8; 12], signature: u32) -> MachineClass {
        let bits = |from: u32, count: u32| signature >> from & ((1 << count) - 1);
        let (base, model) = (bits(8, 4), bits(16, 4) << 4 | bits(4, 4));
        let family = if base == 15 { base + bits(20, 8) } else { base };
        match (vendor, family, model) {
            (b"AuthenticAMD", 0x19, 0x10..=0x1f | 0x60..=0x7f | 0xa0..=0xaf) => MachineClass::Zen4,
            // Zen 5 for laptops, which has other models, has half the datapath.
            (b"AuthenticAMD", 0x1a, 0x00..=0x1f | 0x40..=0x4f) => MachineClass::Zen5,
            (b"GenuineIntel", 6, 0x8f | 0xcf) => MachineClass::SapphireRapids,
            _ => MachineClass::Portable,
        }
    }

    /// The class of this [name](MachineClass::name).
    pub fn named(name: &str) -> Option<MachineClass> {
        MachineClass::ALL.into_iter().find(|class| class.name() == name)
    }

    /// `portable`, `zen4`, `zen5` or `sapphire-rapids`.
    pub fn name(self) -> &'static str {
        match self {
            MachineClass::Portable => "portable",
            MachineClass::Zen4 => "zen4",
            MachineClass::Zen5 => "zen5",
            MachineClass::SapphireRapids => "sapphire-rapids",
        }
    }
}

impl std::fmt::Display for MachineClass {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.name())
    }
}

/// One number of a [`Tuning`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Entry {
    /// Its name, which is that of the method that gives it.
    pub name: &'static str,
    /// What it counts.
    pub unit: &'static str,
    /// How many.
    pub value: usize,
    /// The least that it can be.
    pub least: usize,
    /// The most that it can be.
    pub most: usize,
    /// Its values are multiples of this.
    pub step: usize,
}

/// The largest value of a number that has no other limit.
const MOST: usize = usize::MAX >> 4;

/// Makes the record: for each number its text, name, portable value, unit, and the values that are allowed (least,
/// most, and the step between them).
macro_rules! tuning {
    ($($(#[doc = $text:literal])* $name:ident = $value:expr, $unit:literal, $least:literal..=$most:expr, by $step:literal;)*) => {
        /// The numbers that kernels and compiler are tuned with. Only values that the kernels can work with are
        /// accepted.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub struct Tuning {
            $($name: usize,)*
        }

        impl Tuning {
            const PORTABLE: Tuning = Tuning { $($name: $value,)* };
            #[cfg(test)]
            const LEAST: Tuning = Tuning { $($name: $least,)* };

            $($(#[doc = $text])*
            #[inline(always)]
            pub fn $name(&self) -> usize {
                self.$name
            })*

            /// Every number with its unit.
            pub fn entries(&self) -> Vec<Entry> {
                vec![$(Entry {
                    name: stringify!($name),
                    unit: $unit,
                    value: self.$name,
                    least: $least,
                    most: $most,
                    step: $step,
                },)*]
            }

            /// The same with one number replaced; an error that says what is wrong if there is no such number, or if it
            /// cannot have that value.
            pub fn with(mut self, name: &str, value: usize) -> Result<Tuning, String> {
                let (place, unit, least, most, step): (&mut usize, &str, usize, usize, usize) = match name {
                    $(stringify!($name) => (&mut self.$name, $unit, $least, $most, $step),)*
                    _ => {
                        let known: Vec<&str> = vec![$(stringify!($name),)*];
                        return Err(format!("no tuned number is called `{name}`; there is {}", known.join(", ")));
                    }
                };
                if !(least..=most).contains(&value) || !value.is_multiple_of(step) {
                    let multiple = if step > 1 { format!(" and a multiple of {step}") } else { String::new() };
                    return Err(format!("`{name}` is {value} {unit}; it must be from {least} to {most}{multiple}"));
                }
                *place = value;
                Ok(self)
            }
        }
    };
}

tuning! {
    /// Multiply-adds of a product for which another thread is used: about four microseconds of them, since a thread
    /// that has to be woken, or has no core to itself, costs far more than one microsecond. (Tests use fewer.)
    gemm_thread_multiply_adds_least = if cfg!(test) { 5_000 } else { 250_000 }, "multiply-adds", 1..=MOST, by 1;
    /// Rows of the register tile of a product, of those that are compiled.
    gemm_tile_rows = 6, "rows", 1..=6, by 1;
    /// Columns of the block of a product's right-hand side that stays in the second-level cache.
    gemm_block_columns = 256, "columns", 64..=65_536, by 64;
    /// Bytes of each of these columns: together they are the block.
    gemm_block_column_bytes = 2048, "bytes", 64..=1_048_576, by 64;
    /// Rows of a product's left-hand side that are copied together, if they are; best a multiple of the tile's.
    gemm_copied_rows = 48, "rows", 1..=65_536, by 1;
    /// Up to how many bytes a left-hand side whose columns are contiguous is read in place: beyond, each column is on a
    /// page of its own, too many for the TLB.
    gemm_in_place_bytes_most = 128 << 10, "bytes", 0..=MOST, by 1;
    /// Up to how many bytes of a product its epilogue runs once, on all of it: then it is still in the first-level cache.
    gemm_epilogue_at_once_bytes_most = 16 << 10, "bytes", 0..=MOST, by 1;
    /// Length of the sums of a product from which on fetching ahead pays.
    gemm_prefetch_depth_least = 128, "elements", 0..=MOST, by 1;
    /// How far ahead a tile of one or two rows fetches the right-hand side.
    gemm_prefetch_bytes_ahead = 2048, "bytes", 1..=1_048_576, by 1;
    /// Whether products of two bfloat16 use the instruction for that (1) or widen them (0), where there is one.
    gemm_bf16_instruction = 1, "yes or no", 0..=1, by 1;
    /// Up to how many bytes, as f32, known weights of half-precision are packed widened, unless that instruction multiplies
    /// them: they stay in a near cache anyway, and need not be widened in every run.
    gemm_widened_weight_bytes_most = 256 << 10, "bytes", 0..=MOST, by 1;
    /// From how many rows on a product widens blocks of packed bfloat16 before it multiplies them, where that instruction
    /// does not: with fewer rows, it costs less to widen them again in every tile.
    gemm_widened_block_rows_least = 16, "rows", 1..=MOST, by 1;
    /// Multiply-adds of a product with low-bit weights for which another thread is used: about four microseconds of them.
    lowbit_thread_multiply_adds_least = if cfg!(test) { 5_000 } else { 500_000 }, "multiply-adds", 1..=MOST, by 1;
    /// From how many rows of f32 on such a product widens blocks of the weights first: with fewer, it takes codes apart in
    /// every tile.
    lowbit_widened_rows_least = 48, "rows", 1..=MOST, by 1;
    /// How far ahead of their use ternary codes are fetched that one rounded row is multiplied with. (On Zen 4 it made no
    /// difference.)
    lowbit_prefetch_bytes_ahead = 4096, "bytes", 0..=1_048_576, by 1;
    /// The same where the low-bit weights of a network do not fit the cache of last level, so that some of them come from
    /// memory.
    lowbit_prefetch_far_bytes_ahead = 4096, "bytes", 0..=1_048_576, by 1;
    /// From how many bytes of weights for each thread on that is assumed.
    lowbit_far_weight_bytes_least = 16 << 20, "bytes", 0..=MOST, by 1;

    /// From how many sixteenths of a cycle on (those of one element, times the elements) an elementwise program is
    /// split over threads: a few microseconds.
    map_threads_cost_least = 200_000, "sixteenths of a cycle", 0..=MOST, by 1;
    /// The least that a thread gets of an elementwise program.
    map_thread_elements_least = 1024, "elements", 128..=MOST, by 128;
    /// From which length on rows are walked one by one, if any operand of an elementwise program needs that.
    map_long_row_elements_least = 512, "elements", 1..=MOST, by 1;
    /// Up to how many bytes outputs of an elementwise program are written through the caches; larger ones would not
    /// stay there, and are written past them.
    map_cached_bytes_most = 8 << 20, "bytes", 0..=MOST, by 1;

    /// From how many bytes on a copy is shared among threads.
    copy_threads_bytes_least = 256 << 10, "bytes", 0..=MOST, by 1;
    /// From how many bytes on a transpose is written past the caches.
    copy_streamed_bytes_least = 12 << 20, "bytes", 0..=MOST, by 1;
    /// Runs longer than this are cut, so that threads share them.
    copy_piece_bytes = 256 << 10, "bytes", 64..=MOST, by 64;
    /// From how many bytes on a transpose avoids crowding the sets of the first-level cache; smaller ones nearly fit it
    /// as a whole.
    copy_crowded_bytes_least = 128 << 10, "bytes", 0..=MOST, by 1;
    /// Destination rows of a transpose that are filled together: few enough that their pages stay in the TLB.
    copy_panel_rows = 512, "rows", 64..=65_536, by 64;

    /// From how many elements on gathers and sums by segment are shared among threads.
    gather_threads_elements_least = 1 << 15, "elements", 0..=MOST, by 1;
    /// Length of the rows from which on sums by segment transpose them.
    segment_sum_transposed_elements_least = 8, "elements", 0..=MOST, by 1;
    /// Columns that a thread takes of a sum by segment with fewer blocks than threads.
    segment_sum_strip_columns = 64, "columns", 1..=MOST, by 1;
    /// From how many elements on a reduction is shared among threads.
    reduce_threads_elements_least = 1 << 16, "elements", 0..=MOST, by 1;
    /// From how many elements on a softmax is shared among threads.
    softmax_threads_elements_least = 1 << 14, "elements", 0..=MOST, by 1;
    /// From how many elements on a norm is shared among threads.
    norm_threads_elements_least = 1 << 15, "elements", 0..=MOST, by 1;
    /// From how many bytes of input and output on a norm's output is written past the caches.
    norm_streamed_bytes_least = 24 << 20, "bytes", 0..=MOST, by 1;
    /// From how many multiplications on an attention is shared among threads.
    attention_threads_multiplications_least = 1 << 20, "multiplications", 0..=MOST, by 1;

    /// From how many evaluations on sums over synapses are shared among threads.
    synapse_threads_evaluations_least = 1 << 14, "evaluations", 0..=MOST, by 1;
    /// Up to how many bytes of activations the gradient of a repeated ratio keeps from its way forward: they must stay in the
    /// second-level cache. Beyond, they are computed again.
    synapse_kept_bytes_most = 512 << 10, "bytes", 0..=MOST, by 1;
    /// Assumed cost of evaluating a register of synapses whose values are gathered from memory (an estimate). This and the
    /// numbers below only choose between ways to deal synapses to lanes.
    synapse_gathered_cycles = 30, "cycles", 0..=10_000, by 1;
    /// The same where values are looked up in one register (an estimate).
    synapse_looked_up_in_1_cycles = 12, "cycles", 0..=10_000, by 1;
    /// The same in two registers (measured on Zen 4).
    synapse_looked_up_in_2_cycles = 12, "cycles", 0..=10_000, by 1;
    /// The same in three registers (measured on Zen 4).
    synapse_looked_up_in_3_cycles = 14, "cycles", 0..=10_000, by 1;
    /// The same in four registers (measured on Zen 4).
    synapse_looked_up_in_4_cycles = 15, "cycles", 0..=10_000, by 1;
    /// Assumed cost of a group of evaluations beyond the evaluations themselves (an estimate).
    synapse_group_cycles = 24, "cycles", 0..=10_000, by 1;
    /// Assumed cost of moving sums from shared lanes to their destinations, once (an estimate).
    synapse_piece_cycles = 4, "cycles", 0..=10_000, by 1;

    /// How often a thread that waits looks for work before it sleeps: roughly 50 µs.
    team_spins = 3_000, "looks", 0..=1_000_000_000, by 1;

    /// The most rows of a loop's block: enough for products to reach their speed.
    loop_block_rows_most = 48, "rows", 1..=65_536, by 1;
    /// The same where weights of products are values of the run, as in training (measured on Zen 5).
    loop_block_rows_of_given_products_most = 64, "rows", 1..=65_536, by 1;
    /// The fewest rows that a batch-first block of a loop is cut to for the sake of its memory.
    loop_block_rows_least = 8, "rows", 1..=65_536, by 1;
    /// Working memory that a loop's block should stay within: any second-level cache holds it beside weights. Of large
    /// cells, blocks that fit the first level were 5 to 12% slower: their few rows leave too few sums to hide the latency
    /// of a multiply-add.
    loop_block_bytes_most = 192 << 10, "bytes", 0..=MOST, by 1;
    /// The most bytes of totals to which each step of a loop adds products of its rows, instead of one product after the
    /// loop: they are read and written in each step, and so must be in a near cache.
    loop_total_bytes_most = 256 << 10, "bytes", 0..=MOST, by 1;
    /// Operations of a loop for which another thread is used: some microseconds of them, as for products.
    loop_thread_operations_least = 500_000, "operations", 1..=MOST, by 1;
    /// How many operations a transcendental function counts as.
    transcendental_operations = 16, "operations", 0..=65_536, by 1;
    /// From how much of a register of rows on a loop's block fills the last register in part, if it has sums over synapses and
    /// no products: beyond it, lanes without a row cost less than taking the rows one by one.
    loop_filled_sixteenths_of_synapses_least = 16, "sixteenths of a register", 1..=16, by 1;
    /// The same if its products are all gated cells.
    loop_filled_sixteenths_of_cells_least = 16, "sixteenths of a register", 1..=16, by 1;
    /// The same for sums over synapses on machines where rows of two neurons can share a register (measured on Zen 5 alone).
    loop_filled_sixteenths_of_shared_synapses_least = 12, "sixteenths of a register", 1..=16, by 1;
    /// From how much of a register of rows on they share one with those of another neuron there: fewer are faster one by one
    /// (measured on Zen 5 alone).
    loop_shared_sixteenths_of_synapses_least = 7, "sixteenths of a register", 1..=8, by 1;
    /// Whether loops that have gated cells and no other products take half a register of rows, where there is such, alone or
    /// after whole ones (1), or no less than a register (0).
    loop_batch_last_halves = 0, "yes or no", 0..=1, by 1;
    /// From how many registers of rows on a loop's block is batch-last, if it has products: with fewer, they have too few sums
    /// at a time, and each multiply-add waits for the one before.
    loop_batch_last_registers_of_products_least = 3, "registers", 1..=64, by 1;
    /// The same where weights are values of the run, as in training: batch-first, they would be packed in each step.
    loop_batch_last_registers_of_given_products_least = 2, "registers", 1..=64, by 1;
    /// From how much of a register of rows on it is, if its products are all gated cells.
    loop_batch_last_sixteenths_of_cells_least = 32, "sixteenths of a register", 1..=1024, by 1;
    /// The most rows, beyond one, of a batch-first gated cell.
    gated_few_rows_most = 64, "rows", 1..=MOST, by 1;
    /// The most bytes of weights of such a cell: they are read again for every few rows, and so must be near.
    gated_few_rows_bytes_most = 64 << 10, "bytes", 0..=MOST, by 1;
    /// The most rows of a batch-last gated cell: with more, the inputs no longer fit a near cache, and are read again
    /// for each unit.
    gated_rows_most = 64, "rows", 0..=MOST, by 1;
    /// The most bytes to which a known operand is repeated before the run.
    stretched_bytes_most = 16 << 10, "bytes", 0..=MOST, by 1;
    /// The most columns that products of one input are merged to, outside of loops. Larger products gain little from it, and
    /// lose more: apart, each can have the elementwise work that follows it fused into it.
    merged_columns_most = 512, "columns", 0..=MOST, by 1;
    /// The same for products that round rows to 8 bits: queries, keys and values of a decoder are then one call, which rounds
    /// the row once.
    merged_rounded_columns_most = 4096, "columns", 0..=MOST, by 1;
    /// The same in loops. They take a few rows at a time, so that even a wide result is still in cache for what follows.
    merged_columns_in_loops_most = 4096, "columns", 0..=MOST, by 1;
    /// The most instructions that are fused into one elementwise program: beyond, its tiles no longer fit the first-level
    /// cache.
    fused_instructions_most = 96, "instructions", 1..=1024, by 1;
    /// The most inputs of such a program.
    fused_inputs_most = 14, "inputs", 1..=22, by 1;
}

impl Tuning {
    /// The numbers for a class of machines. Where nothing else was measured they are the portable ones.
    pub const fn for_machine(class: MachineClass) -> Tuning {
        match class {
            MachineClass::Portable => Tuning::PORTABLE,
            // Its instruction for bfloat16 was measured at half the speed of f32.
            MachineClass::SapphireRapids => Tuning { gemm_bf16_instruction: 0, ..Tuning::PORTABLE },
            // Measured with circuits of 64 units: 11 rows one by one take as long as a register of 16 rows. Other tile
            // rows, rows of blocks, and registers of products that blocks are batch-last from, were slower or no
            // faster.
            // Widening bfloat16 in every tile hides behind its multiply-adds (2% at most, with any number of rows), where
            // widening blocks first costs 16% with 32 rows and 3% with 256.
            // 25 MB of ternary codes, fetched 16 KiB ahead (a third of the first-level cache), came 1.2 times as fast as
            // 4 KiB ahead; from 20 KiB on they were lost again before their use. Half of them, which is what each of two threads
            // reads, came 1.24 times as fast. The codes of a matrix of 4 MB, again and again, came 1.1 times as fast 4 KiB ahead
            // as 16.
            MachineClass::Zen5 => Tuning {
                loop_filled_sixteenths_of_synapses_least: 12,
                gemm_widened_block_rows_least: MOST,
                lowbit_prefetch_far_bytes_ahead: 16 << 10,
                lowbit_far_weight_bytes_least: 8 << 20,
                ..Tuning::PORTABLE
            },
            // It begins one multiply-add of 16 lanes in each cycle, half as many as the other classes, so half as many
            // sums in flight suffice for gated cells. (With one register of rows, other products were 11% slower than
            // batch-first.) And it takes a register in two halves: half of one takes two thirds of the time of a whole one.
            MachineClass::Zen4 => Tuning {
                loop_filled_sixteenths_of_synapses_least: 12,
                loop_filled_sixteenths_of_cells_least: 10,
                loop_batch_last_halves: 1,
                loop_batch_last_sixteenths_of_cells_least: 16,
                ..Tuning::PORTABLE
            },
        }
    }

    /// The numbers for the machine that this runs on.
    pub fn detect() -> Tuning {
        Tuning::for_machine(MachineClass::detect())
    }

    /// Assumed cycles of evaluating a register of synapses, by the registers that values are looked up in; first those of
    /// a gather.
    pub(crate) fn synapse_round_cycles(&self) -> [usize; 5] {
        [
            self.synapse_gathered_cycles,
            self.synapse_looked_up_in_1_cycles,
            self.synapse_looked_up_in_2_cycles,
            self.synapse_looked_up_in_3_cycles,
            self.synapse_looked_up_in_4_cycles,
        ]
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn any_number_can_be_replaced_and_no_other_changes_with_it() {
        for class in MachineClass::ALL {
            let usual = Tuning::for_machine(class);
            let entries = usual.entries();
            let names: BTreeSet<&str> = entries.iter().map(|e| e.name).collect();
            assert_eq!(names.len(), entries.len());
            for entry in &entries {
                let least = Tuning::LEAST.entries().into_iter().find(|e| e.name == entry.name).expect("every entry");
                assert!(usual.with(entry.name, least.value).is_ok(), "{} cannot be {}", entry.name, least.value);
                let own = usual.with(entry.name, entry.value);
                assert_eq!(own, Ok(usual), "{} of {class} is no value that it can have", entry.name);
                let other = [0, 1, 2, 64, 128, 256].into_iter().filter(|n| *n != entry.value);
                let changed = other.filter_map(|n| usual.with(entry.name, n).ok()).next().expect("another value");
                let differs = |(a, b): &(Entry, Entry)| a != b;
                let both = entries.iter().copied().zip(changed.entries());
                let names: Vec<&str> = both.filter(differs).map(|(a, _)| a.name).collect();
                assert_eq!(names, [entry.name]);
            }
        }
    }

    #[test]
    fn wrong_names_and_values_are_refused_with_the_reason() {
        let usual = Tuning::for_machine(MachineClass::Portable);
        assert!(usual.with("speed", 1).unwrap_err().contains("there is gemm_thread_multiply_adds_least, "));
        for (name, value, says) in [
            ("gemm_tile_rows", 7, "`gemm_tile_rows` is 7 rows; it must be from 1 to 6"),
            ("gemm_tile_rows", 0, "from 1 to 6"),
            ("gemm_block_columns", 100, "a multiple of 64"),
            ("copy_piece_bytes", 0, "from 64 to"),
            ("team_spins", usize::MAX, "to 1000000000"),
        ] {
            let problem = usual.with(name, value).unwrap_err();
            assert!(problem.contains(says), "{problem}");
        }
    }

    #[test]
    fn processors_are_told_apart_by_family_and_model() {
        use MachineClass::{Portable, SapphireRapids, Zen4, Zen5};
        let (amd, intel) = (b"AuthenticAMD", b"GenuineIntel");
        // Signatures as the processors give them: Genoa, Raphael, Phoenix, Bergamo; Turin, Granite Ridge; Milan and Strix
        // Point are others.
        for (signature, class) in [
            (0x00a1_0f11, Zen4),
            (0x00a6_0f12, Zen4),
            (0x00a7_0f41, Zen4),
            (0x00aa_0f02, Zen4),
            (0x00b0_0f21, Zen5),
            (0x00b1_0f10, Zen5),
            (0x00b4_0f40, Zen5),
            (0x00a0_0f11, Portable),
            (0x00b2_0f40, Portable),
        ] {
            assert_eq!(MachineClass::of(amd, signature), class, "{signature:08x}");
            assert_eq!(MachineClass::of(intel, signature), Portable, "{signature:08x}");
        }
        // Sapphire Rapids and Emerald Rapids; Ice Lake is another.
        for (signature, class) in [(0x000806f8, SapphireRapids), (0x000c06f2, SapphireRapids), (0x000606a6, Portable)] {
            assert_eq!(MachineClass::of(intel, signature), class, "{signature:08x}");
        }
        assert!(MachineClass::ALL.contains(&MachineClass::detect()));
        assert!(MachineClass::ALL.iter().all(|class| MachineClass::named(class.name()) == Some(*class)));
        assert_eq!(MachineClass::named("zen"), None);
        assert_eq!(SapphireRapids.to_string(), "sapphire-rapids");
    }
}
