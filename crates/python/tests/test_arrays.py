"""Arrays at the boundary: what is taken without a copy, and what is refused, with words that help."""

import gc
import os
import sys

import numpy as np
import pytest
import schwann


def resident():
    """Bytes of memory that this process has now."""
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


linux = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads /proc, which only Linux has")


def test_results_are_written_into_the_array_that_is_given(dense, x):
    wanted = dense.run(x)
    out = np.full((4, 12, 16), np.nan, "float32")
    before = out.ctypes.data
    assert dense.run(x, out=out) is out
    assert out.ctypes.data == before and np.array_equal(out, wanted)
    session = dense.session()
    assert session.run(x, out=out) is out and np.array_equal(out, wanted)
    part = np.zeros((8, 12, 16), "float32")
    dense.run(x, out=part[2:6])
    assert np.array_equal(part[2:6], wanted) and not part[:2].any() and not part[6:].any()


@linux
def test_large_arrays_are_not_copied():
    """160 MB go in and 160 MB come out. The session has room of its own for the result, which is not used here (that the last
    kernel writes into the caller's memory is a test of the engine); a copy of what goes in would be seen beside that."""
    model = schwann.Model.of([{"class": "Activation", "function": "tanh"}], threads=1)
    x = np.ones((10_000, 4_000), "float32")
    out = np.ones_like(x)
    session = model.session()
    session.run(x[:1])
    before = max(resident(), peak())
    session.run(x, out=out)
    assert peak() - before < 1.25 * x.nbytes
    assert abs(float(out[5, 5]) - np.tanh(1.0)) < 1e-6


def peak():
    import resource

    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def test_other_floats_are_widened_and_rounded(dense, x):
    half = x.astype("float16")
    wanted = dense.run(half.astype("float32"))
    assert np.array_equal(dense.run(half), wanted)
    out = np.empty(wanted.shape, "float16")
    dense.run(half, out=out)
    assert np.array_equal(out, wanted.astype("float16"))


def test_bfloat16_of_ml_dtypes(dense, x):
    ml_dtypes = pytest.importorskip("ml_dtypes", reason="ml_dtypes, for bfloat16 in NumPy, is not here")
    brief = x.astype(ml_dtypes.bfloat16)
    assert np.array_equal(dense.run(brief), dense.run(brief.astype("float32")))


class Protocol:
    """An array that only speaks NumPy's protocol."""

    def __init__(self, array):
        self.array = array

    @property
    def __array_interface__(self):
        return self.array.__array_interface__


class DLPack:
    """An array that only speaks DLPack."""

    def __init__(self, array, device=(1, 0)):
        self.array, self.device = array, device

    def __dlpack_device__(self):
        return self.device

    def __dlpack__(self, **options):
        return self.array.__dlpack__(**options)


def test_arrays_of_other_packages(dense, x):
    wanted = dense.run(x)
    assert np.array_equal(dense.session().run(Protocol(x)), wanted)
    assert np.array_equal(dense.session().run(DLPack(x)), wanted)
    out = np.empty_like(wanted)
    dense.session().run(DLPack(x), out=DLPack(out))
    assert np.array_equal(out, wanted)
    with pytest.raises(ValueError, match="`x` is on cuda:1; expected an array in the processor's memory"):
        dense.session().run(DLPack(x, (2, 1)))


def test_a_slice_of_whole_rows_is_no_copy_and_others_are_refused(dense, x):
    np.testing.assert_allclose(dense.run(x[1:3]), dense.run(x)[1:3], atol=1e-6)
    with pytest.raises(ValueError, match=r"`x`, float32\[4, 12, 8\], has gaps .* numpy.ascontiguousarray\(x\)"):
        dense.run(np.zeros((4, 12, 16), "float32")[:, :, ::2])
    with pytest.raises(ValueError, match="has gaps"):
        dense.run(np.asfortranarray(x))
    with pytest.raises(ValueError, match="has gaps"):
        dense.session().run(DLPack(np.zeros((4, 24, 8), "float32")[:, ::2]))
    odd = np.frombuffer(bytearray(4 * 8 + 1), dtype="uint8")[1:].view("float32").reshape(1, 1, 8)
    if not odd.flags.aligned:
        with pytest.raises(ValueError, match="aligned"):
            dense.run(odd)


@pytest.mark.parametrize(
    "wrong, kind, words",
    [
        (np.zeros((4, 12, 8)), TypeError, r'`x` is float64\[4, 12, 8\]; expected float32: x.astype\("float32"\)'),
        (np.zeros((4, 12, 8), ">f4"), TypeError, "`x` is >f4"),
        (np.zeros((4, 12, 8), "int32"), TypeError, r"`x` is int32\[4, 12, 8\]"),
        (np.zeros((4, 12, 8), "complex64"), TypeError, "complex64"),
        (np.zeros((4, 12, 8), "object"), TypeError, "object"),
        (np.array(["a"]), TypeError, "<U1"),
        (np.zeros((4, 12, 7), "float32"), ValueError, r"input `x`: expected f32\[B, T, 8\], got shape \[4, 12, 7\]"),
        (np.zeros((1, 4, 12, 8), "float32"), ValueError, r"got shape \[1, 4, 12, 8\]"),
        (np.zeros((1,) * 9, "float32"), ValueError, "9 axes; expected at most 8"),
        ("text", TypeError, "`x` is a str; expected a NumPy array"),
        (None, TypeError, "`x` is a NoneType"),
        (3.0, TypeError, "`x` is a float"),
        ([[1.0, 2.0]], TypeError, "float64"),
        ({"x": 1}, TypeError, "`x` is a int"),
        ({"z": np.zeros((4, 12, 8), "float32")}, LookupError, "no input named `z`; there is `x`"),
        ({}, ValueError, "input `x`: expected .* got nothing"),
    ],
    ids=str,
)
def test_wrong_inputs_are_refused_with_name_expected_and_got(dense, wrong, kind, words):
    with pytest.raises(kind, match=words):
        dense.run(wrong)
    with pytest.raises(kind, match=words):
        dense.session().run(wrong)


def test_wrong_places_for_results_are_refused(dense, x):
    good = np.empty((4, 12, 16), "float32")
    with pytest.raises(ValueError, match=r"`out` is float32\[4, 12, 15\]; expected a float32\[4, 12, 16\]"):
        dense.run(x, out=np.empty((4, 12, 15), "float32"))
    with pytest.raises(TypeError, match=r"`out` is int32\[4, 12, 16\]"):
        dense.run(x, out=np.zeros_like(good, "int32"))
    with pytest.raises(ValueError, match="has gaps"):
        dense.run(x, out=np.empty((4, 12, 32), "float32")[:, :, ::2])
    good.flags.writeable = False
    with pytest.raises(ValueError, match="`out` is read-only"):
        dense.run(x, out=good)
    same = np.zeros((4, 12, 8), "float32")
    echo = schwann.Model.of([{"class": "Activation", "function": "tanh"}])
    with pytest.raises(ValueError, match="`out` shares memory with an input"):
        echo.run(same.reshape(48, 8), out=same.reshape(48, 8))


def test_read_only_inputs_are_fine(dense, x):
    wanted = dense.run(x)
    x.flags.writeable = False
    assert np.array_equal(dense.run(x), wanted)


def test_an_array_cannot_be_resized_or_reshaped_under_a_run(dense):
    """The array's own shape may change meanwhile; the run goes on with what it began with."""
    import threading

    big = np.zeros((256, 400, 8), "float32")
    stop = threading.Event()
    problems = []

    def shake():
        while not stop.is_set():
            try:
                big.shape = (400, 256, 8)
                big.shape = (256, 400, 8)
                big.resize((1,))
            except ValueError as problem:
                problems.append(str(problem))

    thread = threading.Thread(target=shake)
    thread.start()
    for _ in range(20):
        try:
            assert dense.run(big).shape in ((256, 400, 16), (400, 256, 16))
        except ValueError as problem:
            assert "x" in str(problem)
        if big.size == 1:
            break
    stop.set()
    thread.join()


def test_times_and_states_of_the_wrong_shape(cfc, x):
    with pytest.raises(ValueError, match="timespans"):
        cfc.run(x, timespans=np.ones((4, 11), "float32"))
    with pytest.raises(ValueError, match="timespans"):
        cfc.run(x, timespans=float("nan"))
    with pytest.raises(ValueError, match="h0"):
        cfc.run(x, state=np.zeros((3, 64), "float32"))
    with pytest.raises(ValueError, match="`state` is a tuple of 2; expected an array"):
        cfc.run(x, state=(np.zeros((4, 64), "float32"),) * 2)
    with pytest.raises(ValueError, match="without `h0`"):
        cfc.run(x, state={})
    session = cfc.session()
    with pytest.raises(LookupError, match="no state named `h9`; there is `h0`"):
        session.state = {"h9": np.zeros((4, 64), "float32")}
    session.state = {"h0": np.zeros((9, 64), "float32")}
    with pytest.raises(ValueError, match="h0"):
        session.run(x)


@pytest.mark.parametrize(
    "call, kind, words",
    [
        (lambda: schwann.load("/no/such/file.safetensors"), FileNotFoundError, "no/such/file.safetensors"),
        (lambda: schwann.load("/"), OSError, "/"),
        (lambda: schwann.from_bytes(b"nothing"), ValueError, "safetensors"),
        (lambda: schwann.load("wired-cfc", backend="gpu9"), LookupError, "gpu9"),
        (lambda: schwann.load("wired-cfc", threads=100_000), ValueError, "`threads` is 100000; expected a number from 0"),
        (lambda: schwann.load("wired-cfc", threads=-1), OverflowError, "negative"),
        (lambda: schwann.Model.of({"class": "CfC", "input_size": 0, "units": 3}), ValueError, "`input_size` is 0"),
        (lambda: schwann.Model.of({"class": "Conv"}), ValueError, "`layers` is .*Conv"),
        (lambda: schwann.quantize(schwann.load("wired-cfc"), "int3"), ValueError, "`to` is \"int3\"; expected \"int8\""),
        (lambda: schwann.quantize(schwann.load("wired-cfc"), "int8", keep=["nose"]), LookupError, "nose"),
    ],
    ids=range(10),
)
def test_errors_are_of_the_right_kind_with_the_words_of_rust(call, kind, words):
    with pytest.raises(kind, match=words):
        call()


@linux
def test_a_million_calls_leak_nothing(dense):
    session, x = dense.session(), np.zeros((1, 1, 8), "float32")
    out = np.empty((1, 1, 16), "float32")
    runner = dense.runner()
    state = runner.state()
    wrong = np.zeros((1, 1, 8))

    def some(calls):
        for _ in range(calls):
            session.run(x)
            session.run(x, out=out)
            runner.step(state, x[0, 0])
        for _ in range(calls // 20):
            try:
                session.run(wrong)
            except TypeError:
                pass

    some(20_000)
    gc.collect()
    before = resident()
    some(1_000_000 // 3)
    gc.collect()
    assert resident() - before < 4e6


def test_anything_at_all_is_an_exception_or_a_result(dense):
    hypothesis = pytest.importorskip("hypothesis", reason="hypothesis, which makes up inputs, is not here")
    from hypothesis import strategies as some
    from hypothesis.extra import numpy as arrays

    shapes = arrays.array_shapes(min_dims=0, max_dims=6, min_side=0, max_side=9)
    kinds = some.sampled_from(["float32", "float16", "float64", "int32", "uint8", "bool", ">f4", "complex64", "<U3", "datetime64[s]"])
    array = some.builds(lambda shape, kind: np.zeros(shape, kind), shapes, kinds)
    cut = some.builds(lambda a, step: a[..., ::step] if a.ndim else a, array, some.sampled_from([1, 2, -1]))
    turned = some.builds(lambda a: a.T, array)
    odd = some.one_of(some.none(), some.text(), some.integers(), some.floats(), some.binary(), some.lists(some.floats(width=32)))
    anything = some.one_of(array, cut, turned, odd, some.dictionaries(some.sampled_from(["x", "h0", "z"]), array))
    session = dense.session()
    allowed = (TypeError, ValueError, LookupError, MemoryError, OverflowError, RuntimeError)

    @hypothesis.settings(max_examples=400, deadline=None, derandomize=True)
    @hypothesis.given(anything, some.one_of(some.none(), anything), some.one_of(some.none(), anything))
    def one(x, times, out):
        for call in (
            lambda: dense.run(x, timespans=times, out=out),
            lambda: dense(x, out, times),
            lambda: session.run(x, timespans=times, out=out),
            lambda: dense.runner().step(dense.runner().state(), x, out=out),
        ):
            try:
                call()
            except allowed as problem:
                assert str(problem)

    one()
