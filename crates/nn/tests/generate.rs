//! Generation: a decoder with a cache says what the decoder says, symbol for symbol.

use schwann_core::quant::{Layers, Scheme, Weights, quantize};
use schwann_core::{CompileOptions, DType, Graph, GraphBuilder, Program, Tensor, shape};
use schwann_nn::decoder::{Decoder, FeedForward, Pairing};
use schwann_nn::generate::{Generator, Sampler, Sampling, cached};

fn kinds() -> Vec<(&'static str, Decoder)> {
    let plain = Decoder::tiny();
    let mut neighbours = plain.clone();
    neighbours.rope.pairing = Pairing::Neighbours;
    let bitnet = Decoder {
        sub_norms: true,
        rounded: true,
        feed_forward: FeedForward::SquaredRelu,
        tied: true,
        key_heads: 1,
        ..plain.clone()
    };
    let qwen = Decoder { biases: true, head_norms: true, key_heads: 4, ..plain.clone() };
    // Sizes that are multiples of nothing.
    let odd = Decoder { width: 37, heads: 3, key_heads: 3, head_size: 6, hidden: 51, vocabulary: 259, ..plain.clone() };
    vec![("plain", plain), ("neighbours", neighbours), ("bitnet", bitnet), ("qwen", qwen), ("odd", odd)]
}

fn graph(decoder: &Decoder) -> Graph {
    decoder.graph(&decoder.draw(5).unwrap()).unwrap()
}

/// Logits after each symbol, all computed at once.
fn at_once(graph: &Graph, tokens: &[i32]) -> Vec<Vec<f32>> {
    let program = Program::compile(graph, &CompileOptions::default().threads(1)).unwrap();
    let mut session = program.session();
    let tokens = Tensor::new(&[1, tokens.len()], tokens).unwrap();
    let logits = session.run(&[("tokens", &tokens)]).unwrap()[0].clone();
    let vocabulary = logits.shape()[2];
    logits.values::<f32>().unwrap().chunks(vocabulary).map(<[f32]>::to_vec).collect()
}

#[track_caller]
fn near(got: &[f32], want: &[f32], what: &str) {
    let largest = want.iter().fold(0.0f32, |m, x| m.max(x.abs()));
    let worst = got.iter().zip(want).fold(0.0f32, |m, (a, b)| m.max((a - b).abs()));
    assert!(got.len() == want.len() && worst <= 1e-4 * largest, "{what}: off by {worst} of {largest}");
}

fn greedy(graph: &Graph, prompt: &[i32], count: usize) -> Vec<i32> {
    let options = CompileOptions::default().threads(1);
    let mut generator = Generator::new(graph, &options, prompt.len() + count).unwrap();
    let mut sampler = Sampler::new(Sampling::default()).unwrap();
    let mut all = prompt.to_vec();
    let mut next = sampler.pick(generator.feed(prompt).unwrap()).unwrap();
    for _ in 1..count {
        all.push(next);
        next = sampler.pick(generator.feed(&[next]).unwrap()).unwrap();
    }
    all.push(next);
    all
}

#[test]
fn with_a_cache_every_symbol_is_the_one_that_computing_all_again_gives() {
    let prompt: Vec<i32> = b"What follows".iter().map(|b| i32::from(*b)).collect();
    for (name, decoder) in kinds() {
        let plain = graph(&decoder);
        let layers = Layers::of(&plain);
        let weights = |layer| Weights::LowBit {
            matrix: quantize(&layers.matrix(layer).unwrap(), Scheme::TERNARY, None).unwrap(),
            rounded: true,
        };
        let ternary = layers.with(&layers.list().iter().map(weights).enumerate().collect()).unwrap();
        for (what, graph) in [("as drawn", &plain), ("ternary", &ternary)] {
            let all = greedy(graph, &prompt, 24);
            let logits = at_once(graph, &all);
            let mut sampler = Sampler::new(Sampling::default()).unwrap();
            for at in prompt.len()..all.len() {
                let again = sampler.pick(&logits[at - 1]).unwrap();
                assert_eq!(all[at], again, "{name}, {what}: symbol {at}");
            }
        }
    }
}

#[test]
fn a_prompt_in_pieces_or_at_once_gives_the_same_numbers() {
    let tokens: Vec<i32> = (0..40).map(|i| (i * 37 + 11) % 256).collect();
    for (name, decoder) in kinds() {
        let graph = graph(&decoder);
        let want = at_once(&graph, &tokens);
        // Rounded rows have steps, which a last bit of attention may cross.
        let exact = !decoder.rounded;
        let mut generator = Generator::new(&graph, &CompileOptions::default().threads(1), 64).unwrap();
        for pieces in [vec![40], vec![1; 40], vec![7, 1, 30, 2]] {
            generator.truncate(0);
            let mut at = 0;
            for piece in pieces {
                let got = generator.feed(&tokens[at..at + piece]).unwrap().to_vec();
                at += piece;
                if exact {
                    near(&got, &want[at - 1], &format!("{name} after {at}"));
                }
            }
            assert_eq!((generator.len(), generator.room()), (40, 64));
        }
        // What was forgotten has no influence, whatever is still in the cache.
        generator.truncate(10);
        let other: Vec<i32> = tokens[10..20].iter().map(|t| (t + 1) % 256).collect();
        let got = generator.feed(&other).unwrap().to_vec();
        let all: Vec<i32> = tokens[..10].iter().chain(&other).copied().collect();
        if exact {
            near(&got, &at_once(&graph, &all)[19], name);
        }
    }
}

#[test]
fn long_prompts_are_taken_in_parts() {
    let decoder = Decoder { context: 700, layers: 1, ..Decoder::tiny() };
    let graph = graph(&decoder);
    let tokens: Vec<i32> = (0..600).map(|i| (i * 31 + 5) % 256).collect();
    let mut generator = Generator::new(&graph, &CompileOptions::default().threads(2), 600).unwrap();
    let got = generator.feed(&tokens).unwrap().to_vec();
    near(&got, &at_once(&graph, &tokens)[599], "600 symbols");
}

#[test]
fn caches_are_changed_where_they_are() {
    let graph = cached(&graph(&Decoder::tiny())).unwrap();
    let program = Program::compile(&graph, &CompileOptions::default().threads(1)).unwrap();
    let mut generator = Generator::over(program, 16).unwrap();
    generator.feed(&[1, 2, 3]).unwrap();
    let plan = generator.session().plan().unwrap();
    let puts: Vec<bool> = plan.steps.iter().filter(|s| s.op == "put").map(|s| s.in_place).collect();
    assert_eq!(puts, [true; 4]);
}

#[test]
fn what_cannot_be_is_refused_and_the_sequence_stays() {
    let plain = graph(&Decoder::tiny());
    let options = CompileOptions::default().threads(1);
    let mut generator = Generator::new(&plain, &options, 4).unwrap();
    let first = generator.feed(&[1, 2]).unwrap().to_vec();
    for (tokens, words) in [
        (&[][..], "`tokens` is 0; expected 1 to 2: 2 of 4 places are taken"),
        (&[1, 2, 3], "`tokens` is 3; expected 1 to 2"),
        (&[256], "`token` is 256; expected from 0 to 255"),
        (&[-1], "`token` is -1"),
    ] {
        let error = generator.feed(tokens).unwrap_err().to_string();
        assert!(error.contains(words) && generator.len() == 2, "{error}");
    }
    generator.truncate(0);
    assert_eq!(generator.feed(&[1, 2]).unwrap(), first);
    for (room, words) in [(0, "`room` is 0; expected from 1 to 128"), (129, "`room` is 129")] {
        let error = Generator::new(&plain, &options, room).unwrap_err().to_string();
        assert!(error.contains(words), "{error}");
    }
    let mut b = GraphBuilder::new();
    let x = b.input("x", DType::F32, shape!["B", 4]).unwrap();
    b.output("y", x).unwrap();
    let error = cached(&b.build().unwrap()).unwrap_err().to_string();
    assert!(error.contains("not a decoder's graph: it has no input `tokens`"), "{error}");
    let error = cached(&cached(&plain).unwrap()).unwrap_err().to_string();
    assert!(error.contains("it has inputs or states beside `tokens`"), "{error}");
}
