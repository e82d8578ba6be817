"""Options are dataclasses; a command line and a YAML file are two ways to fill the same one.

The keys of a file are the option names: ``sft: {learning_rate: 1e-3}`` is ``--sft.learning-rate 1e-3``. Underscores and
hyphens mean the same. A group marked ``tyro.conf.OmitArgPrefixes`` has no prefix, and an option marked
``tyro.conf.Suppress`` does not exist, neither here nor there.
"""

from __future__ import annotations

import dataclasses
import difflib
import inspect
import types
from collections.abc import Collection, Iterator, Mapping, Sequence
from enum import Enum
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple, TypeVar, Union, cast, get_args, get_origin, get_type_hints

import tyro
import yaml
from tyro.constructors import ConstructorRegistry, PrimitiveConstructorSpec, PrimitiveTypeInfo

from agentgym_tlm.errors import ConfigError

T = TypeVar("T")

_CONFIG_OPTION = tyro.conf.arg(
    help="Defaults for these options, e.g. the config.yaml of a run folder; flags override it.",
    metavar="FILE.yaml",
    help_behavior_hint="",
)


def parse(options: type[T], argv: Sequence[str], *, prog: str) -> T:
    """Options from the command line, with the defaults of ``--config FILE.yaml`` where it is given.

    A group of options that may be None is switched on by giving any of its options. If ``options`` has a class method
    ``defaults_for``, the defaults, and with them the options there are, come from what that makes of the options
    ``policy``, ``env`` and ``trainer``; if it has a method ``loaded_from``, that is told which file they are from and
    returns those to use. Exits as argparse does: 0 after ``--help``, 2 for an option that cannot be understood. Raises
    ConfigError for a file that cannot.
    """
    default: Any = options()
    path = _value(argv, "config")
    defaults_for = getattr(options, "defaults_for", None)
    if defaults_for is not None:
        chosen = load(default, Path(path)) if path else default
        default = defaults_for(
            _value(argv, "policy") or chosen.policy,
            _value(argv, "env") or chosen.envs.env,
            _value(argv, "trainer") or chosen.trainer,
        )
        options = type(default)
    if path:
        default = load(default, Path(path))
        loaded_from = getattr(default, "loaded_from", None)
        default = default if loaded_from is None else loaded_from(Path(path))
    given = {word.partition("=")[0].removeprefix("--").replace("-", "_") for word in argv if word.startswith("--")}
    with_config = dataclasses.make_dataclass(
        options.__name__,
        [("config", Annotated[Path | None, _CONFIG_OPTION], None)],
        bases=(options,),
        frozen=cast(Any, options).__dataclass_params__.frozen,
        kw_only=True,
    )
    filled = tyro.cli(
        with_config,
        prog=prog,
        description=inspect.getdoc(options),
        args=list(argv),
        default=with_config(**_values(_open_groups(default))),
        config=(tyro.conf.AvoidSubcommands,),
        registry=_registry(),
    )
    return cast(T, _close_groups(options(**_values(filled, options)), default, given))


def _values(options: Any, kind: type | None = None) -> dict[str, Any]:
    return {f.name: getattr(options, f.name) for f in dataclasses.fields(kind or type(options)) if f.init}


def _open_groups(options: Any) -> Any:
    """``options`` with the defaults of every group that is None, so that their options can be shown and given."""
    changes: dict[str, Any] = {}
    for name, (_, group, _) in _fields(type(options)).items():
        if group is not None:
            current = getattr(options, name)
            changes[name] = _open_groups(group() if current is None else current)
    return dataclasses.replace(options, **changes)


def _close_groups(options: Any, default: Any, given: Collection[str], prefix: str = "") -> Any:
    """Undo :func:`_open_groups` for the groups of which no option is ``given``."""
    changes: dict[str, Any] = {}
    for name, (_, group, flat) in _fields(type(options)).items():
        if group is not None:
            inner = prefix if flat else f"{prefix}{name}."
            current = getattr(default, name)
            changes[name] = None
            if current is not None or any(option.startswith(inner) for option in given):
                changes[name] = _close_groups(getattr(options, name), current or group(), given, inner)
    return dataclasses.replace(options, **changes)


def _value(argv: Sequence[str], option: str) -> str | None:
    """The value of an option that has to be known before the others can be parsed."""
    for i, word in enumerate(argv):
        if word == f"--{option}" and i + 1 < len(argv):
            return argv[i + 1]
        if word.startswith(f"--{option}="):
            return word.partition("=")[2]
    return None


def _registry() -> ConstructorRegistry:
    """Adds ``--option KEY=VALUE ...`` for fields that are dictionaries; values are read as YAML."""
    registry = ConstructorRegistry()

    @registry.primitive_rule
    def _(info: PrimitiveTypeInfo) -> PrimitiveConstructorSpec[dict[str, Any]] | None:
        if info.type_origin is not dict:
            return None
        return PrimitiveConstructorSpec(
            nargs="*",
            metavar="KEY=VALUE ...",
            instance_from_str=_read_pairs,
            is_instance=lambda value: isinstance(value, dict),
            str_from_instance=lambda value: [f"{key}={_inline(item)}" for key, item in value.items()],
        )

    return registry


def _read_pairs(words: list[str]) -> dict[str, Any]:
    pairs = {}
    for word in words:
        key, equals, value = word.partition("=")
        if not equals:
            raise ValueError(f"expected KEY=VALUE, got {word!r}")
        pairs[key.replace("-", "_")] = yaml.safe_load(value)
    return pairs


def _inline(value: Any) -> str:
    return yaml.safe_dump(value, default_flow_style=True).removesuffix("...\n").strip()


def load(default: T, path: Path) -> T:
    """``default`` with the values of a YAML file. Raises ConfigError naming the file, the key and a remedy."""
    try:
        data = yaml.safe_load(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError(f"cannot read the configuration {path}: {error.strerror}") from error
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path} is not YAML: {error}") from error
    if data is None:
        return default
    try:
        return override(default, data)
    except ConfigError as error:
        raise ConfigError(f"{path}: {error}") from error


def override(default: T, data: Any) -> T:
    """``default`` with the values of a mapping, as a YAML file has them. Raises ConfigError naming the key."""
    return cast(T, _override(default, data, "", tuple(option_names(type(default)))))


def dump(options: object) -> str:
    """YAML that :func:`load` turns into an equal object, whatever the defaults were."""
    return yaml.safe_dump(to_dict(options), sort_keys=False, width=100)


def to_dict(options: Any) -> dict[str, Any]:
    """Options as plain values, keyed by their names on the command line."""
    record: dict[str, Any] = {}
    for name, field in _fields(type(options)).items():
        value = getattr(options, name)
        if field.flat:
            record.update(to_dict(value))
        else:
            record[name] = _plain(value)
    return record


def differences(options: Any, others: Any) -> dict[str, tuple[Any, Any]]:
    """By dotted name, the options that have one value in ``options`` and another in ``others``."""
    ours, theirs = _flat(to_dict(options)), _flat(to_dict(others))
    pairs = {name: (ours.get(name), theirs.get(name)) for name in ours | theirs}
    return {name: (a, b) for name, (a, b) in pairs.items() if a != b}


def _flat(record: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    values: dict[str, Any] = {}
    for name, value in record.items():
        values |= _flat(value, f"{prefix}{name}.") if isinstance(value, dict) else {f"{prefix}{name}": value}
    return values


def option_names(options: type) -> Iterator[str]:
    """Dotted name of every option, as it is written in a file."""
    for name, field in _fields(options).items():
        if field.group is None:
            yield name
        else:
            for inner in option_names(field.group):
                yield inner if field.flat else f"{name}.{inner}"


class _Field(NamedTuple):
    kind: Any
    group: type | None  # the dataclass, for a nested group of options; its field may also be None
    flat: bool


def _fields(options: type) -> dict[str, _Field]:
    """The options of a dataclass; one that is marked ``tyro.conf.Suppress`` is for programs only."""
    hints = get_type_hints(options, include_extras=True)
    found = {}
    for field in dataclasses.fields(options):
        if not field.init:
            continue
        kind, flat = hints[field.name], False
        if get_origin(kind) is Annotated:
            kind, *markers = get_args(kind)
            flat = tyro.conf.OmitArgPrefixes in markers
            if tyro.conf.Suppress in markers:
                continue
        group = next((option for option in (kind, *get_args(kind)) if dataclasses.is_dataclass(option)), None)
        found[field.name] = _Field(kind, cast("type | None", group), flat)
    return found


def _override(default: Any, data: Any, prefix: str, known: Sequence[str]) -> Any:
    """``default`` with the values of a mapping, which is consumed."""
    if not isinstance(data, Mapping):
        where = f"{prefix.rstrip('.')}: " if prefix else ""
        raise ConfigError(f"{where}expected options as 'key: value' lines, got {data!r}")
    values: dict[str, Any] = {}
    for key, value in data.items():
        name = str(key).replace("-", "_")
        if name in values:
            raise ConfigError(f"{prefix}{name} is given twice")
        values[name] = value
    result = _take(default, values, prefix, known)
    for group in getattr(type(default), "foreign_groups", set)():
        values.pop(group, None)
    if values:
        raise ConfigError(_unknown(f"{prefix}{next(iter(values))}", known))
    return result


def _take(default: Any, values: dict[str, Any], prefix: str, known: Sequence[str]) -> Any:
    changes = {}
    for name, (kind, group, flat) in _fields(type(default)).items():
        current = getattr(default, name)
        if flat:
            changes[name] = _take(current, values, prefix, known)
        elif name in values:
            value = values.pop(name)
            if group is not None and not (value is None and kind is not group):
                changes[name] = _override(group() if current is None else current, value, f"{prefix}{name}.", known)
            else:
                try:
                    changes[name] = _convert(kind, value)
                except _MismatchError:
                    raise ConfigError(f"{prefix}{name}: expected {_describe(kind)}, got {_show(value)}") from None
    try:
        return dataclasses.replace(default, **changes)
    except ConfigError as error:
        raise ConfigError(f"{prefix}{error}") from error


def _unknown(key: str, known: Sequence[str]) -> str:
    last = key.rpartition(".")[2]
    close = [name for name in known if name.rpartition(".")[2] == last]
    close += [name for name in difflib.get_close_matches(key, known, n=2, cutoff=0.5) if name not in close]
    by_last = {name.rpartition(".")[2]: name for name in known}
    close += [by_last[name] for name in difflib.get_close_matches(last, by_last, n=1) if by_last[name] not in close]
    hint = f"did you mean {' or '.join(close[:3])}?" if close else f"the options are {', '.join(known)}"
    return f"there is no option {key}; {hint}"


class _MismatchError(Exception):
    """A value is not of a type."""


def _convert(kind: Any, value: Any) -> Any:
    """A YAML value as the annotated type."""
    origin, args = get_origin(kind), get_args(kind)
    if kind is Any:
        return value
    if origin is Annotated:
        return _convert(args[0], value)
    if origin in (Union, types.UnionType):
        for option in args:
            try:
                return _convert(option, value)
            except _MismatchError:
                continue
        raise _MismatchError
    if origin is Literal:
        if any(value == choice and type(value) is type(choice) for choice in args):
            return value
        raise _MismatchError
    if origin in (tuple, list):
        if not isinstance(value, list):
            raise _MismatchError
        if origin is list or args[-1] is Ellipsis:
            return origin(_convert(args[0], item) for item in value)
        if len(value) != len(args):
            raise _MismatchError
        return tuple(_convert(arg, item) for arg, item in zip(args, value, strict=True))
    if origin is dict:
        if not isinstance(value, dict):
            raise _MismatchError
        return {_convert(args[0], key): _convert(args[1], item) for key, item in value.items()}
    if isinstance(kind, type) and issubclass(kind, Enum):
        if value in [member.value for member in kind]:
            return kind(value)
        raise _MismatchError
    if kind is float and isinstance(value, str):  # YAML 1.1 reads 1e-4, without a point, as text
        try:
            return float(value)
        except ValueError:
            raise _MismatchError from None
    if kind is float and type(value) is int:
        return float(value)
    if kind is Path and isinstance(value, str):
        return Path(value)
    if type(value) is kind:
        return value
    raise _MismatchError


_NAMES = {
    int: "an integer",
    float: "a number",
    str: "text",
    bool: "true or false",
    Path: "a path",
    dict: "key: value lines",
    types.NoneType: "null",
}


def _describe(kind: Any) -> str:
    origin, args = get_origin(kind), get_args(kind)
    if origin is Annotated:
        return _describe(args[0])
    if origin in (Union, types.UnionType):
        return " or ".join(_describe(option) for option in args)
    if origin is Literal:
        return "one of " + ", ".join(str(choice) for choice in args)
    if origin in (tuple, list):
        return "a list, each item " + _describe(args[0])
    if isinstance(kind, type) and issubclass(kind, Enum):
        return "one of " + ", ".join(str(member.value) for member in kind)
    return _NAMES.get(origin or kind, str(kind))


def _show(value: Any) -> str:
    text = "null" if value is None else str(value).lower() if isinstance(value, bool) else repr(value)
    return f"{text} (quote it if text is meant)" if isinstance(value, bool | int | float) else text


def _plain(value: Any) -> Any:
    """A value as YAML can write it."""
    if dataclasses.is_dataclass(value):
        return to_dict(value)
    if isinstance(value, Enum):
        return value.value
    if isinstance(value, Path):
        return str(value)
    if isinstance(value, tuple | list):
        return [_plain(item) for item in value]
    if isinstance(value, dict):
        return {key: _plain(item) for key, item in value.items()}
    return value
