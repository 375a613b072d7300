"""The commands of the demo, and their order."""

from collections.abc import Callable
import dataclasses
import pathlib

from synthesizer_mtf import checks
from synthesizer_mtf import gin_files
from synthesizer_mtf.tools.base import results
from synthesizer_mtf.tools.experiments import pipeline
from synthesizer_mtf.tools.experiments import settings

_DECODING = {"utils.run.batch_size": 64,
             "Bitransformer.decode.max_decode_length": 40}


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
  """The stages of all attentions, of which the last one decodes.

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
    self.data = self.folder / "data"
    self.questions = self.data / "questions.txt"
    self.finetuned_step = self.scale.pretrain_steps + self.scale.finetune_steps
    # T5's output file: `output_filename` with the step appended.
    self.predictions = self.folder / f"predictions.txt-{self.finetuned_step}"

  def stages(self) -> list[pipeline.Stage]:
    """Returns all stages, in order."""
    return [*(stage for notation in self.attentions
              for stage in (*self._pretrain(notation), *self._finetune(notation))),
            self._decode(self.attentions[-1])]

  def model_dir(self, notation: str, name: str) -> pathlib.Path:
    return self.folder / notation.lower() / name

  def _pretrain(self, notation):
    """Trains on span corruption of text, and measures the loss on held-out text."""
    model_dir, steps = self.model_dir(notation, "pretrain"), self.scale.pretrain_steps
    yield self._stage(
        f"pre-train {notation}", model_dir, "pretrain",
        ["models/laptop.gin", _gin_file(notation), "cpu.gin", "demo/pretrain.gin"],
        {"utils.run.train_steps": steps},
        lambda: results.latest_step(model_dir) >= steps, range(steps))
    yield self._stage(
        f"perplexity {notation}", model_dir, "perplexity",
        [model_dir / "operative_config.gin", "perplexity_eval.gin"], {
            "eval_checkpoint_step": steps, "utils.run.dataset_split": "validation",
            "utils.run.perplexity_eval_steps": self.scale.eval_batches,
            "mesh_eval_dataset_fn.seed": 1},  # The same spans for all models.
        lambda: results.log_perplexity(model_dir, steps) is not None,
        range(self.scale.eval_batches))

  def _finetune(self, notation):
    """Fine-tunes the pre-trained checkpoint on pairs; scores the held-out names."""
    source, model_dir = (self.model_dir(notation, name)
                         for name in ("pretrain", "finetune"))
    first, last = self.scale.pretrain_steps, self.finetuned_step
    yield self._stage(
        f"fine-tune {notation}", model_dir, "finetune",
        [source / "operative_config.gin", "demo/finetune.gin"], {
            "utils.run.init_checkpoint": str(source / f"model.ckpt-{first}"),
            "utils.run.train_steps": last},
        lambda: results.latest_step(model_dir) >= last, range(first, last))
    yield self._stage(
        f"evaluate {notation}", model_dir, "evaluate",
        [model_dir / "operative_config.gin", "eval.gin"], {
            "eval_checkpoint_step": last,
            "mesh_eval_dataset_fn.num_eval_examples": self.scale.eval_pairs,
            "utils.run.dataset_split": "validation", **_DECODING},
        lambda: bool(results.scores(model_dir, last)))

  def _decode(self, notation):
    """Decodes the German names for a file of English names."""
    model_dir = self.model_dir(notation, "finetune")
    return self._stage(
        f"decode {notation}", model_dir, "decode",
        [model_dir / "operative_config.gin", "infer.gin"], {
            "infer_checkpoint_step": self.finetuned_step,
            "input_filename": str(self.questions),
            "output_filename": str(self.folder / "predictions.txt"), **_DECODING},
        self.predictions.exists)

  def _stage(self, title: str, model_dir: pathlib.Path, log: str, gin_files_: list,
             params: settings.Params, is_done: Callable[[], bool],
             steps: range | None = None) -> pipeline.Stage:
    files = ["dataset.gin", *gin_files_, self.data / "data.gin"]
    return pipeline.Stage(title, settings.DEFAULT.launch(model_dir, files, params),
                          model_dir.with_name(f"{log}.log"), is_done, steps)


def _gin_file(notation):
  return f"attention/{notation.lower()}.gin"
