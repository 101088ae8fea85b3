"""Predictions of the formulas, and explanations of a measured speed-up.

`metrics` says what happened in a run. This package says what follows from it under a model: other lookaheads, other
batch sizes, more load, the limit of the memory's bandwidth. Everything is computed from traces; nothing is measured.
"""

from __future__ import annotations

from playground.theory.attribution import Against, Attribution, Decoding, attribute, decoding, published
from playground.theory.formulas import BatchPoint, Limit, batches_of, limit_of, price_of
from playground.theory.lookahead import Constant, WhatIf, constant, what_if, what_if_of_runs
from playground.theory.queueing import Band, LoadPoint, crossing, loads_of
