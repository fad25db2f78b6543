"""What runs in processes of their own, where PyTorch seems to lack some operators, as another version may.

PyTorch's own modules find all operators. Others who ask `torch.ops` get the error of a PyTorch without them.
"""

HIDING = '''
import importlib, json, os, pkgutil, random, sys

import torch
import torch._decomp, torch._dynamo, torch._functorch.aot_autograd, torch._refs


class Hidden:
    """A namespace of operators, or an operator, without some of its attributes."""

    def __init__(self, inner, prefix, names):
        self.__dict__.update(inner=inner, prefix=prefix, names=names)

    def __getattr__(self, name):
        full = f"{self.prefix}.{name}"
        found = getattr(self.inner, name)
        if sys._getframe(1).f_globals.get("__name__", "").startswith("torch."):
            return found
        if full in self.names:
            raise AttributeError(f"no {full}", name=name, obj=self.inner)
        if any(hidden.startswith(full + ".") for hidden in self.names):
            return Hidden(found, full, self.names)
        return found

    def __call__(self, *args, **kwargs):
        return self.inner(*args, **kwargs)

    def overloads(self):
        return [n for n in self.inner.overloads() if f"{self.prefix}.{n}" not in self.names]


def hide(names):
    for namespace in ("aten", "prims"):
        setattr(torch.ops, namespace, Hidden(getattr(torch.ops, namespace), namespace, names))


def left_out():
    """The operators whose rows and kernels are left out."""
    from torch_pjrt.lowering import CORE
    from torch_pjrt.tensor.registration import hand_written

    return {*map(str, CORE.left_out), *map(str, hand_written.left_out())}


def modules():
    """All of ours that are installed."""
    names = []
    for package in ("torch_pjrt", "torch_pjrt_cpu", "torch_pjrt_gpu", "torch_pjrt_dynamo"):
        try:
            found = importlib.import_module(package)
        except ModuleNotFoundError:
            continue
        names += [m.name for m in pkgutil.walk_packages(found.__path__, package + ".")]
    return [n for n in names if "device_suite" not in n and not n.endswith("__main__")]


def in_child(job):
    """What `job` gives, as JSON, in a copy of this process."""
    reader, writer = os.pipe()
    if (child := os.fork()) == 0:
        os.close(reader)
        try:
            said = job()
        except BaseException as error:
            said = f"{type(error).__name__}: {error}"
        with os.fdopen(writer, "w") as pipe:
            json.dump(said, pipe)
        os._exit(0)
    os.close(writer)
    with os.fdopen(reader) as pipe:
        said = pipe.read()
    os.waitpid(child, 0)
    return json.loads(said) if said else "the process ended"
'''

# Every operator with a rule or a kernel.
NAMED = """
def named():
    from torch_pjrt.lowering import CORE
    from torch_pjrt.tensor.registration import hand_written

    ours = (op for op in (*CORE, *hand_written.kernels()) if op.namespace in ("aten", "prims"))
    return sorted(set(map(str, ours)))
"""

# Each set in turn: all modules can be imported, and the tables lack that set and no more.
IMPORTS = """
def imports(names, everything):
    hide(set(names))
    for module in modules():
        importlib.import_module(module)
    here = {*named(), *left_out()}
    lost = set(everything) - here
    there = set(named()) & set(names)
    return {"left out": sorted(left_out()), "there": sorted(there), "lost": sorted(lost)}
"""

# Losses of a small network that is trained, on the device and on the CPU; what was left out by then.
TRAINS = """
def train(device):
    torch.manual_seed(0)
    conv, head = torch.nn.Conv2d(1, 4, 3), torch.nn.Linear(4 * 6 * 6, 3)
    model = torch.nn.Sequential(conv, torch.nn.GELU(), torch.nn.Flatten(), head, torch.nn.LayerNorm(3))
    x, y = torch.randn(8, 1, 8, 8), torch.arange(8) % 3
    model, x, y = model.to(device), x.to(device), y.to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    losses = []
    for _ in range(3):
        loss = torch.nn.functional.cross_entropy(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        losses.append(loss.item())
    return losses


def trains(names):
    hide(set(names))
    import warnings

    warnings.simplefilter("ignore")  # what has no rule now runs on the CPU, and says so
    return {"device": train("pjrt"), "cpu": train("cpu"), "left out": sorted(left_out())}
"""
