"""Follows a sample through a PyTorch network and finds its chain of layers."""

from dataclasses import dataclass, replace
from unittest import mock

import torch
from torch import nn
from torch.overrides import TorchFunctionMode

from .layers import (
    CALLED,
    FUNCTIONS,
    LTC,
    RECURRENT,
    CannotExport,
    CfC,
    Step,
    circuit_step,
    leaf_class,
    plain_step,
    pytorch_steps,
    softmax,
    supported,
    unknown,
)


@dataclass(frozen=True)
class Value:
    """A tensor that the chain so far gives."""

    steps: tuple
    tensor: torch.Tensor
    leading: tuple  # its sizes before the features, as they were before they were flattened
    last: bool = False  # only the last step is left
    swapped: bool = False  # the first two axes are the other way round than in the input
    merged: bool = False  # the first axes are one
    squeezed: bool = False  # the axis of features, of size 1, is gone
    start: object = None  # what the model's input is, where that is not the sample
    state: bool = False  # it came as a state

    @property
    def where(self):
        return f"`{self.steps[-1].where}`" if self.steps else "the input"

    @property
    def gave(self):
        return f"what {self.where} gave" if self.steps else "the input"

    def then(self, step, tensor, **flags):
        return replace(self, steps=self.steps + (step,), tensor=tensor, state=False, **flags)


@dataclass(frozen=True)
class State:
    """The states of all layers of an LSTM, GRU or RNN, whose last is the last step of its output."""

    tensor: torch.Tensor
    output: Value


@dataclass(frozen=True)
class Other:
    """A tensor that the chain does not explain, and why."""

    problem: str


class Times:
    """The time spans that the sample has."""


class Tracer(TorchFunctionMode):
    """Follows one sample through a network: which layer takes what, and what is done in between."""

    def __init__(self, model, sample):
        super().__init__()
        self.names = {module: name or type(module).__name__ for name, module in model.named_modules()}
        self.known = {}
        self.inside = 0
        self.notes = []
        self.know(sample[0], Value((), sample[0], self.leading(sample[0])))
        for times in sample[1:]:
            self.know(times, Times())

    @staticmethod
    def leading(tensor):
        return tuple(tensor.shape if not tensor.is_floating_point() else tensor.shape[:-1])

    def know(self, tensor, what):
        # The tensor is kept, so that its id stays its own.
        self.known[id(tensor)] = (tensor, what)

    def what(self, tensor):
        found = self.known.get(id(tensor))
        return found[1] if found else None

    def value(self, tensor, taker):
        """What the chain gives as `tensor`, or why it does not."""
        what = self.what(tensor)
        if isinstance(what, Value):
            return what
        if isinstance(what, Other):
            raise CannotExport(what.problem)
        if isinstance(what, State):
            raise CannotExport(f"{taker} takes the states of all layers of {what.output.where}; expected its output, or h[-1]")
        raise CannotExport(f"{taker} takes a tensor that does not come from the sample by way of layers")

    # Layers.

    def enter(self, module, args, kwargs):
        self.inside += 1

    def leave(self, module, args, kwargs, out):
        self.inside -= 1
        if self.inside:
            return
        self.inside += 1  # what is asked here is no part of the network
        try:
            self.layer(module, args, kwargs, out)
        except CannotExport as problem:
            for tensor in tensors_in(out):
                self.know(tensor, Other(str(problem)))
        finally:
            self.inside -= 1

    def layer(self, module, args, kwargs, out):
        where = self.names[module]
        kind = leaf_class(module)
        taken = args[0] if args else kwargs.get("input")
        if not torch.is_tensor(taken):
            what = type(taken).__name__
            raise CannotExport(f"`{where}` takes a {what}; expected a tensor")
        value = self.value(taken, f"`{where}`")
        if kind in RECURRENT:
            return self.recurrent(where, module, value, args[1:], kwargs, out)
        if kind is nn.Flatten:
            return self.know(out, self.reshaped(value, out, f"`{where}`, a Flatten,"))
        step = plain_step(where, module, taken.dim())
        if step is None:
            return self.know(out, replace(value, tensor=out))
        if kind is nn.Embedding and value.steps:
            raise CannotExport(f"`{where}` is an Embedding after {value.where}; expected it first")
        self.apply(value, step, out)

    def apply(self, value, step, out):
        if value.squeezed and step.config["class"] != "Activation":
            raise CannotExport(f"`{step.where}` takes what has lost its last axis to a squeeze; expected that at the end")
        self.know(out, value.then(step, out))

    def recurrent(self, where, module, value, rest, kwargs, out):
        if value.last:
            raise CannotExport(f"`{where}` has a state, and takes the last step alone of {value.where}; expected all steps")
        if value.merged or value.squeezed:
            raise CannotExport(f"`{where}` takes a tensor whose axes were flattened or squeezed; expected steps and features")
        if any(step.module is module for step in value.steps):
            raise CannotExport(f"`{where}` is called twice; expected a layer with a state once")
        first = rest[0] if rest else kwargs.get("hx")
        if any(torch.count_nonzero(tensor) for tensor in tensors_in(first)):
            raise CannotExport(f"`{where}` starts from a state that is given and not zero; here a first run starts from zero")
        y, state = out
        circuit = isinstance(module, (CfC, LTC))
        steps = [circuit_step(where, module)] if circuit else pytorch_steps(where, module)
        batch_first = bool(module.batch_first) != value.swapped
        times = rest[1] if len(rest) > 1 else kwargs.get("timespans")
        timed = isinstance(self.what(times), Times) if torch.is_tensor(times) else False
        if torch.is_tensor(times) and not timed and not bool((times == 1).all()):
            raise CannotExport(f"`{where}` takes time spans that are not the sample's own; expected sample=(x, timespans)")
        for i, step in enumerate(steps):
            both = state if isinstance(state, tuple) else (state,)
            states = {n: (s if circuit else s[i]) for n, s in zip(["hn", "cn"], both)}
            steps[i] = replace(step, config={**step.config, "batch_first": batch_first}, states=states, timed=timed)
        last = not steps[-1].config["return_sequences"]
        output = replace(value, steps=value.steps + tuple(steps), tensor=y, last=last, state=False)
        self.know(y, output)
        hidden = state[0] if isinstance(state, tuple) else state
        if not circuit:
            self.know(hidden, State(hidden, output))
        elif isinstance(module, CfC) and "units" in steps[0].config and "proj_size" not in steps[0].config:
            self.know(hidden, replace(self.last_step(output, hidden), state=True))
        for tensor in tensors_in(state):
            if self.what(tensor) is None:
                self.know(tensor, Other(f"the state of `{where}` is read, which is more than its output; expected its output"))

    def last_step(self, value, tensor):
        """The last step of a sequence: what a layer gives that returns no sequences."""
        steps = list(value.steps)
        at = max(i for i, step in enumerate(steps) if step.recurrent)
        steps[at] = replace(steps[at], config={**steps[at].config, "return_sequences": False})
        return replace(value, steps=tuple(steps), tensor=tensor, last=True, swapped=False)

    # What is between layers.

    def __torch_function__(self, func, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        if self.inside:
            return func(*args, **kwargs)
        before = {id(t): self.what(t) for t in tensors_in((args, kwargs)) if self.what(t) is not None}
        out = func(*args, **kwargs)
        if before:
            self.inside += 1
            try:
                self.between(func, args, kwargs, out)
            except CannotExport as problem:
                if not tensors_in(out):
                    raise
                for tensor in tensors_in(out):
                    self.know(tensor, Other(str(problem)))
            finally:
                self.inside -= 1
        return out

    def between(self, func, args, kwargs, out):
        name = getattr(func, "__name__", str(func))
        plain = name.strip("_")
        in_place = name == "__setitem__" or (name.endswith("_") and not name.endswith("__")) or name.startswith("__i")
        if name == "__setitem__":
            if self.what(args[0]) is not None:
                self.know(args[0], Other(f"a part of a tensor is overwritten (`{name}`), which no layer does"))
            return
        if plain in ("item", "tolist", "numpy", "float", "int", "index") and not torch.is_tensor(out):
            raise CannotExport(f"a number is read out of a tensor (`{plain}`): what is done with it would be as for this sample alone")
        if plain == "bool" and not torch.is_tensor(out):
            self.notes.append("the network asks what its numbers are: what was written is what it does for this sample")
        if not torch.is_tensor(out):
            # Sizes and the like; of several tensors, none is a step of the chain.
            for tensor in tensors_in(out):
                self.know(tensor, Other(f"`{plain}` is called between layers, which no layer here does"))
            return
        taken = [t for t in tensors_in((args, kwargs)) if isinstance(self.what(t), (Value, State, Other, Times))]
        if in_place and plain.startswith("i"):
            plain = plain[1:]
        first = self.what(taken[0])
        if len(taken) > 1:
            both = " and ".join(w.where if isinstance(w, Value) else "another tensor" for w in map(self.what, taken[:2]))
            raise CannotExport(f"`{plain}` joins two branches, {both}; expected a chain, each layer on the one before")
        if isinstance(first, Other):
            raise CannotExport(first.problem)
        if isinstance(first, Times):
            raise CannotExport(f"`{plain}` of the time spans; expected a CfC or an LTC to take them as they are")
        if isinstance(first, State):
            layers = first.tensor.shape[0]
            index = args[1] if len(args) > 1 and isinstance(args[1], tuple) else args[1:2]
            whole = all(isinstance(i, slice) and i == slice(None) or i is Ellipsis for i in index[1:])
            one = isinstance(index[0], int) and index[0] in ((-1, 0) if layers == 1 else (-1, layers - 1)) if index else False
            picked = plain == "getitem" and one and whole
            if picked or (plain == "squeeze" and layers == 1 and tuple(args[1:]) == (0,)):
                return self.know(out, self.last_step(first.output, out))
            raise CannotExport(f"`{plain}` of the states of {first.output.where}; expected h[-1], or its output")
        handler = getattr(self, f"on_{plain}", None)
        if plain in CALLED:
            self.called(plain, first, args, kwargs, out)
        elif plain in ("contiguous", "clone", "detach", "requires_grad", "float", "double", "to", "type_as", "cpu", "alias",
                       "dropout", "alpha_dropout", "feature_dropout", "expand_as", "flatten_parameters", "view_as"):  # fmt: skip
            if out.shape != first.tensor.shape or out.dtype != first.tensor.dtype or not torch.equal(out, first.tensor):
                raise CannotExport(f"`{plain}` changes {first.gave}; expected a layer")
            self.know(out, replace(first, tensor=out))
        elif plain in ("reshape", "view", "flatten", "unflatten"):
            self.know(out, self.reshaped(first, out, f"`{plain}`"))
        elif plain in ("add", "sub", "mul", "div", "true_divide", "truediv", "multiply", "divide", "subtract", "neg", "negative",
                       "radd", "rsub", "rmul", "rdiv", "rtruediv"):  # fmt: skip
            self.arithmetic(plain, first, taken[0], args, kwargs, out)
        elif handler:
            handler(first, args, kwargs, out)
        else:
            raise CannotExport(f"`{plain}` is called on {first.gave}, which no layer here does")

    def called(self, plain, value, args, kwargs, out):
        options = {k: v for k, v in kwargs.items() if k not in ("input", "_stacklevel", "dtype")}
        module = CALLED[plain](*args[1:], **options)
        if isinstance(module, (nn.Softmax, nn.LogSoftmax)):
            step = Step(plain, softmax(module, value.tensor.dim(), log=isinstance(module, nn.LogSoftmax)))
        else:
            step = Step(plain, FUNCTIONS[type(module)](module))
        self.apply(value, step, out)

    def reshaped(self, value, out, who):
        """Axes that are flattened and put back mean nothing to layers that work on the last one."""
        if out.shape == value.tensor.shape:
            return replace(value, tensor=out)
        if not value.steps and out.dim() == 2 and out.shape[0] == value.tensor.shape[0]:
            self.notes.append(f"{who} comes first: the file's `x`, and the model's input, is what it gives")
            return replace(value, tensor=out, start=out, leading=self.leading(out))
        if not value.squeezed and out.shape[-1] == value.tensor.shape[-1]:
            if tuple(out.shape[:-1]) == value.leading:
                return replace(value, tensor=out, merged=False)
            if out.dim() == 2:
                return replace(value, tensor=out, merged=True)
        before, after = tuple(value.tensor.shape), tuple(out.shape)
        raise CannotExport(f"{who} makes {after} of {before}, {value.gave}; expected features to stay the last axis")

    def arithmetic(self, plain, value, taken, args, kwargs, out):
        """A factor or a shift of every feature."""
        if value.squeezed or not value.tensor.is_floating_point():
            raise CannotExport(f"`{plain}` on {value.gave}; expected features in the last axis")
        width = value.tensor.shape[-1]
        other, alpha = 0.0, kwargs.get("alpha", 1)
        operands = list(args) + [kwargs[k] for k in ("other",) if k in kwargs]
        if plain not in ("neg", "negative"):
            other = operands[1] if operands[0] is taken else operands[0]
        backward = plain.startswith("r") or (operands[0] is not taken)
        other = torch.as_tensor(other, dtype=value.tensor.dtype).detach() * alpha
        if out.shape != value.tensor.shape or other.numel() not in (1, width) or (other.numel() > 1 and other.shape[-1] != width):
            raise CannotExport(f"`{plain}` with a tensor of {tuple(other.shape)}; expected one number, or one a feature")
        other = other.reshape(-1).expand(width).clone()
        one, zero = torch.ones_like(other), torch.zeros_like(other)
        kind = plain.lstrip("r") if plain.startswith(("rs", "rt", "rd", "ra", "rm")) else plain
        kind = {"true_divide": "div", "truediv": "div", "divide": "div", "multiply": "mul", "subtract": "sub"}.get(kind, kind)
        if kind in ("neg", "negative"):
            weight, bias = -one, zero
        elif kind == "add":
            weight, bias = one, other
        elif kind == "mul":
            weight, bias = other, zero
        elif kind == "sub":
            weight, bias = (-one, other) if backward else (one, -other)
        elif kind == "div" and not backward and kwargs.get("rounding_mode") is None:
            weight, bias = 1 / other, zero
        else:
            raise CannotExport(f"`{plain}` on {value.gave}; expected +, -, * or / with a number after it")
        tensors = {"weight": weight, "bias": bias}
        before = value.steps[-1] if value.steps else None
        if before is not None and before.config["class"] == "Affine":
            # (x·w + b)·weight + bias
            tensors = {"weight": before.tensors["weight"] * weight, "bias": before.tensors["bias"] * weight + bias}
            value = replace(value, steps=value.steps[:-1])
        self.apply(value, Step(kind, {"class": "Affine", "features": width}, tensors), out)

    def on_getitem(self, value, args, kwargs, out):
        index = args[1] if isinstance(args[1], tuple) else (args[1],)
        rank = value.tensor.dim()
        if any(i is Ellipsis for i in index):
            at = next(n for n, i in enumerate(index) if i is Ellipsis)
            index = index[:at] + (slice(None),) * (rank - len(index) + 1) + index[at + 1 :]
        whole = lambda i: isinstance(i, slice) and i == slice(None)  # noqa: E731
        if all(whole(i) for i in index):
            return self.know(out, replace(value, tensor=out))
        picked = [(axis, i) for axis, i in enumerate(index) if not whole(i)]
        one = len(picked) == 1 and isinstance(picked[0][1], int)
        self.pick(value, out, picked[0] if one else (None, None), f"y[{shown(args[1])}]")

    def on_select(self, value, args, kwargs, out):
        self.pick(value, out, (args[1] % value.tensor.dim(), args[2]), f"select{tuple(args[1:])}")

    def pick(self, value, out, picked, said):
        recurrent = [step for step in value.steps if step.recurrent]
        if recurrent and not (value.last or value.merged or value.squeezed):
            batched = len(value.leading) == 2
            time = int(batched and recurrent[-1].config["batch_first"] != value.swapped)
            if picked == (time, -1):
                return self.know(out, self.last_step(value, out))
        raise CannotExport(f"`{said}` takes a part of {value.gave}; expected the last step of a sequence, as y[:, -1]")

    def on_squeeze(self, value, args, kwargs, out):
        axis = args[1] if len(args) > 1 else kwargs.get("dim")
        gone = value.tensor.dim() - out.dim()
        if gone == 0:
            return self.know(out, replace(value, tensor=out))
        last = axis in (-1, value.tensor.dim() - 1) or (axis is None and value.tensor.shape[-1] == 1)
        if not last or gone != 1 or value.squeezed:
            raise CannotExport(f"`squeeze` of another axis than the last, on {value.gave}")
        self.know(out, replace(value, tensor=out, squeezed=True))

    def on_transpose(self, value, args, kwargs, out):
        axes = sorted(axis % value.tensor.dim() for axis in list(args[1:]) + [kwargs[k] for k in ("dim0", "dim1") if k in kwargs])
        if axes != [0, 1] or len(value.leading) != 2 or value.last or value.merged or value.squeezed:
            raise CannotExport(f"`transpose` moves features on {value.gave}; expected the first two axes")
        self.know(out, replace(value, tensor=out, swapped=not value.swapped, leading=value.leading[::-1]))

    on_swapaxes = on_swapdims = on_transpose

    def on_permute(self, value, args, kwargs, out):
        order = args[1:] if len(args) > 2 else (args[1] if len(args) > 1 else kwargs["dims"])
        order = [axis % value.tensor.dim() for axis in order]
        if order == list(range(len(order))):
            return self.know(out, replace(value, tensor=out))
        if order[:2] != [1, 0] or order[2:] != list(range(2, len(order))):
            raise CannotExport(f"`permute` moves features on {value.gave}; expected the first two axes")
        self.on_transpose(value, (None, 0, 1), {}, out)


def shown(index):
    """An index as one writes it."""
    if isinstance(index, tuple):
        return ", ".join(shown(i) for i in index)
    if isinstance(index, slice):
        ends = ["" if end is None else str(end) for end in (index.start, index.stop)]
        return ":".join(ends) + (f":{index.step}" if index.step is not None else "")
    return "..." if index is Ellipsis else "a tensor" if torch.is_tensor(index) else str(index)


def tensors_in(anything):
    if torch.is_tensor(anything):
        return [anything]
    if isinstance(anything, dict):
        anything = anything.values()
    elif not isinstance(anything, (list, tuple)):
        return []
    return [tensor for part in anything for tensor in tensors_in(part)]


def in_order(names):
    """`nn.Sequential.forward`, where only the output of a recurrent layer goes on to the next layer."""

    def forward(self, x):
        modules = list(self)
        for module, after in zip(modules, modules[1:] + [None]):
            kind = leaf_class(module)
            if kind and not supported(kind):
                raise CannotExport(unknown(names[module], kind))
            x = module(x)
            if isinstance(module, RECURRENT) and (after is None or leaf_class(after) or isinstance(after, nn.Sequential)):
                x = x[0]
        return x

    return forward


def trace(model, sample):
    """Runs a network on a sample, and gives its chain of layers and what there is to say about it."""
    tracer = Tracer(model, sample)
    handles = []
    for module in model.modules():
        if leaf_class(module):
            handles.append(module.register_forward_pre_hook(tracer.enter, with_kwargs=True))
            handles.append(module.register_forward_hook(tracer.leave, with_kwargs=True))
    training = {module: module.training for module in model.modules()}
    model.eval()
    try:
        with mock.patch.object(nn.Sequential, "forward", in_order(tracer.names)), tracer:
            out = model(*sample)
    finally:
        for handle in handles:
            handle.remove()
        for module, mode in training.items():
            module.training = mode
    y, *others = out if isinstance(out, (tuple, list)) else (out,)
    if not torch.is_tensor(y):
        raise CannotExport(f"the network gives a {type(y).__name__}; expected a tensor, or a tensor and states")
    value = tracer.value(y, "the output")
    for other in tensors_in(others):
        what = tracer.what(other)
        states = [s for step in value.steps for t in step.states.values() for s in (t, t._base) if s is not None]
        if not isinstance(what, State) and not getattr(what, "state", False) and not any(other is s for s in states):
            raise CannotExport("the network gives more than one result; expected one, and states beside it")
    layers = [step.module for step in value.steps if step.module is not None and not step.recurrent]
    for module in {id(m): m for m in layers if layers.count(m) > 1}.values():
        tracer.notes.append(f"`{tracer.names[module]}` is used more than once: its weights are written each time")
    return value, list(dict.fromkeys(tracer.notes))
