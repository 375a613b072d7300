"""Compares exported folders in PyTorch with what Mesh TensorFlow computed.

  PYTHON compare.py FOLDER ...
  PYTHON compare.py tune FOLDER
  PYTHON compare.py tokens FOLDER

Each folder has `theirs`, an exported model, and `ours.npz` and `names.json`. The script
prints a line of JSON for each, with the largest differences. `tune` trains three steps,
but not the embedding, and writes `tuned` with `save_pretrained`, and `tuned.npy`, the
logits. `tokens` prints the ids of the texts in texts.json.
"""

import json
import pathlib
import sys

import numpy as np
import torch
from torch.nn import functional
import transformers


def main(*folders):
  if folders[0] == "tune":
    return tune(pathlib.Path(folders[1]))
  if folders[0] == "tokens":
    tokens = transformers.AutoTokenizer.from_pretrained(folders[1])
    texts = json.loads((pathlib.Path(folders[1]) / "texts.json").read_text())
    return print(json.dumps([tokens(text).input_ids for text in texts]))
  transformers.logging.set_verbosity_error()
  torch.manual_seed(0)
  for folder in map(pathlib.Path, folders):
    print(json.dumps({"name": folder.name, **compare(folder)}), flush=True)


def compare(folder):
  """Returns a dict of differences."""
  ours = dict(np.load(folder / "ours.npz"))
  model = transformers.AutoModelForSeq2SeqLM.from_pretrained(
      folder / "theirs", trust_remote_code=True, dtype=torch.float32).eval()
  inputs, targets = (torch.from_numpy(ours[name]).long()
                     for name in ("inputs", "targets"))
  mask = (inputs > 0).long()
  data = {"attention_mask": mask,
          "decoder_input_ids": functional.pad(targets, (1, -1))}
  errors = {}
  out = model(input_ids=inputs, **data)
  real = targets > 0

  def difference(a, b, where):
    return float((a - torch.from_numpy(b))[where].abs().max())

  errors["logits"] = difference(out.logits.detach(), ours["logits"], real)
  errors["encoder"] = difference(
      out.encoder_last_hidden_state.detach(), ours["encoded"], mask > 0)
  errors.update(other_batches(
      model, *(x[:4] for x in (inputs, targets, torch.from_numpy(ours["logits"])))))
  if "loss" in ours:
    errors["gradients"] = gradients(model, out.logits, targets, ours, folder)
  generated = {"max_new_tokens": ours.get("decoded", inputs).shape[1],
               "do_sample": False}
  if "decoded" in ours:
    ids = model.generate(
        input_ids=inputs, attention_mask=mask, num_beams=1, **generated)
    errors["greedy"] = same(ids, ours["decoded"])[0]
  if "beams" in ours:
    ids = model.generate(input_ids=inputs, attention_mask=mask, num_beams=4,
                         length_penalty=0.0, early_stopping=False, **generated)
    # Transformers prefers a sequence without end if it is more probable than all that
    # ended, and Mesh TensorFlow does not. And Transformers ends a sequence only where
    # the end is one of the `num_beams` best continuations, Mesh TensorFlow where it is
    # one of twice as many. So among rows that end, ours is the same or more probable.
    rows = (ids == 1).any(-1)
    errors["beams"], errors["ended"] = same(ids[rows], ours["beams"][rows.numpy()])
    mine = functional.pad(torch.from_numpy(ours["beams"]).long(), (1, 0))
    errors["worse"] = int((
        likelihood(model, inputs, mask, mine) <
        likelihood(model, inputs, mask, ids) - 1e-4)[rows].sum())
  return errors


def likelihood(model, inputs, mask, ids):
  """The log-likelihood of each row of ids, up to and with the first end."""
  with torch.no_grad():
    logits = model(input_ids=inputs, attention_mask=mask,
                   decoder_input_ids=ids[:, :-1]).logits
  chosen = logits.log_softmax(-1).gather(-1, ids[:, 1:, None])[..., 0]
  after = (ids[:, 1:] == 1).cumsum(-1) - (ids[:, 1:] == 1).long()
  return (chosen * (after == 0)).sum(-1)


def tune(folder):
  ours = np.load(folder / "ours.npz")
  model = transformers.AutoModelForSeq2SeqLM.from_pretrained(
      folder / "theirs", trust_remote_code=True)
  model.shared.weight.requires_grad_(False)
  model.gradient_checkpointing_enable()
  optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
  inputs, targets = (torch.from_numpy(ours[name]).long()
                     for name in ("inputs", "targets"))
  data = {"input_ids": inputs, "attention_mask": (inputs > 0).long(),
          "labels": targets.masked_fill(targets == 0, -100)}
  for _ in range(3):
    model.train()(**data).loss.backward()
    optimizer.step()
    optimizer.zero_grad()
  model.save_pretrained(folder / "tuned")
  (folder / "tuned" / "spiece.model").write_bytes(
      (folder / "theirs" / "spiece.model").read_bytes())
  with torch.no_grad():
    np.save(folder / "tuned.npy", model.eval()(**data).logits.numpy())


@torch.no_grad()
def other_batches(model, inputs, targets, logits):
  """The largest errors of batches of one row, and of all, padded on both sides.

  Rows of inputs and targets begin anywhere, so that their padding is on both sides. The
  decoder sees all targets at once, and then one after the other, with a cache.

  Args:
    model: the model in PyTorch.
    inputs: <int>[batch, length], 0 for padding, which comes last.
    targets: <int>[batch, length], in the same form.
    logits: <float>[batch, length, vocab_size], of Mesh TensorFlow.

  Returns:
    a dict of the two errors.
  """
  errors = {"both sides": 0., "cached": 0.}
  for rows in (*([row] for row in range(len(inputs))), [*range(len(inputs))]):
    [ids] = moved(inputs[rows])
    now, before, wanted = moved(
        targets[rows], functional.pad(targets[rows], (1, -1)), logits[rows])
    mask, real = (ids > 0).long(), now > 0
    data = {"encoder_outputs": model.encoder(input_ids=ids, attention_mask=mask),
            "attention_mask": mask}
    whole = model(**data, decoder_input_ids=before, decoder_attention_mask=real).logits
    steps, past = [], None
    for i in range(before.shape[1]):
      out = model(**data, decoder_input_ids=before[:, i:i + 1], past_key_values=past,
                  decoder_attention_mask=real[:, :i + 1])
      steps.append(out.logits)
      past = out.past_key_values
    for name, got in ("both sides", whole), ("cached", torch.cat(steps, 1)):
      errors[name] = max(errors[name], float((got - wanted)[real].abs().max()))
  return errors


def moved(ids, *others):
  """Moves some of the padding of each row to its front, in all arguments alike."""
  places = [int(torch.randint(int((row == 0).sum()) + 1, ())) for row in ids]
  return [torch.stack([row.roll(place, 0) for row, place in zip(x, places)])
          for x in (ids, *others)]


def gradients(model, logits, targets, ours, folder):
  """The largest difference of the loss and of its gradients."""
  loss = functional.cross_entropy(
      logits.flatten(0, 1), targets.flatten(), ignore_index=0,
      reduction="sum") / targets.numel()
  loss.backward()
  parameters = dict(model.named_parameters())
  names = json.loads((folder / "names.json").read_text())
  worst = abs(loss.item() - float(ours["loss"]))
  for name, value in ours.items():
    if name.startswith("gradient "):
      theirs, transposed = names[name.removeprefix("gradient ")]
      grad = parameters[theirs].grad.numpy()
      grad = grad.T if transposed else grad
      worst = max(worst, float(abs(grad - value).max()))
  return worst


def same(ids, expected):
  """How many rows of ids agree, up to the end of the sequence; and of how many."""
  ids = ids[:, 1:].tolist()
  return sum(until_eos(a) == until_eos(b)
             for a, b in zip(ids, expected.tolist())), len(ids)


def until_eos(row):
  row = [*row, 1]
  return row[:row.index(1)]


if __name__ == "__main__":
  main(*sys.argv[1:])
