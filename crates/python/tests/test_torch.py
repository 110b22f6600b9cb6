"""PyTorch's networks, and layers inside of its trainings."""

import copy
import pickle

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="torch is not here")
ncps_torch = pytest.importorskip("ncps.torch", reason="ncps is not here")
wirings = pytest.importorskip("ncps.wirings")

import schwann  # noqa: E402
import schwann.torch as fast  # noqa: E402

torch.manual_seed(0)


def wired():
    return wirings.AutoNCP(24, 4, seed=3)


CASES = {
    "cfc": ("CfC", lambda: (8, 16), {}),
    "cfc pure": ("CfC", lambda: (8, 16), {"mode": "pure"}),
    "cfc no gate": ("CfC", lambda: (8, 16), {"mode": "no_gate", "backbone_layers": 2, "backbone_units": 32, "activation": "gelu"}),
    "cfc without backbone": ("CfC", lambda: (8, 16), {"backbone_layers": 0}),
    "cfc projected": ("CfC", lambda: (8, 16), {"proj_size": 3, "return_sequences": False}),
    "cfc mixed": ("CfC", lambda: (8, 16), {"mixed_memory": True, "batch_first": False}),
    "cfc wired": ("CfC", lambda: (8, wired()), {}),
    "cfc wired mixed": ("CfC", lambda: (8, wired()), {"mixed_memory": True}),
    "ltc": ("LTC", lambda: (8, 10), {}),
    "ltc wired": ("LTC", lambda: (8, wired()), {"return_sequences": False}),
    "ltc explicit": ("LTC", lambda: (8, wired()), {"implicit_param_constraints": False, "ode_unfolds": 3}),
    "ltc mixed": ("LTC", lambda: (8, 10), {"mixed_memory": True, "input_mapping": "linear", "output_mapping": None}),
    "ltc random": ("LTC", lambda: (8, wirings.Random(12, 5, 0.5)), {}),
}


def pair(case):
    """The same layer of ncps and of Schwann, from the same seed."""
    kind, arguments, options = CASES[case]
    torch.manual_seed(1)
    theirs = getattr(ncps_torch, kind)(*arguments(), **options)
    torch.manual_seed(1)
    ours = getattr(fast, kind)(*arguments(), **options)
    return theirs, ours


def first(out):
    return out if isinstance(out, torch.Tensor) else out[0]


@pytest.mark.parametrize("case", CASES)
def test_layers_start_with_the_same_weights_and_share_state_dicts(case):
    theirs, ours = pair(case)
    assert theirs.state_dict().keys() == ours.state_dict().keys()
    for name, value in theirs.state_dict().items():
        assert torch.equal(value, ours.state_dict()[name]), name
    theirs.load_state_dict(ours.state_dict())
    ours.load_state_dict(theirs.state_dict())


@pytest.mark.parametrize("case", CASES)
def test_results_and_gradients_are_those_of_ncps(case):
    theirs, ours = pair(case)
    x = torch.randn(3, 7, 8)
    h0 = [torch.randn(3 if theirs.batch_first else 7, theirs.state_size) * 0.3 for _ in range(2 if theirs.use_mixed else 1)]
    found = []
    for layer in (theirs, ours):
        inputs = x.clone().requires_grad_()
        states = [s.clone().requires_grad_() for s in h0]
        y, hn = layer(inputs, tuple(states) if theirs.use_mixed else states[0])
        last = hn if isinstance(hn, tuple) else (hn,)
        loss = (y * torch.linspace(-1, 1, y.numel()).reshape(y.shape)).sum() + sum((s**2).mean() for s in last)
        loss.backward()
        grads = {name: p.grad for name, p in layer.named_parameters() if p.requires_grad}
        found.append((y, last, inputs.grad, [s.grad for s in states], grads))
    (y1, l1, x1, s1, g1), (y2, l2, x2, s2, g2) = found
    close = lambda a, b, what: torch.testing.assert_close(b, a, rtol=2e-4, atol=2e-5, msg=lambda m: f"{what}: {m}")  # noqa: E731
    close(y1, y2, "y")
    for i, (a, b) in enumerate(zip(l1, l2)):
        close(a, b, f"last state {i}")
    close(x1, x2, "x")
    for i, (a, b) in enumerate(zip(s1, s2)):
        close(a, b, f"first state {i}")
    for name in g1:
        if g1[name] is None:
            # ncps leaves out what has no influence.
            assert g2[name] is None or not g2[name].any(), name
        else:
            close(g1[name], g2[name], name)


def test_gradients_agree_with_finite_differences():
    """Of the whole loss along random directions, since float32 allows no more."""
    torch.manual_seed(2)
    layer = fast.CfC(3, 6, proj_size=2)
    x = torch.randn(2, 5, 3)
    loss = lambda: (layer(x)[0] ** 2).mean()  # noqa: E731
    value = loss()
    value.backward()
    for p in (p for p in layer.parameters() if p.grad is not None):
        way = torch.randn_like(p)
        with torch.no_grad():
            step = 1e-2
            p += step * way
            more = loss().item()
            p -= 2 * step * way
            less = loss().item()
            p += step * way
        assert abs((more - less) / (2 * step) - (p.grad * way).sum().item()) < 2e-3


def test_a_training_takes_the_same_course():
    losses = []
    t = torch.linspace(0, 6, 49)
    x = torch.stack([torch.sin(t[:-1]), torch.cos(t[:-1])], 1)[None]
    target = torch.sin(2 * t[1:])[None, :, None]
    for module in (ncps_torch, fast):
        torch.manual_seed(5)
        layer = module.CfC(2, wirings.AutoNCP(16, 1, seed=2))
        optimizer = torch.optim.Adam(layer.parameters(), 0.01)
        course = []
        for _ in range(30):
            optimizer.zero_grad()
            loss = torch.nn.functional.mse_loss(layer(x)[0], target)
            loss.backward()
            optimizer.step()
            course.append(loss.item())
        losses.append(course)
    np.testing.assert_allclose(losses[1], losses[0], rtol=1e-3)
    assert losses[1][-1] < losses[1][0]


def test_times_batches_and_their_absence():
    theirs, ours = pair("cfc wired")
    x, spans = torch.randn(1, 7, 8), torch.rand(1, 7) + 0.1
    torch.testing.assert_close(first(ours(x, timespans=spans)), first(theirs(x, timespans=spans)), rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(first(ours(x[0])), first(theirs(x[0])), rtol=1e-4, atol=1e-5)
    y, hn = ours(x[0], torch.zeros(24))
    assert y.shape == (7, 4) and hn.shape == (24,)
    with torch.no_grad():
        assert ours(x)[0].grad_fn is None


def test_weights_that_change_are_seen():
    _, ours = pair("ltc")
    x = torch.randn(2, 3, 8)
    before = ours(x)[0]
    with torch.no_grad():
        ours.rnn_cell.output_b += 1.0
    torch.testing.assert_close(ours(x)[0], before + 1.0)
    ours.rnn_cell.w.data -= 5.0
    _, explicit = pair("ltc explicit")
    explicit.rnn_cell.apply_weight_constraints()
    explicit(x)[0].sum().backward()


def test_only_what_is_asked_for_is_differentiated():
    _, ours = pair("cfc")
    for name, parameter in ours.named_parameters():
        parameter.requires_grad_(name.endswith("ff1.weight"))
    y, _ = ours(torch.randn(2, 3, 8))
    y.sum().backward()
    assert [n for n, p in ours.named_parameters() if p.grad is not None] == ["rnn_cell.ff1.weight"]


def test_copies_and_pickles_of_layers(tmp_path):
    _, ours = pair("cfc wired")
    x = torch.randn(2, 3, 8)
    wanted = ours(x)[0]
    for again in (copy.deepcopy(ours), pickle.loads(pickle.dumps(ours))):
        assert torch.equal(again(x)[0], wanted)


def test_bad_input_of_layers_is_refused_with_words_that_help():
    _, ours = pair("cfc")
    with pytest.raises(TypeError, match=r"`input` is float64\[2, 3, 8\]; expected float32"):
        ours(torch.zeros(2, 3, 8, dtype=torch.float64))
    with pytest.raises(ValueError, match=r"expected \[L, C\]"):
        ours(torch.zeros(8))
    with pytest.raises(ValueError, match=r"got shape \[2, 3, 7\]"):
        ours(torch.zeros(2, 3, 7))
    with pytest.raises(RuntimeError, match=r"`hx` is float32\[16\]; expected \[B, H\]"):
        ours(torch.zeros(2, 3, 8), torch.zeros(16))
    with pytest.raises(ValueError, match="h0"):
        ours(torch.zeros(2, 3, 8), torch.zeros(3, 16))
    with pytest.raises(ValueError, match=r"`timespans` is float32\[2, 4\]; expected \[2, 3\]"):
        ours(torch.zeros(2, 3, 8), timespans=torch.ones(2, 4))
    with pytest.raises(ValueError, match="`input` is on meta"):
        ours(torch.zeros(2, 3, 8, device="meta"))
    with pytest.raises(RuntimeError, match="mixed_memory"):
        pair("cfc mixed")[1](torch.zeros(2, 3, 8), torch.zeros(3, 16))
    drops = fast.CfC(8, 16, backbone_layers=2, backbone_dropout=0.5)
    with pytest.raises(NotImplementedError, match="dropout"):
        drops(torch.zeros(2, 3, 8))
    drops.eval()(torch.zeros(2, 3, 8))


@pytest.mark.parametrize("case", CASES)
def test_models_come_from_layers_and_go_back(case):
    theirs, ours = pair(case)
    x = torch.randn(3, 7, 8)
    with torch.no_grad():
        wanted = first(theirs(x)).numpy()
    for module in (theirs, ours):
        np.testing.assert_allclose(schwann.from_torch(module).run(x.numpy()), wanted, rtol=1e-4, atol=1e-5)
    back = schwann.to_torch(schwann.from_torch(theirs))
    with torch.no_grad():
        np.testing.assert_allclose(first(back(x)).numpy(), wanted, rtol=1e-4, atol=1e-5)


class Own(torch.nn.Module):
    """A network with a `forward` of its own."""

    def __init__(self):
        super().__init__()
        self.encoder = torch.nn.Linear(8, 12)
        self.circuit = fast.CfC(12, wirings.AutoNCP(20, 3))
        self.head = torch.nn.Linear(3, 2)

    def forward(self, x):
        y, _ = self.circuit(torch.tanh(self.encoder(x)))
        return self.head(y[:, -1])


def test_whole_networks_come_from_torch_without_a_file():
    torch.manual_seed(4)
    network, x = Own(), torch.randn(3, 7, 8)
    model = schwann.from_torch(network, x)
    with torch.no_grad():
        np.testing.assert_allclose(model.run(x.numpy()), network(x).numpy(), rtol=1e-4, atol=1e-5)
    assert "encoder" in "".join(schwann.profile(model, seconds=0.05, roof=False).json())
    half = torch.nn.Sequential(torch.nn.Linear(8, 4), torch.nn.ReLU()).half()
    assert schwann.from_torch(half).run(x[:, 0].contiguous().numpy()).shape == (3, 4)


def test_networks_that_are_no_chain_are_refused_by_name():
    with pytest.raises(TypeError, match="Conv1d"):
        schwann.from_torch(torch.nn.Sequential(torch.nn.Conv1d(1, 1, 1)), torch.zeros(1, 1, 4))
    with pytest.raises(TypeError, match="add sample=x"):
        schwann.from_torch(Own())


def test_tensors_are_arrays(dense, x):
    wanted = dense.run(x)
    session = dense.session()
    assert np.array_equal(session.run(torch.from_numpy(x)), wanted)
    out = torch.empty(wanted.shape)
    session.reset()
    session.run(torch.from_numpy(x), out=out)
    assert np.array_equal(out.numpy(), wanted)
    brief = torch.from_numpy(x).bfloat16()
    assert np.array_equal(dense.run(brief), dense.run(brief.float().numpy()))
    rounded = torch.empty(wanted.shape, dtype=torch.bfloat16)
    dense.run(torch.from_numpy(x), out=rounded)
    assert torch.equal(rounded, torch.from_numpy(wanted).bfloat16())
    with pytest.raises(Exception, match="grad"):
        dense.run(torch.from_numpy(x).requires_grad_())
    with pytest.raises(ValueError, match="has gaps"):
        dense.run(torch.zeros(8, 12, 4).permute(2, 1, 0))
