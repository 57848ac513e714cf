"""Print the table of settings for README.md: ``python scripts/settings_table.py``.

A contract test compares the README with it.
"""

from bunqueue_trio.config import SETTINGS
from bunqueue_trio.settings.setting import Setting


def default_cell(setting: Setting) -> str:
    """The default as the table shows it."""
    if setting.default in (None, (), ""):
        return "not set"
    if isinstance(setting.default, bool):
        return "`on`" if setting.default else "`off`"
    return f"`{setting.default}`"


def rows() -> list[str]:
    """The table's lines, Markdown, header first."""
    lines = ["| Variable | Default | Meaning |", "|---|---|---|"]
    for setting in SETTINGS:
        name = f"`{setting.variable}`" + (f", `{setting.flag}`" if setting.has_flag else "")
        lines.append(f"| {name} | {default_cell(setting)} | {setting.meaning} |")
    return lines


if __name__ == "__main__":
    print("\n".join(rows()))
