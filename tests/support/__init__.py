"""What several tests share.

pytest puts this folder's parent, `tests`, on Python's path. Importing the package below
makes mesh_tensorflow importable for the modules here.
"""

import synthesizer_mtf  # noqa: F401
from tensorflow.python.training import training_util

# A training writes its graph as text, which no test reads. It would take a tenth of the
# time of a tiny training, here and in the forks that run commands.
training_util.write_graph = lambda *_, **__: None
