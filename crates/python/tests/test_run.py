"""Networks run, and give what they give elsewhere."""

import pickle
import threading

import numpy as np
import pytest
import schwann
from conftest import GOLDEN, read_safetensors

CIRCUITS = sorted(p for p in GOLDEN.glob("*.safetensors") if not p.name.startswith("wiring"))


@pytest.mark.parametrize("path", CIRCUITS, ids=lambda p: p.stem)
def test_networks_of_ncps_give_what_they_gave_in_python(path):
    arrays, _ = read_safetensors(path)
    model = schwann.load(path)
    states = [arrays[name] for name in ("h0", "c0") if name in arrays]
    hx = None if not states else states[0] if len(states) == 1 else tuple(states)
    if "x" not in arrays:
        pytest.skip(f"{path.name} has no sample")
    x, spans = arrays["x"], arrays.get("timespans")
    x = x if x.dtype == "int32" else x.astype("float32")
    y, last = model(x, hx, None if spans is None else spans.reshape(x.shape[:-1]).astype("float32"))
    np.testing.assert_allclose(y, arrays["y"].reshape(y.shape), rtol=1e-5, atol=1e-5)
    if "hn" in arrays and not isinstance(last, dict):
        hn = last[0] if isinstance(last, tuple) else last
        np.testing.assert_allclose(hn, arrays["hn"].reshape(hn.shape), rtol=1e-5, atol=1e-5)


def test_a_whole_sequence_and_step_by_step_give_the_same_bits(cfc, x):
    whole = cfc.run(x[:1])
    session = cfc.session()
    steps = [session.run(x[:1, t : t + 1]) for t in range(x.shape[1])]
    assert np.array_equal(whole, np.concatenate(steps, axis=1))


def test_a_first_state_is_given_as_in_ncps(cfc, x):
    y, hn = cfc(x)
    before, after = x[:, :5].copy(), x[:, 5:].copy()
    first, middle = cfc(before)
    second, last = cfc(after, middle)
    np.testing.assert_allclose(np.concatenate([first, second], axis=1), y, atol=1e-6)
    np.testing.assert_allclose(last, hn, atol=1e-6)
    np.testing.assert_allclose(cfc.run(after, state={"h0": middle}), second, atol=0)


def test_one_sequence_needs_no_batch(cfc, x):
    np.testing.assert_allclose(cfc.run(x[0]), cfc.run(x[:1])[0], atol=1e-6)
    assert cfc(x[0])[1].shape == (64,)


def test_times_are_a_number_or_an_array(cfc, x):
    half = np.full(x.shape[:2], 0.5, "float32")
    np.testing.assert_allclose(cfc.run(x, timespans=half), cfc.run(x, timespans=0.5), atol=1e-6)
    assert not np.allclose(cfc.run(x), cfc.run(x, timespans=0.5))
    session = cfc.session(timespans=True)
    np.testing.assert_allclose(session.run(x, timespans=half), cfc.run(x, timespans=half), atol=1e-6)


def test_models_come_back_from_files_bytes_and_pickles(cfc, x, tmp_path):
    wanted = cfc.run(x)
    cfc.save(tmp_path / "net.safetensors")
    for again in (
        schwann.load(tmp_path / "net.safetensors"),
        schwann.from_bytes(cfc.to_bytes()),
        pickle.loads(pickle.dumps(cfc)),
    ):
        assert np.array_equal(again.run(x), wanted)
    options = pickle.loads(pickle.dumps(cfc.with_options(threads=1, backend="reference", tuned=(4, 12))))
    assert (options.threads, options.backend) == (1, "reference")
    np.testing.assert_allclose(options.run(x), wanted, atol=1e-5)


def test_a_file_that_is_overwritten_changes_nothing(tmp_path, x):
    path = tmp_path / "net.safetensors"
    schwann.load("wired-cfc").save(path)
    model = schwann.load(path)
    path.write_bytes(b"")
    assert np.array_equal(model.run(x), schwann.load("wired-cfc").run(x))


def test_a_graph_takes_and_gives_arrays_by_name(cfc, x):
    small = schwann.quantize(cfc, "int8").model
    h0 = np.zeros((4, 64), "float32")
    assert small.run({"x": x}).shape == (4, 12, 16)
    np.testing.assert_allclose(small.run({"x": x, "h0": h0}), cfc.run(x), atol=0.1)
    assert np.array_equal(small.run(x), small.run({"x": x})), "states begin at zero in every run"


def test_what_a_model_is_can_be_asked(cfc):
    assert cfc.inputs == {"x": "f32[B, T, 8]", "h0": "f32[B, 64]"}
    assert cfc.outputs == {"y": "f32[B, T, 16]", "hn": "f32[B, 64]"}
    assert "64 neurons" in cfc.info
    assert cfc.weights["rnn_cell.layer_0.ff1.weight"].dtype == np.float32
    assert repr(cfc) == "Model(CfC: x f32[B, T, 8] -> y f32[B, T, 16])"


def test_sessions_carry_and_show_their_states(cfc, x):
    session = cfc.session()
    assert session.state == {}
    first = session.run(x)
    kept = session.state
    assert kept["h0"].shape == (4, 64)
    second = session.run(x)
    session.state = kept
    assert np.array_equal(session.run(x), second)
    session.reset()
    assert np.array_equal(session.run(x), first)
    assert "cfc" in session.plan


def test_eight_threads_share_one_model(cfc):
    inputs = [np.random.default_rng(i).standard_normal((3, 20, 8)).astype("float32") for i in range(8)]
    wanted = [cfc.run(one) for one in inputs]
    wrong = []

    def work(i):
        for _ in range(50):
            if not np.array_equal(cfc.run(inputs[i]), wanted[i]):
                wrong.append(i)

    threads = [threading.Thread(target=work, args=(i,)) for i in range(8)]
    [t.start() for t in threads]
    [t.join() for t in threads]
    assert wrong == []


def test_the_lock_is_free_while_a_model_runs(dense):
    big = np.zeros((512, 400, 8), "float32")
    dense.run(big[:1, :1])
    ticks, done = [0], threading.Event()

    def count():
        while not done.is_set():
            ticks[0] += 1
            done.wait(0.0005)

    thread = threading.Thread(target=count)
    thread.start()
    before = ticks[0]
    dense.run(big)
    during = ticks[0] - before
    done.set()
    thread.join()
    assert during >= 3, "another thread could not run meanwhile"


def test_a_session_is_for_one_thread_at_a_time(dense):
    session = dense.session()
    big = np.zeros((512, 400, 8), "float32")
    problems, started = [], threading.Event()

    def run():
        started.set()
        session.run(big)

    thread = threading.Thread(target=run)
    thread.start()
    started.wait()
    while thread.is_alive():
        try:
            session.reset()
        except RuntimeError as problem:
            problems.append(str(problem))
            break
    thread.join()
    assert problems and "another thread" in problems[0]
