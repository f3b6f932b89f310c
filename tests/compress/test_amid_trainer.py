"""AMiDTrainer: it trains, whatever the accumulation, the padding and the data."""

from __future__ import annotations

import copy
import math
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM, TrainingArguments, default_data_collator

from bakeoff.compress import AMiDTrainer, amid_loss
from bakeoff.inputs.language import LanguageModel, default_text, split_tokens, tiny_llama

pytestmark = [
    pytest.mark.filterwarnings("ignore:the teacher was not frozen"),
    pytest.mark.filterwarnings("ignore:Converting a tensor with requires_grad=True to a scalar"),
]
Row = dict[str, torch.Tensor]


def llama(seed: int, vocab: int = 50, hidden: int = 16) -> Any:
    sizes = {"hidden_size": hidden, "intermediate_size": 2 * hidden, "num_hidden_layers": 1, "vocab_size": vocab}
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        config = LlamaConfig(**sizes, num_attention_heads=2, num_key_value_heads=1, tie_word_embeddings=True)
        return LlamaForCausalLM(config)


def rows(count: int, length: int = 12, vocab: int = 50, prompt: int = 0) -> list[Row]:
    """With a different number of kept labels in each."""
    generator = torch.Generator().manual_seed(1)
    found = []
    for i in range(count):
        ids = torch.randint(2, vocab, (length,), generator=generator)
        labels = ids.clone()
        labels[:prompt] = -100
        labels[length - i % 5 :] = -100
        found.append({"input_ids": ids, "labels": labels, "attention_mask": torch.ones_like(ids)})
    return found


def make(folder: Path, student: Any, teacher: Any, data: list[Row], **options: Any) -> AMiDTrainer:
    chosen = {"per_device_train_batch_size": 4, "max_steps": 3, "learning_rate": 1e-3, **options.pop("args", {})}
    args = TrainingArguments(
        output_dir=str(folder), report_to=[], use_cpu=True, save_strategy="no", logging_steps=1, disable_tqdm=True,
        **chosen,
    )  # fmt: skip
    return AMiDTrainer(student, args, default_data_collator, data, eval_dataset=data, teacher=teacher.eval(), **options)


def losses(trainer: AMiDTrainer) -> list[float]:
    trainer.train()
    return [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]


@pytest.fixture(scope="module")
def tiny() -> LanguageModel:
    return tiny_llama()


def test_it_distils_the_tiny_llama(tiny: LanguageModel, tmp_path: Path):
    """A fresh student comes nearer to its teacher on text that it was not trained on."""
    train, test = split_tokens(tiny.tokenizer, default_text())
    windows = train[: 160 * 32].reshape(-1, 32)
    data = [{"input_ids": ids, "labels": ids} for ids in windows]
    student = llama(0, 1024, hidden=32)
    trainer = make(
        tmp_path, student, tiny.model, data, processing_class=tiny.tokenizer,
        args={"max_steps": 40, "learning_rate": 1e-2, "per_device_train_batch_size": 8},
    )  # fmt: skip
    held_out = test[: 8 * 32].reshape(8, 32)
    batch = {"input_ids": held_out, "labels": held_out}

    def kl() -> float:
        student.eval()
        with torch.no_grad():
            both = [m(input_ids=held_out).logits for m in (student, tiny.model)]
        return float(amid_loss(*both, lam=0))

    before, loss_before = kl(), float(trainer.compute_loss(student, dict(batch)).detach())
    trainer.train()
    assert kl() < 0.75 * before
    assert float(trainer.compute_loss(student, dict(batch)).detach()) < 0.75 * loss_before
    assert trainer.evaluate()["eval_loss"] < 0.75 * loss_before


@pytest.mark.parametrize("kd_ratio", [1.0, 0.3])
def test_accumulation_does_not_change_the_loss(tmp_path: Path, kd_ratio: float):
    """8 x 1, 4 x 2 and 1 x 8 see the same kept positions, whose numbers differ from row to row."""
    found = []
    for batch, accumulation in ((8, 1), (4, 2), (1, 8)):
        student = llama(0)
        args = {"per_device_train_batch_size": batch, "gradient_accumulation_steps": accumulation}
        trainer = make(tmp_path, student, llama(1), rows(24), args=args, kd_ratio=kd_ratio)
        found.append((losses(trainer), student.lm_head.weight.detach().clone()))
    for other in found[1:]:
        assert other[0] == pytest.approx(found[0][0], rel=1e-4)
        assert torch.allclose(other[1], found[0][1], atol=1e-5)


def test_the_trained_loss_is_the_mean_over_predicted_labels(tmp_path: Path):
    """Of the whole accumulated batch; the first label of a row is never predicted and does not count."""
    student, teacher, data = llama(0), llama(1), rows(8)
    batch = default_data_collator(data)
    with torch.no_grad():
        q, p = (m(input_ids=batch["input_ids"]).logits[:, :-1] for m in (student, teacher))
    args = {"per_device_train_batch_size": 2, "gradient_accumulation_steps": 4, "max_steps": 1}
    trained = losses(make(tmp_path, student, teacher, data, args=args))
    assert trained == pytest.approx([float(amid_loss(q, p, batch["labels"][:, 1:]))], rel=1e-3)


def test_the_first_loss_is_the_formula(tmp_path: Path):
    student, teacher, data = llama(0), llama(1), rows(4)
    batch = default_data_collator(data)
    given = {name: batch[name] for name in ("input_ids", "attention_mask")}
    with torch.no_grad():
        q, p = (m(**given).logits[:, :-1] for m in (student, teacher))
    labels = batch["labels"][:, 1:]
    ce = torch.nn.functional.cross_entropy(q.flatten(0, 1), labels.flatten(), ignore_index=-100)
    for options in ({}, {"alpha": -3, "divergence": "ab"}, {"lam": 0.4, "order": "qr", "temperature": 2.0, "chunk": 5}):
        kd = amid_loss(q, p, labels, **options)
        for ratio in (1.0, 0.6, 0.0):
            trainer = make(tmp_path, copy.deepcopy(student), teacher, data, kd_ratio=ratio, **options)
            assert float(trainer.compute_loss(student, dict(batch))) == pytest.approx(
                float(ratio * kd + (1 - ratio) * ce), rel=1e-5
            )


def test_left_and_right_padding_give_the_same_loss(tmp_path: Path):
    data, pad = rows(3, length=9), 4
    trainer = make(tmp_path, llama(0), llama(1), data)
    found = []
    for left in (True, False):
        batch = default_data_collator(data)
        sides = (pad, 0) if left else (0, pad)
        for name, fill in (("input_ids", 0), ("labels", -100), ("attention_mask", 0)):
            batch[name] = torch.nn.functional.pad(batch[name], sides, value=fill)
        batch["labels"][:, pad * left] = -100  # the first real token has nothing before it
        found.append(float(trainer.compute_loss(trainer.model, batch)))
    whole = default_data_collator(data)
    found.append(float(trainer.compute_loss(trainer.model, whole)))
    assert found[0] == pytest.approx(found[1], rel=1e-4)
    assert found[2] == pytest.approx(found[1], rel=1e-4)


def test_padded_vocabularies(tmp_path: Path, tiny: LanguageModel):
    """Rows beyond the tokenizer's tokens, whatever they hold, take no part."""
    student, teacher = llama(0, 1024), llama(1, 1024)
    padded = copy.deepcopy(teacher)
    padded.resize_token_embeddings(1088, mean_resizing=True)
    data = rows(4, vocab=1000)
    batch = default_data_collator(data)
    expected = make(tmp_path, student, teacher, data).compute_loss(student, dict(batch))
    found = make(tmp_path, student, padded, data, processing_class=tiny.tokenizer).compute_loss(student, dict(batch))
    assert float(found) == pytest.approx(float(expected), rel=1e-4)
    with pytest.raises(ValueError, match="tokenizers differ"):
        make(tmp_path, student, padded, data).compute_loss(student, dict(batch))


def test_linear_schedule(tmp_path: Path):
    seen: list[float] = []
    trainer = make(tmp_path, llama(0), llama(1), rows(24), args={"max_steps": 4}, alpha_schedule=("linear", -1.0, 1.0))
    original = trainer._alpha

    def watched(*arguments: Any) -> float:
        seen.append(original(*arguments))
        return seen[-1]

    trainer._alpha = watched  # type: ignore[method-assign]
    trainer.train()
    assert seen == pytest.approx([-1.0, -0.5, 0.0, 0.5])


def test_overlap_schedule(tmp_path: Path):
    trainer = make(tmp_path, llama(0), llama(1), rows(8), alpha_schedule=("overlap", -2.0, 1.0))
    p = torch.tensor([[[0.5, 0.5], [0.5, 0.5]]]).log()
    apart, equal = torch.tensor([[[1.0, 0.0], [1.0, 0.0]]]).log(), p
    labels = torch.tensor([[1, -100]])
    assert trainer._alpha(apart, p, labels, True) == pytest.approx(-2 + 3 * 0.5)
    assert trainer._alpha(equal, p, labels, True) == pytest.approx(-2 + 3 * (0.9 * 0.5 + 0.1))
    assert trainer._alpha(apart, p, labels, False) == pytest.approx(-2 + 3 * (0.9 * 0.5 + 0.1))  # evaluation
    assert all(math.isfinite(loss) for loss in losses(trainer))


def test_on_policy_responses(tmp_path: Path):
    """Prompts stay, on the left; responses are the student's, up to its end token; the count is of the new labels."""
    student = llama(0)
    student.generation_config.eos_token_id, student.generation_config.pad_token_id = 1, 0
    with torch.no_grad():
        student.model.embed_tokens.weight[1] *= 30  # it ends now and then
    data = rows(8, prompt=3)
    data[0]["labels"][:5] = -100
    trainer = make(tmp_path, student, llama(1), data, on_policy=1.0)
    assert all(math.isfinite(loss) for loss in losses(trainer))
    batch = default_data_collator(data)
    new = trainer._respond(batch)
    assert new["input_ids"].shape == new["labels"].shape == new["attention_mask"].shape
    assert new["input_ids"].shape[1] <= 12
    assert (new["labels"][:, :5] == -100).all()
    for i in range(8):
        prompt = data[i]["input_ids"][: 5 if i == 0 else 3]
        assert new["input_ids"][i, 5 - len(prompt) : 5].tolist() == prompt.tolist()
        assert new["attention_mask"][i, :5].tolist() == [0] * (5 - len(prompt)) + [1] * len(prompt)
        kept = new["labels"][i, 5:]
        kept = kept[kept != -100]
        assert kept.tolist() == new["input_ids"][i, 5 : 5 + len(kept)].tolist()
        assert 1 not in kept[:-1].tolist()
    batches, items = trainer.get_batch_samples(iter([batch, default_data_collator(data)]), 2, "cpu")
    assert int(items) == sum(int((b["labels"][:, 1:] != -100).sum()) for b in batches)
    assert trainer.model.training


def test_share_of_on_policy_batches(tmp_path: Path):
    trainer = make(tmp_path, llama(0), llama(1), rows(8), on_policy=0.25)
    trainer._respond = lambda batch: {**batch, "made": True}  # type: ignore[method-assign]
    batches, _ = trainer.get_batch_samples(iter([default_data_collator(rows(2))] * 400), 400, "cpu")
    assert sum("made" in batch for batch in batches) == pytest.approx(100, abs=30)


def test_a_plain_text_batch_has_its_first_token_as_prompt(tmp_path: Path):
    trainer = make(tmp_path, llama(0), llama(1), rows(3), on_policy=1.0)
    batch = default_data_collator(rows(3))
    new = trainer._respond(dict(batch))
    assert new["input_ids"][:, 0].tolist() == batch["input_ids"][:, 0].tolist()
    assert (new["labels"][:, 1:] != -100).any(1).all()


def test_bfloat16_student(tmp_path: Path):
    student = llama(0).to(torch.bfloat16)
    found = losses(make(tmp_path, student, llama(1).to(torch.bfloat16), rows(12)))
    assert all(math.isfinite(loss) for loss in found)
    assert student.lm_head.weight.dtype == torch.bfloat16


def test_the_teacher_is_frozen_and_unchanged(tmp_path: Path):
    teacher = llama(1).train()
    before = {name: value.clone() for name, value in teacher.state_dict().items()}
    args = TrainingArguments(output_dir=str(tmp_path), report_to=[], use_cpu=True, max_steps=2, save_strategy="no")
    with pytest.warns(UserWarning, match="the teacher was not frozen"):
        trainer = AMiDTrainer(llama(0), args, default_data_collator, rows(16), teacher=teacher)
    trainer.train()
    assert not teacher.training
    assert not any(parameter.requires_grad for parameter in teacher.parameters())
    assert all(torch.equal(value, before[name]) for name, value in teacher.state_dict().items())


BAD: list[tuple[dict[str, Any], str]] = [
    ({"lam": 2}, "lam=2"),
    ({"lam": 1}, "no gradient"),
    ({"alpha": math.inf}, "alpha=inf"),
    ({"divergence": "fkl"}, "use kl, rkl, js, ab"),
    ({"order": "qq"}, "use pr, qr, rp, rq"),
    ({"kd_ratio": 1.5}, "kd_ratio=1.5"),
    ({"on_policy": -0.1}, "on_policy=-0.1"),
    ({"alpha_schedule": "cosine"}, "alpha_schedule='cosine'"),
    ({"alpha_schedule": ("linear", 1.0)}, "alpha_schedule="),
    ({"alpha_schedule": ("linear", 0.0, math.nan)}, "not finite"),
]


@pytest.mark.parametrize(("options", "message"), BAD)
def test_bad_options_before_any_training(options: dict[str, Any], message: str, tmp_path: Path):
    with pytest.raises(ValueError, match=message):
        make(tmp_path, llama(0), llama(1), rows(4), **options)


def test_a_batch_without_labels(tmp_path: Path):
    trainer = make(tmp_path, llama(0), llama(1), rows(4))
    with pytest.raises(ValueError, match="no labels"):
        trainer.compute_loss(trainer.model, {"input_ids": torch.ones(1, 4, dtype=torch.long)})
