"""Ray Train: unmodified scripts run in held seats, checkpoint before they lose them and resume at another size."""

from rayorch.adapters.ray_train.callback import GrantCallback
from rayorch.adapters.ray_train.contact import FENCED_EXIT_CODE, AttemptIds
from rayorch.adapters.ray_train.controller import AttemptStopped

__all__ = ["FENCED_EXIT_CODE", "AttemptIds", "AttemptStopped", "GrantCallback"]
