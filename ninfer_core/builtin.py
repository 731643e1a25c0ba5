"""What the core itself offers through the plugin hooks: its options, commands, importers and plain weight formats."""

from __future__ import annotations

import pluggy

hookimpl = pluggy.HookimplMarker("ninfer")
