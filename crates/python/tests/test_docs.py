"""What is written runs: examples in docstrings and on the page about Python; and the types are right."""

import doctest
import inspect
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import schwann
from conftest import REPOSITORY
from schwann import _schwann

PAGE = REPOSITORY / "docs" / "python.md"


def documented():
    """Everything public that has a docstring."""
    found = {"schwann": schwann.__doc__}
    for name in schwann.__all__:
        thing = getattr(schwann, name)
        found[name] = inspect.getdoc(thing) or ""
        if inspect.isclass(thing) and thing.__module__.startswith("schwann"):
            for part, value in vars(thing).items():
                text = getattr(value, "__doc__", None)
                if not part.startswith("_") and isinstance(text, str):
                    found[f"{name}.{part}"] = inspect.cleandoc(text)
    return found


@pytest.mark.parametrize("name", [name for name, text in documented().items() if ">>>" in text])
def test_examples_in_docstrings_run(name):
    test = doctest.DocTestParser().get_doctest(documented()[name], {}, name, None, 0)
    said = []
    doctest.DocTestRunner(optionflags=doctest.NORMALIZE_WHITESPACE).run(test, out=said.append)
    assert not said, "".join(said)


def test_everything_public_is_documented():
    assert [name for name, text in documented().items() if not text] == []


def test_the_page_runs(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    blocks = re.findall(r"```python\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
    assert blocks
    names = {}
    for block in blocks:
        first = block.splitlines()[0]
        needs = re.match(r"# needs (.*)", first)
        if needs:
            missing = [m for m in needs.group(1).split(", ") if not importable(m)]
            if missing:
                print(f"skipped: a block of docs/python.md needs {', '.join(missing)}")
                continue
        exec(compile(block, f"{PAGE.name}: {first}", "exec"), names)


def importable(module):
    try:
        __import__(module)
    except ImportError:
        return False
    return True


def test_types_are_right(tmp_path):
    pytest.importorskip("mypy", reason="mypy, which checks types, is not here")
    # In a folder of its own: beside other packages, mypy would take those for ours.
    folder = tmp_path / "schwann"
    shutil.copytree(Path(schwann.__file__).parent, folder, ignore=shutil.ignore_patterns("*.so", "*.pyd", "__pycache__"))
    files = [str(folder / name) for name in ("__init__.py", "_schwann.pyi", "pytest_plugin.py", "arrow.py", "torch.py")]
    options = ["--strict", "--ignore-missing-imports", "--python-version", "3.10"]
    command = [sys.executable, "-m", "mypy", *options, *files]
    told = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path)
    assert told.returncode == 0, told.stdout


def test_the_stub_has_what_the_module_has():
    stub = (Path(schwann.__file__).parent / "_schwann.pyi").read_text()
    for name in dir(_schwann):
        if name.startswith("__"):
            continue
        assert re.search(rf"\b(class|def) {name}\b", stub), name
        thing = getattr(_schwann, name)
        if inspect.isclass(thing):
            body = re.search(rf"class {name}:\n((?:    .*\n|\n)*)", stub).group(1)
            for part in vars(thing):
                if not part.startswith("_"):
                    assert re.search(rf"\b{part}\b", body), f"{name}.{part}"
