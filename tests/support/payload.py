"""Pickled data that does what its writer wants when somebody unpickles it."""

import os


class Payload:
    """Unpickled, it makes the folder that is its marker."""

    def __init__(self, marker):
        self._marker = str(marker)

    def __reduce__(self):
        return os.mkdir, (self._marker,)
