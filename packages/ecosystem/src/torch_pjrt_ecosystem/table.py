"""All that is changed in libraries, and all that is registered with them: one row each.

A row is applied when the module that it names is imported, by `install(module)`. What a library lets one
register is registered; the other rows each name the change in the library that would make them needless.
"""

from __future__ import annotations

import importlib.metadata
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Library:
    """A library, by the distributions that bring it, and the versions that the tests have run with."""

    distributions: tuple[str, ...]
    tested: tuple[str, ...]

    def installed(self) -> str | None:
        """Its version here."""
        for name in self.distributions:
            try:
                return importlib.metadata.version(name)
            except importlib.metadata.PackageNotFoundError:
                continue
        return None


LIBRARIES = {
    "accelerate": Library(("accelerate",), ("1.15.0",)),
    "transformers": Library(("transformers",), ("5.23.0", "5.24.0")),
    "lightning": Library(("lightning", "pytorch-lightning", "lightning-fabric"), ("2.6.6",)),
    "trl": Library(("trl",), ("1.16.0",)),
    "diffusers": Library(("diffusers",), ("0.42.1",)),
    "sentence_transformers": Library(("sentence-transformers",), ("6.2.0",)),
    "timm": Library(("timm",), ("1.0.31",)),
    "torchmetrics": Library(("torchmetrics",), ("1.9.0",)),
    "torchvision": Library(("torchvision",), ("0.28.0",)),
    "torch_geometric": Library(("torch-geometric",), ("2.8.1",)),
    "torch": Library(("torch",), ("2.13.0",)),
}


@dataclass(frozen=True, slots=True)
class Patch:
    """A row.

    name        `library.what`, for TORCH_PJRT_ECOSYSTEM.
    modules     at the import of each of these it is applied, with that module.
    install     `module:function` of this package that does it.
    changes     what is changed, or registered, in a few words.
    why         what happens without it: completes "without it ...".
    upstream    the change in the library that would make the row needless; "" for what is registered.
    """

    name: str
    modules: tuple[str, ...]
    install: str
    changes: str
    why: str
    upstream: str = ""

    @property
    def library(self) -> str:
        return self.name.partition(".")[0]


def _fabric(module: str) -> tuple[str, ...]:
    return f"lightning.fabric.{module}", f"lightning_fabric.{module}"


def _pytorch(module: str) -> tuple[str, ...]:
    return f"lightning.pytorch.{module}", f"pytorch_lightning.{module}"


PATCHES = (
    Patch(
        "accelerate.device",
        ("accelerate.state",),
        "for_accelerate.devices:install",
        "`PartialState.default_device` is `pjrt:0` where that is at hand",
        "models are moved to the CPU and trained there",
        "`default_device` asks `torch.accelerator`",
    ),
    Patch(
        "accelerate.memory",
        ("accelerate.utils.modeling",),
        "for_accelerate.memory:install",
        "`get_max_memory` has the free memory of `pjrt:0` where that is at hand",
        '`device_map="auto"` puts models on the CPU without a word',
        "`get_max_memory` asks `torch.accelerator`",
    ),
    Patch(
        "accelerate.processes",
        ("accelerate.state",),
        "for_accelerate.processes:install",
        "`PartialState._prepare_backend` gives the backend `pjrt` to several processes, or raises",
        "each process trains a model of its own, without a word",
        "the backend of `torch.distributed` for a device is asked of PyTorch",
    ),
    Patch(
        "accelerate.fsdp",
        ("accelerate.state", "accelerate.accelerator"),
        "for_accelerate.fsdp:install",
        "`AcceleratorState.__init__` raises where FSDP is asked for in one process, or FSDP1",
        "a model is trained unsharded, without a word",
        "Accelerate raises where it leaves a plugin of FSDP aside",
    ),
    Patch(
        "accelerate.launch",
        ("accelerate.commands.launch",),
        "for_accelerate.launch:install",
        "`accelerate launch --num_processes` starts as many",
        "one process is started, without a word",
        "`accelerate launch` counts `torch.accelerator`'s devices, or starts as many as it is told",
    ),
    Patch(
        "accelerate.ddp",
        ("accelerate.accelerator",),
        "for_accelerate.ddp:install",
        "`Accelerator.prepare_model` gives DDP the index of its device, 0",
        "processes copy their inputs or do not, and a step is three programs",
        "`device_ids` is the index of `Accelerator.device`",
    ),
    Patch(
        "accelerate.fp16",
        ("accelerate.accelerator",),
        "for_accelerate.fp16:install",
        "`pjrt` among the devices with float16 in `Accelerator.__init__`; `get_grad_scaler` gives "
        '`GradScaler("pjrt")`',
        "`mixed_precision='fp16'` is refused",
        "`torch.amp.is_autocast_available` in the place of the list; `GradScaler(device.type)`",
    ),
    Patch(
        "accelerate.skipped_steps",
        ("accelerate.optimizer",),
        "for_accelerate.skipped_steps:install",
        "`AcceleratedOptimizer.step_was_skipped` is what the device has found",
        "a scheduler also counts steps that float16 has skipped",
        "`step_was_skipped` by the scaler's `found_inf`",
    ),
    Patch(
        "accelerate.random_states",
        ("accelerate.accelerator",),
        "for_accelerate.random_states:install",
        "`save_state` and `load_state` keep the device's random state in a file of its own",
        "dropout goes on with other numbers after `load_state`",
        "random states by `torch.get_device_module()`",
    ),
    Patch(
        "accelerate.compile_backend",
        ("accelerate.utils.dataclasses",),
        "for_accelerate.compile_backend:install",
        '`DynamoBackend("PJRT")` exists',
        '`dynamo_backend="pjrt"` and `torch_compile_backend="pjrt"` are refused',
        "names of backends are those that `torch._dynamo.list_backends()` gives",
    ),
    Patch(
        "accelerate.placement",
        ("accelerate.accelerator",),
        "for_accelerate.placement:install",
        "`Accelerator.prepare_model` warns of a model that leaves `pjrt`",
        "a model on `pjrt` is moved to another device without a word",
        "a warning of its own",
    ),
    Patch(
        "transformers.device",
        ("transformers.training_args",),
        "for_transformers.device:install",
        "`TrainingArguments.device` is Accelerate's device, where that is `pjrt`",
        "`Trainer` moves models to the CPU and trains there",
        "`TrainingArguments.device` is always Accelerate's",
    ),
    Patch(
        "transformers.bf16",
        ("transformers.utils.import_utils",),
        "for_transformers.bf16:install",
        "`is_torch_bf16_gpu_available()` is true where `pjrt` is at hand",
        "`TrainingArguments(bf16=True)` is refused",
        "`torch.get_device_module().is_bf16_supported()` for any accelerator",
    ),
    Patch(
        "transformers.nan_filter",
        ("transformers.trainer",),
        "for_transformers.nan_filter:install",
        "`Trainer`'s `logging_nan_inf_filter` chooses on the device",
        "each step reads its loss, once or twice, and ends its program there",
        "`torch.where(isfinite(loss), loss, average)` in `Trainer._run_epoch`",
    ),
    Patch(
        "transformers.captured_steps",
        ("transformers.trainer",),
        "for_transformers.captured_steps:install",
        "with `TORCH_PJRT_CAPTURE_STEPS=1`, `Trainer.training_step` is a captured step",
        "the host records each forward and backward anew",
        "`Trainer` lets one wrap forward and backward as one function",
    ),
    Patch(
        "transformers.masks",
        ("transformers.masking_utils",),
        "for_transformers.masks:install",
        "masks of padding that came from the host, or that a model has made of ones, are known to be ones, "
        "or not, without a read",
        "each forward reads its mask, and ends a program there",
        "collators say whether they have padded",
    ),
    Patch(
        "transformers.positions",
        ("transformers.masking_utils",),
        "for_transformers.positions:install",
        "positions that a model has counted itself are known to be those of one sequence, without a read",
        "without a mask each forward reads its positions, and ends a program there",
        "models ask no positions that they have made themselves",
    ),
    Patch(
        "transformers.padding_warning",
        ("transformers.modeling_utils",),
        "for_transformers.padding_warning:install",
        "whether tokens without a mask are padded is looked at in the first forward of a model",
        "GPT-2 and some others read their tokens in each forward, for a warning that is given once",
        "the look ends once the warning was given, or after a few batches",
    ),
    Patch(
        "transformers.unknown_losses",
        ("transformers.modeling_utils",),
        "for_transformers.unknown_losses:install",
        "a compiled model without a loss by its class takes that for next tokens, without a warning",
        "the graph of GPT-2 with labels ends at the warning",
        "`loss_type` is settled, and warned of, where a model is made",
    ),
    Patch(
        "transformers.experts",
        ("transformers.integrations.moe",),
        "for_transformers.experts:install",
        "compiled layers of experts take `grouped_mm` on `pjrt`, whatever their dtype",
        "each compiled layer of experts in float32 reads where its groups end, and its backward runs on the "
        "CPU",
        '`_can_use_grouped_mm` asks for `"cpu"` and `"cuda"`, whose compilers lack it, alone',
    ),
    Patch(
        "transformers.dbrx",
        ("transformers.models.dbrx.modeling_dbrx",),
        "for_transformers.looped_experts:install_dbrx",
        "`DbrxExperts` multiply by groups on `pjrt`",
        "each layer reads which experts have tokens, and compiles programs for how many",
        "the model takes `transformers.integrations.moe`, as Mixtral does",
    ),
    Patch(
        "transformers.jetmoe",
        ("transformers.models.jetmoe.modeling_jetmoe",),
        "for_transformers.looped_experts:install_jetmoe",
        "experts of JetMoe multiply by groups on `pjrt`",
        "each layer reads which experts have tokens, and compiles programs for how many",
        "the model takes `transformers.integrations.moe`, as Mixtral does",
    ),
    Patch(
        "transformers.longcat_flash",
        ("transformers.models.longcat_flash.modeling_longcat_flash",),
        "for_transformers.looped_experts:install_longcat_flash",
        "experts of LongCat-Flash multiply by groups on `pjrt`",
        "each layer reads which experts have tokens, and compiles programs for how many",
        "the model takes `transformers.integrations.moe`, as Mixtral does",
    ),
    Patch(
        "transformers.step",
        ("transformers.models.step3p7.modeling_step3p7",),
        "for_transformers.looped_experts:install_step",
        "experts of Step-3.7 multiply by groups on `pjrt`",
        "each layer reads which experts have tokens, and compiles programs for how many",
        "the model takes `transformers.integrations.moe`, as Mixtral does",
    ),
    Patch(
        "transformers.switch",
        ("transformers.models.switch_transformers.modeling_switch_transformers",),
        "for_transformers.experts_of_modules:install_switch",
        "experts of Switch Transformers multiply by groups on `pjrt`; one without tokens has gradients of "
        "zeros",
        "each layer reads which experts have tokens, and compiles programs for how many",
        "weights of experts in one tensor, and `transformers.integrations.moe`",
    ),
    Patch(
        "transformers.nllb_moe",
        ("transformers.models.nllb_moe.modeling_nllb_moe",),
        "for_transformers.experts_of_modules:install_nllb",
        "experts of NLLB-MoE multiply by groups on `pjrt`; one without tokens has gradients of zeros",
        "each layer reads which experts have tokens, and compiles programs for how many",
        "weights of experts in one tensor, and `transformers.integrations.moe`",
    ),
    Patch(
        "transformers.random_states",
        ("transformers.trainer",),
        "for_transformers.random_states:install",
        "`Trainer`'s checkpoints keep the device's random state in a file of its own",
        "dropout goes on with other numbers after `resume_from_checkpoint`",
        "random states by `torch.get_device_module()`",
    ),
    Patch(
        "transformers.placement",
        ("transformers.trainer",),
        "for_transformers.placement:install",
        "`Trainer` warns of a model that leaves `pjrt`",
        "a model on `pjrt` is moved to another device without a word",
        "a warning of its own",
    ),
    Patch(
        "transformers.generate",
        ("transformers.generation.utils",),
        "for_transformers.generating:install",
        "`generate` keeps tokens, masks and positions on the host, has a static cache of a size in powers of "
        "two unless another is asked for, and fills prompts up",
        "each token is another length, for which a program is compiled",
        "a static cache with lengths that the host knows, and prefill of padded prompts",
    ),
    Patch(
        "transformers.pipelines",
        ("transformers.pipelines.base",),
        "for_transformers.pipelines:install",
        "a `Pipeline` runs on the device of its model, or on `pjrt:0` where that is at hand",
        "a model on `pjrt` is moved to the CPU without a word",
        "`Pipeline.device` asks `torch.accelerator`",
    ),
    Patch(
        "lightning.accelerator",
        (*_pytorch("accelerators"), *_fabric("accelerators")),
        "for_lightning.accelerator:install",
        "registers the accelerator `pjrt`",
        '`accelerator="pjrt"` is refused',
    ),
    Patch(
        "lightning.strategy",
        (*_pytorch("strategies"), *_fabric("strategies")),
        "for_lightning.strategy:install",
        "registers the strategy `pjrt`",
        '`strategy="pjrt"` is refused',
    ),
    Patch(
        "lightning.processes",
        (*_pytorch("strategies"), *_fabric("strategies")),
        "for_lightning.in_processes:install",
        "registers the strategies `pjrt_ddp` and `pjrt_fsdp`",
        "the strategies are refused, and `ddp` and `fsdp` know no collectives for the device",
    ),
    Patch(
        "lightning.spmd",
        (*_pytorch("strategies"), *_fabric("strategies")),
        "for_lightning.spmd:install",
        "registers the strategy `pjrt_spmd`",
        '`strategy="pjrt_spmd"` is refused',
    ),
    Patch(
        "lightning.auto",
        (*_pytorch("trainer.connectors.accelerator_connector"), *_fabric("connector")),
        "for_lightning.auto:install",
        '`accelerator="auto"` is `pjrt` where that is at hand, and `pjrt` has its strategy',
        'both `"auto"` and `"pjrt"` train on the CPU without a word',
        "`auto` and the strategy's device ask the registered accelerators",
    ),
    Patch(
        "lightning.precision",
        (*_pytorch("trainer.connectors.accelerator_connector"), *_fabric("connector")),
        "for_lightning.precision:install",
        'mixed precision is `autocast("pjrt")` and `GradScaler("pjrt")` with the accelerator `pjrt`',
        '`precision="bf16-mixed"` trains in float32, and "16-mixed" without a scaler',
        "`MixedPrecision` with the device type of the accelerator",
    ),
    Patch(
        "lightning.captured_steps",
        _pytorch("loops.optimization.automatic"),
        "for_lightning.captured_steps:install",
        "with `TORCH_PJRT_CAPTURE_STEPS=1`, `training_step` and its backward are a captured step",
        "the host records each forward and backward anew",
        "the loop lets one wrap forward and backward as one function",
    ),
    Patch(
        "lightning.progress_bar",
        (
            *_pytorch("trainer.connectors.logger_connector.result"),
            *_pytorch("trainer.trainer"),
            *_pytorch("callbacks.progress.progress_bar"),
        ),
        "for_lightning.progress_bar:install",
        "progress bars read what is logged with `prog_bar=True` twice a second, and at an epoch's end",
        "each step reads its loss for the progress bar",
        "values for progress bars are read when the bar is drawn",
    ),
    Patch(
        "lightning.sigterm",
        _pytorch("loops.training_epoch_loop"),
        "for_lightning.sigterm:install",
        "`Trainer` looks a batch later whether rank 0 got SIGTERM",
        "each step of several processes is two programs, and waits for a read",
        "a wait for the signal that does not read a tensor of the device",
    ),
    Patch(
        "lightning.random_states",
        _fabric("utilities.seed"),
        "for_lightning.random_states:install",
        "`isolate_rng` keeps the device's random state, too",
        "a validation that draws random numbers changes what training draws",
        "random states by `torch.get_device_module()`",
    ),
    Patch(
        "trl.metrics",
        tuple(f"trl.trainer.{name}_trainer" for name in ("sft", "dpo", "reward")),
        "for_trl.metrics:install",
        "what `SFTTrainer`, `DPOTrainer` and `RewardTrainer` log of a batch stays on the device until `log`",
        "each step reads 4 to 17 numbers, and runs a program for each",
        "`compute_loss` keeps tensors, and `log` makes numbers of them",
    ),
    Patch(
        "diffusers.steps",
        ("diffusers.schedulers.scheduling_utils",),
        "for_diffusers.steps:install",
        "schedulers keep their times on the host, too, and compute with those; `step` ends a program",
        "each step reads times, many of them, or all steps are one program, for each number of steps",
        "schedulers look up times by the index of the step",
    ),
    Patch(
        "sentence_transformers.device",
        ("sentence_transformers.util.environment",),
        "for_others.sentence_transformers_device:install",
        '`get_device_name()` is "pjrt" where that is at hand',
        "`SentenceTransformer` and `CrossEncoder` run on the CPU without a word",
        "`get_device_name` asks `torch.accelerator`",
    ),
    Patch(
        "timm.ema",
        ("timm.utils.model_ema",),
        "for_others.timm_ema:install",
        "`ModelEmaV3` draws its random numbers on the host",
        "it is refused: a device of torch-pjrt has no `torch.Generator` of its own",
        "a generator is made where `stochastic_rounding` needs one",
    ),
    Patch(
        "torchmetrics.bincount",
        ("torchmetrics.utilities.data",),
        "for_others.torchmetrics_bincount:install",
        "classes on `pjrt` are counted in as many counts as there are classes",
        "each count is read for its size: six reads and four programs a step of three metrics",
        "`_bincount` asks the device, and not whether `torch_xla` is installed",
    ),
    Patch(
        "torchvision.nms",
        ("torchvision.ops",),
        "for_torchvision.nms:install",
        "registers `torchvision::nms` for the device",
        "boxes go to the CPU and back",
    ),
    Patch(
        "torchvision.roi_align",
        ("torchvision.ops",),
        "for_torchvision.roi_align:install",
        "registers `torchvision::roi_align` and its backward for the device",
        "images go to the CPU and back",
    ),
    Patch(
        "torch_geometric.device",
        ("torch_geometric.device",),
        "for_others.torch_geometric_device:install",
        '`torch_geometric.device("auto")` is `pjrt:0` where that is at hand',
        'a model is put on the CPU, by `device("auto")`, without a word',
        "`device` asks `torch.accelerator`",
    ),
    Patch(
        "torch.fsdp_forwards",
        ("torch.distributed.fsdp._fully_shard._fsdp_param_group",),
        "for_others.fsdp_forwards:install",
        "`fully_shard` does not note the order of a forward without gradients",
        "the first step behind a validation gathers a group once more, and is compiled for that",
        "`_record_post_forward` notes nothing where no gradients are recorded",
    ),
)
