"""Language models at their real size. Nothing is allocated: the parameters are ShapeDtypeStructs."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from registry import program

TOKENS = jax.ShapeDtypeStruct((1, 2048), jnp.int32)


def cross_entropy(logits, tokens):
    logits = jax.nn.log_softmax(logits[:, :-1].astype(jnp.float32))
    return -jnp.mean(jnp.take_along_axis(logits, tokens[:, 1:, None], 2))


def penzai_llama(use_layer_stack: bool):
    """A Llama with 7 billion parameters, built by penzai in bfloat16."""
    from penzai import pz
    from penzai.models.transformer.variants import llamalike_common as llama

    config = llama.LlamalikeTransformerConfig(
        num_kv_heads=32, query_head_multiplier=1, embedding_dim=4096, projection_dim=128, mlp_hidden_dim=11008,
        num_decoder_blocks=32, vocab_size=32000, mlp_variant="swiglu", tie_embedder_and_logits=False,
        parameter_dtype=jnp.bfloat16, activation_dtype=jnp.bfloat16, use_layer_stack=use_layer_stack,
    )  # fmt: skip

    build = lambda key: pz.unbind_params(llama.build_llamalike_transformer(config, key), freeze=True)
    model, _ = build(None)
    _, params = jax.eval_shape(build, jax.random.key(0))

    def loss(params, tokens):
        logits = pz.bind_variables(model, params)(
            pz.nx.wrap(tokens).tag("batch", "seq"),
            token_positions=pz.nx.arange("seq", tokens.shape[1]),
        )
        return cross_entropy(logits.unwrap("batch", "seq", "vocabulary"), tokens)

    return loss, (params, TOKENS)


@program("penzai", is_abstract=True)
def penzai_llama_7b():
    """With its 32 layers in sequence."""
    return penzai_llama(use_layer_stack=False)


@program("penzai", is_abstract=True)
def penzai_llama_7b_scanned():
    """With its 32 layers in a scan."""
    return penzai_llama(use_layer_stack=True)


@program("transformers", is_abstract=True)
def transformers_llama_7b():
    """Hugging Face's Flax Llama in the default configuration of LlamaConfig: 7 billion parameters."""
    from transformers import FlaxLlamaForCausalLM, LlamaConfig

    model = FlaxLlamaForCausalLM(LlamaConfig(), dtype=jnp.bfloat16, _do_init=False)
    params = jax.eval_shape(lambda: model.init_weights(jax.random.key(0), (1, 8)))

    def loss(params, tokens):
        return cross_entropy(model(tokens, params=params).logits, tokens)

    return loss, (params, TOKENS)


@program("transformers")
def transformers_bert_base():
    """Masked words in two short sentences, with dropout."""
    from transformers import BertConfig, FlaxBertForMaskedLM

    config = BertConfig(num_hidden_layers=4)
    model = FlaxBertForMaskedLM(config, _do_init=False)
    params = model.init_weights(jax.random.key(0), (1, 8))
    tokens = jax.random.randint(jax.random.key(1), (2, 16), 0, config.vocab_size)

    def loss(params, tokens, key):
        logits = model(tokens, params=params, dropout_rng=key, train=True).logits
        return cross_entropy(logits, tokens)

    return loss, (params, tokens, jax.random.key(2))


def gemma_model():
    """A small Gemma 3 with a local and a global layer, in bfloat16, and its parameters by their types."""
    from gemma import gm

    attention = gm.nn.AttentionType
    config = gm.nn.config.TransformerConfig(
        num_embed=32768, embed_dim=640, hidden_dim=2048, num_heads=4, head_dim=256, num_kv_heads=1,
        final_logit_softcap=None, use_post_attn_norm=True, use_post_ffw_norm=True, use_qk_norm=True,
        attention_types=(attention.LOCAL_SLIDING,) * 3 + (attention.GLOBAL,), sliding_window_size=128,
    )  # fmt: skip
    model = gm.nn.Transformer(config=config, tokens="tokens")
    tokens = jax.ShapeDtypeStruct((4, 512), jnp.int32)
    return model, jax.eval_shape(model.init, jax.random.key(0), tokens), tokens


@program("gemma", is_abstract=True)
def gemma_next_token():
    model, params, tokens = gemma_model()

    def loss(params, tokens):
        return cross_entropy(model.apply(params, tokens).logits, tokens)

    return loss, (params, tokens)


@program("gemma", is_abstract=True, step_of="gemma_next_token")
def gemma_training_step():
    """A step of Adam with clipped gradients and a decaying rate; the loss also returns the logits' norm."""
    import optax

    model, params, tokens = gemma_model()
    optimizer = optax.chain(
        optax.clip_by_global_norm(1.0), optax.adamw(optax.cosine_decay_schedule(1e-3, 1000), weight_decay=0.1)
    )

    def loss(params, tokens):
        logits = model.apply(params, tokens).logits
        return cross_entropy(logits, tokens), {"norm": jnp.linalg.norm(logits)}

    @jax.jit
    def train_step(params, state, tokens):
        (value, metrics), gradient = jax.value_and_grad(loss, has_aux=True)(params, tokens)
        updates, state = optimizer.update(gradient, state, params)
        return optax.apply_updates(params, updates), state, metrics | {"loss": value}

    return train_step, (params, jax.eval_shape(optimizer.init, params), tokens)
