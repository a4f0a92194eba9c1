"""Image models."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from registry import program


@program("diffusers", is_abstract=True)
def diffusers_stable_diffusion():
    """The denoiser of Stable Diffusion 1 with 860 million parameters, from Hugging Face's Flax module."""
    from diffusers import FlaxUNet2DConditionModel

    model = FlaxUNet2DConditionModel(sample_size=64, cross_attention_dim=768, dtype=jnp.bfloat16)
    params = jax.eval_shape(lambda: model.init_weights(jax.random.key(0)))
    latents = jax.ShapeDtypeStruct((4, 4, 64, 64), jnp.bfloat16)
    text = jax.ShapeDtypeStruct((4, 77, 768), jnp.bfloat16)

    def loss(params, latents, noise, text, times):
        predicted = model.apply({"params": params}, latents, times, text).sample
        return jnp.mean((predicted - noise).astype(jnp.float32) ** 2)

    return loss, (params, latents, latents, text, jax.ShapeDtypeStruct((4,), jnp.int32))


@program("equimo")
def equimo_vision_transformer():
    import equinox as eqx
    from equimo.models import VisionTransformer

    model = VisionTransformer(
        img_size=32, in_channels=3, dim=64, patch_size=8, num_heads=[4], depths=[3], num_classes=10,
        key=jax.random.key(0),
    )  # fmt: skip
    params, static = eqx.partition(model, eqx.is_inexact_array)
    images = jax.random.normal(jax.random.key(1), (4, 3, 32, 32))
    labels = jnp.array([3, 1, 4, 1])

    def loss(params, images, labels, key):
        model = eqx.combine(params, static)
        keys = jax.random.split(key, len(images))
        logits = jax.vmap(lambda x, k: model(x, key=k, inference=False))(images, keys)
        return -jnp.mean(jnp.take_along_axis(jax.nn.log_softmax(logits), labels[:, None], 1))

    return loss, (params, images, labels, jax.random.key(2))


@program("keras", is_abstract=True)
def keras_resnet_50():
    """Keras's ResNet-50 on the JAX backend, training on 32 images; only the parameters are allocated."""
    import os

    os.environ["KERAS_BACKEND"] = "jax"
    import keras

    model = keras.applications.ResNet50(weights=None)
    types = lambda variables: [jax.ShapeDtypeStruct(v.shape, v.dtype) for v in variables]

    def loss(trainable, fixed, images, labels):
        predicted, fixed = model.stateless_call(trainable, fixed, images, training=True)
        return jnp.mean(keras.losses.sparse_categorical_crossentropy(labels, predicted))

    images, labels = jax.ShapeDtypeStruct((32, 224, 224, 3), jnp.float32), jax.ShapeDtypeStruct((32,), jnp.int32)
    return loss, (types(model.trainable_variables), types(model.non_trainable_variables), images, labels)


@program("keras")
def keras_separable_convolutions():
    """One layer of each kind that Keras's image models use, in training, with seeds and statistics."""
    import os

    os.environ["KERAS_BACKEND"] = "jax"
    import keras

    model = keras.Sequential(
        [
            keras.Input((16, 16, 3)),
            keras.layers.SeparableConv2D(8, 3, padding="same"),
            keras.layers.BatchNormalization(),
            keras.layers.Activation("swish"),
            keras.layers.MaxPooling2D(),
            keras.layers.Conv2D(8, 3, strides=2),
            keras.layers.SpatialDropout2D(0.2),
            keras.layers.GlobalAveragePooling2D(),
            keras.layers.Dense(5, activation="softmax"),
        ]
    )
    trainable = [v.value for v in model.trainable_variables]
    fixed = [v.value for v in model.non_trainable_variables]

    def loss(trainable, fixed, images, labels):
        predicted, fixed = model.stateless_call(trainable, fixed, images, training=True)
        return jnp.mean(keras.losses.categorical_crossentropy(jax.nn.one_hot(labels, 5), predicted))

    return loss, (trainable, fixed, jax.random.normal(jax.random.key(0), (4, 16, 16, 3)), jnp.arange(4))


@program("dm-pix")
def dm_pix_similarity():
    """The similarity of an image and its blurred, rotated copy."""
    import dm_pix

    picture = jax.random.uniform(jax.random.key(0), (32, 32, 3))

    def unlike(picture, angle):
        turned = dm_pix.rotate(dm_pix.gaussian_blur(picture, 1.5, 5), angle)
        return 1.0 - dm_pix.ssim(picture, dm_pix.adjust_saturation(turned, 0.7))

    return unlike, (picture, jnp.float32(0.1))
