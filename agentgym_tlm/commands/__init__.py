"""The sub-commands of ``agentgym-tlm``: dataclasses of options with a ``run`` method that returns an exit code."""
