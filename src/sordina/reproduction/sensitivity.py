"""What the clipping threshold trades off: figures 3.1 and 3.2 of 000."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor, nn

from sordina import datasets, models, random
from sordina.clipping import Fixed
from sordina.clipping.policy import side_query
from sordina.gradients import Engine
from sordina.privacy import Budget
from sordina.queries import Tape, VectorQuery
from sordina.reproduction.experiment import ExperimentFindings, Job, Panel, PlottedCurve, Value
from sordina.sampling import Poisson
from sordina.tuning.plan import TrainingSchedule, make_scheme
from sordina.tuning.selection import Selection, SelectionKind
from sordina.tuning.space import log_spaced


def cosine(job: Job) -> ExperimentFindings:
    """Figure 3.1: how well the sanitised gradient points, as a function of C, at several iterations of training.

    A network is trained by plain SGD. At the chosen steps the clipped, averaged and noised gradient of the batch is
    compared with the batch's true average gradient, over several draws of the noise.
    """
    given = job.settings
    data = datasets.load(given["dataset"])
    model = models.build_for(data, given.get("model"), seed=0)
    optimizer = torch.optim.SGD(model.parameters(), lr=given["learning_rate"])
    sampler = Poisson(given["batch_size"], len(data.train))
    rng = random.seeded(given.get("seed", 0))
    thresholds = log_spaced(given["lowest"], given["highest"], given["thresholds"])
    curves = []
    x, y = data.train.tensors
    for step in range(1, max(given["iterations"]) + 1):
        rows = torch.from_numpy(sampler.draw(len(x), rng))
        with Engine(model) as engine:
            losses = nn.functional.cross_entropy(model(x[rows]), y[rows], reduction="none")
            tape = engine.record(losses)
            (total,) = tape.contract([VectorQuery(torch.ones(len(rows)))])
            if step in given["iterations"]:
                means = _cosines(tape, total, thresholds, given["noise_multiplier"], given["draws"], rng)
                curves.append(PlottedCurve(f"t = {step}", thresholds, means))
            _descend(engine, optimizer, total / sampler.expected_batch_size)
    panel = Panel("Figure 3.1", "clipping threshold C", "cosine with the true gradient", curves, log_x=True)
    values = [_peak(curve) for curve in curves]
    remarks = [
        f"Noise multiplier {given['noise_multiplier']:g}, mean of {given['draws']} draws, batch {given['batch_size']}, "
        f"plain SGD at rate {given['learning_rate']:g}.",
        "The thesis shows curves without numbers and concludes that every iteration has a prominent best threshold.",
    ]
    return ExperimentFindings(data.source, values, [panel], remarks)


def _descend(engine: Engine, optimizer: torch.optim.Optimizer, gradient: Tensor) -> None:
    parts = engine.unflatten(gradient)
    for name, parameter in engine.model.named_parameters():
        parameter.grad = parts[name].view_as(parameter)
    optimizer.step()


def _cosines(
    tape: Tape, total: Tensor, thresholds: Sequence[float], noise: float, draws: int, rng: np.random.Generator
) -> list[float]:
    """``E cos(sum clip(g_i, C) + nu C z, sum g_i)`` over z; one set of draws serves all thresholds."""
    noises = torch.from_numpy(rng.standard_normal((draws, len(total)), dtype=np.float32))
    true = total / total.norm()
    along, sizes = noises @ true, noises.square().sum(1)
    means = []
    for threshold in thresholds:
        (clipped,) = tape.contract(Fixed(threshold).ask(tape.scalars(), None))
        scale = noise * threshold
        lengths = (clipped.square().sum() + 2 * scale * (noises @ clipped) + scale**2 * sizes).sqrt()
        means.append(float(((clipped @ true + scale * along) / lengths).mean()))
    return means


def _peak(curve: PlottedCurve) -> Value:
    best = int(np.argmax(curve.y))
    inside = "inside the range" if 0 < best < len(curve.y) - 1 else "at the end of the range"
    note = f"best C = {curve.x[best]:.3g}, {inside}; {curve.y[0]:.3f} at the lowest C, {curve.y[-1]:.3f} at the highest"
    return Value({"iteration": curve.label, "quantity": "largest cosine"}, float(curve.y[best]), note=note)


def pareto(job: Job) -> ExperimentFindings:
    """Figure 3.2: pairs of noise multipliers for the gradient and for its derivative that cost the same (Prop. 1)."""
    given = job.settings
    schedule = TrainingSchedule(Poisson(given["batch_size"], given["population"]), given["steps"])
    selection = Selection(SelectionKind.TEST_SET)
    curves, values = [], []
    chosen: list[tuple[float, float]] = []
    for epsilon in given["epsilons"]:
        budget = Budget(epsilon, given["delta"])
        noise = make_scheme([schedule] * given["runs"], budget, selection, method="composition").noise_multiplier
        front = [side_query(noise, inflation) for inflation in log_spaced(1e-3, 3.0, 60)]
        curves.append(PlottedCurve(f"epsilon {epsilon:g}", [one[0] for one in front], [one[1] for one in front]))
        gradient, derivative = side_query(noise, given["inflation"])
        chosen.append((gradient, derivative))
        values.append(
            Value(
                {"epsilon": f"{epsilon:g}", "quantity": "nu_q / nu at 1 % more noise on the gradient"},
                derivative / noise,
                reference=given["ratio"],
                note=f"nu = {noise:.4f}, nu_g = {gradient:.4f}, nu_q = {derivative:.4f}",
            )
        )
    x, y = zip(*sorted(chosen), strict=True)
    curves.append(PlottedCurve("chosen", x, y, reference=True))
    panel = Panel("Figure 3.2", "noise multiplier of the gradient", "of its derivative", curves, log_y=True)
    remark = (
        f"{given['runs']} runs of {given['steps']} steps at batch {given['batch_size']} of {given['population']}, "
        f"delta {given['delta']:g}, composed by PLD."
    )
    return ExperimentFindings("none: accounting only", values, [panel], [remark])
