"""Environments: text in, text out, on the contract of :mod:`agentgym_tlm.envs.base`."""
