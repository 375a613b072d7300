"""Wrong parameters of layers and models, each with pieces of its message.

A row is a mistake that users make. The message names the parameter and its value, what
is needed and what to do. Mistakes of a command are in test_mistakes.py; those in files
of data are in test_own_files.py and test_own_text.py.
"""

import numpy as np
import pytest
from support import models
import synthesizer_mtf

# From names of cases to a notation, parameters, and pieces of the message, in order.
PARAMETERS = {
    "unknown part": ("R+X", {}, ["names 'R+X', but 'X' is not", "use one of"]),
    "two pluses": ("R++V", {}, ["names 'R++V', but '' is not", "as in \"R+V\""]),
    "lower case": ("r+v", {}, ["names 'r+v', but 'r' is not", "use one of"]),
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
    "factors of another tile": (
        "FD", {"max_length": 12, "tile_length": 6, "a": 4, "b": 3}, [
            "product must be `FactorizedDenseLogits.tile_length`, which is 6"]),
    "an entry of a list": (
        "DyConv", {"kernel_size": [3, 2.5]}, ["`DyConv.kernel_size` is 2.5 but must"]),
    "an empty list": ("LightConv", {"kernel_size": []}, [
        "`LightConv.kernel_size` is an empty list; give one number"]),
    "unknown pattern": ("Pattern", {"patterns": ["current", "prev"]}, [
        "`FixedPatterns.patterns` names 'prev', which is not a pattern; use some of "
        "current, previous, next"]),
    "no pattern": ("Pattern", {"patterns": []}, [
        "`FixedPatterns.patterns` is [] but must be a list"]),
    "a pattern alone": ("Pattern", {"patterns": "current"}, [
        "`FixedPatterns.patterns` is 'current' but must be a list"]),
    "more columns than a block has": (
        "SparseFixed", {"stride": 8, "columns": 9}, [
            "`SparseFixed.columns` is 9 but a block has only "
            "`SparseFixed.stride` = 8; lower the one or raise the other"]),
}

COUNT = "a positive integer"
KINDS_OF_BIAS = 'None, "bias" or "bias_shared"'
# From the parameter in the message to a notation, what is needed, and wrong values.
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
    "SyntheticAttention.positions": ("R", "'example' or 'row'", ["rows", None]),
    "SyntheticAttention.dropout_rate": (
        "V", "a number of at least 0 and below 1", [1.0, -0.1, "0.1"]),
    "SyntheticAttention.relative_attention_type": ("V", KINDS_OF_BIAS, ["contextual"]),
    "SyntheticAttention.relative_attention_num_buckets": (
        "V", "an integer of at least 4", [2]),
    "LightConv.kernel_size": ("LightConv", COUNT, [0]),
    "DyConv.num_heads": ("DyConv", COUNT, [0]),
    "DyConv.dropout_rate": ("DyConv", "a number of at least 0 and below 1", [1.0]),
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

# From names of cases to bindings of a tiny model with two blocks, and the message.
MODELS = {
    "more attentions than blocks": (
        ['encoder/synthesizer_stack.attention = ["R", "D", "V"]'],
        ["`encoder/synthesizer_stack.attention` has 3 entries, ['R', 'D', 'V'], "
         "but the stack has 2 blocks; give one entry for each block"]),
    "kernel sizes of more blocks": (
        ["synthesizer_stack.attention = 'LightConv'",
         "encoder/LightConv.kernel_size = [3, 7, 15]"],
        ["`encoder/LightConv.kernel_size` has 3 entries, [3, 7, 15], but the stack has "
         "2 blocks; give one entry for each block"]),
    "kernel sizes of no block": (
        ["encoder/make_layer_stack.layers = [@DyConv]", "DyConv.kernel_size = [3, 7]"],
        ["`DyConv.kernel_size` is [3, 7]", "only `synthesizer_stack` hands"]),
    "empty list": (['encoder/synthesizer_stack.attention = []'], [
        "`encoder/synthesizer_stack.attention` has 0 entries", "give one"]),
    "unknown attention in a list": (
        ['decoder/synthesizer_stack.attention = ["R", "W"]'],
        ["'W' is not an attention; use one of"]),
    "fast as text": ([
        'synthesizer_stack.attention = "R"',
        'synthesizer_stack.fast_cross_attention = "no"'], [
            "`synthesizer_stack.fast_cross_attention` is 'no' but must be True "
            "or False; change it"]),
    "embeddings as a number": (
        ['synthesizer_stack.attention = "R"', "synthesizer_vocabulary.fast = 3"],
        ["`synthesizer_vocabulary.fast` is 3 but must be True or False"]),
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
    "layer as text": (["encoder/make_layer_stack.layers = ['SelfAttention']"], [
        "`encoder/make_layer_stack.layers` is 'SelfAttention' but must have one layer "
        "in each entry; write it as [@SelfAttention, (\"ff\", {"]),
    "two layers in an entry": (
        ["make_layer_stack.layers = [('a', @SelfAttention, @DenseReluDense)]"],
        ["`make_layer_stack.layers` is ('a', ", "must have one layer in each entry"]),
    "arguments without a layer": (
        ["make_layer_stack.layers = [{'num_heads': 2}, @SelfAttention]"],
        ["is {'num_heads': 2} but must have one layer in each entry"]),
    "argument that a layer does not have": (
        ["make_layer_stack.layers = [({'num_head': 2}, @SelfAttention)]"],
        ["`make_layer_stack.layers` gives 'num_head' to SelfAttention, which has no "
         "such parameter; change it. Did you mean num_heads"]),
}


def check_message(message, pieces):
  """Checks that the message has all pieces, one after the other."""
  rest = message
  for piece in pieces:
    assert piece in rest, (piece, message)
    rest = rest.partition(piece)[2]


def message_of(notation, parameters):
  with pytest.raises(ValueError) as error:
    synthesizer_mtf.attention_layer(
        notation, **{"num_heads": 2, "key_value_size": 4, **parameters})
  return str(error.value)


def test_a_wrong_parameter_of_a_layer_is_named():
  for notation, parameters, pieces in PARAMETERS.values():
    check_message(message_of(notation, parameters), pieces)


def test_a_wrong_value_of_a_parameter_is_named_with_what_is_needed():
  for name, (notation, needed, values) in VALUES.items():
    for value in values:
      message = message_of(notation, {name.rpartition(".")[2]: value})
      check_message(message, [f"`{name}` is {value!r} but must be {needed};", "change"])


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
