"""The model card, ``README.md``: what a model is made of, where its weights come from, and how to load it."""

from __future__ import annotations

import yaml

from composer.weights.record import RECORD, Record


def model_card(record: Record, name: str) -> str:
    """Markdown with the Hub's front matter."""
    plan, source = record.plan, record.source
    front: dict[str, object] = {"library_name": "transformers", "pipeline_tag": "text-generation", "tags": ["composed"]}
    if source.repo_id:
        front["base_model"] = source.repo_id
    origin = f"`{source.repo_id}`" if source.repo_id else "a local folder"
    revision = f" at commit `{source.commit}`" if source.commit else ""
    paper = f"\nPaper: {record.resolved.paper}\n" if record.resolved.paper else ""
    trained = (
        f"When this was built, {len(record.untrained)} tensors of its heads were untrained: until they are trained, do not expect "
        "the source's quality.\n"
        if record.untrained
        else "Every parameter comes from the source, or was trained in it.\n"
    )
    linked = (
        "\nFiles that the record calls linked are the source's own, under another name: what writes into one of them in place "
        "changes the source.\n"
        if any(file.how == "linked" for file in record.files.values())
        else ""
    )
    return f"""---
{yaml.safe_dump(front, sort_keys=False).strip()}
---

# {name}

`{record.resolved.name}` heads on the weights of {origin}{revision}.
{paper}
| | |
|---|---|
| spec hash | `{record.spec_hash}` |
| inherited tensors | {len(plan.inherited)} |
| fresh tensors | {len(plan.fresh)} |
| dropped tensors | {len(plan.dropped)} |
| dtype | {plan.dtype} |

{trained}{linked}
## Load it

```python
import composer  # registers the model with the Auto classes
from transformers import AutoModelForCausalLM

model = AutoModelForCausalLM.from_pretrained("{name}", dtype="auto")
```

`compose verify {name}` checks the weights against `{RECORD}`, which holds the whole record: spec, plan, source, versions.

## Spec

```yaml
{yaml.safe_dump(record.spec, sort_keys=False, allow_unicode=True).strip()}
```
"""
