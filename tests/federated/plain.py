"""Client work written the plain way, one client at a time with modules and autograd: what the engine must equal."""

import copy

import numpy as np
import torch
from torch.nn.utils import parameters_to_vector, vector_to_parameters

from sordina.federated.population import arrange


def value(module, loss, root, x, y):
    mean = loss.value(module(x), y).mean()
    return mean.sqrt() if root else mean


def batches(population, client, order, steps):
    size = population.sizes[client : client + 1]
    start = int(population.starts[client])
    plan = arrange(size, np.array([client]), order, batch_size=steps.batch_size, epochs=steps.epochs, steps=steps.steps)
    for positions in plan:
        rows = start + positions[0][positions[0] >= 0]
        yield population.x[rows], population.y[rows]


def everything(population, client):
    rows = slice(int(population.starts[client]), int(population.starts[client] + population.sizes[client]))
    return population.x[rows], population.y[rows]


def train(module, loss, root, start, population, client, order, steps, extra=None):
    """``extra(theta)`` is added to every gradient."""
    module = copy.deepcopy(module)
    vector_to_parameters(start.clone(), module.parameters())
    optimizer = torch.optim.SGD(module.parameters(), lr=steps.learning_rate)
    taken = 0
    for x, y in batches(population, client, order, steps):
        optimizer.zero_grad()
        value(module, loss, root, x, y).backward()
        if extra is not None:
            theta = parameters_to_vector(module.parameters()).detach()
            added = extra(theta)
            place = 0
            for parameter in module.parameters():
                parameter.grad += added[place : place + parameter.numel()].view_as(parameter)
                place += parameter.numel()
        optimizer.step()
        taken += 1
    return parameters_to_vector(module.parameters()).detach(), taken


def local_gradient(module, loss, root, sent, population, client, order, steps, own):
    module = copy.deepcopy(module)
    vector_to_parameters(sent["model"].clone(), module.parameters())
    x, y = everything(population, client)
    if not len(x):
        return torch.zeros_like(sent["model"]), own
    value(module, loss, root, x, y).backward()
    return -torch.cat([p.grad.flatten() for p in module.parameters()]), own


def fedavg(module, loss, root, sent, population, client, order, steps, own, mu=0.0):
    centre = sent["model"]
    end, _ = train(module, loss, root, centre, population, client, order, steps, lambda theta: mu * (theta - centre))
    return end - centre, own


def fedprox(*args):
    return fedavg(*args, mu=0.7)


def scaffold(module, loss, root, sent, population, client, order, steps, own):
    c, centre = sent["control"], sent["model"]
    end, taken = train(module, loss, root, centre, population, client, order, steps, lambda theta: c - own)
    new = own - c + (centre - end) / (taken * steps.learning_rate) if taken else own
    return torch.cat([end - centre, steps.learning_rate * (new - own)]), new


def pick(module, loss, root, sent, population, client):
    x, y = everything(population, client)
    scores = []
    for hypothesis in sent["hypotheses"]:
        probe = copy.deepcopy(module)
        vector_to_parameters(hypothesis.clone(), probe.parameters())
        scores.append(float(value(probe, loss, root, x, y).detach()) if len(x) else 0.0)
    return int(np.argmin(scores))


def best_model(module, loss, root, sent, population, client, order, steps, own):
    start = sent["hypotheses"][pick(module, loss, root, sent, population, client)]
    return train(module, loss, root, start, population, client, order, steps)[0], own


def best_update(module, loss, root, sent, population, client, order, steps, own):
    j = pick(module, loss, root, sent, population, client)
    blocks = torch.zeros_like(sent["hypotheses"])
    start = sent["hypotheses"][j]
    blocks[j] = train(module, loss, root, start, population, client, order, steps)[0] - start
    return blocks.flatten(), own


def clipped_gradient(module, loss, root, sent, population, client, order, steps, own, clip=0.5, divisor=7.0):
    x, y = everything(population, client)
    total = torch.zeros_like(sent["model"])
    for row in range(len(x)):
        probe = copy.deepcopy(module)
        vector_to_parameters(sent["model"].clone(), probe.parameters())
        value(probe, loss, root, x[row : row + 1], y[row : row + 1]).backward()
        gradient = torch.cat([p.grad.flatten() for p in probe.parameters()])
        total += gradient * min(1.0, clip / max(float(gradient.norm()), 1e-300))
    return -total / divisor, own
