"""Each law draws 30 random heads, or COMPOSER_EXAMPLES. `make fuzz` draws as many new ones as its profile."""

from __future__ import annotations

import os

from hypothesis import settings

loaded = settings.get_profile(settings.get_current_profile_name())
examples = int(os.environ.get("COMPOSER_EXAMPLES", 30 if loaded.derandomize else loaded.max_examples))
settings.register_profile("laws", loaded, max_examples=examples)
settings.load_profile("laws")
