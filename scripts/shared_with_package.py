"""What these scripts share with the Python package `schwann`, which need not be installed for them."""

import importlib
import importlib.util
import sys
from pathlib import Path

NAME = "schwann_exported"
FOLDER = Path(__file__).resolve().parent.parent / "crates" / "python" / "python" / "schwann" / "_exported"


def part(name):
    """A module of the package's folder `_exported`."""
    if NAME not in sys.modules:
        place = FOLDER / "__init__.py"
        spec = importlib.util.spec_from_file_location(NAME, place, submodule_search_locations=[str(FOLDER)])
        sys.modules[NAME] = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(sys.modules[NAME])
    return importlib.import_module(f"{NAME}.{name}")
