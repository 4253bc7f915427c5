"""Prints src/ps/testing/optimizer-goldens.ts: parameters after each of a few updates, computed elsewhere.

PyTorch's optimisers where they are the same function, else a direct transcription of the paper's algorithm in numpy.
Run: python3 optimizer-goldens.py > optimizer-goldens.ts   (torch 1.13, numpy 1.24)
"""
import json
import math

import numpy as np
import torch

start = [0.5, -1.25, 2.0, 0.0]
gradients = [[0.1, -0.2, 3.0, 0.004], [-0.3, 0.25, 2.5, -0.02], [0.05, 0.0, -4.0, 0.008], [0.7, -0.6, 0.125, 0.3]]


def with_torch(make, rescale=1.0, clip=None):
    w = torch.tensor(start, dtype=torch.float64, requires_grad=True)
    optimizer = make([w])
    after = []
    for t, g in enumerate(gradients, 1):
        grad = torch.tensor(g, dtype=torch.float64) * rescale
        w.grad = grad if clip is None else grad.clamp(-clip, clip)
        for group in optimizer.param_groups:
            # Kingma & Ba's epsilon-hat: torch divides the root of the variance by sqrt(1 - beta2^t) before it adds epsilon.
            if "eps_hat" in group:
                group["eps"] = group["eps_hat"] / math.sqrt(1 - group["betas"][1] ** t)
        optimizer.step()
        after.append(w.detach().tolist())
    return after


def adam(params):
    optimizer = torch.optim.Adam(params, lr=0.01, betas=(0.8, 0.95), weight_decay=0.01)
    optimizer.param_groups[0]["eps_hat"] = 1e-3
    return optimizer


def ftrl(alpha, beta, lambda1, lambda2):
    """Algorithm 1 of McMahan et al., KDD 2013; the weights come from z and n before each gradient, and after the last."""
    z, n = np.zeros(4), np.zeros(4)
    w = np.array(start)
    after = []
    for g in np.array(gradients):
        sigma = (np.sqrt(n + g * g) - np.sqrt(n)) / alpha
        z = z + g - sigma * w
        n = n + g * g
        w = np.where(np.abs(z) <= lambda1, 0.0, -(z - np.sign(z) * lambda1) / ((beta + np.sqrt(n)) / alpha + lambda2))
        after.append(w.tolist())
    return after


T = torch.optim
cases = [
    ({"name": "sgd", "learningRate": 0.1}, with_torch(lambda p: T.SGD(p, lr=0.1))),
    (
        {"name": "sgd", "learningRate": 0.1, "rescale": 0.5, "clip": 0.3, "weightDecay": 0.02},
        with_torch(lambda p: T.SGD(p, lr=0.1, weight_decay=0.02), 0.5, 0.3),
    ),
    ({"name": "momentum", "learningRate": 0.05}, with_torch(lambda p: T.SGD(p, lr=0.05, momentum=0.9))),
    (
        {"name": "momentum", "learningRate": 0.05, "momentum": 0.8, "variant": "nesterov", "weightDecay": 0.1, "rescale": 0.25},
        with_torch(lambda p: T.SGD(p, lr=0.05, momentum=0.8, nesterov=True, weight_decay=0.1), 0.25),
    ),
    ({"name": "adam", "learningRate": 0.01, "beta1": 0.8, "beta2": 0.95, "epsilon": 1e-3, "weightDecay": 0.01}, with_torch(adam)),
    (
        {"name": "adagrad", "learningRate": 0.2, "epsilon": 1e-4, "weightDecay": 0.03, "clip": 1},
        with_torch(lambda p: T.Adagrad(p, lr=0.2, eps=1e-4, weight_decay=0.03), 1.0, 1.0),
    ),
    ({"name": "ftrl", "learningRate": 0.1}, ftrl(0.1, 1.0, 0.01, 0.0)),
    ({"name": "ftrl", "learningRate": 0.3, "beta": 0.5, "lambda1": 0.1, "weightDecay": 0.2}, ftrl(0.3, 0.5, 0.1, 0.2)),
]

print("/** Parameters after each of a few updates in float64, printed by optimizer-goldens.py: PyTorch 1.13 where it has the same")
print(" *  function, else the paper's algorithm in numpy. */")
print("import type { OptimizerSpec } from '../optimizers/optimizer.ts';")
print("export const goldenStart: readonly number[] = " + json.dumps(start) + ";")
print("export const goldenGradients: readonly (readonly number[])[] = " + json.dumps(gradients) + ";")
print("export const goldens: readonly { readonly spec: OptimizerSpec; readonly after: readonly (readonly number[])[] }[] = [")
for spec, after in cases:
    print("{ spec: " + json.dumps(spec) + ", after: " + json.dumps(after) + " },")
print("];")
