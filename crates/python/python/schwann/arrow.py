"""Models over tables: from record batches to record batches, over Arrow's C data interface.

Needs pyarrow. Whatever speaks the interface can be given: tables and readers of pyarrow, Polars' frames, DuckDB's results.
"""

from __future__ import annotations

from typing import Any, Iterable, Iterator, Optional, Sequence

import numpy
import pyarrow

from . import Model, State

__all__ = ["batches", "over"]


def _reader(table: Any) -> Iterator[Any]:
    """Record batches of whatever has some."""
    if hasattr(table, "__arrow_c_stream__"):
        return iter(pyarrow.RecordBatchReader.from_stream(table))
    if hasattr(table, "__arrow_c_array__"):
        return iter([pyarrow.record_batch(table)])
    return (batch if isinstance(batch, pyarrow.RecordBatch) else pyarrow.record_batch(batch) for batch in table)


def _column(batch: Any, name: str) -> Any:
    at = batch.schema.get_all_field_indices(name)
    if not at:
        raise LookupError(f"no column named `{name}`; there is {', '.join(f'`{n}`' for n in batch.schema.names)}")
    if len(at) > 1:
        raise ValueError(f"{len(at)} columns are named `{name}`; expected one")
    return batch.column(at[0])


def _numbers(batch: Any, name: str) -> Any:
    """A column as float32, without missing values."""
    column = _column(batch, name)
    if column.null_count:
        raise ValueError(f"column `{name}` has {column.null_count} missing values; expected a number in every row")
    kind = column.type
    if not (pyarrow.types.is_floating(kind) or pyarrow.types.is_integer(kind)):
        raise TypeError(f"column `{name}` is {kind}; expected numbers")
    return column.to_numpy(zero_copy_only=False).astype("float32", copy=False)


def batches(
    model: Model,
    table: Any,
    *,
    inputs: Optional[Sequence[str]] = None,
    elapsed: Optional[str] = None,
    stream: Optional[str] = None,
    outputs: Optional[Sequence[str]] = None,
    states: Optional[dict[Any, State]] = None,
) -> Iterator[Any]:
    """Runs a model on record batches as they come, and gives a batch of its outputs for each, row by row.

    A row is a step. ``inputs`` are the columns with the features, all columns if nothing is said; ``elapsed`` the column
    with the time since the last row. ``stream`` is the column that says which stream a row belongs to: each has a state of
    its own, which goes on from batch to batch; without it all rows are one stream. ``states`` are the streams' states by the
    values of that column (``None`` where there is no such column): what is there is gone on from, and what comes of them is
    there afterwards. ``outputs`` are names for the columns of the result, ``y0``, ``y1`` and so on if nothing is said.
    """
    runner = model.runner(timespans=elapsed is not None)
    names = list(outputs) if outputs is not None else [f"y{i}" for i in range(runner.output_size)]
    if len(names) != runner.output_size:
        raise ValueError(f"`outputs` has {len(names)} names; expected {runner.output_size}, one for each output")
    known: dict[Any, State] = states if states is not None else {}
    for batch in _reader(table):
        taken = list(inputs) if inputs is not None else [n for n in batch.schema.names if n not in (elapsed, stream)]
        if len(taken) != runner.input_size:
            raise ValueError(f"`inputs` has {len(taken)} columns; expected {runner.input_size}, one for each feature")
        x = numpy.empty((batch.num_rows, len(taken)), "float32")
        for i, name in enumerate(taken):
            x[:, i] = _numbers(batch, name)
        times = None if elapsed is None else _numbers(batch, elapsed)
        keys = [None] * batch.num_rows if stream is None else _column(batch, stream).to_pylist()
        y = numpy.empty((batch.num_rows, runner.output_size), "float32")
        for rows in _turns(keys):
            own = [known.setdefault(keys[row], runner.state()) for row in rows]
            y[rows] = runner.step_many(own, x[rows], elapsed=None if times is None else times[rows])
        yield pyarrow.record_batch([pyarrow.array(y[:, i]) for i in range(len(names))], names=names)


def _turns(keys: Sequence[Any]) -> Iterable[list[int]]:
    """Rows that can be taken in one call, in order: at most one of each stream."""
    seen: dict[Any, int] = {}
    turns: list[list[int]] = []
    for row, key in enumerate(keys):
        turn = seen.get(key, 0)
        seen[key] = turn + 1
        if turn == len(turns):
            turns.append([])
        turns[turn].append(row)
    return turns


def over(model: Model, table: Any, **options: Any) -> Any:
    """Runs a model on a whole table and gives a table of its outputs, as ``batches`` does for each batch."""
    return pyarrow.Table.from_batches(list(batches(model, table, **options)))
