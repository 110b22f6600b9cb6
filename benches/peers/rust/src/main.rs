//! `schwann-peers CASE THREADS SECONDS`: times the Rust peers of one case of `schwann bench ops`, one JSON object a line.
//!
//! Samples of the peers alternate, so that whatever disturbs the machine disturbs them alike.

use std::hint::black_box;
use std::time::Instant;

fn numbers(n: usize) -> Vec<f32> {
    (0..n).map(|i| ((i * 7919 + 13) % 1009) as f32 / 504.5 - 1.0).collect()
}

/// Times each closure in turn for `seconds` each and prints least and median.
fn race(case: &str, threads: usize, seconds: f64, runs: &mut [(&str, Box<dyn FnMut() + '_>)]) {
    let mut samples: Vec<Vec<f64>> = vec![Vec::new(); runs.len()];
    let mut inner = Vec::new();
    for (_, run) in runs.iter_mut() {
        run();
        let start = Instant::now();
        run();
        inner.push((2e-5 / start.elapsed().as_secs_f64().max(1e-9)).ceil().max(1.0) as usize);
    }
    let start = Instant::now();
    while start.elapsed().as_secs_f64() < seconds * runs.len() as f64 || samples[0].len() < 5 {
        for ((i, (_, run)), samples) in runs.iter_mut().enumerate().zip(&mut samples) {
            let start = Instant::now();
            for _ in 0..inner[i] {
                run();
            }
            samples.push(start.elapsed().as_secs_f64() / inner[i] as f64);
        }
    }
    for ((name, _), samples) in runs.iter().zip(&mut samples) {
        samples.sort_by(f64::total_cmp);
        let (min, median) = (samples[0], samples[samples.len() / 2]);
        println!(r#"{{"peer": "{name}", "case": "{case}", "threads": {threads}, "min_s": {min:e}, "median_s": {median:e}}}"#);
    }
}

fn product(case: &str, threads: usize, seconds: f64, [m, k, n]: [usize; 3]) {
    use faer::mat::{MatMut, MatRef};
    let (a, b) = (numbers(m * k), numbers(k * n));
    let (mut c, mut d) = (vec![0.0f32; m * n], vec![0.0f32; m * n]);
    let (gemm_par, faer_par) = match threads {
        1 => (gemm::Parallelism::None, faer::Par::Seq),
        t => (gemm::Parallelism::Rayon(t), faer::Par::rayon(t)),
    };
    let by_gemm = || {
        // SAFETY: row-major matrices of the sizes given.
        unsafe {
            gemm::gemm(
                m,
                n,
                k,
                c.as_mut_ptr(),
                1,
                n as isize,
                false,
                a.as_ptr(),
                1,
                k as isize,
                b.as_ptr(),
                1,
                n as isize,
                0.0f32,
                1.0f32,
                false,
                false,
                false,
                gemm_par,
            );
        }
        black_box(&mut c);
    };
    let by_faer = || {
        let out = MatMut::from_row_major_slice_mut(&mut d, m, n);
        let (a, b) = (MatRef::from_row_major_slice(&a, m, k), MatRef::from_row_major_slice(&b, k, n));
        faer::linalg::matmul::matmul(out, faer::Accum::Replace, a, b, 1.0f32, faer_par);
    };
    race(case, threads, seconds, &mut [("gemm", Box::new(by_gemm)), ("faer", Box::new(by_faer))]);
}

fn function(case: &str, seconds: f64, f: fn(f32) -> f32) {
    let x: Vec<f32> = numbers(4096).iter().map(|x| x * 4.0).collect();
    let mut y = vec![0.0f32; 4096];
    let run = || {
        for (y, x) in y.iter_mut().zip(black_box(&x)) {
            *y = f(*x);
        }
        black_box(&mut y);
    };
    race(case, 1, seconds, &mut [("std", Box::new(run))]);
}

fn main() {
    let args: Vec<String> = std::env::args().collect();
    let parsed = match &args[..] {
        [_, case, threads, seconds] => threads.parse().ok().zip(seconds.parse().ok()).map(|(t, s)| (case, t, s)),
        _ => None,
    };
    let Some((case, threads, seconds)) = parsed else {
        eprintln!("usage: schwann-peers CASE THREADS SECONDS");
        std::process::exit(2);
    };
    match case.as_str() {
        "unary/tanh/f32/4096" => function(case, seconds, f32::tanh),
        "unary/exp/f32/4096" => function(case, seconds, f32::exp),
        "unary/sigmoid/f32/4096" => function(case, seconds, |x| 1.0 / (1.0 + (-x).exp())),
        _ if case.starts_with("gemm/f32/") || case.starts_with("gemv/f32/") => {
            let sizes = case.rsplit('/').next().unwrap_or_default();
            let sizes: Vec<usize> = sizes.split('x').filter_map(|s| s.parse().ok()).collect();
            if let [m, k, n] = sizes[..] {
                product(case, threads, seconds, [m, k, n]);
            }
        }
        // The other cases have no Rust peer.
        _ => {}
    }
}
