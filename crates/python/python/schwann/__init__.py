"""Schwann runs, trains, measures and tunes small neural networks on the CPU they run on.

>>> import numpy, schwann
>>> model = schwann.load("wired-cfc")                   # a built-in model; or a file
>>> x = numpy.zeros((2, 10, 8), dtype="float32")        # samples, steps, features
>>> schwann.run(model, x).shape
(2, 10, 16)
"""

from __future__ import annotations

import html as _html
import json as _json
from dataclasses import dataclass as _dataclass
from typing import TYPE_CHECKING, Any, Callable, Iterable, Mapping, Optional, Sequence, Union

from . import _schwann
from ._schwann import Model, Profile, Runner, Session, State, __version__, from_bytes, load

if TYPE_CHECKING:
    import os

    import torch

__all__ = [
    "Model",
    "Outcome",
    "Profile",
    "Quantized",
    "Regressed",
    "Ruling",
    "Runner",
    "Session",
    "State",
    "Trained",
    "from_bytes",
    "from_torch",
    "gate",
    "load",
    "load_baseline",
    "predict",
    "profile",
    "quantize",
    "run",
    "save_baseline",
    "to_torch",
    "train",
    "tune",
]

Progress = Callable[[str, float], object]


def run(
    model: Model,
    x: Any,
    *,
    timespans: Any = None,
    state: Any = None,
    out: Any = None,
) -> Any:
    """Runs whole sequences and gives the outputs, as `Model.run` does.

    >>> import numpy, schwann
    >>> schwann.run(schwann.load("wired-ltc"), numpy.zeros((10, 8), dtype="float32"), timespans=0.1).shape
    (10, 16)
    """
    return model.run(x, timespans=timespans, state=state, out=out)


def from_torch(
    module: "torch.nn.Module",
    sample: Any = None,
    *,
    name: Optional[str] = None,
    backend: str = "cpu",
    threads: int = 0,
    quiet: bool = True,
) -> Model:
    """A model of a PyTorch network, with its weights as they are now; no file is written.

    The network is a chain of layers: ``CfC`` and ``LTC`` of ncps, ``Linear``, ``LSTM``, ``GRU``, ``RNN``, ``LayerNorm``,
    ``Embedding`` and activations, in a ``Sequential`` or called by a ``forward`` of its own. What such a ``forward`` does
    is seen by running it once on ``sample``, a tensor as the network takes it, or ``(x, timespans)``. A single layer or a
    ``Sequential`` needs no sample. Anything else is refused with its name.

    ``quiet=False`` prints what there is to know about the network, such as weights that are rounded.
    """
    from ._exported.collect import collect

    found = collect(module, sample)
    arrays = {}
    for key, value in found.tensors.items():
        # The sample and its results are for files, which `schwann verify` compares.
        if not (key.startswith("model.") or key.endswith("adjacency")):
            continue
        tensor = value.detach().cpu()
        wide = tensor.is_floating_point() and str(tensor.dtype) != "torch.float32"
        arrays[key] = (tensor.float() if wide else tensor).contiguous().numpy()
    if not quiet:
        for note in found.notes:
            print(f"note: {note}")
    return _schwann._from_state_dict(
        arrays, found.metadata, name=name or type(module).__name__, backend=backend, threads=threads
    )


def to_torch(model: Model) -> "torch.nn.Module":
    """The PyTorch module of a model, with its weights: a single layer as ncps or PyTorch has it, or a chain of them.

    Needs torch and ncps.
    """
    import torch

    from ._exported.build import build

    arrays, metadata = _schwann._state_dict(model)
    module: "torch.nn.Module" = build({key: torch.from_numpy(value) for key, value in arrays.items()}, metadata)
    return module


def profile(
    model: Model,
    *,
    batch: int = 32,
    steps: int = 16,
    threads: Optional[int] = None,
    runs: int = 200,
    seconds: float = 2.0,
    dtype: str = "float32",
    fused: bool = True,
    compare: bool = False,
    sweep: Iterable[Union[int, tuple[int, int]]] = (),
    train: bool = False,
    roof: bool = True,
    starts: bool = False,
    progress: Optional[Progress] = None,
) -> Profile:
    """Runs a model, watches every operation, and says where the time goes.

    ``sweep`` are other batches to measure too, or pairs of batch and steps. ``compare`` runs it in other ways in turns
    with this one; ``train`` measures a whole step of training. With ``roof``, this machine's limits are measured once, in
    about ten seconds, and kept; predictions and advice need them. ``starts`` also measures in several starts of Python,
    for baselines. ``progress`` is called with what is being done and how far it is, from 0 to 1.

    >>> import schwann
    >>> profile = schwann.profile(schwann.load("wired-cfc"), batch=4, seconds=0.1, roof=False)
    >>> any(op["name"].startswith("cfc.") for op in profile["compute"]["ops"])
    True
    """
    points = [(one, steps) if isinstance(one, int) else (int(one[0]), int(one[1])) for one in sweep]
    return _schwann._profile(
        model,
        batch=batch,
        steps=steps,
        threads=threads,
        runs=runs,
        seconds=seconds,
        dtype=dtype,
        fused=fused,
        compare=compare,
        sweep=points,
        train=train,
        roof=roof,
        starts=starts,
        progress=progress,
    )


def predict(
    model: Model,
    device: Optional[str] = None,
    *,
    batch: int = 1,
    steps: int = 1,
    threads: int = 1,
    progress: Optional[Progress] = None,
) -> Any:
    """What a model might take on a device, such as ``"M1 Max"``; on all that are known, as a list, where none is named.

    Predictions are ranges with reasons, from this machine's measurements (taken once, in about ten seconds) and what is
    published of the device. ``"host"`` is this machine.
    """
    return _json.loads(
        _schwann._predict(model, device=device, batch=batch, steps=steps, threads=threads, progress=progress)
    )


@_dataclass(frozen=True)
class Quantized:
    """A network with weights in few bits, and what became of each layer."""

    model: Model
    #: For each layer: name, shape, bytes before and after, and the error of its weights as a share of their root mean
    #: square (``None`` where it was kept).
    layers: list[tuple[str, tuple[int, int], int, int, Optional[float]]]

    def __repr__(self) -> str:
        lines = [f"{'layer':<28} {'shape':>12} {'bytes':>10} {'were':>10} {'error':>8}"]
        for name, shape, before, after, error in self.layers:
            told = "kept" if error is None else f"{100 * error:.2f}%"
            lines.append(f"{name:<28} {f'{shape[0]}×{shape[1]}':>12} {after:>10} {before:>10} {told:>8}")
        return "\n".join(lines)


def quantize(
    model: Model,
    to: str,
    *,
    block: Optional[int] = None,
    offsets: bool = False,
    activations: str = "float32",
    keep: Sequence[str] = (),
) -> Quantized:
    """The network with weights of ``"int8"``, ``"int4"``, ``"ternary"``, ``"bfloat16"`` or ``"float16"``.

    ``block`` is how many numbers share a scale; ``offsets`` covers the numbers from the least to the greatest;
    ``activations="int8"`` rounds what weights are multiplied with too, so that products are in integers. Layers of
    ``keep``, by name or the part of a name before a dot, stay as they are.

    >>> import schwann
    >>> small = schwann.quantize(schwann.load("dense-cfc"), "int8")
    >>> sum(after for _, _, _, after, _ in small.layers) * 3 < sum(before for _, _, before, _, _ in small.layers)
    True
    """
    made, layers = _schwann._quantize(
        model, to, block=block, offsets=offsets, activations=activations, keep=list(keep)
    )
    return Quantized(made, layers)


@_dataclass(frozen=True)
class Trained:
    """What came of a training."""

    model: Model
    #: The log: step, epoch, loss, validation, metric, rate, norm, samples_per_s and seconds of each record.
    records: list[dict[str, Any]]
    #: ``"done"``, ``"early"`` (the validation's loss no longer became smaller) or ``"stopped"``.
    ended: str
    #: Step and loss of the best validation, where there was one.
    best: Optional[tuple[int, float]]


def train(
    model: Model,
    inputs: Any,
    targets: Any,
    *,
    timespans: Any = None,
    lengths: Optional[Sequence[int]] = None,
    epochs: Optional[int] = None,
    steps: Optional[int] = None,
    batch: int = 32,
    window: Optional[int] = None,
    stride: Optional[int] = None,
    carry: bool = False,
    validation: float = 0.0,
    normalize: str = "none",
    shuffle: bool = True,
    loss: str = "mse",
    delta: Optional[float] = None,
    optimizer: str = "adam",
    rate: Optional[float] = None,
    decay: float = 0.0,
    momentum: Optional[float] = None,
    schedule: str = "constant",
    least: float = 0.0,
    warm_up: int = 0,
    clip_norm: Optional[float] = None,
    precision: str = "float32",
    loss_scale: Optional[float] = None,
    patience: Optional[int] = None,
    validate_every: int = 0,
    seed: int = 0,
    folder: Union[None, str, "os.PathLike[str]"] = None,
    resume: bool = False,
    frozen: Sequence[str] = (),
    progress: Optional[Callable[[Mapping[str, Any]], object]] = None,
) -> Trained:
    """Trains a model on arrays and gives the trained one; the model that was given stays as it is.

    ``inputs`` is ``[N, T, C]`` (``[N, C]`` for models without a state), ``targets`` ``[N, T, O]``, or ``[N, O]`` for models
    that give their last step only; classes are ``[N, T]`` or ``[N]``. The names are those of a training's file for the
    command ``schwann train``. With a ``folder``, checkpoints, the log and the best model are kept there, and
    ``resume=True`` goes on from the last checkpoint, to the same weights. Ctrl-C writes a checkpoint and ends.

    >>> import numpy, schwann
    >>> t = numpy.linspace(0, 6, 64, dtype="float32")
    >>> x, y = numpy.sin(t).reshape(1, 64, 1), numpy.cos(t).reshape(1, 64, 1)
    >>> start = schwann.Model.of({"class": "CfC", "input_size": 1, "units": 8, "proj_size": 1}, seed=1)
    >>> trained = schwann.train(start, x, y, steps=50, rate=0.01)
    >>> trained.records[-1]["loss"] < 0.5
    True
    """
    settings: dict[str, Any] = dict(
        epochs=epochs,
        steps=steps,
        batch=batch,
        window=window,
        stride=stride,
        carry=carry,
        validation=validation,
        normalize=normalize,
        shuffle=shuffle,
        loss=loss,
        delta=delta,
        optimizer=optimizer,
        rate=rate,
        decay=decay,
        momentum=momentum,
        schedule=schedule,
        least=least,
        warm_up=warm_up,
        clip_norm=clip_norm,
        precision=precision,
        loss_scale=loss_scale,
        patience=patience,
        validate_every=validate_every,
        seed=seed,
        folder=None if folder is None else str(folder),
        resume=resume,
        frozen=list(frozen),
    )
    if lengths is not None:
        lengths = [int(length) for length in lengths]
    made, records, ended, best = _schwann._train(
        model, inputs, targets, _json.dumps(settings), timespans=timespans, lengths=lengths, progress=progress
    )
    return Trained(made, _json.loads(records), ended, best)


class Outcome(dict[str, Any]):
    """What a search for a faster plan found: the document that ``schwann tune --json`` prints."""

    def __repr__(self) -> str:
        winner = self["winner"]
        told = "nothing better than the default" if winner is None else _json.dumps(winner.get("changes", winner))
        return f"Outcome({self['verdict']}: {told})"


def tune(
    model: Model,
    *,
    batch: int = 32,
    steps: int = 16,
    budget: float = 60.0,
    objective: str = "latency",
    threads: int = 0,
    max_error: Optional[float] = None,
    seed: int = 1,
    keep: bool = True,
    progress: Optional[Progress] = None,
) -> Outcome:
    """Searches for a faster way to compile this network for one size on this machine, for ``budget`` seconds.

    What surely is faster is kept, and ``model.with_options(tuned=(batch, steps))`` uses it from then on, as the command
    ``schwann`` does. ``objective`` is ``"latency"``, ``"throughput"`` or ``"memory"``. With ``max_error``, weights and
    products may be in bfloat16 where outputs differ by no more than that.
    """
    return Outcome(
        _json.loads(
            _schwann._tune(
                model,
                batch=batch,
                steps=steps,
                budget=budget,
                objective=objective,
                threads=threads,
                max_error=max_error,
                seed=seed,
                keep=keep,
                progress=progress,
            )
        )
    )


def save_baseline(name: str, profile: Profile, *, file: Union[None, str, "os.PathLike[str]"] = None) -> None:
    """Keeps a profile under a name, to hold later ones against: in ``file``, or with those of the command ``schwann``.

    Only profiles with ``starts=True`` can be judged by.
    """
    _schwann._save_baseline(name, profile, None if file is None else str(file))


def load_baseline(name: str, *, file: Union[None, str, "os.PathLike[str]"] = None) -> Profile:
    """The latest profile that was saved under this name."""
    return _schwann._load_baseline(name, None if file is None else str(file))


class Regressed(AssertionError):
    """A model became slower than is allowed."""


@_dataclass(frozen=True)
class Ruling:
    """What the gate says, with what it rests on."""

    #: ``"passed"``, ``"regressed"`` or ``"undecided"``.
    decision: str
    #: The whole document.
    document: dict[str, Any]

    def __repr__(self) -> str:
        def percent(name: str) -> str:
            value = self.document[name].get("value")
            return "?" if value is None else f"{value:+.1f}%"

        allowed = self.document["max_regress"]["value"]
        return (
            f"{self.decision}: {percent('slowdown')} in time ({percent('low')} … {percent('high')} with "
            f"{self.document['confidence']['value']:g}% confidence); up to {allowed:g}% is allowed"
        )

    def __bool__(self) -> bool:
        return self.decision == "passed"


def gate(
    model: Model,
    *,
    against: Optional[Model] = None,
    baseline: Union[None, str, Profile] = None,
    file: Union[None, str, "os.PathLike[str]"] = None,
    max_regress: float = 0.03,
    batch: int = 32,
    steps: int = 16,
    threads: Optional[int] = None,
    seconds: float = 30.0,
    anyway: bool = False,
    progress: Optional[Progress] = None,
) -> Ruling:
    """Whether a model is slower, by more than ``max_regress``, than another model or than a profile that was saved.

    It measures in several starts of Python, in turns, until the answer is clear, or for about ``seconds``. It says
    ``"regressed"`` only where it is 99% sure of it, and ``"passed"`` only where it is as sure of that.
    """
    if isinstance(baseline, str):
        baseline = load_baseline(baseline, file=file)
    document = _json.loads(
        _schwann._gate(
            model,
            against=against,
            baseline=baseline,
            max_regress=max_regress,
            batch=batch,
            steps=steps,
            threads=threads,
            seconds=seconds,
            anyway=anyway,
            progress=progress,
        )
    )
    return Ruling(document["decision"], document)


def _table(profile: Profile) -> str:
    """Where the time goes, as text."""
    document = profile.document
    lines = [profile.title]
    median, low = profile._shown("compute.time_p50"), profile._shown("compute.time_min")
    lines.append(f"{median} per run, the median; {low} the least (measured)")
    rows = [(op["name"], op["kernel"], i) for i, op in enumerate(document["compute"]["ops"])]
    width = max([len(name) for name, _, _ in rows] + [9])
    lines.append("")
    lines.append(f"{'operation':<{width}}  {'time':>10}  {'share':>7}  kernel")
    for name, kernel, i in rows:
        time, share = profile._shown(f"compute.ops[{i}].self_time"), profile._shown(f"compute.ops[{i}].share")
        lines.append(f"{name:<{width}}  {time or '–':>10}  {share or '–':>7}  {kernel}")
    for doubt in document.get("doubts", []):
        lines.append(f"doubt: {doubt}")
    return "\n".join(lines)


def _report(profile: Profile) -> str:
    """The report, in a frame of its own, since it is a whole page."""
    page = _html.escape(profile.html(), quote=True)
    return f'<iframe srcdoc="{page}" style="width: 100%; height: 48em; border: 0" sandbox="allow-scripts"></iframe>'
