"""The same headline ladder, version after version of this package: shares of the machine's limit against versions."""

from __future__ import annotations

import io
import re
from collections.abc import Sequence
from typing import TYPE_CHECKING

import markupsafe
import matplotlib
import matplotlib.pyplot as plt
from matplotlib.ticker import PercentFormatter

from llama_lab.bench import summary
from llama_lab.figures import style
from llama_lab.figures.labels import labelled
from llama_lab.figures.svg import address

if TYPE_CHECKING:
    from llama_lab.reporting.machines import Machine


def order(version: str) -> tuple:
    """A key that sorts 0.9.0 before 0.10.0, and a version before what came after it and is not yet released."""
    number, _, rest = version.partition("+")
    return tuple(int(part) for part in re.findall(r"\d+", number)), rest


def points(machines: Sequence[Machine]) -> dict[str, dict[str, dict[str, float]]]:
    """Machine → version → subject → share of the machine's limit, median; of equals the one measured last."""
    found: dict[str, dict[str, dict[str, float]]] = {}
    for m in sorted(machines, key=lambda m: m.measured):
        shares = {
            name: summary.median([t.mbu for t in summary.warm(m.trials, name) if t.mbu == t.mbu]) for name in m.subjects
        }
        found.setdefault(m.name, {})[m.version] = {name: share for name, share in shares.items() if share}
    return {name: dict(sorted(each.items(), key=lambda item: order(item[0]))) for name, each in sorted(found.items())}


@style.styled
def figure(known: dict[str, dict[str, dict[str, float]]], versions: Sequence[str]):
    """A panel a machine: each subject's share of the limit against the package's versions."""
    drawn, panels = plt.subplots(len(known), 1, figsize=(9, 3.8 * len(known)), squeeze=False)
    at = {version: i for i, version in enumerate(versions)}
    for axes, (machine, each) in zip(panels[:, 0], known.items(), strict=True):
        last: dict[str, tuple[float, float]] = {}
        for name in dict.fromkeys(name for shares in each.values() for name in shares):
            xs, ys = zip(*((at[v], shares[name]) for v, shares in each.items() if name in shares), strict=True)
            axes.plot(xs, ys, "o-", color=style.colour(name), markersize=5, linewidth=1.3)
            last[name] = xs[-1], ys[-1]
        axes.set_yscale("log")
        axes.set_xlim(-0.6, len(versions) - 0.4)
        axes.set_xticks(range(len(versions)), versions)
        axes.yaxis.set_major_formatter(PercentFormatter(1, decimals=0))
        axes.yaxis.set_minor_formatter("")
        axes.set_title(machine)
        axes.set_ylabel("share of the memory limit")
        axes.set_ylim(axes.get_ylim())
        labelled(axes, [(name, *place, style.colour(name)) for name, place in last.items()])
    panels[-1, 0].set_xlabel("version of llama-jax")
    return drawn


def words(versions: Sequence[str]) -> str:
    """What may be read from the figure."""
    if len(versions) == 1:
        return (
            f"One version so far, {versions[0]}: nothing can be compared yet. Each release adds its point, by the file"
            " that it contributes."
        )
    return f"Each release adds its point; of {len(versions)} versions the lines join what the same machine measured."


def drawn(machines: Sequence[Machine]) -> dict | None:
    """{image, alt, words} of the figure; None where no machine is known."""
    known = points(machines)
    versions = sorted({version for each in known.values() for version in each}, key=order)
    if not versions:
        return None
    made, buffer = figure(known, versions), io.StringIO()
    with matplotlib.rc_context({"svg.hashsalt": "versions"}):
        made.savefig(buffer, format="svg", bbox_inches="tight", metadata={"Date": None})
    plt.close(made)
    told = "; ".join(
        f"{machine}, {version}: " + ", ".join(f"{name} {share:.0%}" for name, share in shares.items())
        for machine, each in known.items()
        for version, shares in each.items()
    )
    return dict(
        image=markupsafe.Markup(address(buffer.getvalue())),
        alt=f"Share of the memory limit against versions of llama-jax. {told}.",
        words=words(versions),
    )
