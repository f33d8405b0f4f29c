"""The package and its extras. The base install holds neither TensorFlow nor torch."""

import pathlib
import re

from setuptools import find_namespace_packages, setup

ROOT = pathlib.Path(__file__).parent
INIT = ROOT / "transformer_jax" / "__init__.py"
# In a wheel, the configs are in the package, so that --config=gpt/quickstart finds them anywhere.
CONFIGS = sorted(path.name for path in (ROOT / "configs").iterdir() if any(path.glob("*.py")))

# Lower bounds: the oldest that the tests pass with, all of them together. Upper bounds: the next
# release that may break an interface (a minor one before 1.0).
#
# The range of jax is wide so that an installation leaves a machine's jax, which may belong to its
# accelerator, as it is. With jaxlib 0.11 and 0.12 the package sets a flag that keeps sums on a CPU
# right (xla_guard.py). The flag mends 0.10.2, too, but that is what pip would choose
# with Python 3.11, and 0.10.1 is right without a flag, and faster (docs/determinism.md).
JAX_RELEASES = ">=0.10,!=0.10.2,<0.13"
BASE = [
    "absl-py>=2.1,<3",
    "etils[epath]>=1.9,<2",  # paths in buckets, as Orbax knows them
    "flax>=0.12.7,<0.13",
    # index_shuffle; brings array_record, through which TFDS reads without TensorFlow
    "grain>=0.2.16,<0.3",
    "huggingface_hub>=2.0,<3",  # published models by their names; comes with tokenizers anyway
    f"jax{JAX_RELEASES}",
    "jaxtyping>=0.3.3,<0.4",
    "matplotlib>=3.9,<4",
    "ml-collections>=1.0,<2",
    "numpy>=2.0,<3",
    "optax>=0.2.6,<0.3",
    "packaging>=24",
    "orbax-checkpoint>=0.11.33,<0.13",
    "rich>=13.7,<16",
    "sacrebleu>=2.4,<3",
    "sacremoses>=0.1.1,<0.2",  # Moses tokenisation, for BLEU as the 2017 paper counted it
    "safetensors>=0.5,<1",
    "scipy>=1.13,<2",
    "sentencepiece>=0.2.2,<0.3",
    "tensorboardX>=2.6.2.2,<3",
    "tensorflow-datasets>=4.9.10,<5",
    "tensorstore>=0.1.80,<0.2",
    "tokenizers>=0.22,<0.24",
]

EXTRAS = {
    # Each brings CUDA itself. CUDA 13 needs an NVIDIA driver of 580 or newer.
    "gpu": [f"jax[cuda12]{JAX_RELEASES}"],
    "gpu12": [f"jax[cuda12]{JAX_RELEASES}"],
    "gpu13": [f"jax[cuda13]{JAX_RELEASES}"],
    "tpu": [f"jax[tpu]{JAX_RELEASES}"],
    # the latter: TFDS imports it without declaring it
    "tfds": ["tensorflow>=2.20,<3", "importlib_resources>=6"],
    "hf": ["transformers>=5,<6", "torch>=2.6,<3", "safetensors>=0.5,<1"],
    # the peers that benchmarks/ measures against
    "bench": ["transformers>=5,<6", "torch>=2.6,<3", "ctranslate2>=4.8,<5", "gensim>=4.3,<5"],
    "beam": ["apache-beam>=2.70,<3"],  # `prepare` on Dataflow, Flink or Spark
    "lm_eval": ["lm-eval>=0.4.13,<0.5"],
    "chat": ["jinja2>=3.1.6,<4"],  # published chat templates; older releases leave the sandbox open
    "parquet": ["pyarrow>=15"],  # comes with tensorflow-datasets, too
    "datasets": ["datasets>=4"],  # Hugging Face's, for rows that a program gives
    "wandb": ["wandb>=0.21,<1"],
    "trackio": ["trackio>=0.40,<1"],
    "mlflow": ["mlflow-skinny>=3.1,<4"],
    "summaries": ["rouge-score>=0.1.2,<0.2"],
    "reading": ["statsmodels>=0.14,<0.16"],  # regressions of reading times
    "audio": ["soundfile>=0.13,<0.15", "jiwer>=4,<5"],
    # the latter two: what the scores of fine-tuning are compared with
    "test": [
        "pytest>=8",
        "pytest-xdist>=3.5",
        "Pillow>=10.1",
        "beartype>=0.22,<1",  # checks jaxtyping's annotations
        "scikit-learn>=1.3",
        "seqeval>=1.2.2",
        "statsmodels>=0.14,<0.16",
        "ipykernel>=6.29",
        "nbclient>=0.10",
        "nbformat>=5.10",  # the notebooks are executed
        "mkdocs-material>=9.5,<10",  # the documentation is built
        "mkdocstrings[python]>=1.0,<2",
        "jinja2>=3.1.6,<4",
        "ruff>=0.15,<0.18",  # and the code is formatted as it formats it
        "rouge-score>=0.1.2,<0.2",
        "soundfile>=0.13,<0.15",
        "jiwer>=4,<5",
    ],
    "vision": ["Pillow>=10.1", "scikit-learn>=1.3"],  # images are decoded; a set of digits
    "docs": ["mkdocs-material>=9.5,<10", "mkdocstrings[python]>=1.0,<2"],
    "notebook": ["ipykernel>=6.29", "jupyter>=1.1", "nbclient>=0.10"],
}

# Empty until the repository has an address (docs/address.py), and where its site is not at hand.
SITE = ROOT / "mkdocs.yml"
FOUND = SITE.exists() and re.search(r'^repo_url: "(.*)"$', SITE.read_text(), re.MULTILINE)
ADDRESS = FOUND[1] if FOUND else ""

setup(
    name="transformer_jax",
    version=re.search(r'^__version__ = "(.+)"', INIT.read_text("utf-8"), re.MULTILINE)[1],
    description="Train, fine-tune and study Transformers in JAX and Flax",
    long_description=(ROOT / "README.md").read_text("utf-8"),
    long_description_content_type="text/markdown",
    author="The transformer_jax developers",
    url=ADDRESS or None,
    project_urls={"Source": ADDRESS, "Issues": f"{ADDRESS}/issues"} if ADDRESS else {},
    license="Apache-2.0",
    license_files=["LICENSE"],
    # Folders of tasks and sources in a family need no __init__.py.
    packages=[
        *find_namespace_packages(
            include=["transformer_jax", "transformer_jax.*"], exclude=["*.__pycache__"]
        ),
        *(f"transformer_jax.configs.{name}" for name in CONFIGS),
    ],
    package_dir={f"transformer_jax.configs.{name}": f"configs/{name}" for name in CONFIGS},
    package_data={"transformer_jax": ["py.typed"]},
    entry_points={"console_scripts": ["transformer-jax = transformer_jax.__main__:main"]},
    python_requires=">=3.11",
    keywords="transformer jax flax bert gpt translation language-model tpu",
    classifiers=[
        "Development Status :: 4 - Beta",
        "Intended Audience :: Science/Research",
        "License :: OSI Approved :: Apache Software License",
        "Operating System :: MacOS",
        "Operating System :: POSIX :: Linux",
        "Topic :: Scientific/Engineering :: Artificial Intelligence",
        "Programming Language :: Python :: 3.11",
        "Programming Language :: Python :: 3.12",
        "Programming Language :: Python :: 3.13",
    ],
    install_requires=BASE,
    extras_require=EXTRAS,
)
