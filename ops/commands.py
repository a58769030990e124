"""Which commands does ``phalanx`` have, and which does it only know by name?"""

from __future__ import annotations

from ops.cli import Command

BENCHMARKS = {
    "checkpoint": "ops.bench.checkpoint_command",
    "chaos": "ops.bench.chaos_command",
    "lighthouse": "ops.bench.lighthouse_command",
    "transfer": "ops.bench.transfer_command",
    "recovery": "ops.bench.recovery_command",
}
"""The benchmarks that exist, and the module of each."""

COMMANDS: tuple[Command, ...] = (
    Command(
        path=("launch",),
        does="Start the lighthouse and all groups on this machine and keep them alive until the run ends",
        example="phalanx launch debug --training.steps 100 --job.dump_folder outputs/try",
        module="ops.launch.command",
        takes_keys=True,
    ),
    Command(
        path=("group",),
        does="Start one group's ranks on this node, for schedulers",
        example="PHALANX_GROUP=g1 PHALANX_LIGHTHOUSE=http://10.0.0.1:29510 phalanx group debug",
        module="ops.launch.group_command",
        takes_keys=True,
    ),
    Command(
        path=("lighthouse",),
        does="Run the coordinator alone; prints its address",
        example="phalanx lighthouse --bind 127.0.0.1:29510 --min-groups 2 --state lighthouse.state",
        module="ops.lighthouse_command",
    ),
    Command(
        path=("ledger",),
        does="Prove from the event logs that every sample was used exactly once; exit 1 where it does not hold",
        example="phalanx ledger outputs/demo --json",
        module="ops.ledger_command",
    ),
    Command(
        path=("report",),
        does="Say what a run came to: where every second went, goodput, recoveries; draw it with --png and --html",
        example="phalanx report outputs/demo --html demo.html",
        module="ops.report_command",
    ),
    Command(
        path=("checkpoint", "ls"),
        does="List a run's checkpoints",
        example="phalanx checkpoint ls outputs/demo",
        module="ops.checkpoint_ls",
    ),
    Command(
        path=("checkpoint", "to-torch"),
        does='Write a checkpoint\'s weights as {"model": {name: tensor}} for torch.load(weights_only=True)',
        example="phalanx checkpoint to-torch outputs/demo/checkpoints/step-00000060-1753000000.61 weights.pt",
        module="ops.checkpoint_to_torch",
    ),
    Command(
        path=("checkpoint", "verify"),
        does="Check every digest of a checkpoint or of all checkpoints of a run",
        example="phalanx checkpoint verify outputs/demo",
        module="ops.checkpoint_verify",
    ),
    Command(
        path=("checkpoint", "to-hf"),
        does="Write a checkpoint as a Hugging Face model folder",
        example="phalanx checkpoint to-hf outputs/demo/checkpoints/step-00000060-1753000000.61 exported",
        module="ops.checkpoint_to_hf",
    ),
    Command(
        path=("checkpoint", "from-hf"),
        does="Make a checkpoint to start from out of a Hugging Face model folder",
        example="phalanx checkpoint from-hf Llama-3.1-8B seed --model llama3 --flavor 8B",
        module="ops.checkpoint_from_hf",
    ),
    Command(
        path=("checkpoint", "from-meta"),
        does="Make a checkpoint to start from out of original Llama weights",
        example="phalanx checkpoint from-meta llama-3.1-8b seed --model llama3 --flavor 8B",
        module="ops.checkpoint_from_meta",
    ),
    Command(
        path=("top",),
        does="Show a running job in the terminal",
        example="phalanx top --lighthouse http://127.0.0.1:29510",
    ),
    Command(
        path=("chaos", "run"),
        does="Run with injected faults and judge the outcome; exit 1 where a promise was broken",
        example="phalanx chaos run pairs --seed 3 --json",
        module="ops.chaos.run_command",
        takes_keys=True,
    ),
    Command(
        path=("chaos", "list"),
        does="Name the chaos scenarios and what each proves",
        example="phalanx chaos list",
        module="ops.chaos.list_command",
    ),
    Command(
        path=("chaos", "show"),
        does="Show what a chaos scenario does, with whom and when",
        example="phalanx chaos show matrix",
        module="ops.chaos.show_command",
    ),
    Command(
        path=("chaos", "judge"),
        does="Judge a run that is over from its event logs; exit 1 where an invariant does not hold",
        example="phalanx chaos judge outputs/demo --json",
        module="ops.chaos.judge_command",
    ),
    Command(
        path=("estimate",),
        does="Estimate the memory per rank without building the model",
        example="phalanx estimate debug",
    ),
    *(
        Command(
            path=("bench", name),
            does=does,
            example=f"phalanx bench {name} --json",
            module=BENCHMARKS.get(name),
            takes_keys=name in ("chaos", "checkpoint", "recovery"),
        )
        for name, does in (
            ("recovery", "Measure stalls and recoveries, beside stock torchft and torchrun"),
            ("overhead", "Measure what fault tolerance costs, beside native HSDP"),
            ("transfer", "Measure the transfer of state between peers, beside a raw socket"),
            ("checkpoint", "Measure what a checkpoint each step costs"),
            ("lighthouse", "Measure quorums of many groups"),
            ("throughput", "Measure tokens per second, beside plain torch"),
            ("parity", "Compare losses and gradients of parallel layouts with one process"),
            ("chaos", "Measure committed work under failures, beside stock torchft and restarts"),
        )
    ),
    Command(path=("data",), does="Prepare and inspect data sets", example="phalanx data ls"),
    Command(path=("generate",), does="Generate text with a checkpoint", example="phalanx generate outputs/demo"),
    Command(path=("fetch",), does="Fetch a tokenizer from the hub", example="phalanx fetch meta-llama/Llama-3.1-8B"),
)
