"""The model is Llama 3: transformers' logits and gradients, published sizes, and a loss that sums valid tokens."""

import dataclasses

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

from tests.support.small_llama import SMALL, SPEC, built, tokens
from trainer.loss import IGNORED, token_loss
from trainer.models import registry
from trainer.models.llama3 import hf
from trainer.models.llama3.args import FLAVORS, RopeScaling
from trainer.models.llama3.model import RMSNorm, Rotary, rotary_frequencies

SCALED = RopeScaling(factor=8.0, original_seq_len=64)  # a head of 8: some waves stay, some blend, some stretch


# --- the reference -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("tied", [False, True], ids=["untied", "tied"])
@pytest.mark.parametrize("scaling", [None, SCALED], ids=["plain", "scaled"])
@pytest.mark.parametrize("kv_heads", [4, 2, 1])
def test_logits_and_gradients_equal_transformers(tied, scaling, kv_heads):
    args = dataclasses.replace(SMALL, tied=tied, rope_scaling=scaling, kv_heads=kv_heads)
    ours = built(args, seq_len=200)
    with torch.no_grad():  # norms that do something, logits of order 1
        for name, parameter in ours.named_parameters():
            generator = torch.Generator().manual_seed(len(name))
            parameter.copy_(torch.randn(parameter.shape, generator=generator) * (1 if parameter.ndim == 1 else 0.2))
    theirs = LlamaForCausalLM(LlamaConfig(**hf.config(args, seq_len=200)))
    weights = hf.to_hf(ours.state_dict(), args)
    missing = theirs.load_state_dict(weights, strict=False).missing_keys
    assert missing == (["lm_head.weight"] if tied else [])

    text = tokens(seq=200)
    our_logits, their_logits = ours(text), theirs(text).logits
    assert their_logits.std() > 0.5
    # fp32 with sums in another order: about 1e-6 here.
    torch.testing.assert_close(our_logits, their_logits, atol=1e-5, rtol=1e-5)
    token_loss(our_logits, text).backward()
    token_loss(their_logits, text).backward()
    grads = hf.to_hf({name: p.grad for name, p in ours.named_parameters()}, args)
    for name, parameter in theirs.named_parameters():
        error = (parameter.grad - grads[name]).norm() / parameter.grad.norm()
        assert error < 1e-5, name


@pytest.mark.parametrize("flavor", ["1B", "8B"])
def test_frequencies_equal_transformers_at_the_published_scaling(flavor):
    args = FLAVORS[flavor]
    theirs, factor = ROPE_INIT_FUNCTIONS["llama3"](LlamaConfig(**hf.config(args, seq_len=131072)), torch.device("cpu"))
    ours = rotary_frequencies(args.head_dim, theta=args.rope_theta, scaling=args.rope_scaling)
    assert factor == 1.0
    torch.testing.assert_close(ours, theirs, atol=0, rtol=1e-6)
    stretched = rotary_frequencies(args.head_dim, theta=args.rope_theta, scaling=None) / ours
    assert stretched.min() == 1.0
    assert stretched.max() == pytest.approx(args.rope_scaling.factor)


def test_hugging_face_mapping_is_exact_both_ways_and_lists_what_does_not_fit():
    for tied in (False, True):
        args = dataclasses.replace(SMALL, tied=tied)
        state = built(args).state_dict()
        assert list(hf.names(args)) == list(state)
        there = hf.to_hf(state, args)
        back = hf.from_hf(there | ({"lm_head.weight": there["model.embed_tokens.weight"]} if tied else {}), args)
        assert list(back) == list(state)
        assert all(torch.equal(back[name], state[name]) for name in state)
        moved = {n for n, theirs in hf.names(args).items() if not torch.equal(there[theirs], state[n])}
        assert moved == {f"layers.{i}.attention.{w}.weight" for i in (0, 1) for w in ("wq", "wk")}
    del there["model.norm.weight"]
    with pytest.raises(ValueError, match=r"missing: \['model.norm.weight'\]; unknown: \['extra'\]"):
        hf.from_hf(there | {"extra": torch.zeros(1)}, args)


# --- shapes ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("flavor", "published"),
    [
        ("1B", 1_235_814_400),
        ("8B", 8_030_261_248),
        ("70B", 70_553_706_496),
        ("405B", 405_853_388_800),
        ("bench", 4_458_752),
    ],
)
def test_published_sizes(flavor, published):
    with torch.device("meta"):
        model = SPEC.build(SPEC.flavor(flavor), seq_len=8192)
    assert sum(p.numel() for p in model.parameters()) == published
    assert SPEC.num_params(SPEC.flavor(flavor)) == published
    assert len(SPEC.blocks(model)) == FLAVORS[flavor].layers
    assert all(p.is_meta for p in [*model.parameters(), *model.buffers()])


def test_flops_follow_the_published_formula():
    args = SPEC.flavor("8B")
    expected = 6 * (8_030_261_248 - 128_256 * 4096) + 12 * 32 * 32 * 128 * 8192
    assert SPEC.flops_per_token(args, seq_len=8192) == expected
    tied, untied = dataclasses.replace(SMALL, tied=True), SMALL
    assert SPEC.flops_per_token(tied, seq_len=8) == SPEC.flops_per_token(untied, seq_len=8)


def test_vocabulary_is_the_tokenizers():
    model = SPEC.build(SMALL, seq_len=8, vocab_size=64)
    assert model(tokens(seq=8)).shape == (2, 8, 64)
    assert SPEC.num_params(SMALL, vocab_size=64) == sum(p.numel() for p in model.parameters())


def test_unknown_names_and_impossible_shapes_are_refused():
    assert registry.names() == ["llama3"]
    with pytest.raises(ValueError, match=r"llama9.*known: llama3"):
        registry.get("llama9")
    with pytest.raises(ValueError, match=r"'9B'.*known: tiny, debug, bench, 1B"):
        SPEC.flavor("9B")
    with pytest.raises(ValueError, match="kv_heads 3"):
        dataclasses.replace(SMALL, kv_heads=3)
    with pytest.raises(ValueError, match="dim 36"):
        dataclasses.replace(SMALL, dim=36)
    with pytest.raises(ValueError, match="built for 32"):
        built()(tokens(seq=33))


# --- the forward pass --------------------------------------------------------------------------------------------


def test_attention_is_causal_and_obeys_a_document_mask():
    model = built()
    text = tokens(batch=1)
    changed = text.clone()
    changed[0, 10] = (changed[0, 10] + 1) % SMALL.vocab_size
    before, after = model(text), model(changed)
    assert torch.equal(before[:, :10], after[:, :10])
    assert not torch.equal(before[:, 10:], after[:, 10:])
    causal = torch.ones(16, 16, dtype=torch.bool).tril().view(1, 1, 16, 16)
    torch.testing.assert_close(model(text, mask=causal), before, atol=1e-6, rtol=1e-5)
    document = torch.arange(16) >= 8
    mask = causal & (document[:, None] == document[None, :])
    masked = [model(t, mask=mask) for t in (text, text.roll(1, 1).where(~document, text))]
    assert torch.equal(masked[0][:, 8:], masked[1][:, 8:])


def test_compiled_and_low_precision_paths_agree_with_the_eager_one(monkeypatch):
    x = torch.randn(2, 16, 4, 8, generator=torch.Generator().manual_seed(0), requires_grad=True)
    rotary, norm = Rotary(head_dim=8, seq_len=32, theta=1e4, scaling=None), RMSNorm(8, eps=1e-5)
    eager = {m: (m(x), torch.autograd.grad(m(x).square().sum() * m(x).sum(), x)[0]) for m in (rotary, norm)}
    assert RMSNorm(8, eps=1e-5).bfloat16()(x.bfloat16()).dtype == rotary(x.bfloat16()).dtype == torch.bfloat16
    torch.testing.assert_close(rotary(x.bfloat16()).float(), eager[rotary][0], atol=0.05, rtol=0.02)
    monkeypatch.setattr(torch.compiler, "is_compiling", lambda: True)
    for module, (value, gradient) in eager.items():
        torch.testing.assert_close(module(x), value, atol=1e-6, rtol=1e-5)
        again = torch.autograd.grad(module(x).square().sum() * module(x).sum(), x)[0]
        torch.testing.assert_close(again, gradient, atol=1e-3, rtol=1e-5)


# --- the loss ----------------------------------------------------------------------------------------------------


def test_loss_is_a_sum_over_valid_labels_and_others_have_no_gradient():
    generator = torch.Generator().manual_seed(1)
    logits = torch.randn(2, 5, 11, generator=generator, dtype=torch.float64, requires_grad=True)
    labels = torch.randint(11, (2, 5), generator=generator)
    labels[0, 2:] = IGNORED
    valid = labels != IGNORED
    loss = token_loss(logits, labels)
    probabilities = logits.detach().softmax(-1)
    expected = -probabilities[valid].gather(1, labels[valid][:, None]).log().sum()
    assert loss.dtype == torch.float32
    assert loss.item() == pytest.approx(expected.item(), rel=1e-6)
    loss.backward()
    assert torch.equal(logits.grad[~valid], torch.zeros(3, 11, dtype=torch.float64))
    one_hot = torch.nn.functional.one_hot(labels[valid], 11)
    torch.testing.assert_close(logits.grad[valid], probabilities[valid] - one_hot, atol=1e-6, rtol=1e-5)


def test_loss_without_a_valid_label_is_zero_with_zero_gradients():
    model = built()
    loss = token_loss(model(tokens()), torch.full((2, 16), IGNORED))
    assert loss.item() == 0.0
    loss.backward()
    assert all(torch.equal(p.grad, torch.zeros_like(p)) for p in model.parameters())


def test_loss_lifts_low_precision_logits():
    logits = (torch.randn(1, 64, 50, generator=torch.Generator().manual_seed(2)) * 8).bfloat16()
    labels = tokens(1, 64)
    assert token_loss(logits, labels) == token_loss(logits.float(), labels)
