"""Faults that end an engine's start, each a sentence for the operator.

StartError                 the engine cannot start; the sentence names what to change
├── ConfigurationError     a setting contradicts the model or the device
└── OutOfDeviceMemory      sizes do not fit; names the flag and the numbers
"""

from __future__ import annotations


class StartError(Exception):
    pass


class ConfigurationError(StartError):
    pass


class OutOfDeviceMemory(StartError):
    pass
