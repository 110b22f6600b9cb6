//! Watching: every call is counted where it belongs, and nothing computed differs.

use super::*;

/// Runs a scan of so many rows in blocks so often, watched and not; gives what was seen and both arenas.
fn watched(rows: usize, block: Option<usize>, threads: usize, runs: usize) -> (Recorder, Vec<u8>, Vec<u8>) {
    let l = Loop::new(rows);
    let isa = Isa::detect();
    let call = || vec![Call::Zero { dst: l.ys }, Call::Scan(Box::new(l.scan(isa, threads, block)))];
    let tape = Tape::new(on(isa), threads, l.board.memory(), call()).unwrap();
    let team = Team::new(threads).unwrap();
    let mut frame = tape.frame();
    let mut arenas = [Aligned::new(&l.board.data), Aligned::new(&l.board.data)];
    let mut recorder = Recorder::with_events(1000);
    for _ in 0..runs {
        let cancel = AtomicBool::new(false);
        tape.run(&mut frame, &team, arenas[0].get(), [], [], None, &cancel).unwrap();
        recorder.start();
        let watching = Some(Watching::Times(&mut recorder));
        tape.run(&mut frame, &team, arenas[1].get(), [], [], watching, &cancel).unwrap();
        recorder.stop();
    }
    // What workers leave in their scratch depends on who did what.
    let results = |arena: &mut Aligned| arena.get()[..l.scratch.offset].to_vec();
    let [mut plain, mut seen] = arenas;
    (recorder, results(&mut plain), results(&mut seen))
}

fn counts(recorder: &Recorder) -> Vec<(Vec<usize>, u64)> {
    recorder.times().into_iter().map(|t| (t.path, t.calls)).collect()
}

#[test]
fn every_call_of_blocks_and_of_the_rows_left_over_is_counted_on_any_number_of_threads() {
    for threads in 1..=3 {
        for (rows, block) in [(4, None), (4, Some(4)), (4, Some(2)), (7, Some(2)), (7, Some(3))] {
            let (recorder, plain, seen) = watched(rows, block, threads, 2);
            let what = format!("{rows} rows, blocks {block:?}, {threads} threads");
            assert_eq!(plain, seen, "{what}");
            let whole = block.map_or(1, |b| rows / b) as u64;
            let steps = 2 * STEPS as u64;
            let mut want = vec![(vec![0], 2), (vec![1], 2), (vec![1, 0], whole * steps), (vec![1, 1], whole * steps)];
            if block.is_some_and(|b| rows % b > 0) {
                want.extend([(vec![1, 2], steps), (vec![1, 3], steps)]);
            }
            assert_eq!(counts(&recorder), want, "{what}");
            assert_eq!(recorder.runs(), 2);
            let blocks = block.map_or(1, |b| rows.div_ceil(b));
            let shared = if blocks > 1 { threads.min(blocks) } else { 1 };
            assert_eq!(recorder.times()[2].workers, shared, "{what}");
            let events: Vec<Event> = recorder.events().collect();
            assert_eq!(events.len() as u64, want.iter().map(|(_, n)| n).sum::<u64>(), "{what}");
            assert!(events.iter().all(|e| e.thread < threads && e.place < want.len()), "{what}");
        }
    }
}

#[test]
fn times_of_all_places_and_of_no_place_sum_to_the_runs() {
    for threads in [1, 2] {
        let l = Loop::new(64);
        let isa = Isa::detect();
        let scan = Call::Scan(Box::new(l.scan(isa, threads, Some(16))));
        let tape = Tape::new(on(isa), threads, l.board.memory(), vec![scan]).unwrap();
        let (team, mut frame, mut arena) = (Team::new(threads).unwrap(), tape.frame(), Aligned::new(&l.board.data));
        let mut recorder = Recorder::default();
        let mut once = |recorder: &mut Recorder| {
            recorder.start();
            let watching = Some(Watching::Times(recorder));
            tape.run(&mut frame, &team, arena.get(), [], [], watching, &AtomicBool::new(false)).unwrap();
            recorder.stop();
        };
        once(&mut recorder);
        recorder.link(true);
        recorder.clear();
        let start = crate::clock::ticks();
        (0..200).for_each(|_| once(&mut recorder));
        let whole = (crate::clock::ticks() - start) as f64;
        let sum = recorder.outside() as f64 + recorder.times().iter().map(|t| t.ticks).sum::<f64>();
        // Exact but for the first and the last reading, and for counters of two cores that differ.
        assert!((0.9..1.02).contains(&(sum / whole)), "{sum} of {whole} ticks, {threads} threads");
        assert!(recorder.times().iter().all(|t| t.calls > 0 && t.readings > 0.0 && t.ticks > 0.0));
    }
}

#[test]
fn a_recorder_fits_itself_to_another_tape_and_forgets() {
    let (mut recorder, ..) = watched(4, Some(2), 1, 3);
    assert!(recorder.times().iter().any(|t| t.calls > 3));
    recorder.clear();
    assert!(recorder.times().iter().all(|t| (t.calls, t.busy) == (0, 0)) && recorder.events().count() == 0);
    let mut board = Board::default();
    let at = board.room(64);
    let tape = Tape::new(on(Isa::PORTABLE), 1, board.memory(), vec![Call::Zero { dst: at }]).unwrap();
    let mut arena = Aligned::new(&board.data);
    let watching = Some(Watching::Times(&mut recorder));
    let cancel = AtomicBool::new(false);
    tape.run(&mut tape.frame(), Team::solo(), arena.get(), [], [], watching, &cancel).unwrap();
    assert_eq!(counts(&recorder), [(vec![0], 1)]);
}
