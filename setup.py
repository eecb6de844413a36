"""Installs the package; `requirements.lock` has the exact versions that it is tested with."""

import re
from pathlib import Path

from setuptools import find_packages, setup
from setuptools.command.build_py import build_py

VERSION = re.search('^__version__ = "(.*)"', Path("retrieval/__init__.py").read_text(encoding="utf-8"), re.M)[1]


class BuildWithLock(build_py):
    """The docstrings of the packages in `requirements.lock` are a corpus, so that file goes along."""

    def run(self):
        super().run()
        if not self.editable_mode:
            self.copy_file("requirements.lock", f"{self.build_lib}/retrieval/requirements.lock")


setup(
    name="retrieval-jax",  # "retrieval" on the package index is another program
    version=VERSION,
    description="Dense retrievers, pre-trained and fine-tuned at scale in JAX and Flax",
    license="Apache-2.0",
    license_files=["LICENSE"],
    packages=[*find_packages(include=["retrieval", "retrieval.*"]), "retrieval.configs.studies"],
    package_dir={"retrieval.configs": "configs"},
    cmdclass={"build_py": BuildWithLock},
    entry_points={"console_scripts": ["retrieval = retrieval.main:program"]},
    package_data={
        "retrieval": [
            *("py.typed", "*.pyi", "serving/page/page.*", "evaluation/report_head.html"),
            *("config/removed_fields.toml", "data/sets/nq_dev.txt", "data/corpora/languages.toml"),
            *("export/model_cards.toml", "models/encoders/harmless_keys.txt"),
        ]
    },
    python_requires=">=3.11,<3.14",
    # What loads, encodes, evaluates, searches and serves; what trains besides is the extra `train`.
    install_requires=[
        "absl-py",
        "bm25s",
        "flax>=0.12.8",
        "huggingface_hub",
        "ir-measures",
        "jax>=0.10.2",
        "markdown-it-py",
        "matplotlib",
        "ml-collections",
        "ml_dtypes",
        "msgpack",
        "mwparserfromhell",
        "numpy",
        "optax",
        "orbax-checkpoint",
        "pyarrow",
        "PyStemmer",
        "PyYAML",
        "safetensors",
        "scipy",
        "tokenizers",
        "tqdm",
    ],
    extras_require={
        "beam": ["apache-beam"],
        "cuda12": ["jax[cuda12]"],
        "gs": ["gcsfs"],
        "generate": ["torch==2.13.0", "transformers"],
        "interop": ["torch==2.13.0", "transformers", "sentence-transformers"],
        "ir": ["ir_datasets"],
        "mcp": ["mcp>=2,<3", "prometheus_client", "starlette"],
        "plan": ["libtpu==0.0.52"],
        "s3": ["s3fs"],
        "serve": ["prometheus_client", "starlette", "uvicorn"],
        # importlib_resources: tensorflow-datasets needs it to download, and does not say so.
        "tfds": ["tensorflow-datasets", "importlib_resources"],
        "tpu": ["jax[tpu]"],
        "train": [
            "clu",
            "scann; platform_machine == 'x86_64'",
            "seqio",
            # 2.21 breaks ScaNN; sentencepiece 0.2.3, which seqio imports, needs a newer protobuf than TensorFlow 2.20.
            "sentencepiece==0.2.1",
            "tensorflow==2.20.0",
            "tensorflow-text==2.20.1",
        ],
        "test": [
            "apache-beam",
            "importlib_resources",
            "tensorflow-datasets",
            "pytest",
            "pytest-xdist",
            "pyright[nodejs]",
            "ruff",
        ],
    },
)
