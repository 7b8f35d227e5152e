"""More client work written the plain way; see plain.py. ``own`` is the client's state, a dictionary of flat vectors."""

import copy
import math

import torch
from torch.nn.utils import vector_to_parameters

from sordina.federated.population import RowOrder


def gradient(module, loss, root, theta, x, y, weights=None):
    """``grad F`` at ``theta``; with weights, ``(1/B) sum w_i grad f_i``."""
    if not len(x):
        return torch.zeros_like(theta)
    probe = copy.deepcopy(module)
    vector_to_parameters(theta.clone(), probe.parameters())
    rows = loss.value(probe(x), y)
    value = rows.mean() if weights is None else (rows * weights).mean()
    grads = torch.autograd.grad(value.sqrt() if root else value, list(probe.parameters()))
    return torch.cat([g.flatten() for g in grads])


def row_losses(module, loss, theta, x, y):
    probe = copy.deepcopy(module)
    vector_to_parameters(theta.clone(), probe.parameters())
    return loss.value(probe(x), y).detach()


def feddyn(plain, module, loss, root, sent, population, client, order, steps, own, alpha=0.3):
    centre, dual = sent["model"], own["dual"]
    end, _ = plain.train(
        module, loss, root, centre, population, client, order, steps, lambda t: alpha * (t - centre) - dual
    )
    return end - centre, {"dual": dual - alpha * (end - centre)}


def fsvrg(plain, module, loss, root, sent, population, client, order, steps, own):
    theta = sent["model"]
    if not int(sent["phase"]):
        return -steps.learning_rate * gradient(module, loss, root, theta, *plain.everything(population, client)), own
    batches = list(plain.batches(population, client, order, steps))
    mine = theta.clone()
    for x, y in batches:
        noisy = gradient(module, loss, root, mine, x, y) - gradient(module, loss, root, theta, x, y)
        mine = mine - steps.learning_rate / len(batches) * (noisy + sent["gradient"])
    return mine - theta, own


def near_mean(plain, module, loss, root, sent, population, client, order, steps, own, weight=0.8):
    mean = sent["model"]
    start = own["personal"] if own["met"] else mean
    end, _ = plain.train(module, loss, root, start, population, client, order, steps, lambda t: weight * (t - mean))
    return end - mean, {"personal": end, "met": torch.ones(1)}


def graph(plain, module, loss, root, sent, population, client, order, steps, own, weight=0.6):
    table, links = sent["table"], sent["graph"][client]
    start = own["personal"] if own["met"] else table[client]

    def pull(theta):
        return weight * sum(links[other] * (theta - table[other]) for other in range(len(table)))

    end, _ = plain.train(module, loss, root, start, population, client, order, steps, pull)
    return end - table[client], {"personal": end, "met": torch.ones(1)}


def meta(
    plain, module, loss, root, sent, population, client, order, steps, own, alpha=0.2, second=0x5EC0, third=0x7B1D
):
    theta = sent["model"].clone()
    streams = [
        plain.batches(population, client, RowOrder(order.seed + s, order.round), steps) for s in (0, second, third)
    ]
    for outer, inner, last in zip(*streams, strict=True):
        adapted = theta - alpha * gradient(module, loss, root, theta, *inner)
        outside = gradient(module, loss, root, adapted, *outer)
        far = 1e-2 * (1 + theta.norm()) / max(float(outside.norm()), 1e-12)
        ahead, behind = (gradient(module, loss, root, theta + s * far * outside, *last) for s in (1, -1))
        theta = theta - steps.learning_rate * (outside - alpha * (ahead - behind) / (2 * far))
    return theta - sent["model"], own


def mixture(plain, module, loss, root, sent, population, client, order, steps, own):
    hypotheses, shares = sent["hypotheses"], own["shares"]
    if not shares.sum():
        shares = torch.full_like(shares, 1 / len(shares))

    def responsibilities(x, y):
        table = torch.stack([row_losses(module, loss, theta, x, y) for theta in hypotheses], dim=1)
        weights = shares * torch.exp(-table)
        return weights / weights.sum(dim=1, keepdim=True)

    x, y = plain.everything(population, client)
    fresh = responsibilities(x, y).mean(dim=0) if len(x) else shares
    ends = [theta.clone() for theta in hypotheses]
    for x, y in plain.batches(population, client, order, steps):
        q = responsibilities(x, y)
        for m in range(len(ends)):
            ends[m] = ends[m] - steps.learning_rate * gradient(module, loss, root, ends[m], x, y, q[:, m])
    return (torch.stack(ends) - hypotheses).flatten(), {"shares": fresh}


def sub_network(plain, module, loss, root, sent, population, client, order, steps, own, target=0.5, pace=0.3):
    mask, model = 1 - own["pruned"], sent["model"]
    theta = model * mask
    for x, y in plain.batches(population, client, order, steps):
        theta = (theta - steps.learning_rate * gradient(module, loss, root, theta, x, y)) * mask
    pruned, first = own["pruned"].clone(), 0
    for parameter in module.parameters():
        length = parameter.numel()
        if parameter.dim() > 1:
            alive = [j for j in range(first, first + length) if not own["pruned"][j]]
            gone = length - len(alive)
            more = min(math.floor(pace * len(alive)), math.floor(target * length) - gone)
            for j in sorted(alive, key=lambda j: abs(float(theta[j])))[: max(0, more)]:
                pruned[j] = 1
        first += length
    return torch.cat([(1 - pruned) * (theta - model), steps.learning_rate * pruned]), {"pruned": pruned}


def zeros(work):
    return {name: torch.zeros(size, dtype=torch.float64) for name, size in work.state_sizes.items()}


def message(objective, clients, seed):
    generator = torch.Generator().manual_seed(seed)
    draw = lambda *shape: 0.5 * torch.randn(*shape, generator=generator, dtype=torch.float64)  # noqa: E731
    links = draw(clients, clients).abs() * (1 - torch.eye(clients, dtype=torch.float64))
    return {
        "model": draw(objective.size),
        "gradient": 0.1 * draw(objective.size),
        "phase": torch.tensor(1),
        "table": draw(clients, objective.size),
        "graph": (links + links.T) / 2,
        "hypotheses": draw(3, objective.size),
    }
