from typing import Any

class Collected:
    tensors: dict[str, Any]
    metadata: dict[str, str]
    steps: list[Any]
    notes: list[str]
    x: Any

def collect(model: Any, sample: Any = None, gradients: bool = False, **constructor_args: Any) -> Collected: ...
def collect_layer(module: Any) -> Collected: ...
