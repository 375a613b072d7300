"""Checkpoints whose heads differ from the model's although no shape does."""

import shutil

from absl import flags
import pytest
from support import in_process
from support import models
import synthesizer_mtf
from synthesizer_mtf import gin_files
from synthesizer_mtf.trainer.checkpoints import heads_record

FILES = ["dataset.gin", "models/laptop.gin",
         "learning_rate_schedules/constant_0_001.gin"]
TASK = "synth_text_pairs"
# A relative position bias would tell the number of heads.
WITHOUT_BIAS = [
    "Unitransformer.positional_embedding = True", *[
        f"{scope}{layer}Attention.relative_attention_type = None"
        for scope in ("", "encoder/", "decoder/") for layer in ("Self", "Synthetic")]]
CHOICE = "synthesizer_stack.attention = 'V'"
TWO, FOUR = (["num_heads = 2", "d_kv = 6"], ["num_heads = 4", "d_kv = 3"])


class Command(in_process.Command):

  def bindings(self):
    return [*super().bindings(), *WITHOUT_BIAS, CHOICE]

  def train(self, name, *bindings):
    return self.run(name, *FILES, bindings=bindings)

  def model(self, name, bindings, **kwargs):
    gin_files.parse(["cpu.gin", *FILES], [*self.bindings(), *bindings])
    return synthesizer_mtf.MtfModel(
        model_dir=str(self.folder / name), tpu=None, batch_size=4,
        sequence_length={"inputs": 16, "targets": 12}, iterations_per_loop=1, **kwargs)


@pytest.fixture(scope="module")
def trained(tmp_path_factory, sentencepiece_model):
  """A command, and the folder of its model of 2 heads of 6."""
  if not flags.FLAGS.is_parsed():
    flags.FLAGS.mark_as_parsed()
  command = Command(tmp_path_factory.mktemp("heads"), sentencepiece_model)
  assert not command.train("two", *TWO)
  return command, str(command.folder / "two")


@pytest.mark.parametrize("bindings", [
    FOUR, ["decoder/SelfAttention.num_heads = 4",  # The cross-attention.
           "decoder/SelfAttention.key_value_size = 3"]])
def test_a_folder_is_restored_and_a_warm_start_begins_only_with_the_same_heads(
    trained, bindings, tmp_path, log):
  command, two = trained
  shutil.copy(f"{two}/model.ckpt-1.index", tmp_path)
  for given in (TWO, bindings):
    gin_files.parse(["cpu.gin", *FILES], [*command.bindings(), *TWO, *given])
    models.build()
    if given is TWO:
      heads_record.check_restored(two)
      heads_record.check_start(f"{two}/model.ckpt-1")
  assert "heads of" not in log.text
  for check, said in (
      (lambda: heads_record.check_restored(two), f"the model in {two!r} was trained "
       "with .*2 heads of 6, by its operative_config.gin, but now it has 4 heads of 3"),
      (lambda: heads_record.check_start(f"{two}/model.ckpt-1"), "2 heads of 6, by the "
       "operative_config.gin beside it, but the model has 4 heads of 3; bind `")):
    with pytest.raises(ValueError, match=said):
      check()
  heads_record.check_start(f"{tmp_path}/model.ckpt-1")
  assert f"No operative_config.gin beside {tmp_path}/model.ckpt-1 tells" in log.text
  assert "4 heads of 3" in log.text.partition("they are taken for ")[2]


def test_the_command_refuses_other_heads_in_a_folder(trained):
  message = trained[0].train("two", *FOUR, "utils.run.train_steps = 2")
  assert "2 heads of 6" in message or "`num_heads` is 4, but 2 there" in message


def test_a_warm_start_needs_the_heads_of_the_checkpoint(trained):
  command, two = trained
  start = f"utils.run.init_checkpoint = '{two}/model.ckpt-1'"
  message = command.train("four", *FOUR, start, "utils.run.train_steps = 2",
                          "synthesizer_stack.attention = 'FR+V'")
  assert f"the checkpoint '{two}/model.ckpt-1' has " in message


@pytest.mark.parametrize("use", [
    lambda model, two: model("two").eval(TASK, checkpoint_steps=-1),
    lambda model, two: model("tuned").finetune(TASK, 1, two)])
def test_each_method_of_a_model_refuses_other_heads(trained, use):
  command, two = trained
  with pytest.raises(
      ValueError, match="2 heads of 6.* 4 heads of 3|`num_heads` is 4, but 2 there"):
    use(lambda name: command.model(name, FOUR, extra_gin_bindings=FOUR), two)


def test_layers_are_compared_by_class_and_scope_or_by_what_all_there_share():
  def heads(**layers):
    return {tuple(name.split("__")): {"num_heads": h, "key_value_size": 12 // h}
            for name, h in layers.items()}

  def differences(ours, theirs):
    return [name for name, _, _ in heads_record._differences(ours, theirs)]

  two = heads(encoder__SelfAttention=2, decoder__SelfAttention=2)
  assert not differences(heads(encoder__SyntheticAttention=2), two)
  assert differences(heads(encoder__SyntheticAttention=4), two) == [
      "encoder/SyntheticAttention"]
  low = {("encoder/low", "SelfAttention"): {"num_heads": 3, "key_value_size": 4}}
  assert differences(low, two) == ["encoder/low/SelfAttention"]
  assert not differences(low, {**two, **low})
  several = heads(encoder__A=2, encoder__B=3)
  assert not differences(heads(encoder__C=4), several)
