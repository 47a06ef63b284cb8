"""A picture shows the spec: its parts, their edges, the bytes of states and the layers. All text is escaped."""

from __future__ import annotations

import dataclasses
import re
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

from composer.drawing.contents import WORDS
from composer.drawing.picture import NUMBERS, ROW_GAP, TALL, TYPICAL, Picture, beside, picture
from composer.errors import ComposerError
from composer.graph.wiring import build_graph
from composer.spec.document import Spec
from composer.spec.explain import explain_resolved
from composer.spec.loading import load_spec
from composer.spec.resolve import Resolved, resolve
from tests.composer.drawing.looked_at import SVG, assert_legible

SMALL = TYPICAL.model_copy(update={"layers": 4})
HEADS: dict[str, Any] = {"window": {"memory": [{"kind": "window", "evict": "drop"}]}, "exact": {"memory": ["full"]}}


def on(name: str, *overrides: str, layers: int = 4) -> Resolved:
    return resolve(load_spec(name, overrides), TYPICAL.model_copy(update={"layers": layers}))


def labels_of(drawn: Picture) -> list[str]:
    """Return all visible text."""
    return [element.text or "" for element in ElementTree.fromstring(drawn.svg).iter(f"{SVG}text")]


def test_the_picture_of_lola_has_memories_evictions_and_inputs() -> None:
    words = labels_of(picture(on("lola")))
    assert {"window", "sparse", "state", "hedgehog", "shared", "learned", "weight of window"} <= set(words)
    assert words.count("evicted pairs") == 2
    assert words.count("partial") == 3
    assert {"size 64 · keep self_recall", "128 features · dim 64"} <= set(words)
    # Keys and values of 127 pairs, in float32, of 8 heads of 64; positions and what has fallen so far.
    assert any(re.fullmatch(r"state 5\d\d\.\d KiB", word) for word in words)


def test_state_sizes_equal_those_of_explain() -> None:
    for name in ("lolcats", "lawcat", "hybrid", "mixed-heads", "delta"):
        resolved = on(name, layers=16)
        explained = explain_resolved(resolved, sequence=4096, dtype="bfloat16")
        words = labels_of(picture(resolved, dtype="bfloat16"))
        (line,) = (word for word in words if re.match(r"State [\d.]+ ", word))
        figure, unit = re.findall(r"State ([\d.]+) (\w+)", line)[0]
        assert float(figure) == pytest.approx(explained.state_bytes / 1024 ** {"KiB": 1, "MiB": 2}[unit], abs=0.05)
        assert ("growing" in line) == any(group.state_grows for group in explained.groups)


def test_every_part_and_every_edge_of_every_head_is_drawn() -> None:
    """The read of a single memory is not drawn, since it changes nothing, and a feature map of queries and keys is one box."""
    for name in ("lola", "gated-delta", "latte-macchiato", "rglru-window", "latte"):
        resolved = on(name)
        root = ElementTree.fromstring(picture(resolved).svg)
        titles = [element.text or "" for element in root.iter(f"{SVG}title")]
        labels = [element.text or "" for element in root.iter(f"{SVG}text") if "cd-label" in element.get("class", "")]
        for head, shape, _ in resolved.kinds().values():
            graph = build_graph(head, shape)
            passed = {node.name for node in graph.parts if node.name.endswith("_keys")}
            passed |= {"read"} if len(graph.into("read")) == 1 else set()
            for node in graph.parts:
                drawn = any(title.partition("\n")[0] == node.name for title in titles)
                assert drawn == (node.name not in passed), node.name
            flowing = [edge for edge in graph.edges if edge.end not in passed and not edge.start.endswith("_keys")]
            assert len(labels) == len({(edge.start, edge.output, edge.end, edge.input) for edge in flowing})
            for edge in (edge for edge in flowing if edge.start not in passed):
                assert any(label in ("evicted pairs", WORDS[edge.kind], f"{edge.input} {WORDS[edge.kind]}") for label in labels)


def test_parts_without_edges_are_omitted() -> None:
    words = labels_of(picture(on("latte-conv")))
    assert "queries" not in words
    assert {"values", "hidden states", "latents"} <= set(words)


def test_heads_and_layers_are_mapped() -> None:
    drawn = picture(on("mixed-heads"))
    words = labels_of(drawn)
    assert words.count("A") == words.count("B") == 4
    assert {"0", "1", "2", "3"} <= set(words)
    assert "A: lolcats, 16 query heads of layers 0 to 3" in words
    alternating = labels_of(picture(on("alternating-delta", layers=16)))
    assert "B: far, 32 query heads of layers 1, 3, … 15" in alternating
    assert_legible(drawn)


def test_groups_by_number_are_drawn_at_their_heads() -> None:
    """Key heads from top to bottom, neighbours of one group as one cell."""
    use = [{"head": "source", "heads": [0, 3]}, {"head": "window", "heads": "rest"}]
    spec = load_spec({"compose": 1, "name": "x", "heads": {"window": HEADS["window"]}, "layers": [{"at": "all", "use": use}]})
    drawn = picture(resolve(spec, SMALL))
    titles = [title.text or "" for title in ElementTree.fromstring(drawn.svg).iter(f"{SVG}title")]
    assert [title.rpartition(": ")[2] for title in titles if "query heads" in title][:3] == ["source", "window", "source"]


def test_rows_of_the_map_of_layers_stand_close() -> None:
    drawn = ElementTree.fromstring(picture(on("softmax", layers=48)).svg)
    y = {text.text: float(text.get("y", "nan")) for text in drawn.iter(f"{SVG}text")}
    assert y["32"] - y["0"] == TALL + NUMBERS + ROW_GAP < 70


def test_many_layers_still_fit() -> None:
    deep = picture(on("softmax", layers=1000))
    assert "0–999" in labels_of(deep)
    assert_legible(deep)
    rules = [{"at": f"{first}::2", "use": name} for first, name in enumerate(HEADS)]
    spec = Spec.model_validate({"compose": 1, "name": "deep", "heads": HEADS, "layers": rules}, strict=False)
    drawn = picture(resolve(spec, TYPICAL.model_copy(update={"layers": 300})))
    assert "and 204 more columns of layers that are alike" in labels_of(drawn)
    assert_legible(drawn)


def test_texts_of_users_are_escaped_and_truncated() -> None:
    nasty = '<script>alert("1")</script> & \x07 \ud83d' + "long " * 60
    resolved = on("lolcats").model_copy(update={"paper": nasty, "name": "<b>&amp;"})
    drawn = picture(resolved, on='"><img src=x onerror=alert(1)>')
    words = labels_of(drawn)
    assert "<b>&amp;" in words
    assert any(word.startswith('<script>alert("1")</script> & \ufffd') and word.endswith("…") for word in words)
    assert not {"script", "img", "b"} & {element.tag.removeprefix(SVG) for element in ElementTree.fromstring(drawn.svg).iter()}
    drawn.svg.encode()
    assert_legible(drawn)


def test_long_names_are_cut() -> None:
    long = "a" * 400
    spec = {"compose": 1, "name": long, "head": {"memory": [{"kind": "window", "name": long, "evict": "drop"}]}}
    drawn = picture(resolve(load_spec(spec), SMALL))
    assert_legible(drawn)
    assert drawn.width <= 830


def test_the_maximum_number_of_memories_is_drawn() -> None:
    memories: list[Any] = [{"kind": "window", "name": f"m{index}", "weight": "learned"} for index in range(31)]
    head = {"feature_map": "elu", "memory": [*memories, "state"]}
    assert_legible(picture(resolve(load_spec({"compose": 1, "name": "deep", "head": head}), SMALL)))


def test_a_picture_shows_itself_in_notebooks_and_is_saved(tmp_path: Path) -> None:
    drawn = picture(on("window"))
    assert drawn._repr_svg_() == drawn.svg
    drawn.save(tmp_path / "window.svg")
    assert (tmp_path / "window.svg").read_text(encoding="utf-8") == drawn.svg
    assert drawn.svg == picture(on("window")).svg


def marked(drawn: Picture) -> list[str]:
    """Return the marked nodes."""
    names = []
    for box in ElementTree.fromstring(drawn.svg).iter(f"{SVG}g"):
        if any(element.get("class") == "cd-marked" for element in box):
            names.append((box.find(f"{SVG}title").text or "").partition("\n")[0])  # pyright: ignore[reportOptionalMemberAccess]
    return names


def test_differences_are_marked_in_both_pictures() -> None:
    assert marked(beside(on("lolcats"), on("lolcats", "head.memory.0.size=32"))) == ["window", "window"]
    assert marked(beside(on("lolcats"), on("lolcats"))) == []
    marked_titles = marked(beside(on("lolcats"), on("lola")))
    assert "sparse" in marked_titles
    assert marked_titles.count("window") == marked_titles.count("state") == 2
    assert "state_features" not in marked_titles


def test_heads_of_only_one_spec_are_marked_whole() -> None:
    lolcats = on("lolcats")
    more = resolve(
        Spec.model_validate(
            {
                **load_spec("lolcats").model_dump(mode="json", exclude_unset=True),
                "heads": {"exact": {"memory": [{"kind": "window", "size": 8, "evict": "drop"}]}},
                "layers": [{"at": [1], "use": "exact"}],
            }
        ),
        SMALL,
    )
    kinds = more.kinds()
    (exact,) = (build_graph(head, shape) for (name, _), (head, shape, _) in kinds.items() if name == "exact")
    assert marked(beside(lolcats, more)) == [
        node.name for node in exact.parts if node.name != "read"
    ]  # one memory: it is not drawn
    assert marked(beside(more, lolcats)) == marked(beside(lolcats, more)) != []


@pytest.mark.parametrize("name", ["picture.png", "picture.pdf", "picture"])
def test_a_picture_is_saved_as_svg_alone(tmp_path: Path, name: str) -> None:
    with pytest.raises(ComposerError, match=rf"{name}: pictures are SVG; name a file that ends in \.svg$"):
        picture(on("window")).save(tmp_path / name)
    assert not list(tmp_path.iterdir())


def test_the_legibility_checks_detect_damage() -> None:
    """The checks of these tests detect each kind of damage."""
    drawn = picture(on("lola"))
    assert_legible(drawn)
    for what, instead in (
        (r'(class="cd-title" x=")[\d.]+', r"\g<1>99999"),
        (r'(class="cd-label cd-query" x=")[\d.]+', r"\g<1>0"),
        (r"(>evicted pairs<)", ">evicted pairs and fall and fall and fall<"),
        (r'(class="cd-said" x=")20', r"\g<1>700"),
        (r'(class="cd-label cd-features" x="[\d.]+" y=")[\d.]+', r"\g<1>40"),
    ):
        damaged = re.sub(what, instead, drawn.svg)
        assert damaged != drawn.svg
        with pytest.raises(AssertionError):
            assert_legible(dataclasses.replace(drawn, svg=damaged))
