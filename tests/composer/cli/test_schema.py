"""`compose schema` prints only the schema of specs."""

from __future__ import annotations

import json

from composer.spec.schema import json_schema
from tests.composer.cli.conftest import Compose


def test_schema_prints_the_json_schema(compose: Compose) -> None:
    result = compose("schema")
    assert result.exit_code == 0
    assert json.loads(result.stdout) == json.loads(json.dumps(json_schema()))
    assert result.stdout.startswith('{\n  "$schema": "http')
