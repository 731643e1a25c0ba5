"""Importing this module makes the contracts' failing assertions show their values, as in a test module.

It only reaches modules that are not imported yet, so it comes before them.
"""

import pytest

ROOMS = ("family", "frontend", "importer", "kv", "rig", "spec", "weights")
for _room in ROOMS:
    pytest.register_assert_rewrite(f"{__package__}.{_room}")
