"""Tables of Arrow, and of those who speak its C data interface."""

import numpy as np
import pytest

pyarrow = pytest.importorskip("pyarrow", reason="pyarrow is not here")

import schwann.arrow  # noqa: E402

COLUMNS = [f"s{i}" for i in range(8)]


def table(rows=60, robots=3):
    random = np.random.default_rng(5)
    data = {name: random.standard_normal(rows).astype("float32") for name in COLUMNS}
    return pyarrow.table({"robot": np.arange(rows) % robots, "dt": np.full(rows, 0.5), **data})


def features(table, robot=None):
    x = np.stack([table[name].to_numpy() for name in COLUMNS], axis=1).astype("float32")
    return x if robot is None else x[table["robot"].to_numpy() == robot]


def values(table):
    return np.stack([table[name].to_numpy() for name in table.column_names], axis=1)


def test_rows_are_steps_of_one_stream(cfc):
    log = table()
    y = schwann.arrow.over(cfc, log, inputs=COLUMNS)
    assert y.column_names == [f"y{i}" for i in range(16)]
    assert np.array_equal(values(y), cfc.run(features(log)[None])[0])


def test_each_robot_has_a_state_that_goes_on_from_batch_to_batch(cfc):
    log = table()
    pieces = log.to_batches(max_chunksize=7)
    y = values(pyarrow.Table.from_batches(list(schwann.arrow.batches(cfc, pieces, inputs=COLUMNS, stream="robot"))))
    assert len(pieces) == 9
    for robot in range(3):
        alone = cfc.run(features(log, robot)[None])[0]
        np.testing.assert_allclose(y[log["robot"].to_numpy() == robot], alone, atol=1e-6)


def test_states_are_gone_on_from(cfc):
    log, states = table(), {}
    whole = values(schwann.arrow.over(cfc, log, inputs=COLUMNS, stream="robot"))
    first = values(schwann.arrow.over(cfc, log.slice(0, 31), inputs=COLUMNS, stream="robot", states=states))
    assert sorted(states) == [0, 1, 2]
    second = values(schwann.arrow.over(cfc, log.slice(31), inputs=COLUMNS, stream="robot", states=states))
    np.testing.assert_allclose(np.concatenate([first, second]), whole, atol=1e-6)


def test_time_between_rows_is_a_column(cfc):
    log = table(robots=1)
    y = values(schwann.arrow.over(cfc, log, inputs=COLUMNS, elapsed="dt", outputs=[f"o{i}" for i in range(16)]))
    np.testing.assert_allclose(y, cfc.run(features(log)[None], timespans=0.5)[0], atol=1e-6)


@pytest.mark.parametrize(
    "options, kind, words",
    [
        ({"inputs": ["nose"] * 8}, LookupError, "no column named `nose`; there is `robot`"),
        ({"inputs": COLUMNS[:7]}, ValueError, "`inputs` has 7 columns; expected 8"),
        ({}, ValueError, "`inputs` has 10 columns; expected 8"),
        ({"inputs": COLUMNS, "stream": "nose"}, LookupError, "nose"),
        ({"inputs": COLUMNS, "outputs": ["y"]}, ValueError, "`outputs` has 1 names; expected 16"),
    ],
)
def test_wrong_columns_are_refused_by_name(cfc, options, kind, words):
    with pytest.raises(kind, match=words):
        schwann.arrow.over(cfc, table(), **options)


def test_wrong_values_are_refused_by_column(cfc):
    log = table(4)
    missing = log.set_column(2, "s0", pyarrow.array([1.0, None, 2.0, 3.0]))
    with pytest.raises(ValueError, match="column `s0` has 1 missing values"):
        schwann.arrow.over(cfc, missing, inputs=COLUMNS)
    words = log.set_column(2, "s0", pyarrow.array(["a"] * 4))
    with pytest.raises(TypeError, match="column `s0` is string; expected numbers"):
        schwann.arrow.over(cfc, words, inputs=COLUMNS)


def test_frames_of_polars(cfc):
    polars = pytest.importorskip("polars", reason="polars is not here")
    log = table()
    y = schwann.arrow.over(cfc, polars.from_arrow(log), inputs=COLUMNS)
    np.testing.assert_array_equal(values(y), values(schwann.arrow.over(cfc, log, inputs=COLUMNS)))
    assert polars.from_arrow(y).shape == (60, 16)


def test_results_of_duckdb(cfc):
    duckdb = pytest.importorskip("duckdb", reason="duckdb is not here")
    log = table()
    reader = duckdb.sql("SELECT * FROM log").to_arrow_reader(16)
    y = values(pyarrow.Table.from_batches(list(schwann.arrow.batches(cfc, reader, inputs=COLUMNS))))
    np.testing.assert_array_equal(y, values(schwann.arrow.over(cfc, log, inputs=COLUMNS)))
    answers = schwann.arrow.over(cfc, log, inputs=COLUMNS)
    assert duckdb.sql("SELECT count(*) FROM answers WHERE y0 IS NOT NULL").fetchall() == [(60,)]
