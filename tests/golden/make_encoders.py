"""Makes `encoders.json`: what transformers makes of the tiny folders of `support/encoder_folders.py`.

    PYTHONPATH=.:tests python tests/golden/make_encoders.py        # with the packages of launch/interop.lock

Of each family, for each of its texts: the first four values of the last hidden state of the first token, and of the
last.
"""

import json
import tempfile
from pathlib import Path

import torch
import transformers
from support import encoder_folders


def main():
    lines = []
    for name in encoder_folders.FAMILIES:
        with tempfile.TemporaryDirectory() as folder:
            model = of_transformers(encoder_folders.write(Path(folder), name), name)
        found = [[round(float(x), 6) for x in state[[0, -1], :4].flatten()] for state in hidden(model, name)]
        lines.append(f"  {json.dumps(name)}: [\n    " + ",\n    ".join(map(json.dumps, found)) + "\n  ]")
    path = Path(__file__).with_suffix("").with_name("encoders.json")
    path.write_text("{\n" + ",\n".join(lines) + "\n}\n", encoding="utf-8")


def of_transformers(folder, name, kind=None):
    """The folder's model in transformers, in float32, with plain attention."""
    kind = getattr(transformers, kind or encoder_folders.FAMILIES[name].of_torch)
    return kind.from_pretrained(folder, attn_implementation="eager", dtype=torch.float32).eval()


def hidden(model, name):
    """The last hidden states of each text, given alone."""
    with torch.no_grad():
        return [
            model(input_ids=torch.from_numpy(ids[None])).last_hidden_state[0].numpy()
            for ids in encoder_folders.texts(name)
        ]


if __name__ == "__main__":
    main()
