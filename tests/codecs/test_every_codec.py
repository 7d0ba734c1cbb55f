"""What holds for every codec: shapes, types, lengths, layouts, the same bytes every time, the same bits in place."""

import copy
from dataclasses import fields, replace
from itertools import product

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import thinpipe
from codec_support import CHAINS, DTYPES, EXACT_DTYPES, SPECS, crossed, raw, same_bits, shapes, tensor_of, tensors
from thinpipe import Packet, codec
from thinpipe.codecs import CATALOGUE
from thinpipe.codecs.order import inverse
from thinpipe.errors import CodecError
from thinpipe.kernels import REFERENCE, using

every_codec = pytest.mark.parametrize("spec", SPECS)


def may_overflow(spec, x):
    """A cast has a smaller range; averages and factors are sums, which do not fit where the values hardly do."""
    narrower = any(name in spec for name in ("fp16", "bf16", "power", "svd", "downsample"))
    return narrower and x.double().abs().max() > (6e4 if "fp16" in spec else 1e36)


def test_these_tests_know_every_codec_there_is():
    assert all(any(name in spec for spec in SPECS) for name in CATALOGUE)


@every_codec
@settings(deadline=None, max_examples=25)
@given(x=tensors())
def test_a_tensor_keeps_its_shape_and_type_in_a_packet_of_the_stated_length(spec, x):
    a = codec(spec)
    packet = a.encode(x)
    message = bytes(packet)
    stated = a.nbytes(x.shape, x.dtype)
    assert packet.nbytes == len(message)
    assert packet.nbytes == stated if a.fixed_rate else packet.nbytes <= stated
    y = a.decode(packet)
    assert (y.shape, y.dtype, y.device) == (x.shape, x.dtype, x.device)
    assert torch.isfinite(y).all() or may_overflow(spec, x), "a finite tensor came back with values that are not"
    assert same_bits(codec(spec).decode(Packet.from_bytes(message)), y)
    assert same_bits(thinpipe.decode(Packet.from_bytes(bytearray(message))), y)
    assert bytes(codec(spec).encode(x)) == message


@every_codec
@settings(deadline=None, max_examples=10)
@given(x=tensors(), seed=st.integers(0, 99))
def test_in_place_and_over_bytes_agree_bit_for_bit_forward_and_backward(spec, x, seed):
    there, back = codec(spec), codec(spec)
    leaf = x.clone().requires_grad_()
    arrived = thinpipe.compress(leaf, forward=there, backward=back)
    grad = tensor_of("log-normal", x.shape, x.dtype, seed)
    arrived.backward(grad)

    sender, receiver, grad_sender, grad_receiver = codec(spec), codec(spec), codec(spec), codec(spec)
    sent = sender.encode(x)
    received = Packet.from_bytes(bytes(sent))
    assert same_bits(receiver.decode(received), arrived)
    grad_packet = grad_sender.for_gradient_of(received).encode(grad)
    returned = grad_receiver.for_gradient_of(sent).decode(Packet.from_bytes(bytes(grad_packet)))
    assert same_bits(returned, leaf.grad)


@every_codec
@settings(deadline=None, max_examples=10)
@given(shape=shapes, dtype=st.sampled_from(EXACT_DTYPES), seed=st.integers(0, 99))
def test_what_is_not_floating_point_travels_exactly(spec, shape, dtype, seed):
    x = (tensor_of("gaussian", shape, torch.float64, seed) * 50).abs().to(dtype)
    assert same_bits(crossed(spec, x), x)
    assert codec(spec).encode(x).nbytes == codec(spec).nbytes(x.shape, x.dtype)
    assert thinpipe.compress(x, spec, spec) is x


LAYOUTS = {
    "channels_last": lambda x: x.contiguous(memory_format=torch.channels_last),
    "transposed": lambda x: x.transpose(0, 3),
    "permuted": lambda x: x.permute(2, 0, 3, 1),
    "strided": lambda x: x[:, ::2, 1:, ::3],
    "expanded": lambda x: x[:, :1, :1].expand(-1, 3, 5, -1),
    "narrowed": lambda x: x[1:, 2:4],
    "sliced to nothing": lambda x: x[:0],
}


@every_codec
@pytest.mark.parametrize("layout", LAYOUTS)
def test_every_layout_arrives_with_its_values_in_place(spec, layout):
    x = LAYOUTS[layout](tensor_of("gaussian", (4, 6, 8, 9)))
    a = codec(spec)
    y = a.decode(a.encode(x))
    assert y.shape == x.shape
    dense = x.numel() and x.permute(sorted(range(4), key=lambda dim: -x.stride()[dim])).is_contiguous()
    assert y.stride() == x.stride() if dense else y.is_contiguous(), "a dense tensor comes back as it lay in memory"
    if dense and not a.coder.shaped:
        in_memory = x.permute(sorted(range(4), key=lambda dim: -x.stride()[dim])).contiguous()
        assert raw(codec(spec).decode(codec(spec).encode(in_memory)).flatten()) == raw(
            y.permute(sorted(range(4), key=lambda dim: -x.stride()[dim])).flatten()
        )
    else:
        assert same_bits(y.contiguous(), codec(spec).decode(codec(spec).encode(x.contiguous())))


@every_codec
@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16, torch.float16], ids=str)
def test_channels_lie_last_or_first_with_the_same_values_in_every_type(spec, dtype):
    x = (tensor_of("gaussian", (3, 5, 4, 7)) * 1e4).to(dtype)
    a, b = codec(spec), codec(spec)
    if a.coder.shaped:
        y = a.decode(a.encode(x.contiguous(memory_format=torch.channels_last)))
        assert y.is_contiguous(memory_format=torch.channels_last)
        assert same_bits(y.contiguous(), b.decode(b.encode(x)))


def without_strides(kernel):
    """Has a kernel refuse what does not lie in a row: on a GPU it gets an address, and reads on from there."""

    def checked(*arguments):
        assert all(x.is_contiguous() for x in arguments if isinstance(x, torch.Tensor))
        return kernel(*arguments)

    return checked


STRICT = replace(
    REFERENCE, **{each.name: without_strides(getattr(REFERENCE, each.name)) for each in fields(REFERENCE)[1:]}
)


@every_codec
@pytest.mark.parametrize("orders", [[(0, 1, 2, 3), (0, 2, 3, 1), (3, 1, 2, 0)], [(0, 1, 2), (0, 2, 1)]], ids=["4", "3"])
def test_kernels_are_given_tensors_in_a_row_both_ways_whatever_the_layouts(spec, orders):
    """A GPU put the gradients of ``topk`` in wrong places: it was given a view, of channels that lie last."""
    x, grad = (tensor_of("gaussian", (4, 6, 8, 9)[: len(orders[0])], seed=seed) for seed in (0, 1))
    for there, back in product(orders, repeat=2):
        with using(STRICT):
            packet = codec(spec).encode(x.permute(there).contiguous().permute(inverse(there)))
            codec(spec).decode(packet)
            chosen = codec(spec).for_gradient_of(packet)
            lies = grad.permute(back).contiguous().permute(inverse(back))
            assert chosen.decode(chosen.encode(lies)).stride() == lies.stride()


@every_codec
def test_a_tensor_that_wants_a_gradient_is_coded_without_a_graph(spec):
    x = tensor_of("gaussian", (6, 7)).requires_grad_()
    before = x.detach().clone()
    y = codec(spec).decode(codec(spec).encode(x))
    assert not y.requires_grad
    assert torch.equal(x, before)


@every_codec
@pytest.mark.parametrize("dtype", [torch.float8_e4m3fn, torch.float8_e5m2], ids=str)
def test_eight_bit_floats_are_coded_too(spec, dtype):
    x = tensor_of("gaussian", (4, 6)).to(dtype)
    a = codec(spec)
    for _ in range(2):
        y = a.decode(a.encode(x))
        assert y.dtype == dtype
        assert torch.isfinite(y.float()).all()


@pytest.mark.parametrize("spec", ["none", "fp16", "topk:1", "uniform:8", "sort:6+2", "block:8"])
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_a_decoded_tensor_is_ones_own(spec, dtype):
    """What is decoded must not be a window on the message: a stage may write to its input in place."""
    a = codec(spec)
    packet = a.encode(torch.ones(64, dtype=dtype))
    before = bytes(packet)
    a.decode(packet).zero_()
    assert bytes(packet) == before
    x = torch.ones(64, dtype=dtype)
    a.decode(a.encode(x)).zero_()
    assert torch.equal(x, torch.ones(64, dtype=dtype))


@pytest.mark.parametrize("spec", ["none", "block:4"])
@pytest.mark.parametrize(
    "tensor",
    [torch.eye(3).to_sparse(), torch.empty(3, device="meta"), torch.ones(2).to(torch.float8_e8m0fnu)],
    ids=["sparse", "meta", "exponents"],
)
def test_a_tensor_without_ordinary_elements_is_refused(spec, tensor):
    with pytest.raises(CodecError, match="dense tensor of an ordinary type"):
        codec(spec).encode(tensor)


def test_more_dimensions_than_a_packet_counts_are_refused():
    with pytest.raises(CodecError, match="32 dimensions"):
        bytes(codec("none").encode(torch.ones([1] * 33)))


@pytest.mark.parametrize("spec", [*CHAINS, "ef(block:4,sr)", "uniform:8,sr", "power:2"])
def test_a_copy_of_a_codec_goes_its_own_way(spec):
    x = tensor_of("gaussian", (3, 8, 8))
    original = codec(spec)
    original.encode(x)
    twin = copy.deepcopy(original)
    expected = [bytes(original.encode(x)) for _ in range(2)]
    assert [bytes(twin.encode(x)) for _ in range(2)] == expected


def test_a_codec_is_taken_as_it_is():
    a = codec("block:4")
    assert codec(a) is a
    assert repr(a) == "codec('block:4/128')"
