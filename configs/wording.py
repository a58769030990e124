"""What was expected where a value does not fit, in words of ours: pydantic's kinds of errors, told to people.

For everything that is read from a file: configs (``configs.sources``) and chaos scenarios.
"""

from __future__ import annotations

from collections.abc import Sequence

from pydantic_core import ErrorDetails

_BOUNDS = {
    "greater_than": (">", "gt"),
    "greater_than_equal": (">=", "ge"),
    "less_than": ("<", "lt"),
    "less_than_equal": ("<=", "le"),
}
_KINDS = {
    "int_type": "a whole number",
    "int_parsing": "a whole number",
    "int_from_float": "a whole number",
    "float_type": "a number",
    "float_parsing": "a number",
    "finite_number": "a finite number",
    "bool_type": "true or false",
    "bool_parsing": "true or false",
    "string_type": "a string",
    "tuple_type": "a list",
    "dict_type": "a table",
    "model_type": "a table",
}


def expected_of(details: Sequence[ErrorDetails]) -> str:
    """What was expected, from the errors of one value: several where it may be of several kinds."""
    return "expected " + " or ".join(dict.fromkeys(map(_one, details)))


def _one(detail: ErrorDetails) -> str:
    context = detail.get("ctx", {})
    match detail["type"]:
        case "literal_error" | "enum":
            return _choice(str(context["expected"]))
        case "too_short" | "too_long":
            return f"{context.get('min_length', context.get('max_length'))} of them"
        case kind if kind in _BOUNDS:
            sign, name = _BOUNDS[kind]
            return f"a number {sign} {context[name]}"
        case kind:
            return _KINDS.get(kind, detail["msg"].removeprefix("Input should be "))


def _choice(values: str) -> str:
    return f"one of {values}" if " or " in values else values
