"""Spec documents: read, put together, checked, and explained where they are wrong."""

from __future__ import annotations

from composer.spec.document import Spec
from composer.spec.loading import expand, load_spec, load_specs, locate
from composer.spec.places import Place
from composer.spec.schema import json_schema
from composer.spec.shipped import shipped_specs

__all__ = ["Place", "Spec", "expand", "json_schema", "load_spec", "load_specs", "locate", "shipped_specs"]
