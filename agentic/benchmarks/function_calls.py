"""The comparison of function calls with the answers that BFCL allows, as its checker of syntax trees does (for Python).

    calls_in('[area(base=10, height=5)]')                       # [("area", {"base": 10, "height": 5})]
    matches([("area", {"base": 10, "height": 5})], functions, [{"area": {"base": [10], "height": [5], "unit": ["", "cm"]}}])

An allowed answer lists the values of each parameter; "" among them says that it may be left out. Strings are compared without
case, spaces and the marks `,./-_*^`.
"""

import ast
import re
from collections.abc import Sequence
from typing import Any

Call = tuple[str, dict[str, Any]]
"""A function's name and its arguments."""
TYPES: dict[str, type] = {
    "string": str,
    "integer": int,
    "float": float,
    "boolean": bool,
    "array": list,
    "tuple": list,
    "dict": dict,
    "any": str,
}
NESTED = ("array", "tuple")
IGNORED = re.compile(r"[ ,./\-_*^]")


def calls_in(reply: str) -> list[Call]:
    """The calls that a reply consists of, `[name(argument=value), …]`. Raises ValueError if it is anything else."""
    text = reply.strip("`\n ")
    text = text if text.startswith("[") else f"[{text}"
    text = text if text.endswith("]") else f"{text}]"
    try:
        body = ast.parse(text.strip().strip("'"), mode="eval").body
        return [_call(node) for node in ([body] if isinstance(body, ast.Call) else getattr(body, "elts", [None]))]
    except (SyntaxError, RecursionError, MemoryError, TypeError, OverflowError) as error:
        raise ValueError(f"no function calls: {error}") from error


def _call(node: Any) -> Call:
    if not isinstance(node, ast.Call):
        raise ValueError("an element is no call")
    return ast.unparse(node.func), {word.arg or "": _value(word.value) for word in node.keywords}


def _value(node: ast.expr) -> Any:
    """A value, with lists, dictionaries and calls in it; a name stands for itself, and anything else for its text."""
    match node:
        case ast.List(elts=elements):
            return [_value(each) for each in elements]
        case ast.Tuple(elts=elements):
            return tuple(_value(each) for each in elements)
        case ast.Dict(keys=keys, values=values):
            return {_value(key): _value(value) for key, value in zip(keys, values, strict=True) if key is not None}
        case ast.Call(keywords=[_, *_]):
            name, arguments = _call(node)
            return {name: arguments}
        case ast.Constant(value=value) if value is not ...:
            return value
        case _:
            pass
    try:
        return _number(node)
    except ValueError:
        return ast.unparse(node)


def _number(node: ast.expr) -> Any:
    """The value of sums, differences, products and quotients of numbers. Raises ValueError for anything else."""
    match node:
        case ast.Constant(value=int() | float() as value):
            return value
        case ast.UnaryOp(op=ast.USub(), operand=operand):
            return -_number(operand)
        case ast.BinOp(left=left, op=ast.Add() | ast.Sub() | ast.Mult() | ast.Div() as operator, right=right):
            one, other = _number(left), _number(right)
            match operator:
                case ast.Add():
                    return one + other
                case ast.Sub():
                    return one - other
                case ast.Mult():
                    return one * other
                case ast.Div() if other:
                    return one / other
                case _:
                    pass
        case _:
            pass
    raise ValueError("no number")


def matches(calls: Sequence[Call], functions: Sequence[dict[str, Any]], allowed: Sequence[dict[str, Any]]) -> bool:
    """True if each allowed answer takes a call of its own, the first that it allows, and there are no further calls."""
    if len(calls) != len(allowed):
        return False
    left = list(calls)
    for answer in allowed:
        ((name, values),) = answer.items()
        function = next((each for each in functions if each["name"] == name), None)
        found = next(
            (call for call in left if function is not None and call[0] == name and _is_right(call, function, values)), None
        )
        if found is None:
            return False
        left.remove(found)
    return True


def _is_right(call: Call, function: dict[str, Any], allowed: dict[str, list[Any]]) -> bool:
    """True if a call has the required arguments and no unknown ones, each with the right type and an allowed value."""
    _, arguments = call
    parameters = function["parameters"]["properties"]
    needed = {*function["parameters"].get("required", ()), *(name for name, values in allowed.items() if "" not in values)}
    if not needed <= set(arguments):
        return False
    return all(
        name in parameters and name in allowed and _is_allowed(value, parameters[name], allowed[name])
        for name, value in arguments.items()
    )


def _is_allowed(value: Any, parameter: dict[str, Any], allowed: list[Any]) -> bool:
    kind = parameter["type"]
    wanted = TYPES[kind]
    nested = TYPES[parameter["items"]["type"]] if kind in NESTED else None
    if kind == "tuple" and isinstance(value, tuple):
        value = list(value)
    if kind == "float" and type(value) is int:
        value = float(value)
    example = next((type(each) for each in allowed if each != ""), None)
    stands_for_variable = example is not None and example is not wanted  # the answer names a variable
    if type(value) is wanted:
        if nested is not None and not _are_of(value, nested, allowed):
            return False
    elif example is not None and type(value) is example:
        stands_for_variable = True
    else:
        return False
    if not stands_for_variable:
        if wanted is dict:
            return any(_is_same_dict(value, each) for each in allowed if each != "")
        if nested is dict:
            return any(
                len(each) == len(value) and all(map(_is_same_dict, value, each)) for each in allowed if isinstance(each, list)
            )
        if wanted is str:
            return _plain(value) in [_plain(each) for each in allowed if isinstance(each, str)]
        if wanted is list:
            return _plain_list(value) in [_plain_list(each) for each in allowed]
    return value in allowed


def _are_of(values: list[Any], nested: type, allowed: list[Any]) -> bool:
    """True if all elements have the type of the schema, or that of the elements of an allowed answer."""
    for answer in allowed:
        if not isinstance(answer, list):
            return True
        example = next((type(each) for each in answer if each != ""), None)
        if all(type(value) is nested or (example is not None and type(value) is example) for value in values):
            return True
    return False


def _is_same_dict(value: Any, allowed: Any) -> bool:
    if not isinstance(value, dict) or not isinstance(allowed, dict):
        return False
    if any(key not in value and "" not in options for key, options in allowed.items()):
        return False
    return all(key in allowed and _plain(item) in [_plain(each) for each in allowed[key]] for key, item in value.items())


def _plain(value: Any) -> Any:
    return IGNORED.sub("", value).lower().replace("'", '"') if isinstance(value, str) else value


def _plain_list(value: Any) -> Any:
    return [_plain(each) for each in value]
