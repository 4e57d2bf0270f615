"""Fields of a request header, how they are declared, read and checked: the parts of `headers.py`.

A header is a dataclass whose fields define their name on the wire, their kind and their bounds. All
values come as text. A value outside its bounds raises InvalidParameter (29), which names the field,
the value and the bounds. Java's rules hold for missing values: null and an empty text mean the
default, and a boolean is true if it is `true` in any case.

A broker decodes a header for each send and each pull. So `header` compiles one function for each
kind, as dataclasses do for `__init__`: an expression in it (`quick`) takes usual values, and all
others go through `parse`, which has the rules.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any, ClassVar, Self, TypeVar, dataclass_transform

from saturnmq.runtime.errors import InvalidParameter, MalformedFrame

from .checked import IDENTITY, INT32_MAX, INT64_MAX, as_integer

INT32_MIN = -(1 << 31)
INT64_MIN = -(1 << 63)
NAME_MAX = 255  # bytes: the longest name of a topic, a group, a node
TEXT_MAX = 16 << 20  # a frame cannot hold more

REQUIRED: Any = object()

H = TypeVar("H", bound="Header")


class HeaderField:
    """One field: its name on the wire, and its `long` name in the older kind of the request."""

    def __init__(self, name: str, default: Any, long: str | None = None) -> None:
        self.name = name
        self.default = default
        self.long = long

    quick: str | None = None
    """A condition on a `value`; if it holds, `taken` gives the result without `parse`."""
    taken = "value"

    def missing(self) -> Any:
        """The value of a field that is missing or empty."""
        if self.default is REQUIRED:
            raise InvalidParameter(f"header field {self._names} is missing: send {self.kind}")
        return self.default

    @property
    def kind(self) -> str:
        """The values that are allowed, in words."""
        raise NotImplementedError

    def parse(self, value: str) -> Any:
        """The value of a text that is not empty."""
        raise NotImplementedError

    def refuse(self, value: str) -> InvalidParameter:
        shown = value if len(value) <= 60 else f"{value[:40]}... of {len(value)} characters"
        return InvalidParameter(f"header field {self._names} is {shown!r}, not {self.kind}")

    @property
    def _names(self) -> str:
        return repr(self.name) if self.long is None else f"{self.name!r} ({self.long})"


class NumberField(HeaderField):
    """A decimal number from `least` to `most`."""

    taken = "int(value)"

    def __init__(self, name: str, default: Any, long: str | None, least: int, most: int) -> None:
        super().__init__(name, default, long)
        self.least = least
        self.most = most
        if least <= 0:  # all numbers with fewer digits than `most` are within the bounds
            self.quick = f"len(value) < {len(str(most))} and value.isdecimal()"

    @property
    def kind(self) -> str:
        return f"a number from {self.least} to {self.most}"

    def parse(self, value: str) -> int:
        try:
            return as_integer(value, self.name, self.least, self.most)
        except MalformedFrame:
            raise self.refuse(value) from None


class TextField(HeaderField):
    """A text of at most `most` characters. A name has at most `most` bytes of UTF-8, is not only
    spaces, and has no character that a line of a log cannot show."""

    def __init__(
        self, name: str, default: Any, long: str | None, most: int, *, is_name: bool
    ) -> None:
        super().__init__(name, default, long)
        self.most = most
        self.is_name = is_name
        self.quick = f"len(value) <= {most}"
        if is_name:
            self.quick += " and value.isascii() and value.isprintable() and not value.isspace()"

    @property
    def kind(self) -> str:
        if self.is_name:
            return f"a name of at most {self.most} bytes that can be printed"
        return f"a text of at most {self.most} characters"

    def parse(self, value: str) -> str:
        if len(value) > self.most:
            raise self.refuse(value)
        if self.is_name:
            if not value.isprintable() or value.isspace():
                raise self.refuse(value)
            if not value.isascii() and len(value.encode()) > self.most:
                raise self.refuse(value)
        return value


class FlagField(HeaderField):
    """A boolean, as Java reads it: anything but `true` is false."""

    quick, taken = 'value == "false"', "False"

    @property
    def kind(self) -> str:
        return "true or false"

    def parse(self, value: str) -> bool:
        return value.lower() == "true"


class ChoiceField(HeaderField):
    """One of a few words, in any case."""

    def __init__(self, name: str, default: Any, words: tuple[str, ...]) -> None:
        super().__init__(name, default)
        self.words = words

    @property
    def kind(self) -> str:
        return " or ".join(self.words)

    def parse(self, value: str) -> str:
        word = value.upper()
        if word not in self.words:
            raise self.refuse(value)
        return word


class IdentityField(HeaderField):
    """The identity of a group of brokers."""

    @property
    def kind(self) -> str:
        return "the identity of a group: 32 lower-case hex digits"

    def parse(self, value: str) -> str:
        if not IDENTITY.fullmatch(value):
            raise self.refuse(value)
        return value


@dataclasses.dataclass(slots=True, kw_only=True)
class Header:
    """The typed fields of one kind of request."""

    FIELDS: ClassVar[dict[str, HeaderField]] = {}
    _decoded: ClassVar[Callable[[Mapping[str, str]], Any]]

    @classmethod
    def decode(cls, ext: Mapping[str, str]) -> Self:
        """InvalidParameter: a field is missing or out of its bounds. Unknown fields are ignored:
        clients of other versions send more."""
        decoded: Self = cls._decoded(ext)
        return decoded

    def encode(self) -> dict[str, str]:
        """The fields on the wire: all that have a value."""
        ext = {}
        for attribute, field in self.FIELDS.items():
            value = getattr(self, attribute)
            if value is not None:
                ext[field.name] = str(value).lower() if isinstance(field, FlagField) else str(value)
        return ext


def number(
    name: str,
    *,
    long: str | None = None,
    default: Any = REQUIRED,
    least: int = 0,
    most: int = INT64_MAX,
) -> Any:
    """A number; it must be there if it has no default."""
    return _declared(NumberField(name, default, long, least, most))


def int32(name: str, *, long: str | None = None, default: Any = REQUIRED, least: int = 0) -> Any:
    """A number of 32 bits; it must be there if it has no default."""
    return number(name, long=long, default=default, least=least, most=INT32_MAX)


def text(
    name: str, *, long: str | None = None, default: Any = REQUIRED, most: int = TEXT_MAX
) -> Any:
    """A text of any characters; it must be there if it has no default."""
    return _declared(TextField(name, default, long, most, is_name=False))


def name(
    name: str, *, long: str | None = None, default: Any = REQUIRED, most: int = NAME_MAX
) -> Any:
    """The name of a topic, a group or a node. The rules for names of new things are applied where
    these are made (`topics.py`): these fields also hold names that others made."""
    return _declared(TextField(name, default, long, most, is_name=True))


def flag(name: str, *, long: str | None = None, default: bool) -> Any:
    """A boolean."""
    return _declared(FlagField(name, default, long))


def choice(name: str, *words: str, default: str) -> Any:
    """One of these words, upper case."""
    return _declared(ChoiceField(name, default, words))


def identity(name: str) -> Any:
    """The identity of a group of brokers; empty if it is unknown."""
    return _declared(IdentityField(name, ""))


def _declared(field: HeaderField) -> Any:
    if field.default is REQUIRED:
        return dataclasses.field(metadata={"field": field})
    return dataclasses.field(default=field.default, metadata={"field": field})


@dataclass_transform(
    kw_only_default=True, field_specifiers=(number, int32, text, name, flag, choice, identity)
)
def header(cls: type[H]) -> type[H]:
    """Make a header class: a dataclass with fields as the functions above declare them."""
    made = dataclasses.dataclass(slots=True, kw_only=True)(cls)
    made.FIELDS = {each.name: each.metadata["field"] for each in dataclasses.fields(made)}
    made._decoded = staticmethod(_compiled(made))
    return made


def _compiled(cls: type[H]) -> Callable[[Mapping[str, str]], H]:
    lines = ["def decoded(ext):", "    get, header = ext.get, new(cls)"]
    names: dict[str, Any] = {"new": object.__new__, "cls": cls}
    for at, (attribute, field) in enumerate(cls.FIELDS.items()):
        names[f"missing{at}"], names[f"parse{at}"] = field.missing, field.parse
        value = f"parse{at}(value)"
        if field.quick is not None:
            value = f"{field.taken} if {field.quick} else {value}"
        lines.append(f"    value = get({field.name!r})")
        if field.long is not None:
            lines += ["    if value is None:", f"        value = get({field.long!r})"]
        lines.append(f"    header.{attribute} = ({value}) if value else missing{at}()")
    exec("\n".join([*lines, "    return header"]), names)
    decoded: Callable[[Mapping[str, str]], H] = names["decoded"]
    return decoded
