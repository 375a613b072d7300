"""What the demo runs, and in which order."""

import dataclasses
import pathlib

from synthesizer_mtf import checks
from synthesizer_mtf import gin_files
from synthesizer_mtf.runs import commands
from synthesizer_mtf.runs import results


@dataclasses.dataclass(frozen=True)
class Scale:
  """How much is done; 20 batches are more than the text held out fills."""
  pretrain_steps: int
  finetune_steps: int
  eval_batches: int
  eval_pairs: int  # -1 for all.


SCALES = {
    "full": Scale(300, 250, 20, -1),
    "test": Scale(4, 4, 1, 8),  # Whether everything runs.
}


class Plan:
  """The stages of all attentions.

  Attributes:
    folder: a `pathlib.Path`, where everything lies.
    attentions: a list of notations; the last one decodes.
    scale: a `Scale`.
  """

  def __init__(self, folder: pathlib.Path, attentions: list[str],
               scale: Scale) -> None:
    """See the attributes; an attention without gin file is a ValueError."""
    for notation in attentions:
      path = pathlib.Path(gin_files.folder(), _gin_file(notation))
      if not path.exists():
        known = ", ".join(sorted(p.stem for p in path.parent.glob("*.gin")))
        raise checks.Error(f"--attention names {notation!r}, for which there is "
                           f"no {path.name}; use one of {known}.")
    self.folder = folder
    self.attentions = attentions
    self.scale = scale

  def stages(self) -> list[commands.Stage]:
    """Returns all stages, in order."""
    found = []
    for notation in self.attentions:
      found += [self.pretrain(notation), self.perplexity(notation),
                self.finetune(notation), self.evaluate(notation)]
    return found + [self.decode(self.attentions[-1])]

  def pretrain(self, notation: str) -> commands.Stage:
    """Trains on span corruption of the text, from scratch."""
    model_dir = self.model_dir(notation, "pretrain")
    steps = self.pretrained_step
    return commands.Stage(
        f"pre-train {notation}",
        self._command(model_dir, [
            "dataset.gin", "models/laptop.gin", _gin_file(notation), "cpu.gin",
            "demo/pretrain.gin", self.data / "data.gin",
        ], {"utils.run.train_steps": steps}),
        model_dir.with_suffix(".log"),
        lambda: results.latest_step(model_dir) >= steps, range(steps))

  def perplexity(self, notation: str) -> commands.Stage:
    """Measures the loss on the text held out."""
    model_dir = self.model_dir(notation, "pretrain")
    files = self._trained(model_dir, "perplexity_eval.gin")
    step = self.pretrained_step
    return commands.Stage(
        f"perplexity {notation}",
        self._command(model_dir, files, {
            "eval_checkpoint_step": step,
            "utils.run.dataset_split": "validation",
            "utils.run.perplexity_eval_steps": self.scale.eval_batches,
            "mesh_eval_dataset_fn.seed": 1,  # The same spans for all models.
        }),
        model_dir.with_name("perplexity.log"),
        lambda: results.log_perplexity(model_dir, step) is not None,
        range(self.scale.eval_batches))

  def finetune(self, notation: str) -> commands.Stage:
    """Goes on with the pairs from the pre-trained checkpoint."""
    source = self.model_dir(notation, "pretrain")
    model_dir = self.model_dir(notation, "finetune")
    checkpoint = source / f"model.ckpt-{self.pretrained_step}"
    return commands.Stage(
        f"fine-tune {notation}",
        self._command(model_dir, self._trained(source, "demo/finetune.gin"), {
            "utils.run.init_checkpoint": str(checkpoint),
            "utils.run.train_steps": self.finetuned_step,
        }),
        model_dir.with_suffix(".log"),
        lambda: results.latest_step(model_dir) >= self.finetuned_step,
        range(self.pretrained_step, self.finetuned_step))

  def evaluate(self, notation: str) -> commands.Stage:
    """Decodes the names held out, and scores them."""
    model_dir = self.model_dir(notation, "finetune")
    return commands.Stage(
        f"evaluate {notation}",
        self._command(model_dir, self._trained(model_dir, "eval.gin"), {
            "eval_checkpoint_step": self.finetuned_step,
            "mesh_eval_dataset_fn.num_eval_examples": self.scale.eval_pairs,
            "utils.run.dataset_split": "validation",
            **_DECODING}),
        model_dir.with_name("evaluate.log"),
        lambda: bool(results.scores(model_dir, self.finetuned_step)))

  def decode(self, notation: str) -> commands.Stage:
    """Asks for the German names of a file of English ones."""
    model_dir = self.model_dir(notation, "finetune")
    return commands.Stage(
        f"decode {notation}",
        self._command(model_dir, self._trained(model_dir, "infer.gin"), {
            "infer_checkpoint_step": self.finetuned_step,
            "input_filename": str(self.questions),
            "output_filename": str(self.folder / "predictions.txt"),
            **_DECODING}),
        model_dir.with_name("decode.log"), self.predictions.exists)

  @property
  def data(self) -> pathlib.Path:
    return self.folder / "data"

  @property
  def questions(self) -> pathlib.Path:
    return self.data / "questions.txt"

  @property
  def predictions(self) -> pathlib.Path:
    """What T5 makes of `output_filename`: it adds the step."""
    return self.folder / f"predictions.txt-{self.finetuned_step}"

  @property
  def pretrained_step(self) -> int:
    return self.scale.pretrain_steps

  @property
  def finetuned_step(self) -> int:
    return self.scale.pretrain_steps + self.scale.finetune_steps

  def model_dir(self, notation: str, name: str) -> pathlib.Path:
    return self.folder / notation.lower() / name

  def _trained(self, model_dir, gin_file):
    """The gin files for a model that T5 has trained, and what to do with it."""
    return ["dataset.gin", model_dir / "operative_config.gin", gin_file,
            self.data / "data.gin"]

  def _command(self, model_dir, gin_files_, params):
    return commands.launcher() + [
        f"--model_dir={model_dir}", *commands.flags(gin_files_, params)]


_DECODING = {"utils.run.batch_size": 64,
             "Bitransformer.decode.max_decode_length": 40}


def _gin_file(notation):
  return f"attention/{notation.lower()}.gin"
