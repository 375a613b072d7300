"""`inspect_task`: reads a task as the trainer does, prints it and draws its lengths."""

from synthesizer_mtf.tools.base import packages

main = packages.main(__name__)
