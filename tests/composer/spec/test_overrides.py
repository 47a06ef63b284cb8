"""``--set path=value`` equals a child document, reaches into lists, and is named in its errors."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from composer.errors import SpecError
from composer.spec import Spec, load_spec
from composer.spec.overrides import override_list, override_value
from composer.spec.places import from_plain, plain
from composer.spec.reading import read_value
from tests.composer.spec.error_messages import message_of

BASE = {
    "compose": 1,
    "name": "base",
    "head": {"position": "rope", "memory": [{"kind": "window", "size": 8}, "state"]},
    "layers": [{"at": 0, "use": [{"head": "a", "heads": 2}]}],
}


def changed(*overrides: str) -> dict:
    document = from_plain(BASE)
    for override in overrides:
        document = override_value(document, override, (Spec,))
    return plain(document)


@pytest.mark.parametrize(
    ("override", "path", "value"),
    [
        ("head.memory.0.size=32", ("head", "memory", 0, "size"), 32),
        ("head.memory[0].size = 32", ("head", "memory", 0, "size"), 32),
        ("head.memory.-2.size=32", ("head", "memory", 0, "size"), 32),
        ("head.memory.-1.gate=none", ("head", "memory"), ({"kind": "window", "size": 8}, {"kind": "state", "gate": "none"})),
        ("head.memory.1.gate=constant", ("head", "memory", 1), {"kind": "state", "gate": "constant"}),
        ("head.memory.1=full", ("head", "memory", 1), "full"),
        ("head.memory.0=window", ("head", "memory", 0), {"kind": "window", "size": 8}),
        ("head.memory=[full]", ("head", "memory"), ("full",)),
        ("head.memory.0=null", ("head", "memory"), ("state",)),
        ("head.position.theta=1e4", ("head", "position"), {"kind": "rope", "theta": 1e4}),
        ("head.position=null", ("head",), {"memory": ({"kind": "window", "size": 8}, "state")}),
        ("recipe.finetune.lr=1e-3", ("recipe",), {"finetune": {"lr": 1e-3}}),
        ("layers.0.use=b", ("layers", 0, "use"), "b"),
        ("layers.0.use.0.heads=4", ("layers", 0, "use"), ({"head": "a", "heads": 4},)),
        ("paper=a = b", ("paper",), "a = b"),
        ("name=other", ("name",), "other"),
    ],
)
def test_overrides_set_values(override: str, path: tuple, value: object) -> None:
    value_at_path = changed(override)
    for step in path:
        value_at_path = value_at_path[step]
    assert value_at_path == value


@pytest.mark.parametrize(
    ("spec", "override", "read_value"),
    [
        ("delta", "head.memory.0.rate.per=key_head", lambda spec: spec.head.memory[0].rate.per == "key_head"),
        ("delta", "head.memory[0].rate.largest=2", lambda spec: spec.head.memory[0].rate.largest == 2),
        (
            {"compose": 1, "name": "x", "head": {"memory": ["full"]}},
            "head.position.theta=5",
            lambda spec: spec.head.position.theta == 5,
        ),
        ("ablations/latte-table-1:latte", "trunk.mlp.width=64", lambda spec: spec.trunk.mlp.width == 64),
    ],
    ids=["rate", "by index", "position", "trunk"],
)
def test_parts_at_their_default_may_be_changed_in_one_field(spec: str | dict, override: str, read_value: Callable) -> None:
    assert read_value(load_spec(spec, [override]))


def test_fields_of_another_kind_than_the_default_are_refused() -> None:
    """Fixed rates have a value and the default rates have none. The gate `none` has no temperature."""
    for override in ("head.memory.0.rate.value=1", "head.memory.0.gate.temperature=3", "head.memory.0.rate.bogus=1"):
        with pytest.raises(SpecError, match="kind: missing. (Those with [a-z]+: [a-z_, ]+. )?Known kinds"):
            load_spec("delta", [override])


def test_overrides_apply_in_order() -> None:
    both = changed("head.conv.kernel=3", "head.conv.share=qk", "head.memory.0=null", "head.memory.0=full")
    assert both["head"] == {"position": "rope", "memory": ("full",), "conv": {"kernel": 3, "share": "qk"}}


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("head.memory.2.size=1", "head.memory: has no item 2; its items are 0 to 1, or -1 for the last"),
        ("head.memory.-3=full", "head.memory: has no item -3"),
        ("head.memory.99999999999.size=1", "head.memory: is a list of 2: use an index"),
        ("head.memory.last=full", 'head.memory: is a list of 2: use an index (0 to 1, or -1 for the last), not "last"'),
        ("heads.a.memory.0=full", "heads.a.memory: has no item 0: the spec has no value there"),
        ("head.position.0=none", "head.position: has no item 0: it is no list"),
        ("head.memry.0.size=3", 'head.memry: unknown key "memry"; did you mean "memory"? Known keys: '),
        ("heads.a.memry.0=full", 'heads.a.memry: unknown key "memry"'),
        ("haed.memory.0=full", 'haed: unknown key "haed"; did you mean "head"?'),
        ("name.first=a", 'name: is "base" and has no key "first"'),
        ("head.memory.0.size.b=1", 'head.memory[0].size: is 8 and has no key "b"'),
        ("head.flow", "expected path=value, such as head.memory.0.size=32"),
        ("head..flow=1", "expected path=value"),
        ("=1", "expected path=value"),
        ("head.flow=", "no value after `=`; to remove a key, write null"),
        ("head.flow=[1", "not YAML: expected ',' or ']', but got the end of the file"),
        ("head={flow: a, flow: b}", 'the key "flow" is set twice'),
        ("extends=a", "extends is read before overrides"),
    ],
)
def test_invalid_overrides_are_refused(override: str, message: str) -> None:
    with pytest.raises(SpecError) as caught:
        changed(override)
    start, rest_of_message = str(caught.value)[: len(override) + 6], str(caught.value)[len(override) + 6 :]
    assert start == f"--set {override}"
    assert rest_of_message.lstrip(": ").startswith(message)


def test_a_missing_size_is_described() -> None:
    with pytest.raises(
        SpecError, match=r"dimensions\.rope_theta: missing\. The base of the rotary frequencies; null if the source"
    ):
        load_spec("lolcats", ["dimensions.layers=3"])


def test_errors_have_the_override_as_place(write: Callable) -> None:
    path = write("x.yaml", "compose: 1\nname: x\nhead:\n  memory: [state]\n  flow: both\n")
    with pytest.raises(SpecError) as caught:
        load_spec(path, ["head.memory.0.gat=none", "recipe.finetune.lr=1"])
    assert [line.split(": ")[0] for line in sorted(str(caught.value).splitlines())] == [
        "--set head.memory.0.gat=none  head.memory[0].gat",
        "--set recipe.finetune.lr=1  recipe.finetune",
        "x.yaml:5:9  head.flow",
    ]


def test_overrides_keep_the_name_and_the_places_of_other_values(write: Callable) -> None:
    spec = load_spec(write("x.yaml", "compose: 1\nname: x\nhead:\n  memory: [state]\n"), ["head.memory.0.gate=head"])
    assert spec.name == "x"
    assert str(spec.place(("head", "memory", 0, "gate"))) == "--set head.memory.0.gate=head"
    assert str(spec.place(("head", "memory", 0, "name"))) == "x.yaml:4:12"
    assert str(spec.place(("head",))) == "x.yaml:3:1"


def test_paths_above_the_depth_limit_are_refused() -> None:
    message = message_of("lolcats", [f"head.{'a.' * 5000}b=1"])
    assert "nested deeper than 64 levels" in message
    assert len(message) < 500


@pytest.mark.parametrize("value", [32, 1e-05, True, None, "null", "1e-5", "Größe 🐈", ["full"], {"kind": "state", "gate": "none"}])
def test_values_survive_the_conversion_to_overrides(value: object) -> None:
    (value_read,) = override_list({"head.of": value})
    path, _, text = value_read.partition("=")
    assert (path, plain(read_value(text, "it"))) == ("head.of", plain(from_plain(value)))


def test_mappings_of_paths_equal_texts() -> None:
    spec = load_spec(BASE | {"heads": {"a": {"memory": ["full"]}}}, {"head.memory.0.size": 16, "head.position": "none"})
    assert spec == load_spec(BASE | {"heads": {"a": {"memory": ["full"]}}}, ["head.memory.0.size=16", "head.position=none"])
    with pytest.raises(SpecError, match=r"head\.memory\.0\.size is .*object.*; expected a value that YAML can hold"):
        load_spec(BASE, {"head.memory.0.size": object()})
