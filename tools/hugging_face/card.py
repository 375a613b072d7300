"""The model card of an exported model: `README.md`, as Hugging Face shows it."""

from synthesizer_mtf.tools.hugging_face import architecture
from synthesizer_mtf.tools.hugging_face import config

FILE = "README.md"

_KINDS = {"encoder-decoder": "An encoder and decoder", "encoder": "An encoder",
          "classifier": "An encoder with a classifier"}


def text(arch: architecture.Architecture, blocks: architecture.Blocks, is_t5: bool,
         step: int) -> str:
  """Returns the text of the model card.

  Args:
    arch: the model without its self-attention.
    blocks: the self-attention of each block.
    is_t5: whether Transformers' own T5 computes the model.
    step: the step of the checkpoint.
  """
  kind = _KINDS[arch.kind]
  auto, trust = config.AUTO[arch.kind], "" if is_t5 else ", trust_remote_code=True"
  sizes = (f"{arch.encoder_layers} + {arch.decoder_layers} blocks, d_model "
           f"{arch.d_model}, d_ff {arch.d_ff}, {arch.heads} heads of {arch.d_kv}, "
           f"{arch.vocab_size} ids")
  rows = "\n".join(f"| {stack} | {block} | {layer.notation} | "
                   f"{layer.description.get('relative_bias') or 'none'} |"
                   for (stack, block), layer in blocks.items())
  return f"""---
library_name: transformers
tags:
- t5
- synthesizer
---

# A T5 with synthesized attention

{kind} of T5 ({sizes}), trained with synthesizer_mtf to step {step}, and exported to
PyTorch. Its self-attention (Tay et al., *Synthesizer: Rethinking Self-Attention for
Transformer Models*, arXiv:2005.00743):

| stack | block | logits | relative position bias |
|---|---|---|---|
{rows}

```python
from transformers import AutoTokenizer, {auto}

tokenizer = AutoTokenizer.from_pretrained(FOLDER)
model = {auto}.from_pretrained(FOLDER{trust})
```

Training data and results: nobody has written them here yet.

License: the code that computes the model is under the Apache License 2.0. The weights
have the license that their author gives them; write it here.
"""
