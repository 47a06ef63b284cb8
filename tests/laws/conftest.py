"""A law draws COMPOSER_EXAMPLES random heads if this is set, or as many as the profile of all tests."""

from __future__ import annotations

import os

from hypothesis import settings

loaded = settings.get_profile(settings.get_current_profile_name())
examples = int(os.environ.get("COMPOSER_EXAMPLES", loaded.max_examples))
settings.register_profile("laws", loaded, max_examples=examples)
settings.load_profile("laws")
