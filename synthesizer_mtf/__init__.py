"""Synthesizers (arXiv:2005.00743) for Mesh TensorFlow and T5.

Importing this package registers its layers with gin and its tasks with seqio, and lets
gin find its files. It also lets Mesh and T5 use the attention that gin names;
`patches.py` lists the changes to them. So a stock `t5_mesh_transformer` needs only
`--module_import=synthesizer_mtf`. `__all__` has the names for users.

Dimensions, in all docstrings:
  batch: the examples; further batch dimensions, such as `beam`, may precede or
    follow it.
  heads: attention heads.
  length: positions of the queries; memory_length: positions of the keys.
  d_model: channels of the tokens.
  d_kv: channels of one head.
  parts: the synthesizing functions of a mixture.
"""

from synthesizer_mtf import compat
from synthesizer_mtf import stored_help

__version__ = "0.3.0.dev0"

stored_help.answer()
compat.apply()

from synthesizer_mtf import fast
from synthesizer_mtf import gin_files
from synthesizer_mtf import gin_past
from synthesizer_mtf import tasks
from synthesizer_mtf.attention.functions.base import Axes
from synthesizer_mtf.attention.functions.base import LengthTables
from synthesizer_mtf.attention.functions.base import SynthesizingFunction
from synthesizer_mtf.attention.layer import SyntheticAttention
from synthesizer_mtf.attention.logit_forms import ByOffset
from synthesizer_mtf.attention.logit_forms import ByPosition
from synthesizer_mtf.attention.logit_forms import InnerProduct
from synthesizer_mtf.attention.logit_forms import Near
from synthesizer_mtf.attention.logit_forms import Products
from synthesizer_mtf.attention.logit_forms import Table
from synthesizer_mtf.attention.notation import attention_layer
from synthesizer_mtf.attention.notation import register
from synthesizer_mtf.t5 import stack
from synthesizer_mtf.t5.classifier import DualEncoderClassifier
from synthesizer_mtf.t5.classifier import EncoderClassifier
from synthesizer_mtf.t5.stack import synthesizer_stack
from synthesizer_mtf.trainer.checkpoints import warm_start
from synthesizer_mtf.trainer.command import mtf_model
from synthesizer_mtf.trainer.command import run_checks
from synthesizer_mtf.trainer.command.mtf_model import MtfModel
from synthesizer_mtf.trainer.data import seed
from synthesizer_mtf.trainer.data import token_batches
from synthesizer_mtf.trainer.data.seed import train_with_seed
from synthesizer_mtf.trainer.model import get_estimator
from synthesizer_mtf.trainer.model import learning_rates
from synthesizer_mtf.trainer.model import step_export
from synthesizer_mtf.trainer.model.summaries import train_with_attention_summaries
from synthesizer_mtf.trainer.watching import notebook

__all__ = [
    "Axes",
    "ByOffset",
    "ByPosition",
    "DualEncoderClassifier",
    "EncoderClassifier",
    "InnerProduct",
    "LengthTables",
    "MtfModel",
    "Near",
    "Products",
    "SyntheticAttention",
    "SynthesizingFunction",
    "Table",
    "attention_layer",
    "register",
    "synthesizer_stack",
    "train_with_attention_summaries",
    "train_with_seed",
]

fast.attach()
gin_files.add_search_path()
gin_past.apply()
stack.apply()
get_estimator.apply()
mtf_model.apply()
notebook.apply()
