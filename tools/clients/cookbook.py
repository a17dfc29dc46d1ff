"""Runs a recipe of tinker-cookbook as it is, offline: python cookbook.py MODEL FOLDER MODULE [the recipe's words]

MODEL is the name by which the recipe asks for the model; FOLDER has its tokenizer, and a folder of rows for each data set.
"""

import runpy
import sys
from pathlib import Path

import datasets
from tinker_cookbook import tokenizer_utils  # pyright: ignore[reportMissingImports]
from transformers import AutoTokenizer

model, folder, module, *words = sys.argv[1:]


def load_rows(name, *_, split=None):
    """The rows of FOLDER/name/SPLIT.jsonl."""
    files = {path.stem: str(path) for path in (Path(folder) / name).glob("*.jsonl")}
    return load_dataset("json", data_files=files, split=split)


load_dataset, datasets.load_dataset = datasets.load_dataset, load_rows
tokenizer_utils.register_tokenizer(model, lambda: AutoTokenizer.from_pretrained(Path(folder) / "tokenizer"))
sys.argv = [module, *words]
runpy.run_module(module, run_name="__main__")
