"""I and W together are B: the same gradients, nothing computed twice, and nothing held when both are done."""

import copy
import gc
import weakref
from typing import ClassVar

import pytest
import torch
from torch import Tensor, nn
from torch.autograd.graph import get_gradient_edge
from torch.nn.utils import parametrizations
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map_only, tree_structure, tree_unflatten
from torch.utils.checkpoint import checkpoint

from support import Begin, End, square_loss
from thinpipe.links import LocalLink
from thinpipe.runtime.ambient import Ambient
from thinpipe.runtime.parcel import Edge, Grads, Parcel, back, there
from thinpipe.runtime.randomness import DrawingHabits
from thinpipe.runtime.split_backward import input_backward
from thinpipe.runtime.worker import Station, Worker
from thinpipe.schedule import Action, Kind, gpipe_forward, one_line, plan
from thinpipe.stages.split import split

CPU = torch.device("cpu")


class Line:
    """The workers of a model, all in this thread, with the micro-batches forward and their loss's gradients waiting."""

    def __init__(self, model, balance, pieces, *, loss=square_loss, recomputed=(), thrifty=False, device=CPU):
        n, m = len(balance), len(pieces)
        self.pieces = pieces
        self.wants = [[isinstance(x, Tensor) and x.requires_grad for x in tree_leaves(piece)] for piece in pieces]
        self.link = LocalLink()
        randomness = DrawingHabits(n).step([device] * n, m, training=True)
        self.workers = [
            Worker(
                Station(stage, {}, thrifty=thrifty),
                ambient=Ambient.capture([device]),
                randomness=draws,
                recomputed=frozenset(recomputed),
                wants_graph=True,
                threads=torch.get_num_threads(),
            )
            for stage, draws in zip(split(model, balance, [device] * n), randomness.stages, strict=True)
        ]
        for i, piece in enumerate(pieces):
            leaves = [x.detach().clone() if isinstance(x, Tensor) else x for x in tree_leaves(piece)]
            self.link.send(there(Edge(-1, 0), i), Parcel(leaves, tree_structure(piece), self.wants[i], {}))
        self.do(*one_line(gpipe_forward(n, m)))
        for i in range(m):
            parcel = self.link.receive(there(Edge(n - 1, n), i))
            if any(parcel.wants_grad):
                outputs = [
                    x.requires_grad_() if wants else x
                    for x, wants in zip(parcel.leaves, parcel.wants_grad, strict=True)
                ]
                loss(tree_unflatten(outputs, parcel.spec)).backward()
                grads = [x.grad if isinstance(x, Tensor) else None for x in outputs]
                self.link.send(back(Edge(n - 1, n), i), Grads(grads, {}))

    def do(self, *actions, keep_graph=False):
        for action in actions:
            action = Action.parse(action) if isinstance(action, str) else action
            self.workers[action.stage].run([action], self.link, keep_graph=keep_graph)

    def input_grads(self):
        return [self.link.receive(back(Edge(-1, 0), i)).leaves if any(w) else None for i, w in enumerate(self.wants)]

    def grads(self):
        return [worker.aliases.take_grads() for worker in self.workers]


def backward_actions(n, m, order):
    """B for every stage and micro-batch, or I with W at once, at the end, or as a zero-bubble schedule has it."""
    if order == "zb":
        job, lists = plan("zb", n, m)
        return [action for action in _as_they_can(job, lists) if action.kind is not Kind.FORWARD]
    kinds = {"B": "B", "at once": "IW", "at the end": "I"}[order]
    ways = [(i, j) for i in reversed(range(m)) for j in reversed(range(n))]
    end = ways if order == "at the end" else []
    return [f"{kind}{j}.{i}" for i, j in ways for kind in kinds] + [f"W{j}.{i}" for i, j in end]


def _as_they_can(job, lists):
    """Merges the workers' lists, each action after those it waits for."""
    lists, done = [list(actions) for actions in lists], []
    while any(lists):
        for actions in lists:
            while actions and all(need in done for need in job.needs(actions[0])):
                done.append(actions.pop(0))
    return done


def outcome(model, balance, pieces, order, **options):
    recomputed = options.get("recomputed", ())
    n, m = len(balance), len(pieces)
    line = Line(copy.deepcopy(model), balance, pieces, **options)
    for action in backward_actions(n, m, order):
        action = Action.parse(action) if isinstance(action, str) else action
        if action.kind in (Kind.BACKWARD, Kind.INPUT) and action.micro in recomputed:
            line.do(Action(Kind.RECOMPUTE, action.stage, action.micro))
        line.do(action)
    for worker in line.workers:
        assert not (worker._graphs or worker._kept or worker._owed or worker._asked or worker._grad_codecs)
    return line.input_grads(), [grad for grads in line.grads() for grad in grads]


def plain(model, pieces, loss):
    """The same by one device and plain autograd."""
    model = copy.deepcopy(model)
    input_grads = []
    for piece in pieces:
        piece = tree_map_only(Tensor, lambda x: x.detach().clone().requires_grad_(x.requires_grad), piece)
        loss(model(piece)).backward()
        wanted = [isinstance(x, Tensor) and x.requires_grad for x in tree_leaves(piece)]
        grads = [x.grad if isinstance(x, Tensor) else None for x in tree_leaves(piece)]
        input_grads.append(grads if any(wanted) else None)
    return input_grads, [parameter.grad for parameter in model.parameters() if parameter.requires_grad]


ORDERS = ["at once", "at the end", "zb"]
TIGHT = {"rtol": 1e-12, "atol": 1e-13}


def assert_split_is_whole(model, balance, pieces, **options):
    expected = outcome(model, balance, pieces, "B", **options)
    torch.testing.assert_close(expected, plain(model, pieces, options.get("loss", square_loss)), **TIGHT)
    for order in ORDERS:
        torch.testing.assert_close(outcome(model, balance, pieces, order, **options), expected, **TIGHT)


def rows(*shape, m=3, wants_grad=True):
    return [torch.randn(*shape, dtype=torch.float64, requires_grad=wants_grad) for _ in range(m)]


class Residual(nn.Module):
    def __init__(self, *layers):
        super().__init__()
        self.body = nn.Sequential(*layers)

    def forward(self, x):
        return x + self.body(x)


class Scaled(nn.Module):
    """Its weight is itself computed, from two others: a branch of the graph that leads to no input."""

    def __init__(self):
        super().__init__()
        self.one, self.two = nn.Parameter(torch.randn(4, 4)), nn.Parameter(torch.randn(4))

    def forward(self, x):
        weight = (self.one * self.two).tanh()
        return torch.addmm(self.two, x, weight)


class Tied(nn.Module):
    """Uses one layer twice, one after the other, and another beside it."""

    def __init__(self, layer):
        super().__init__()
        self.layer, self.own = layer, copy.deepcopy(layer)

    def forward(self, x):
        return self.layer(self.own(self.layer(x).tanh()))


class Slices(nn.Module):
    """Writes into parts of a tensor, in place."""

    def __init__(self):
        super().__init__()
        self.linear, self.gain = nn.Linear(2, 2), nn.Parameter(torch.rand(2))

    def forward(self, x):
        y = x * 2
        y[:, :2] = self.linear(x[:, 2:])
        y[:, 1:3] *= self.gain
        return y.relu_()


class Python(torch.autograd.Function):
    """A product that makes both gradients, wanted or not, and counts."""

    runs = 0

    @staticmethod
    def forward(ctx, x, weight):
        ctx.save_for_backward(x, weight)
        return x @ weight

    @staticmethod
    def backward(ctx, grad):
        Python.runs += 1
        x, weight = ctx.saved_tensors
        return grad @ weight.T, x.T @ grad


class ByPython(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(4, 4))

    def forward(self, x):
        return Python.apply(x, self.weight)


class Fork(nn.Module):
    """Two outputs for one input: one through a layer, one with a weight that no input reaches."""

    def __init__(self):
        super().__init__()
        self.linear, self.alone = nn.Linear(4, 4), nn.Parameter(torch.randn(4, 4))

    def forward(self, x):
        return self.linear(x), self.alone.tanh() * 2, len(x)


class Join(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(4, 4)

    def forward(self, parts):
        x, weight, count = parts
        return self.linear(x) @ weight / count


class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.attention = nn.MultiheadAttention(4, 2, batch_first=True)

    def forward(self, x):
        return self.attention(x, x, x, need_weights=False)[0]


class Recurrent(nn.Module):
    def __init__(self):
        super().__init__()
        self.recurrent = nn.GRU(4, 4, batch_first=True)

    def forward(self, x):
        return self.recurrent(x)[0]


def flat_models():
    def linear():
        return nn.Linear(4, 4)

    frozen = nn.Sequential(linear(), nn.Tanh(), linear(), linear())
    frozen[0].requires_grad_(False)
    frozen[2].weight.requires_grad_(False)
    frozen[3].bias.requires_grad_(False)
    return {
        "linear": nn.Sequential(linear(), nn.ReLU(inplace=True), linear(), nn.Tanh()),
        "in place": nn.Sequential(linear(), nn.LeakyReLU(inplace=True), linear(), nn.ReLU(inplace=True)),
        "norms": nn.Sequential(nn.LayerNorm(4), linear(), nn.BatchNorm1d(4), linear()),
        "residual": nn.Sequential(
            Residual(nn.LayerNorm(4), linear(), nn.GELU()), linear(), Residual(linear()), linear()
        ),
        "no parameters": nn.Sequential(nn.Tanh(), nn.Softmax(-1), nn.Identity(), nn.Tanh()),
        "frozen": frozen,
        "computed weights": nn.Sequential(Scaled(), nn.Tanh(), Scaled(), parametrizations.weight_norm(linear())),
        "tied": nn.Sequential(Tied(linear()), linear(), Tied(nn.LayerNorm(4)), linear()),
        "tied around": nn.Sequential(Tied(Scaled()), linear(), Residual(Tied(Scaled())), linear()),
        "slices": nn.Sequential(Slices(), linear(), Slices(), linear()),
        "python": nn.Sequential(linear(), ByPython(), nn.Tanh(), ByPython()),
        "several outputs": nn.Sequential(linear(), Fork(), Join(), linear()),
        "skips": nn.Sequential(Begin(4), linear(), linear(), End(4)),
    }


@pytest.mark.parametrize("balance", [[4], [2, 2], [1, 2, 1]], ids=str)
@pytest.mark.parametrize(
    ("name", "wants_grad"),
    [(name, wants) for name in flat_models() for wants in (True, False) if wants or name != "no parameters"],
)
def test_two_parts_make_the_gradients_of_the_whole(name, balance, wants_grad):
    model = flat_models()[name].double()
    assert_split_is_whole(model, balance, rows(6, 4, wants_grad=wants_grad))


@pytest.mark.parametrize("thrifty", [False, True])
@pytest.mark.parametrize("name", ["linear", "norms", "residual", "tied", "slices", "several outputs", "skips"])
def test_a_recomputed_micro_batch_goes_backward_in_two_parts_as_well(name, thrifty):
    model = flat_models()[name].double()
    assert_split_is_whole(model, [2, 2], rows(6, 4), recomputed={0, 1}, thrifty=thrifty)


def test_convolutions_and_their_kin():
    model = nn.Sequential(
        nn.Conv2d(2, 4, 3, padding=1, bias=False),
        nn.BatchNorm2d(4),
        nn.ReLU(inplace=True),
        Residual(nn.Conv2d(4, 4, 3, padding=1, groups=2), nn.GroupNorm(2, 4), nn.ReLU(inplace=True)),
        nn.MaxPool2d(2),
        nn.ConvTranspose2d(4, 2, 2, stride=2),
        Tied(nn.Conv2d(2, 2, 1)),
        nn.PReLU(2),
    )
    assert_split_is_whole(model.double(), [3, 2, 3], rows(2, 2, 4, 4))


def test_words_in_sequence():
    model = nn.Sequential(nn.Embedding(5, 4), Residual(Attention()), Recurrent(), nn.Linear(4, 5))
    assert_split_is_whole(model.double(), [1, 2, 1], [torch.randint(5, (2, 3)) for _ in range(3)])


def test_an_output_that_the_loss_does_not_use_has_no_gradient():
    model = nn.Sequential(nn.Linear(4, 4), Fork()).double()
    for chosen in (0, 1):
        assert_split_is_whole(model, [1, 1], rows(6, 4), loss=lambda output, k=chosen: output[k].square().sum())


def test_a_weight_may_be_an_output_itself():
    class Weight(nn.Linear):
        def forward(self, x):
            return super().forward(x), self.weight * 1, self.bias

    assert_split_is_whole(nn.Sequential(nn.Linear(4, 4), Weight(4, 4)).double(), [1, 1], rows(6, 4))


def test_autocast_casts_weights_on_the_way():
    model = nn.Sequential(nn.Linear(4, 4), nn.LayerNorm(4), Tied(nn.Linear(4, 4)), nn.Linear(4, 4))
    pieces = [x.detach().float().requires_grad_() for x in rows(6, 4)]
    with torch.autocast("cpu", torch.bfloat16):
        expected = outcome(model, [2, 2], pieces, "B")
        for order in ORDERS:
            torch.testing.assert_close(outcome(model, [2, 2], pieces, order), expected)


def test_a_weight_may_be_less_precise_than_what_it_works_on():
    class Gain(nn.Module):
        def __init__(self):
            super().__init__()
            self.gain = nn.Parameter(torch.rand(6, 4))

        def forward(self, x):
            return x * self.gain

    assert_split_is_whole(nn.Sequential(nn.Tanh(), Gain()), [1, 1], rows(6, 4, m=1))


@pytest.mark.cuda
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("name", flat_models())
def test_the_two_parts_on_a_gpu(name):
    """There autograd goes backward in threads of its own, and the second part does not."""
    model = flat_models()[name].double().cuda()
    pieces = [x.detach().cuda().requires_grad_() for x in rows(6, 4)]
    assert_split_is_whole(model, [2, 2], pieces, device=torch.device("cuda", 0))


@pytest.mark.parametrize("seed", range(25))
def test_graphs_that_nobody_would_draw(seed):
    """Anything may be used anywhere, any number of times: weights, inputs, and what was made of them."""
    torch.manual_seed(seed)

    def pick(things):
        return things[int(torch.randint(len(things), ()))]

    weights = [torch.randn(3, 3, dtype=torch.float64, requires_grad=True) for _ in range(5)]
    inputs = [torch.randn(3, 3, dtype=torch.float64, requires_grad=True) for _ in range(2)]
    operations = [torch.add, torch.mul, torch.mm, Python.apply, lambda a, b: a.clone().mul_(b), lambda a, _: a.tanh()]
    values = [*weights, *inputs]
    for _ in range(14):
        values.append(pick(operations)(pick(values), pick(values[-8:])) / 2)
    edges = [get_gradient_edge(x) for x in values[-3:]]
    grads = [torch.randn_like(x) for x in values[-3:]]
    torch.autograd.backward(edges, grads, retain_graph=True)
    expected = [x.grad for x in (*weights, *inputs)]
    for x in (*weights, *inputs):
        x.grad = None
    work = input_backward(edges, grads, inputs)
    torch.testing.assert_close([x.grad for x in inputs], expected[5:], **TIGHT)
    if work is not None:
        work()
    torch.testing.assert_close([x.grad for x in (*weights, *inputs)], expected, **TIGHT)


class Counted(TorchDispatchMode):
    """Counts matrix products, and writes down which gradients convolutions and norms were asked for."""

    def __init__(self):
        super().__init__()
        self.products, self.masks = 0, []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        name = func.overloadpacket.__name__
        self.products += name == "mm"
        if name in ("convolution_backward", "native_batch_norm_backward", "native_layer_norm_backward"):
            self.masks.append(tuple(args[-1]))
        return func(*args, **(kwargs or {}))


def counted(line, *actions):
    with Counted() as count:
        line.do(*actions)
    return count.products, count.masks


def test_each_part_multiplies_what_it_needs_and_the_whole_is_no_more():
    model = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 4)).double()
    line = Line(model, [5], rows(6, 4, m=2))
    assert counted(line, "I0.0") == (3, [])
    assert line.grads() == [[None] * 6]
    assert counted(line, "W0.0") == (3, [])
    assert counted(line, "B0.1") == (6, [])


def test_each_part_asks_layers_for_its_own_gradients_alone():
    model = nn.Sequential(nn.Conv2d(2, 2, 3), nn.BatchNorm2d(2), nn.ReLU(), nn.Conv2d(2, 2, 1), nn.LayerNorm((2, 2)))
    line = Line(model.double(), [5], rows(2, 2, 4, 4, m=1))
    asked, rest = (True, False, False), (False, True, True)
    # A batch norm's gradients come with that of its input, which it would compute a second time.
    assert counted(line, "I0.0") == (0, [asked, asked, (True, True, True), asked])
    assert counted(line, "W0.0") == (0, [rest] * 3)


def test_only_a_weight_that_is_used_twice_does_not_wait():
    line = Line(nn.Sequential(Tied(nn.Linear(4, 4)), nn.Linear(4, 4)).double(), [2], rows(6, 4, m=1))
    assert counted(line, "I0.0") == (4 + 2, [])
    ((weight, bias, *others),) = line.grads()
    assert weight is not None and bias is not None and others == [None] * 4
    assert counted(line, "W0.0") == (2, [])


def test_a_weight_that_does_not_wait_is_not_computed_again_with_one_that_does():
    class Biased(nn.Module):
        """One weight used twice, each time with a bias of its own."""

        def __init__(self):
            super().__init__()
            self.weight = nn.Parameter(torch.randn(4, 4))
            self.first, self.second = nn.Parameter(torch.randn(4)), nn.Parameter(torch.randn(4))

        def forward(self, x):
            return torch.addmm(self.second, torch.addmm(self.first, x, self.weight.T), self.weight.T)

    line = Line(nn.Sequential(Biased()).double(), [1], rows(6, 4, m=1))
    assert counted(line, "I0.0") == (2 + 2, [])
    assert counted(line, "W0.0") == (0, [])
    assert all(grad is not None for grad in line.grads()[0])


def test_a_stage_whose_input_wants_nothing_does_nothing_at_first():
    line = Line(nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4)).double(), [2], rows(6, 4, m=1, wants_grad=False))
    assert counted(line, "I0.0") == (0, [])
    assert counted(line, "W0.0") == (3, [])


def test_a_function_in_python_runs_once():
    line = Line(nn.Sequential(ByPython(), nn.Linear(4, 4)).double(), [2], rows(6, 4, m=1))
    Python.runs = 0
    line.do("I0.0", "W0.0")
    assert Python.runs == 1


@pytest.mark.parametrize("wants_grad", [True, False])
def test_a_reentrant_checkpoint_goes_backward_as_a_whole(wants_grad):
    """It refuses to be asked for the gradients of some leaves only."""

    class Checkpointed(nn.Module):
        def forward(self, x):
            return checkpoint(torch.tanh, x, use_reentrant=True)

    model = nn.Sequential(nn.Linear(4, 4), Checkpointed(), nn.Linear(4, 4)).double()
    assert_split_is_whole(model, [3], rows(6, 4, wants_grad=wants_grad))


def test_a_checkpoint_inside_a_stage_is_recomputed_for_each_part():
    class Checkpointed(nn.Linear):
        def forward(self, x):
            return checkpoint(super().forward, x, use_reentrant=False)

    model = nn.Sequential(Checkpointed(4, 4), nn.Tanh(), Checkpointed(4, 4)).double()
    assert_split_is_whole(model, [1, 2], rows(6, 4))


def test_hooks_inside_a_stage_are_called_once_and_obeyed_in_both_parts():
    """Were the engine to begin the second part where the first kept a gradient, it would call them again."""
    calls = []

    class Hooked(nn.Linear):
        def forward(self, x):
            y = super().forward(x)
            y.register_hook(lambda grad: calls.append("result") or grad * 3 + 1)
            y.grad_fn.register_prehook(lambda grads: calls.append("operation") or (grads[0] * 2,))
            self.weight.register_hook(lambda grad: calls.append("weight") or grad.clamp(-0.1, 0.1))
            return y

    model = nn.Sequential(nn.Linear(4, 4), nn.Tanh(), Hooked(4, 4), nn.Linear(4, 4)).double()
    pieces = rows(6, 4, m=1)
    assert_split_is_whole(model, [2, 2], pieces)
    calls.clear()
    outcome(model, [2, 2], pieces, "at once")
    assert sorted(calls) == ["operation", "result", "weight"]


def test_a_gradient_that_a_layer_retains_is_counted_once():
    kept = []

    class Retaining(nn.Linear):
        def forward(self, x):
            kept.append(super().forward(x))
            kept[-1].retain_grad()
            return kept[-1] * 1

    model = nn.Sequential(nn.Tanh(), Retaining(4, 4)).double()
    pieces = rows(6, 4, m=1)
    for order in ("B", "at once"):
        outcome(model, [2], pieces, order)
    torch.testing.assert_close(kept[1].grad, kept[0].grad, **TIGHT)


def test_module_hooks_are_called_once():
    calls = []
    model = nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 4)).double()
    for layer in model:
        layer.register_full_backward_hook(lambda layer, *_: calls.append(type(layer).__name__))
    Line(model, [3], rows(6, 4, m=1)).do("I0.0", "W0.0")
    assert sorted(calls) == ["Linear", "Linear", "Tanh"]


def test_a_backward_that_is_wanted_again_is_not_split():
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4)).double()
    pieces = rows(6, 4, m=1)
    once = outcome(model, [2], pieces, "B")
    line = Line(model, [2], pieces)
    grads = line.link.receive(back(Edge(0, 1), 0))
    for kept in (True, False):
        line.link.send(back(Edge(0, 1), 0), grads)
        line.do("I0.0", "W0.0", keep_graph=kept)
        torch.testing.assert_close((line.input_grads(), line.grads()[0]), once, **TIGHT)


class Mark(torch.autograd.Function):
    """The identity, whose node in the graph is counted as long as it lives."""

    alive: ClassVar = weakref.WeakSet()

    @staticmethod
    def forward(ctx, x):
        Mark.alive.add(ctx)
        return x.clone()

    @staticmethod
    def backward(ctx, grad):
        return grad


class Marked(nn.Module):
    def forward(self, x):
        return Mark.apply(x)


@pytest.fixture
def no_collector():
    """Nothing may hang on a cycle: it would hold a micro-batch's activations until the collector comes."""
    gc.collect()
    gc.disable()
    yield
    gc.enable()


@pytest.mark.usefixtures("no_collector")
def test_the_graph_goes_as_far_as_it_is_done_with():
    meanwhile = []

    class Noting(nn.Linear):
        def forward(self, x):
            self.weight.register_hook(lambda _: meanwhile.append(len(Mark.alive)))
            return super().forward(x)

    layers = [Marked(), Noting(4, 4), Marked(), nn.Linear(4, 4), Marked(), nn.Tanh()]
    line = Line(nn.Sequential(*layers).double(), [6], rows(6, 4, m=1))
    assert len(Mark.alive) == 3
    line.do("I0.0")
    assert len(Mark.alive) == 2  # nothing above the last weight is wanted any more
    line.do("W0.0")
    assert meanwhile == [0]  # weights get their gradients when the graph has done its part
    assert len(Mark.alive) == 0


@pytest.mark.usefixtures("no_collector")
def test_gradients_are_held_where_weights_hang_and_until_they_are_done():
    seen = weakref.WeakSet()

    class Seeing(nn.Module):
        def forward(self, x):
            y = x.tanh()
            y.register_hook(seen.add)
            return y

    layers = [nn.Linear(4, 4), Seeing(), Seeing(), nn.Linear(4, 4), Seeing()]
    line = Line(nn.Sequential(*layers).double(), [5], rows(6, 4, m=1))
    line.do("I0.0")
    assert len(seen) == 0  # tanh has no weights
    held = [place.arrived[0] for place in line.workers[0]._owed[0].args[0]]
    alive = weakref.WeakSet(held)
    assert len(alive) == 2
    del held
    line.do("W0.0")
    assert len(alive) == 0
