"""The three circuits of circuits.py written for JAX: `jit` over `lax.scan`, f32, with the weights of the ncps modules.

Not a program: circuits.py calls `infer` and `train`, gpu.py `on_device`.
"""
import jax, jax.numpy as jnp, numpy

jax.config.update("jax_default_matmul_precision", "highest")
UNFOLDS, EPSILON = 6, 1e-8                                  # as in ncps' LTC


def weights(module):
    """The module's tensors by name, and which of them training changes."""
    short = lambda k: k.replace("rnn_cell.", "")
    tensors = {short(k): jnp.asarray(v.detach().numpy()) for k, v in module.state_dict().items()}
    return tensors, {short(k) for k, p in module.named_parameters() if p.requires_grad}


def linear(z, name, v): return v @ z[name + ".weight"].T + z[name + ".bias"]
def lecun(v): return 1.7159 * jnp.tanh(0.666 * v)


def gate(a, b, t):
    a, t = jnp.tanh(a), jax.nn.sigmoid(t)
    return a * (1 - t) + t * jnp.tanh(b)


def dense_cfc(z):
    backbone = sorted({k.split(".")[1] for k in z if k.startswith("backbone.")}, key=int)
    units = z["ff1.weight"].shape[0]

    def step(h, x):
        v = jnp.concatenate([x, h], 1)
        for layer in backbone: v = lecun(linear(z, f"backbone.{layer}", v))
        h = gate(linear(z, "ff1", v), linear(z, "ff2", v), linear(z, "time_a", v) + linear(z, "time_b", v))
        return h, linear(z, "fc", h)
    return step, lambda batch: jnp.zeros((batch, units))


def wired_cfc(z):
    sizes = [z[f"layer_{l}.ff1.weight"].shape[0] for l in range(3)]

    def step(states, x):
        new = []
        for l, h in enumerate(states):
            p = f"layer_{l}."; mask = z[p + "sparsity_mask"]; v = jnp.concatenate([x, h], 1)
            head = lambda name: v @ (z[p + name + ".weight"] * mask).T + z[p + name + ".bias"]
            x = gate(head("ff1"), head("ff2"), linear(z, p + "time_a", v) + linear(z, p + "time_b", v))
            new.append(x)
        return tuple(new), x
    return step, lambda batch: tuple(jnp.zeros((batch, s)) for s in sizes)


def wired_ltc(z):
    softplus = jax.nn.softplus
    outputs = z["output_w"].shape[0]
    sensory_w, w = softplus(z["sensory_w"]) * z["sensory_sparsity_mask"], softplus(z["w"]) * z["sparsity_mask"]
    capacity, leak = softplus(z["cm"]) * UNFOLDS, softplus(z["gleak"])

    def step(v, x):
        x = x * z["input_w"] + z["input_b"]
        a = sensory_w * jax.nn.sigmoid(z["sensory_sigma"] * (x[:, :, None] - z["sensory_mu"]))
        sensed, sensed_weight = (a * z["sensory_erev"]).sum(1), a.sum(1)
        for _ in range(UNFOLDS):
            a = w * jax.nn.sigmoid(z["sigma"] * (v[:, :, None] - z["mu"]))
            v = (capacity * v + leak * z["vleak"] + (a * z["erev"]).sum(1) + sensed) / (capacity + leak + a.sum(1) + sensed_weight + EPSILON)
        return v, v[:, :outputs] * z["output_w"] + z["output_b"]
    return step, lambda batch: jnp.zeros((batch, z["gleak"].shape[0]))


CIRCUITS = {"P": dense_cfc, "W": wired_cfc, "L": wired_ltc}


def forward(name, z, x):
    step, start = CIRCUITS[name](z)
    _, y = jax.lax.scan(step, start(x.shape[0]), x.transpose(1, 0, 2))
    return y.transpose(1, 0, 2)


def infer(name, module, x):
    """A function that runs the circuit once and gives its output as a NumPy array."""
    z, _ = weights(module)
    x = jax.device_put(x)
    run = jax.jit(lambda x: forward(name, z, x))            # the weights are constants of the compiled program
    return lambda: numpy.asarray(run(x).block_until_ready())


def on_device(name, module, x):
    """A function that runs the circuit once, whose inputs and results stay on the device."""
    z, _ = weights(module)
    x = jax.device_put(x)
    run = jax.jit(lambda x: forward(name, z, x))
    return lambda: run(x).block_until_ready()


def train(name, module, x, target, rate):
    """A function that takes one full training step (mean squared error, Adam) and gives the loss."""
    z, learned = weights(module)
    fixed, params = {k: v for k, v in z.items() if k not in learned}, {k: v for k, v in z.items() if k in learned}
    x, target = jax.device_put(x), jax.device_put(target)

    @jax.jit
    def step(params, first, second, count):
        loss, grads = jax.value_and_grad(lambda p: jnp.mean((forward(name, {**fixed, **p}, x) - target) ** 2))(params)
        count = count + 1
        first = jax.tree.map(lambda m, g: 0.9 * m + 0.1 * g, first, grads)
        second = jax.tree.map(lambda s, g: 0.999 * s + 0.001 * g * g, second, grads)
        move = lambda p, m, s: p - rate * (m / (1 - 0.9 ** count)) / (jnp.sqrt(s / (1 - 0.999 ** count)) + 1e-8)
        return jax.tree.map(move, params, first, second), first, second, count, loss

    zeros = jax.tree.map(jnp.zeros_like, params)
    kept = [params, zeros, zeros, jnp.float32(0)]

    def once():
        *kept[:], loss = step(*kept)
        return loss.block_until_ready()
    return once
