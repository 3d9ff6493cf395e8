"""The ways a run ends early on purpose. Everything else that is raised is a defect of ours."""


class InputError(ValueError):
    """Bad input: one sentence that names the field or file, what was found and the way out (exit code 2)."""


class Diverged(RuntimeError):
    """A loss that is not finite: the sentence names the task and the step (exit code 3)."""


class StorageError(RuntimeError):
    """A disk that is full or fails: the sentence names the folder and what is still good there (exit code 1)."""


class WorkersLost(RuntimeError):
    """Processes of a cluster that die again and again: the sentence names the runs they had (exit code 1)."""
