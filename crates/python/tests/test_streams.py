"""Runners: streams with states of their own."""

import pickle

import numpy as np
import pytest
import schwann


@pytest.fixture
def runner(cfc):
    return cfc.runner()


def samples(n):
    return np.random.default_rng(n).standard_normal((n, 8)).astype("float32")


def test_a_stream_gives_the_bits_of_the_whole_sequence(cfc, runner):
    x = samples(30)
    state = runner.state()
    steps = np.stack([runner.step(state, row) for row in x])
    assert np.array_equal(steps, cfc.run(x[None])[0])


def test_many_streams_in_one_call_give_what_each_gives_alone(runner):
    x = samples(50)
    together, alone = [runner.state() for _ in range(50)], [runner.state() for _ in range(50)]
    for _ in range(3):
        y = runner.step_many(together, x)
        np.testing.assert_allclose(y, [runner.step(s, row) for s, row in zip(alone, x)], atol=1e-6)


def test_a_state_goes_on_after_a_pickle_a_dict_and_a_copy(cfc, runner):
    state = runner.state()
    runner.step(state, samples(8)[0])
    others = [pickle.loads(pickle.dumps(state)), schwann.State.from_dict(state.to_dict()), state.copy()]
    wanted = runner.step(state, samples(8)[1])
    for other in others:
        assert np.array_equal(cfc.runner().step(other, samples(8)[1]), wanted)
    assert repr(state) == "State(h0[64])"
    state.reset()
    assert not state.to_dict()["h0"].any()


def test_states_of_other_models_are_refused(runner):
    other = schwann.load("wired-ltc").runner().state()
    with pytest.raises(ValueError, match="model"):
        runner.step(pickle.loads(pickle.dumps(other)), samples(1)[0])
    small = schwann.Model.of({"class": "CfC", "input_size": 8, "units": 5}).runner().state()
    with pytest.raises(ValueError, match="state"):
        runner.step(small, samples(1)[0])


def test_bad_samples_are_refused_and_leave_the_state_as_it_was(runner):
    state = runner.state()
    runner.step(state, samples(1)[0])
    kept = state.to_dict()["h0"]
    bad = samples(1)[0]
    bad[3] = np.nan
    with pytest.raises(ValueError, match="NaN at place 4; expected finite numbers"):
        runner.step(state, bad)
    with pytest.raises(ValueError, match=r"`x` is of shape \[7\]; expected \[8\]"):
        runner.step(state, samples(1)[0][:7])
    with pytest.raises(TypeError, match="float64"):
        runner.step(state, samples(1)[0].astype("float64"))
    with pytest.raises(ValueError, match=r"expected \[2, 8\]"):
        runner.step_many([state, runner.state()], samples(3))
    with pytest.raises(ValueError, match="each state once"):
        runner.step_many([state, state], samples(2))
    with pytest.raises(TypeError, match=r"`states\[0\]` is a int"):
        runner.step_many([1], samples(1))
    with pytest.raises(ValueError, match="elapsed"):
        runner.step(state, samples(1)[0], elapsed=0.5)
    assert np.array_equal(state.to_dict()["h0"], kept)


def test_time_between_samples(cfc):
    timed = cfc.runner(timespans=True)
    state = timed.state()
    y = timed.step(state, samples(1)[0], elapsed=0.5)
    np.testing.assert_allclose(y, cfc.run(samples(1)[None], timespans=0.5)[0, 0], atol=1e-6)
    many = timed.step_many([timed.state()], samples(1), elapsed=np.array([0.5], "float32"))
    assert np.array_equal(many[0], y)
    with pytest.raises(ValueError, match="-1"):
        timed.step(state, samples(1)[0], elapsed=-1)
    assert cfc.runner(timespans=0.5).step(cfc.runner(timespans=0.5).state(), samples(1)[0]).shape == (16,)


def test_results_are_written_where_they_are_wanted(runner):
    out = np.empty(16, "float32")
    assert runner.step(runner.state(), samples(1)[0], out=out) is out
    assert np.array_equal(out, runner.step(runner.state(), samples(1)[0]))
