"""The devices that a plan is made for: those of this machine, or of a TPU topology that is not here."""

import importlib.util
import os
from collections.abc import Sequence

import jax

from retrieval import extras
from retrieval.errors import UserError, unknown_name
from retrieval.training import chips, sharding

# libtpu would ask the cloud about this machine, print errors where nobody answers, and let one process in at a time.
_NO_TPU_HERE = {
    "TPU_SKIP_MDS_QUERY": "1",
    "TPU_ACCELERATOR_TYPE": "v3-8",
    "TPU_WORKER_HOSTNAMES": "localhost",
    "ALLOW_MULTIPLE_LIBTPU_LOAD": "1",
}


def of_topology(topology: str) -> Sequence[sharding.Device]:
    """The devices of a TPU topology such as 'v5e:4x8', for compilation alone; of '' the devices of this machine.

    Raises:
      UserError: there is no such chip or topology, or libtpu is not installed.
    """
    if not topology:
        return jax.devices()
    name = topology.partition(":")[0]
    chip = next((chip for chip in chips.CHIPS if chip.name == name and chip.is_tpu), None)
    if chip is None:
        raise unknown_name("chip in config.plan.topology", name, [chip.name for chip in chips.CHIPS if chip.is_tpu])
    if not (importlib.util.find_spec("libtpu") or os.environ.get("TPU_LIBRARY_PATH")):
        raise UserError(
            f"config.plan.topology={topology} needs the package libtpu, which compiles for TPUs without one: "
            f"{extras.install('plan')} (or pip install libtpu==0.0.52)"
        )
    for variable, value in _NO_TPU_HERE.items():
        os.environ.setdefault(variable, value)
    jax.config.update("jax_platforms", "cpu")  # no search for a TPU here
    from jax.experimental import topologies

    options = {"chip_config_name": "megacore"} if name == "v4" else {}  # both cores as one device, as a v4 runs
    try:
        return topologies.get_topology_desc(topology, "tpu", **options).devices
    except jax.errors.JaxRuntimeError as error:
        raise UserError(
            f"config.plan.topology={topology}: {error}; chips have to be as they are sold, such as "
            f"{name}:{'2x2x4' if name in ('v4', 'v5p') else '4x8'}"
        ) from error


def of_a_host(topology: str, devices: Sequence[sharding.Device]) -> Sequence[sharding.Device]:
    """The devices of the first host; of a topology, those of one as large as a host.

    The compiler of some chips (v5e) refuses a program for a part of a topology.
    """
    own = [device for device in devices if device.process_index == devices[0].process_index]
    if not topology or len(own) == len(devices):
        return own
    chip, _, sizes = topology.partition(":")
    sides = (len({device.coords[axis] for device in own}) for axis in range(len(sizes.split("x"))))
    return of_topology(f"{chip}:{'x'.join(map(str, sides))}")


def platform(device: sharding.Device) -> str:
    """The name by which JAX lowers a program for a device."""
    return "cuda" if device.platform == "gpu" else device.platform
