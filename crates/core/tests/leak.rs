//! The leak watch on the process' own memory: one test in a program of its own, since other tests running beside it
//! would make the process grow in earnest.

use schwann_core::memory::{LeakDetector, ProcessMemory, Usage};

#[test]
#[expect(clippy::print_stderr, reason = "a test that was skipped says so")]
fn a_planted_leak_of_the_process_is_caught_and_its_absence_is_not() {
    if let Err(why) = ProcessMemory.bytes() {
        if cfg!(any(target_os = "linux", target_os = "macos")) {
            panic!("here the process' memory can be read: {why}");
        }
        eprintln!("skipped: {why}");
        return;
    }
    let work = |keep: &mut Vec<Vec<u8>>, leak: bool| {
        // Written to, so that it is resident.
        let block = vec![1u8; 4 << 20];
        assert_eq!(block.iter().map(|&b| u64::from(b)).sum::<u64>(), 4 << 20);
        if leak {
            keep.push(block);
        }
    };
    let mut keep = vec![];
    let mut detector = LeakDetector::new(16 << 20).window(5);
    work(&mut keep, false);
    detector.set_baseline().unwrap();
    for _ in 0..30 {
        work(&mut keep, false);
        let report = detector.watch().unwrap();
        assert!(!report.leaking, "{report:?}");
    }
    let mut caught = false;
    for _ in 0..30 {
        work(&mut keep, true);
        caught |= detector.watch().unwrap().leaking;
    }
    assert!(caught && detector.check().unwrap().leaking, "{detector:?}");
}
