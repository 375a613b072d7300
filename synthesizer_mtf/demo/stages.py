"""The commands of the demo, and their order."""

import dataclasses
import pathlib

from synthesizer_mtf import checks
from synthesizer_mtf import gin_files
from synthesizer_mtf.tools.base import results
from synthesizer_mtf.tools.experiments import pipeline


@dataclasses.dataclass(frozen=True)
class Scale:
  """The size of the demo. The held-out text fills fewer than 20 batches."""
  pretrain_steps: int
  finetune_steps: int
  eval_batches: int
  eval_pairs: int  # -1 for all.


SCALES = {
    "full": Scale(300, 250, 20, -1),
    "test": Scale(4, 4, 1, 8),  # Tests only that everything runs.
}


@dataclasses.dataclass
class Plan:
  """The stages of all attentions.

  Attributes:
    folder: a `pathlib.Path`, the folder of all files.
    attentions: a list of notations; the last one decodes.
    scale: a `Scale`.

  Raises:
    ValueError: an attention has no gin file.
  """
  folder: pathlib.Path
  attentions: list[str]
  scale: Scale

  def __post_init__(self):
    for notation in self.attentions:
      path = pathlib.Path(gin_files.folder(), _gin_file(notation))
      if not path.exists():
        known = ", ".join(sorted(p.stem for p in path.parent.glob("*.gin")))
        raise checks.Error(f"--attention names {notation!r}, for which there is "
                           f"no {path.name}; use one of {known}.")

  def stages(self) -> list[pipeline.Stage]:
    """Returns all stages, in order."""
    return [*(stage for notation in self.attentions
              for stage in (self._pretrain(notation), self._perplexity(notation),
                            self._finetune(notation), self._evaluate(notation))),
            self._decode(self.attentions[-1])]

  def _pretrain(self, notation):
    """Trains on span corruption of the text, from scratch."""
    model_dir, steps = self.model_dir(notation, "pretrain"), self.scale.pretrain_steps
    return pipeline.Stage(
        f"pre-train {notation}",
        self._command(model_dir, [
            "dataset.gin", "models/laptop.gin", _gin_file(notation), "cpu.gin",
            "demo/pretrain.gin", self.data / "data.gin",
        ], {"utils.run.train_steps": steps}),
        model_dir.with_suffix(".log"),
        lambda: results.latest_step(model_dir) >= steps, range(steps))

  def _perplexity(self, notation):
    """Measures the loss on held-out text."""
    model_dir, step = self.model_dir(notation, "pretrain"), self.scale.pretrain_steps
    return pipeline.Stage(
        f"perplexity {notation}",
        self._command(model_dir, self._trained(model_dir, "perplexity_eval.gin"), {
            "eval_checkpoint_step": step,
            "utils.run.dataset_split": "validation",
            "utils.run.perplexity_eval_steps": self.scale.eval_batches,
            "mesh_eval_dataset_fn.seed": 1,  # The same spans for all models.
        }),
        model_dir.with_name("perplexity.log"),
        lambda: results.log_perplexity(model_dir, step) is not None,
        range(self.scale.eval_batches))

  def _finetune(self, notation):
    """Fine-tunes the pre-trained checkpoint on the pairs."""
    source = self.model_dir(notation, "pretrain")
    model_dir, first = self.model_dir(notation, "finetune"), self.scale.pretrain_steps
    return pipeline.Stage(
        f"fine-tune {notation}",
        self._command(model_dir, self._trained(source, "demo/finetune.gin"), {
            "utils.run.init_checkpoint": str(source / f"model.ckpt-{first}"),
            "utils.run.train_steps": self.finetuned_step,
        }),
        model_dir.with_suffix(".log"),
        lambda: results.latest_step(model_dir) >= self.finetuned_step,
        range(first, self.finetuned_step))

  def _evaluate(self, notation):
    """Decodes the held-out names, and scores them."""
    model_dir = self.model_dir(notation, "finetune")
    return pipeline.Stage(
        f"evaluate {notation}",
        self._command(model_dir, self._trained(model_dir, "eval.gin"), {
            "eval_checkpoint_step": self.finetuned_step,
            "mesh_eval_dataset_fn.num_eval_examples": self.scale.eval_pairs,
            "utils.run.dataset_split": "validation",
            **_DECODING}),
        model_dir.with_name("evaluate.log"),
        lambda: bool(results.scores(model_dir, self.finetuned_step)))

  def _decode(self, notation):
    """Decodes the German names for a file of English names."""
    model_dir = self.model_dir(notation, "finetune")
    return pipeline.Stage(
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
    """T5's output file: `output_filename` with the step appended."""
    return self.folder / f"predictions.txt-{self.finetuned_step}"

  @property
  def finetuned_step(self) -> int:
    return self.scale.pretrain_steps + self.scale.finetune_steps

  def model_dir(self, notation: str, name: str) -> pathlib.Path:
    return self.folder / notation.lower() / name

  def _trained(self, model_dir, gin_file):
    """The gin files of a trained model, and `gin_file` for its next task."""
    return ["dataset.gin", model_dir / "operative_config.gin", gin_file,
            self.data / "data.gin"]

  def _command(self, model_dir, gin_files_, params):
    return pipeline.launcher() + [
        f"--model_dir={model_dir}", *pipeline.flags(gin_files_, params)]


_DECODING = {"utils.run.batch_size": 64,
             "Bitransformer.decode.max_decode_length": 40}


def _gin_file(notation):
  return f"attention/{notation.lower()}.gin"
