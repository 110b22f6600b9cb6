use super::*;

/// An access to a word that was seen.
struct Seen {
    interval: u32,
    group: u32,
    thread: u16,
    write: bool,
}

/// Whether an access is a race with one of those before it, as the definition has it.
fn races(before: &[Seen], next: &Seen) -> bool {
    before.iter().any(|seen| {
        let apart =
            if seen.group == next.group { seen.interval == next.interval && seen.thread != next.thread } else { true };
        apart && (seen.write || next.write)
    })
}

#[test]
fn marks_find_what_a_list_of_all_accesses_finds() {
    let mut state = 1u64;
    let mut random = |below: u64| {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 33) % below
    };
    let (mut found, mut ended) = (0, 0);
    let mut words = Words::of([0]);
    words.watch();
    for _ in 0..20_000 {
        let first = words.last() + 1;
        let (mut clock, mut group) = (Clock { run: first, group: first, now: first }, 0);
        let mut before: Vec<Seen> = vec![];
        // Threads rarely write, or else nearly every run would end at its second access.
        let writes = 1 + random(8);
        let threads = 1 + random(3);
        let mut race = false;
        for _ in 0..8 {
            match random(6) {
                0 => {
                    clock.now += 1;
                    clock.group = clock.now;
                    group += 1;
                }
                1 | 2 => clock.now += 1,
                _ => {
                    let (thread, write) = (random(threads) as u16, random(writes) == 0);
                    let next = Seen { interval: clock.now, group, thread, write };
                    race = races(&before, &next);
                    let seen =
                        if write { words.store(0, 1, thread, &clock) } else { words.load(0, thread, &clock).map(drop) };
                    assert_eq!(seen.is_err(), race, "{seen:?}");
                    before.push(next);
                }
            }
            if race {
                break;
            }
        }
        if race {
            found += 1
        } else {
            ended += 1
        }
        words.close(clock.now);
    }
    assert!(found > 2_000 && ended > 2_000, "{found} races, {ended} without");
}
