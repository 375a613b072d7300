"""Tasks of one ability each, and those of Long Range Arena."""

from studies.tasks import ability_positions
from studies.tasks import ability_recall
from studies.tasks import ability_selection
from studies.tasks import lra_image
from studies.tasks import lra_listops
from studies.tasks import lra_pathfinder
from studies.tasks import lra_retrieval
from studies.tasks import lra_text
