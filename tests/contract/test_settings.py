"""Every setting is documented, with its true default, and every field of `Config` has one."""

import runpy
from pathlib import Path

import msgspec

from bunqueue_trio.config import SETTINGS, Config

ROOT = Path(__file__).parents[2]


def test_every_field_of_config_has_exactly_one_setting():
    fields = [field.name for field in msgspec.structs.fields(Config)]

    assert sorted(setting.field for setting in SETTINGS) == sorted(fields)


def test_no_variable_is_used_twice():
    names = [name for setting in SETTINGS for name in (setting.variable, *setting.aliases)]

    assert len(names) == len(set(names))


def test_the_table_of_the_readme_is_that_of_the_program():
    rows = runpy.run_path(str(ROOT / "scripts/settings_table.py"))["rows"]()

    readme = (ROOT / "README.md").read_text()

    assert "\n".join(rows) in readme, "paste the output of: python scripts/settings_table.py"
