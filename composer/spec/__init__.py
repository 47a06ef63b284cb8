"""Spec documents: read, put together, checked, and explained where they are wrong."""

from __future__ import annotations

from composer.spec.document import Spec
from composer.spec.loading import load_spec, locate
from composer.spec.places import Place
from composer.spec.schema import json_schema
from composer.spec.shipped import shipped_specs

__all__ = ["Place", "Spec", "json_schema", "load_spec", "locate", "shipped_specs"]
