"""What the paper claims, and the number that must come out here. Thresholds were fixed before any run."""

from __future__ import annotations

from bakeoff.arena.types import Claim

_POWER = "much higher power than removal and conditional permutation under correlation"
_TYPE_I = "the Type I error is controlled"
_ANY = "works for any distribution, where linear decorrelation fails"
_STUDY = "64 draws of 300 + 300 rows, two pairs with correlation .9, forest of 40 trees"
_SHAPE = "X2 = X1^2 + .3 e, f = X2, 1200 + 300 rows, 1500 steps, 3 draws"

CLAIMS = (
    Claim(
        _POWER,
        "FDFI finds at least .05 more than LOCO on the table (direction expected; the interval may not show it)",
        "abstract",
        metric="net_discoveries",
        contender="fdfi",
        rival="LOCO",
        margin=0.05,
    ),
    Claim(
        _POWER,
        "FDFI finds at least .05 more than CFI on the table (direction expected; the interval may not show it)",
        "abstract",
        metric="net_discoveries",
        contender="fdfi",
        rival="CFI",
        margin=0.05,
    ),
    Claim(
        _POWER,
        f"power at least .2 above LOCO: {_STUDY}",
        "abstract",
        metric="over_loco",
        margin=0.2,
        check="power",
        seeds=64,
    ),
    Claim(
        _POWER,
        f"power at least .1 above CFI: {_STUDY}",
        "abstract",
        metric="over_cfi",
        margin=0.1,
        check="power",
        seeds=64,
    ),
    Claim(
        _TYPE_I,
        "at most .119 (.05 + 2 sd) of the 40 decoys of the default table, 8 splits",
        "abstract",
        metric="decoys_rejected",
        margin=0.119,
        check="table_decoys",
        better="lower",
        seeds=8,
    ),
    Claim(
        _TYPE_I,
        "at most .081 (.05 + 2 sd) of 192 tests of null columns, predictor known, linear map",
        "abstract",
        metric="nulls_rejected",
        margin=0.081,
        check="nulls_linear",
        better="lower",
        seeds=8,
    ),
    Claim(
        _TYPE_I,
        "at most .139 (.05 + 2 sd) of 24 tests of null columns, predictor known, flow of 400 steps",
        "abstract",
        metric="nulls_rejected",
        margin=0.139,
        check="nulls_flow",
        better="lower",
        seeds=8,
    ),
    Claim(
        "not tied to squared loss",
        "log loss of sigmoid(2 X1), corr(X1, X2) = .9: p of X1 and X2 below .01 (300 + 300 rows, 4 draws)",
        "abstract",
        metric="p_active",
        margin=0.01,
        check="log_loss",
        better="lower",
        seeds=4,
    ),
    Claim(
        "not tied to squared loss",
        "the same: the null column X3 is not rejected at .05",
        "abstract",
        metric="p_null",
        margin=0.05,
        check="log_loss",
        seeds=4,
    ),
    Claim(
        _ANY, f"p of X1 below .01: {_SHAPE}", "abstract", "p_x1", margin=0.01, check="shape", better="lower", seeds=3
    ),
    Claim(
        _ANY,
        f"X1 scores 10 times what DFI-linear gives it: {_SHAPE}",
        "abstract",
        metric="x1_over_linear",
        margin=10,
        check="shape",
        seeds=3,
    ),
    Claim(
        _ANY, f"the noise X3 is not rejected at .05: {_SHAPE}", "abstract", "p_x3", margin=0.05, check="shape", seeds=3
    ),
    Claim(
        _ANY,
        f"the noise X3 scores below the margin (a null is above its 5 decoys in one draw of 6): {_SHAPE}",
        "abstract",
        metric="x3_over_margin",
        margin=0.0,
        check="shape",
        better="lower",
        seeds=3,
    ),
    Claim(
        "confidence intervals are valid",
        "coverage of 95 % intervals at least .90 (linear-Gaussian, exact map, 800 repetitions of 300 rows)",
        "abstract",
        metric="coverage",
        margin=0.90,
        check="coverage",
        seeds=8,
    ),
    Claim(
        "confidence intervals are valid",
        "the same coverage at most .98",
        "abstract",
        metric="coverage",
        margin=0.98,
        check="coverage",
        better="lower",
        seeds=8,
    ),
    Claim(
        "the pathway is interpretable",
        f"mean squared derivative of X2 in latent 1 above .3: {_SHAPE}",
        "abstract",
        metric="pathway",
        margin=0.3,
        check="shape",
        seeds=3,
    ),
    Claim(
        "the pathway is interpretable",
        f"the squared mean derivative, in which signs cancel, is below .02: {_SHAPE}",
        "abstract",
        metric="mean_derivative_squared",
        margin=0.02,
        check="shape",
        better="lower",
        seeds=3,
    ),
)
