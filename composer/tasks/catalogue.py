"""All tasks, by their names in recipes."""

from __future__ import annotations

from composer.tasks.babilong import BabilongQa1, BabilongQa2, BabilongQa3, BabilongQa4, BabilongQa5
from composer.tasks.base import Task
from composer.tasks.dictionary import Dictionary
from composer.tasks.listops import ListOps
from composer.tasks.mqar import Mqar
from composer.tasks.needles import Multikey, Multivalue, TwoNeedles
from composer.tasks.niah import (
    MultikeyNiah,
    MultiqueryNiah,
    MultivalueNiah,
    NoiseNiah,
    NumbersNiah,
    TextNiah,
    UuidNiah,
    UuidsNiah,
)
from composer.tasks.passkey import Passkey
from composer.tasks.recall import Recall
from composer.tasks.stories import Stories
from composer.tasks.variable_tracking import VariableTracking
from composer.tasks.word_counts import CommonWords, FrequentWords

TASKS: dict[str, type[Task]] = {
    "passkey": Passkey,
    "multikey": Multikey,
    "multivalue": Multivalue,
    "two-needles": TwoNeedles,
    "niah-single-1": NoiseNiah,
    "niah-single-2": TextNiah,
    "niah-single-3": UuidNiah,
    "niah-multikey-1": MultikeyNiah,
    "niah-multikey-2": NumbersNiah,
    "niah-multikey-3": UuidsNiah,
    "niah-multivalue": MultivalueNiah,
    "niah-multiquery": MultiqueryNiah,
    "variable-tracking": VariableTracking,
    "common-words": CommonWords,
    "frequent-words": FrequentWords,
    "mqar": Mqar,
    "recall": Recall,
    "dictionary": Dictionary,
    "babilong-qa1": BabilongQa1,
    "babilong-qa2": BabilongQa2,
    "babilong-qa3": BabilongQa3,
    "babilong-qa4": BabilongQa4,
    "babilong-qa5": BabilongQa5,
    "listops": ListOps,
    "stories": Stories,
}
