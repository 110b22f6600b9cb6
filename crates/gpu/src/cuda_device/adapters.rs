//! Which of NVIDIA's GPUs there are, by names that can be given on a command line.

use super::driver::{self, Missing, Properties};
use crate::device::{Products, problem};
use crate::names::{numbered, plain};
use schwann_codegen::lang::Half;
use schwann_core::{Error, Result};

/// The backend's name.
pub(super) const NAME: &str = "cuda";

/// A GPU that can be opened.
pub(super) struct Found {
    pub(super) number: i32,
    pub(super) name: String,
    pub(super) properties: Properties,
}

/// Products that can be asked for beside those in single precision.
const PRODUCTS: [Products; 3] = [Products::Split, Products::Halves(Half::F16), Products::Halves(Half::Bf16)];

/// What can be given to [`super::Cuda::open`]: the names of NVIDIA's GPUs here, in the driver's order, alone and with the products
/// that they have (`NAME-split`); and these alone, for the first GPU.
pub fn adapters() -> Vec<String> {
    let found = all().unwrap_or_default();
    let products = |found: &Found| if found.properties.multiplies() { &PRODUCTS[..] } else { &[] };
    let with =
        |found: &Found| products(found).iter().map(|p| format!("{}-{}", found.name, p.name())).collect::<Vec<_>>();
    let each = found.iter().flat_map(|found| [vec![found.name.clone()], with(found)].concat());
    let of_first = found.first().into_iter().flat_map(|found| products(found).iter().map(|p| p.name().to_owned()));
    each.chain(of_first).collect()
}

/// The GPU that this names, or the first, and how it is to multiply.
pub(super) fn find(wanted: Option<&str>) -> Result<(Found, Products)> {
    let found = all()?;
    for products in PRODUCTS {
        let name = wanted.and_then(|wanted| wanted.strip_suffix(products.name()));
        let gpu = name.and_then(|name| if name.is_empty() { Some(None) } else { name.strip_suffix('-').map(Some) });
        if let Some(gpu) = gpu
            && let Ok(found) = named(all()?, gpu)
            && found.properties.multiplies()
        {
            return Ok((found, products));
        }
    }
    Ok((named(found, wanted)?, Products::Single))
}

/// The one of this name, or the first.
fn named(mut found: Vec<Found>, wanted: Option<&str>) -> Result<Found> {
    if found.is_empty() {
        return Err(problem(NAME, "the driver of NVIDIA's GPUs is here, but no GPU that it can use"));
    }
    let at = match wanted {
        None => Some(0),
        Some(wanted) => found.iter().position(|f| f.name == wanted),
    };
    let known = || found.iter().map(|f| f.name.clone()).collect();
    let unknown = || Error::Unknown { kind: "GPU", name: wanted.unwrap_or_default().into(), known: known() };
    let at = at.ok_or_else(unknown)?;
    Ok(found.swap_remove(at))
}

fn all() -> Result<Vec<Found>> {
    let count = driver::start().map_err(|missing| {
        problem(
            NAME,
            match missing {
                Missing::Library => "there is no driver of NVIDIA's GPUs here (libcuda.so was not found)".to_owned(),
                Missing::Old(major, minor) => {
                    format!("the driver of NVIDIA's GPUs is too old: it does CUDA {major}.{minor}, and 12.0 is needed")
                }
                Missing::Failed(failure) => {
                    format!("the driver of NVIDIA's GPUs does not start: {}", driver::words(failure))
                }
            },
        )
    })?;
    let mut found: Vec<Found> = vec![];
    for number in 0..count {
        // One that does not answer is left out.
        let Ok(properties) = driver::properties(number) else { continue };
        let name = numbered(&plain(&properties.name), |name| found.iter().any(|f| f.name == name));
        found.push(Found { number, name, properties });
    }
    Ok(found)
}
