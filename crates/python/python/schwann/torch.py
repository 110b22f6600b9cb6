"""CfC and LTC layers for PyTorch that compute with Schwann's kernels, forward and backward.

They are those of ``ncps.torch`` in all else: the same arguments, the same first weights from the same seed, the same state
dict. An existing training script changes one import::

    from schwann.torch import CfC        # was: from ncps.torch import CfC

They need torch and ncps, tensors of float32 in the processor's memory, and no more than first derivatives.
"""

from __future__ import annotations

from typing import Any, ClassVar, Optional, Union

import ncps.torch
import torch
from torch.autograd.function import once_differentiable

from . import _schwann
from ._exported.collect import collect_layer

__all__ = ["CfC", "LTC"]

State = Union[torch.Tensor, tuple[torch.Tensor, torch.Tensor]]


def _array(tensor: torch.Tensor) -> Any:
    return tensor.detach().contiguous().numpy()


class _Run(torch.autograd.Function):
    """One call of a layer. ``names`` says what the tensors are."""

    @staticmethod
    def forward(ctx: Any, layer: Any, names: tuple[str, ...], *tensors: torch.Tensor) -> Any:
        ctx.layer, ctx.names = layer, names
        ctx.save_for_backward(*tensors)
        out = layer.forward({name: _array(tensor) for name, tensor in zip(names, tensors)})
        ctx.set_materialize_grads(False)
        ctx.outputs = [name for name in ("y", "hn", "cn") if name in out]
        return tuple(torch.from_numpy(out[name]) for name in ctx.outputs)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Optional[torch.Tensor]) -> Any:
        arrays = {name: _array(tensor) for name, tensor in zip(ctx.names, ctx.saved_tensors)}
        given = {name: grad for name, grad in zip(ctx.outputs, grads) if grad is not None}
        wrt = [name for name, needed in zip(ctx.names, ctx.needs_input_grad[2:]) if needed]
        if not given or not wrt:
            return (None,) * (2 + len(ctx.names))
        arrays.update({f"grad_out.{name}": _array(grad) for name, grad in given.items()})
        found = ctx.layer.backward(arrays, wrt)
        return (None, None, *(torch.from_numpy(found[f"grad.{n}"]) if n in wrt else None for n in ctx.names))


def _checked(name: str, tensor: Any) -> torch.Tensor:
    if not isinstance(tensor, torch.Tensor):
        raise TypeError(f"`{name}` is a {type(tensor).__name__}; expected a tensor")
    if tensor.device.type != "cpu":
        raise ValueError(f"`{name}` is on {tensor.device}; expected a tensor in the processor's memory: {name}.cpu()")
    if tensor.dtype != torch.float32:
        kind = str(tensor.dtype).removeprefix("torch.")
        raise TypeError(f"`{name}` is {kind}{list(tensor.shape)}; expected float32: {name}.float() makes it of this one")
    return tensor


class _Fast(torch.nn.Module):
    """What both layers have: ``forward`` on Schwann's kernels."""

    batch_first: bool
    return_sequences: bool
    use_mixed: bool
    _layer: Any = None

    def _made(self) -> tuple[Any, list[tuple[str, torch.Tensor]]]:
        """The layer, and its parameters as they are now."""
        if self._layer is None:
            found = collect_layer(self)
            tensors = {name: tensor.detach().cpu().float() for name, tensor in found.tensors.items()}
            model = _schwann._from_state_dict({n: t.contiguous().numpy() for n, t in tensors.items()}, found.metadata)
            self._layer = _schwann._Layer(model, _threads)
        own = dict(self.named_parameters())
        return self._layer, [(name, _checked(name, own[name])) for name in self._layer.names]

    def __getstate__(self) -> dict[str, Any]:
        # Copies and pickles make their own.
        return {**self.__dict__, "_layer": None}

    def forward(self, input: torch.Tensor, hx: Optional[State] = None, timespans: Optional[torch.Tensor] = None) -> Any:
        if self.training and any(isinstance(m, torch.nn.Dropout) and m.p > 0 for m in self.modules()):
            raise NotImplementedError("dropout in the backbone is not there in schwann.torch; expected backbone_dropout=0, or ncps.torch")
        x = _checked("input", input)
        if x.dim() not in (2, 3):
            raise ValueError(f"`input` is float32{list(x.shape)}; expected [L, C], or [B, L, C] with a batch")
        batched = x.dim() == 3
        batch_axis = 0 if self.batch_first else 1
        if not batched:
            x = x.unsqueeze(batch_axis)
        rows, steps = x.size(batch_axis), x.size(1 - batch_axis)
        given = [("x", x)]
        states = ["h0", "c0"] if self.use_mixed else ["h0"]
        units: Any = self.state_size
        if hx is None:
            given += [(name, torch.zeros(rows, units)) for name in states]
        else:
            pair = hx if isinstance(hx, (tuple, list)) else (hx,)
            if len(pair) != len(states):
                wanted = "a pair (h0, c0), since mixed_memory is on" if self.use_mixed else "one tensor"
                raise RuntimeError(f"`hx` is {'one tensor' if len(pair) == 1 else f'{len(pair)} tensors'}; expected {wanted}")
            for name, state in zip(states, pair):
                state = _checked("hx", state)
                if state.dim() != (2 if batched else 1):
                    wanted = "[B, H], as `input` has a batch" if batched else "[H], as `input` has no batch"
                    raise RuntimeError(f"`hx` is float32{list(state.shape)}; expected {wanted}")
                given.append((name, state if batched else state.unsqueeze(0)))
        if timespans is not None:
            spans = _checked("timespans", timespans)
            spans = spans if batched else spans.unsqueeze(batch_axis)
            if spans.dim() == 3 and spans.size(2) == 1:
                spans = spans.squeeze(2)
            wanted_shape = [rows, steps] if self.batch_first else [steps, rows]
            if list(spans.shape) != wanted_shape:
                raise ValueError(f"`timespans` is float32{list(timespans.shape)}; expected {wanted_shape}, one for each sample and step")
            given.append(("timespans", spans))
        layer, parameters = self._made()
        given += parameters
        names, tensors = tuple(name for name, _ in given), [tensor for _, tensor in given]
        y, *last = _Run.apply(layer, names, *tensors)
        if not batched:
            y = y.squeeze(batch_axis) if self.return_sequences else y.squeeze(0)
            last = [state[0] for state in last]
        return y, (tuple(last) if self.use_mixed else last[0])


_threads = 0


def set_num_threads(threads: int) -> None:
    """How many threads layers that are made from now on may use; 0 is one for each core."""
    global _threads
    _threads = threads


class CfC(_Fast, ncps.torch.CfC):  # type: ignore[misc]
    """``ncps.torch.CfC``, with the same arguments, on Schwann's kernels."""

    computes_as: ClassVar[type] = ncps.torch.CfC


class LTC(_Fast, ncps.torch.LTC):  # type: ignore[misc]
    """``ncps.torch.LTC``, with the same arguments, on Schwann's kernels."""

    computes_as: ClassVar[type] = ncps.torch.LTC
