"""Two processes evaluate to what one does, in mixed precision too; slow, as each imports the tools."""

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]

LIGHTNING = """
import torch, rbue
from lightning.pytorch import LightningModule, Trainer
from rbue.integrations.lightning import Sampling

x, y = torch.randn(30, 20, generator=torch.Generator().manual_seed(1)), torch.arange(30) % 3

class Lit(LightningModule):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        net = torch.nn.Sequential(torch.nn.Linear(20, 32), torch.nn.ReLU(), torch.nn.Linear(32, 3))
        self.net = rbue.convert(net, rbue.DropReLU(0.7), example=x)
    def forward(self, x):
        return self.net(x)
    def training_step(self, batch):
        return torch.nn.functional.cross_entropy(self(batch[0]), batch[1])
    def validation_step(self, batch):
        self(batch[0])
    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), 0.1)

data = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(x, y), 4)
module = Lit()
quiet = dict.fromkeys(("logger", "enable_checkpointing", "enable_progress_bar", "enable_model_summary"), False)
trainer = Trainer(
    accelerator="cpu", devices=2, strategy="ddp", max_epochs=1, callbacks=[Sampling(9, seed=2)], **quiet
)
trainer.fit(module, data, data)
expected = rbue.predict(module.net, x, samples=9, seed=2).probs
assert trainer.world_size == 2
assert abs(trainer.callback_metrics["val_nll"] - rbue.metrics.nll(expected, y)) < 1e-6
assert abs(trainer.callback_metrics["val_ece"] - rbue.metrics.ece(expected, y)) < 1e-6
found = torch.cat([one.probs for one in trainer.predict(module, data)])
assert torch.allclose(found, expected[trainer.global_rank::2], atol=1e-6)
"""

TRANSFORMERS = """
import torch, rbue
from transformers import BertConfig, BertForSequenceClassification, Trainer, TrainingArguments
from rbue.integrations.transformers import Sampled

class SampledTrainer(Sampled, Trainer):
    pass

torch.manual_seed(0)
sizes = dict(hidden_size=16, num_hidden_layers=2, num_attention_heads=2, intermediate_size=32)
net = BertForSequenceClassification(BertConfig(vocab_size=50, num_labels=3, **sizes))
x, y = torch.randint(0, 50, (22, 9)), torch.randint(0, 3, (22,))
rbue.convert(net, rbue.DropActivation(0.8), example={"input_ids": x})
rows = [{"input_ids": one, "labels": other} for one, other in zip(x, y)]
net.classifier.weight.data *= 20
plain = rbue.predict(net, {"input_ids": x}, samples=9, seed=2).probs
with torch.autocast("cpu", torch.bfloat16):
    expected = rbue.predict(net, {"input_ids": x}, samples=9, seed=2).probs
assert not torch.allclose(plain, expected, atol=1e-5)
options = dict(use_cpu=True, report_to=[], disable_tqdm=True, bf16=True)  # a process keeps its first precision
arguments = TrainingArguments("out", per_device_eval_batch_size=4, **options)
trainer = SampledTrainer(model=net, args=arguments, eval_dataset=rows, samples=9, seed=2)
found = trainer.predict(rows)
assert arguments.world_size == 2
assert torch.allclose(torch.from_numpy(found.predictions).exp(), expected, atol=1e-6)
assert abs(found.metrics["test_nll"] - rbue.metrics.nll(expected, y)) < 1e-6
"""


@pytest.mark.slow
@pytest.mark.parametrize(("package", "script"), [("lightning", LIGHTNING), ("accelerate", TRANSFORMERS)])
def test_two_processes_say_what_one_says(package, script, tmp_path):
    pytest.importorskip(package)
    (tmp_path / "script.py").write_text(script)
    run = [sys.executable, "-W", "ignore", "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
    environment = {"PATH": "/usr/bin:/bin", "PYTHONPATH": str(ROOT / "src"), "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [*run, "script.py"], cwd=tmp_path, env=environment, text=True, capture_output=True, timeout=280
    )
    assert done.returncode == 0, done.stderr[-3000:]
