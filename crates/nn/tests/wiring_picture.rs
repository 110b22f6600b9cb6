//! Pictures of circuits: complete, well formed, and without texts on top of each other.

use schwann_nn::wiring::{AutoNcp, FullyConnected, Ncp, Random, Wiring};

/// Small and large, layered and not, built and not, by hand with synapses back and over layers.
fn circuits() -> Vec<Wiring> {
    let mut by_hand = Wiring::new(7, 2).unwrap();
    by_hand.set_layers(vec![vec![6, 5], vec![4], vec![3, 2], vec![0, 1]]).unwrap();
    for (src, dest, polarity) in [(6, 4, 1), (5, 4, -1), (4, 2, -1), (0, 6, 1), (6, 0, 1), (1, 0, -1), (0, 1, 1)] {
        by_hand.add_synapse(src, dest, polarity).unwrap();
    }
    let unbuilt = by_hand.clone();
    by_hand.build(2).unwrap();
    by_hand.add_sensory_synapse(1, 0, -1).unwrap();
    let mut deep = Wiring::new(100, 1).unwrap();
    deep.set_layers((0..100).rev().map(|neuron| vec![neuron]).collect()).unwrap();
    vec![
        by_hand,
        deep,
        unbuilt,
        Wiring::new(1, 1).unwrap(),
        FullyConnected::new(1).build(1).unwrap(),
        FullyConnected { output_dim: 3, ..FullyConnected::new(12) }.build(4).unwrap(),
        FullyConnected::new(40).build(30).unwrap(),
        Random { output_dim: 5, ..Random::new(100, 0.95) }.build(12).unwrap(),
        Ncp { sensory_fanout: 4, inter_fanout: 3, motor_fanin: 3, ..Ncp::new(12, 6, 1) }.build(6).unwrap(),
        Ncp::new(1, 1, 1).build(1).unwrap(),
        Ncp::new(3, 2, 40).build(50).unwrap(),
        AutoNcp::new(64, 16).build(8).unwrap(),
        AutoNcp { sparsity_level: 0.9, ..AutoNcp::new(300, 40) }.build(20).unwrap(),
    ]
}

/// A text's box: left, top, right, bottom.
struct Text {
    content: String,
    area: [f64; 4],
}

fn attribute<'a>(tag: &'a str, name: &str) -> &'a str {
    let start = tag.find(&format!(" {name}=\"")).unwrap_or_else(|| panic!("no {name} in {tag}")) + name.len() + 3;
    &tag[start..][..tag[start..].find('"').unwrap()]
}

fn texts(svg: &str) -> Vec<Text> {
    let texts = svg.split("<text").skip(1);
    texts
        .map(|text| {
            let (tag, rest) = text.split_once('>').unwrap();
            let content = rest.split('<').next().unwrap().to_owned();
            let classes: Vec<&str> = attribute(tag, "class").split(' ').collect();
            let size: f64 = match tag.find("font-size:") {
                Some(at) => tag[at + 10..].split("px").next().unwrap().parse().unwrap(),
                None if classes.contains(&"t") => 18.0,
                None => 12.0,
            };
            let [x, y]: [f64; 2] = ["x", "y"].map(|name| attribute(tag, name).parse().unwrap());
            let width = content.chars().count() as f64 * 0.56 * size;
            let left = match classes {
                c if c.contains(&"m") || c.contains(&"l") => x - width / 2.0,
                c if c.contains(&"e") => x - width,
                _ => x,
            };
            Text { content, area: [left, y - 0.75 * size, left + width, y + 0.05 * size] }
        })
        .collect()
}

#[test]
fn no_text_is_on_top_of_another_or_outside() {
    for wiring in circuits() {
        let svg = wiring.to_svg(None).unwrap();
        let [width, height]: [f64; 2] = ["width", "height"].map(|name| attribute(&svg, name).parse().unwrap());
        let texts = texts(&svg);
        for (i, a) in texts.iter().enumerate() {
            let [left, top, right, bottom] = a.area;
            assert!(left >= 0.0 && top >= 0.0 && right <= width && bottom <= height, "`{}` is outside", a.content);
            for b in &texts[..i] {
                let apart = right <= b.area[0] || b.area[2] <= left || bottom <= b.area[1] || b.area[3] <= top;
                assert!(apart, "`{}` {:?} on `{}` {:?}, {:?}", a.content, a.area, b.content, b.area, wiring.config());
            }
        }
    }
}

#[test]
fn a_picture_shows_every_neuron_and_synapse() {
    for wiring in circuits() {
        let svg = wiring.to_svg(Some("a <b> & \"c\"")).unwrap();
        assert!(svg.starts_with("<svg ") && svg.ends_with("</svg>\n"));
        assert!(svg.contains("a &lt;b&gt; &amp; &quot;c&quot;") && svg.contains("prefers-color-scheme:dark"));
        assert!(!svg.contains("NaN") && !svg.contains("inf\""));
        let inputs = wiring.input_dim().unwrap_or(0);
        let synapses = wiring.synapse_count() + wiring.sensory_synapse_count();
        assert_eq!(svg.matches("<g class=\"o\">").count(), wiring.units() + inputs);
        assert_eq!(svg.matches(" class=\"p\"").count() + svg.matches(" class=\"q\"").count(), synapses + 2);

        let dot = wiring.to_dot();
        assert!(dot.starts_with("digraph") && dot.ends_with("}\n"));
        assert_eq!(dot.matches(" -> ").count(), synapses);
        assert_eq!(dot.matches("arrowhead=tee").count() * 2, svg.matches(" class=\"q\"").count() * 2 - 2);
    }
}

#[test]
fn a_picture_that_nobody_could_read_is_refused() {
    let error = FullyConnected::new(400).build(3).unwrap().to_svg(None).unwrap_err().to_string();
    assert!(error.contains("161200 synapses") && error.contains("at most"), "{error}");
    assert!(Wiring::new(3000, 1).unwrap().to_svg(None).is_err());
}

#[test]
fn text_fits_the_width_and_has_colour_only_when_asked() {
    for wiring in circuits() {
        for width in [40, 80, 200] {
            let text = wiring.to_text(width, false);
            assert!(!text.contains('\x1b'));
            // The first lines are sentences, which a terminal wraps.
            let widest = text.lines().skip(4).map(|line| line.chars().count()).max().unwrap_or(0);
            assert!(widest <= width, "{widest} of {width}\n{text}");
            let mut plain = wiring.to_text(width, true);
            for code in ["\x1b[38;5;39m", "\x1b[38;5;208m", "\x1b[2m", "\x1b[0m"] {
                plain = plain.replace(code, "");
            }
            let body = |text: &str| text.lines().skip(4).collect::<Vec<_>>().join("\n");
            assert_eq!(body(&plain), body(&text));
        }
    }
    let text =
        FullyConnected { self_connections: false, ..FullyConnected::new(3) }.build(1).unwrap().to_text(80, false);
    let synapses = |sign: char| text.lines().skip(6).map(|line| line.matches(sign).count()).sum::<usize>();
    assert_eq!((synapses('+') + synapses('−'), synapses('·')), (9, 3), "{text}");
}
