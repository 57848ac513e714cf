"""What a setting is: its names, how it is read, what it means. Knows none of them."""

from collections.abc import Mapping
from typing import Any

from msgspec import Struct
from msgspec.structs import fields, replace

from bunqueue_trio.setting_values import Parser


class Setting(Struct, frozen=True, gc=False):
    """One setting: where it comes from, what it means.

    ``variable`` is its environment variable, ``aliases`` further names, tried in order. ``has_flag``: ``start`` takes
    it as ``--field-name``, or under ``flag_name``. ``skips_empty``: an empty value counts as not set; otherwise it is
    malformed. ``default``, the value of an empty environment, comes from `with_defaults`.
    """

    variable: str
    field: str
    parse: Parser
    meaning: str
    aliases: tuple[str, ...] = ()
    has_flag: bool = False
    flag_name: str = ""
    skips_empty: bool = False
    default: Any = None

    @property
    def flag(self) -> str:
        """The option's spelling on the command line."""
        return self.flag_name or "--" + self.field.replace("_", "-")

    def find(self, environ: Mapping[str, str], flags: Mapping[str, str | int | None]) -> tuple[str, str | None]:
        """The name under which it is given and its text; the text is None when it is not set anywhere."""
        given = [(self.flag, flags.get(self.field))]
        given += [(name, environ.get(name)) for name in (self.variable, *self.aliases)]
        for name, text in given:
            if text is not None and not (self.skips_empty and not str(text).strip()):
                return name, str(text)
        return self.variable, None


def with_defaults(owner: type[Struct], *settings: Setting) -> tuple[Setting, ...]:
    """*settings* with the defaults that their fields have in *owner*."""
    defaults = {field.name: field.default for field in fields(owner)}
    return tuple(replace(setting, default=defaults[setting.field]) for setting in settings)
