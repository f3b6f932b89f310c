"""The flow-matching disentangling map: a closed-form linear flow plus a network that learns what is not Gaussian."""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn
from torch.nn.functional import linear, silu

from .linear import Covariance, FloatArray, principal_axes

SIGMA = 0.01
"""Width s of the path around a data point at t = 1."""
ROWS = 4096
"""Rows per chunk: the activations of a chunk stay in cache."""


class _Stage(NamedTuple):
    """The network at one time t, with t's embedding, the axes V and the scale m(t) folded into its ends."""

    first: Tensor
    first_bias: Tensor
    block: nn.Sequential
    last: Tensor
    last_bias: Tensor

    def slope(self, y: Tensor) -> Tensor:
        """dy/dt of the integrating-factor coordinates y (n, d)."""
        h = silu(linear(y, self.first, self.first_bias))
        return linear(silu(h + self.block(h)), self.last, self.last_bias)


class _Network(nn.Module):
    """(x, t) -> correction of the linear velocity; starts as exactly 0."""

    def __init__(self, d: int, hidden: int, generator: torch.Generator) -> None:
        super().__init__()
        self.time = nn.Sequential(_layer(1, 32, generator), nn.SiLU(), _layer(32, 32, generator))
        self.first = _layer(d + 32, hidden, generator)
        self.block = nn.Sequential(_layer(hidden, hidden, generator), nn.SiLU(), _layer(hidden, hidden, generator))
        self.last = _layer(hidden, d, generator)
        nn.init.zeros_(self.last.weight)
        nn.init.zeros_(self.last.bias)

    def forward(self, x: Tensor, t: Tensor) -> Tensor:
        h = silu(self.first(torch.cat([x, self.time(t)], dim=1)))
        out: Tensor = self.last(silu(h + self.block(h)))
        return out


def _layer(n_in: int, n_out: int, generator: torch.Generator) -> nn.Linear:
    """A linear layer that draws from `generator`: the usual constructor draws from torch's global state."""
    layer: nn.Linear = nn.utils.skip_init(nn.Linear, n_in, n_out)  # type: ignore[no-untyped-call]
    for weight in (layer.weight, layer.bias):
        nn.init.uniform_(weight, -(n_in**-0.5), n_in**-0.5, generator=generator)
    return layer


class FlowDisentangler:
    """Invertible map between correlated columns and independent normal latents, by flow matching.

    1. Path x_t = a x0 + t x1 with a = 1 - (1-s) t, s = 0.01, x0 ~ N(0, I), x1 ~ rows of X, independent.
    2. Velocity v = v_gauss + net. v_gauss is the closed form for Gaussian data with covariance
       V diag(w) V' [ours]; the network starts at 0, so ``n_steps=0`` is the linear method.
    3. The linear part is integrated exactly [ours]: with m_i(t) = sqrt(a^2 + t^2 w_i) and y = (x V) / m(t),
       dy/dt = (net((y m(t)) V', t) V) / m(t), solved by `ode_steps` fixed Runge-Kutta steps of order 4.

    Arrays in and out are float64; the network computes in float32. One evaluation of the map costs
    ``4 ode_steps`` network calls a row, O(d hidden + hidden^2) each.

    Parameters
    ----------
    covariance : {"auto", "ledoit_wolf", "empirical"} or array of shape (d, d), default="auto"
        See `principal_axes`.
    n_steps : int, default=1000
        Training steps (Adam, learning rate cosine to 0).
    hidden : int, default=64
    ode_steps : int, default=4
    batch_size : int, default=256
    learning_rate : float, default=2e-3
    dequantize_noise : float, default=0.05
        Sd of the noise that training adds to columns with fewer than 10 distinct values.
    random_state : int, default=0

    References
    ----------
    Flow-Disentangled Feature Importance, ICLR 2026 (OpenReview Fx8AtzGlTS). v_gauss, the integrating factor
    and the training budget are our reconstruction.
    """

    def __init__(
        self,
        *,
        covariance: Covariance = "auto",
        n_steps: int = 1000,
        hidden: int = 64,
        ode_steps: int = 4,
        batch_size: int = 256,
        learning_rate: float = 2e-3,
        dequantize_noise: float = 0.05,
        random_state: int = 0,
    ) -> None:
        self.covariance = covariance
        self.n_steps = n_steps
        self.hidden = hidden
        self.ode_steps = ode_steps
        self.batch_size = batch_size
        self.learning_rate = learning_rate
        self.dequantize_noise = dequantize_noise
        self.random_state = random_state

    def fit(self, X: FloatArray) -> FlowDisentangler:
        """Train on X (m, d), whose columns have mean 0 and variance about 1."""
        w, V = principal_axes(X, self.covariance)
        self._w, self._V = _tensor(w), _tensor(V)
        generator = torch.Generator().manual_seed(self.random_state)
        network = _Network(X.shape[1], self.hidden, generator)
        if self.n_steps:
            self._train(network, X, generator)
        times = np.linspace(0, 1, 2 * self.ode_steps + 1)
        self._stages = [self._stage(network, float(t)) for t in times] if self.n_steps else []
        return self

    def _train(self, network: _Network, X: FloatArray, generator: torch.Generator) -> None:
        data, w, V = _tensor(X), self._w, self._V
        noise = self.dequantize_noise * _tensor([len(np.unique(column)) < 10 for column in X.T])
        adam = torch.optim.Adam(network.parameters(), lr=self.learning_rate, fused=True)
        for step in range(self.n_steps):
            adam.param_groups[0]["lr"] = self.learning_rate * (1 + math.cos(math.pi * step / self.n_steps)) / 2
            # 1. a point on the path and the velocity that leads along it
            x1 = data[torch.randint(len(data), (self.batch_size,), generator=generator)]
            x1 = x1 + noise * torch.randn(x1.shape, generator=generator)
            x0 = torch.randn(x1.shape, generator=generator)
            t = torch.rand((self.batch_size, 1), generator=generator)
            a = 1 - (1 - SIGMA) * t
            x = a * x0 + t * x1
            # 2. the network learns what the linear velocity leaves over
            gain = (t * w - (1 - SIGMA) * a) / (a**2 + t**2 * w)
            rest = x1 - (1 - SIGMA) * x0 - ((x @ V) * gain) @ V.T
            loss = (network(x, t) - rest).square().mean()
            adam.zero_grad()
            loss.backward()
            adam.step()

    @torch.no_grad()
    def _stage(self, network: _Network, t: float) -> _Stage:
        """3. the network in the coordinates y, where t is one number for all rows."""
        m = self._scale(t)
        d = len(m)
        weight = network.first.weight
        embedded = weight[:, d:] @ network.time(torch.tensor([[t]]))[0]
        return _Stage(
            first=(weight[:, :d] @ self._V) * m,
            first_bias=network.first.bias + embedded,
            block=network.block.requires_grad_(False),
            last=(self._V.T @ network.last.weight) / m[:, None],
            last_bias=(network.last.bias @ self._V) / m,
        )

    def _scale(self, t: float) -> Tensor:
        a = 1 - (1 - SIGMA) * t
        return torch.sqrt(a**2 + t**2 * self._w)

    def _integrate(self, y: Tensor, stages: list[_Stage], dt: float) -> Tensor:
        """Runge-Kutta steps over `stages`, which hold the two ends and the middle of every step."""
        for begin, middle, end in zip(stages[:-1:2], stages[1::2], stages[2::2], strict=True):
            k1 = begin.slope(y)
            k2 = middle.slope(y + dt / 2 * k1)
            k3 = middle.slope(y + dt / 2 * k2)
            k4 = end.slope(y + dt * k3)
            y = y + dt / 6 * (k1 + 2 * k2 + 2 * k3 + k4)
        return y

    def _encode(self, x: Tensor) -> Tensor:
        return self._integrate((x @ self._V) / self._scale(1.0), self._stages[::-1], -1 / self.ode_steps) @ self._V.T

    def _decode(self, z: Tensor) -> Tensor:
        return (self._integrate(z @ self._V, self._stages, 1 / self.ode_steps) * self._scale(1.0)) @ self._V.T

    @torch.no_grad()
    def encode(self, X: FloatArray) -> FloatArray:
        """Latents Z (n, d) of rows X (n, d): the flow from t = 1 to 0."""
        return np.concatenate([self._encode(x).double().numpy() for x in torch.split(_tensor(X), ROWS)])

    @torch.no_grad()
    def decode(self, Z: FloatArray) -> FloatArray:
        """Rows X (n, d) of latents Z (n, d): the flow from t = 0 to 1."""
        return np.concatenate([self._decode(z).double().numpy() for z in torch.split(_tensor(Z), ROWS)])

    @torch.no_grad()
    def jacobian(self, Z: FloatArray) -> FloatArray:
        """dX_l/dZ_k at every row as (n, d, d): d forward-mode products through the solver, all rows at once."""
        d = Z.shape[1]

        def products(z: Tensor) -> npt.NDArray[np.float64]:
            def product(direction: Tensor) -> Tensor:
                tangent: Tensor = torch.func.jvp(self._decode, (z,), (direction.expand_as(z),))[1]
                return tangent

            columns: Tensor = torch.func.vmap(product)(torch.eye(d))
            return columns.permute(1, 2, 0).double().numpy()

        return np.concatenate([products(z) for z in torch.split(_tensor(Z), max(1, ROWS // d))])


def _tensor(values: npt.ArrayLike) -> Tensor:
    return torch.as_tensor(np.asarray(values, dtype=np.float32))
