"""A comparison of arms: it trains pairs of runs, and judges the differences of their scores."""

import dataclasses
import itertools
import json
import math
import pathlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

from ml_collections import ConfigDict, FrozenConfigDict

from transformer_jax import config as configs
from transformer_jax.config import RunError, UserError
from transformer_jax.distributed import hosts
from transformer_jax.laboratory import arms as arms_
from transformer_jax.laboratory import verdicts
from transformer_jax.laboratory.arms import SAME_UPDATES, Arm
from transformer_jax.pictures import paired_runs
from transformer_jax.pictures.figure import save
from transformer_jax.pictures.progress import say
from transformer_jax.runs import spec
from transformer_jax.runs.open import open_run
from transformer_jax.runs.train import OWN_KEYS, Member, train, train_together
from transformer_jax.scores import predictions
from transformer_jax.storage import buckets

_RECORD = "comparison.json"  # in the folder of a comparison: what it compares, and its result
# Words in the names of scores of which a lower one is better.
_ERRORS = frozenset(
    "loss nll perplexity bits wer cer ter error errors ece kl distance mse rmse mae fid".split()
)


@dataclasses.dataclass(frozen=True)
class Question:
    """What is asked about the arms of a comparison.

    Attributes:
      scores: names of scores in metrics.jsonl, such as "valid/loss".
      margin: the smallest difference that matters, in the unit of the score, or "1%" of the mean of
        the first arm; "": any does.
      pairs: how many pairs of runs are trained.
      until_decided: whether to stop after the first pair that decides about every difference, and
        to train at most `pairs`.
      texts: "valid" or "test", whose texts are scored one at a time after the last pair, by BLEU,
        accuracy and the like; "": none are.
      better: "lower" or "higher" scores; None: losses, perplexities, distances and error rates are
        better if they are lower, by their names.
    """

    scores: tuple[str, ...]
    margin: str = ""
    pairs: int = 8
    until_decided: bool = False
    texts: str = ""
    better: str | None = None

    def lower_is_better(self, score: str) -> bool:
        """Returns whether a lower value of this score is better."""
        if self.better:
            return self.better == "lower"
        return not _ERRORS.isdisjoint(score.rpartition("/")[2].split("_"))

    def check(self) -> None:
        """Raises UserError for a margin or a number of pairs that makes no sense."""
        if self.pairs < 1:
            raise UserError(f"--pairs={self.pairs}: must be at least 1")
        if not self.scores:
            raise UserError("--score is empty: name a score, such as valid/loss")
        self.margin_of(1.0)

    def margin_of(self, mean: float) -> float:
        """Returns the margin of a score, of which the first arm has this mean."""
        text = self.margin.strip()
        try:
            value = float(text.removesuffix("%") or 0)
        except ValueError:
            value = -1.0
        if not 0 <= value < math.inf:
            raise UserError(
                f"--margin={self.margin}: must be a number from 0, or a share such as 1%"
            )
        return abs(mean) * value / 100 if text.endswith("%") else value


@dataclasses.dataclass(frozen=True)
class Comparison:
    """Arms that are trained in `folder`/NAME/seed-i, each an ordinary run."""

    arms: tuple[Arm, ...]
    folder: pathlib.Path | buckets.Path
    question: Question
    budget: str = SAME_UPDATES
    together: bool = False  # whether runs that differ in seeds and rates alone are one program

    def runs(self) -> Iterator[tuple[int, Arm]]:
        """Yields (seed, arm) of all runs, one pair after the other."""
        return itertools.product(range(self.question.pairs), self.arms)

    def train(self, seed: int, arm: Arm) -> None:
        """Trains a run, unless it is complete. Raises UserError for a score that it lacks."""
        workdir = arms_.folder_of(self.folder, arm, seed)
        if arms_.final_scores(workdir, arm.updates):
            check_same(workdir, arm, seed)
            say(f"{arm.name}, seed {seed}: done")
            return
        say(f"{arm.name}, seed {seed}")
        check = self._checked(arm)
        try:
            train(arm.config, workdir, overrides=arm.overrides(seed), on_evaluate=check)
        except RunError as error:
            raise RunError(f"{arm.name}, seed {seed}: {error}") from None

    def train_together(self, seeds: Iterable[int]) -> None:
        """Trains the incomplete runs with these seeds, those of one config as one program.

        Arms that differ in their seeds and learning rates alone share a program.
        """
        programs: dict[str, list[tuple[Arm, int]]] = {}
        for arm, seed in itertools.product(self.arms, seeds):
            workdir = arms_.folder_of(self.folder, arm, seed)
            if not arms_.final_scores(workdir, arm.updates):
                common = [_source(dataclasses.replace(arm, changes=())), _common(arm, seed)]
                programs.setdefault(json.dumps(common, default=str), []).append((arm, seed))
        errors = []
        for runs in programs.values():
            arm, seed = runs[0]
            names = ", ".join(f"{arm.name} {seed}" for arm, seed in runs)
            say(f"training {len(runs)} runs together: {names}")
            members = [
                Member(
                    arms_.folder_of(self.folder, arm, seed),
                    [(key, value) for key, value in arm.overrides(seed) if key in OWN_KEYS],
                    self._checked(arm),
                )
                for arm, seed in runs
            ]
            try:
                train_together(arm.config, members, overrides=_common(arm, seed))
            except RunError as error:
                errors.append(str(error))
        if errors:
            raise RunError("; ".join(errors))

    def _checked(self, arm: Arm) -> Callable[[int, dict[str, float]], None]:
        def check(step: int, scores: dict[str, float]) -> None:
            # At the first evaluation, because a wrong name would else be found at the end.
            missing = [name for name in self.question.scores if name not in scores]
            if missing:
                raise UserError(
                    f"--score={missing[0]}: {arm.name} has no such score; it has "
                    f"{', '.join(sorted(scores))}"
                )

        return check

    def begin(self) -> None:
        """Records what is compared. Raises UserError if the folder holds another comparison."""
        record = {
            "budget": self.budget,
            "arms": {
                arm.name: {"config": _source(arm), "updates": arm.updates} for arm in self.arms
            },
        }
        if spec.exists(self.folder):
            raise UserError(f"--workdir={self.folder}: holds a single run; take another folder")
        earlier = recorded(self.folder)
        if earlier:
            kept = {arm: earlier["arms"].get(arm) for arm in record["arms"]}
            different = [arm for arm in kept if kept[arm] not in (None, record["arms"][arm])]
            if earlier["budget"] != self.budget or different:
                is_other = earlier["budget"] != self.budget
                what = f"--budget={earlier['budget']}" if is_other else different[0]
                raise UserError(
                    f"--workdir={self.folder}: holds another comparison ({what}); take another "
                    "folder"
                )
        # Arms of an earlier call stay, so that none of them can come back with another config.
        record["arms"] = earlier.get("arms", {}) | record["arms"]
        self._write(earlier | record)

    def run(self) -> dict[str, Any]:
        """Trains the pairs that are asked for, and returns the result.

        The same call goes on after any stop, and trains no complete run again.
        """
        if self.together and self.question.until_decided:
            raise UserError("--together: trains all pairs at once, and --until=decided one by one")
        self.begin()
        # Each process of several holds only its part of a batch.
        common = self.common() if hosts.count() == 1 else []
        for line in common:
            say(line["line"])
        costs = {arm.name: arms_.cost(arm) for arm in self.arms}
        _say_costs(costs, self.arms)
        if self.together:
            self.train_together(range(self.question.pairs))
        for pair in range(self.question.pairs):
            for arm in () if self.together else self.arms:
                self.train(pair, arm)
            result = self.result(pair + 1)
            if self.question.until_decided and is_decided(result):
                break
        result |= {"shared": common, "flops": costs}
        if self.question.texts:
            result["by_text"] = self.text_differences(result["pairs"])
        result["pictures"] = [str(path) for path in self.draw(result)]
        self._write(recorded(self.folder) | {"result": result})
        return result

    def common(self) -> list[dict[str, Any]]:
        """Returns what each arm shares with the first one, with a line about it."""
        first, *others = self.arms
        start = arms_.start_of(first)
        found = []
        for arm in others:
            common = arms_.shared(start, arms_.start_of(arm))
            line = arms_.described((first.name, arm.name), common)
            found.append({"arms": [first.name, arm.name], **common, "line": line})
        return found

    def values(self, pairs: int) -> dict[str, dict[str, list[float]]]:
        """Returns {score: {arm: values by seed}} of the first pairs, all of which are complete."""
        finished = {
            arm.name: [
                arms_.final_scores(arms_.folder_of(self.folder, arm, seed), arm.updates)
                for seed in range(pairs)
            ]
            for arm in self.arms
        }
        for name, runs in finished.items():
            for seed, scores in enumerate(runs):
                missing = [score for score in self.question.scores if score not in scores]
                if missing:
                    raise UserError(
                        f"{name}, seed {seed}: no {missing[0]} after its last update; it has "
                        f"{', '.join(sorted(scores)) or 'no evaluation there'}"
                    )
                if lost := [score for score in self.question.scores if scores[score] is None]:
                    raise RunError(
                        f"{name}, seed {seed}: {lost[0]} is not finite after the last update, so "
                        "there is no difference to judge"
                    )
        return {
            score: {name: [scores[score] for scores in runs] for name, runs in finished.items()}
            for score in self.question.scores
        }

    def result(self, pairs: int) -> dict[str, Any]:
        """Returns the means, the paired differences and the verdicts of the first pairs."""
        values = self.values(pairs)
        first, *others = (arm.name for arm in self.arms)
        is_sequential = self.question.until_decided
        names = [(score, other) for score in values for other in others]
        alpha = verdicts.level(len(names))
        differences, margins, lower = [], [], []
        for score, other in names:
            own = values[score][first]
            margins.append(self.question.margin_of(sum(own) / len(own)))
            lower.append(self.question.lower_is_better(score))
            differences.append(
                verdicts.difference(
                    own,
                    values[score][other],
                    # Where a margin is asked about, the interval itself is the test.
                    alpha=alpha if is_sequential or margins[-1] else verdicts.ALPHA,
                    sequential=is_sequential,
                )
            )
        judged = verdicts.verdicts(differences, lower, margins)
        rows = []
        for (score, other), each, margin, is_lower, verdict in zip(
            names, differences, margins, lower, judged
        ):
            row = {"score": score, "arm": other, "against": first, "verdict": verdict}
            if verdict == verdicts.UNDECIDED:
                row["more_pairs"] = verdicts.more_pairs(each, margin, alpha)
            rows.append(row | {"lower_is_better": is_lower, "margin": margin} | plain(each))
        return {
            "workdir": str(self.folder),
            "pairs": pairs,
            "budget": self.budget,
            "updates": {arm.name: arm.updates for arm in self.arms},
            "scores": {
                score: {name: plain(verdicts.mean(x)) for name, x in by_arm.items()}
                for score, by_arm in values.items()
            },
            "differences": rows,
        }

    def text_differences(self, pairs: int) -> list[dict[str, Any]]:
        """Returns the differences of scores of texts, by a bootstrap over texts and pairs."""
        split = self.question.texts
        statistics = {
            arm.name: [self._text_statistics(arm, seed) for seed in range(pairs)]
            for arm in self.arms
        }
        first, *others = self.arms
        rows = []
        for arm in others:
            for number, (measure, _) in enumerate(statistics[first.name][0]):
                own, other = (
                    [run[number][1] for run in statistics[name]] for name in (first.name, arm.name)
                )
                if len({len(run) for run in [*own, *other]}) > 1:
                    raise UserError(f"--texts={split}: the runs have different texts")
                for name, row in predictions.comparison_over_seeds(measure, own, other).items():
                    score = {"score": f"{split}/{name}", "arm": arm.name, "against": first.name}
                    rows.append(score | {"texts": len(own[0]), "pairs": pairs} | row)
        return rows

    def _text_statistics(self, arm: Arm, seed: int) -> list:
        """Returns the measures of a run's last checkpoint with their statistics."""
        files = {f"{section}_file": file for section, file in arm.resolved(seed).files.items()}
        task, params = open_run(arms_.folder_of(self.folder, arm, seed), "latest", **files)
        if not callable(getattr(task, "text_statistics", None)):
            raise UserError(
                f"--texts={self.question.texts}: {arm.name} is a {task.config.task.name} run, "
                "without scores of one text at a time"
            )
        say(f"{arm.name}, seed {seed}: scoring the {self.question.texts} texts")
        return task.text_statistics(params, self.question.texts)

    def plan(self, wanted: float) -> dict[str, Any]:
        """Returns how many pairs would find a difference, by the runs that are complete.

        Raises UserError if fewer than two pairs are.
        """
        complete = itertools.takewhile(self._is_complete, itertools.count())
        pairs = sum(1 for _ in complete)
        if pairs < 2:
            raise UserError(
                f"--workdir={self.folder}: a plan needs at least two complete pairs; there "
                f"{'is one' if pairs else 'is none'}"
            )
        found = self.result(pairs)
        rows = []
        for row in found["differences"]:
            needed = verdicts.pairs_needed(row["deviation"], wanted)
            rows.append(
                {name: row[name] for name in ("score", "arm", "against", "deviation")}
                | {"pairs_needed": needed}
            )
        return {"workdir": str(self.folder), "pairs": pairs, "difference": wanted, "plan": rows}

    def _is_complete(self, seed: int) -> bool:
        return all(
            arms_.final_scores(arms_.folder_of(self.folder, arm, seed), arm.updates)
            for arm in self.arms
        )

    def draw(self, result: dict[str, Any]) -> list[pathlib.Path]:
        """Draws the differences and the curves of all runs, and returns the files."""
        if hosts.index():
            return []
        curves = {
            arm.name: [
                spec.metrics(arms_.folder_of(self.folder, arm, seed))
                for seed in range(result["pairs"])
            ]
            for arm in self.arms
        }
        figure = paired_runs.comparison(result, curves)
        paths = [self.folder / f"comparison.{ending}" for ending in ("png", "svg")]
        for path in paths:
            save(figure, path)
        return paths

    def _write(self, record: dict[str, Any]) -> None:
        if hosts.index():
            return
        self.folder.mkdir(parents=True, exist_ok=True)
        buckets.write_whole(self.folder / _RECORD, json.dumps(record, indent=2, default=str) + "\n")


def _source(arm: Arm) -> Any:
    """Returns what identifies an arm's config: its file and the changes, or all of its keys."""
    changes = [[key, str(value)] for key, value in arm.changes]
    if isinstance(arm.config, ConfigDict | FrozenConfigDict):
        return {key: str(value) for key, value in configs.flat(arm.config).items()} | dict(changes)
    return [arm.config, *changes]


def _common(arm: Arm, seed: int) -> list[tuple[str, Any]]:
    """Returns the overrides that a run shares with those that train in one program with it."""
    return [(key, value) for key, value in arm.overrides(seed) if key not in OWN_KEYS]


def recorded(folder: pathlib.Path | buckets.Path) -> dict[str, Any]:
    """Returns the record of the comparison in a folder; empty if there is none."""
    path = folder / _RECORD
    return json.loads(path.read_text("utf-8")) if path.is_file() else {}


def check_same(workdir: pathlib.Path | buckets.Path, arm: Arm, seed: int) -> None:
    """Raises UserError if a complete run was trained with another config than the arm's now."""
    run = arm.resolved(seed, workdir)  # as `train` resolves it, with what the run has recorded
    different = configs.differences(spec.read(workdir, run.files).config, ConfigDict(run.config))
    if different:
        raise UserError(
            f"{workdir}: was trained with another config ({different[0]}); take another folder"
        )


def is_decided(result: dict[str, Any]) -> bool:
    """Returns whether every difference has a verdict.

    Arms that are equal in every pair need as many pairs as differences that are equal.
    """
    return all(
        row["verdict"] != verdicts.UNDECIDED
        and (row["verdict"] != verdicts.IDENTICAL or row["pairs"] >= verdicts.FEWEST_EXACT)
        for row in result["differences"]
    )


def plain(statistics: Any) -> dict[str, Any]:
    """Returns the fields of a dataclass, with None for what is not finite, as JSON has it."""
    return {
        name: None if isinstance(value, float) and not math.isfinite(value) else value
        for name, value in dataclasses.asdict(statistics).items()
    }


def _say_costs(costs: dict[str, float], arms: Sequence[Arm]) -> None:
    reference = costs[arms[0].name]
    for arm in arms:
        ratio = "" if arm is arms[0] else f", {costs[arm.name] / reference:.3f} of {arms[0].name}'s"
        say(f"{arm.name}: {arm.updates:,} updates, {costs[arm.name]:.3g} FLOPs a run{ratio}")


def lines(result: dict[str, Any]) -> list[str]:
    """Returns a result as lines of text: a table of the arms, and the differences in words."""
    text = []
    for score, by_arm in result["scores"].items():
        rows = [row for row in result["differences"] if row["score"] == score]
        better = "lower" if rows[0]["lower_is_better"] else "higher"
        count = "1 pair" if result["pairs"] == 1 else f"{result['pairs']} pairs"
        text.append(f"{score} ({better} is better), {count}")
        width = max(map(len, by_arm))
        for name, each in by_arm.items():
            text.append(f"  {name:{width}}  {each['mean']:10.5g}  {interval(each)}")
        text += [f"  {_verdict(row)}" for row in rows]
    for row in result.get("by_text", []):
        low, high = row["interval"]
        # A single pair knows nothing of how trainings vary.
        drawn = f" and {row['pairs']} pairs" if row["pairs"] > 1 else " of one pair alone"
        text.append(
            f"{row['score']} over {row['texts']:,} texts{drawn}: {row['arm']} - "
            f"{row['against']} {row['difference']:+.4g} ({low:+.4g} to {high:+.4g}), "
            f"p = {row['p_value']:.3g}"
        )
    return text


def interval(each: Mapping[str, Any]) -> str:
    """Returns the interval of a mean, as `plain` gives it, in words."""
    if each["low"] is None:
        return "(no interval from one run)"
    return f"95 % interval {each['low']:.5g} to {each['high']:.5g}"


def _verdict(row: dict[str, Any]) -> str:
    if row["verdict"] == verdicts.IDENTICAL:
        return f"{row['arm']} and {row['against']} are identical in every pair"
    head = f"{row['arm']} - {row['against']}: {row['mean']:+.4g}"
    if row["low"] is not None:
        head += f" ({row['low']:+.4g} to {row['high']:+.4g})"
    facts = [f"{head}: {row['verdict']}"]
    if row["pairs"] == 1:
        return f"{facts[0]}; one pair decides nothing"
    if row["verdict"] == verdicts.UNDECIDED:
        more = row["more_pairs"]
        pairs = "pair" if more == 1 else "pairs"
        facts.append(
            f"about {more:,} more {pairs}" if more else "far more pairs than are practical"
        )
    if row["removed"] is not None:
        facts.append(f"pairing removed {row['removed']:.0%} of the variance")
    if row["detectable"] is not None and not row["sequential"]:
        facts.append(
            f"a difference of {row['detectable']:.3g} would be found four times out of five"
        )
    return "; ".join(facts)


def compare(
    arms: Mapping[str, Any],
    workdir,
    *,
    pairs: int = 8,
    scores: Sequence[str] = ("valid/loss",),
    budget: str = SAME_UPDATES,
    margin: str = "",
    until_decided: bool = False,
    texts: str = "",
    better: str | None = None,
    overrides: spec.Overrides = (),
    together: bool = False,
) -> dict[str, Any]:
    """Trains pairs of runs of two or more configs, and returns their differences and verdicts.

    Args:
      arms: {name: config, or the path of a config file}. The others are compared with the first.
      workdir: the folder of the runs, which are NAME/seed-i in it. The same call goes on after a
        stop.
      pairs: runs of each arm, with the seeds 0, 1 and so on.
      scores: names of scores in metrics.jsonl.
      budget: FLOPs of each run, such as "60TFLOP"; "same-updates": as many updates for all.
      margin: the smallest difference that matters, such as "0.01", or "1%" of the first arm's mean.
      until_decided: stop after the first pair that decides, and train at most `pairs`.
      texts: "valid" or "test", whose texts are also scored one at a time, by BLEU or accuracy, with
        a bootstrap over texts and pairs.
      better: "lower" or "higher" scores; None: losses, distances and error rates are better if
        they are lower.
      overrides: changes of all arms, as in `config.load`.
      together: train all runs of an arm as one program, see `train_together`.

    Returns what `python -m transformer_jax.compare` prints: the means of each arm under "scores",
    and under "differences" a row for each arm and score, with "mean", "low", "high" and "verdict".
    Raises UserError for an error in a config, and if the arms lack a score.

    Examples:
      >>> small = {"model.d_model": 32, "model.num_heads": 2, "train.num_steps": 4}
      >>> task, _ = transformer_jax.open_run("runs/gpt")
      >>> result = transformer_jax.compare(
      ...     {"one": task.config, "same": task.config}, "runs/compared", pairs=2, overrides=small
      ... )
      >>> result["differences"][0]["verdict"]
      'identical in every pair'
    """
    question = Question(tuple(scores), margin, pairs, until_decided, texts, better)
    question.check()
    changes = tuple(dict(overrides).items())
    named = [Arm(name, config, changes) for name, config in arms.items()]
    if len(named) < 2:
        raise UserError("a comparison needs at least two arms")
    with_updates = tuple(arms_.with_budget(named, budget))
    folder = buckets.folder_of_run(workdir)
    result = Comparison(with_updates, folder, question, budget, together).run()
    say("\n".join(lines(result)))
    return result
