"""HotpotQA with a Wikipedia tool."""
