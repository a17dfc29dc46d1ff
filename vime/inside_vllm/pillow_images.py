"""Qwen3.5's module of vLLM without torchvision, which the CPU build's installation leaves out (`scripts/setup.sh`).

vLLM has the text model and the one that sees images in one module, and takes a function that computes sizes of images from
transformers' image processor on torchvision. Transformers has the same function beside its image processor on Pillow.
"""

import sys
from collections.abc import Sequence
from importlib import import_module
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from importlib.util import find_spec
from types import ModuleType

ON_TORCHVISION = "transformers.models.qwen2_vl.image_processing_qwen2_vl"
ON_PILLOW = "transformers.models.qwen2_vl.image_processing_pil_qwen2_vl"


class _Finder(MetaPathFinder, Loader):
    """Finds the module on Pillow by the name of the other."""

    def find_spec(self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None) -> ModuleSpec | None:
        return ModuleSpec(fullname, self) if fullname == ON_TORCHVISION else None

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        return import_module(ON_PILLOW)

    def exec_module(self, module: ModuleType) -> None:
        """Does nothing: the module has been executed."""


def take_pillow() -> None:
    """Lets the module be imported where torchvision is not installed. Safe to call twice."""
    if find_spec("torchvision") is None and not any(isinstance(finder, _Finder) for finder in sys.meta_path):
        sys.meta_path.insert(0, _Finder())
