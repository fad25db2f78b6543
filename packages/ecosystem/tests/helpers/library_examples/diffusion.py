"""diffusers: a UNet is trained as its tutorial does it, and images are sampled by pipeline and by loop."""

from __future__ import annotations

from typing import Any

import diffusers
import torch
from torch import nn

from library_examples import check_is_on, unseen
from small import Costs


def _unet() -> Any:
    torch.manual_seed(0)
    return diffusers.UNet2DModel(
        sample_size=8,
        layers_per_block=1,
        block_out_channels=(8, 16),
        down_block_types=("DownBlock2D", "AttnDownBlock2D"),
        up_block_types=("AttnUpBlock2D", "UpBlock2D"),
        norm_num_groups=4,
        attention_head_dim=8,
    )


def unseen_by_loss() -> frozenset[str]:
    """Parameters of the UNet that its images do not depend on."""

    def loss_of(model: Any) -> torch.Tensor:
        generator = torch.Generator().manual_seed(0)
        images = torch.randn(4, 3, 8, 8, generator=generator, dtype=torch.float64)
        times = torch.randint(0, 1000, (4,), generator=generator)
        return model(images, times, return_dict=False)[0].square().mean()

    return unseen(_unet(), loss_of)


def training(device: str, costs: Costs, dtype: torch.dtype = torch.float32) -> Any:
    """The loop of the tutorial: `Accelerator`, a schedule, clipping, and an average of the weights."""
    from accelerate import Accelerator
    from accelerate.state import AcceleratorState
    from diffusers.optimization import get_cosine_schedule_with_warmup
    from diffusers.training_utils import EMAModel

    AcceleratorState._reset_state(reset_partial_state=True)
    accelerator = Accelerator(cpu=device == "cpu")
    left_out = unseen_by_loss()
    model = _unet().to(dtype)
    noising = diffusers.DDPMScheduler(num_train_timesteps=1000)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    schedule = get_cosine_schedule_with_warmup(optimizer, 2, 10)
    generator = torch.Generator().manual_seed(0)
    loader: Any = torch.utils.data.DataLoader(
        torch.randn(32, 3, 8, 8, generator=generator).to(dtype),  # type: ignore[arg-type]
        4,
    )
    model, optimizer, loader, schedule = accelerator.prepare(model, optimizer, loader, schedule)
    check_is_on(model, device)
    average = EMAModel(model.parameters(), decay=0.9)
    losses = []
    for images in loader:
        costs.mark()
        noise = torch.randn(images.shape, generator=generator).to(device, dtype)
        times = torch.randint(0, 1000, (4,), generator=generator).to(device)
        predicted = model(noising.add_noise(images, noise, times), times, return_dict=False)[0]
        loss = nn.functional.mse_loss(predicted, noise)
        accelerator.backward(loss)
        accelerator.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        optimizer.zero_grad()
        average.step(model.parameters())
        losses.append(loss.detach())
    AcceleratorState._reset_state(reset_partial_state=True)
    names = [name for name, _ in model.named_parameters()]
    averages = zip(names, average.shadow_params, strict=True)
    return (
        [loss.item() for loss in losses],
        torch.cat([p.cpu().flatten() for name, p in averages if name not in left_out]),
    )


def ddpm(device: str, costs: Costs) -> Any:
    """The noise is the host's, by a generator. Costs are those of a step that adds noise."""
    pipeline = diffusers.DDPMPipeline(
        unet=_unet(), scheduler=_marking(diffusers.DDPMScheduler, costs)
    )
    pipeline.set_progress_bar_config(disable=True)
    pipeline = pipeline.to(device)
    check_is_on(pipeline.unet, device)
    given: Any = {"generator": torch.Generator().manual_seed(0), "output_type": "np"}
    images = pipeline(batch_size=2, num_inference_steps=8, **given).images
    costs.marks.pop()  # the last step adds no noise, and so is a program of its own
    return torch.tensor(images)


def euler(device: str, costs: Costs, dtype: torch.dtype = torch.float32) -> Any:
    """The loop that its documentation shows, with times on the device."""
    return _sampled(_marking(diffusers.EulerDiscreteScheduler, costs), device, dtype)


def flow(device: str, costs: Costs, dtype: torch.dtype = torch.float32) -> Any:
    """The same with a scheduler for flows."""
    return _sampled(_marking(diffusers.FlowMatchEulerDiscreteScheduler, costs), device, dtype)


def _marking(scheduler: Any, costs: Costs) -> Any:
    made = scheduler()
    step = made.step

    def marked(*args: Any, **kwargs: Any) -> Any:
        result = step(*args, **kwargs)
        costs.mark()
        return result

    marked.__signature__ = __import__("inspect").signature(step)  # type: ignore[attr-defined]
    made.step = marked
    return made


@torch.no_grad()
def _sampled(scheduler: Any, device: str, dtype: torch.dtype) -> Any:
    model = _unet().to(device, dtype).eval()
    scheduler.set_timesteps(8, device=device)
    check_is_on(scheduler.timesteps, device)
    noise = torch.randn(2, 3, 8, 8, generator=torch.Generator().manual_seed(0)).to(device, dtype)
    images = noise * getattr(scheduler, "init_noise_sigma", 1.0)
    for time in scheduler.timesteps:
        given = images
        if hasattr(scheduler, "scale_model_input"):
            given = scheduler.scale_model_input(images, time)
        images = scheduler.step(model(given, time).sample, time, images).prev_sample
    return images.cpu()
