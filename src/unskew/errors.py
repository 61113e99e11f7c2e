"""Errors are sentences with a code: what is wrong, where, and how to mend it.

Codes: E1xx wrong use, E2xx state on disk, E3xx replies of clients, E4xx data, E5xx sites and servers. Each has a page in docs/errors/.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class UnskewError(Exception):
    """A refusal a user can act on. `exit_code` is what the command line ends with."""

    exit_code = 2

    def __init__(self, code: str, text: str):
        super().__init__(f"{code} {text}")
        self.code, self.text = code, text


class UsageError(UnskewError):
    """Wrong use: an unknown key, a value out of range, a combination that makes no sense."""

    exit_code = 2


class DataError(UnskewError):
    """Data that is missing, cut off, of another shape, or that nobody can train on."""

    exit_code = 3


class StateError(UnskewError):
    """A run folder that is in use, damaged, or of another configuration."""

    exit_code = 2


class Paused(UnskewError):
    """The run stopped and can be resumed, for example because the disk is full."""

    exit_code = 75


class Terminated(BaseException):
    """SIGTERM: like Ctrl-C, but nothing that handles Ctrl-C may mistake it."""


def suggestion(word: str, known: Iterable[str]) -> str:
    """' Did you mean 'x'?' for the nearest known word, however large or small its letters; else ''."""
    written = {name.lower(): name for name in known}
    near = difflib.get_close_matches(word.lower(), list(written), n=1, cutoff=0.6)
    return f" Did you mean '{written[near[0]]}'?" if near else ""


def excerpt(value: object, most: int = 80) -> str:
    """A value as Python writes it, on one line and cut to `most` characters, for use in an error message.

    `repr` escapes control characters, so nothing that a user or a site supplies can move the terminal's cursor.
    """
    try:
        text = repr(value)
    except Exception:
        text = f"a {type(value).__name__}"
    text = " ".join(text.split())
    return text if len(text) <= most else f"{text[: most - 3]}..."


PAGES = {
    "E101": "A configuration holds a key that is no setting. The message names the line and the nearest setting; `unskew run --help` lists all.",
    "E102": "A method string cannot be read, or names a method or argument that does not exist. Write name(key=value), joined by +; a Part of your own is file.py; `unskew list methods`.",
    "E103": "A partition cannot be read. Write iid, dirichlet:0.1, classes:2, pathological:2x500, clustered:2-2-3, domain or column:NAME.",
    "E104": "A model name or its arguments do not exist. `unskew list models` shows all; a model of your own is file.py:function.",
    "E105": "A model has no part that can be its head. End it with a torch.nn.Linear; a bare layer belongs in nn.Sequential.",
    "E106": "A method wants to cut the model at a block it does not have. The message lists the blocks.",
    "E107": "Parts cannot be combined: one stands twice, two replace the merge, or together they make no sense.",
    "E108": "A Part cannot work with this task, model, optimiser or data, or what clients send for it has no room in memory; the sentence says why and what to set.",
    "E109": "A setting has a value of the wrong type or out of range.",
    "E110": "Another process is writing this run. Wait for it, or stop the process whose id is named.",
    "E111": "A file that was named is not there or cannot be read.",
    "E112": "The folder holds a run with other settings or other data, or of a method or model in a file that has changed. Resuming it would mix two runs: choose another --name.",
    "E113": "A GPU was asked for and torch finds none. Use --device cpu, or install a torch built for your GPU.",
    "E114": "The name of a run, or of a table's page, may hold a-z, 0-9, '.', '_' and '-', begins with a letter or digit, and has at most 64 signs.",
    "E115": "Result.to_frame() needs pandas, which unskew does not install.",
    "E116": "A run that is kept in memory has no report. Give unskew.run a name.",
    "E117": "A folder is no run or comparison: its config.yaml, compare.yaml or metrics.jsonl is missing.",
    "E118": "A run begun from Python with data, a model or a Part of its own can only be resumed from there, with the same name. A Part in a file, file.py, can be resumed anywhere.",
    "E119": "Two methods of a comparison are the same.",
    "E120": "A run of a comparison failed with an unexpected error; its log is named.",
    "E121": "A file of your own defines no Part, more than one, or one without a name or @dataclass(frozen=True). Name one of several as file.py:Class.",
    "E122": "Samples of this shape do not fit the model, or it answers for samples where pixels have labels, or the reverse; the message says what it needs.",
    "E123": "A model of your own does not turn two samples into two rows of logits, one number a class (where samples have masks: two maps of them).",
    "E124": "An availability cannot be read. Write full, sample:0.1, bernoulli:0.2, persistent:0.2x10, clustered:0.5-0.2 or trace:FILE.csv.",
    "E126": "An experiment, a row or a method of it does not exist: `unskew list experiments` shows all, `unskew reproduce NAME --dry-run` its rows. Or a table of your own does not hold together; the message says where, docs/reproduce.md what may stand there.",
    "E127": "A hook of a Part, or a model of your own, decides by a tensor's value (`if`, `.item()`, `float()`) or draws random numbers of its own. Hooks are written for one client and run for many at once: use torch.where, and noise() for random numbers.",
    "E130": "A measure does not exist, or cannot be taken of this method, task or federation; the sentence says why. docs/measures.md is about all of them.",
    "E125": "A data set's name or options do not exist. `unskew list data` shows all; a path to an .npz file or a folder works too.",
    "E201": "A checkpoint is damaged: its SHA-256 does not match. It is set aside as .bad and the one before it is used; one round is done again.",
    "E202": "Both checkpoints of a run are damaged. Nothing can be resumed; begin again under another name.",
    "E203": "The disk is full. The last checkpoint is safe: free space, then resume. The exit code is 75.",
    "E204": "A file with clients' private state is missing or damaged, so the run cannot go on to the same bits.",
    "E205": "A site does not know this run: its folder was emptied, or it never took part. The server sets it up again by itself.",
    "E206": "Too few sites answered, three rounds in a row or before round 1, so the run paused. Its last round is saved: see to the sites, then resume.",
    "E207": "A run's journal, or a file it vouches for, is not as the coordinator wrote it. The message names the first line that does not hold.",
    "E301": "A reply held NaN or infinity. It was dropped; often a learning rate is too high for that client.",
    "E302": "A reply held a tensor of another shape than declared. It was dropped; is that client running another model?",
    "E303": "A reply lacked a tensor, held one nobody declared, or one of another type. It was dropped.",
    "E304": "A reply was larger than this method ever sends. It was dropped before anything was done with it.",
    "E305": "A reply claimed no examples, or more than the client registered. The registered number counts.",
    "E306": "Shared labels were no classes of this task. The reply was dropped.",
    "E307": "An answer or a request of another round, or seen before. It was ignored; a late site, or somebody who replays messages.",
    "E308": "A shared value lay outside the range or norm its Share declares. The reply was dropped.",
    "E309": "Nobody answered in a round. It was counted and the model stayed as it was.",
    "E310": "A message was changed on its way, cut off, or not signed by whom it says it is from. It was dropped. Once is an accident; again and again is not.",
    "E311": "A site is not connected, or did not answer before the deadline. The round went on without it; it is asked again in the next.",
    "E312": "A site answered with an error of its own, which the message repeats. Its log has the rest.",
    "E313": "Fewer sites answered than --min-sites. The round was counted and the model stayed as it was.",
    "E401": "A data file is cut off or damaged, or lacks an array it must hold: copy it again. Or a loader of your own failed; the message says where.",
    "E402": "A named set is not on this machine. Set UNSKEW_DATA to the folder that holds it; docs/data.md says what it must hold.",
    "E403": "Samples and labels differ in number, or there are none.",
    "E404": "Labels are not whole numbers from 0 to the number of classes less one, or masks are not as large as their images.",
    "E405": "A sample holds NaN or infinity; the message names the first.",
    "E406": "A partition asks for more samples or classes than there are, or deals by class where samples have masks; the message names what is feasible.",
    "E407": "Clients were to be formed by a column the set does not have.",
    "E408": "A trace of availability is no CSV with columns round,client[,seconds].",
    "E409": "A folder has neither class folders with images or sounds nor images/ with masks/, or an image has no mask.",
    "E501": "Flower and cryptography, which carry a real federation, are an extra: pip install 'unskew[flower]'.",
    "E502": "A federation, a key or a site's folder exists already, or does not exist. Nothing is overwritten.",
    "E503": "A ticket, a key, a host or a site's name cannot be used; the message says which.",
    "E504": "Sites do not fit together: other classes, shapes or versions, or other data than when the run began. The message names them.",
    "E506": "A study cannot run over a network: a method wants samples at the server, a model from a file that a site has not allowed, or a method from a file, which no site loads.",
    "E507": "One of Flower's programs did not start or ended; its log is named. Often a port in use, or a certificate that has expired.",
    "E509": "A site will never be let in as things are: the server's certificate is refused, or only one side speaks TLS. Ask the coordinator for a new ticket, and join in a new folder.",
    "E508": "Others may read a private key. chmod 600 mends it; if others have read it, make a new one.",
}
"""What every code means and what to do; docs/errors/ holds them as pages."""
