//! The machine: hardware counters, memory, clocks, temperatures and power, each reading a
//! [`Figure`](schwann_core::Figure) that says where it came from. What is not permitted or not there is `unavailable`,
//! with the reason and, where there is one, the way to enable it.
