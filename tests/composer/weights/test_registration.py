"""`import composer` registers transformers' Auto classes in any order of imports, and loads neither transformers nor torch."""

from __future__ import annotations

from pathlib import Path

import pytest

import composer
from tests.checkpoints import llama
from tests.composer.programs import printed, printed_behind_libraries

HEAVY = "print(*sorted({'torch', 'transformers'} & sys.modules.keys()))"
LOAD = """
from transformers import AutoConfig, AutoModel, AutoModelForCausalLM, AutoModelForSequenceClassification
config = AutoConfig.from_pretrained('.')
print(type(config).__name__, config.read_spec().name)
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
# Each of these starts transformers anew, which takes seconds; what transformers itself starts from is there.
COMPOSER_FIRST = """
import composer
from composer.weights import registration
registration.register()
print('finders', sum(isinstance(finder, registration._Finder) for finder in sys.meta_path))

from transformers import AutoConfig
from transformers.models.auto.configuration_auto import CONFIG_MAPPING
print('llama', AutoConfig.for_model('llama').model_type, 'composer.model.modeling' in sys.modules)
print('composed' in CONFIG_MAPPING, 'composedd' in CONFIG_MAPPING)
"""
LOOKED_AT_AND_RELOADED = """
import composer, importlib.util, inspect
for _ in range(2):
    importlib.util.find_spec('transformers.models.auto.configuration_auto')
import transformers.models.auto.configuration_auto as auto
print('source', inspect.getsource(auto).count('class AutoConfig'), 'composed' in auto.CONFIG_MAPPING)
importlib.reload(auto)
del sys.modules['transformers.models.auto.configuration_auto']
import transformers.models.auto.configuration_auto as again
assert again is not auto
print('composed' in again.CONFIG_MAPPING)
importlib.reload(composer)
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
    """A model's folder for `from_pretrained`."""
    made = tmp_path_factory.mktemp("models")
    composer.build("lolcats", llama(made / "teacher"), overrides=["head.memory.0.size=4"]).save_pretrained(made / "student")
    return made / "student"


def test_importing_composer_is_light() -> None:
    assert printed(f"import composer\n{HEAVY}") == ""


def test_composer_may_be_imported_before_transformers(folder: Path) -> None:
    """The entry exists once transformers' table does, and other entries are unchanged."""
    assert printed_behind_libraries(COMPOSER_FIRST + LOAD, folder).splitlines()[-7:] == [
        "finders 1",
        "llama llama False",
        "True False",
        *LOADED,
    ]


@pytest.mark.parametrize("first", ["AutoModelForCausalLM", "LlamaForCausalLM", "AutoTokenizer"])
def test_any_module_of_transformers_may_be_imported_first(folder: Path, first: str) -> None:
    """Each module imports the table during its own import, and the model class imports its config first."""
    assert (
        printed_behind_libraries(f"import composer\nfrom transformers import {first}\n" + LOAD, folder).splitlines()[-4:] == LOADED
    )


def test_finding_and_reloading_the_table_registers_composer(folder: Path) -> None:
    """Finding the table's module does not load it. Each table that is loaded later has the entry."""
    printed = printed_behind_libraries(LOOKED_AT_AND_RELOADED + LOAD, folder).splitlines()
    assert printed[-6:] == ["source 1 True", "True", *LOADED]


def test_composer_may_be_imported_after_transformers(folder: Path) -> None:
    """The Auto classes know the configuration of a model that was made without them."""
    assert printed_behind_libraries(COMPOSER_LAST + LOAD, folder).splitlines()[-5:] == ["ComposedForCausalLM", *LOADED]
