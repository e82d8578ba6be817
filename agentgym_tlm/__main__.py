"""``python -m agentgym_tlm`` is the ``agentgym-tlm`` command."""

import sys

from agentgym_tlm.cli import main

sys.exit(main())
