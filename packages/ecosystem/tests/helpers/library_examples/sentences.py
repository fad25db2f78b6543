"""Sentence Transformers: a small BERT embeds texts, and is trained on pairs. No device is named."""

from __future__ import annotations

import tempfile
from typing import Any

import torch
from sentence_transformers import SentenceTransformer
from sentence_transformers.sentence_transformer import losses
from sentence_transformers.sentence_transformer.modules import Pooling, Transformer
from transformers import BertConfig, BertModel

from library_examples import check_is_on, sums, unseen
from library_examples.language import Watch, arguments, texts, tokenizer
from small import Costs


def _model(device: str) -> Any:
    folder = tempfile.mkdtemp()
    torch.manual_seed(0)
    config = BertConfig(
        vocab_size=64,
        hidden_size=32,
        num_hidden_layers=2,
        num_attention_heads=4,
        intermediate_size=64,
        max_position_embeddings=64,
        hidden_dropout_prob=0.0,
        attention_probs_dropout_prob=0.0,
    )
    BertModel(config).save_pretrained(folder)
    tokenizer().save_pretrained(folder)
    named: Any = {"device": "cpu"} if device == "cpu" else {}
    made = SentenceTransformer(modules=[Transformer(folder), Pooling(32)], **named)
    check_is_on(made, device)
    return made


def encode(device: str, costs: Costs) -> Any:
    """Texts of the same length four times, which are two batches; then what is near to what."""
    model = _model(device)
    found = []
    for seed in range(4):
        costs.mark()
        found.append(model.encode(texts(10, seed), batch_size=5, show_progress_bar=False))
    costs.mark()
    near = model.similarity(found[0], found[1])
    return [torch.tensor(each) for each in found], near


def unseen_by_loss() -> frozenset[str]:
    """Parameters that what is near to what does not depend on."""

    def loss_of(model: Any) -> torch.Tensor:
        features = [model.preprocess(texts(4, seed)) for seed in (1, 2)]
        return losses.MultipleNegativesRankingLoss(model)(features, torch.empty(0))

    return unseen(_model("cpu"), loss_of)


def training(device: str, costs: Costs) -> Any:
    """By the loss for pairs without labels."""
    import datasets
    from sentence_transformers import (
        SentenceTransformerTrainer,
        SentenceTransformerTrainingArguments,
    )

    datasets.disable_progress_bars()
    left_out = unseen_by_loss()
    model = _model(device)
    pairs = {"anchor": texts(32, 1), "positive": texts(32, 2)}
    SentenceTransformerTrainer(
        model,
        SentenceTransformerTrainingArguments(**arguments(device)),
        train_dataset=datasets.Dataset.from_dict(pairs),
        loss=losses.MultipleNegativesRankingLoss(model),
        callbacks=[Watch(costs)],
    ).train()
    check_is_on(model, device)
    return sums(model, left_out)
