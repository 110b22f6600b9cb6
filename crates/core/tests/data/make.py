"""Makes the files beside it, with NumPy and the original safetensors: `python make.py`."""

import os

import numpy as np
from safetensors.numpy import save_file

os.chdir(os.path.dirname(os.path.abspath(__file__)))
r = np.arange(6).reshape(2, 3)
halves = (r * 0.5 - 1).astype("<f4")

arrays = {
    "f4": halves,
    "f2": halves.astype("<f2"),
    "f8": (r * 0.1).astype("<f8"),
    "i1": (r - 3).astype("i1"),
    "u1": (r + 250).astype("u1"),
    "i2": (r - 3).astype("<i2"),
    "u2": (r + 65530).astype("<u2"),
    "i4": (r - 3).astype("<i4"),
    "u4": (r + 7).astype("<u4"),
    "i8": (r - 3).astype("<i8"),
    "u8": (r + 3).astype("<u8"),
    "b1": r % 2 == 0,
    "big_f4": halves.astype(">f4"),
    "big_i8": (r - 3).astype(">i8"),
    "fortran": np.asfortranarray(np.arange(24).reshape(2, 3, 4).astype("<i4")),
    "scalar": np.array(2.5, dtype="<f4"),
    "empty": np.zeros((0, 3), dtype="<f4"),
    "rank6": np.arange(24).reshape(1, 2, 3, 1, 4, 1).astype("<f4"),
    # What must be refused.
    "wide_i8": np.array([1 << 40], dtype="<i8"),
    "complex": np.zeros(1, dtype="<c8"),
    "text": np.array(["ab"]),
    "record": np.zeros(1, dtype=[("a", "<f4"), ("b", "<i4")]),
    "object": np.array([{}], dtype=object),
}
for name, array in arrays.items():
    np.save(f"{name}.npy", array, allow_pickle=True)
for version in (2, 3):
    with open(f"version{version}.npy", "wb") as f:
        np.lib.format.write_array(f, halves, version=(version, 0))

some = {"a": halves, "b": np.arange(3).astype("<i4"), "s": arrays["scalar"]}
np.savez("stored.npz", **some)
np.savez_compressed("deflated.npz", **some, big=np.zeros(20000, dtype="<f4"))

types = {
    "f32": halves,
    "f16": arrays["f2"],
    "f64": arrays["f8"],
    "i8": arrays["i1"],
    "u8": r.astype("u1"),
    "i32": arrays["i4"],
    "i64": arrays["i8"],
    "bool": arrays["b1"],
    "scalar": arrays["scalar"],
    "empty": arrays["empty"],
    "rank6": arrays["rank6"],
}
save_file(types, "types.safetensors", metadata={"made by": "safetensors", "é": '"quoted"'})
os.chmod("types.safetensors", 0o644)
