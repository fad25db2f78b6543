"""Every module of PyTorch's `module_db` does on the device what it does on the CPU."""

from __future__ import annotations

import copy
import inspect
import io
from collections.abc import Iterator
from typing import Any

import torch
from torch.testing._internal.common_device_type import instantiate_device_type_tests
from torch.testing._internal.common_modules import ModuleErrorEnum, module_db, modules
from torch.testing._internal.common_utils import TestCase, run_tests
from torch.utils._pytree import tree_leaves

from torch_pjrt.testing.pytorch_suite.there_and_here import (
    gradients,
    moved,
    not_contiguous,
    seeded,
    twin,
)

DTYPES = (torch.float32, torch.float64)
RANDOM = (torch.nn.FractionalMaxPool2d, torch.nn.FractionalMaxPool3d)


def made(info: Any, dtype: torch.dtype, training: bool) -> Iterator[tuple[Any, Any, Any]]:
    """A module on the CPU, with its arguments, for each input of the database."""
    torch.manual_seed(0)
    for given in info.module_inputs_func(info, torch.device("cpu"), dtype, True, training):
        init, call = given.constructor_input, given.forward_input
        module = info.module_cls(*init.args, **init.kwargs).to(dtype).train(training)
        if info.is_lazy:
            with torch.no_grad():
                module(*call.args, **call.kwargs)
        yield module, call.args, call.kwargs


class TestModules(TestCase):
    @modules(module_db, allowed_dtypes=DTYPES)
    def test_forward_and_gradients(self, device, dtype, module_info, training):
        for module, args, kwargs in made(module_info, dtype, training):
            ours = twin(module, device)
            results = []
            for m, where in ((module, "cpu"), (ours, device)):
                a, k = moved((args, kwargs), where)
                out = seeded(m, *a, **k)
                results.append((out, gradients(out, (list(m.parameters()), a, k))))
            if module_info.module_cls in RANDOM:
                results = [[x.shape for x in tree_leaves(r)] for r in results]
            self.assertEqual(results[1], results[0], exact_device=False)

    @modules(module_db, allowed_dtypes=(torch.float32,))
    def test_made_on_the_device(self, device, dtype, module_info, training):
        for given in module_info.module_inputs_func(
            module_info, torch.device("cpu"), dtype, False, training
        ):
            init = given.constructor_input
            args, kwargs = moved((init.args, init.kwargs), device)
            if "device" in str(module_info.module_cls.__init__.__doc__) or _takes_device(
                module_info
            ):
                module = module_info.module_cls(*args, **kwargs, device=device, dtype=dtype)
                for x in (*module.parameters(), *module.buffers()):
                    self.assertEqual(x.device.type, torch.device(device).type)

    @modules(module_db, allowed_dtypes=(torch.float32,))
    def test_gaps_in_memory(self, device, dtype, module_info, training):
        for module, args, kwargs in made(module_info, dtype, training):
            ours = twin(module, device)
            a, k = moved((args, kwargs), device)
            gapped_a, gapped_k = not_contiguous((a, k))
            plain = seeded(copy.deepcopy(ours), *a, **k)
            gapped = seeded(ours, *gapped_a, **gapped_k)
            self.assertEqual(gapped, plain)

    @modules(module_db, allowed_dtypes=(torch.float32,))
    def test_saved_and_loaded(self, device, dtype, module_info, training):
        for module, _, _ in made(module_info, dtype, training):
            ours = twin(module, device)
            file = io.BytesIO()
            torch.save(ours.state_dict(), file)
            file.seek(0)
            on_cpu = copy.deepcopy(module)
            on_cpu.load_state_dict(torch.load(file, map_location="cpu"))
            self.assertEqual(on_cpu.state_dict(), module.state_dict())
            file.seek(0)
            ours.load_state_dict(torch.load(file, map_location=device))
            self.assertEqual(ours.to("cpu").state_dict(), module.state_dict())

    @modules([m for m in module_db if m.module_error_inputs_func], allowed_dtypes=(torch.float32,))
    def test_errors(self, device, dtype, module_info, training):
        for wrong in module_info.module_error_inputs_func(
            module_info, device=device, dtype=dtype, requires_grad=False, training=training
        ):
            given = wrong.module_error_input
            init, call = given.constructor_input, given.forward_input
            if wrong.error_on == ModuleErrorEnum.CONSTRUCTION_ERROR:
                with self.assertRaisesRegex(wrong.error_type, wrong.error_regex):  # pyright: ignore[reportOptionalContextManager]
                    module_info.module_cls(*init.args, **init.kwargs)
                continue
            module = module_info.module_cls(*init.args, **init.kwargs).to(device).train(training)
            with self.assertRaisesRegex(wrong.error_type, wrong.error_regex):  # pyright: ignore[reportOptionalContextManager]
                module(*call.args, **call.kwargs)


def _takes_device(info: Any) -> bool:
    return "device" in inspect.signature(info.module_cls.__init__).parameters


instantiate_device_type_tests(TestModules, globals())

if __name__ == "__main__":
    run_tests()
