"""PyTorch's DistributedDataParallel over gloo, as its tutorial writes it, started by torchrun.

    python -m torch.distributed.run --standalone --nproc-per-node 2 benchmarks/peers/pytorch_ddp.py

After pytorch.org/tutorials/intermediate/ddp_tutorial.html. torchrun gives each rank one thread.
"""

import torch
import torch.distributed as dist
from measure import BATCH, LEARNING_RATE, memory_mib, parser, report, synthetic_batch, train
from torch import nn
from torch.nn.parallel import DistributedDataParallel

DECAY = 0.004


def build() -> nn.Sequential:
    """The network of seed_cnn.py, operation by operation."""
    layers = nn.Sequential(
        _filled(nn.Conv2d(3, 64, 5, padding="same"), stddev=0.05, bias=0.0),
        nn.ReLU(),
        _pooling(),
        _normalisation(),
        _filled(nn.Conv2d(64, 64, 5, padding="same"), stddev=0.05, bias=0.1),
        nn.ReLU(),
        _normalisation(),
        _pooling(),
        nn.Flatten(),
        _filled(nn.Linear(2304, 384), stddev=0.04, bias=0.1),
        nn.ReLU(),
        _filled(nn.Linear(384, 192), stddev=0.04, bias=0.1),
        nn.ReLU(),
        _filled(nn.Linear(192, 10), stddev=1 / 192, bias=0.0),
    )
    assert sum(parameter.numel() for parameter in layers.parameters()) == 1_068_298
    return layers


def _pooling() -> nn.MaxPool2d:
    # TensorFlow's SAME pads 24 and 12 at their far end only, and so does ceil_mode.
    return nn.MaxPool2d(3, stride=2, ceil_mode=True)


def _normalisation() -> nn.LocalResponseNorm:
    # PyTorch divides alpha by the size: this is the tutorial's 0.001 / 9 on each of 9 channels.
    return nn.LocalResponseNorm(size=9, alpha=0.001, beta=0.75, k=1.0)


def _filled(layer: nn.Conv2d | nn.Linear, *, stddev: float, bias: float) -> nn.Module:
    assert layer.bias is not None
    nn.init.trunc_normal_(layer.weight, std=stddev, a=-2 * stddev, b=2 * stddev)
    nn.init.constant_(layer.bias, bias)
    return layer


def main() -> None:
    """Trains, and prints the rate of all ranks on rank 0."""
    arguments = parser(__doc__).parse_args()
    dist.init_process_group("gloo")
    rank, size = dist.get_rank(), dist.get_world_size()
    arrays = synthetic_batch(rank)
    images = torch.from_numpy(arrays[0]).permute(0, 3, 1, 2).contiguous()
    labels = torch.from_numpy(arrays[1])
    model = DistributedDataParallel(build())
    decayed = [model.module[9].weight, model.module[11].weight]
    others = [p for p in model.parameters() if not any(p is one for one in decayed)]
    # Weight decay as PyTorch does it, in the update: the gradient of 0.004 * l2_loss.
    optimizer = torch.optim.SGD(
        [{"params": decayed, "weight_decay": DECAY}, {"params": others}], lr=LEARNING_RATE
    )
    loss_fn = nn.CrossEntropyLoss()

    def step() -> torch.Tensor:
        optimizer.zero_grad()
        loss = loss_fn(model(images), labels)
        loss.backward()
        optimizer.step()
        return loss.detach()

    rate, loss = train(step, arguments)
    if rank == 0:
        decay = sum(DECAY * float(weight.detach().square().sum()) / 2 for weight in decayed)
        report(rate * BATCH * size, float(loss) + decay, [memory_mib()])
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
