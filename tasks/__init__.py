"""Tasks of seqio, registered by importing this package.

Importing this package reads no data and uses no network. A task looks its vocabulary
and files up when it is first used, after gin has been parsed.
"""

from synthesizer_mtf.tasks import classification
from synthesizer_mtf.tasks import co_training
from synthesizer_mtf.tasks import glue
from synthesizer_mtf.tasks import language_modeling
from synthesizer_mtf.tasks import own_classes
from synthesizer_mtf.tasks import own_mixture
from synthesizer_mtf.tasks import own_text
from synthesizer_mtf.tasks import personachat
from synthesizer_mtf.tasks import questions
from synthesizer_mtf.tasks import summarization
from synthesizer_mtf.tasks import super_glue
from synthesizer_mtf.tasks import translation
from synthesizer_mtf.tasks import vocabulary
