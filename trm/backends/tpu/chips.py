"""TPU chips of this machine, found without torch_xla."""

import glob
import os
from pathlib import Path

from trm.errors import UserError

DEVICES = Path("/dev")
PCI = Path("/sys/bus/pci/devices")
GOOGLE = "0x1ae0"
TPU_DEVICE_IDS = ("0x0027", "0x005e", "0x0063", "0x006f", "0x0056", "0x0062", "0x0076")
"""PCI ids that torch_xla counts as chips (v2 and v3, v4, v5e, v6e, two for testing, v7x)."""
CHIPS_VARIABLE = "TRM_CHIPS_PER_HOST"


def tpu_files() -> list[str]:
    """Device files of the chips: /dev/accel0 and so on, or IOMMU groups if a TPU is on the PCI bus.

    The numbers matter: /dev/accel is a folder of other vendors' accelerators, and /dev/vfio has any device that is
    passed through to a virtual machine.
    """
    files = glob.glob(f"{DEVICES}/accel[0-9]*")
    return sorted(files or (glob.glob(f"{DEVICES}/vfio/[0-9]*") if _tpu_on_bus() else []))


def _tpu_on_bus() -> bool:
    for vendor in PCI.glob("*/vendor"):
        try:
            pair = vendor.read_text().strip(), vendor.with_name("device").read_text().strip()
        except OSError:
            continue
        if pair[0] == GOOGLE and pair[1] in TPU_DEVICE_IDS:
            return True
    return False


def tpu_wanted() -> bool:
    """Whether XLA uses TPU chips here: by PJRT_DEVICE if set, else if there are any."""
    chosen = os.environ.get("PJRT_DEVICE", "").upper()
    return chosen == "TPU" or (not chosen and bool(tpu_files()))


def planned_chips(processes: int) -> int | None:
    """Chips that a job of `processes` was planned for ($TRM_CHIPS_PER_HOST each); None: any device will do."""
    text = os.environ.get(CHIPS_VARIABLE)
    if not text:
        return None
    if not text.isdecimal() or not int(text):
        raise UserError(f"{CHIPS_VARIABLE}={text}: give the number of TPU chips per host, such as 4")
    return processes * int(text)
