//! Three panels across devices: arithmetic, bandwidth, and how much of each device is in use.

use super::scale::round_up;
use super::unit::{Scale, known, quantity, show};
use super::{Anchor, Drawing, Ink, LABEL, Missing, SMALL, Size, clip};
use crate::Profile;
use crate::device::predict::two_digits;
use crate::profile::DeviceOutlook;
use schwann_core::Figure;
use schwann_core::figure::Provenance;

/// More devices are no picture.
const MOST_DEVICES: usize = 50;
const ROW: f64 = 21.0;

/// Bars by device; predictions are paler and dashed, and a mark shows what was measured on this machine.
pub fn devices(profile: &Profile, size: Size) -> Result<Drawing, Missing> {
    type Of = fn(&DeviceOutlook) -> &Figure;
    let panels: [(&str, Of, Option<&Figure>); 3] = [
        ("arithmetic", |d| &d.tflops, Some(&profile.compute.tflops)),
        ("memory bandwidth", |d| &d.bandwidth, Some(&profile.memory.bandwidth)),
        ("of the device's own peak", |d| &d.utilization, None),
    ];
    let all = &profile.devices;
    if all.is_empty() {
        return Err(Missing("no devices were compared".into()));
    }
    if all.iter().all(|d| panels.iter().all(|p| known((p.1)(d)).is_none())) {
        return Err(Missing::of("nothing is known of any device", all.iter().map(|d| &d.tflops)));
    }
    let shown = &all[..all.len().min(MOST_DEVICES)];
    let narrow = size.is_narrow();
    let block = 34.0 + shown.len() as f64 * ROW;
    let head = 26.0;
    let foot = if all.len() > shown.len() { 20.0 } else { 4.0 };
    let height = head + if narrow { 3.0 * block } else { block } + foot;
    let size = Size { width: size.width, height };
    let label = format!("Arithmetic, memory bandwidth and utilization of this workload on {} devices", shown.len());
    let mut d = Drawing::new(size, label);
    let names = if narrow { 96.0 } else { 118.0 };
    d.legend(
        4.0,
        12.0,
        size.width,
        &[(Ink::Kind(0), "this machine"), (Ink::Kind(2), "other devices"), (Ink::Text, "measured here")],
    );

    let column = (size.width - names) / 3.0;
    for (i, (title, of, measured)) in panels.into_iter().enumerate() {
        let (x, y) = if narrow { (names, head + block * i as f64) } else { (names + column * i as f64, head) };
        let wide = if narrow { size.width - names } else { column };
        let reached = |f: &Figure| known(f).filter(|v| *v >= 0.0);
        let values = shown.iter().filter_map(|o| reached(of(o))).chain(measured.and_then(reached));
        let unit = &of(&shown[0]).unit;
        let greatest = values.fold(0.0, f64::max);
        let scale = Scale::of(unit, greatest);
        let end = match unit.as_str() {
            "%" => greatest.clamp(1.0, 100.0).max(greatest),
            _ => round_up(greatest / scale.per) * scale.per,
        };
        let (from, room) = (x + 8.0, wide - 62.0);
        let unit_words = if scale.label.is_empty() { unit.as_str() } else { scale.label.as_str() };
        d.text(from, y + 20.0, Anchor::Start, LABEL, Ink::Text, format!("{title}, {unit_words}"));
        d.line([(from, y + 28.0), (from, y + 32.0 + shown.len() as f64 * ROW)], Ink::Muted, 1.0);
        for (n, outlook) in shown.iter().enumerate() {
            let at = y + 31.0 + n as f64 * ROW;
            if narrow || i == 0 {
                let ink = if outlook.host { Ink::Text } else { Ink::Muted };
                let words = clip(&outlook.device, LABEL, names - 6.0);
                d.text(names, at + 14.0, Anchor::End, LABEL, ink, words).titled(&outlook.device);
            }
            let figure = of(outlook);
            let Some(value) = reached(figure) else {
                let reason = figure.reason.clone().unwrap_or_default();
                d.text(from + 6.0, at + 14.0, Anchor::Start, SMALL, Ink::Muted, "unknown").titled(reason);
                continue;
            };
            let ink = if outlook.host { Ink::Kind(0) } else { Ink::Kind(2) };
            let long = (room * value / end.max(1e-30)).max(1.0);
            let how = match figure.provenance {
                Provenance::Measured => "measured",
                Provenance::Derived => "derived",
                _ => "predicted",
            };
            let title = format!("{}: {}, {how}: {}", outlook.device, show(figure), figure.source);
            let bar = d.rect(from, at + 3.0, long, ROW - 7.0, ink).titled(title);
            if how == "predicted" {
                bar.faint(0.45).outlined(ink, 1.0).dashed();
            }
            let mut edge = from + long;
            if let (true, Some(value)) = (outlook.host, measured.and_then(reached)) {
                let at_x = from + room * value / end.max(1e-30);
                edge = edge.max(at_x);
                d.line([(at_x, at), (at_x, at + ROW - 1.0)], Ink::Text, 2.0)
                    .titled(format!("measured here: {}", quantity(value, unit)));
            }
            let number = if how == "predicted" { two_digits(value / scale.per) } else { scale.number(value) };
            d.text(edge + 6.0, at + 14.0, Anchor::Start, SMALL, Ink::Muted, number);
        }
    }
    if all.len() > shown.len() {
        let words = format!("{} more devices are in the table", all.len() - shown.len());
        d.text(4.0, height - 6.0, Anchor::Start, SMALL, Ink::Muted, words);
    }
    Ok(d)
}
