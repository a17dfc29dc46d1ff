"""The public interface: every name is there, documented, and costs nothing until it is asked for."""

import inspect
import subprocess
import sys

import pytest

import vime


@pytest.mark.parametrize("name", vime.__all__)
def test_a_public_name_is_there_and_documented(name: str):
    found = getattr(vime, name)
    assert name == "Message" or (inspect.isclass(found) and found.__name__ == name and found.__doc__)


def test_an_unknown_name_is_no_attribute():
    assert not hasattr(vime, "Smaple")


def test_importing_vime_imports_nothing_else():
    lines = ["import sys, vime", "print(sorted(name for name in sys.modules if name.startswith(('vime.', 'torch', 'numpy'))))"]
    found = subprocess.run([sys.executable, "-c", "\n".join(lines)], capture_output=True, text=True, check=True)
    assert found.stdout == "[]\n"
