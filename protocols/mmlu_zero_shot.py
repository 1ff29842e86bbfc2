"""MMLU by the letter of the answer, of a model as it comes."""

from levelfield.bench.spec import Budget, Data, Evaluation, Model, Protocol, Task, Tuner

PROTOCOL = Protocol(
    name="mmlu_zero_shot",
    summary="MMLU: which of four options is right: a model as it comes, nothing is trained",
    note="Name the model: --model FOLDER, or --from RUN:method:seed for weights that a run left. "
    "task.shots=5 puts five solved questions in front. The method that is named trains nothing. "
    "`shuffled_accuracy` asks again with the options in an order of the item's own.",
    ranked=False,
    task=Task(kind="multiple_choice", metric="accuracy"),
    model=Model(source="Qwen/Qwen3-0.6B-Base"),
    data=Data(
        source="hf:cais/mmlu?config=all&split=auxiliary_train&layout=mmlu&limit=2000",
        heldout="hf:cais/mmlu?config=all&split=test&layout=mmlu",
        tokenizer="model",
        sequence=512,
        batch=16,
        examples=64,
    ),
    budget=Budget(steps=0, trials=1, studies=1, seeds=1, trial_timeout_s=86_400.0),
    tuner=Tuner(reserve=0),
    evaluation=Evaluation(sequences=64),
    methods=("adamw",),
    files=("data.source=file:mmlu/val?layout=mmlu", "data.heldout=file:mmlu/test?layout=mmlu"),
)
