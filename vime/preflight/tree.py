"""Finds problems in a composed tree: unknown keys, missing values and wrong types, each with a suggested correction."""

import dataclasses
import difflib
import re
from collections.abc import Iterator
from typing import Any

from omegaconf import DictConfig, OmegaConf, open_dict
from omegaconf.errors import OmegaConfBaseException

from vime.config.ranges import Range, ranges_of
from vime.errors import Problem

SIBLING, LEAF = 0.65, 0.75
"""Least likeness of two names (0 to 1) for a suggestion: between keys of the same group, and between settings anywhere."""
MOST_LEAVES = 3


def node_at(tree: Any, key: str) -> Any:
    """The node at a dotted key, None if there is none."""
    try:
        return OmegaConf.select(tree, key, throw_on_missing=False)
    except OmegaConfBaseException:
        return None


def value_remedy(reason: str, tree: Any, key: str) -> str:
    """The remedy for a value that does not fit its field `key` of the tree, from OmegaConf's words."""
    if found := re.search(r"converted to (Float|Integer)", reason):
        wanted = {"Float": "a number", "Integer": "a whole number"}[found[1]]
        allowed, default = _range_at(tree, key), node_at(tree, key)
        bounds = f" ({allowed})" if allowed is not None and allowed.bounds else ""
        return f"is not {wanted}: use {wanted}{bounds}" + (f", for example {key}={default}" if default is not None else "")
    if "converted to Boolean" in reason or "is not a valid bool" in reason:
        return f"is neither true nor false: use {key}=true or {key}=false"
    if "is not Optional" in reason:
        return "cannot be null: use a value, or leave it out for the default"
    if "is not a ListConfig" in reason:
        return f"is not a list: use {key}=[a,b]"
    if "invalid literal for int" in reason:
        return "is in a list, whose entries have numbers for names: use the number of an entry, from 0"
    if found := re.search(r"expected one of \[(.*)\]", reason):
        return f"there is no such choice: use one of {found[1]}"
    return reason


def _range_at(tree: Any, key: str) -> Range | None:
    above, _, name = key.rpartition(".")
    schema: Any = OmegaConf.get_type(node_at(tree, above) if above else tree)
    return ranges_of(schema).get(name) if dataclasses.is_dataclass(schema) else None


def in_named_item(tree: DictConfig, key: str) -> bool:
    """True if a key lies in an item of a dictionary of dataclasses, as `serving.models.judge.port` does.

    There a plus is right whether or not the item is new.
    """
    node: Any = tree
    for name in key.split(".")[:-1]:
        if not OmegaConf.is_dict(node):
            return False
        if dataclasses.is_dataclass(node._metadata.element_type):
            return True
        node = node._get_node(name) if name in node else None
    return False


def open_path(tree: Any, key: str, *, add: bool) -> tuple[DictConfig, str]:
    """Returns the node to apply an override to, which is the last list entry in the key or the root, and the rest of the key.

    `data.evaluation.0.num_items` leads to the first set; with `add`, `serving.models.judge.port` makes the model `judge`.
    """
    names = key.split(".")
    root, rest, node = tree, names, tree
    for position, name in enumerate(names, start=1):
        is_last = position == len(names)
        if OmegaConf.is_list(node) and not is_last:
            if not name.isdigit() or int(name) >= len(node):
                raise IndexError(f"the list {'.'.join(names[: position - 1])} has {len(node)} entries, counted from 0")
            root = node = node[int(name)]
            rest = names[position:]
        elif OmegaConf.is_dict(node) and not (node._is_none() or node._is_interpolation()):
            element: Any = node._metadata.element_type
            if add and name not in node and isinstance(element, type) and dataclasses.is_dataclass(element):
                with open_dict(node):
                    node[name] = element()
            node = node._get_node(name, validate_access=False)
        else:
            break
    return root, ".".join(rest)


def unknown_keys(tree: Any, prefix: str = "") -> list[Problem]:
    """Keys that were added with a plus to a node whose dataclass has no such field."""
    problems: list[Problem] = []
    schema: Any = OmegaConf.get_type(tree)
    names = {field.name for field in dataclasses.fields(schema)} if dataclasses.is_dataclass(schema) else None
    for key, node in _children(tree):
        path = f"{prefix}{key}"
        if names is not None and key not in names and path != "hydra":
            problems.append(Problem(key=path, value=_plain(node), remedy=unknown_key_remedy(tree, str(key), prefix=prefix)))
        elif OmegaConf.is_config(node) and path != "hydra" and not (node._is_none() or node._is_missing()):
            problems += unknown_keys(node, f"{path}.")
    return problems


def values_missing(tree: Any, prefix: str = "") -> list[Problem]:
    """Values that a file leaves to the user (`???`), and references (`${…}`) that lead nowhere."""
    problems: list[Problem] = []
    for key, node in _children(tree):
        path = f"{prefix}{key}"
        if path == "hydra" or node is None or node._is_none():
            continue
        if node._is_missing():
            problems.append(Problem(key=path, value="???", remedy=f"has no value: add {path}=…"))
        elif node._is_interpolation():
            try:
                _ = tree[key]
            except (OmegaConfBaseException, ImportError, ValueError) as error:
                remedy = f"cannot be resolved: {str(error).splitlines()[0]}"
                problems.append(Problem(key=path, value=node._value(), remedy=remedy))
        elif OmegaConf.is_config(node):
            problems += values_missing(node, f"{path}.")
    return problems


def unknown_key_remedy(tree: Any, key: str, *, prefix: str = "") -> str:
    """The remedy for a key that does not exist: a similar one, a plus for free keys, and the keys there are."""
    names, root = key.split("."), tree._get_root() if OmegaConf.is_config(tree) else tree
    node: Any = tree
    for depth, name in enumerate(names):
        if not OmegaConf.is_config(node) or node._is_none():
            break
        known = [str(child) for child, _ in _children(node) if str(child) != "hydra"]
        if name not in known or depth == len(names) - 1:
            above = prefix + "".join(f"{word}." for word in names[:depth])
            others = sorted(set(known) - {name})
            match = difflib.get_close_matches(name, others, n=1, cutoff=SIBLING)
            found = [".".join([*above.split(".")[:-1], match[0], *names[depth + 1 :]])] if match else leaves_like(root, names[-1])
            hint = f"; did you mean {' or '.join(found)}?" if found else "."
            there = f" Known{f' under {above[:-1]}' if above else ''}: {', '.join(others)}" if others else ""
            if OmegaConf.is_list(node) or dataclasses.is_dataclass(OmegaConf.get_type(node)):
                return f"there is no such key{hint}{there}"
            return f"is new{hint} Add it with a plus: +{prefix}{key}=…{there and '.'}{there}"
        node = node._get_node(int(name) if OmegaConf.is_list(node) else name)
    return f"there is no such key: {'.'.join(names[:-1])} is a value, not a group of keys"


def leaves_like(tree: Any, name: str) -> list[str]:
    """Keys of settings anywhere in the tree that are called `name`, else those with its initials (`lr` for `learning_rate`), else
    those that are spelt nearly like it; at most `MOST_LEAVES` of them."""
    leaves: dict[str, list[str]] = {}
    for key in _leaf_keys(tree):
        leaves.setdefault(key.rpartition(".")[2], []).append(key)
    initials = "".join(word[:1] for word in name.split("_"))
    close = difflib.get_close_matches(name, leaves, n=1, cutoff=LEAF)
    found = leaves.get(name) or ("_" in name and leaves.get(initials)) or (leaves[close[0]] if close else [])
    return sorted(found, key=lambda key: (key.count("."), key))[:MOST_LEAVES]


def _leaf_keys(node: Any, prefix: str = "") -> Iterator[str]:
    """The dotted keys of all values of dataclasses below a node."""
    for key, child in _children(node):
        path = f"{prefix}{key}"
        if path == "hydra":
            continue
        if OmegaConf.is_dict(child) and not (child._is_none() or child._is_interpolation() or child._is_missing()):
            yield from _leaf_keys(child, f"{path}.")
        elif not OmegaConf.is_config(child):
            yield path


def _children(node: Any) -> list[tuple[Any, Any]]:
    if OmegaConf.is_list(node):
        return [(index, node._get_node(index)) for index in range(len(node))]
    return [(key, node._get_node(key)) for key in node]


def _plain(node: Any) -> Any:
    return OmegaConf.to_container(node) if OmegaConf.is_config(node) else node._value()
