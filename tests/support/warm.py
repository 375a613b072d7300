"""Does once what each process of a test would do: processes fork one that imports this.

AutoGraph rewrites the functions that read data before TensorFlow traces them, which is
a quarter of a short training. It remembers them by their code.
"""

import importlib
import inspect
import types

from support import light_graphs
from synthesizer_mtf import launcher  # noqa: F401
from tensorflow.python.autograph.core import converter
from tensorflow.python.autograph.impl import api

# Functions by module, and functions in functions.
FUNCTIONS = {
    "dataclasses": ["is_dataclass"],
    "gin.config": ["_make_gin_wrapper.gin_wrapper"],
    "mesh_tensorflow.transformer.dataset": [
        "_pack_with_tf_ops.map_fn", "_pack_with_tf_ops.write_packed_example",
        "ensure_dataset_eos.<lambda>", "ensure_dataset_eos._ensure_eos",
        "pack_dataset.<lambda>", "pack_dataset.my_fn",
        "trim_and_pad_dataset.<lambda>", "trim_and_pad_dataset._trim_and_pad"],
    "mesh_tensorflow.transformer.utils": ["_filter_features"],
    "seqio.preprocessors": [
        "_append_to_innermost_axis", "append_eos_after_trim_impl", "tokenize_impl"],
    "seqio.utils": [
        "_GrainMapFn.__call__.<lambda>", "_GrainMapFn._map_fn_with_special_kwargs",
        "add_kwargs_to_transform", "trim_dataset.<lambda>", "trim_dataset._trim"],
    "seqio.vocabularies": [
        "SentencePieceVocabulary._encode_tf", "Vocabulary.encode_tf"],
    "synthesizer_mtf.checks": ["called"],
    "synthesizer_mtf.tasks.cut_examples": ["_print", "report.count"],
    "synthesizer_mtf.tasks.text_source": ["FilesDataSource.get_dataset.<lambda>"],
    "synthesizer_mtf.tasks.vocabulary": ["Pieces.encode_tf"],
    "t5.data.preprocessors": [
        "random_spans_noise_mask", "reduce_concat_tokens.<lambda>",
        "select_random_chunk.<lambda>", "single_example_denoise",
        "single_example_select_random_chunk", "split_tokens.<lambda>",
        "split_tokens._split_tokens",
        "split_tokens._strip_padding_and_merge_passthrough"],
    "t5.models.mesh_transformer": ["mesh_train_dataset_fn._filter_features"],
    "tensorflow_text.python.ops.sentencepiece_tokenizer": [
        "SentencepieceTokenizer.tokenize"],
}


def convert(module: str, path: str) -> None:
  """Rewrites a function, or those of this name, as TensorFlow does when it traces it.

  Other releases of seqio and T5 may lack some of the functions.
  """
  scope = importlib.import_module(module)
  places = [scope]
  for name in path.split("."):
    places = [inner for place in places for inner in _named(place, name)]
  context = converter.ProgramContext(converter.ConversionOptions(
      recursive=True, optional_features=None))
  for code in places:
    cells = tuple(types.CellType(None) for _ in code.co_freevars)
    api._TRANSPILER.transform(
        types.FunctionType(code, vars(scope), code.co_name, None, cells), context)


def _named(place, name):
  """The classes and the code in a module, in a class, or in a function's code."""
  if isinstance(place, types.CodeType):
    return [inner for inner in place.co_consts
            if isinstance(inner, types.CodeType) and inner.co_name == name]
  inner = inspect.unwrap(getattr(place, name, None))
  return [getattr(inner, "__code__", inner)] if inner else []


light_graphs.few_operations()
for _module, _paths in FUNCTIONS.items():
  for _path in _paths:
    convert(_module, _path)
