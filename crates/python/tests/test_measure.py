"""Profiles, quantization, training, the tuner, baselines and the gate."""

import json
import pickle

import numpy as np
import pytest
import schwann


@pytest.fixture(scope="module")
def profile(cfc):
    return schwann.profile(cfc, batch=4, steps=8, seconds=0.1, roof=False)


def test_a_profile_is_a_document_a_table_and_a_report(profile):
    assert profile["compute"]["time_p50"]["value"] > 0
    assert profile.document["workload"]["batch"]["value"] == 4
    text = repr(profile)
    assert "per run, the median" in text and "cfc.inter.gate" in text
    page = profile._repr_html_()
    assert page.startswith("<iframe srcdoc=") and "&lt;!doctype html" in page.lower()
    assert profile.html().lower().startswith("<!doctype html")
    assert pickle.loads(pickle.dumps(profile)).document == profile.document
    assert json.loads(profile.json()) == profile.document


def test_ways_sizes_and_training_are_profiled_too(cfc):
    heard = []
    profile = schwann.profile(
        cfc, batch=2, steps=2, seconds=0.05, roof=False, compare=True, sweep=[1, (2, 4)], progress=lambda *told: heard.append(told)
    )
    assert len(profile["sweep"]) == 2 and profile["comparisons"]
    assert heard and all(0 <= part <= 1 for _, part in heard)
    step = schwann.profile(cfc, batch=2, steps=2, seconds=0.05, roof=False, train=True)
    assert len(step["compute"]["ops"]) > len(profile["compute"]["ops"])


@pytest.mark.parametrize(
    "options, words",
    [
        ({"batch": 0}, "batch is 0; expected a whole number from 1"),
        ({"seconds": -1}, "seconds is -1"),
        ({"dtype": "int8"}, '`dtype` is "int8"'),
        ({"threads": 5000}, "`threads` is 5000"),
    ],
)
def test_bad_options_of_a_profile_are_refused(cfc, options, words):
    with pytest.raises(ValueError, match=words):
        schwann.profile(cfc, roof=False, **options)


def test_an_error_in_progress_ends_the_work_and_comes_out(cfc):
    def fail(what, part):
        raise ZeroDivisionError(what)

    with pytest.raises(ZeroDivisionError):
        schwann.profile(cfc, seconds=30, roof=False, progress=fail)


def test_a_device_that_is_not_known_is_refused_before_anything_is_measured(cfc):
    with pytest.raises(ValueError, match="M99"):
        schwann.predict(cfc, "M99")


def test_weights_in_few_bits(dense, x):
    wanted = dense.run(x)
    for to, most in [("bfloat16", 0.02), ("float16", 0.02), ("int8", 0.05), ("int4", 0.4), ("ternary", 3.0)]:
        small = schwann.quantize(dense, to)
        off = float(np.sqrt(np.mean((small.model.run(x) - wanted) ** 2)) / np.sqrt(np.mean(wanted**2)))
        assert off < most, to
        assert all(after < before for _, _, before, after, _ in small.layers)
        assert "backbone" in repr(small)
    kept = schwann.quantize(dense, "int8", keep=["cfc.backbone"], activations="int8")
    errors = {name: error for name, _, _, _, error in kept.layers}
    assert any(error is None for error in errors.values()) and any(error is not None for error in errors.values())


def curves():
    t = np.linspace(0, 12, 65, dtype="float32")
    phase = np.linspace(0, 3, 24, dtype="float32")[:, None]
    wave = np.sin(t + phase)
    return wave[:, :-1, None].copy(), wave[:, 1:, None].copy()


def test_a_model_learns():
    inputs, targets = curves()
    start = schwann.Model.of({"class": "CfC", "input_size": 1, "units": 16, "proj_size": 1}, seed=3)
    before = float(np.mean((start.run(inputs) - targets) ** 2))
    heard = []
    trained = schwann.train(start, inputs, targets, epochs=30, batch=8, rate=0.01, validation=0.25, progress=heard.append)
    after = float(np.mean((trained.model.run(inputs) - targets) ** 2))
    assert after < before / 10 and trained.ended == "done"
    assert trained.best is not None and trained.records[-1]["validation"] < 0.1
    assert heard[-1]["step"] == heard[-1]["steps"]
    assert float(np.mean((start.run(inputs) - targets) ** 2)) == before, "the model that was given stays as it is"


def test_a_training_goes_on_to_the_same_weights(tmp_path):
    inputs, targets = curves()
    start = schwann.Model.of({"class": "LTC", "input_size": 1, "units": 6}, seed=3)
    targets = np.repeat(targets, 6, axis=2)
    whole = schwann.train(start, inputs, targets, steps=20, batch=4, seed=1, folder=tmp_path / "a").model
    schwann.train(start, inputs, targets, steps=10, batch=4, seed=1, folder=tmp_path / "b")
    again = schwann.train(start, inputs, targets, steps=20, batch=4, seed=1, folder=tmp_path / "b", resume=True).model
    assert all(np.array_equal(again.weights[name], value) for name, value in whole.weights.items())


def test_classes_lengths_times_and_frozen_weights():
    inputs, _ = curves()
    classes = np.arange(24) % 3
    start = schwann.Model.of(
        {"class": "CfC", "input_size": 1, "units": 8, "proj_size": 3, "return_sequences": False}, seed=1
    )
    trained = schwann.train(
        start,
        inputs,
        classes,
        loss="cross_entropy",
        steps=5,
        timespans=np.full((24, 64), 0.5, "float32"),
        frozen=["fc.*"],
        clip_norm=1.0,
        schedule="cosine",
        optimizer="adamw",
    )
    assert np.array_equal(trained.model.weights["fc.weight"], start.weights["fc.weight"])
    assert not np.array_equal(trained.model.weights["rnn_cell.ff1.weight"], start.weights["rnn_cell.ff1.weight"])


def test_sequences_may_be_of_several_lengths():
    inputs, targets = curves()
    start = schwann.Model.of({"class": "CfC", "input_size": 1, "units": 8, "proj_size": 1}, seed=1)
    lengths = [64] * 23 + [10]
    wanted = schwann.train(start, inputs, targets, steps=5, lengths=lengths).model.weights["fc.weight"]
    inputs[23, 10:] = 1e6
    again = schwann.train(start, inputs, targets, steps=5, lengths=lengths).model.weights["fc.weight"]
    assert np.array_equal(again, wanted), "what is beyond a sequence's end counts for nothing"


@pytest.mark.parametrize(
    "options, words",
    [
        ({"loss": "l1"}, '`loss` is "l1"; expected one of "mse"'),
        ({"optimizer": "lion"}, '`optimizer` is "lion"'),
        ({"steps": 3, "epochs": 3}, "expected one of them"),
        ({"batch": 0}, "`batch` is 0"),
        ({"lengths": [1]}, "`lengths` is 1; expected 24"),
        ({"validation": 2.0}, "`validation` is 2"),
        ({"normalize": "all"}, '`normalize` is "all"'),
    ],
)
def test_bad_trainings_are_refused(options, words):
    inputs, targets = curves()
    start = schwann.Model.of({"class": "CfC", "input_size": 1, "units": 8, "proj_size": 1})
    with pytest.raises(ValueError, match=words):
        schwann.train(start, inputs, targets, **options)
    with pytest.raises(ValueError, match="step 1.*finite"):
        schwann.train(start, inputs * np.nan, targets, steps=1)


def test_the_gate_knows_a_slower_model_from_one_that_is_not():
    small = schwann.Model.of({"class": "CfC", "input_size": 8, "units": 16})
    large = schwann.Model.of({"class": "CfC", "input_size": 8, "units": 128})
    ruling = schwann.gate(large, against=small, seconds=20)
    assert ruling.decision == "regressed" and not ruling
    assert repr(ruling).startswith("regressed: +")
    assert schwann.gate(small, against=large, seconds=20).decision == "passed"


def test_the_gate_needs_something_to_compare_with(cfc):
    with pytest.raises(RuntimeError, match="expected one of them"):
        schwann.gate(cfc)
    with pytest.raises(LookupError):
        schwann.gate(cfc, baseline="nothing was saved so")


def test_baselines_are_kept_and_found(cfc, profile, tmp_path):
    file = tmp_path / "baselines.db"
    schwann.save_baseline("main", profile, file=file)
    assert schwann.load_baseline("main", file=file).document == profile.document
    with pytest.raises(ValueError, match="batch"):
        schwann.gate(cfc, baseline="main", file=file, batch=16, steps=8, seconds=1)


def test_the_tuner_says_what_it_found(cfc):
    outcome = schwann.tune(cfc, batch=4, steps=4, budget=2.0, threads=1, keep=False)
    assert outcome["verdict"] and outcome["candidates"]
    assert repr(outcome).startswith("Outcome(")
    with pytest.raises(ValueError, match="objective"):
        schwann.tune(cfc, objective="beauty")
