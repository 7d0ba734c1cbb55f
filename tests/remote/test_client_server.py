"""A client and a server train as one device does."""

import pytest
import torch
from torch import nn

from remote.models import batch, ends, loss_fn, offer, seeded_middle, sgd
from remote.proxy import Cable
from thinpipe.errors import PeerError, PeerLost, ThinpipeError
from thinpipe.remote.client import Client
from thinpipe.remote.server import Server
from thinpipe.trace import read_chrome


@pytest.fixture(scope="module")
def server():
    with Server({"middle": offer(), "dropping": offer(dropout=0.3)}, listen="127.0.0.1:0", max_clients=2) as running:
        yield running


def client_of(server, *, seed=1, dropout=0.0, name="middle", loss=loss_fn, **options):
    first, last = ends(seed, dropout=dropout)
    return Client(
        first,
        last,
        connect=server.address,
        offer=name,
        loss_fn=loss,
        optimizer=sgd,
        example=torch.zeros(1, 4),
        **options,
    )


def one_device(steps, chunks, *, rows=12):
    """Trains the whole model, micro-batch by micro-batch."""
    first, last = ends()
    model = nn.Sequential(first, seeded_middle(), last)
    optimizer = sgd(model.parameters())
    losses = []
    for step in range(steps):
        x, y = batch(step, rows)
        total = 0.0
        for a, b in zip(x.tensor_split(chunks), y.tensor_split(chunks), strict=True):
            if len(a) == 0:
                continue
            loss = loss_fn(model(a), b) * (len(a) / len(x))
            loss.backward()
            total += loss.item()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(total)
    return model, losses


@pytest.mark.parametrize(("chunks", "schedule"), [(1, "1f1b"), (4, "1f1b"), (3, "gpipe"), (4, "zb")])
def test_training_with_a_server_is_training_on_one_device(server, chunks, schedule):
    model, expected = one_device(5, chunks)
    with client_of(server, chunks=chunks, schedule=schedule) as client:
        losses = [client.step(*batch(step)).item() for step in range(5)]
        assert losses == pytest.approx(expected, rel=1e-5)
        for (name, own), whole in zip(client.first.state_dict().items(), model[0].state_dict().values(), strict=True):
            torch.testing.assert_close(own, whole, msg=name)
        x, y = batch(99)
        model.eval()
        torch.testing.assert_close(client.evaluate(x), model(x).detach())
        torch.testing.assert_close(client.evaluate(x, y), loss_fn(model(x), y).detach())
        assert client.committed == 5


def test_uneven_batches_and_a_codec_for_each_direction_of_each_cut(server):
    with client_of(
        server, chunks=4, codec={0: "block:8", 1: "uniform:8"}, grad_codec={0: "sort:6+2", 1: "none"}
    ) as client:
        losses = [client.step(*batch(step, rows)).item() for step, rows in enumerate([12, 11, 9])]
        _, expected = one_device(1, 4)
        assert losses[0] == pytest.approx(expected[0], rel=0.05) and losses[0] != expected[0]
        assert client.cost.rows == 9 and client.cost.raw_sent == 2 * 9 * 8 * 4


def test_a_step_says_what_it_cost(server):
    with client_of(server, chunks=2) as client:
        for step in range(3):
            client.step(*batch(step))
        cost = client.cost
    assert cost.step == 3 and cost.rows == 12
    for name in ("seconds", "computed", "server_computed", "encode", "decode", "server_encode", "server_decode"):
        assert 0 < getattr(cost, name) < 5, name
    # Activations of cut 0 and gradients of cut 1 go there, 8 numbers of 4 bytes a row each; the same comes back.
    assert cost.raw_sent == cost.raw_received == 2 * 12 * 8 * 4
    assert cost.sent > cost.raw_sent and cost.received > cost.raw_received
    assert cost.bandwidth_over_wall < cost.bandwidth_over_computation
    assert cost.peak >= cost.sent / 0.2


def test_the_learning_rate_and_the_clip_are_those_of_both_sides(server):
    first, last = ends()
    model = nn.Sequential(first, seeded_middle(), last)
    optimizer = sgd(model.parameters())
    with client_of(server) as client:
        for step, lr in enumerate([0.5, 0.02, 0.02]):
            x, y = batch(step)
            loss_fn(model(x), y).backward()
            norm = torch.nn.utils.clip_grad_norm_(model.parameters(), 0.1)
            assert norm > 0.1
            for group in optimizer.param_groups:
                group["lr"] = lr
            optimizer.step()
            optimizer.zero_grad()
            client.step(x, y, lr=lr, clip=0.1)
        x, _ = batch(50)
        torch.testing.assert_close(client.evaluate(x), model.eval()(x).detach())


def test_neither_inputs_nor_labels_are_on_the_wire(server):
    cable = Cable(server.address)
    cable.keeps = True
    first, last = ends()
    secrets = []
    with Client(first, last, connect=cable.address, offer="middle", loss_fn=loss_fn, optimizer=sgd, chunks=2) as client:
        for step in range(3):
            x, y = batch(step)
            secrets += [row.numpy().tobytes() for row in x]
            secrets += [part.numpy().tobytes() for part in y.split(3)]
            client.step(x, y)
            client.evaluate(x)
    cable.close()
    wire = bytes(cable.wire)
    assert len(wire) > 1000
    assert not [secret for secret in secrets if secret in wire]


def test_what_the_server_gets_is_found_on_the_wire_by_the_same_search(server):
    cable = Cable(server.address)
    cable.keeps = True
    first, last = ends()
    x, y = batch(0)
    activations = first(x).detach()
    with Client(first, last, connect=cable.address, offer="middle", loss_fn=loss_fn, optimizer=sgd) as client:
        client.step(x, y)
    cable.close()
    assert activations.numpy().tobytes() in bytes(cable.wire)


def test_dropout_depends_on_the_seed_and_the_step_alone(server):
    def run(seed):
        torch.manual_seed(5)
        with client_of(server, name="dropping", dropout=0.3, chunks=2, seed=seed) as client:
            losses = []
            for step in range(3):
                losses.append(client.step(*batch(step)).item())
                torch.rand(step)  # the caller's own draws are none of the client's business
        return losses

    assert run(3) == run(3) != run(4)
    with client_of(server, name="dropping", dropout=0.3) as client:
        before = torch.get_rng_state()
        client.step(*batch(0))
        assert torch.equal(torch.get_rng_state(), before)


def test_a_loss_that_draws_leaves_the_callers_generator_alone_and_draws_the_same_again(server):
    def noisy(output, target):
        return loss_fn(output + torch.randn_like(output), target)

    def run():
        torch.manual_seed(5)
        with client_of(server, loss=noisy, chunks=2, seed=3) as client:
            before = torch.get_rng_state()
            losses = [client.step(*batch(step)).item() for step in range(3)]
            assert torch.equal(torch.get_rng_state(), before)
        return losses

    assert run() == run()


def test_a_trace_has_both_sides_on_one_clock(server, tmp_path):
    with client_of(server, chunks=2, trace=tmp_path / "trace.json") as client:
        for step in range(3):
            client.step(*batch(step))
    spans = read_chrome(tmp_path / "trace.json").spans
    assert {span.rank for span in spans} == {0, 1}
    forward = {(s.rank, s.details["action"], s.details["step"]): s for s in spans if s.track == "compute"}
    for number in {key[2] for key in forward}:
        # The server's forward of a micro-batch lies between the client's two, whatever clock each of them reads.
        for i in range(2):
            before, middle, after = (forward[rank, f"F{j}.{i}", number] for j, rank in enumerate((0, 1, 0)))
            assert before.end <= middle.start + 0.005 and middle.end <= after.start + 0.005


def test_an_error_in_the_servers_part_reaches_the_client_with_its_text(server):
    with client_of(server) as client:
        client.step(*batch(0))
        client.first.forward = lambda x: x.new_ones(len(x), 5)  # five features where the server wants eight
        with pytest.raises(PeerError, match=r"(?s)could not go on.*RuntimeError"):
            client.step(*batch(1))


def test_an_error_of_the_loss_is_raised_as_it_is_and_the_step_can_be_taken_again(server):
    with client_of(server) as client:
        client.step(*batch(0))
        before = {name: value.clone() for name, value in client.state_dict().items()}
        x, y = batch(1)
        with pytest.raises(IndexError):
            client.step(x, y + 1000)
        assert all(torch.equal(value, before[name]) for name, value in client.state_dict().items())
        assert client.committed == 1
        client.step(x, y)
        assert client.committed == 2


def test_a_client_that_is_closed_says_so(server):
    client = client_of(server)
    client.close()
    client.close()
    with pytest.raises(ThinpipeError, match="closed"):
        client.step(*batch(0))


def test_nobody_there_is_told_with_the_address():
    first, last = ends()
    with pytest.raises(PeerLost, match=r"127\.0\.0\.1:9"):
        Client(first, last, connect="127.0.0.1:9", offer="middle", loss_fn=loss_fn, optimizer=sgd)


def test_a_client_gives_up_when_the_server_stays_away():
    first, last = ends()
    with Server({"middle": offer()}, listen="127.0.0.1:0") as gone:
        client = Client(first, last, connect=gone.address, offer="middle", loss_fn=loss_fn, optimizer=sgd, give_up=1.0)
        client.step(*batch(0))
    with pytest.raises(PeerLost) as caught:
        client.step(*batch(1))
    assert "give_up=1" in "".join(caught.value.__notes__)
    client.close()


@pytest.mark.parametrize("again", [None, batch], ids=["kept", "asked for again"])
def test_a_client_without_a_folder_survives_a_server_that_has_one(tmp_path, again):
    first, last = ends()
    _, expected = one_device(6, 1)
    losses = []
    with Server({"middle": offer()}, listen="127.0.0.1:0", folder=tmp_path) as server:
        address = server.address
        client = Client(
            first,
            last,
            connect=address,
            offer="middle",
            loss_fn=loss_fn,
            optimizer=sgd,
            give_up=20.0,
            every=2,
            batches=again,
        )
        losses += [client.step(*batch(step)).item() for step in range(3)]
    with Server({"middle": offer()}, listen=address, folder=tmp_path), client:
        losses += [client.step(*batch(step)).item() for step in range(3, 6)]
        assert client.committed == 6
    assert losses == pytest.approx(expected, rel=1e-5)
