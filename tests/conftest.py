"""For all tests: how long an example takes says nothing on machines that do other work too."""

from hypothesis import settings

settings.register_profile("unhurried", deadline=None)
settings.load_profile("unhurried")
