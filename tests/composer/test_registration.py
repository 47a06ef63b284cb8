"""`import composer` is enough for transformers' Auto classes, before or after them, and by itself loads neither them nor torch."""

from __future__ import annotations

from pathlib import Path

import pytest

import composer
from tests.checkpoints import llama
from tests.composer.programs import printed

HEAVY = "print(*sorted({'torch', 'transformers'} & sys.modules.keys()))"
LOAD = """
from transformers import AutoConfig, AutoModel, AutoModelForCausalLM, AutoModelForSequenceClassification
config = AutoConfig.from_pretrained('.')
print(type(config).__name__, config.resolved().name)
print(type(AutoModelForCausalLM.from_pretrained('.')).__name__, type(AutoModel.from_pretrained('.')).__name__)
print(type(AutoModelForCausalLM.from_config(config)).__name__)
print(type(AutoModelForSequenceClassification.from_config(config)).__name__)
"""
LOADED = [
    "ComposedConfig lolcats",
    "ComposedForCausalLM ComposedModel",
    "ComposedForCausalLM",
    "ComposedForSequenceClassification",
]
# Each of these starts transformers anew, which takes seconds.
COMPOSER_FIRST = """
import composer
from composer import registration
def watchers():
    return sum(isinstance(finder, registration._Watcher) for finder in sys.meta_path)
registration.register()
print('watching', watchers())

from transformers import AutoConfig
from transformers.models.auto.configuration_auto import CONFIG_MAPPING
entries = CONFIG_MAPPING._extra_content
registration.register()
print('watching', watchers(), CONFIG_MAPPING._extra_content is entries)
print('llama', AutoConfig.for_model('llama').model_type, 'composer.model.modeling' in sys.modules)
print('composed' in CONFIG_MAPPING, 'composedd' in CONFIG_MAPPING)
try:
    CONFIG_MAPPING['composedd']
except KeyError as error:
    print('unknown', error)
"""
COMPOSER_LAST = """
import transformers
from transformers import AutoConfig, AutoModel
AutoConfig.for_model('llama')
import composer
model = composer.load('.')
print(type(transformers.AutoModelForCausalLM.from_config(model.config)).__name__)
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model as `from_pretrained` finds it."""
    made = tmp_path_factory.mktemp("models")
    composer.build("lolcats", llama(made / "teacher"), overrides=["head.memory.0.size=4"]).save_pretrained(made / "student")
    return made / "student"


def test_importing_composer_is_light() -> None:
    assert printed(f"import composer\n{HEAVY}") == ""


def test_composer_first(folder: Path) -> None:
    """It waits for transformers once, is there when the table is, and leaves what is not ours alone."""
    assert printed(COMPOSER_FIRST + LOAD, folder).splitlines()[-9:] == [
        "watching 1",
        "watching 0 True",
        "llama llama False",
        "True False",
        "unknown 'composedd'",
        *LOADED,
    ]


def test_composer_last(folder: Path) -> None:
    """A model that did not come through an Auto class has a configuration that they know."""
    assert printed(COMPOSER_LAST + LOAD, folder).splitlines()[-5:] == ["ComposedForCausalLM", *LOADED]
