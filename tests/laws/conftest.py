"""How many random heads the laws draw: 200 a law, or as many as COMPOSER_EXAMPLES says."""

from __future__ import annotations

import os

from hypothesis import HealthCheck, settings

settings.register_profile(
    "laws",
    max_examples=int(os.environ.get("COMPOSER_EXAMPLES", "200")),
    derandomize=True,
    database=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much],
)
settings.load_profile("laws")
