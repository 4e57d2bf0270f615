"""`saturnmq.errors`, the errors of the library, by that name for `import`, too."""

import sys

from saturnmq.runtime import errors
from saturnmq.runtime.errors import *  # noqa: F403 - for type checkers

sys.modules[__name__] = errors
