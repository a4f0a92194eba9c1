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
