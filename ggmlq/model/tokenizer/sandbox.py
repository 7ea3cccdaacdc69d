"""Jinja2's sandbox with limits: whatever a template does is counted before it is done (work.py).

Jinja2 keeps templates from Python's inner parts, but not from loops without an end or texts of gigabytes.
Here only parts of the language, filters, tests and methods that are listed can be used, each with the work
that it takes. Statements are counted where their bodies begin; comparisons, loops and slices by
calls that are put around their operands; operators, filters, tests, methods and macros where they are called.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from datetime import datetime
from functools import lru_cache, wraps
from numbers import Real
from types import CodeType
from typing import Any, NoReturn

import jinja2
from jinja2 import nodes
from jinja2.compiler import CodeGenerator, Frame
from jinja2.runtime import LoopContext, Macro, Undefined
from jinja2.sandbox import ImmutableSandboxedEnvironment, SandboxedFormatter
from jinja2.utils import Cycler, Joiner, pass_eval_context

from .work import ESCAPED, ITEM, NODE, TooMuch, Work

# --- filters, tests, methods and operators that a template may use, each with its work -------
# A cost is counted before the call. Where a filter goes through an iterator, it gets a list.

Cost = Callable[[Work, list[Any], dict[str, Any]], None]
SEPARATORS = 16  # in the name of an attribute, such as ``function.name``


def free(work: Work, args: list[Any], kwargs: dict[str, Any]) -> None:
    """Nothing beyond the call."""


def of_items(work: Work, args: list[Any], kwargs: dict[str, Any]) -> None:
    """An item for each letter or item."""
    args[0] = work.listed(args[0])
    work.take(ITEM * len(args[0]) if hasattr(args[0], "__len__") else 0)


def deep(factor: int) -> Cost:
    """All that is in the operands, so many times."""

    def cost(work: Work, args: list[Any], kwargs: dict[str, Any]) -> None:
        args[0] = work.listed(args[0])
        work.take(factor * work.weight([args, kwargs]))

    return cost


def named(cost: Cost, first: int = 1, last: int = 4) -> Cost:
    """A cost of a filter that looks up an attribute of each item, among these operands."""

    def checked(work: Work, args: list[Any], kwargs: dict[str, Any]) -> None:
        for name in [*args[first:last], kwargs.get("attribute")]:
            if isinstance(name, str) and name.count(".") + name.count(",") > SEPARATORS:
                raise TypeError("an attribute of many parts")
        cost(work, args, kwargs)

    return checked


def numbers(work: Work, args: list[Any], kwargs: dict[str, Any]) -> None:
    """Numbers alone: ``%`` and ``*`` of a text are something else."""
    for value in [*args[:1], *args[1:2]]:
        if not isinstance(value, Real):
            raise TypeError(f"{type(value).__name__} in place of a number")
    work.take(sum(abs(int(value)) ** 2 for value in [*args[1:2], *kwargs.values()] if isinstance(value, int)))


def _sum(work: Work, args: list[Any], kwargs: dict[str, Any]) -> None:
    deep(4)(work, args, kwargs)
    start = kwargs.get("start", args[2] if len(args) > 2 else 0)
    if not isinstance(start, Real):  # lists, of which each sum is a copy
        work.take(len(args[0]) * work.weight(args[0]) // ITEM)


def _join(work: Work, args: list[Any], kwargs: dict[str, Any]) -> None:
    args[0] = work.listed(args[0])
    between = kwargs.get("d", args[1] if len(args) > 1 else "")
    joined(work, str(work.shown(between)), args[0])


def joined(work: Work, between: str, items: Any) -> None:
    """Texts with another one between them."""
    of_items(work, [items], {})
    for item in items:
        work.take(len(between) + (len(item) if isinstance(item, str) else ESCAPED * work.weight(item)))


def _trim(work: Work, args: list[Any], kwargs: dict[str, Any]) -> None:
    work.searched(work.shown(args[0]), *args[1:], *kwargs.values())


def _replace(work: Work, args: list[Any], kwargs: dict[str, Any]) -> None:
    names = ("s", "old", "new")
    text, old, new = (
        work.shown(kwargs.get(name, args[i] if i < len(args) else "")) for i, name in enumerate(names)
    )
    replaced(work, text, old, new)


def replaced(work: Work, text: str, old: str, new: str) -> None:
    """A text with all places of another one replaced."""
    work.searched(text, old)
    work.take(len(text) + text.count(old) * len(new))


def _indent(work: Work, args: list[Any], kwargs: dict[str, Any]) -> None:
    width = kwargs.get("width", args[1] if len(args) > 1 else 4)
    lines = len(re.findall(r"[\n\v\f\r\x1c-\x1e\x85\u2028\u2029]", work.shown(args[0]))) + 2
    work.take(lines * (ITEM + (len(width) if isinstance(width, str) else int(width))))


def _json(work: Work, args: list[Any], kwargs: dict[str, Any]) -> None:
    weight = 6 * work.weight(args[0])
    work.take(weight)
    for between in kwargs.get("separators") or ():
        work.take(weight // ITEM * len(between))
    width = kwargs.get("indent", args[1] if len(args) > 1 else None)
    if width is not None:
        level, depth = [args[0]], 0
        while level and depth < 1000:
            level, depth = [part for one in level for part in _within(one)], depth + 1
        work.take(weight // ITEM * depth * (len(width) if isinstance(width, str) else int(width)))


def _within(value: Any) -> Any:
    return value.values() if isinstance(value, Mapping) else value if isinstance(value, list | tuple) else ()


def _format(work: Work, args: list[Any], kwargs: dict[str, Any]) -> None:
    formatted(work, work.shown(args[0]), kwargs or tuple(args[1:]))


def formatted(work: Work, pattern: str, values: Any) -> None:
    """A text with ``%``: the widths in it, and the values at each sign."""
    if isinstance(values, tuple) and re.search(r"%[^a-zA-Z%]*\*", pattern):
        raise TypeError("a width of % that is a value itself")
    work.widths(pattern)
    work.take(pattern.count("%") * (ITEM + ESCAPED * work.weight(values)))


def _center(work: Work, args: list[Any], kwargs: dict[str, Any]) -> None:
    work.shown(args[0])
    work.take(int(kwargs.get("width", args[1] if len(args) > 1 else 80)))


def _pieces(work: Work, args: list[Any], kwargs: dict[str, Any]) -> None:
    of_items(work, args, kwargs)
    work.take(sum(ITEM * int(value) for value in [*args[1:], *kwargs.values()] if isinstance(value, int)))


def inside(work: Work, part: Any, value: Any) -> None:
    """A search by ``in``."""
    if isinstance(part, str) and isinstance(value, str):
        work.searched(value, part)
        return
    work.weighed(part)
    if not isinstance(value, Mapping) and not (isinstance(value, range) and isinstance(part, int)):
        work.weighed(value)


FREE = (
    "attr", "count", "d", "default", "first", "float", "int", "items", "last", "length", "reject",
    "safe", "select",
)  # fmt: skip
FILTERS: dict[str, Cost] = {
    **dict.fromkeys(FREE, free),
    **dict.fromkeys(("rejectattr", "selectattr"), named(free, last=2)),
    "map": named(free), "abs": numbers, "round": numbers, "list": of_items, "reverse": of_items,
    "batch": _pieces, "slice": _pieces,
    **dict.fromkeys(("capitalize", "lower", "upper", "string"), deep(ESCAPED)),
    **dict.fromkeys(("e", "escape", "forceescape", "urlencode", "truncate"), deep(12)),
    **dict.fromkeys(("title", "wordcount"), deep(ITEM)),
    **dict.fromkeys(("dictsort", "groupby", "max", "min", "sort", "unique"), named(deep(32))),
    "trim": _trim, "sum": named(_sum), "join": named(_join, 2), "replace": _replace, "indent": _indent,
    "tojson": _json, "format": _format, "center": _center,
}  # fmt: skip
COMPARISONS = (
    "==", "eq", "equalto", "!=", "ne", ">", "gt", "greaterthan", "ge", ">=", "<", "lt", "lessthan",
    "<=", "le",
)  # fmt: skip
TESTS: dict[str, Cost] = {
    **dict.fromkeys(("odd", "even", "divisibleby"), numbers),
    **dict.fromkeys(COMPARISONS, deep(1)),
    **dict.fromkeys(("lower", "upper"), deep(ESCAPED)),
    "in": lambda work, args, kwargs: inside(work, args[0], args[1]),
}


# --- operators --------------------------------------------------------------------------------


def operation(work: Work, sign: str, left: Any, right: Any) -> None:
    """An operator between two values."""
    if isinstance(left, int) and isinstance(right, int):
        work.take(max(right, 0) * left.bit_length() if sign == "**" else 0)
    elif isinstance(left, Real) and isinstance(right, Real):
        return
    elif sign == "%" and isinstance(left, str):
        formatted(work, left, right)
    elif sign == "*":
        times = next((value for value in (left, right) if isinstance(value, int)), 0)
        for value in (left, right):
            work.take(
                times * len(value) * (1 if isinstance(value, str) else ITEM)
                if hasattr(value, "__len__")
                else 0
            )
    elif sign == "+":
        for value in (left, right):
            work.measured(value)
            if hasattr(value, "__html__"):  # escapes the other one
                work.take(6 * work.weight([left, right]))
    else:
        work.weighed([left, right])


# --- methods ----------------------------------------------------------------------------------

PLAIN = {
    "capitalize", "casefold", "endswith", "isalnum", "isalpha", "isascii", "isdecimal", "isdigit",
    "isidentifier", "islower", "isnumeric", "isprintable", "isspace", "istitle", "isupper", "lower",
    "lstrip", "removeprefix", "removesuffix", "rstrip", "startswith", "strip", "swapcase", "title",
    "upper", "count", "find", "index", "rfind", "rindex",
}  # fmt: skip
CUTS = {"partition", "rpartition", "rsplit", "split", "splitlines"}
WIDE = {"center", "ljust", "rjust", "zfill"}
OTHERS: dict[type, set[str]] = {
    dict: {"get", "items", "keys", "values", "copy"}, list: {"count", "index", "copy"},
    tuple: {"count", "index"},
}  # fmt: skip


def method(work: Work, owner: Any, name: str, args: list[Any], kwargs: dict[str, Any]) -> bool:
    """Count a method of a value; False for one that templates cannot call."""
    if isinstance(owner, str):
        return _of_text(work, owner, name, args, [*args, *kwargs.values()])
    for kind, names in OTHERS.items():
        if isinstance(owner, kind) and name in names:
            work.weighed([args, owner if name in ("count", "copy", "index") else None])
            return True
    return False


def _of_text(work: Work, text: str, name: str, args: list[Any], operands: list[Any]) -> bool:
    escaped = 6 if hasattr(text, "__html__") else 1
    work.take(3 * len(text) + escaped * work.weight(operands))
    if name in PLAIN or name in CUTS:
        parts = [part for one in operands for part in (one if isinstance(one, tuple) else [one])]
        work.searched(text, *parts)
        if name in CUTS:
            between = [part for part in parts if isinstance(part, str)]
            work.take(ITEM * (2 + (text.count(between[0]) if between and between[0] else len(text) // 2)))
    elif name in WIDE:
        work.take(sum(int(width) for width in operands if isinstance(width, int)))
    elif name == "join" and args:
        args[0] = work.listed(args[0])
        for _ in range(escaped):
            joined(work, text, args[0])
    elif name == "replace" and len(args) > 1:
        replaced(work, text, str(args[0]), str(args[1]))
    else:
        return False
    return True


# --- the sandbox -----------------------------------------------------------------------------

LONGEST = 1 << 16  # characters of a template: it takes two seconds to compile; real ones have up to 40,000
PARTS = {
    "Template", "Output", "TemplateData", "For", "If", "Macro", "CallBlock", "FilterBlock", "With",
    "Assign", "AssignBlock", "Name", "NSRef", "Const", "Tuple", "List", "Dict", "Pair", "Keyword",
    "CondExpr", "Filter", "Test", "Call", "Getitem", "Getattr", "Slice", "Concat", "Compare", "Operand",
    "Break", "Continue", "Mul", "Div", "FloorDiv", "Add", "Sub", "Mod", "Pow", "And", "Or", "Not",
    "Neg", "Pos",
}  # fmt: skip


def rendered(template: str, values: Mapping[str, Any], work: Work) -> str:
    """The text of a template, which ends with an error when the work is done up."""
    environment = Limited(work)
    code = _code(template)
    compiled = jinja2.Template.from_code(environment, code, environment.make_globals(None))
    return compiled.render(values)


@lru_cache(8)
def _code(template: str) -> CodeType:
    """A template as code that counts."""
    if len(template) > LONGEST:
        raise TooMuch(f"it has {len(template):,} characters; {LONGEST:,} are read")
    environment = Limited(Work(0))
    return environment.compile(_around(environment, environment.parse(template)))


def _around(environment: jinja2.Environment, tree: nodes.Template) -> nodes.Template:
    """A template with calls around what is counted before it is done."""

    def put(filter_: str, node: Any, amount: int = 0) -> Any:
        more = [nodes.Const(amount)] if amount else []
        return nodes.Filter(node, filter_, more, [], None, None, lineno=node.lineno, environment=environment)

    for node in list(tree.find_all(nodes.Node)):
        name = type(node).__name__
        if name not in PARTS or getattr(node, "recursive", False):
            raise TooMuch(f"it has a part that conversations do not need: {name} at line {node.lineno}")
        if isinstance(node, nodes.For):
            node.iter = put("_counted", node.iter, ITEM + (_cost(node.test) if node.test else 0))
        elif isinstance(node, nodes.Compare):
            node.expr = put("_weighed", node.expr)
            for operand in node.ops:
                operand.expr = put("_held" if operand.op in ("in", "notin") else "_weighed", operand.expr)
        elif isinstance(node, nodes.Getitem) and isinstance(node.arg, nodes.Slice):
            node.node = put("_measured", node.node)
        elif isinstance(node, nodes.Pair):
            node.key = put("_weighed", node.key)
        elif isinstance(node, nodes.Macro | nodes.CallBlock):
            node.defaults = [put("_charged", one, _cost(one)) for one in node.defaults]
        elif isinstance(node, nodes.Call | nodes.Filter | nodes.Test):
            node.dyn_args = node.dyn_args and put("_counted", node.dyn_args, ITEM)
            node.dyn_kwargs = node.dyn_kwargs and put("_counted", node.dyn_kwargs, ITEM)
    return tree


def _cost(node: nodes.Node) -> int:
    """The parts of a statement or an expression, without bodies, which are counted when they are run."""
    if isinstance(node, nodes.TemplateData):
        return NODE + len(node.data)
    letters = len(node.value) if isinstance(node, nodes.Const) and isinstance(node.value, str) else 0
    return NODE + letters + sum(map(_cost, node.iter_child_nodes(exclude=("body", "else_"))))


class Counting(CodeGenerator):
    """The compiler of templates: each body begins with a line that counts it."""

    def blockvisit(self, nodes: Iterable[nodes.Node], frame: Frame) -> None:
        """Write the code of a body."""
        body = list(nodes)
        self.writeline(f"environment.work.take({ITEM + sum(map(_cost, body))})")
        super().blockvisit(body, frame)

    def visit_Concat(self, node: nodes.Concat, frame: Frame) -> None:
        """Write the code of ``~``."""
        self.write("environment.joined((")
        for part in node.nodes:
            self.visit(part, frame)
            self.write(", ")
        self.write("))")


class Held:
    """The right side of ``in``, which counts the search."""

    def __init__(self, work: Work, value: Any) -> None:
        self._work, self._value = work, value

    def __contains__(self, part: Any) -> bool:
        inside(self._work, part, self._value)
        return part in self._value


class Format(SandboxedFormatter):
    """``str.format`` of a text, with counted widths and values."""

    def __init__(self, environment: Limited, text: str) -> None:
        super().__init__(environment)
        self._work, self._text = environment.work, text

    def __call__(self, *args: Any, **kwargs: Any) -> str:
        self._work.take(ITEM * len(self._text))
        return str(self.vformat(self._text, args, kwargs))

    def convert_field(self, value: Any, conversion: Any) -> Any:
        """A value as ``!r`` and others make it."""
        self._work.weighed(value)
        return super().convert_field(value, conversion)

    def format_field(self, value: Any, format_spec: str) -> Any:
        """A value in its width."""
        self._work.widths(format_spec)
        self._work.shown(value)
        return super().format_field(value, format_spec)


class Limited(ImmutableSandboxedEnvironment):
    """The sandbox of one rendering."""

    code_generator_class = Counting
    intercepted_binops = frozenset(ImmutableSandboxedEnvironment.default_binop_table)

    def __init__(self, work: Work) -> None:
        super().__init__(
            trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols"], optimized=False,
            cache_size=0, finalize=pass_eval_context(lambda _, value: work.shown(value)),
        )  # fmt: skip
        self.work = work
        functions: dict[str, Any] = {name: self.globals[name] for name in ("range", "dict", "namespace")}
        functions |= {"cycler": Cycler, "joiner": Joiner, "raise_exception": _refuse, "strftime_now": _now}
        self.globals = functions
        self._functions = list(functions.values())
        filters: dict[str, Any] = self.filters | {"tojson": _to_json}
        self.filters = {name: self._guarded(filters[name], cost) for name, cost in FILTERS.items()}
        self.filters |= {
            "_counted": self._counted, "_weighed": work.weighed, "_measured": work.measured,
            "_held": lambda value: Held(work, work.listed(value)),
            "_charged": self._charged,
        }  # fmt: skip
        tests: dict[str, Any] = self.tests
        self.tests = {name: self._guarded(test, TESTS.get(name, free)) for name, test in tests.items()}

    def joined(self, parts: tuple[Any, ...]) -> str:
        """The text of values behind each other: ``~``."""
        return "".join(map(self.work.shown, parts))

    def _counted(self, value: Any, each: int) -> Any:
        """The items that a loop or a call goes through, counted before it begins."""
        value = self.work.listed(value)
        self.work.take(each * len(value) if hasattr(value, "__len__") else 0)
        return value

    def _charged(self, value: Any, amount: int) -> Any:
        """A value, for which so much work is counted."""
        self.work.take(amount)
        return value

    def _guarded(self, function: Callable[..., Any], cost: Cost) -> Callable[..., Any]:
        """A filter or a test that is counted before it runs, and its items as they come."""
        work, skip = self.work, int(hasattr(function, "jinja_pass_arg"))

        @wraps(function)
        def counted(*args: Any, **kwargs: Any) -> Any:
            head, operands = args[:skip], list(args[skip:])
            work.take(ITEM)
            cost(work, operands, kwargs)
            result = function(*head, *operands, **kwargs)
            return work.counted(result) if isinstance(result, Iterator) else work.whole(result)

        return counted

    def call_binop(self, context: Any, operator: str, left: Any, right: Any) -> Any:
        """The result of an operator."""
        operation(self.work, operator, left, right)
        return self.work.whole(super().call_binop(context, operator, left, right))

    def getitem(self, obj: Any, argument: Any) -> Any:
        """The item at an index, or by a key."""
        if not isinstance(argument, str | int):
            self.work.weighed(argument)
        return super().getitem(obj, argument)

    def wrap_str_format(self, value: Any) -> Any:
        """``str.format`` of plain texts; others are called as they are, so that they are refused."""
        plain = super().wrap_str_format(value) and value.__name__ == "format" and type(value.__self__) is str
        return Format(self, value.__self__) if plain else None

    def call(__self, __context: Any, __obj: Any, *args: Any, **kwargs: Any) -> Any:  # noqa: N805
        """The result of a function, a macro or a method that templates may call."""
        work, operands = __self.work, list(args)
        work.take(ITEM * (1 + len(args) + len(kwargs)))
        kwargs.pop("_loop_vars", None), kwargs.pop("_block_vars", None)
        if any(__obj is function for function in __self._functions):
            work.weighed([operands, kwargs])
            if __obj is _now:
                work.take(256 * len(operands[0]))  # the C library ends there
        elif not isinstance(__obj, Macro | Format | Joiner | Undefined):
            owner, name = getattr(__obj, "__self__", None), getattr(__obj, "__name__", "")
            if isinstance(owner, LoopContext | Cycler) and name in ("cycle", "changed", "next", "reset"):
                work.weighed(operands)
            elif not method(work, owner, name, operands, kwargs):
                raise TooMuch(f"it calls {name or type(__obj).__name__}, which templates cannot call here")
        return super().call(__context, __obj, *operands, **kwargs)


def _refuse(text: str) -> NoReturn:
    raise jinja2.TemplateError(text)


def _now(pattern: str) -> str:
    return datetime.now().strftime(pattern)


LETTERS = re.compile("[^\\x00-\\x7f\\U00020000-\\U000323af]")  # but those that may be marks


def _to_json(
    value: Any, indent: int | str | None = None, *, ensure_ascii: bool = False, separators: Any = None,
    sort_keys: bool = False, **_: Any,
) -> str:  # fmt: skip
    text = json.dumps(value, ensure_ascii=False, indent=indent, separators=separators, sort_keys=sort_keys)
    # Marks of control tokens (chat.py) stay letters: escaped, nobody would take them back.
    return LETTERS.sub(lambda letter: json.dumps(letter[0])[1:-1], text) if ensure_ascii else text
