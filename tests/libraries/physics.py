"""Simulators: fluids, molecules, rigid bodies, neurons, quantum systems."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from registry import program


@program(
    "jax-md",
)
def jax_md_molecular_dynamics():
    """Soft spheres for thirty steps of velocity Verlet; the gradient of the final energy in the positions."""
    from jax_md import energy, simulate, space

    displacement, shift = space.periodic(4.0)
    energy_fn = energy.soft_sphere_pair(displacement, sigma=1.0)
    init, apply = simulate.nve(energy_fn, shift, 1e-3)
    key = jax.random.key(0)

    def last_energy(R):
        state = init(key, R, kT=0.1)
        state = jax.lax.fori_loop(0, 30, lambda _, state: apply(state), state)
        return energy_fn(state.position)

    return last_energy, (4.0 * jax.random.uniform(key, (32, 2)),)


@program("jax-cfd")
def jax_cfd_turbulence():
    """Thirty steps of two-dimensional turbulence; the gradient of the final energy in the initial velocity."""
    import jax_cfd.base as cfd

    grid = cfd.grids.Grid((32, 32), domain=((0, 2 * jnp.pi), (0, 2 * jnp.pi)))
    velocity = cfd.initial_conditions.filtered_velocity_field(jax.random.key(0), grid, maximum_velocity=3.0)
    step = cfd.funcutils.repeated(
        cfd.equations.semi_implicit_navier_stokes(density=1.0, viscosity=1e-2, dt=0.01, grid=grid), steps=30
    )

    def last_energy(velocity):
        return sum(jnp.sum(v.data**2) for v in step(velocity))

    return last_energy, (velocity,)


@program("brax")
def brax_rollout():
    """Ten steps of a robot with a policy, with respect to the policy's weights."""
    from brax import envs

    env = envs.get_environment("inverted_pendulum", backend="generalized")
    first = jax.jit(env.reset)(jax.random.PRNGKey(0))

    def loss(params, first):
        def step(state, _):
            action = jnp.tanh(state.obs @ params["w"] + params["b"])
            state = env.step(state, action)
            return state, state.reward - jnp.sum(state.obs**2)

        return -jnp.mean(jax.lax.scan(step, first, None, length=10)[1])

    params = {"w": 0.1 * jnp.ones((env.observation_size, env.action_size)), "b": jnp.zeros(env.action_size)}
    return loss, (params, first)


@program("mujoco-mjx")
def mjx_pendulum():
    """The position of a double pendulum after five steps of MuJoCo, with respect to its initial one."""
    import mujoco
    from mujoco import mjx

    model = mujoco.MjModel.from_xml_string(
        """
        <mujoco>
          <option timestep="0.01" iterations="1" ls_iterations="4"/>
          <worldbody>
            <body pos="0 0 1">
              <joint name="upper" type="hinge" axis="0 1 0" damping="0.1"/>
              <geom type="capsule" fromto="0 0 0 0 0 -0.4" size="0.03"/>
              <body pos="0 0 -0.4">
                <joint name="lower" type="hinge" axis="0 1 0" limited="true" range="-1 1"/>
                <geom type="capsule" fromto="0 0 0 0 0 -0.4" size="0.03"/>
              </body>
            </body>
          </worldbody>
        </mujoco>
        """
    )
    on_device = mjx.put_model(model)
    data = mjx.make_data(on_device)

    def loss(start, data):
        data = data.replace(qpos=start["position"], qvel=start["velocity"])
        data, _ = jax.lax.scan(lambda d, _: (mjx.step(on_device, d), None), data, None, length=5)
        return jnp.sum(data.qpos**2) + 0.1 * jnp.sum(data.qvel**2)

    return loss, ({"position": jnp.array([0.5, -0.2]), "velocity": jnp.zeros(2)}, data)


@program("jaxley")
def jaxley_neurons():
    """The voltage of a branched neuron with Hodgkin and Huxley's channels, in the channels' conductances."""
    import jaxley as jx
    from jaxley.channels import HH

    branch = jx.Branch(jx.Compartment(), ncomp=2)
    cell = jx.Cell([branch] * 3, parents=[-1, 0, 0])
    cell.insert(HH())
    cell.branch(0).comp(0).stimulate(jx.step_current(i_delay=0.5, i_dur=1.0, i_amp=0.5, delta_t=0.025, t_max=2.0))
    cell.branch(2).comp(1).record()
    cell.make_trainable("HH_gNa")
    cell.make_trainable("HH_gK")

    def loss(params):
        return jnp.mean((jx.integrate(cell, params=params, delta_t=0.025) + 60.0) ** 2)

    return loss, (cell.get_parameters(),)


@program("dynamiqs", find_nan_argument="The library refuses a NaN: its program raises before there is a result.")
def dynamiqs_master_equation():
    """The photons that remain in a driven, damped cavity, with respect to its drive."""
    import dynamiqs as dq

    n = 8
    a = dq.destroy(n)

    def photons(params):
        H = params["detuning"] * a.dag() @ a + params["drive"] * (a + a.dag())
        result = dq.mesolve(
            H, [jnp.sqrt(0.3) * a], dq.fock(n, 0), jnp.linspace(0.0, 1.0, 5), exp_ops=[a.dag() @ a],
            progress_meter=False,
        )  # fmt: skip
        return jnp.real(result.expects[0, -1])

    return photons, ({"detuning": jnp.float32(0.2), "drive": jnp.float32(1.0)},)


@program("netket")
def netket_variational_energy():
    """The energy of a spin chain over samples of a neural quantum state; complex parameters, in double precision."""
    import netket as nk

    graph = nk.graph.Chain(8)
    hilbert = nk.hilbert.Spin(s=0.5, N=graph.n_nodes)
    hamiltonian = nk.operator.IsingJax(hilbert=hilbert, graph=graph, h=1.0)
    model = nk.models.RBM(alpha=2, param_dtype=complex)
    samples = hilbert.random_state(jax.random.key(0), 16)
    params = model.init(jax.random.key(1), samples)

    def energy(params, samples):
        connected, elements = hamiltonian.get_conn_padded(samples)
        log_psi = model.apply(params, samples)
        log_connected = model.apply(params, connected)
        local = jnp.sum(elements * jnp.exp(log_connected - log_psi[:, None]), -1)
        return jnp.real(jnp.mean(local))

    return energy, (params, samples)


@program("pennylane")
def pennylane_circuit():
    """A variational circuit by backpropagation through the state."""
    import pennylane as qml

    device = qml.device("default.qubit", wires=3)

    @qml.qnode(device, interface="jax", diff_method="backprop")
    def circuit(weights, x):
        qml.AngleEmbedding(x, wires=range(3))
        qml.StronglyEntanglingLayers(weights, wires=range(3))
        return qml.expval(qml.PauliZ(0) @ qml.PauliX(2))

    weights = jax.random.normal(jax.random.key(0), (2, 3, 3))
    return lambda weights, x: jnp.real(circuit(weights, x)), (weights, jnp.array([0.3, 0.6, 0.9]))


@program("folx")
def folx_kinetic_energy():
    """The local kinetic energy of a wave function by the forward Laplacian, in the wave function's weights."""
    import folx

    def log_psi(params, x):
        for w, b in params:
            x = jnp.tanh(x @ w + b)
        return jnp.sum(x)

    def kinetic(params, electrons):
        laplacian = folx.forward_laplacian(lambda x: log_psi(params, x))

        def local(x):
            found = laplacian(x)
            return -0.5 * (found.laplacian + jnp.sum(found.jacobian.dense_array**2))

        return jnp.mean(jax.vmap(local)(electrons))

    key = jax.random.key(0)
    params = [
        (0.4 * jax.random.normal(key, (6, 16)), jnp.zeros(16)),
        (0.4 * jax.random.normal(key, (16, 4)), jnp.zeros(4)),
    ]
    return kinetic, (params, jax.random.normal(key, (8, 6)))


@program("sax")
def sax_interferometer():
    """The transmission of an interferometer on a chip, with respect to the lengths of its arms."""
    import sax

    def coupler(coupling=0.5):
        kappa, tau = coupling**0.5, (1 - coupling) ** 0.5
        return sax.reciprocal({
            ("in0", "out0"): tau, ("in0", "out1"): 1j * kappa, ("in1", "out0"): 1j * kappa, ("in1", "out1"): tau,
        })  # fmt: skip

    def waveguide(wl=1.55, neff=2.34, length=10.0):
        return sax.reciprocal({("in0", "out0"): jnp.exp(2j * jnp.pi * neff * length / wl)})

    circuit, _ = sax.circuit(
        netlist={
            "instances": {"left": "coupler", "top": "waveguide", "bottom": "waveguide", "right": "coupler"},
            "connections": {
                "left,out0": "bottom,in0",
                "bottom,out0": "right,in0",
                "left,out1": "top,in0",
                "top,out0": "right,in1",
            },
            "ports": {"in0": "left,in0", "out0": "right,out0"},
        },
        models={"coupler": coupler, "waveguide": waveguide},
    )
    wavelengths = jnp.linspace(1.5, 1.6, 21)

    def passed(lengths):
        found = circuit(wl=wavelengths, top={"length": lengths[0]}, bottom={"length": lengths[1]})
        return jnp.mean(jnp.abs(sax.sdict(found)["in0", "out0"]) ** 2)

    return passed, (jnp.array([25.0, 15.0]),)


@program("dinosaur")
def dinosaur_shallow_water():
    """Eight steps of shallow water on a sphere, in loops in loops, with a filter; with respect to the initial state."""
    import numpy as np
    from dinosaur import (
        coordinate_systems,
        layer_coordinates,
        shallow_water,
        shallow_water_states,
        spherical_harmonic,
        time_integration,
        units,
    )

    grid = spherical_harmonic.Grid.T21()
    coords = coordinate_systems.CoordinateSystem(grid, layer_coordinates.LayerCoordinates(2))
    density = np.array([0.9, 1.0])
    state = shallow_water_states.multi_layer(jnp.stack([0.2 * jnp.cos(3 * grid.latitudes)] * 2), density, coords)
    equation = shallow_water.ShallowWaterEquations(
        coords, units.SimUnits.from_si(), np.zeros(grid.modal_shape), np.full(2, 0.1), density
    )
    dt = 1e-2
    step = time_integration.step_with_filters(
        time_integration.imex_rk_sil3(equation, dt),
        [time_integration.exponential_step_filter(grid, dt)],
    )
    run = time_integration.trajectory_from_step(step, outer_steps=4, inner_steps=2)

    def energy(state):
        last, _ = run(state)
        return 100.0 * jnp.sum(grid.to_nodal(last.potential) ** 2)

    return energy, (state,)


@program("jaxoplanet")
def jaxoplanet_transits():
    """The light of a star with two planets on eccentric orbits, nights in a scan, with a rule for Kepler's equation."""
    jax.config.update(
        "jax_enable_x64", True
    )  # in single precision, rounding alone changes the gradient by half a percent
    from jaxoplanet.light_curves.limb_dark import light_curve
    from jaxoplanet.orbits.keplerian import Body, Central, System

    nights = jnp.linspace(-0.1, 0.1, 12)[None] + 3.0 * jnp.arange(3.0)[:, None]

    def loss(params, nights):
        planet = lambda p: Body(
            period=p["period"], time_transit=0.0, radius=p["radius"], eccentricity=p["e"], omega_peri=0.3
        )
        system = System(Central(mass=1.0, radius=1.0))
        for p in params["planets"]:
            system = system.add_body(planet(p))
        flux = light_curve(system, params["limb"])
        total, _ = jax.lax.scan(lambda s, t: (s + jnp.sum(flux(t) ** 2), None), 0.0, nights)
        return 1e3 * total

    planets = [{"period": 3.0, "radius": 0.1, "e": 0.2}, {"period": 4.5, "radius": 0.05, "e": 0.1}]
    params = {"planets": planets, "limb": jnp.array([0.3, 0.2])}
    return loss, (jax.tree.map(jnp.float64, params), nights)
