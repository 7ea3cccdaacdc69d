"""Jinja2's sandbox with limits: whatever a template does is counted before it is done (work.py).

Jinja2 keeps templates from Python's inner parts, but not from loops without an end or texts of gigabytes.
Here only parts of the language, filters, tests and methods that are listed can be used, each with the work
that it takes (costs.py). Statements are counted where their bodies begin; comparisons, loops and slices by
calls that are put around their operands; operators, filters, tests, methods and macros where they are called.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from datetime import datetime
from functools import lru_cache, wraps
from types import CodeType
from typing import Any, NoReturn

import jinja2
from jinja2 import nodes
from jinja2.compiler import CodeGenerator, Frame
from jinja2.runtime import LoopContext, Macro, Undefined
from jinja2.sandbox import ImmutableSandboxedEnvironment, SandboxedFormatter
from jinja2.utils import Cycler, Joiner, pass_eval_context

from . import costs
from .work import ITEM, NODE, TooMuch, Work

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
        costs.inside(self._work, part, self._value)
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
        self.filters = {name: self._guarded(filters[name], cost) for name, cost in costs.FILTERS.items()}
        self.filters |= {
            "_counted": self._counted, "_weighed": work.weighed, "_measured": work.measured,
            "_held": lambda value: Held(work, work.listed(value)),
            "_charged": self._charged,
        }  # fmt: skip
        tests: dict[str, Any] = self.tests
        self.tests = {
            name: self._guarded(test, costs.TESTS.get(name, costs.free)) for name, test in tests.items()
        }

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

    def _guarded(self, function: Callable[..., Any], cost: costs.Cost) -> Callable[..., Any]:
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
        costs.operator(self.work, operator, left, right)
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
            elif not costs.method(work, owner, name, operands, kwargs):
                raise TooMuch(f"it calls {name or type(__obj).__name__}, which templates cannot call here")
        return super().call(__context, __obj, *operands, **kwargs)


def _refuse(text: str) -> NoReturn:
    raise jinja2.TemplateError(text)


def _now(pattern: str) -> str:
    return datetime.now().strftime(pattern)


def _to_json(value: Any, indent: int | str | None = None, **_: Any) -> str:
    return json.dumps(value, ensure_ascii=False, indent=indent)
