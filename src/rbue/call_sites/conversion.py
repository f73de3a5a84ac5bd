"""Make the call sites of a network random, in place, and put them back."""

from __future__ import annotations

import uuid
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from numbers import Number
from typing import Any

import torch
from torch import Tensor, nn

from rbue import random_stream
from rbue.activations import Activation, Randomness, SiteCall
from rbue.call_sites import checkpointing, draws, following, tracing
from rbue.call_sites.batch import Batch
from rbue.call_sites.inputs import example_call
from rbue.call_sites.interception import Scope, SiteMode, current_scope, suspended
from rbue.call_sites.own_backward import warn_of_own_backward
from rbue.call_sites.summary import ConversionSummary, warn_of_plain
from rbue.call_sites.table import Placement, SiteTable, choose, path_word, site_name, site_number
from rbue.errors import ConversionError, InvalidInput, warn
from rbue.kernels import random_relu, site_function
from rbue.torch_internals import (
    is_exporting,
    is_exporting_to_onnx,
    let_modes_see,
    outside_graphs,
    tree_leaves,
    tree_map_only,
)


class Conversion:
    """What a converted network carries: the activation, its sites, and how to run with them."""

    temperature_augmented = False
    """Whether the temperature was fitted to augmented passes."""

    def __init__(
        self, activation: Randomness, sites: SiteTable, chosen: frozenset | None, paths: list[str], seed: int
    ) -> None:
        self.token = uuid.uuid4().hex
        self.activation = activation
        self.sites = sites
        self.chosen = chosen  # None: every site, also those the example did not reach
        self.mode = "random"
        self.numbers = [site.number for site in sites]
        self._words: Tensor | None = None  # the numbers as a tensor, where the network is
        self.seed = seed  # of the first plain calls
        self.path_words = {path: path_word(path) for path in paths}
        self.positions = {(site.path, site.call): site.index for site in sites}
        calls, random = Counter(site.path for site in sites), Counter(path for path, _ in chosen or ())
        # How often the modules ran their sites for the example, where some of these were chosen and others not.
        self.chosen_among = {path: count for path, count in calls.items() if 0 < random[path] < count}
        self.inputs = 1  # how many arguments the example had by position
        self.warned: set[tuple[str, int]] = set()
        self.plans: dict[Any, Any] = {}  # what the sampler found out about this network's passes; copies begin anew
        self.example: Any = None  # what the sites were found with, tensors without their content
        self.others: dict[str, int] = {}  # activations of other kinds that the example met, by name
        self.temperature = 1.0
        self.classes: tuple[str, ...] | None = None

    def refuse_augmented(self, what: str) -> None:
        """Raise if the temperature is for augmented passes, which something does not make."""
        if self.temperature_augmented:
            raise InvalidInput(
                f"the temperature {self.temperature:.4g} of this network was fitted to augmented passes, which {what} "
                "does not make; tune without augment=, or take it away with rbue.set_temperature(network, 1)."
            )

    def summary(self, network: nn.Module) -> ConversionSummary:
        """What it is, for people."""
        random = [site for site in self.sites if self.chosen is None or (site.path, site.call) in self.chosen]
        return ConversionSummary(
            type(network).__name__,
            self.activation,
            self.sites,
            SiteTable(random),
            everywhere=self.chosen is None,
            plain={} if self.activation.in_every_module else dict(self.others),
            temperature=self.temperature,
            classes=self.classes,
        )

    def run(self, network: nn.Module, forward: Callable, args: tuple, kwargs: dict[str, Any]) -> Any:
        """Run the network's own ``forward`` with its call sites made random."""
        outer = current_scope()
        given = self._given_draw()
        how = self.mode if given is None else "random"
        if how == "plain":
            with suspended(outer):  # its sites are not those of a network around it either
                return forward(network, *args, **kwargs)
        x = draws.first_tensor([args, kwargs])
        leaves = tree_leaves((args, kwargs)) if x is None else []
        x = draws.first_tensor(leaves) if x is None else x  # that of a container which torch knows, as a TensorDict
        if how == "random" and given is None and is_exporting_to_onnx():  # whose graphs cannot count their calls
            raise ConversionError(
                "torch.onnx.export would freeze the random bits of a converted network; use rbue.export(net, file, "
                'example=x), or export it inside rbue.mode(net, "mean").'
            )
        if x is not None:
            draws.leave_meta(network, x.device, self.seed)
        place = Scope(network, self.token)
        hook = None if given is None else given.hook
        if how == "mean":
            mode = SiteMode(place, self.activation, self._mean)
        else:
            draw = self._direct_draw(network, x, leaves) if given is None else given
            handler = _RandomSites(self, network, draw)
            if hook is None:
                mode = SiteMode(place, self.activation, handler)
            else:
                mode = hook.mode(place, self.activation, handler, (args, kwargs))
        with suspended(outer), mode:
            out = following.run_forward(forward, network, args, kwargs)
        if hook is not None:
            hook.finish()
        for path, calls in self.chosen_among.items():
            met = place.counts.get(path, calls)
            if met < calls and (path, -1) not in self.warned:
                self.warned.add((path, -1))
                _warn_fewer(self.activation.noun, path, met, calls)
        if outer is not None:
            outer.holds_converted = True
        if not place.counts and not place.holds_converted and not self.sites:
            raise ConversionError(tracing.nothing_met(network, Batch(args, kwargs), self.activation))
        return out

    def __getstate__(self) -> dict[str, Any]:
        # A block that set another mode ends for the original alone; plans are cheap to make and of one machine.
        return self.__dict__ | {"mode": "random", "plans": {}}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        checkpointing.install()  # a pickled network may arrive in a process that has converted none

    def moved(self, network: nn.Module, before: dict[str, Tensor | None]) -> None:
        """The network's tensors, among them ``before``, have been replaced by others, somewhere else perhaps."""
        draws.carry_over(network, before, self.seed)
        self._keep_words(network.get_buffer(draws.SEED).device)

    def site_words(self, device: torch.device) -> Tensor:
        """The numbers of the known sites, on a device: kept where the network is, constants in an exported program."""
        if self._words is None or is_exporting():
            return draws.site_words(self.numbers, device)
        return self._words.to(device)

    def _keep_words(self, device: torch.device) -> None:
        with torch.inference_mode(False):
            self._words = None if device.type == "meta" else draws.site_words(self.numbers, device)

    def is_random(self, path: str, call: int) -> bool:
        """Whether this site is to be random; warn, once, about one that no placement decided on."""
        if self.chosen is None or (path, call) in self.chosen:
            return True
        if (path, call) not in self.positions and (path, call) not in self.warned:
            self.warned.add((path, call))
            _warn_unreached(self.activation.noun, path, call)
        return False

    def _mean(self, call: SiteCall, path: str, number: int, proceed: Callable[..., Any]) -> Any:
        activation = self.activation.at(call)
        if not isinstance(activation, Activation) or not self.is_random(path, number):
            return proceed()  # dropout keeps the mean
        if call.inplace:
            return call.x.copy_(activation.mean(call.x.clone(), call))
        out = activation.mean(call.x, call)
        return out.clone() if call.keeps_input and out.requires_grad else out  # the network may change it in place

    def _given_draw(self) -> draws.Draw | None:
        """The draw that this thread's sampler wants, whatever the mode."""
        given = draws.running.draws
        return given[1] if given is not None and given[0] == self.token else None

    def _direct_draw(self, network: nn.Module, x: Tensor | None, leaves: list[Any]) -> draws.Draw:
        if x is None and any(map(_may_hold_tensors, leaves)):  # the whole of it counts as one image
            return checkpointing.recorded(lambda: draws.direct_draw(network, 1, network.get_buffer(draws.SEED).device))
        if x is None:
            needs = "a converted network needs a tensor with a batch dimension among its inputs"
            if any(isinstance(one, torch.fx.Proxy) for one in leaves):
                way = "torch.fx gives it none, so trace the network first and convert what comes of it"
                raise InvalidInput(f"{needs}; {way}.")
            kinds = ", ".join(sorted({type(one).__name__ for one in leaves}))
            way = f", not {kinds}; of an array or a table give torch.tensor(np.asarray(x))" if kinds else ""
            raise InvalidInput(f"{needs}{way}.")
        return checkpointing.recorded(lambda: draws.direct_draw(network, x.shape[0], x.device))


def _may_hold_tensors(value: Any) -> bool:
    """Whether an argument is an object of the user's, such as a graph; arrays would not run as tensors do."""
    known = value is None or isinstance(value, (Number, str, bytes, torch.fx.Proxy))
    return not known and not hasattr(type(value), "__array__")


@outside_graphs
def _warn_unreached(noun: str, path: str, call: int) -> None:
    warn(
        f"the {noun} at {site_name(path, call)} was not reached by the example given to convert, so it stays plain; "
        "use where='all' or an example that reaches it."
    )


@outside_graphs
def _warn_fewer(noun: str, path: str, met: int, calls: int) -> None:
    warn(
        f"{path or '(root)'} ran {met} {noun} call{'s' * (met > 1)} and {calls} for the example given to convert; they "
        "are told apart by their order, so others than those chosen may be random; give each a module of its own, or "
        "convert with an input like this one."
    )


class _RandomSites:
    """The handler of one pass: every chosen site with the keys of its rows."""

    def __init__(self, conversion: Conversion, network: nn.Module, draw: draws.Draw) -> None:
        self.conversion = conversion
        self.draw = draw
        self.relu = random_relu if draw.hook is None else draw.hook.relu
        self.known = draw.site_keys(conversion.site_words(draw.images.device), conversion.activation)

    def __call__(self, call: SiteCall, path: str, number: int, proceed: Callable[..., Any]) -> Any:
        if not self.conversion.is_random(path, number) or call.x.numel() == 0:
            return proceed()
        out = self._drawn(call, path, number, proceed)
        if self.draw.hook is not None:
            self.draw.hook.after_site(out)
        return out

    def _drawn(self, call: SiteCall, path: str, number: int, proceed: Callable[..., Any]) -> Any:
        x = call.x
        if self.draw.rows == 0:
            raise InvalidInput("the first tensor given to a converted network must have the batch, but it has no rows.")
        conversion = self.conversion
        warn_of_own_backward(x, conversion.activation.noun, path, number, conversion.warned)
        activation = conversion.activation.at(call)
        keys = self._keys(path, number, activation)
        repeat = 1 if self.draw.hook is None else self.draw.hook.before_site(x)
        if x.shape[0] % (self.draw.rows // repeat):
            if self.draw.samples.shape[0] > 1:
                raise NotFoldable(site_name(path, number))
            keys = self.draw.renumbered(x.shape[0]).site_keys(self._number(path, number), activation)[:, 0]
        return site_function(activation)(call, activation, keys.to(x.device), repeat, self.relu, proceed)

    def _number(self, path: str, number: int) -> Tensor:
        word = site_number(self.conversion.path_words[path], number)
        return random_stream.number(word, self.draw.images.device).reshape(1)

    def _keys(self, path: str, number: int, activation: Randomness) -> Tensor:
        position = self.conversion.positions.get((path, number))
        other_cycle = self.draw.balanced and activation.cycle != self.conversion.activation.cycle
        if position is not None and not other_cycle:
            return self.known[:, position]
        return self.draw.site_keys(self._number(path, number), activation)[:, 0]


class NotFoldable(ConversionError):
    """Samples cannot be stacked along the batch, because a site's first dimension is not the batch."""

    def __init__(self, site: str) -> None:
        super().__init__(f"the first dimension at the site {site} is not the batch.")
        self.site = site


def convert(model: nn.Module, activation: Randomness, where: Placement = "all", example: Any = None) -> nn.Module:
    """Make the ReLUs of a network random, in place, and return the network.

    Every spelling is found: ``nn.ReLU``, ``F.relu``, ``torch.relu``, ``x.relu()``, the in-place forms,
    ``clamp(min=0)``, ``threshold(0, 0)``, and ReLU6 or ``hardtanh(0, c)`` with the cap kept. Parameters, hooks and
    state-dict keys stay as they are. The result is random in training and in evaluation mode; each call draws
    new bits (see :func:`seed`). Converting again replaces the earlier conversion. ``deepcopy`` the network
    first if you want to keep a plain one.

    **Train or fine-tune the network with its random ReLUs.** A network trained with plain ReLUs has never seen
    them: converting it without training costs accuracy, more so the smaller ``q`` and the more sites.

    Args:
        model: the network; a ``torch.compile``, ``DataParallel`` or DDP wrapper around it is fine.
        activation: ``DropReLU(q)`` or ``RReLU(lower, upper)``; ``DropActivation(q)`` for networks with GELU, SiLU and
            the like; or ``Dropout(p)``, the baseline, whose sites are the inputs of convolutions and linear layers
            (``where="last"`` is the classifier's); or an object of a class of your own (:mod:`rbue.activations.base`).
        where: ``"all"``, ``"first"``, ``"last"``, ``"last block"`` (the smallest module around the last site that has
            several, or else the last quarter), an index, a name such as ``"layer4.0.relu[1]"``, a pattern such as
            ``"layer4.*"``, a list of these, or a function of a :class:`~rbue.call_sites.table.Site`.
        example: an input (a tensor or array, a tuple of arguments, a dict of keyword arguments, or a ``Dataset`` or
            loader, of which the first batch is taken). Needed for every placement except ``"all"``. Sites it does not
            reach are random under ``"all"`` and plain, with a warning, otherwise.

    Raises:
        ConversionError: no ReLU was found, or part of the network cannot be seen (scripted or traced code).

    >>> from rbue import DropReLU
    >>> net = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3))
    >>> x = torch.randn(64, 4)
    >>> net = convert(net, DropReLU(q=0.5), example=x)
    >>> bool((net(x) == net(x)).all())
    False
    """
    network = tracing.innermost(model)
    tracing.check_activation(activation)
    if isinstance(where, Tensor):
        raise InvalidInput(f"where is a tensor of shape {tuple(where.shape)}; if it is the example, give example=x.")
    everything = isinstance(where, str) and where == "all"
    others: dict[str, int] = {}
    if example is None:
        tracing.refuse_unseen_parts(network)
        if not everything:
            raise InvalidInput(f"where={where!r} needs an example input to find the call sites; pass example=x.")
        found, chosen = SiteTable(()), None
    else:
        call = example_call(example, network)
        found, others = tracing.find_sites(network, call, activation)
        chosen = None if everything else choose(found, where, activation.noun)
    conversion = install(network, activation, found, chosen)
    conversion.others = others
    if example is not None:
        conversion.inputs = max(1, call.positional)
        args, kwargs = call.arguments
        if any(call.has_rows):  # an object of the user's is not kept
            with suppress(Exception):  # only rbue.save has use for it, and asks for an example if it is not there
                conversion.example = tree_map_only(Tensor, lambda x: torch.empty_like(x, device="meta"), kwargs or args)
    warn_of_plain(conversion.summary(network), where)
    return model


def install(network: nn.Module, activation: Randomness, found: SiteTable, chosen: frozenset | None) -> Conversion:
    """Make call sites random that are known already, in the place of an earlier conversion."""
    if following.CONVERSION in network.__dict__:
        revert(network)
    paths = [path for path, _ in network.named_modules()]
    start = int(torch.randint(1 << 62, (), dtype=torch.int64, device="cpu"))
    conversion = Conversion(activation, found, chosen, paths, start)
    with torch.inference_mode(False):  # they count calls outside it too
        draws.attach_buffers(network, start)
        conversion.moved(network, dict(network._buffers))
    following.follow(network, conversion.token, activation)
    let_modes_see(activation.calls)
    network.__dict__[following.CONVERSION] = conversion
    checkpointing.install()
    return conversion


def revert(model: nn.Module) -> nn.Module:
    """Give a converted network its plain ReLUs back, in place, and return it."""
    network = tracing.innermost(model)
    conversion = conversion_of(network)
    del network.__dict__[following.CONVERSION]
    following.unfollow(network, conversion.token)
    draws.detach_buffers(network)
    return model


def conversion_of(network: nn.Module) -> Conversion:
    """The conversion a network carries, or an error that says how to make one."""
    found = network.__dict__.get(following.CONVERSION)
    if found is None:
        part = following.converted_part(network)
        if part is not None:
            raise ConversionError(
                f"{type(network).__name__} is not converted, but the network inside it at {part!r} is; give that one."
            )
        raise ConversionError(
            f"{type(network).__name__} is not converted; call rbue.convert(model, rbue.DropReLU(q=0.9), "
            "example=x) first."
        )
    return found
