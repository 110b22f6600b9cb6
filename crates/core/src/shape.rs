//! Shapes whose sizes may be symbols, so that one graph serves every batch and sequence length.
//!
//! A size is a polynomial in symbols with integer coefficients (`B`, `B*T`, `2*T - 1`) in one canonical form. Two sizes
//! are equal exactly when they are equal for every binding, which makes shape checks a plain comparison.

use crate::error::{Error, Result};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

/// The sizes that symbols stand for in one run.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Bindings(BTreeMap<String, usize>);

impl Bindings {
    /// Nothing bound.
    pub fn new() -> Self {
        Self::default()
    }
    /// With `symbol` standing for `size`.
    pub fn with(mut self, symbol: &str, size: usize) -> Self {
        self.0.insert(symbol.to_owned(), size);
        self
    }
    /// What `symbol` stands for.
    pub fn get(&self, symbol: &str) -> Option<usize> {
        self.0.get(symbol).copied()
    }
    /// Binds `symbol`, or says what it was bound to before if that differs.
    pub fn bind(&mut self, symbol: &str, size: usize) -> std::result::Result<(), usize> {
        match self.0.get(symbol) {
            Some(&old) if old != size => Err(old),
            Some(_) => Ok(()),
            None => {
                self.0.insert(symbol.to_owned(), size);
                Ok(())
            }
        }
    }
    /// Symbols and sizes in name order.
    pub fn iter(&self) -> impl Iterator<Item = (&str, usize)> {
        self.0.iter().map(|(k, v)| (k.as_str(), *v))
    }
    /// Forgets everything.
    pub fn clear(&mut self) {
        self.0.clear();
    }
}

impl fmt::Display for Bindings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (i, (symbol, size)) in self.iter().enumerate() {
            write!(f, "{}{symbol}={size}", if i > 0 { ", " } else { "" })?;
        }
        Ok(())
    }
}

type Monomial = Vec<Arc<str>>;

/// Limits on a formula, far beyond what shapes need, so that a hostile file cannot make one grow without end.
const MAX_TERMS: usize = 32;
const MAX_DEGREE: usize = 12;

/// One size: a number, a symbol, or a polynomial of symbols.
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Default)]
pub struct Dim {
    /// Sorted by monomial, no coefficient 0; empty means 0.
    terms: BTreeMap<Monomial, i64>,
}

impl Dim {
    /// A size known now.
    pub fn fixed(size: usize) -> Dim {
        // A tensor cannot have more elements than memory has bytes, far below i64's limit; saturate for hostile input.
        Dim::constant(i64::try_from(size).unwrap_or(i64::MAX))
    }

    fn constant(value: i64) -> Dim {
        Dim { terms: if value == 0 { BTreeMap::new() } else { BTreeMap::from([(vec![], value)]) } }
    }

    /// A size that is bound when the graph runs.
    pub fn symbol(name: &str) -> Dim {
        Dim { terms: BTreeMap::from([(vec![Arc::from(name)], 1)]) }
    }

    /// The number, if no symbol is left in it (negative sizes have none).
    pub fn as_fixed(&self) -> Option<usize> {
        match self.terms.len() {
            0 => Some(0),
            1 => self.terms.get(&Vec::new() as &Monomial).and_then(|&c| usize::try_from(c).ok()),
            _ => None,
        }
    }

    /// The symbol, if this is one and nothing else.
    pub fn as_symbol(&self) -> Option<&str> {
        let mut terms = self.terms.iter();
        match (terms.next(), terms.next()) {
            (Some((symbols, 1)), None) if symbols.len() == 1 => Some(&symbols[0]),
            _ => None,
        }
    }

    /// Whether it is the number `n`.
    pub fn is(&self, n: usize) -> bool {
        self.as_fixed() == Some(n)
    }

    /// The sum, or `None` where it overflows or exceeds the limits on a formula.
    pub fn checked_add(&self, other: &Dim) -> Option<Dim> {
        let mut terms = self.terms.clone();
        if terms.len() + other.terms.len() > 2 * MAX_TERMS {
            return None;
        }
        for (symbols, c) in &other.terms {
            let sum = terms.get(symbols).copied().unwrap_or(0).checked_add(*c)?;
            if sum == 0 {
                terms.remove(symbols);
            } else {
                terms.insert(symbols.clone(), sum);
            }
        }
        (terms.len() <= MAX_TERMS).then_some(Dim { terms })
    }

    /// The difference, or `None` as for the sum.
    pub fn checked_sub(&self, other: &Dim) -> Option<Dim> {
        self.checked_add(&other.checked_mul(&Dim::constant(-1))?)
    }

    /// The product, or `None` as for the sum.
    pub fn checked_mul(&self, other: &Dim) -> Option<Dim> {
        let mut product = Dim::default();
        for (a, ca) in &self.terms {
            for (b, cb) in &other.terms {
                let mut symbols: Monomial = a.iter().chain(b).cloned().collect();
                if symbols.len() > MAX_DEGREE {
                    return None;
                }
                symbols.sort();
                let term = Dim { terms: BTreeMap::from([(symbols, ca.checked_mul(*cb)?)]) };
                product = product.checked_add(&term)?;
            }
        }
        Some(product)
    }

    /// Its value under `bindings`.
    pub fn eval(&self, bindings: &Bindings) -> Result<usize> {
        let mut total = 0i64;
        for (symbols, c) in &self.terms {
            let mut term = *c;
            for symbol in symbols {
                let size = bindings.get(symbol).ok_or_else(|| Error::Unbound { symbol: symbol.to_string() })?;
                term = i64::try_from(size).ok().and_then(|s| term.checked_mul(s)).ok_or_else(|| self.overflow())?;
            }
            total = total.checked_add(term).ok_or_else(|| self.overflow())?;
        }
        usize::try_from(total).map_err(|_| Error::Dimension { dim: self.to_string(), value: total })
    }

    fn overflow(&self) -> Error {
        Error::Dimension { dim: self.to_string(), value: i64::MAX }
    }

    /// The symbol, and a and b, if this is a · symbol + b.
    pub(crate) fn as_line(&self) -> Option<(&str, [i64; 2])> {
        let mut symbols = self.terms.iter().filter(|(symbols, _)| !symbols.is_empty());
        let (Some((name, a)), None) = (symbols.next(), symbols.next()) else { return None };
        let b = self.terms.get(&Vec::new() as &Monomial).copied().unwrap_or(0);
        if let [name] = &name[..] { Some((name, [*a, b])) } else { None }
    }

    /// (self − b) / a, if that is a polynomial with integer coefficients.
    pub(crate) fn solve(&self, [a, b]: [i64; 2]) -> Option<Dim> {
        let rest = self.checked_sub(&Dim::constant(b))?;
        let divided = rest.terms.into_iter().map(|(symbols, c)| {
            let whole = c.checked_rem(a)? == 0;
            Some((symbols, c.checked_div(a).filter(|_| whole)?))
        });
        Some(Dim { terms: divided.collect::<Option<_>>()? })
    }

    /// With every symbol replaced by what it stands for; `None` where one stands for nothing, or as for the sum.
    pub(crate) fn replaced<'a>(&self, of: &dyn Fn(&str) -> Option<&'a Dim>) -> Option<Dim> {
        let mut total = Dim::default();
        for (symbols, c) in &self.terms {
            let mut term = Dim::constant(*c);
            for symbol in symbols {
                term = term.checked_mul(of(symbol)?)?;
            }
            total = total.checked_add(&term)?;
        }
        Some(total)
    }

    /// Its value if every symbol stood for `at`: to compare sizes before any of them is known.
    pub(crate) fn eval_all(&self, at: usize) -> i64 {
        let at = i64::try_from(at).unwrap_or(i64::MAX);
        self.terms
            .iter()
            .map(|(symbols, c)| symbols.iter().fold(*c, |term, _| term.saturating_mul(at)))
            .fold(0, i64::saturating_add)
    }

    /// Calls `f` with each symbol that occurs.
    pub fn for_each_symbol(&self, mut f: impl FnMut(&str)) {
        self.terms.keys().flatten().for_each(|s| f(s));
    }

    /// Reads what [`fmt::Display`] writes.
    pub fn parse(text: &str) -> Option<Dim> {
        let mut total = Dim::default();
        let spaced = text.replace('-', "+-");
        let mut any = false;
        for (i, term) in spaced.split('+').enumerate() {
            let term = term.trim();
            if term.is_empty() && i == 0 {
                continue;
            }
            let (sign, term) = match term.strip_prefix('-') {
                Some(rest) => (-1, rest.trim()),
                None => (1, term),
            };
            let mut product = Dim::constant(sign);
            for factor in term.split('*') {
                let factor = factor.trim();
                let factor = match factor.parse::<u32>() {
                    Ok(n) => Dim::constant(i64::from(n)),
                    Err(_) if is_symbol(factor) => Dim::symbol(factor),
                    Err(_) => Dim::constant(factor.parse::<i64>().ok().filter(|n| *n >= 0)?),
                };
                product = product.checked_mul(&factor)?;
            }
            total = total.checked_add(&product)?;
            any = true;
        }
        any.then_some(total)
    }
}

/// Whether `name` can be a symbol: a letter or `_`, then letters, digits and `_`.
pub fn is_symbol(name: &str) -> bool {
    let mut chars = name.chars();
    chars.next().is_some_and(|c| c.is_ascii_alphabetic() || c == '_')
        && chars.all(|c| c.is_ascii_alphanumeric() || c == '_')
}

impl From<usize> for Dim {
    fn from(size: usize) -> Dim {
        Dim::fixed(size)
    }
}
impl From<i32> for Dim {
    /// For literals; a negative one makes a size that no binding satisfies, which the builder refuses.
    fn from(size: i32) -> Dim {
        Dim::constant(i64::from(size))
    }
}
impl From<&str> for Dim {
    /// A symbol, or a formula such as `2*T - 1`; anything else becomes a symbol of that (invalid) name, which the
    /// builder refuses.
    fn from(text: &str) -> Dim {
        Dim::parse(text).unwrap_or_else(|| Dim::symbol(text))
    }
}
impl From<&Dim> for Dim {
    fn from(dim: &Dim) -> Dim {
        dim.clone()
    }
}

impl fmt::Display for Dim {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.terms.is_empty() {
            return f.write_str("0");
        }
        // Symbols first, the number last, as people write it.
        let (numbers, symbols): (Vec<_>, Vec<_>) = self.terms.iter().partition(|(s, _)| s.is_empty());
        for (i, (symbols, c)) in symbols.into_iter().chain(numbers).enumerate() {
            match (i, *c < 0) {
                (0, true) => f.write_str("-")?,
                (0, false) => {}
                (_, true) => f.write_str(" - ")?,
                (_, false) => f.write_str(" + ")?,
            }
            let size = c.unsigned_abs();
            if symbols.is_empty() {
                write!(f, "{size}")?;
            } else {
                if size != 1 {
                    write!(f, "{size}*")?;
                }
                f.write_str(&symbols.join("*"))?;
            }
        }
        Ok(())
    }
}
impl fmt::Debug for Dim {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl Serialize for Dim {
    fn serialize<S: serde::Serializer>(&self, s: S) -> std::result::Result<S::Ok, S::Error> {
        match self.as_fixed() {
            Some(n) => s.serialize_u64(n as u64),
            None => s.serialize_str(&self.to_string()),
        }
    }
}
impl<'de> Deserialize<'de> for Dim {
    fn deserialize<D: serde::Deserializer<'de>>(d: D) -> std::result::Result<Dim, D::Error> {
        #[derive(Deserialize)]
        #[serde(untagged, expecting = "expected a size: a number, or text such as \"2*T - 1\"")]
        enum Either {
            Number(u64),
            Text(String),
        }
        match Either::deserialize(d)? {
            Either::Number(n) => i64::try_from(n).map(Dim::constant).map_err(serde::de::Error::custom),
            Either::Text(text) if text.len() <= 256 => Dim::parse(&text).ok_or_else(|| {
                serde::de::Error::custom(format!("{text:?} is not a size: want a number or e.g. 2*T - 1"))
            }),
            Either::Text(_) => Err(serde::de::Error::custom("a size of more than 256 characters")),
        }
    }
}

/// The sizes of a tensor, outermost first.
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Default, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Shape(Vec<Dim>);

impl Shape {
    /// A shape of these sizes.
    pub fn new(dims: impl IntoIterator<Item = impl Into<Dim>>) -> Shape {
        Shape(dims.into_iter().map(Into::into).collect())
    }
    /// The shape of a single number.
    pub fn scalar() -> Shape {
        Shape(vec![])
    }
    /// How many axes.
    pub fn rank(&self) -> usize {
        self.0.len()
    }
    /// The sizes.
    pub fn dims(&self) -> &[Dim] {
        &self.0
    }
    /// How many elements, as a size; `None` where it overflows.
    pub fn count(&self) -> Option<Dim> {
        self.0.iter().try_fold(Dim::fixed(1), |product, d| product.checked_mul(d))
    }
    /// The sizes under `bindings`.
    pub fn eval(&self, bindings: &Bindings) -> Result<Vec<usize>> {
        self.0.iter().map(|d| d.eval(bindings)).collect()
    }
    /// The sizes, if none is symbolic.
    pub fn as_fixed(&self) -> Option<Vec<usize>> {
        self.0.iter().map(Dim::as_fixed).collect()
    }

    /// The shape to which both broadcast ("stretch", in messages): axes are aligned at the last one, and a size of 1 is
    /// repeated to the other's size.
    pub fn broadcast(&self, other: &Shape) -> Option<Shape> {
        let rank = self.rank().max(other.rank());
        let one = Dim::fixed(1);
        let at = |shape: &Shape, axis: usize| {
            (axis + shape.rank()).checked_sub(rank).map_or(one.clone(), |i| shape.0[i].clone())
        };
        (0..rank)
            .map(|axis| {
                let (a, b) = (at(self, axis), at(other, axis));
                if a == b || b.is(1) {
                    Some(a)
                } else if a.is(1) {
                    Some(b)
                } else {
                    None
                }
            })
            .collect::<Option<Vec<_>>>()
            .map(Shape)
    }
}

impl<const N: usize> From<[usize; N]> for Shape {
    fn from(dims: [usize; N]) -> Shape {
        Shape::new(dims)
    }
}
impl From<Vec<Dim>> for Shape {
    fn from(dims: Vec<Dim>) -> Shape {
        Shape(dims)
    }
}
impl From<&[usize]> for Shape {
    fn from(dims: &[usize]) -> Shape {
        Shape::new(dims.iter().copied())
    }
}
impl std::ops::Index<usize> for Shape {
    type Output = Dim;
    fn index(&self, axis: usize) -> &Dim {
        &self.0[axis]
    }
}
impl fmt::Display for Shape {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("[")?;
        for (i, d) in self.0.iter().enumerate() {
            write!(f, "{}{d}", if i > 0 { ", " } else { "" })?;
        }
        f.write_str("]")
    }
}
impl fmt::Debug for Shape {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// Builds a [`Shape`] from numbers and symbols: `shape!["B", "T", 64]`.
#[macro_export]
macro_rules! shape {
    ($($dim:expr),* $(,)?) => { $crate::Shape::from(vec![$($crate::Dim::from($dim)),*] as Vec<$crate::Dim>) };
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_have_one_form_and_read_back() {
        let b = Dim::symbol("B");
        let t = Dim::symbol("T");
        let bt = b.checked_mul(&t).unwrap();
        assert_eq!(bt, t.checked_mul(&b).unwrap());
        let d = bt.checked_add(&Dim::fixed(3)).unwrap().checked_sub(&b).unwrap();
        assert_eq!(Dim::parse(&d.to_string()), Some(d.clone()), "{d}");
        assert_eq!(d.eval(&Bindings::new().with("B", 2).with("T", 5)).unwrap(), 11);
        assert_eq!(b.checked_sub(&b).unwrap(), Dim::fixed(0));
        for bad in ["", "2**T", "T+", "a b", "%"] {
            assert_eq!(Dim::parse(bad), None, "{bad:?}");
        }
    }

    #[test]
    fn a_negative_or_unbound_size_is_an_error() {
        let d = Dim::parse("T - 4").unwrap();
        assert!(matches!(d.eval(&Bindings::new().with("T", 3)), Err(Error::Dimension { value: -1, .. })));
        assert!(matches!(d.eval(&Bindings::new()), Err(Error::Unbound { .. })));
        let huge = Dim::parse("T*T*T").unwrap();
        assert!(huge.eval(&Bindings::new().with("T", usize::MAX / 2)).is_err());
    }

    #[test]
    fn a_size_that_is_a_line_is_solved_and_symbols_are_replaced() {
        let line = Dim::parse("16*w + 48").unwrap();
        let ("w", numbers) = line.as_line().unwrap() else { panic!("{line} is a line of w") };
        assert_eq!(Dim::parse("32*K + 80").unwrap().solve(numbers), Dim::parse("2*K + 2"));
        assert_eq!(Dim::fixed(49).solve(numbers), None);
        for other in ["7", "a*b", "a + b", "w*w"] {
            assert_eq!(Dim::parse(other).unwrap().as_line(), None, "{other}");
        }
        let two = Dim::parse("T + 2").unwrap();
        let of = |symbol: &str| (symbol == "w").then_some(&two);
        assert_eq!(Dim::parse("w*w - 4").unwrap().replaced(&of), Dim::parse("T*T + 4*T"));
        assert_eq!(Dim::parse("v").unwrap().replaced(&of), None);
    }

    #[test]
    fn shapes_broadcast_from_the_right() {
        let s = shape!["B", 1, 64];
        assert_eq!(s.broadcast(&shape![16, 1]), Some(shape!["B", 16, 64]));
        assert_eq!(s.broadcast(&shape![16, 2]), None);
        assert_eq!(s.to_string(), "[B, 1, 64]");
    }
}
