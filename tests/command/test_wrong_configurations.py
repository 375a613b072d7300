"""Wrong configurations, each with what its one sentence must say.

A row is a mistake that users make. Its message has to name the parameter and
its value, what was needed and what to do, before the first step. Mistakes in
files of data are in test_own_text.py and test_tasks.py.
"""

import tempfile

from absl.testing import flagsaver
import numpy as np
import pytest
from support import models
import synthesizer_mtf
from synthesizer_mtf import launcher
import tensorflow.compat.v1 as tf

# By name: a notation, parameters, and pieces of the message, in order.
PARAMETERS = {
    "unknown part": ("R+X", {}, ["names 'R+X', but 'X' is not", "use one of"]),
    "nothing": ("", {}, ["names '', but '' is not an attention", "use one of"]),
    "nothing after a plus": ("R+", {}, ["names 'R+', but '' is not", "use"]),
    "two pluses": ("R++V", {}, ["names 'R++V', but '' is not", "as in \"R+V\""]),
    "lower case": ("r+v", {}, ["names 'r+v', but 'r' is not", "use one of"]),
    "comma": ("R,V", {}, ["'R,V' is not an attention", "with \"+\""]),
    "whole layer in a mixture": (
        "R+Linformer", {}, ["names 'R+Linformer', but 'Linformer' is a whole "
                            "layer", "name it alone"]),
    "parameter of another part": (
        "V", {"rank": 2}, ["'V' has no parameter `rank`; it has", "num_heads"]),
    "parameter of another layer": (
        "SparseStrided", {"columns": 4}, ["has no parameter `columns`; it has"]),
    "factors of another length": ("FD", {"max_length": 12, "a": 5, "b": 2}, [
        "`FactorizedDenseLogits.a` is 5 and `FactorizedDenseLogits.b` is 2 but "
        "their product must be `FactorizedDenseLogits.max_length`, which is 12",
        "change one of the three"]),
    "factor that does not divide": ("FD", {"max_length": 12, "a": 5}, [
        "`FactorizedDenseLogits.a` is 5", "which is 12; change"]),
    "factors of another tile": (
        "FD", {"max_length": 12, "tile_length": 6, "a": 4, "b": 3}, [
            "product must be `FactorizedDenseLogits.tile_length`, which is 6"]),
    "more columns than a block has": (
        "SparseFixed", {"stride": 8, "columns": 9}, [
            "`SparseFixed.columns` is 9 but a block has only "
            "`SparseFixed.stride` = 8; lower the one or raise the other"]),
}

COUNT = "a whole number of at least 1"
KINDS_OF_BIAS = 'None, "bias" or "bias_shared"'
# By the parameter that the message names: a notation, what is needed, wrong values.
VALUES = {
    "SyntheticAttention.num_heads": ("R", COUNT, [0, -2, "8", True]),
    "SyntheticAttention.key_value_size": ("D", COUNT, [2.5, None]),
    "RandomLogits.max_length": ("R", COUNT, [0]),
    "FixedRandomLogits.max_length": ("Fix", COUNT, ["512"]),
    "FactorizedRandomLogits.max_length": ("FR", COUNT, [512.0]),
    "DenseLogits.tile_length": ("D", COUNT, [-1]),
    "FactorizedRandomLogits.rank": ("FR", COUNT, [0]),
    "RandomLogits.stddev": ("R", "a number of at least 0", [-1.0]),
    "FactorizedRandomLogits.stddev": ("FR", "a number of at least 0", ["0.1"]),
    "DenseLogits.share_heads": ("D", "True or False", ["no"]),
    "SyntheticAttention.softmax": ("R", "True or False", ["no"]),
    "SyntheticAttention.packed": ("R", "None, True or False", ["no"]),
    "SyntheticAttention.dropout_rate": (
        "V", "a number of at least 0 and below 1", [1.0, -0.1, "0.1"]),
    "SyntheticAttention.relative_attention_type": ("V", KINDS_OF_BIAS, ["contextual"]),
    "SyntheticAttention.relative_attention_num_buckets": (
        "V", "a whole number of at least 4", [2]),
    "LightConv.kernel_size": ("LightConv", COUNT, [0]),
    "LightConv.use_bias": ("LightConv", "True or False", ["False"]),
    "DyConv.kernels": ("DyConv", "'per_head' or 'per_channel'", ["per_layer"]),
    "Linformer.rank": ("Linformer", COUNT, [0]),
    "Linformer.max_length": ("Linformer", COUNT, [0]),
    "Linformer.num_heads": ("Linformer", COUNT, [0]),
    "Linformer.share_kv": ("Linformer", "True or False", ["yes"]),
    "SparseFixed.stride": ("SparseFixed", COUNT, [0]),
    "SparseFixed.columns": ("SparseFixed", COUNT, [0]),
    "SparseFixed.relative_attention_type": (
        "SparseFixed", KINDS_OF_BIAS, ["contextual"]),
    "SparseStrided.stride": ("SparseStrided", COUNT, [2.5]),
    "SparseStrided.num_heads": ("SparseStrided", COUNT, [0]),
    "SparseStrided.pattern": (
        "SparseStrided", "one of 'merged', 'local', 'summary', 'alternate'", ["both"]),
}

# By name: gin's bindings of a tiny model with two blocks, and the message.
MODELS = {
    "more attentions than blocks": (
        ['encoder/synthesizer_stack.attention = ["R", "D", "V"]'],
        ["`encoder/synthesizer_stack.attention` has 3 entries, ['R', 'D', 'V'], "
         "but the stack has 2 blocks; give one entry for each block"]),
    "empty list": (['encoder/synthesizer_stack.attention = []'], [
        "`encoder/synthesizer_stack.attention` has 0 entries", "give one"]),
    "unknown attention": (['synthesizer_stack.attention = "Q+V"'], [
        "`synthesizer_stack.attention` names 'Q+V', but 'Q' is not"]),
    "unknown attention in a list": (
        ['decoder/synthesizer_stack.attention = ["R", "W"]'],
        ["'W' is not an attention; use one of"]),
    "no attention": (['synthesizer_stack.attention = ""'], [
        "'' is not an attention; use one of"]),
    "fast as text": ([
        'synthesizer_stack.attention = "R"',
        'synthesizer_stack.fast_cross_attention = "no"'], [
            "`synthesizer_stack.fast_cross_attention` is 'no' but must be True "
            "or False; change it"]),
    "number": (['synthesizer_stack.attention = 3'], [
        "`synthesizer_stack.attention` names 3, but 3 is not an attention"]),
    "part in the place of a layer": (
        ["synthesizer_stack.attention = @RandomLogits"],
        ["`synthesizer_stack.attention` is", "RandomLogits",
         "not an attention layer; name a notation such as \"R+V\""]),
    "layer of no parts": (
        ["synthesizer_stack.attention = @SyntheticAttention",
         "SyntheticAttention.synthesizers = []"],
        ["`SyntheticAttention.synthesizers` is empty", "name one"]),
    "parts without parentheses": (
        ["synthesizer_stack.attention = @SyntheticAttention",
         "SyntheticAttention.synthesizers = [@RandomLogits]"],
        ["`SyntheticAttention.synthesizers` has the entry",
         "write it as @RandomLogits()"]),
    "parts as text": (
        ["synthesizer_stack.attention = @SyntheticAttention",
         "SyntheticAttention.synthesizers = ['R', 'V']"],
        ["has the entry 'R'", "synthesizer_stack.attention = \"R+V\""]),
    "unknown weights": (
        ['synthesizer_stack.attention = "R+V"', "Mixture.weights = 'per_heads'"],
        ["`Mixture.weights` is 'per_heads' but must be \"per_head\", "
         "\"per_layer\" or \"sum\"; change `Mixture.weights`"]),
    "stack without self-attention": (
        ['synthesizer_stack.attention = "R"',
         "make_layer_stack.layers = [@DenseReluDense]",
         "encoder/make_layer_stack.layers = [@DenseReluDense]"],
        ["the stack has no SelfAttention to replace; name it in"]),
    "two classes of stacks": (
        ['synthesizer_stack.attention = "R"',
         "make_layer_stack.layer_stack_cls = @ReversibleLayerStack"],
        ["`make_layer_stack.layer_stack_cls` is",
         "bind `synthesizer_stack.layer_stack_cls = @"]),
    "short table": (
        ['synthesizer_stack.attention = "R"', "RandomLogits.max_length = 6"],
        ["`RandomLogits.max_length` is 6 but the sequence has length 7; raise "
         "`RandomLogits.max_length` to 7 or more"]),
    "Linformer in a decoder": (['synthesizer_stack.attention = "Linformer"'], [
        "is Linformer in a decoder, but", "choose another attention for "
        "`decoder/synthesizer_stack.attention`"]),
    "d_model as text": (["d_model = '16'"], [
        "the gin macro `d_model` is '16' but must be a whole number"]),
    "no d_ff": (["d_ff = 0"], ["the gin macro `d_ff` is 0 but must be"]),
    "layers below 0": (
        ["num_layers = -1"], ["the gin macro `num_layers` is -1 but"]),
    "no heads": (["num_heads = 0"], ["the gin macro `num_heads` is 0 but"]),
    "dropout of half a hundred": (["dropout_rate = 50"], [
        "the gin macro `dropout_rate` is 50 but must be a number of at least 0 "
        "and below 1"]),
}


def check_message(message, pieces):
  """Each piece must stand in the message, one after the other."""
  rest = message
  for piece in pieces:
    assert piece in rest, (piece, message)
    rest = rest.partition(piece)[2]


@pytest.mark.parametrize("name", PARAMETERS)
def test_a_wrong_parameter_of_a_layer_is_named(name):
  notation, parameters, pieces = PARAMETERS[name]
  with pytest.raises(ValueError) as error:
    synthesizer_mtf.attention_layer(
        notation, **{"num_heads": 2, "key_value_size": 4, **parameters})
  check_message(str(error.value), pieces)


@pytest.mark.parametrize("name", VALUES)
def test_a_wrong_value_of_a_parameter_is_named_with_what_is_needed(name):
  notation, needed, values = VALUES[name]
  for value in values:
    given = {"num_heads": 2, "key_value_size": 4, name.rpartition(".")[2]: value}
    with pytest.raises(ValueError) as error:
      synthesizer_mtf.attention_layer(notation, **given)
    check_message(
        str(error.value), [f"`{name}` is {value!r} but must be {needed};", "change"])


@pytest.mark.parametrize("name", MODELS)
def test_a_wrong_binding_of_a_model_is_named(name):
  bindings, pieces = MODELS[name]
  with pytest.raises(ValueError) as error:
    models.parse_gin([], models.TINY + bindings)
    m = models.Model()
    with m.tf_graph.as_default():
      ids = m.ids(np.ones((2, 7), int))
      m.model.call_simple(ids, ids, True, mode="train")
  check_message(str(error.value), pieces)


# By name: what differs from a tiny model's training on pairs of words, a binding or
# flags, and the message. {folder} holds the files that the fixture `trainer` writes.
RUNS = {
    "unknown task": ("MIXTURE_NAME = 'synth_text_pair'", ["with name 'synth_text_pair'",
        "(MIXTURE_NAME = 'synth_text_pair')", "Did you mean synth_text_pairs"]),
    "no vocabulary": (
        "synthesizer_mtf.tasks.vocabulary.sentencepiece_model = '/no/spm.model'", [
        "sentencepiece_model` is '/no/spm.model', which cannot be read",
        "name a SentencePiece model"]),
    "no such text": ("synthesizer_mtf.tasks.pairs.train = '/no/a.tsv'", [
        "`synthesizer_mtf.tasks.pairs.train` is '/no/a.tsv'", "no such file",
        "give paths or globs"]),
    "empty text": ("synthesizer_mtf.tasks.pairs.train = '{folder}/empty.tsv'", [
        "'{folder}/empty.tsv' holds no text; give a file with some"]),
    "no lengths": ("utils.run.sequence_length = None", [
        "`utils.run.sequence_length` is missing; bind it"]),
    "no length of the targets": ("utils.run.sequence_length = {'inputs': 16}", [
        "`utils.run.sequence_length` is {'inputs': 16}, without the targets; add"]),
    "length as text": ("utils.run.sequence_length = '16'", [
        "`utils.run.sequence_length` is '16' but must be a whole number",
        "write it as"]),
    "inputs of no length": ("utils.run.sequence_length = {'inputs': 0, 'targets': 9}", [
        "`utils.run.sequence_length` is {'inputs': 0, 'targets': 9} but"]),
    "file as the model's folder": ({"model_dir": "{folder}/empty.tsv"}, [
        "--model_dir is '{folder}/empty.tsv', which is a file; name a folder"]),
    "unknown gin file": ({"gin_file": ["attention/r+w.gin"]}, [
        "Unable to open file: attention/r+w.gin", "attention/r+v.gin"]),
    "gin file with a slip": ({"gin_file": ["{folder}/slip.gin"]}, [
        "{folder}/slip.gin: Unable to parse value", "num_heads = = 3"]),
    "binding with a slip": ("num_heads 3", [
        "--gin_param: Couldn't parse statement, expected", "num_heads 3"]),
    "unknown parameter in gin": ("RandomLogits.max_len = 3", [
        "'RandomLogits' doesn't have a parameter named 'max_len'",
        "Did you mean max_length"]),
    "unknown class in gin": ("RandomLogit.max_length = 3", [
        "No configurable matching 'RandomLogit'", "Did you mean RandomLogits"]),
    "unknown macro": ("SyntheticAttention.num_heads = %n_heads", [
        "No bindings specified for 'n_heads/gin.macro'; define it"]),
    "too few devices": ("utils.run.mesh_shape = 'model:2'", [
        "`utils.run.mesh_devices` names 1 devices, ['cpu:0'], but "
        "`utils.run.mesh_shape` is 'model:2' and needs 2; name one"]),
    "number of devices": ("utils.run.mesh_devices = 1", [
        "`utils.run.mesh_devices` is 1 but must be a list of names; write"]),
    "mesh without a colon": ("utils.run.mesh_shape = 'model2'", [
        "`utils.run.mesh_shape` is 'model2' but must name mesh dimensions and their "
        "sizes; write it as 'model:2,batch:4'"]),
    "layout without a colon": ("utils.run.layout_rules = 'heads'", [
        "`utils.run.layout_rules` is 'heads' but must be pairs", "write it as"]),
    "batch that does not divide": (
        {"gin_param": ["utils.run.mesh_shape = 'batch:2'",
            "utils.run.mesh_devices = ['cpu:0', 'cpu:0']",
            "utils.run.batch_size = 3"]}, [
        "`utils.run.batch_size` is 3 but `utils.run.layout_rules` splits batch over "
        "the 2 parts of the mesh dimension 'batch'; make it a multiple"]),
    "hidden layer that does not divide": (
        {"gin_param": ["utils.run.mesh_shape = 'model:2'",
            "utils.run.mesh_devices = ['cpu:0', 'cpu:0']", "d_ff = 25"]}, [
        "`d_ff` is 25 but `utils.run.layout_rules` splits d_ff over the 2 parts of the "
        "mesh dimension 'model'; make it a multiple of 2"]),
    "batch as text": ("utils.run.batch_size = '4'", [
        "`utils.run.batch_size` is '4' but must be a whole number", "change"]),
    "unknown unit of the batch": ("utils.run.batch_size = ('tokens', 64)", [
        "`utils.run.batch_size` is ('tokens', 64) but", "tokens_per_batch"]),
    "steps as text": ("utils.run.train_steps = '5'", [
        "`utils.run.train_steps` is '5' but must be a whole number of"]),
    "fewer steps than trained": ({"model_dir": "{folder}/trained"}, [
        "`utils.run.train_steps` is 3 but the model in --model_dir '{folder}/trained' "
        "has been trained for 7 steps; raise it"]),
    "fewer steps than before fine-tuning": (
        "utils.run.init_checkpoint = '{folder}/trained/model.ckpt-7'", [
        "`utils.run.train_steps` is 3 but `utils.run.init_checkpoint` is "
        "'{folder}/trained/model.ckpt-7', whose steps count; raise it above 7"]),
    "no checkpoint to begin with": ("utils.run.init_checkpoint = '/no/model.ckpt-1'", [
        "`utils.run.init_checkpoint` is '/no/model.ckpt-1', but there is no such "
        "checkpoint; name one"]),
    "unknown mode": ("utils.run.mode = 'evaluate'", [
        "`utils.run.mode` is 'evaluate' but must be one of train, perp"]),
    "training on the test split": ("utils.run.dataset_split = 'test'", [
        "`utils.run.dataset_split` is 'test' but a model trains on 'train'",
        "eval.gin"]),
    "evaluation of nothing": (
        {"gin_file": ["eval.gin"],
         "gin_param": ["utils.run.dataset_split = 'validation'"]}, [
        "--model_dir is '{folder}/new', where there is no checkpoint, but "
        "`utils.run.mode` is 'eval'; name the folder of a trained model"]),
    "perplexity of nothing": (
        {"gin_file": ["perplexity_eval.gin"],
         "gin_param": ["utils.run.dataset_split = 'validation'",
            "eval_checkpoint_step = -1"]}, [
        "no checkpoint, but `utils.run.mode` is 'perplexity_eval'; name"]),
    "evaluation on files that are not named": (
        {"model_dir": "{folder}/trained", "gin_file": ["eval.gin"],
         "gin_param": ["utils.run.dataset_split = 'test'"]}, [
        "`synthesizer_mtf.tasks.pairs.test` or the environment variable",
        "set it to the path"]),
    "perplexity of a split that is missing": (
        {"model_dir": "{folder}/trained", "gin_file": ["perplexity_eval.gin"],
         "gin_param": ["utils.run.dataset_split = 'validation'",
            "MIXTURE_NAME = 'synth_lm1b'"]}, [
        "`utils.run.dataset_split` is 'validation', but `MIXTURE_NAME` is "
        "'synth_lm1b', which has no such split; bind it to one of 'test', 'train'"]),
    "evaluation of a mixture on a split that is missing": (
        {"model_dir": "{folder}/trained", "gin_file": ["eval.gin"],
         "gin_param": ["utils.run.dataset_split = 'dev'",
            "MIXTURE_NAME = 'synth_super_glue'"]}, [
        "`utils.run.dataset_split` is 'dev', but `MIXTURE_NAME` is", "bind it"]),
    "export of nothing": ("utils.run.mode = 'export_infer'", [
        "no checkpoint, but `utils.run.mode` is 'export_infer'; name"]),
    "decoding of no file": (
        {"model_dir": "{folder}/trained",
         "gin_file": ["infer.gin", "greedy_decode.gin"],
         "gin_param": ["infer_checkpoint_step = 7"]}, [
        "`input_filename` is '/path/to/inputs', but there is no such file; name the "
        "one whose lines"]),
    "classes for an encoder-decoder": ("MIXTURE_NAME = 'synth_ag_news_encoder'", [
        "`MIXTURE_NAME` is 'synth_ag_news_encoder', whose targets are classes, but the "
        "model is no classifier; add --gin_file=classifier.gin"]),
    "texts for a classifier": ({"gin_file": ["classifier.gin"]}, [
        "`make_bitransformer.bitransformer_cls` is a classifier, but the targets of "
        "'synth_text_pairs' are text; leave out classifier.gin"]),
    "schedule as text": ("utils.run.learning_rate_schedule = 'constant'", [
        "`utils.run.learning_rate_schedule` is the text 'constant' but must be a "
        "function", "@"]),
    "optimizer as text": ("utils.run.optimizer = 'adafactor'", [
        "`utils.run.optimizer` is the text 'adafactor' but must be", "@"]),
    "unknown module": ({"module_import": ["my_tasks"]}, [
        "No module named 'my_tasks'; mend --module_import"]),
}

# Those that gin, seqio or Python finds: their last line also names a traceback.
OF_OTHERS = {
    "unknown task", "unknown gin file", "gin file with a slip", "binding with a slip",
    "unknown parameter in gin", "unknown class in gin", "unknown macro",
    "unknown module"}

FILES = ["dataset.gin", "models/laptop.gin", "attention/r+v.gin",
         "learning_rate_schedules/constant_0_001.gin", "cpu.gin"]


@pytest.fixture(scope="module")
def trainer(tmp_path_factory, sentencepiece_model, tfds_data_dir):
  """Returns the files for RUNS: a folder, and bindings of a tiny model."""
  folder = tmp_path_factory.mktemp("wrong")
  (folder / "pairs.tsv").write_text("one\teno\ntwo\towt\n")
  (folder / "empty.tsv").write_text("")
  (folder / "slip.gin").write_text("num_heads = = 3\n")
  (folder / "trained").mkdir()
  for suffix in ("index", "data-00000-of-00001"):
    (folder / "trained" / f"model.ckpt-7.{suffix}").write_text("")
  return folder, models.TINY + [
      "MIXTURE_NAME = 'synth_text_pairs'",
      "synthesizer_mtf.tasks.vocabulary.sentencepiece_model = "
      f"'{sentencepiece_model}'",
      f"synthesizer_mtf.tasks.pairs.train = '{folder}/pairs.tsv'",
      f"synthesizer_mtf.tasks.pairs.validation = '{folder}/pairs.tsv'",
      "utils.run.batch_size = 4", "utils.run.train_steps = 3",
      "utils.run.sequence_length = {'inputs': 16, 'targets': 12}"]


def run_flags(trainer, change):
  """The flags of a row: those of a run that works, and what differs."""
  folder, bindings = trainer
  change = {name: [v.replace("{folder}", str(folder)) for v in value]
            if isinstance(value, list)
            else value.replace("{folder}", str(folder))
            for name, value in change.items()}
  return {"model_dir": f"{folder}/new",
          **change,
          "gin_file": FILES + change.get("gin_file", []),
          "gin_param": bindings + change.get("gin_param", [])}


@pytest.mark.usefixtures("parsed_flags")
@pytest.mark.parametrize("name", RUNS)
def test_a_wrong_run_ends_in_one_sentence(name, trainer, tmp_path, monkeypatch):
  monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
  change, pieces = RUNS[name]
  change = {"gin_param": [change]} if isinstance(change, str) else change
  with flagsaver.flagsaver(**run_flags(trainer, change)), (
      tf.Graph().as_default()), pytest.raises(SystemExit) as end:
    launcher.main([])
  message = end.value.code
  assert message.startswith("synthesizer_mesh_transformer: ")
  assert (" (its traceback is in " in message) == (name in OF_OTHERS)
  check_message(
      message, [p.replace("{folder}", str(trainer[0])) for p in pieces])
