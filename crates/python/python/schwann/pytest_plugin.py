"""A plugin for pytest: a test fails when a model got slower.

``schwann_gate`` is there in every test where this package is installed::

    def test_the_model_is_as_fast_as_it_was(schwann_gate):
        schwann_gate(schwann.load("net.safetensors"), baseline="net")

``pytest --schwann-save`` measures anew, and saves what such tests compare with. They are kept in ``.schwann/baselines.db``
under the folder of pytest's settings, or where ``--schwann-baselines FILE`` says.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Callable

import pytest

DEFAULT = ".schwann/baselines.db"


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("schwann", "speed of models")
    group.addoption("--schwann-save", action="store_true", help="save what models take now, for later comparisons")
    group.addoption("--schwann-baselines", metavar="FILE", help=f"where baselines are kept (default: {DEFAULT})")
    group.addoption(
        "--schwann-undecided",
        choices=["pass", "fail"],
        default="pass",
        help="what a test does whose answer was not clear in its time (default: pass)",
    )


@pytest.fixture
def schwann_gate(request: pytest.FixtureRequest) -> Callable[..., Any]:
    """Fails the test if a model is surely slower than is allowed, beside a saved baseline or another model.

    Takes what ``schwann.gate`` takes, and gives its ruling. Where nothing was saved under ``baseline``, the test is skipped.
    """
    import schwann

    given = request.config.getoption("--schwann-baselines")
    file = Path(given) if given else Path(request.config.rootpath) / DEFAULT

    def gate(model: schwann.Model, *, baseline: str | None = None, **options: Any) -> Any:
        if baseline is not None:
            if request.config.getoption("--schwann-save"):
                kept = ("batch", "steps", "threads")
                profile = schwann.profile(
                    model, starts=True, roof=False, seconds=1.0, **{k: v for k, v in options.items() if k in kept}
                )
                file.parent.mkdir(parents=True, exist_ok=True)
                schwann.save_baseline(baseline, profile, file=file)
                pytest.skip(f"saved as the baseline {baseline!r} in {file}")
            try:
                options["baseline"] = schwann.load_baseline(baseline, file=file)
            except LookupError as missing:
                pytest.skip(f"nothing to compare with: {missing}; pytest --schwann-save saves it")
        ruling = schwann.gate(model, **options)
        undecided = request.config.getoption("--schwann-undecided") == "fail"
        if ruling.decision == "regressed" or (ruling.decision == "undecided" and undecided):
            raise schwann.Regressed(str(ruling))
        return ruling

    return gate
