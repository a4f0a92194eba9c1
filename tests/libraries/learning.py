"""Reinforcement learning, graphs, and training methods."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from registry import program


@program("rlax")
def rlax_v_trace():
    """Actor and critic with V-trace targets."""
    import rlax

    def loss(params, observations, actions, rewards, behaviour):
        hidden = jnp.tanh(observations @ params["torso"])
        logits, values = hidden @ params["policy"], (hidden @ params["value"])[:, 0]
        rhos = rlax.categorical_importance_sampling_ratios(logits[:-1], behaviour, actions)
        discounts = jnp.full_like(rewards, 0.9)
        trace = rlax.vtrace_td_error_and_advantage(values[:-1], values[1:], rewards, discounts, rhos)
        policy = rlax.policy_gradient_loss(logits[:-1], actions, trace.pg_advantage, jnp.ones_like(rewards))
        return policy + 0.5 * jnp.mean(trace.errors**2)

    key = jax.random.key(0)
    normal = lambda *shape: 0.3 * jax.random.normal(key, shape)
    params = {"torso": normal(6, 16), "policy": normal(16, 4), "value": normal(16, 1)}
    return loss, (params, normal(21, 6), jax.random.randint(key, (20,), 0, 4), normal(20), normal(20, 4))


@program("mctx")
def mctx_gumbel_muzero():
    """A policy trained on the result of a tree search in its own model."""
    import mctx

    def loss(params, observations, key):
        def recurrent(params, key, action, embedding):
            embedding = jnp.tanh(embedding @ params["dynamics"] + params["action"][action])
            output = mctx.RecurrentFnOutput(
                reward=(embedding @ params["reward"])[:, 0], discount=jnp.full(len(action), 0.95),
                prior_logits=embedding @ params["policy"], value=(embedding @ params["value"])[:, 0],
            )  # fmt: skip
            return output, embedding

        embedding = jnp.tanh(observations @ params["encoder"])
        logits = embedding @ params["policy"]
        root = mctx.RootFnOutput(prior_logits=logits, value=(embedding @ params["value"])[:, 0], embedding=embedding)
        found = mctx.gumbel_muzero_policy(params, key, root, recurrent, num_simulations=8, max_num_considered_actions=4)
        target = jax.lax.stop_gradient(found.action_weights)
        return -jnp.mean(jnp.sum(target * jax.nn.log_softmax(logits), -1))

    normal = lambda *shape: 0.3 * jax.random.normal(jax.random.key(0), shape)
    params = {
        "encoder": normal(5, 8), "dynamics": normal(8, 8), "action": normal(4, 8), "reward": normal(8, 1),
        "policy": normal(8, 4), "value": normal(8, 1),
    }  # fmt: skip
    return loss, (params, normal(3, 5), jax.random.key(1))


@program("jraph")
def jraph_graph_network():
    import jraph

    key = jax.random.key(0)
    normal = lambda *shape: 0.4 * jax.random.normal(key, shape)
    graph = jraph.GraphsTuple(
        nodes=normal(7, 5), edges=normal(12, 3), globals=normal(2, 2), n_node=jnp.array([4, 3]),
        n_edge=jnp.array([7, 5]), senders=jnp.array([0, 1, 2, 3, 0, 1, 2, 4, 5, 6, 4, 5]),
        receivers=jnp.array([1, 2, 3, 0, 2, 3, 0, 5, 6, 4, 6, 4]),
    )  # fmt: skip

    def loss(params, graph):
        layer = lambda w: jraph.concatenated_args(lambda x: jax.nn.relu(x @ w))
        network = jraph.GraphNetwork(layer(params["edge"]), layer(params["node"]), layer(params["global"]))
        out = network(graph)
        return jnp.mean(out.globals**2) + jnp.mean(
            jraph.segment_softmax(out.nodes[:, 0], jnp.array([0] * 4 + [1] * 3), 2) ** 2
        )

    params = {"edge": normal(15, 6), "node": normal(19, 6), "global": normal(14, 4)}
    return loss, (params, graph)


@program("kfac-jax")
def kfac_registered_loss():
    """A network whose layers and loss are tagged by kfac-jax's own primitives, which this library does not know."""
    import kfac_jax

    def loss(params, x, labels):
        for w, b in params[:-1]:
            x = jnp.tanh(kfac_jax.register_dense(x @ w + b, x, w, b))
        w, b = params[-1]
        logits = kfac_jax.register_dense(x @ w + b, x, w, b)
        kfac_jax.register_softmax_cross_entropy_loss(logits, labels)
        return -jnp.mean(jnp.sum(jax.nn.one_hot(labels, 4) * jax.nn.log_softmax(logits), -1))

    normal = lambda *shape: 0.3 * jax.random.normal(jax.random.key(0), shape)
    params = [(normal(6, 16), jnp.zeros(16)), (normal(16, 16), jnp.zeros(16)), (normal(16, 4), jnp.zeros(4))]
    return loss, (params, normal(8, 6), jnp.arange(8) % 4)


@program("e3nn-jax")
def e3nn_tensor_product():
    """A message of an equivariant network: spherical harmonics, a tensor product, a gate."""
    import e3nn_jax as e3nn

    senders, receivers = jnp.array([0, 1, 2, 3, 4, 0]), jnp.array([1, 2, 3, 4, 0, 2])

    def loss(params, positions):
        edges = positions[receivers] - positions[senders]
        harmonics = e3nn.spherical_harmonics("0e + 1o + 2e", edges, normalize=True)
        features = e3nn.IrrepsArray("8x0e + 4x1o", params["nodes"])
        messages = e3nn.tensor_product(features[senders], harmonics, filter_ir_out=["0e", "1o"])
        radial = e3nn.bessel(jnp.linalg.norm(edges, axis=-1), 8, x_max=5.0) @ params["radial"]
        gathered = e3nn.scatter_sum(messages * radial, dst=receivers, output_size=5)
        return jnp.sum(e3nn.norm(gathered).array ** 2)

    key = jax.random.key(0)
    params = {"nodes": jax.random.normal(key, (5, 20)), "radial": jax.random.normal(key, (8, 1))}
    return loss, (params, jax.random.normal(jax.random.key(1), (5, 3)))


@program("evosax")
def evosax_mean_fitness():
    """A surrogate of an evolution strategy's objective: the mean fitness of its population."""
    from evosax.algorithms import Open_ES
    from evosax.problems import BBOBProblem

    strategy = Open_ES(population_size=16, solution=jnp.zeros(4))
    problem = BBOBProblem("sphere", num_dims=4)
    hyper = strategy.default_params
    state = strategy.init(jax.random.key(0), jnp.zeros(4), hyper)
    landscape = problem.init(jax.random.key(1))

    def mean_fitness(mean, key):
        population, _ = strategy.ask(key, state.replace(mean=mean), hyper)
        fitness, _, _ = problem.eval(key, population, landscape)
        return jnp.mean(fitness)

    return mean_fitness, (0.5 * jnp.ones(4), jax.random.key(2))
