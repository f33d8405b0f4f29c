"""Which tests `launch/test.sh --quick` runs."""

import subprocess

import pytest

from tests import select_quick

FILES = {
    "tests/training/test_loop.py": "from transformer_jax.training import loop, step\nimport os\n",
    "tests/training/test_other.py": "import transformer_jax.training.loop\n",
    "tests/data/test_tokenizers.py": "",
    "tests/tasks/test_causal_lm.py": "from tests import programs\n",
    "tests/test_configs.py": "",
    "tests/test_published_values.py": "",
    "tests/test_docs.py": "",
}


@pytest.fixture
def root(tmp_path):
    for name, text in FILES.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    return tmp_path


@pytest.mark.parametrize(
    "changed, selected",
    [
        ("transformer_jax/training/loop.py", ["training/test_loop.py", "training/test_other.py"]),
        ("transformer_jax/training/step.py", ["training/test_loop.py"]),
        ("transformer_jax/data/tokenizers/kinds.py", ["data/test_tokenizers.py"]),
        ("transformer_jax/data/tokenizers/__init__.py", ["data/test_tokenizers.py"]),
        ("transformer_jax/families/gpt2/tasks/causal_lm.py", ["tasks/test_causal_lm.py"]),
        ("tests/data/test_tokenizers.py", ["data/test_tokenizers.py"]),
        ("tests/data/test_deleted.py", []),
        ("tests/programs.py", ["tasks/test_causal_lm.py"]),
        ("configs/gpt/gpt2.py", ["test_configs.py", "test_published_values.py"]),
        ("docs/index.md", ["test_docs.py"]),
    ],
)
def test_the_tests_of_a_changed_file(root, changed, selected):
    files = [f"tests/{file}" for file in selected]
    core = [node for node in select_quick.CORE if node.partition("::")[0] not in files]
    assert select_quick.select([changed], root) == [*core, *files]


def test_the_core_exists():
    for node in select_quick.CORE:
        file, _, name = node.partition("::")
        assert f"def {name}" in (select_quick.ROOT / file).read_text()
    for files in select_quick.OF_FOLDER.values():
        assert all((select_quick.ROOT / file).is_file() for file in files)


def test_changed_files_are_those_since_the_branch_left_main(tmp_path):
    def git(*arguments):
        identity = ["-c", "user.name=a", "-c", "user.email=a@b"]
        subprocess.run(["git", *identity, *arguments], cwd=tmp_path, check=True)

    def commit(name):
        (tmp_path / name).write_text("")
        git("add", name)
        git("commit", "-q", "-m", name)

    git("init", "-q")
    commit("first")
    commit("second")
    (tmp_path / "uncommitted").write_text("")
    assert select_quick.changed_files(tmp_path) == ["second", "uncommitted"]
    git("update-ref", "refs/remotes/origin/main", "HEAD")
    commit("third")
    commit("fourth")
    (tmp_path / "first").write_text("changed")
    changed = select_quick.changed_files(tmp_path)
    assert changed == ["first", "fourth", "third", "uncommitted"]
