//! The functions of one value that programs can use.

/// Passes the list to a macro. Each entry has a name, the function that computes it over lanes (in [`crate::math`]; for
/// the last ones, a function of a single float), and roughly how many sixteenths of a cycle that takes for each
/// element.
macro_rules! unary_functions {
    ($with:ident) => {
        $with! {
            lanes {
            Neg = neg, 1;
            Abs = abs, 1;
            Sign = sign, 1;
            Sqrt = sqrt, 8;
            Recip = recip, 8;
            Square = square, 1;
            Exp = exp, 10;
            Log = log, 20;
            Tanh = tanh, 10;
            Sigmoid = sigmoid, 10;
            Softplus = softplus, 20;
            Relu = relu, 1;
            Silu = silu, 10;
            Gelu = gelu, 20;
            Erf = erf, 20;
            Expm1 = expm1, 12;
            Floor = floor, 1;
            /// To the nearest integer, ties to even.
            Round = round, 1;
            /// 1 where the value is 0, else 0.
            Not = not, 1;
            }
            singly {
            /// Lane by lane through `std`.
            Sin = sin, 160;
            /// Lane by lane through `std`.
            Cos = cos, 160;
            }
        }
    };
}
pub(super) use unary_functions;
