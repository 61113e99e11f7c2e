"""Errors are sentences with a code: what is wrong, where, and what to do.

Codes: E1xx wrong use, E2xx state on disk, E3xx replies of clients, E4xx data, E5xx sites and servers. Each
code has a page in docs/errors/.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable


def printable(text: str) -> str:
    """A text on one line, its control characters escaped as Python writes them, so that it cannot move a
    cursor."""
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


class UnskewError(Exception):
    """An error that the user can act on. `exit_code`: the exit code of the command line.

    Control characters in the text are escaped, whoever supplied them.
    """

    exit_code = 2

    def __init__(self, code: str, text: str):
        text = printable(text)
        super().__init__(f"{code} {text}")
        self.code, self.text = code, text


class UsageError(UnskewError):
    """Wrong use: an unknown key, a value out of range, or a combination that makes no sense."""

    exit_code = 2


class UnknownMethod(UsageError):
    """A method's text holds a name that no method here has. name: that one."""

    def __init__(self, name: str, text: str):
        super().__init__("E102", text)
        self.name = name


class DataError(UnskewError):
    """Data that are missing, cut off, of the wrong shape, or unfit for training."""

    exit_code = 3


class StateError(UnskewError):
    """A folder of a run that is in use, damaged, or holds another configuration."""

    exit_code = 2


class NothingUsed(UnskewError):
    """A run came to its end, but so few replies of clients were used that its weights are no result."""

    exit_code = 4


class Paused(UnskewError):
    """The run stopped but can be resumed, for example after the disk was full."""

    exit_code = 75


class Terminated(BaseException):
    """The process received SIGTERM. Not a KeyboardInterrupt, so that handlers of Ctrl-C do not catch it."""


def suggestion(word: str, known: Iterable[str]) -> str:
    """' Did you mean 'x'?' for the known word nearest to this one, ignoring case; '' if none is near.

    Whoever writes `non-iid` did not mean `iid`.
    """
    opposite = word.lower().removeprefix("non").lstrip("-_ ")
    written = {name.lower(): name for name in known if opposite == word.lower() or name.lower() != opposite}
    near = difflib.get_close_matches(word.lower(), list(written), n=1, cutoff=0.6)
    return f" Did you mean '{written[near[0]]}'?" if near else ""


def excerpt(value: object, most: int = 80) -> str:
    """A value as Python writes it, on one line and cut to `most` characters, for use in an error message.

    `repr` escapes control characters, so nothing that a user or a site supplies can move the terminal's
    cursor.
    """
    try:
        text = repr(value)
    except Exception:
        text = f"a {type(value).__name__}"
    text = " ".join(text.split())
    return text if len(text) <= most else f"{text[: most - 3]}..."


PAGES = {
    "E101": (
        "A configuration holds a key that is not a setting. The message names the line and suggests the"
        " nearest setting; `unskew run --help` lists all of them."
    ),
    "E102": (
        "A method cannot be read, or it names a method or an argument that does not exist. Write"
        " `name(key=value)`, joined by `+`; a Part of your own is written `file.py`. `unskew list methods`"
        " shows all methods, `unskew explain NAME` the arguments of one."
    ),
    "E103": (
        "A skew, which says how data are split among clients, cannot be read, or one of its values is out of"
        " range. Write `iid`, `dirichlet:0.1`, `classes:2`, `pathological:2x500`, `clustered:2-2-3`, `domain`"
        " or `column:NAME`."
    ),
    "E104": (
        "A model or one of its arguments does not exist, or an argument's value does not fit. `unskew list"
        " models` shows all; a model of your own is written `file.py:function`."
    ),
    "E105": (
        "The model has no layer that can serve as its head. Let it end with a `torch.nn.Linear`, and put a"
        " single layer into a `torch.nn.Sequential`."
    ),
    "E106": (
        "A method needs the activations of a block that the model does not have. The message lists the blocks"
        " it has."
    ),
    "E107": (
        "These Parts cannot be combined: one occurs twice, two replace the merge, or together they make no"
        " sense. The message says which and why."
    ),
    "E108": (
        "A Part cannot work with this task, model, optimiser or data, or what clients send for it does not"
        " fit into memory. The message says why and what to set."
    ),
    "E109": (
        "A setting has a value of the wrong type or outside its range. The message says what is expected."
    ),
    "E110": (
        "Another process is writing to this run. Wait until it is finished, or stop the process whose id and"
        " machine the message names. Where the file system cannot lock files at all, put runs on one that"
        " can."
    ),
    "E111": (
        "A file does not exist or cannot be read. The message names it, and the line if it is a file of your"
        " own that fails. Of a file in a run's folder it says which value is not what it should be: the"
        " folder was copied in part, edited, or made by somebody else; copy it again from where it was"
        " trained."
    ),
    "E112": (
        "The folder holds a run with other settings or other data, or with a method or model (from a file, or"
        " given in Python as an object) that has changed since. A file that only metrics are taken from may"
        " change (E327). Resuming would mix two runs: choose another --name. Or a Part, model or metric is no"
        " longer what its file says, because the file was edited after Python had imported it, or the program"
        " changed the class: the result would stand under code that never ran. Start Python anew, or"
        " `importlib.reload` the module and make the object again; an edit that changes nothing of what runs,"
        " such as a comment, does not count."
    ),
    "E113": (
        "A GPU was requested, but torch finds none. Use `--device cpu`, or install a build of torch for your"
        " GPU."
    ),
    "E114": (
        "The name of a run, or of a table's page, must begin with a letter or a digit, have at most 64"
        " characters, and hold only a-z, 0-9, '.', '_' and '-'."
    ),
    "E115": (
        "`Result.to_frame()` needs pandas, which is not installed together with unskew. Install it with `pip"
        " install pandas`."
    ),
    "E116": (
        "A run that is kept in memory has no report. Give `unskew.run` a name, and the run is kept in a"
        " folder."
    ),
    "E117": "The folder is not a run or a comparison: config.yaml, compare.yaml or metrics.jsonl is missing.",
    "E118": (
        "The run was started from Python with data, a model or a Part that exists only there, so it can only"
        " be resumed from Python, with the same name. A Part in a file (`file.py`) can be resumed anywhere."
    ),
    "E119": "Two of the methods to compare are the same. Name each method once.",
    "E120": (
        "A run of a comparison failed with an unexpected error. The message names the log that has the"
        " details."
    ),
    "E121": (
        "A file of your own defines no Part, several of them, or one that is not written as a Part is:"
        " without a name or without `@dataclass(frozen=True)`, with a hook whose name or arguments nobody"
        " would call it by, with `merge` but not `merges = True`, or with a Share or Noise that cannot be"
        " meant. The message says which. Where a file defines several, name the one you mean:"
        " `file.py:Class`. The hooks of a callback (docs/callbacks.md) are looked at in the same way."
    ),
    "E122": (
        "The model does not accept samples of this shape, or it gives one answer per sample where pixels or"
        " tokens have labels, or the reverse, or samples have several inputs, which only a module of your own"
        " takes, or a sample holds a whole number that the model's embedding has no row for. The message says"
        " what it needs."
    ),
    "E123": (
        "A model of your own does not turn two samples into two rows of logits with one number per class (two"
        " maps of them where samples have masks, a row for each token where tokens have labels), its forward"
        " does not take the inputs of a sample, it fails, or it cannot be trained among clients: it changes"
        " its input in place, say, or an attribute at every pass, or its batch normalisation keeps no running"
        " statistics. The message says which."
    ),
    "E124": (
        "An availability, which says which clients answer, cannot be read, or one of its values is out of"
        " range. Write `full`, `sample:0.1`, `poisson:0.1`, `bernoulli:0.2`, `persistent:0.2x10`,"
        " `clustered:0.5-0.2` or `trace:FILE.csv`."
    ),
    "E125": (
        "A data set or one of its arguments does not exist, or an argument's value does not fit. `unskew list"
        " data` shows all; the path of a folder or of an .npz, .npy, .csv, .csv.gz or .parquet file works"
        " too."
    ),
    "E126": (
        "An experiment, or one of its rows or methods, does not exist: `unskew list experiments` shows all"
        " experiments, and `unskew reproduce NAME --dry-run` the rows of one. If the message is about a table"
        " of your own, the file contradicts itself: the message says where, and docs/reproduce.md says what"
        " may stand there."
    ),
    "E127": (
        "A hook of a Part failed, returned something else than the round goes on with (another shape or type,"
        " a leaf too few), changed in place what others read, branched on the value of a tensor (`if`,"
        " `.item()`, `float()`, a boolean mask), or drew random numbers that no seed reaches. The message"
        " names the hook and the line. Hooks are written for one client and run for many at once: return new"
        " values, use `torch.where`, and take random numbers from `noise()`; docs/guides/method.md has the"
        " rules."
    ),
    "E128": (
        "A model of your own contains a layer that cannot train several clients side by side, such as"
        " `nn.LSTM`, so the run uses `lanes=1`: clients train one after another, with the same results. The"
        " message says why."
    ),
    "E129": (
        "A model of your own ends with a softmax: its answers to samples are above 0 and add up to 1. The"
        " loss takes logits and applies a softmax itself, so that a second one flattens gradients, and"
        " training is slow and ends lower. Leave the last layer out; `predict_proba` gives probabilities all"
        " the same."
    ),
    "E130": (
        "A measure does not exist, or cannot be taken for this method, task or federation. The message says"
        " why; docs/measures.md describes all measures."
    ),
    "E131": (
        "The model that should predict is not here. Where clients keep weights of their own (fedbn, local),"
        " no global model predicts alone: name a client (`--client`, in Python `client=`). A client's own"
        " model needs what that client keeps: it is at the site if the run was over a network, and there is"
        " none of a client that never took part."
    ),
    "E132": (
        "A hook or a layer reads a tensor's value in every step, or copies a number to a GPU, so that steps"
        " cannot be recorded and replayed. The run is right, but slower. The message names the place or the"
        " operation."
    ),
    "E133": (
        "Differential privacy is accounted by a library, dp-accounting, which is an optional extra: `pip"
        " install 'unskew[dp]'`."
    ),
    "E134": (
        "The setting `secure_aggregation` cannot be used in this run: a Part reads single replies, there are"
        " fewer than three clients, single replies are to be measured, or the numbers have too few bits. The"
        " message says which and what to change; docs/privacy.md says what secure aggregation needs."
    ),
    "E135": (
        "A metric (`metrics`) does not exist, does not fit the task, or is a function of your own that failed"
        " or returned anything but one number. The message says which; docs/metrics.md describes all metrics,"
        " and what a function of your own is given."
    ),
    "E136": (
        "Models of Hugging Face are read by transformers and trained with adapters of peft, which are an"
        " optional extra: `pip install 'unskew[hf]'`."
    ),
    "E137": (
        "The folder of `model=\"hf(path='FOLDER')\"` does not hold a model that can be read: config.json or a"
        " .safetensors file is missing or damaged, weights are missing, they do not belong together, the"
        " model needs code of its own, or it cannot be told for each token which others it may see, as"
        " training here does (BLOOM, OPT, DeBERTa, ESM, XLNet and Longformer). Code and pickles from a folder"
        " are never run or opened. The message says which; docs/guides/language-models.md says what a folder"
        " must hold."
    ),
    "E138": (
        "`keeps` or `freezes` of a Part of your own holds none of the model's weights: most likely it looks"
        " for names that another model has. `fed.net.trainable` has those of this model, and"
        " `fed.net.of_head(name)` says whether a weight is the head's, however the model calls it. Where the"
        " division is all that the Part does, the run is refused instead (E108)."
    ),
    "E139": (
        "A method changes what it does after some of the run's rounds, and the run has no more of them, or"
        " `patience` may end it before: its scores would be those of its first stage alone. Let the first"
        " stage take fewer rounds or a smaller share of them, or set more `rounds`, or a larger `patience`"
        " or 0."
    ),
    "E140": (
        "The learning rate falls to 0 within the run, or so near it that float32 notices no step: later"
        " rounds cost time and train nothing. Set a larger `lr_min`, let it fall more slowly (an `lr_decay`"
        " nearer to 1, or `lr_rounds` no smaller than `rounds`), or set fewer `rounds`."
    ),
    "E141": (
        "The operating system refuses a file or a folder: no permission, not a folder, or gone while the"
        " command ran. The message names it and the reason, and the log file has the details."
    ),
    "E142": (
        "The machine has not enough memory for this. Take a smaller model, fewer clients or a smaller"
        " `batch`; the log file shows where memory ran out."
    ),
    "E143": (
        "An error that unskew does not expect, and so a defect of unskew or of a Part, model or loader of"
        " your own. The exit code is 1. The log file that the message names has the details; please"
        " report it."
    ),
    "E150": (
        "An attack or one of its settings does not exist, or a setting's value does not fit. `unskew list"
        " attacks` shows all; settings are written `--set name=value`, and docs/privacy.md lists them."
    ),
    "E151": (
        "The attack does not fit this run: its clients do not send the payload that is attacked, its task is"
        " another one, it recovers a sample as one input and a sample has several, or it reads what single"
        " clients send where only the merged model can be attacked: because the reader got sums only, noise"
        " came from the operating system, or the data of some sites are missing. The message says which."
        " `unskew attack RUN` without a name makes all attacks that fit."
    ),
    "E152": (
        "The run cannot be attacked: it has not come to its end, its samples or its model are not in reach of"
        " this machine, or a file is missing from which its last round is heard again. An attack is scored on"
        " the samples themselves. For a run of sites give the data of sites, `--data SITE=PATH`, as each site"
        " held them: of every site to attack what single sites sent, of some to attack the merged model."
    ),
    "E153": (
        "A payload that an attack computed again has not the bits that the run has, so what would be attacked"
        " is not what was sent. Attack the run with the versions and on the kind of machine that trained it;"
        " env.json in its folder names them. Data given for a run of sites must be those that the sites"
        " trained on; `--merged` attacks its merged model without computing anything again."
    ),
    "E154": (
        "The attacker needs samples of his own that no client holds and that differ from the attacked ones,"
        " and there are too few. Train with fewer `samples` a client, or on data with a larger test set."
    ),
    "E155": (
        "The model of a run is asked for, and the run has not come to its end. Let `unskew resume RUN` finish"
        " it, or take the model as it is with `--unfinished` (in Python `unfinished=True`). Or the model of"
        " its best round is asked for, and the run was not told to keep it (`--keep-best`). At a site: no"
        " model has come that anybody trained; the first comes as round 2 begins."
    ),
    "E156": (
        "The model of a run cannot be built again from its folder: its model or a Part of its method is"
        " Python code, which is never taken from a folder that may be somebody else's, so name your own file"
        " (`--model FILE.py:FUNCTION`, `--method FILE.py`; `unskew attack` and `unskew audit` have these"
        " options, too) or give the object; or what was given, or this version of unskew, builds a model of"
        " other weights. The message says which."
    ),
    "E157": (
        "Pictures become PDF files by CairoSVG, which is an optional extra, `pip install 'unskew[figures]'`,"
        " and needs the system's library Cairo (`apt install libcairo2`, `brew install cairo`). SVG files"
        " need nothing."
    ),
    "E158": (
        "A tracker (`--track`) is not installed. The message names the package; `pip install 'unskew[track]'`"
        " installs all but codecarbon, which is in `unskew[energy]`. The run trains without it if `track` is"
        " left out."
    ),
    "E159": (
        "A callback (`unskew.run(..., callbacks=[...])`) raised an exception, or its `evaluated` returned"
        " something else than a sentence or None, and the run ended. The message names the callback, the"
        " hook, the round and the exception. The rounds before are saved: mend the callback, and resume the"
        " run."
    ),
    "E160": (
        "A run's model cannot be exported in this format (`unskew export`): its method does to inputs or"
        " answers what the format does not hold, its graph cannot be followed by torch, it holds what is made"
        " of a client's samples, or the exported model answered otherwise than ours. The message says which,"
        " and what to take instead."
    ),
    "E161": (
        "What was asked for cannot be written there: the folder to export to, or to write a data set to,"
        " exists already or is the name of a file, the file for a page or for predictions is a folder, or the"
        " system does not let it be written. Nothing was overwritten: name another place."
    ),
    "E162": (
        "A model becomes an ONNX file by onnx and onnxscript, and is tried with onnxruntime, which are an"
        " optional extra: `pip install 'unskew[export]'`. The formats safetensors and torch-export need"
        " nothing more."
    ),
    "E170": (
        "`--on` says where to train: `here` (or leave it out), or a Ray cluster: `ray`, `ray:HOST:PORT` or"
        " `ray://HOST:PORT`, and after a comma the share of each run, `cpus=2` or `gpus=0.5`."
        " docs/guides/cluster.md explains each."
    ),
    "E171": (
        "Training on a cluster needs Ray, which is an optional extra: `pip install 'unskew[ray]'`, on every"
        " node. `--on here`, the default, does without it."
    ),
    "E172": (
        "No Ray cluster answers at the address, it runs another version of Ray or Python, or it asks for a"
        " token. `ray start --head` starts one and prints its address; port 6379 is for nodes"
        " (`ray:HOST:6379`), port 10001 for machines outside the cluster (`ray://HOST:10001`)."
    ),
    "E173": (
        "A node of the Ray cluster cannot train: it has another version of unskew or torch, it does not see"
        " the folder of runs or the same data under the driver's paths, or no node has the cores and GPUs"
        " that a run takes. The message says which. What was finished is kept: mend the node, or take it out"
        " of the cluster, then `unskew resume`."
    ),
    "E174": (
        "A run lost its worker process three times after the same round, so it is likely the run itself that"
        " ends it, most often for want of memory. The log that the message names has the details. Train fewer"
        " runs at a time (`--processes 1`) or give each more of a node (`--on ray,cpus=4`), take a smaller"
        " batch, then `unskew resume`."
    ),
    "E175": (
        "The connection to the Ray cluster was lost while it trained: its head has died, or the network"
        " between. Every finished round is saved, and what trains on nodes that live on ends by itself."
        " `unskew resume` goes on; `--on` names another cluster, or `here`. The exit code is 75."
    ),
    "E201": (
        "A checkpoint is damaged: its SHA-256 does not match. It is renamed to .bad and the previous"
        " checkpoint is used, so that one round is repeated."
    ),
    "E202": "Both checkpoints of a run are damaged, so it cannot be resumed. Start again under another name.",
    "E203": (
        "The disk is full. The last checkpoint is safe: free some space, then resume. The exit code is 75."
    ),
    "E204": (
        "A file with the private state of clients is missing or damaged, so the run cannot be continued to"
        " the same bits. Or a file in a site's folder of a run was written for another run, at another site"
        " or by another method: it says whose it is, and is not used in place of this site's own. Put back"
        " the file that this site wrote in this run."
    ),
    "E205": (
        "A site does not know this run, because its folder was emptied or because it never took part. The"
        " server sets it up again by itself."
    ),
    "E206": (
        "Too few sites answered, before round 1 or in three rounds in a row, so the run paused. The last"
        " finished round is saved: bring the sites back, then resume."
    ),
    "E207": (
        "The journal of a run, or a file that it vouches for, is missing or not as the coordinator wrote it."
        " The message names the first line that does not fit."
    ),
    "E208": (
        "A record of the run (metrics, ledger, events or measures; over a network also sites.json, which"
        " holds the run's number and its sites) is missing or not as the run wrote it, so a resumed run would"
        " report other figures or be another run to its sites. Put the file back as it was, or start again"
        " under another name."
    ),
    "E301": (
        "A reply held NaN or infinity and was dropped. The learning rate is often too high for that client."
    ),
    "E302": (
        "A reply held a tensor of another shape than declared and was dropped. That client may be running"
        " another model."
    ),
    "E303": (
        "A reply lacked a tensor, held one that nobody declared, or held one of another type, and was"
        " dropped."
    ),
    "E304": "A reply was larger than anything this method sends. It was dropped before it was read.",
    "E305": (
        "A reply claimed no training samples, or more than the client registered. The registered number is"
        " used instead."
    ),
    "E306": "Shared labels were not classes of this task. The reply was dropped.",
    "E307": (
        "A message belonged to another round or had been seen before, and was ignored. A site was late, or"
        " somebody replays messages."
    ),
    "E308": "A shared value lay outside the range or norm that its Share declares. The reply was dropped.",
    "E309": (
        "No reply was used in a round, because no client answered or every reply was dropped. The round was"
        " counted and the model stayed as it was."
    ),
    "E310": (
        "A message was altered on its way, cut off, or not signed by the sender it names, and was dropped. A"
        " single one may be an accident; repeated ones are not."
    ),
    "E311": (
        "A site is not connected, did not answer before the deadline, or is left out by `--without`. The"
        " round went on without it; unless it is left out, it is asked again in the next round."
    ),
    "E312": (
        "A site answered with an error of its own, which the message repeats. The site's log has the details."
    ),
    "E313": (
        "Fewer sites answered than `--min-sites` demands. The round was counted and the model stayed as it"
        " was."
    ),
    "E314": (
        "What the server computed from the replies held NaN or infinity, although every reply was finite. The"
        " round was counted and the model stayed as it was. The learning rate, or a setting of the method at"
        " the server, is often too high."
    ),
    "E315": (
        "A robust aggregation rule had too few replies to do what it is for: it left nobody out and bounded"
        " nobody, or its proof does not hold for so few. The message says which. Let more clients answer: set"
        " `availability`, or `--min-sites`."
    ),
    "E316": (
        "The run came to its end, but none of the clients' replies was used, or at most a tenth of them, so"
        " its weights are no result and tables show no score. The message names the likeliest cause. The exit"
        " code is 4."
    ),
    "E317": (
        "More than a third of the replies that came in a run were dropped, most often because training"
        " diverged to NaN. The run has scores, but they say little about the method. The message names the"
        " likeliest cause."
    ),
    "E318": (
        "A site's reply was finite and of the right shape, but would have changed the model many times as far"
        " as the replies of the other sites, and by more than the model's own size. It was dropped. The"
        " site's data or its learning rate differ grossly from the others', or it is trying to wreck the"
        " model. Where a number is predicted, the usual cause is a target in another unit than elsewhere: all"
        " sites have to give it in one unit, with the same `center` and `scale`."
    ),
    "E319": (
        "Training failed at half of the sites or more at once, because the model they had received was"
        " spoilt, and one site had changed it far more than all others in the rounds before. The message"
        " names that site and the round. Begin a new run without it (`--without`); if it is honest, lower the"
        " learning rate."
    ),
    "E320": (
        "A privacy budget (`epsilon`) together with the noise asked for allows fewer rounds than `rounds`."
        " The run ends before the round that would exceed it, and the model of the last round is its result."
        " Raise the noise, leave it out so that it is solved for, or ask for fewer rounds."
    ),
    "E321": (
        "With secure aggregation a round had fewer sound replies than it takes to open a sum: three at least,"
        " and the setting's `threshold` of the sites that began the sum. Nothing was opened, the round was"
        " counted, and the model stayed as it was."
    ),
    "E322": (
        "With secure aggregation some numbers of clients' updates were larger than the setting's `clip` and"
        " were cut to it before they were summed. Few do no harm; if there are many, raise `clip`, or lower"
        " the learning rate."
    ),
    "E323": (
        "The run ended before its last round, because the setting `patience` or a callback asked for it. The"
        " message says why. The round after was the last, with all that a last round does, and a resumed run"
        " ends there, too."
    ),
    "E324": (
        "A reply's weights came encoded (topk, randomk, qsgd, signsgd, efsign, powersgd), in the declared"
        " form, and yet in a way that no honest client encodes them: indices that repeat or do not grow, or"
        " levels that there are not. The reply was dropped. Look at that site, and leave it out with"
        " `--without` if it happens again."
    ),
    "E325": (
        "`dp` clips a client's update and what its method shares beside it (sums of features by class) as one"
        " vector, and `scale` is 1, its default, so that a unit of either counts the same. Such sums are"
        " often 100 to 1,000 times as long as an update: the clip then leaves next to nothing of the weights,"
        " and accuracy goes with it. Set `scale`, 0.001 to begin with; docs/privacy.md says how to choose it."
    ),
    "E326": (
        "`dpsgd` adds noise to every sum over a client's samples that another Part releases, such as FedRDN's"
        " statistics, and some clients have so few samples that their count cannot be told from that noise."
        " What their sums say then counts as unknown: FedRDN leaves their inputs as they are, and a class"
        " whose count is unknown counts as absent. Lower `sums_noise`, which costs epsilon; docs/privacy.md"
        " says how much."
    ),
    "E327": (
        "The file of a metric of your own was changed while the run was under way, for example because the"
        " function failed and was mended. A metric changes no weight, so the run goes on; its scores are of"
        " the older version up to the round that the message names, and of the new one after it. Runs of a"
        " comparison that had ended keep the scores of the older version. For scores of one version alone,"
        " begin again under another --name."
    ),
    "E328": (
        "The GPU's memory was full when the clients trained side by side that `lanes: auto` had predicted to"
        " fit, so the first round was trained again with fewer of them. The run is right. Its checkpoints"
        " record how many train side by side, and a resumed run trains as many, since another number may"
        " change last bits. Where memory is full in a later round, or with a number that you set yourself,"
        " the run ends with E142 instead."
    ),
    "E401": (
        "A data file is cut off or damaged, or lacks an array that it must hold: copy it again. Or a table is"
        " not UTF-8, has no header line, or has lines of unequal length. Or a loader of your own failed; the"
        " message says where."
    ),
    "E402": (
        "A data set is not on this machine. Set UNSKEW_DATA to the folder that holds it; docs/data.md says"
        " what the folder must contain."
    ),
    "E403": (
        "The data cannot be trained on: for example, the numbers of samples and labels differ, samples differ"
        " in shape, channels come last, or there are no samples. The message says what is wrong."
    ),
    "E404": (
        "Labels must be words or whole numbers from 0 to the number of classes minus one, and masks must have"
        " the size of their images. Where every token has a label, it is a whole number of the token that"
        " follows, or -100 where none counts. docs/data.md says which forms are read."
    ),
    "E405": (
        "A sample holds NaN, infinity or a number too large for float32, or a column of numbers in a table"
        " has missing values or cells that are no numbers. The message names the first such sample, or the"
        " column and the line of the file."
    ),
    "E406": (
        "A partition needs more samples or classes than there are, or it splits by class where samples have"
        " masks or a label for each token. The message says what is possible."
    ),
    "E407": "Clients should be formed by a column that the data set does not have.",
    "E408": (
        "A trace of availability must be a CSV file with the columns round,client[,seconds]: rounds count"
        " from 1, clients and seconds from 0. It must name only clients that the run has, and reach its last"
        " round: clients counted from 1 would each answer as their neighbour, and in rounds after the last"
        " line nobody would train."
    ),
    "E409": (
        "The folders do not say which class a file has: there is neither CLASS/ or SITE/CLASS/, nor images/"
        " with masks/, nor a table that lists the files. Or an image has no mask that fits. `unskew data"
        " check PATH` shows what is understood."
    ),
    "E410": (
        "A diagnosis needs two sites with samples that have one class each: the samples have a number to"
        " predict or several labels, of which nothing was measured, or all samples are at one, or nothing"
        " says which sample is from which site. Name the column that says where a row is from (`--site`), or"
        " give a skew that divides the data (`--skew dirichlet:0.3`)."
    ),
    "E411": (
        "What `unskew data get` was given is not the data set in its original form, or is refused: a file is"
        " missing or of the wrong length, an archive names files outside itself, holds links or unpacks to"
        " far too much, or a pickle asks for more than arrays of numbers. The message says which. Nothing is"
        " downloaded by itself and nothing is ever unpacked or unpickled unsafely."
    ),
    "E412": (
        "An original archive of a data set has another SHA-256 than the published one, so it was cut off, or"
        " is another version or somebody else's. Download it again from the place that the message names."
    ),
    "E413": (
        "Samples that are read while a run trains could not be read, or are no longer what they were when"
        " they were checked: the file is shorter, was written to or replaced, its disk failed, or a Dataset"
        " gives another sample at each reading (a random transform). The run ends there, since its results"
        " would be of other data. Leave data alone while they are trained on; put random changes into the"
        " method (`augment`) instead of the Dataset."
    ),
    "E414": (
        "Something needs all samples in memory at once, and these are read row by row because they are"
        " larger, or a table in text is larger than memory holds. The message says what. Take fewer samples"
        " for it, save a table as Parquet, or take a machine with more memory."
    ),
    "E501": (
        "Federations of real sites need Flower and cryptography, which are an optional extra: `pip install"
        " 'unskew[flower]'`."
    ),
    "E502": (
        "A federation, a key or a site's folder already exists, or does not exist. Nothing was overwritten."
    ),
    "E503": "A ticket, a key, a host or the name of a site cannot be used. The message says which, and why.",
    "E504": (
        "A site does not fit the others: its classes, shapes, columns, versions or model differ, or its data"
        " changed after the run began. The message names it. The run goes on with the others where they are"
        " the majority and at least `--min-sites`."
    ),
    "E505": (
        "A site says it holds more samples than were agreed with it when it was admitted, or, where nothing"
        " was agreed, more than 1,000 times as many as the other sites (their median) and at least 100,000."
        " It is left out, or its reply is dropped. If the number is right, admit its key again with a"
        " `--samples` that is large enough; if not, ask the site."
    ),
    "E506": (
        "This study cannot run over a network: its method needs samples at the server, its model is in a file"
        " that a site has not allowed, its method is in a file, which no site loads, its guarantee rests on"
        " noise that the coordinator could draw again, or a round of it would need several replies although a"
        " guarantee counts each by itself. Or a document (a study, a file of settings, a table, the folder of"
        " a run) names a Python file that you have not named: a document may come from anybody, so its files"
        " are imported only if your own command or call names them, too, by `--model`, `--method` or"
        " `--metrics` (`unskew reproduce`: `--file`)."
    ),
    "E507": (
        "One of Flower's programs did not start, or ended unexpectedly. The message names its log. Often a"
        " port is in use or a certificate has expired."
    ),
    "E508": (
        "Other users of the machine can read a private key. `chmod 600` on the file prevents it; if somebody"
        " may have read the key, make a new one."
    ),
    "E509": (
        "The site cannot be admitted as things are: it does not accept the server's certificate, only one"
        " side uses TLS, or its clock and the server's are too far apart. Set the clock if the message names"
        " it; otherwise ask the coordinator for a new ticket, and join in a new folder."
    ),
    "E510": (
        "Somebody has started a run at the coordinator's SuperLink that `unskew run --on` has not ordered,"
        " such as a Flower app of their own. Nothing of it was run, and it was ended. Find out who reaches"
        " the SuperLink."
    ),
    "E520": (
        "A site's policy does not allow what a study asks for: a method, a kind of Share, too few samples"
        " behind a number, too small a batch, too many rounds, runs or bytes, or the hour of the day; or a"
        " run's number that stands for another study at this site. The message names the key of"
        " `policy.yaml`, if it is one; only the site's operator can change it (`unskew site policy`). The run"
        " goes on without the site."
    ),
    "E521": (
        "A site's policy, or its record of what has left so far, is missing, can be read by other users, or"
        " holds something that it must not, so the site refuses everything. `unskew site policy` checks it at"
        " the site, and `--default` writes one where there is none."
    ),
    "E522": (
        "A study waits for a site's operator, who sees what would leave with `unskew site approve` and"
        " decides with `unskew site approve RUN` or `unskew site refuse RUN`. The run begins when all sites"
        " have decided, or when its `--wait` is over; until then nothing is computed there."
    ),
    "E523": (
        "A site's operator has refused a study. The run goes on without the site. The operator can change"
        " that with `unskew site approve RUN`."
    ),
    "E524": (
        "A site and the coordinator run versions of unskew or torch that work together and may yet round"
        " numbers differently, so the run's weights need not have the bits of the same run elsewhere; or a"
        " Part that an installed package brings is another version or file at one of them, and may do"
        " something else. Between versions of unskew or torch nothing has to be done, unless somebody wants"
        " these bits: then install the same versions everywhere."
    ),
    "E525": (
        "A site takes no part in a sum that would not be secure: the coordinator asks for what would show the"
        " site's own numbers, names too few sites, or sums a round or the same numbers a second time over"
        " other sites; or a site was restarted in the middle of a sum, or has dealt shares that cannot be"
        " read. The message says which. The round goes on without the site, or is skipped (E321)."
    ),
    "E526": (
        "In a sum that was aggregated securely a site gave false shares of a key, or numbers that no honest"
        " site sends. Where the message names the site, look at it, and leave it out with `--without` if it"
        " happens again; where it names two, one of them did so and nobody can tell which. Where nobody can"
        " tell which site it was, the round was skipped and the model stayed as it was."
    ),
    "E527": (
        "A site's samples look as if they should have been scaled (a mean or deviation of a channel above 5,"
        " deviations that are 30 times apart, or almost none), and the study's method takes them as they are:"
        " over a network no constants are computed unless a method does so. Training goes on, and may learn"
        " nothing. Add `+standardise` to the method, which scales every channel by the mean and deviation"
        " over all sites (`+standardise(images=False)` beside `fedrdn`, `norm` and `unskew`, which scale"
        " images themselves; the message says which), or scale the samples at all sites by the same constants"
        " before. With secure aggregation, `dp` and `dpsgd` only the latter is possible."
    ),
    "E528": (
        "The mean or standard deviation that a site has sent for `standardise` is unlike the other sites':"
        " its mean lies more than 5 of their standard deviations away, or its standard deviation is more than"
        " 5 times theirs or less than a fifth of it. Often a column is in other units there (pounds, inches,"
        " mmol/l), or a number such as -999 stands for missing values. Training goes on, with constants that"
        " fit no site. Ask the site, have all sites use the same units, and begin the run again under another"
        " name; if the site's patients are like that, nothing has to be done."
    ),
}
"""What each code means and what to do about it; docs/errors/ has one page for each."""
