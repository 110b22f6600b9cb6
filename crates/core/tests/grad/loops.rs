//! Loops: the cells that people use, both directions and time axes, and every kind of value that enters or leaves.

use super::*;
use schwann_core::op::Scan;
use schwann_core::shape;
