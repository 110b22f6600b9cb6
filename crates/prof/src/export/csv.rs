//! Comma-separated values, as RFC 4180 has them: a row a figure, or a row an operation.

use super::figures;
use crate::Profile;
use schwann_core::Provenance;

/// A field, quoted where it must be; a spreadsheet that opens the file calculates nothing of it.
fn field(text: &str) -> String {
    let text = schwann_core::show::field(text);
    match text.contains([',', '"', '\n', '\r']) {
        true => format!("\"{}\"", text.replace('"', "\"\"")),
        false => text.into_owned(),
    }
}

fn row(fields: &[String]) -> String {
    fields.iter().map(|f| field(f)).collect::<Vec<_>>().join(",") + "\r\n"
}

fn number(value: Option<f64>) -> String {
    value.map_or(String::new(), |v| v.to_string())
}

fn word(provenance: Provenance) -> &'static str {
    match provenance {
        Provenance::Measured => "measured",
        Provenance::Derived => "derived",
        Provenance::Predicted => "predicted",
        Provenance::Unavailable => "unavailable",
    }
}

/// Every figure: path, value, ends of its spread, unit, provenance, source, reason. Without a value the field is empty.
pub fn csv(profile: &Profile) -> String {
    let mut text = "path,value,low,high,unit,provenance,source,reason\r\n".to_owned();
    for (path, f) in figures(profile) {
        let (low, high) = (f.spread.map(|s| s.low), f.spread.map(|s| s.high));
        let reason = f.reason.unwrap_or_default();
        let provenance = word(f.provenance).to_owned();
        text += &row(&[path, number(f.value), number(low), number(high), f.unit, provenance, f.source, reason]);
    }
    text
}

/// Every operation; units are in the headings.
pub fn ops_csv(profile: &Profile) -> String {
    let mut text = "name,op,kernel,shape,dtype,path,within,bound,self_time_s,self_time_provenance,share_percent,calls,\
                    flops,functions,bytes,gflop_per_s,gb_per_s,of_roof_percent,predicted_s\r\n"
        .to_owned();
    for op in &profile.compute.ops {
        let path: Vec<String> = op.path.iter().map(usize::to_string).collect();
        let bound = serde_json::to_value(op.bound).ok().and_then(|v| v.as_str().map(str::to_owned));
        text += &row(&[
            op.name.clone(),
            op.op.clone(),
            op.kernel.clone(),
            op.shape.clone(),
            op.dtype.clone(),
            path.join("."),
            op.within.clone().unwrap_or_default(),
            bound.unwrap_or_default(),
            number(op.self_time.value),
            word(op.self_time.provenance).to_owned(),
            number(op.share.value),
            number(op.calls.value),
            number(op.flops.value),
            number(op.functions.value),
            number(op.bytes.value),
            number(op.gflops.value),
            number(op.gbps.value),
            number(op.of_roof.value),
            number(op.predicted.value),
        ]);
    }
    text
}
