"""The names that the code of a function uses: globals, closure variables and attributes, also without writing them."""

from __future__ import annotations

import dis
import functools
import operator
import re
from collections.abc import Iterator
from types import CodeType
from typing import Any, NamedTuple

Path = tuple[str, ...]  # of a global and attributes of it: ("layers", "norm")

_BY_NAME = ("getattr", "hasattr", "setattr", "delattr")
# Globals and attributes of what reads attributes whose names do not stand in the code.
_BY_ANY_NAME = {"vars", "dir", "eval", "exec", "locals", "__dict__", "__getattribute__", "__getattr__"}
_BY_ANY_NAME |= {"attrgetter", "methodcaller", "asdict", "astuple", "getmembers", "getattr_static"}
_ANY_GLOBAL = {"globals", "eval", "exec"}
# Globals and attributes of what sets what its code does not name.
_SET_ANY = {"setattr", "delattr", "globals", "locals", "vars", "eval", "exec", "cell_contents", "f_globals", "f_locals"}
_SET_ANY |= {"__dict__", "__globals__", "__setattr__", "__delattr__", "__setstate__", "import_module", "reload"}
_TAKE_NOTHING = {"NOP", "RESUME", "CACHE", "KW_NAMES", "EXTENDED_ARG", "PRECALL", "NOT_TAKEN"}
_GIVE_NOTHING = ("STORE", "POP", "RETURN", "JUMP", "FOR_ITER", "RAISE", "SWAP", "COPY", "YIELD", "SEND", "DELETE")
_IN_FORMATS = re.compile(r"\.([^\W\d]\w*)")
_WRITES_TEXT = {"str", "repr", "format", "print", "join"}

# Methods that run although no code names them: those that calls of modules and of torch.autograd.Function run,
OF_TORCH = ("forward", "backward", "vjp", "setup_context")
# those that operators, statements and built-in functions call,
_OPERATORS = {n for n in dir(operator) if n.startswith("__") and callable(getattr(operator, n)) and n != "__loader__"}
_OTHERS = """
    divmod rdivmod bool len hash iter next reversed missing enter exit get call float int complex round trunc floor ceil
    length_hint getattr getattribute array array_ufunc array_function torch_function instancecheck subclasscheck
    class_getitem fspath setattr delattr set delete copy deepcopy reduce_ex
"""
IMPLICIT = _OPERATORS | {f"__r{n.strip('_')}__" for n in _OPERATORS} | {f"__{n}__" for n in _OTHERS.split()}
TEXT = {"__str__", "__repr__", "__format__"}
# those that calls of a class run, and the end of what they make, and those that dataclasses have of all fields.
OF_CLASSES = {"__init__", "__new__", "__post_init__", "__call__", "__prepare__", "__init_subclass__", "__del__"}
OF_DATACLASSES = {"__eq__", "__lt__", "__le__", "__gt__", "__ge__", "__hash__", "__repr__"}


class Names(NamedTuple):
    """What code names: globals, closure variables and attributes of whatever object; and the globals, closure variables
    and attributes that it sets (`written`, `rebound`, `stored`).

    `imports` are modules that it imports itself. `asked` are attributes that may be missing: it asks for them, handles
    errors, or looks for them in `vars(x)`. `reads_any`: it reads attributes whose names it puts together, or has from
    elsewhere; `reads_any_global`: globals, too. `sets_any`: it may set what it does not name. `writes_text`: of
    whatever object.
    """

    globals: frozenset[Path]
    cells: frozenset[str]
    attributes: frozenset[str]
    written: frozenset[str]
    rebound: frozenset[str]
    stored: frozenset[str]
    imports: frozenset[str]
    asked: frozenset[str]
    reads_any: bool
    reads_any_global: bool
    sets_any: bool
    writes_text: bool


@functools.lru_cache(maxsize=1024)
def names_of(code: CodeType) -> Names:
    """The names that the code and the functions defined in it use."""
    paths: set[Path] = set()
    cells: set[str] = set()
    written: set[str] = set()
    rebound: set[str] = set()
    stored: set[str] = set()
    imports: set[str] = set()
    constants = list(_constants(code))
    attributes = {c for c in constants if type(c) is str and c.isidentifier()}  # for getattr, say
    attributes |= {n for c in constants if type(c) is str and "{" in c for n in _IN_FORMATS.findall(c)}
    instructions = list(_instructions(code))
    path: Path = ()
    for instruction in instructions:
        action, _, rest = instruction.opname.partition("_")
        name = instruction.argval
        if rest.endswith(("ATTR", "METHOD")) or instruction.opname == "IMPORT_FROM":
            attributes.add(name)
        if instruction.opname in ("STORE_ATTR", "DELETE_ATTR"):
            stored.add(name)
        if instruction.opname == "IMPORT_NAME":
            imports.add(name)
        if instruction.opname in ("LOAD_ATTR", "LOAD_METHOD") and path:
            path = (*path, name)
        else:
            path = (name,) if action == "LOAD" and rest in ("GLOBAL", "NAME") else ()
        if path:
            paths.add(path)
        elif rest.endswith("DEREF"):
            cells.add(name)
            rebound |= set() if action == "LOAD" else {name}
        elif rest == "GLOBAL":
            written.add(name)
    named = {path[0] for path in paths}
    given = list(_given_names(instructions))
    if named | attributes >= {"import_module"} or "modules" in attributes:
        imports |= {c for c in constants if type(c) is str}
    opnames = [i.opname for i in instructions]
    handles = sum(n in ("PUSH_EXC_INFO", "SETUP_FINALLY") for n in opnames) > opnames.count("WITH_EXCEPT_START")
    reads_any = None in given or not _BY_ANY_NAME.isdisjoint(named | _loaded(instructions))
    return Names(
        frozenset(paths),
        frozenset(cells),
        frozenset(attributes),
        frozenset(written),
        frozenset(rebound),
        frozenset(stored),
        frozenset(imports),
        frozenset(attributes if handles or reads_any else filter(None, given)),
        reads_any,
        not _ANY_GLOBAL.isdisjoint(named),
        not _SET_ANY.isdisjoint(named | attributes),
        not _WRITES_TEXT.isdisjoint(named | attributes) or any(n.startswith(("FORMAT", "CONVERT_V")) for n in opnames),
    )


def _given_names(instructions: list[dis.Instruction]) -> Iterator[str | None]:
    """The names that `getattr(a.b, "c")` and others are given, None for one that is no constant there."""
    for i, instruction in enumerate(instructions):
        if instruction.argval not in _BY_NAME or not instruction.opname.startswith("LOAD_"):
            continue
        rest = [x for x in instructions[i + 1 : i + 12] if x.opname not in ("PUSH_NULL", "CACHE")]
        after = next((x for x in rest[1:] if x.opname not in ("LOAD_ATTR", "LOAD_METHOD")), None)
        name = None
        if after is not None and after.opname == "LOAD_CONST" and rest[0].opname.startswith("LOAD_"):
            by = taker(instructions[instructions.index(after) + 1 :])
            is_given = by is not None and by.opname.startswith("CALL") and by is taker(instructions[i + 1 :])
            name = str(after.argval) if is_given else None
        yield name


def taker(instructions: list[dis.Instruction]) -> dis.Instruction | None:
    """The instruction that takes what lies on the stack before these; None where that is not clear."""
    depth = 1
    for x in instructions:
        if x.opname in _TAKE_NOTHING:
            continue
        if depth == 1 and x.opname.endswith("_NONE"):
            return x
        if x.opname.startswith(_GIVE_NOTHING):
            break
        effect = dis.stack_effect(x.opcode, x.arg, jump=False)
        if x.opname == "CALL":  # before Python 3.12 another instruction counts as what takes the arguments
            effect = -(x.arg or 0) - 1
        if (1 if x.opname in ("LOAD_ATTR", "LOAD_METHOD") else 1 - effect) >= depth:
            return x
        depth += effect
    return None


def _loaded(instructions: list[dis.Instruction]) -> set[str]:
    """Attributes but for those that only strings name."""
    return {
        i.argval for i in instructions if i.opname in ("LOAD_ATTR", "LOAD_METHOD", "LOAD_SUPER_ATTR", "IMPORT_FROM")
    }


def _instructions(code: CodeType) -> Iterator[dis.Instruction]:
    yield from dis.get_instructions(code)
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _instructions(constant)


def _constants(code: CodeType) -> Iterator[Any]:
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _constants(constant)
        elif isinstance(constant, (tuple, frozenset)):
            yield from constant
        else:
            yield constant
